"""What no linter checks: rules of this repository, over every file that git would commit."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from statestore import __version__
from statestore.checkpoint.layout import BODIES
from statestore.core import errors
from statestore.core.providers import PROVIDERS
from statestore.core.version import OLDEST
from tools import cli_reference, option_table

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "jvm-shim" / "src"
MAX_LINE = 100
# Put together here, so that this file does not contain what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.])/(" + "|".join(["work", "root", "farm", r"home/\w+"]) + ")/")
OPEN_TASK = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
NAMELESS = re.compile(r"\bof " + "theirs" + r"\b")
EXIT = r"System\.exit"
FORBIDDEN_IN_SHIM = {
    r"\bprintln\(": "logs go through Spark's logging",
    r"\?\?\?": "nothing is left unimplemented",
    EXIT: "the JVM belongs to Spark",
    r"import .*\.shaded\.|import .*guava": "Spark's private copies of libraries move",
    r"java\.io\.FileOutputStream": "durable bytes are written by the engine",
}
"""Pattern and reason."""


def committed_files(*suffixes: str) -> list[Path]:
    """Return the text files that git has or would add, of these suffixes or all."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    paths = [ROOT / name for name in sorted(set(listed)) if name]
    return [
        path
        for path in paths
        if path.is_file()
        and (not suffixes or path.suffix in suffixes)
        and b"\0" not in path.read_bytes()
    ]


def matches(paths: list[Path], pattern: re.Pattern[str]) -> list[str]:
    """Return `file:line: text` of every line that matches."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]


def test_scala_lines_are_short_and_clean() -> None:
    """Catches what no formatter of ours would."""
    pattern = re.compile(rf".{{{MAX_LINE + 1}}}|\t|\s$")

    assert matches(committed_files(".scala"), pattern) == []


@pytest.mark.parametrize(("pattern", "reason"), FORBIDDEN_IN_SHIM.items())
def test_shim_keeps_to_the_rules(pattern: str, reason: str) -> None:
    """Catches Scala that does what the shim must not do."""
    files = [path for path in committed_files(".scala") if path.is_relative_to(SHIM)]
    shim = [path for path in files if not path.is_relative_to(SHIM / "test")]

    assert shim
    if pattern == EXIT:
        shim = [path for path in shim if path.stem != "HadoopProcess"]  # whose JVM is its own
    assert matches(shim, re.compile(pattern)) == [], reason


def test_only_backends_ask_which_state_backend_it_is() -> None:
    """Catches a decision about a state backend outside of `FileForm` and the tables of backends."""
    names = {*PROVIDERS, *BODIES.values()}
    found = []
    for path in committed_files(".py"):
        package = path.relative_to(ROOT).parts
        if package[0] != "statestore" or package[1] == "backends":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            sides: list[ast.AST] = []
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                sides += [one for side in sides for one in getattr(side, "elts", ())]
            elif isinstance(node, ast.MatchValue):
                sides = [node.value]
            found += [
                f"{path.relative_to(ROOT)}:{side.lineno}"
                for side in sides
                if isinstance(side, ast.Constant) and side.value in names
            ]
    assert found == []


def test_directories_for_temporary_files_go_after_a_kill() -> None:
    """Catches one that a command which was killed leaves for ever, with rows or secrets in it."""
    # The others are in one of `temporary_directory`, which the next command removes.
    pattern = re.compile(r"TemporaryDirectory\((?!.*\bdir=)")
    package = [path for path in committed_files(".py") if path.is_relative_to(ROOT / "statestore")]

    assert package
    assert matches(package, pattern) == []


def test_no_machine_paths() -> None:
    """Catches a path that exists on one machine only."""
    assert matches(committed_files(), MACHINE_PATH) == []


def test_nothing_is_left_undone() -> None:
    """Catches a note to oneself; work to do is an issue."""
    assert matches(committed_files(".py", ".scala", ".md", ".sh", ".toml"), OPEN_TASK) == []


def test_sentences_name_their_nouns() -> None:
    """Catches a sentence that has to be read twice to know whose thing is meant."""
    assert matches(committed_files(".py", ".scala", ".md"), NAMELESS) == []


def test_configuration_page_is_current() -> None:
    """Catches an option that was changed without its page."""
    assert option_table.PATH.read_text() == option_table.reference(), (
        "To fix: .venv/bin/python -m tools.option_table"
    )


def test_command_line_page_is_current() -> None:
    """Catches a command that was changed without its page."""
    assert cli_reference.PATH.read_text() == cli_reference.reference(), (
        "To fix: .venv/bin/python -m tools.cli_reference"
    )


def test_every_public_error_is_documented() -> None:
    """Catches an error class that neither the tree nor the protocol explains."""
    tree = errors.__doc__ or ""
    protocol = (ROOT / "docs" / "protocol.md").read_text()
    classes = [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.StateStoreError)
    ]

    for error in classes:
        assert error.__doc__, error
        assert error.__name__ in tree, "draw it in the tree of statestore/core/errors.py"
        crosses = error not in (
            errors.StateStoreError,
            errors.StoreClosedError,
            errors.QueryFailedError,
        )
        assert not crosses or f"`{error.__name__}`" in protocol, "list it in docs/protocol.md"


def test_changelog_has_the_version() -> None:
    """Catches a release nobody can read about."""
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_documents_name_only_targets_that_exist() -> None:
    """Catches a command in the documents that build.sh does not know."""
    script = (ROOT / "build.sh").read_text()
    targets = set(re.findall(r"^  ([\w-]+) +\S", script.partition("END\n")[0], re.MULTILINE))

    named = {
        target
        for path in committed_files(".md")
        for target in re.findall(r"\./build\.sh ([\w-]+)", path.read_text())
    }

    assert {"setup", "jar", "demo", "test", "lint", "bench", "wheel"} <= targets
    assert named <= targets


def test_links_between_documents_lead_somewhere() -> None:
    """Catches a link to a page that was moved."""
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in committed_files(".md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
        if not (path.parent / target).exists()
    ]

    assert broken == []


def test_documents_name_only_tests_that_exist() -> None:
    """Catches a claim whose test was renamed."""
    named = {
        (path.name, file, function)
        for path in committed_files(".md")
        for file, function in re.findall(r"`(\w+/test_\w+\.py)(?:::(\w+))?", path.read_text())
    }

    assert len(named) > 50
    assert [
        (page, file, function)
        for page, file, function in sorted(named)
        if not (ROOT / "tests" / file).is_file()
        or f"def {function}" not in (ROOT / "tests" / file).read_text()
    ] == []


def test_lines_of_documents_are_short() -> None:
    """Catches prose that cannot be read beside its diff; rows of tables cannot be broken."""
    pages = [path for path in committed_files(".md") if "results" not in path.parts]
    readme = ROOT / "README.md"

    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in pages
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > (120 if path == readme else 140)
        and (path == readme or not line.startswith("|"))
    ]

    assert long == []


def test_design_pages_are_at_most_two_pages() -> None:
    """Catches a decision that is buried under history and measurements."""
    pages = sorted((ROOT / "docs" / "design").glob("*.md"))

    assert pages
    assert [page.name for page in pages if len(page.read_text().split()) > 1250] == []


def test_oldest_packages_are_those_of_the_project() -> None:
    """Catches a package that pip takes and that is then refused, or the other way round."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(one for extra in extras for one in extra)]

    for module, version in OLDEST.items():
        assert f"{module.replace('_', '-')}>={version}" in wanted


def test_every_dependency_is_pinned() -> None:
    """Catches an environment that another day would make differently."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()

    assert [line for line in lines if not re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line)] == []
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"].values()
    groups = project["dependency-groups"].values()
    lists = [project["project"]["dependencies"], *optional, *groups]
    needed = {canonicalize_name(Requirement(one).name) for each in lists for one in each}
    assert needed - pinned == {"statestore"}
