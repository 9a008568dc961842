"""What a trial begins with: the version before batches that can be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore import Checkpoint, Trial, try_job
from statestore.core.errors import InvalidArgumentError
from statestore.operations.batches import read_own_batch
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.trial.branching import first_version_of, hand
from statestore.testing.checkpoints import QUERY_ID
from tests.checkpoints import OPTIONS, query_of
from tests.rescaled import KEYED, make
from tests.seams import place_of


def test_fewer_batches_are_repeated_where_versions_are_gone(tmp_path: Path) -> None:
    """Catches a version that was expired, or that an operation made, to begin a trial with."""
    query = query_of(tmp_path / "query", num_partitions=2, options=OPTIONS)
    for number in range(6):
        query.run_batch({f"key-{key}": str(number) for key in range(10)}, snapshot=True)
    ck = Checkpoint(query.path)

    def first(num_batches: int) -> int:
        with open_checkpoint(place_of(ck.uri)) as checkpoint:
            return first_version_of(checkpoint, num_batches)

    assert [first(number) for number in (1, 3, 100)] == [5, 3, 1]
    ck.expire(3)
    assert first(100) == 3  # a snapshot that the next version is made of
    Path(ck.uri, "sources", "0", "4").unlink()
    assert first(100) == 5
    ck.rescale(4)
    with pytest.raises(InvalidArgumentError, match="no batch of the query can be repeated"):
        first(100)


@pytest.mark.parametrize("rows", [{}, {0: "SELECT * FROM state"}], ids=["as they are", "made"])
def test_branch_has_a_query_id_of_its_own(tmp_path: Path, rows: Any) -> None:
    """Catches a trial that Spark takes for a second start of the query, which it then stops."""
    query = make(tmp_path, operators=KEYED)
    job, trial = tmp_path / "job.py", tmp_path / "trial"
    job.write_text("")

    with pytest.raises(InvalidArgumentError, match="ended before its time"):
        try_job(query.path, job, rows=rows, trial=trial, batches=1, submit=["false"])

    assert Trial(trial).checkpoint.info.query_id not in (None, QUERY_ID)


@pytest.mark.parametrize("operation", ["edit", "rescale"])
def test_batch_after_one_of_an_operation_is_the_querys_own(tmp_path: Path, operation: str) -> None:
    """Catches a batch whose rows no sink is thought to have, after a promote of its branch."""
    query = make(tmp_path, operators=KEYED)
    ck = Checkpoint(query.path)
    if operation == "edit":
        ck.edit(delete="k = 1")
    else:
        ck.rescale(8)
    query.run_batch({1: 2})
    branch = ck.branch(tmp_path / "branch", version=4).made

    with (
        open_checkpoint(place_of(ck.uri)) as old,
        open_checkpoint(place_of(branch.uri)) as made,
    ):
        hand(old, made, 4)

    with open_checkpoint(place_of(branch.uri)) as made:
        conf = made.offsets_entry(4).conf
        assert not [key for key in conf if key.startswith("statestore.")]
        assert read_own_batch(made, 4) is None
