"""What a trial begins with: the version before batches that can be repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.core.errors import InvalidArgumentError
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.trial.branching import first_version_of
from tests.checkpoints import OPTIONS, query_of
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
