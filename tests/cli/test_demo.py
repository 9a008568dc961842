"""`statestore demo` makes a checkpoint on which the commands that it names work."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner

from statestore import Checkpoint
from statestore.cli.commands import cli
from statestore.testing.sample import NUM_BATCHES, SALES_A_BATCH


def test_commands_that_are_named_work(tmp_path: Path) -> None:
    """Catches a first look that ends with an error, and a count that is not that of the sales."""
    made = tmp_path / "sales" / "demo"
    result = CliRunner().invoke(cli, ["demo", str(made)])
    assert result.exit_code == 0, result.output

    checkpoint = Checkpoint(made)
    assert checkpoint.verify(versions="all", deep=True).ok
    sold = checkpoint.sql("SELECT sum(value.count) AS sold FROM state").read()
    assert sold.to_pylist() == [{"sold": NUM_BATCHES * SALES_A_BATCH}]
    text = result.output.replace("\\\n", " ").replace("page.html", str(tmp_path / "page.html"))
    lines = [line for line in text.splitlines() if line.startswith("  statestore ")]
    assert len(lines) == 7
    for line in lines:
        _, *command = shlex.split(line)
        if command[0] != "ui":  # goes on until it is ended
            done = CliRunner().invoke(cli, command)
            assert done.exit_code == 0, (line, done.output)
    assert [*made.parent.iterdir()] == [made]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    """Catches a directory of the user's that a demo takes."""
    (tmp_path / "mine").mkdir()

    result = CliRunner().invoke(cli, ["demo", str(tmp_path / "mine")])

    assert result.exit_code == 1
    assert "the directory of the demo is there" in result.output
    assert [*tmp_path.rglob("*")] == [tmp_path / "mine"]
