"""docs/python.md names what the classes have; the shell says the same words in the same order."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

import click

import statestore
from statestore import Checkpoint, Rows, Savepoint, StateStoreError
from statestore.cli.commands import cli
from statestore.core import errors

from .test_repo_style import ROOT

ROW = re.compile(r"^\|(?P<methods>[^|]*)\|(?P<commands>[^|]*)\|[^|]*\|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
CALL = re.compile(r"(?:(?P<of>\w+)\(…\)\.)?(?P<name>\w+)(?:\((?P<parameters>.*)\))?")
SPELLED = {
    "all": "all_rows",
    "find": "key",
    "largest": "num_keys",
    "most_changed": "num_keys",
    "savepoints": "directory",
    "sql": "rows",
}
"""Parameters of methods, by the option that says the same in another word."""
HOW = {"dry_run", "progress"}
"""Parameters that say how an operation is called: the same ones of all that have them."""
CONDITIONS = {"read": "filter", "edit": "delete", "forget": "where"}
"""What the option --where is to a method: a condition may stand where keys may."""


class Named(NamedTuple):
    """What a row of the page names."""

    of: tuple[type, ...]
    name: str
    parameters: list[str]
    has_more: bool
    command: list[str]
    is_changed: bool


def named_on_the_page() -> list[Named]:
    """Return the methods and attributes of the page's tables of what is read and changed."""
    _, _, rest = (ROOT / "docs" / "python.md").read_text().partition("\n## What is read\n")
    read, _, rest = rest.partition("\n## What is changed\n")
    changed, _, _ = rest.partition("\nEvery result has")
    found = []
    for text, is_changed in ((read, False), (changed, True)):
        of: tuple[type, ...] = ()
        for row in ROW.finditer(text):
            if "of `Rows`" in row["methods"]:
                of = (Rows,)
                continue
            if "of a" in row["methods"]:
                of = (Checkpoint, Savepoint) if "or a" in row["methods"] else (Checkpoint,)
                continue
            command = CODE.search(row["commands"])
            for code in CODE.findall(row["methods"]):
                call = CALL.fullmatch(code)
                assert call is not None, code
                parameters = [
                    each.strip().removesuffix("=…")
                    for each in (call["parameters"] or "").split(",")
                    if each.strip()
                ]
                found.append(
                    Named(
                        ({"Checkpoint": Checkpoint, "Savepoint": Savepoint}[call["of"]],)
                        if call["of"]
                        else of,
                        call["name"],
                        [each for each in parameters if each != "…"],
                        "…" in parameters,
                        command[1].split() if command else [],
                        is_changed,
                    )
                )
    return found


def parameters_of(method: object) -> list[str]:
    """Return the parameters of a method."""
    assert callable(method)
    return [name for name in inspect.signature(method).parameters if name not in ("self", "cls")]


def options_of(command: list[str], parameters: list[str]) -> list[str]:
    """Return which parameters of a method a command's arguments and options are, in their order."""
    found = []
    of = cli.get_command(click.Context(cli), command[0])
    assert of is not None, command
    for one in of.params:
        word = (one.name or "") if isinstance(one, click.Argument) else one.opts[0].strip("-")
        other = CONDITIONS.get(command[0]) if word == "where" else SPELLED.get(word)
        words = {word.replace("-", "_"), f"{word.replace('-', '_')}s", other}
        found += [each for each in parameters if each in words]
    return list(dict.fromkeys(found))


def is_in_order(part: list[str], whole: list[str]) -> bool:
    """Whether a list has the order of another one, of which it is a part."""
    return part == [each for each in whole if each in part]


def test_the_page_names_all_that_the_classes_have() -> None:
    """Catches an operation that the page lacks, and one that is gone or has no dry run."""
    named = named_on_the_page()

    for of in (Checkpoint, Savepoint, Rows):
        public = {name for name in dir(of) if not name.startswith("_")}
        assert {one.name for one in named if of in one.of} == public
        with_dry_run = {
            name
            for name, method in inspect.getmembers(of, inspect.isfunction)
            if name in public and "dry_run" in inspect.signature(method).parameters
        }
        assert {one.name for one in named if of in one.of and one.is_changed} == with_dry_run


def test_the_page_names_the_arguments_that_methods_take() -> None:
    """Catches an argument that was renamed, is missing, or stands in another place."""
    for one in named_on_the_page():
        method = inspect.getattr_static(one.of[0], one.name)
        if isinstance(method, classmethod):
            method = method.__func__
        if not inspect.isfunction(method):
            assert not one.parameters
            continue
        parameters = parameters_of(method)
        assert is_in_order(one.parameters, parameters), one
        assert one.has_more or set(parameters) - set(one.parameters) <= HOW, one


def test_the_shell_says_the_same_words_in_the_same_order() -> None:
    """Catches an operation that the shell lacks, and an option that Python calls otherwise."""
    named = [one for one in named_on_the_page() if one.command]

    for one in named:
        command = cli.get_command(click.Context(cli), one.command[0])
        assert command is not None, one
        flags = {option for each in command.params for option in each.opts}
        assert {*one.command[1:]} <= flags, one
        method = inspect.getattr_static(one.of[0], one.name)
        if inspect.isfunction(method):
            parameters = parameters_of(method)
            assert is_in_order(options_of(one.command, parameters), parameters), one
            assert {*parameters} - {*options_of(one.command, parameters)} <= HOW, one
    on_a_checkpoint = {
        name
        for name in cli.list_commands(click.Context(cli))
        for command in [cli.get_command(click.Context(cli), name)]
        if command and {"checkpoint", "old", "source"} & {each.name for each in command.params}
    }
    assert {one.command[0] for one in named} == on_a_checkpoint


def test_the_page_names_all_that_the_package_has() -> None:
    """Catches a function that nobody finds, and an error that programs cannot name."""
    _, _, text = (ROOT / "docs" / "python.md").read_text().partition("\n## Every name\n")
    names, _, of_errors = text.partition("\nThe other errors")

    def in_table(part: str) -> list[str]:
        cells = re.findall(r"^\|(.*?)\|", part, re.MULTILINE)
        return sorted(name for cell in cells for name in CODE.findall(cell))

    classes = {
        name
        for name, of in inspect.getmembers(errors, inspect.isclass)
        if issubclass(of, StateStoreError)
    }
    assert in_table(names) == sorted(statestore.__all__)
    assert in_table(of_errors) == sorted(classes - {*statestore.__all__})
