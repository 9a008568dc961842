"""Every `statestore …` that a document or a message shows is a command with these options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from statestore.cli.commands import cli

from .test_repo_style import ROOT, committed_files

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
IN_A_LINE = re.compile(r"`(statestore [a-z-][^`]*)`")
IN_A_SHELL = re.compile(r"""(?<![\w./=-])statestore (?:"[^"]*"|'[^']*'|[^;|&)#"'])+""")
SYNOPSIS = re.compile(r" \[")
"""In a line that shows which options there are, none of which need be given."""
IN_A_MESSAGE = re.compile(r"`statestore ([a-z]+)")
SHELLS = ("", "sh")
PLACEHOLDER = re.compile(r"[A-Z]+|…")
"""What stands for a value, as in `--num-partitions N`."""


def commands_of(text: str) -> Iterator[str]:
    """Yield the command lines of a Markdown text, without what a shell does with them."""
    for language, block in FENCE.findall(text):
        if language in SHELLS:
            for line in block.replace("\\\n", " ").splitlines():
                if SYNOPSIS.search(line) is None:
                    yield from IN_A_SHELL.findall(line)
    yield from (found.replace("\n", " ") for found in IN_A_LINE.findall(FENCE.sub("", text)))


def check(line: str) -> None:
    """Parse a command line as the command would; nothing is run.

    Raises:
        click.UsageError: There is no such command or option, or an option has no such value.
    """
    _, *words = shlex.split(line)
    group = click.Context(cli, **cli.context_settings)
    if words[0].startswith("-"):
        cli.make_parser(group).parse_args(words)
        return
    name, command, words = cli.resolve_command(group, words)
    assert command is not None
    context = click.Context(command, info_name=name, parent=group, **cli.context_settings)
    values, left, _ = command.make_parser(context).parse_args(words)
    if left:
        raise click.UsageError(f"too many arguments: {left}")
    for parameter in command.params:
        given = values.get(parameter.name)
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and not PLACEHOLDER.fullmatch(value):
                parameter.type.convert(value, parameter, context)


def test_documents_show_commands_that_exist() -> None:
    """Catches a page whose command says that there is no such option."""
    shown = [
        (path.relative_to(ROOT), line.strip())
        for path in committed_files(".md")
        for line in commands_of(path.read_text())
    ]

    wrong = []
    for path, line in shown:
        try:
            check(line)
        except (click.UsageError, ValueError) as error:
            wrong.append(f"{path}: {line}: {error}")
    assert len(shown) > 200
    assert wrong == []


@pytest.mark.parametrize("folder", ["statestore", "jvm-shim/src/main"])
def test_messages_name_commands_that_exist(folder: str) -> None:
    """Catches advice that was right until a command was renamed."""
    named = {
        command
        for path in committed_files(".py", ".scala")
        if path.is_relative_to(ROOT / Path(folder))
        for command in IN_A_MESSAGE.findall(path.read_text())
    }

    assert named
    assert named <= {*cli.list_commands(click.Context(cli))}


@pytest.mark.parametrize(
    "line",
    [
        "statestore rescael /data",
        "statestore verify /data --deeper",
        "statestore convert /data /new --provider rocks",
        "statestore list /data /other",
        "statestore rescale /data --num-partitions",
        "statestore rescale /data --num-partitions 0",
    ],
)
def test_a_wrong_command_is_found(line: str) -> None:
    """Catches a check that finds nothing."""
    with pytest.raises(click.UsageError):
        check(line)
