"""The commands savepoint, restore and branch: plans, what is done, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from statestore.cli.commands import cli
from statestore.testing.checkpoints import MadeCheckpoint
from tests.checkpoints import files_below, query_of, read_rows


@pytest.fixture
def query(tmp_path: Path) -> MadeCheckpoint:
    """A query's checkpoint after one batch."""
    made = query_of(tmp_path / "query", num_partitions=2)
    made.run_batch({f"key-{number}": "value" for number in range(10)})
    return made


def run(*arguments: Any) -> Result:
    """Run a command."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_savepoint_restore_and_branch_do_what_they_show(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a dry run that does it, or says that it did what it did not."""
    planned = run("savepoint", query.path, tmp_path / "savepoint", "--dry-run")
    assert "written anew" in planned.output
    assert not (tmp_path / "savepoint").exists()
    taken = run("savepoint", query.path, tmp_path / "savepoint", "--output", "json")
    assert taken.exit_code == 0, taken.output
    assert json.loads(taken.output).items() >= {"done": True, "version": 1}.items()
    assert json.loads(taken.output)["savepoint"]["form"] == "canonical"
    assert taken.stderr == ""
    native = run("savepoint", query.path, tmp_path / "native", "--form", "native", "--version", 1)
    assert native.stderr == ""
    assert native.output.splitlines()[-1].startswith("Done: a native savepoint of ")

    how = ("--backend", "rocksdb", "--num-partitions", 4)
    for command in (
        ("restore", tmp_path / "savepoint", tmp_path / "again", *how),
        ("branch", query.path, tmp_path / "fork"),
    ):
        planned = run(*command, "--dry-run")
        assert planned.exit_code == 0, planned.output
        assert planned.output.splitlines()[-1].startswith("Nothing was changed.")
        assert not Path(command[2]).exists()
        done = run(*command, "--output", "json")
        assert json.loads(done.output)["done"] is True
        assert read_rows(command[2]) == query.expected()


def test_restore_shows_what_becomes_of_operators(tmp_path: Path, query: MadeCheckpoint) -> None:
    """Catches a plan from which nobody can tell whose state goes where."""
    run("savepoint", query.path, tmp_path / "savepoint")
    moved = ("--map-operator", "0:1", "--add-operator", "0:dedupe", "--claim", "--new-query-id")

    again = ("restore", tmp_path / "savepoint", tmp_path / "again", "--dry-run")
    planned = run(*again, *moved)
    dropped = run(*again, "--drop-operator", 0)

    lines = [" ".join(line.split()) for line in planned.output.splitlines()]
    assert {"operator 0 becomes 1", "new operator 0 dedupe, empty"} <= {*lines}
    assert any(line.startswith("state ") and line.endswith(", written anew") for line in lines)
    assert "afterwards the savepoint is deleted" in lines
    assert "afterwards" not in dropped.output
    assert "operator 0        dropped" in dropped.output.splitlines()
    done = run("restore", tmp_path / "savepoint", tmp_path / "again", *moved)
    assert done.output.splitlines()[-1] == "Done."
    assert not (tmp_path / "savepoint").exists()


def test_wrong_usage_and_refusals_have_a_status_of_their_own(
    tmp_path: Path, query: MadeCheckpoint
) -> None:
    """Catches a script that goes on after a restore which was not done."""
    before = files_below(query.path)
    run("savepoint", query.path, tmp_path / "savepoint")

    for wrong in (("--map-operator", "x"), ("--map-operator", "0:x"), ("--add-operator", "1")):
        assert run("restore", tmp_path / "savepoint", tmp_path / "again", *wrong).exit_code == 2
    refused = run("restore", tmp_path / "savepoint", query.path)

    assert refused.exit_code == 1
    assert "[checkpoint-exists]" in refused.output
    assert files_below(query.path) == before
