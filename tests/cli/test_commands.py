"""The commands print what they promise, and say what to do when they cannot."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pyspark
import pytest
from click.testing import CliRunner

from statestore import Checkpoint, Savepoint, Trial, __version__
from statestore.cli import __main__ as entry_point
from statestore.cli.commands import cli
from statestore.core.errors import IncompatibleError, NotFoundError
from statestore.core.version import SPARK_MINORS
from statestore.io import shim_jar
from statestore.io.shim_jar import JAR_VARIABLE, find_jar
from statestore.io.spark_home import HOME_VARIABLE, find_spark_minor
from statestore.operations.copy_result import FamilyChange
from statestore.operations.reading.inspection import StoreDescription
from statestore.operations.result import NewDirectoryResult, Result
from tests.checkpoints import query_of, write_checkpoint
from tests.made_trials import tried
from tools.json_reference import COMMANDS, attributes, fields, names_of


def test_version_is_printed() -> None:
    """Catches a command line that reports another version than the package."""
    result = CliRunner().invoke(cli, ["--version"])

    assert (result.exit_code, result.output) == (0, f"{__version__}\n")


def test_what_changes_a_checkpoint_wants_yes_and_what_makes_a_directory_does_it() -> None:
    """Catches a command that asks where no other one like it does, or does it unasked."""
    flags = {
        name: {option for each in command.params for option in each.opts}
        for name in cli.list_commands(click.Context(cli))
        if (command := cli.get_command(click.Context(cli), name)) is not None
    }
    returned = {
        name: str(inspect.signature(method).return_annotation).partition("[")[0]
        for kind in (Checkpoint, Savepoint, Trial)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if name in flags
    }
    makes = {kind.__name__ for kind in NewDirectoryResult.__subclasses__()}
    changes = {kind.__name__ for kind in Result.__subclasses__()} - {NewDirectoryResult.__name__}
    making = {name for name in returned if returned[name] in makes}
    changing = {name for name in returned if returned[name] in changes}

    assert making == {"branch", "convert", "restore", "savepoint", "transform"}
    own = {"compact", "edit", "expire", "forget", "repair", "rescale"}
    assert changing == {*own, "drop", "promote"}
    assert {name for name in flags if "--dry-run" in flags[name]} == making
    assert {name for name in flags if "--yes" in flags[name]} == changing


def test_jar_is_the_one_named_by_the_variable(tmp_path: Path) -> None:
    """Catches a variable that is read but does not win."""
    jar = tmp_path / "shim.jar"
    jar.touch()

    result = CliRunner().invoke(cli, ["jar"], env={JAR_VARIABLE: str(jar)})

    assert (result.exit_code, result.output) == (0, f"{jar.resolve()}\n")


def test_jar_is_refused_when_the_variable_names_no_file(tmp_path: Path) -> None:
    """Catches a fall back to another jar than the one asked for."""
    jar = tmp_path / "missing.jar"

    result = CliRunner().invoke(cli, ["jar"], env={JAR_VARIABLE: str(jar)})

    assert result.exit_code == 1
    assert str(jar) in result.output
    assert f"To fix: correct or unset {JAR_VARIABLE}" in result.output


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names neither jar nor Spark."""
    for name in (JAR_VARIABLE, HOME_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def jars(tmp_path: Path, unset: pytest.MonkeyPatch) -> Path:
    """The directory of jars: one for each Spark, and beside them those of another version."""
    directory = tmp_path / "jars"
    directory.mkdir()
    unset.setattr(shim_jar, "JAR_DIRECTORY", directory)
    for version in (__version__, "99.0.0"):
        for spark in SPARK_MINORS:
            (directory / f"statestore-shim_2.13-spark{spark}-{version}.jar").touch()
    return directory


@pytest.mark.parametrize("spark", SPARK_MINORS)
def test_jar_is_the_one_of_the_spark_that_programs_start(
    jars: Path, tmp_path: Path, unset: pytest.MonkeyPatch, spark: str
) -> None:
    """Catches the jar of another Spark or version, which driver or engines would refuse."""
    named = jars / f"statestore-shim_2.13-spark{spark}-{__version__}.jar"
    (tmp_path / "spark/jars").mkdir(parents=True)
    (tmp_path / f"spark/jars/spark-core_2.13-{spark}.1.jar").touch()
    installed = find_spark_minor()

    assert find_jar().name == f"statestore-shim_2.13-spark{installed}-{__version__}.jar"
    unset.setenv(HOME_VARIABLE, str(tmp_path / "spark"))
    assert find_jar() == named
    unset.delenv(HOME_VARIABLE)
    unset.setenv(JAR_VARIABLE, "/other.jar")
    assert find_jar(spark=spark) == named
    assert pyspark.__version__.startswith(f"{installed}.")


def test_jar_is_refused_for_a_spark_that_there_is_none_for(
    tmp_path: Path, unset: pytest.MonkeyPatch
) -> None:
    """Catches a query that fails in its first batch, of whatever class is missing first."""
    (tmp_path / "spark/jars").mkdir(parents=True)
    unset.setenv(HOME_VARIABLE, str(tmp_path / "spark"))
    with pytest.raises(NotFoundError, match="no Spark") as raised:
        find_jar()
    assert "statestore jar --spark" in raised.value.to_fix

    result = CliRunner().invoke(cli, ["jar", "--spark", "3.5"])
    assert result.exit_code == 2
    assert "4.1" in result.output


def test_spark_without_a_jar_gets_the_nearest_where_it_fits(
    tmp_path: Path, unset: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Catches a refusal by the name of a version alone, and a jar that dies of a missing class."""
    installed = Path(pyspark.__file__).parent / "jars"
    (tmp_path / "jars").mkdir()
    for jar in installed.glob("*.jar"):
        name = jar.name.replace(f"spark-core_2.13-{pyspark.__version__}", "spark-core_2.13-4.99.0")
        (tmp_path / "jars" / name).symlink_to(jar)

    unset.setenv(HOME_VARIABLE, str(tmp_path))
    assert find_jar() == find_jar(spark=SPARK_MINORS[-1])
    assert "no jar is made for this Spark" in caplog.text
    assert "spark=4.99" in caplog.text

    next((tmp_path / "jars").glob("spark-sql_2.13-*.jar")).unlink()
    with pytest.raises(IncompatibleError, match=r"spark='4\.99', jar='4\.3', missing=") as raised:
        find_jar()
    assert raised.value.kind == "wrong-spark"
    assert f"{SPARK_MINORS[0]} to {SPARK_MINORS[-1]}" in raised.value.to_fix


def test_spark_of_an_older_scala_is_refused_by_name(
    tmp_path: Path, unset: pytest.MonkeyPatch
) -> None:
    """Catches an installed Spark that is said not to be there."""
    nearest = tmp_path / f"statestore-shim_2.13-spark{SPARK_MINORS[0]}-{__version__}.jar"
    shutil.copy(find_jar(), nearest)
    unset.setattr(shim_jar, "JAR_DIRECTORY", tmp_path)
    (tmp_path / "jars").mkdir()
    zipfile.ZipFile(tmp_path / "jars" / "spark-core_2.12-3.5.6.jar", "w").close()
    unset.setenv(HOME_VARIABLE, str(tmp_path))

    with pytest.raises(IncompatibleError, match=r"\[wrong-spark\] .*spark='3\.5'"):
        find_jar()


def test_missing_jar_is_an_error_that_names_the_fix(
    tmp_path: Path, unset: pytest.MonkeyPatch
) -> None:
    """Catches an empty path that Spark would accept silently."""
    unset.setattr(shim_jar, "JAR_DIRECTORY", tmp_path)
    with pytest.raises(LookupError, match=r"To fix: .*\./build\.sh jar") as raised:
        find_jar()

    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("name", [None, *cli.list_commands(click.Context(cli))])
def test_every_command_has_help(name: str | None) -> None:
    """Catches a command without a word about what it does, or without an example to copy."""
    arguments = [name, "--help"] if name else ["--help"]

    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == 0
    command = cli if name is None else cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help
    paragraphs = inspect.cleandoc(command.help).split("\n\n")
    examples = [text for text in paragraphs if text.startswith("\b")]
    assert name is None or any(f"statestore {name}" in text for text in examples)


def test_missing_extra_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a traceback of an import where the command line was not installed."""
    monkeypatch.setitem(sys.modules, "click", None)  # what an import finds when it is not there

    with pytest.raises(SystemExit, match=r"pip install statestore\[cli\]") as raised:
        entry_point.main()

    assert "missing=click" in str(raised.value)


@pytest.mark.parametrize("option", ["-v", "--version"])
def test_version_is_an_option_too(option: str) -> None:
    """Catches the first thing that everybody types refused."""
    assert CliRunner().invoke(cli, [option]).output.strip() == __version__


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("lst", "'list'"), ("reapir", "'repair'"), ("restor", "'restore'"), ("snapshot", None)],
)
def test_command_that_is_not_there_names_the_nearest(wrong: str, right: str | None) -> None:
    """Catches names only of the few commands that are imported at once."""
    result = CliRunner().invoke(cli, [wrong])

    assert result.exit_code == 2
    assert f"No such command '{wrong}'." in result.output
    assert ("Did you mean" in result.output) == (right is not None)
    assert right is None or right in result.output


def test_singular_and_plural_are_one_word(tmp_path: Path) -> None:
    """Catches an option that has to be looked up for its last letter."""
    query = query_of(tmp_path / "query", num_partitions=2)
    query.run_batch({f"key-{number}": "value" for number in range(10)})

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli, [*arguments, "--output", "json"])
        assert result.exit_code == 0, result.output
        return result.output

    assert run("lists", query.path) == run("list", query.path)
    plan = run("rescale", query.path, "--num-partitions", "4")
    assert run("rescale", query.path, "--num-partition", "4") == plan
    groups = run("inspect", query.path, "--key-groups", "--row", "0")
    assert run("inspect", query.path, "--key-group") == groups
    assert run("verify", query.path, "--versions", "all")
    refused = CliRunner().invoke(cli, ["read", query.path, "--partition", "x", "--outputs", "jsn"])
    assert refused.exit_code == 2


@pytest.mark.parametrize(("typed", "expected"), [("re", {"repair", "restore", "rescale", "read"})])
def test_shell_completes_every_command(typed: str, expected: set[str]) -> None:
    """Catches completion of only those commands that are imported at once."""
    done = subprocess.run(
        [sys.executable, "-m", "statestore.cli"],
        env={
            **os.environ,
            "COMP_WORDS": f"statestore {typed}",
            "COMP_CWORD": "1",
            "_STATESTORE_COMPLETE": "bash_complete",
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert expected <= {line.partition(",")[2] for line in done.stdout.splitlines()}


def test_shell_says_nothing_behind_a_command_that_is_none() -> None:
    """Catches a traceback in the middle of a line that is being typed."""
    done = subprocess.run(
        [sys.executable, "-m", "statestore.cli"],
        env={
            **os.environ,
            "COMP_WORDS": "statestore lst ",
            "COMP_CWORD": "2",
            "_STATESTORE_COMPLETE": "bash_complete",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stderr, done.returncode) == ("", 0)


def test_a_command_begins_without_what_few_commands_need() -> None:
    """Catches a help that takes a second, for what it imports."""
    seen = "import sys, statestore.cli.commands; print({'pyarrow', 'duckdb'} & {*sys.modules})"

    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def test_json_is_what_the_reference_describes(tmp_path: Path) -> None:
    """Catches a field that a script can find and nobody described, and JSON of no version."""
    query = query_of(tmp_path / "query", num_partitions=2)
    for number in range(3):
        query.run_batch({f"key-{key}": str(number) for key in range(10)})
    saved, new, path = str(tmp_path / "saved"), str(tmp_path / "new"), query.path
    rows = {"default": {("x", 1): (1, "note")}}
    typed = write_checkpoint(tmp_path / "typed", [rows, {"default": {("y", 2): (2, None)}}])
    of = ["--rows", "default"]
    _, trial = tried(tmp_path)
    keys = tmp_path / "keys.csv"
    keys.write_text("key.word,key.number\ny,2\n")
    commands = [
        ["list", path],
        ["verify", path, "--deep"],
        ["repair", path],
        ["expire", path, "--keep", "2"],
        ["compact", path],
        ["rescale", path, "--num-partitions", "4", "--yes"],
        ["rescale", path, "--undo"],
        ["history", path],
        ["savepoint", path, saved],
        ["savepoint", path, f"{saved}-kept", "--keep", "2"],
        ["restore", saved, new],
        ["branch", path, f"{new}-branch"],
        ["inspect", typed],
        ["inspect", typed, *of, "--key-groups"],
        ["read", typed, *of],
        ["read", typed, *of, "--where", "total = 1"],
        ["read", typed, *of, "--to", str(tmp_path / "rows.parquet")],
        ["sql", typed, 'SELECT * FROM "default"'],
        ["sql", typed, 'SELECT * FROM "default"', "--to", str(tmp_path / "rows.csv")],
        ["sql", typed, "--tables"],
        ["diff", typed, *of, "--old-version", "1"],
        ["diff", typed, *of, "--old-version", "1", "--counts"],
        ["forget", typed, "--where", "word = 'y'"],
        ["forget", typed, "--keys", str(keys), "--verify"],
        ["doctor", "--backend", "heap"],
        ["report", path],
        ["promote", trial.uri],
        ["drop", trial.uri],
        ["edit", typed, *of, "--where", "word = 'y'"],
        ["transform", typed, f"{new}-edited", *of, "--where", "word = 'y'"],
    ]

    for arguments in commands:
        result = CliRunner().invoke(cli, [*arguments, "--output", "json"])
        assert result.stdout, result.stderr
        printed = json.loads(result.stdout)
        assert printed["schema_version"] == 1, arguments
        assert {*printed} <= fields(arguments[0]), arguments
        for nested, kind in (("stores", StoreDescription), ("families", FamilyChange)):
            if arguments[0] in ("inspect", "edit", "transform"):
                for one in printed.get(nested, ()):
                    assert {*one} == names_of(attributes(kind)), arguments
    with_output = {
        name
        for name in cli.list_commands(click.Context(cli))
        for command in [cli.get_command(click.Context(cli), name)]
        if command and "output" in {each.name for each in command.params}
    }
    assert {*COMMANDS} == with_output
    # A conversion runs Spark, and so does a trial.
    assert with_output - {arguments[0] for arguments in commands} == {"convert", "try"}


def test_the_reference_describes_no_class_that_says_nothing() -> None:
    """Catches a table without a row."""
    with pytest.raises(ValueError, match="no attribute: Path"):
        attributes(Path)
