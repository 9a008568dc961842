"""`statestore rescale` shows its plan, does it when told to, and takes it back."""

import json

import pytest
from click.testing import CliRunner

from statestore.cli.commands import cli
from statestore.cli.output import WITH_YES
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import OPERATORS


@pytest.fixture
def made(tmp_path):
    """A checkpoint of two operators in four state partitions."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    checkpoint = MadeCheckpoint(
        str(tmp_path / "checkpoint"), scratch, operators=(OPERATORS[0], OPERATORS[2])
    )
    checkpoint.run_batch({key: key for key in range(30)})
    return checkpoint


def run(*arguments, exit_code=0):
    """Run the command; return what it prints."""
    result = CliRunner().invoke(cli, ["rescale", *arguments])
    assert result.exit_code == exit_code, result.output
    return result.output


def test_plan_is_shown_and_nothing_done_without_yes(made):
    """Catches a dry run that is none, and a plan without what people decide by."""
    text = run(made.path, "--num-partitions", "8")

    assert "From 4 to 8 state partitions as batch 1, filesystem backend." in text
    counted = run(made.path, "--num-partitions", "8", "--count-rows", "--output", "json")
    rows = json.loads(counted)["stores"][0]["partition_rows"]
    assert sum(rows) == 30
    assert "30 rows in 4 files of " in text
    assert f", skew {max(rows) * 8 / 30:.2f}" in text
    shown = {tuple(line.split()) for line in text.splitlines()}
    assert {(str(partition), str(num)) for partition, num in enumerate(rows)} <= shown
    assert run(made.path, "--num-partitions", "8", "--count-rows") == text
    assert "stays whole in state partition 0" in text
    assert WITH_YES in text
    assert "From 4 to 8" in run(made.path, "--num-partitions", "8")


def test_rescale_is_done_with_yes_and_taken_back(made):
    """Catches a command that says one thing and does another."""
    done = run(made.path, "--num-partitions", "8", "--yes")
    assert "From 4 to 8 state partitions as batch 1" in done
    assert "Done. Start the query as it was" in done
    assert "8 state partitions already" in run(made.path, "--num-partitions", "8", "--yes")
    text = run(made.path, "--undo")
    assert "Takes back the finished rescale of batch 1: from 8 to 4" in text
    assert WITH_YES in text
    assert run(made.path, "--undo", "--yes").splitlines()[-1] == "Done."

    assert read_checkpoint(made.path) == made.expected()
    assert "[invalid-argument]" in run(made.path, "--undo", "--yes", exit_code=1)


def test_rehash_is_said_in_the_plan(made):
    """Catches a rescale that reads and writes all state without having said so."""
    text = run(made.path, "--num-partitions", "6")

    assert "every row is read, hashed anew and written" in text
    assert "skew unknown (--count-rows reads every row to know it), 24576 key groups after" in text
    assert "skew unknown" not in run(made.path, "--num-partitions", "6", "--count-rows")


def test_plan_for_many_state_partitions_is_a_screenful(made):
    """Catches thousands of lines, of which nobody reads the one that counts."""
    text = run(made.path, "--num-partitions", "256")

    assert "The 10 largest of 256:" in text
    assert len(text.splitlines()) < 40
    stores = json.loads(run(made.path, "--num-partitions", "256", "--output", "json"))["stores"]
    assert len(stores[0]["partition_rows"]) == 256
    largest = stores[0]["partition_rows"].index(max(stores[0]["partition_rows"]))
    shown = [line.split() for line in text.splitlines()]
    assert [str(largest), str(max(stores[0]["partition_rows"]))] in shown


def test_json_has_the_whole_plan(made):
    """Catches fields that only the text has."""
    plan = json.loads(run(made.path, "--num-partitions", "2", "--output", "json"))
    assert (plan["done"], plan["num_partitions_before"], plan["num_partitions"]) == (False, 4, 2)
    keyed, whole = plan["stores"]
    assert (keyed["way"], keyed["num_files"], keyed["num_rows"]) == ("key-groups", 4, 30)
    assert sum(keyed["partition_rows"]) == 30
    assert keyed["skew"] == pytest.approx(max(keyed["partition_rows"]) / 15)
    assert whole["way"] == "whole"

    done = json.loads(run(made.path, "--num-partitions", "2", "--yes", "--output", "json"))
    assert done["done"] is True
    undone = json.loads(run(made.path, "--undo", "--yes", "--output", "json"))
    assert (undone["was_committed"], undone["num_partitions"]) == (True, 4)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--num-partitions N or --undo"),
        (["--undo", "--num-partitions", "2"], "--num-partitions N or --undo"),
        (["--undo", "--count-rows"], "--count-rows goes with"),
    ],
)
def test_usage_is_refused_with_status_2(made, arguments, expected):
    """Catches a command that guesses what was meant."""
    assert expected in run(made.path, *arguments, exit_code=2)


def test_missing_checkpoint_is_named(tmp_path):
    """Catches a rescale that makes a checkpoint where there is none."""
    text = run(str(tmp_path / "nothing"), "--num-partitions", "2", exit_code=1)

    assert "[checkpoint-not-found]" in text
    assert not (tmp_path / "nothing").exists()
