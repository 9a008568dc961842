"""When a snapshot is taken: the chain's length, the cost of a replay, the least it must save."""

import pytest

from statestore.checkpoint.snapshot import is_snapshot_due
from statestore.codec.references import FileRef
from statestore.core.options import StateStoreOptions

# A millisecond reads 2000 rows; a file costs two.


def files(num_deltas, rows_each=0, snapshot_rows=None):
    """References as a restore would apply them."""
    deltas = [("delta", rows_each)] * num_deltas
    first = [] if snapshot_rows is None else [("snapshot", snapshot_rows)]
    return tuple(
        FileRef(f"{version}.{kind}", kind, version, "", "", 0, rows)
        for version, (kind, rows) in enumerate([*first, *deltas], 1)
    )


@pytest.mark.parametrize(
    ("refs", "num_keys", "due"),
    [
        pytest.param(files(10, 30_000), 100_000, True, id="170-ms-instead-of-52"),
        pytest.param(files(1, 100_000, snapshot_rows=200_000), 10_000, True, id="rows-of-both"),
        pytest.param(files(10, 30_000), 200_000, False, id="170-ms-instead-of-102"),
        pytest.param(files(25, 1), 26, False, id="saves-48-ms"),
        pytest.param(files(26, 1), 14, True, id="saves-51-ms-in-files"),
        pytest.param(files(7, 10), 10, False, id="7-files-of-a-small-state"),
        pytest.param(files(8, 10), 41, False, id="8-files-with-less-than-twice-its-rows"),
        pytest.param(files(8, 10), 40, True, id="8-files-with-twice-its-rows"),
        pytest.param(files(31, 100_000), None, False, id="not-counted"),
        pytest.param(files(31, 0, snapshot_rows=10**9), 10**9, False, id="31-deltas"),
        pytest.param(files(32, 0, snapshot_rows=10**9), 10**9, True, id="32-deltas"),
        pytest.param(files(32), None, True, id="32-deltas-not-counted"),
    ],
)
def test_snapshot_is_due_when_it_saves_enough(refs, num_keys, due):
    """Catches one that is written for next to nothing, and restores that only get longer."""
    assert is_snapshot_due(refs, num_keys, StateStoreOptions()) is due


def test_options_set_when_a_snapshot_is_due():
    """Catches an option that decides nothing."""
    refs = files(10, 30_000)

    for ratio, due in ((2.0, True), (2.5, False)):
        options = StateStoreOptions(snapshot_replay_ratio=ratio)
        assert is_snapshot_due(refs, 100_000, options) is due
    for length, due in ((10, True), (11, False)):
        options = StateStoreOptions(snapshot_max_chain_length=length)
        assert is_snapshot_due(refs, None, options) is due
