"""Checkpoints that were copied without something: nothing takes what is left for the whole."""

import shutil
from pathlib import Path

import pytest

from statestore.core.errors import NotFoundError, StateStoreError
from statestore.operations.branch import plan_branch
from statestore.operations.rescale import plan_rescale
from statestore.operations.repair import plan_repair
from statestore.operations.restore import plan_restore
from statestore.operations.savepoint import take_savepoint
from statestore.operations.verify import verify
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint

@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def made(request, tmp_path):
    """A checkpoint of two batches in two state partitions, with an aggregation without a key."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    checkpoint = MadeCheckpoint(
        str(tmp_path / "checkpoint"), scratch, num_partitions=2, checkpoint_format=request.param
    )
    checkpoint.run_batch(dict.fromkeys(range(20), 1))
    checkpoint.run_batch(dict.fromkeys(range(10), 2))
    return checkpoint


def lose(made, below):
    """Lose a directory below `state`; return the checkpoint's path."""
    shutil.rmtree(Path(made.path) / "state" / below)
    return made.path


def refusals(path, tmp_path):
    """What everything that works on the whole state answers."""
    branch, savepoint = str(tmp_path / "branch"), str(tmp_path / "savepoint")
    answers = []
    for operation in (
        lambda: plan_branch(path, branch).__enter__(),
        lambda: take_savepoint(path, savepoint, form="native"),
        lambda: take_savepoint(path, savepoint),
        lambda: plan_rescale(path, 4),
        lambda: plan_repair(path),
    ):
        with pytest.raises(StateStoreError) as raised:
            operation()
        answers.append(raised.value)
    return answers


@pytest.mark.parametrize("operator", [0, 1])
def test_lost_state_partition_is_no_operator_without_a_key(made, tmp_path, operator):
    """Catches half of a state that is verified, saved and branched as if it were all of it."""
    path = lose(made, f"{operator}/1")

    found = verify(path, versions=[1, 2], deep=True)

    assert {finding.version for finding in found.findings} == {1, 2}
    assert {finding.kind for finding in found.findings} == {"version-not-found"}
    assert all(isinstance(answer, NotFoundError) for answer in refusals(path, tmp_path))
    with pytest.raises(NotFoundError):
        read_checkpoint(path)


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_savepoint_that_lost_a_state_partition_is_not_restored(made, tmp_path, form):
    """Catches a savepoint that is restored without the rows of a state partition."""
    savepoint = tmp_path / "savepoint"
    take_savepoint(made.path, str(savepoint), form=form)
    shutil.rmtree(savepoint / "state" / "0" / "1")

    with (
        pytest.raises(NotFoundError, match="the version is not in the store directory"),
        plan_restore(str(savepoint), str(tmp_path / "new"), num_partitions=4),
    ):
        pass
