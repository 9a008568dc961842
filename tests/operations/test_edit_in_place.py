"""Rows of a stopped query's checkpoint are changed in place, and keys forgotten in every file."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import Checkpoint
from statestore.checkpoint.pins import pinned
from statestore.checkpoint.query_log import CommitEntry, OffsetsEntry
from statestore.codec.references import StoreName
from statestore.core.errors import InUseError, InvalidArgumentError
from statestore.operations.checkpoint import open_checkpoint
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint, unsafe_row
from tests.seams import place_of

from .checkpoints import files_below

KEYS = [0x1234_5678_9000 + number for number in range(40)]
"""Numbers whose bytes are nowhere else."""


def make(tmp_path: Path, **how: Any) -> MadeCheckpoint:
    """Make a checkpoint of an aggregation, a join, and an aggregation without a key."""
    (tmp_path / "scratch").mkdir()
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch", **how)
    made.run_batch(dict.fromkeys(KEYS, 1))
    made.run_batch(dict.fromkeys(KEYS[:20], 2))
    return made


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_an_edit_is_the_next_version(tmp_path: Path, backend: str, checkpoint_format: int) -> None:
    """Catches a row lost or doubled, counts that no longer fit, a version before that is gone."""
    made = make(tmp_path, backend=backend, checkpoint_format=checkpoint_format)
    checkpoint = Checkpoint(made.path)
    before = files_below(tmp_path / "query")
    put = pa.table({"key.k": [KEYS[3], 7], "value.value": [70, 80]})

    plan = checkpoint.plan_edit_in_place(delete=f"k < {KEYS[2]}", upsert=put)
    assert "2 keys deleted" in plan.describe()
    assert "2 rows put" in plan.describe()
    assert files_below(tmp_path / "query") == before
    plan.run()

    expected = made.expected()
    rows = expected[0, "default"]
    del rows[unsafe_row(KEYS[0])], rows[unsafe_row(KEYS[1])]
    rows |= {unsafe_row(KEYS[3]): unsafe_row(70), unsafe_row(7): unsafe_row(80)}
    assert read_checkpoint(made.path) == expected
    assert checkpoint.newest_version == 3
    assert checkpoint.verify(versions="all", deep=True).findings == ()
    assert checkpoint.read(version=2).num_rows == 40
    # What a batch goes on from: its deltas name the edit's.
    made.numbers |= {7: 80}
    made.numbers.pop(KEYS[0])
    checkpoint.edit_in_place(delete=pa.table({"key.k": [KEYS[5], KEYS[5]]}))
    del rows[unsafe_row(KEYS[5])]
    assert read_checkpoint(made.path) == expected


def test_an_edit_sets_the_watermark_forward_and_never_back(tmp_path: Path) -> None:
    """Catches a watermark in one log and not in the other, by which late rows are let in."""
    made = make(tmp_path, checkpoint_format=2)
    checkpoint = Checkpoint(made.path)

    plan = checkpoint.edit_in_place(watermark_ms=5000)

    assert plan.families == ()
    offsets = OffsetsEntry.parse((tmp_path / "query" / "offsets" / "2").read_text(), "")
    commit = CommitEntry.parse((tmp_path / "query" / "commits" / "2").read_text(), "")
    assert offsets.metadata["batchWatermarkMs"] == commit.fields["nextBatchWatermarkMs"] == 5000
    assert read_checkpoint(made.path) == made.expected()
    with pytest.raises(InvalidArgumentError, match="watermark_ms_now=5000"):
        checkpoint.plan_edit_in_place(watermark_ms=4999)
    checkpoint.edit_in_place(delete=f"k = {KEYS[0]}")
    commit = CommitEntry.parse((tmp_path / "query" / "commits" / "3").read_text(), "")
    assert commit.fields["nextBatchWatermarkMs"] == 5000


def test_rows_of_a_join_do_not_expire_by_a_column(tmp_path: Path) -> None:
    """Catches a side of a join whose count of rows no longer fits them."""
    made = make(tmp_path)

    with pytest.raises(InvalidArgumentError, match="belong together"):
        Checkpoint(made.path).plan_edit_in_place(
            operator=1, expire="value.value", older_than=timedelta(days=1)
        )


def test_an_edit_waits_for_the_batch_under_way(tmp_path: Path) -> None:
    """Catches an edit under a batch whose rows may be in the sink already."""
    made = make(tmp_path)
    (tmp_path / "query" / "commits" / "1").unlink()

    with pytest.raises(InvalidArgumentError, match="planned but not committed"):
        Checkpoint(made.path).plan_edit_in_place(delete="k = 0")
    with pytest.raises(InvalidArgumentError, match="planned but not committed"):
        Checkpoint(made.path).plan_forget("k = 0")


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_forgotten_keys_are_in_no_byte_of_the_checkpoint(
    tmp_path: Path, backend: str, checkpoint_format: int
) -> None:
    """Catches a key left in a delta, a tombstone, a snapshot, a merged file or a rescaled one."""
    made = make(tmp_path, backend=backend, checkpoint_format=checkpoint_format)
    made.take_snapshots()
    checkpoint = Checkpoint(made.path)
    checkpoint.rescale(2)
    made.run_batch({KEYS[3]: None, KEYS[4]: 5})
    gone = [KEYS[3], KEYS[4], KEYS[5]]
    keys = {0: pa.table({"key.k": gone}), 1: pa.table({"key.field0": gone})}
    held = {hit.where for hit in checkpoint.search_keys(keys=keys[0]).hits}
    assert {"row", "key"} <= held
    expected = made.expected()
    for (operator, _), rows in expected.items():
        if operator < 2:
            for key in [key for key in rows if int.from_bytes(key[8:16], "little") in gone]:
                del rows[key]

    assert checkpoint.plan_forget(keys=keys[0]).num_keys == 3
    first = checkpoint.forget(keys=keys[0])
    # The same numbers are keys of the join as well.
    assert not first.is_forgotten
    assert all("/state/1/" in hit.file for hit in first.search.hits)
    names = " or ".join(f"field0 = {key}" for key in gone)
    removed = {
        path: data for path, data in files_below(tmp_path / "query").items() if "state/1/" in path
    }
    second = checkpoint.forget(names, operator=1)

    assert second.is_forgotten, second.describe()
    assert read_checkpoint(made.path) == expected
    assert checkpoint.verify(versions="all", deep=True).findings == ()
    assert second.versions_removed == (1, 2, 3, 4, 5)
    known = {hashlib.sha256(data).hexdigest() for data in removed.values()}
    assert {record.sha256 for record in second.removed} <= known
    left = files_below(tmp_path / "query")
    for record in second.written:
        data = left[str(Path(record.path).relative_to(tmp_path / "query"))]
        assert (record.size, record.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    document = json.dumps(second.fields())
    assert document.startswith('{"schema_version": 1')
    assert not any(str(key) in document for key in gone)
    for operator, of in keys.items():
        assert checkpoint.search_keys(keys=of, operator=operator).hits == ()
    again = checkpoint.forget(keys=keys[1], operator=1)
    assert (again.version, again.removed, again.is_forgotten) == (None, (), True)


def test_small_numbers_are_looked_for_as_keys_of_rows_alone(tmp_path: Path) -> None:
    """Catches a search that takes every count of 1 for the user with number 1."""
    made = make(tmp_path)
    Checkpoint(made.path).edit_in_place(upsert=pa.table({"key.k": [1], "value.value": [9]}))
    keys = pa.table({"key.k": [1]})
    assert {hit.where for hit in Checkpoint(made.path).search_keys(keys=keys).hits} == {"row"}

    done = Checkpoint(made.path).forget(keys=keys)

    assert done.is_forgotten
    assert done.search.num_plain_keys == 1
    assert "too plain" in done.describe()


def test_files_that_a_savepoint_reads_or_a_branch_shares_are_named(tmp_path: Path) -> None:
    """Catches a savepoint that loses its files under way, a branch that keeps a key unsaid."""
    made = make(tmp_path)
    checkpoint = Checkpoint(made.path)
    with open_checkpoint(place_of(made.path)) as opened:
        location = opened.location(StoreName(0, 1))
        with pinned([location], 2, "0" * 32), pytest.raises(InUseError, match="savepoint"):
            checkpoint.forget(f"k = {KEYS[0]}")
    checkpoint.branch(tmp_path / "branch")

    plan = checkpoint.plan_forget(f"k = {KEYS[0]}")
    assert plan.num_shared > 0
    assert "a branch's as well" in plan.describe()
    plan.run()

    assert Checkpoint(tmp_path / "branch").read().num_rows == 40
    assert checkpoint.read().num_rows == 39


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({}, "not said in one way"),
        ({"where": "k = 1", "keys": pa.table({"key.k": [1]})}, "not said in one way"),
        ({"where": "user <> 'x'"}, r"no column of a name.*known='key, key\.k'"),
        ({"where": "value.value > 3"}, r"no column of a name.*known='key, key\.k'"),
        ({"keys": pa.table({"key.user": [1]})}, "not those of the column family"),
        ({"where": "k = 1", "operator": 7}, "no such stateful operator"),
    ],
)
def test_keys_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, how: dict[str, Any], match: str
) -> None:
    """Catches a typing error that forgets nobody and says that it did."""
    made = make(tmp_path)
    before = files_below(tmp_path / "query")

    with pytest.raises(InvalidArgumentError, match=match):
        Checkpoint(made.path).forget(**how)

    assert files_below(tmp_path / "query") == before
