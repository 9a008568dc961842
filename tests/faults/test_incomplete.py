"""Checkpoints that were copied without something: nothing takes what is left for the whole."""

import json
import shutil
from pathlib import Path

import pytest

from statestore.core.errors import NotFoundError, StateStoreError
from statestore.operations.branch import plan_branch
from statestore.operations.listing import list_versions
from statestore.operations.operator_map import OperatorMap
from statestore.operations.repair import plan_repair
from statestore.operations.rescale import plan_rescale
from statestore.operations.restore import plan_restore
from statestore.operations.savepoint import take_savepoint
from statestore.operations.verify import verify
from statestore.testing.checkpoints import OPERATORS, MadeCheckpoint, read_checkpoint


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


@pytest.mark.parametrize("operator", [0, 1, 2])
def test_operator_without_metadata_is_not_left_out(made, tmp_path, operator):
    """Catches an operator, or all of them, that nobody sees because Spark's metadata is lost."""
    path = lose(made, f"{operator}/_metadata")

    found = verify(path, deep=True)

    assert [finding.kind for finding in found.findings] == ["not-found"]
    for answer in refusals(path, tmp_path):
        assert "an operator has state and no metadata" in str(answer)
        assert f"state/{operator}/_metadata" in str(answer)


@pytest.mark.parametrize("made", [2], indirect=True)
def test_operator_is_not_left_out_when_its_state_is_lost_as_well(made, tmp_path):
    """Catches what only the commit log still knows of; in format v1 it names no operator."""
    path = lose(made, "1")

    assert "no metadata" in str(refusals(path, tmp_path)[0])


def test_state_elsewhere_without_metadata_is_not_left_out(made, tmp_path):
    """Catches a look into the checkpoint directory only, where the state is on another storage."""
    elsewhere = tmp_path / "elsewhere"
    placement = {"format_version": 1, "storage": f"file:{elsewhere}", "id": "0" * 32}
    (elsewhere / ("0" * 32)).parent.mkdir()
    shutil.move(Path(made.path) / "state", elsewhere / ("0" * 32))
    Path(made.path, "statestore.json").write_text(json.dumps(placement))

    found = verify(made.path)

    assert [finding.kind for finding in found.findings] == ["not-found"]


def test_restored_operators_wait_for_the_metadata_of_the_first_batch(made, tmp_path):
    """Catches a checkpoint that is taken for empty, or cannot be listed, before its first batch."""
    savepoint, path = str(tmp_path / "savepoint"), str(tmp_path / "new")
    take_savepoint(made.path, savepoint)
    with plan_restore(savepoint, path, operators=OperatorMap(added={3: "dedupe"})) as plan:
        plan.run()

    (version,) = list_versions(path, limit=1).versions

    assert version.kind == "unreadable"
    assert "run a batch of the query" in version.problem
    assert "run a batch of the query" in str(refusals(path, tmp_path / "more")[0])
    again = MadeCheckpoint(path, tmp_path / "scratch", num_partitions=2)
    for operator, (name, stores) in enumerate([*OPERATORS, ("dedupe", OPERATORS[0][1])]):
        again._write_metadata(operator, name, stores, 2)
    found = verify(path, deep=True)
    assert (found.findings, found.num_rows) == ((), sum(map(len, made.expected().values())))
    assert plan_rescale(path, 4).stores[-1].way == "key-groups"
