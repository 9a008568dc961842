"""`statestore demo` makes a checkpoint on which the commands that it names work."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import Checkpoint
from statestore.cli.commands import cli
from statestore.testing.sample import NUM_BATCHES, SALES_A_BATCH
from tests.ui.served import serve


@pytest.mark.parametrize("named", [(), ("some sales/demo",)], ids=["default", "named"])
def test_commands_that_are_named_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    """Catches a first look that ends with an error, and a count that is not that of the sales."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / (named or ("statestore-demo",))[0]
    result = CliRunner().invoke(cli, ["demo", *named])
    assert result.exit_code == 0, result.output

    checkpoint = Checkpoint(made)
    assert checkpoint.verify(versions="all", deep=True).ok
    sold = checkpoint.sql("SELECT sum(value.count) AS sold FROM state").read()
    assert sold.to_pylist() == [{"sold": NUM_BATCHES * SALES_A_BATCH}]
    text = result.output.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("  statestore ")]
    assert len(lines) == 7
    for line in lines:
        _, *command = shlex.split(line)
        if command[0] != "ui":  # goes on until it is ended
            done = CliRunner().invoke(cli, command)
            assert done.exit_code == 0, (line, done.output)
    page = tmp_path / "page.html"
    assert {*tmp_path.iterdir()} == {page, tmp_path / made.relative_to(tmp_path).parts[0]}
    assert [path for path in made.parent.iterdir() if path != page] == [made]


def test_a_first_look_needs_neither_spark_nor_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a demo or a page that imports Spark, or starts a JVM, which a user may not have."""
    for name in ("pyspark", "py4j"):
        hidden = tmp_path / "hidden" / name / "__init__.py"
        hidden.parent.mkdir(parents=True)
        hidden.write_text("raise ImportError('this machine has no Spark')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    made = tmp_path / "sales"

    command = [sys.executable, "-m", "statestore.cli", "demo", str(made)]
    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    with serve(made) as server:
        assert "sales" in server.page("/")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    """Catches a directory of the user's that a demo takes."""
    (tmp_path / "mine").mkdir()

    result = CliRunner().invoke(cli, ["demo", str(tmp_path / "mine")])

    assert result.exit_code == 1
    assert "the directory of the demo is there" in result.output
    assert [*tmp_path.rglob("*")] == [tmp_path / "mine"]
