"""Every operation on the state of joins of format 3 and 4, and the query that goes on after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import Checkpoint, write_savepoint
from statestore.core.errors import IncompatibleError
from statestore.operations.reading.diff import DiffCounts

from .conftest import EXTENDED, PROVIDER, MakeLane
from .harness import FILESYSTEM, ROCKSDB, ROCKSDB_BACKEND, Files, Lane, Query, run_plan
from .join_formats import V1, V2, assert_same, join_in, pinned, rows_in_order
from .queries import JOIN_FORMAT, in_runs
from .test_bootstrap_operators import captured, history_of, newest_watermark

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(PROVIDER != FILESYSTEM, reason="each backend is one of the tests' own"),
]
JOINS = [
    pytest.param(
        join_in(how, "interval", version),
        marks=[pytest.mark.needs(f"join-format-{version}"), *marks],
        id=f"{how}-format-{version}",
    )
    for how, version, marks in (
        ("left_outer", "4", []),
        ("full_outer", "3", [EXTENDED]),
        ("full_outer", "4", [EXTENDED]),
        ("left_semi", "4", [EXTENDED]),
    )
]
INDEXES = {"3": ("keyToNumValues", "keyWithIndexToValue"), "4": ("tsWithKey", "keyWithTsToValues")}
SIDES = ("left", "right")
AHEAD_MS = 30_000
"""How far a watermark is set ahead of that of now."""


def _addresses(query: Query) -> list[str]:
    version = query.name[-1]
    return [f"{side}-{name}" for side in SIDES for name in INDEXES[version]]


def _assert_same_state(old: Path, new: Path, query: Query) -> None:
    """Every row of every column family is the same in both."""
    for address in _addresses(query):
        counts = Checkpoint(old).rows(address).count_differences(Checkpoint(new).rows(address))
        assert counts == DiffCounts(), address


@pytest.mark.needs("to-spark-rocksdb")
@pytest.mark.parametrize("query", JOINS)
@pytest.mark.parametrize("conf", [V1, pytest.param(V2, marks=EXTENDED)], ids=["v1", "v2"])
def test_rows_equal_never_converted(
    make_lane: MakeLane, query: Query, conf: Mapping[str, str]
) -> None:
    """Catches a list that is one row, a family or an order lost on the way to Spark's, and back."""
    query = in_runs(query, 1, 1, 1, 1)
    reference, lane = (make_lane(query, ROCKSDB, conf) for _ in range(2))
    run_plan(reference)

    for number, batches in enumerate(query.plan):
        lane.run(*batches)
        old, new = lane.checkpoint, lane.root / f"converted-{number}"
        checkpoint = Checkpoint(old, spark=lane.spark)
        if number % 2:
            checkpoint.convert(new, "spark-rocksdb")
        else:
            backend, partitions = (("filesystem", None), ("rocksdb", 5))[number // 2]
            checkpoint.restore(new, backend=backend, num_partitions=partitions)
        assert Checkpoint(new).verify(deep=True).findings == ()
        _assert_same_state(old, new, query)
        lane.checkpoint = new

    assert_same(reference, lane)


@pytest.mark.parametrize("query", JOINS)
def test_rows_equal_never_copied(make_lane: MakeLane, query: Query) -> None:
    """Catches a savepoint, a restore or a branch without a family, or with another one's rows."""
    query = in_runs(query, 1, 1, 1, 1, 1)
    reference, lane = make_lane(query, ROCKSDB, V2), make_lane(query, ROCKSDB_BACKEND, V2)
    run_plan(reference)

    for number, batches in enumerate(query.plan):
        lane.run(*batches)
        old, new = Checkpoint(lane.checkpoint), lane.root / f"copied-{number}"
        taken = lane.root / f"savepoint-{number}"
        if number == 0:
            old.savepoint(taken).made.restore(new, backend="filesystem", num_partitions=4)
        elif number == 1:
            old.savepoint(taken, form="native").made.restore(new)
        elif number == 2:
            old.branch(new)
        else:
            old.rescale(6)
            old.transform(taken, {}).made.restore(new, num_partitions=5)
        assert Checkpoint(new).verify(deep=True).findings == ()
        _assert_same_state(lane.checkpoint, new, query)
        lane.checkpoint = new

    assert_same(reference, lane)


@pytest.mark.parametrize("query", JOINS)
def test_state_is_what_spark_reads(make_lane: MakeLane, query: Query) -> None:
    """Catches rows of a join that Spark's state reader shows otherwise than `read` does."""
    lane = make_lane(query, FILESYSTEM, V2)
    lane.run(*query.plan[0])

    for name, rows in _rows(lane, query).items():
        frame = _of_spark(lane, storeName=name)
        expected = frame.select("key", "value").toArrow().to_pylist()
        assert rows
        assert sorted(map(repr, rows)) == sorted(map(repr, expected)), name


@pytest.mark.needs("join-format-4")
def test_reader_of_a_side_refuses_format_4(make_lane: MakeLane) -> None:
    """Catches the time in a key that Spark's reader takes for a column of the key more.

    Over Spark's own RocksDB provider it shows some bytes for a time.
    """
    query = join_in("inner", "interval", "4")
    lane = make_lane(query, FILESYSTEM)
    lane.run(*query.plan[0])

    with pytest.raises(Exception, match="COLUMN_FAMILY_SCHEMA_INCOMPATIBLE"):
        _of_spark(lane, joinSide="left").collect()


def _of_spark(lane: Lane, **options: str) -> Any:
    reader = lane.session().read.format("statestore").options(**options)
    return reader.load(str(lane.checkpoint))


@pytest.mark.parametrize("query", JOINS)
def test_a_key_is_forgotten_in_every_column_family(make_lane: MakeLane, query: Query) -> None:
    """Catches a row of the key that is left in an index, and a query that fails without it."""
    lanes = [make_lane(query, provider, V2) for provider in (FILESYSTEM, ROCKSDB)]
    lane, reference = lanes
    for one in lanes:
        one.run(*query.plan[0])
    before = _rows(lane, query)
    keys = [row["key"]["field0"] for row in before[f"left-{INDEXES[query.name[-1]][1]}"]]
    key = min(filter(None, keys))

    Checkpoint(lane.checkpoint).forget(f"field0 = '{key}'")

    after = _rows(lane, query)
    for address, rows in before.items():
        kept = [row for row in rows if row["key"]["field0"] != key]
        assert sorted(map(repr, after[address])) == sorted(map(repr, kept))
    assert Checkpoint(lane.checkpoint).verify(deep=True).findings == ()
    for one in lanes:
        one.run(*query.plan[1])
    assert [_without(key, rows) for rows in rows_in_order(lane)] == [
        _without(key, rows) for rows in rows_in_order(reference)
    ]


def _rows(lane: Lane, query: Query) -> dict[str, list[Any]]:
    return {
        address: Checkpoint(lane.checkpoint)
        .rows(address)
        .read()
        .select(["key", "value"])
        .to_pylist()
        for address in _addresses(query)
    }


def _without(key: str, rows: Iterable[str]) -> list[str]:
    return [row for row in rows if repr(key) not in row]


@pytest.mark.parametrize("query", JOINS)
def test_rows_equal_never_edited_when_what_was_deleted_is_put(
    make_lane: MakeLane, query: Query
) -> None:
    """Catches an edit that loses a row of a list, or its order, and a family that takes none."""
    reference, lane = make_lane(query, ROCKSDB, V2), make_lane(query, FILESYSTEM, V2)
    for one in (reference, lane):
        one.run(*query.plan[0])
    history = history_of(Checkpoint(lane.checkpoint))

    for address, rows in history.items():
        if rows.num_rows:
            Checkpoint(lane.checkpoint).edit(address, delete=rows.select(["key"]), all_rows=True)
            assert Checkpoint(lane.checkpoint).rows(address).read().num_rows == 0
            Checkpoint(lane.checkpoint).edit(address, upsert=rows.select(["key", "value"]))
    like = Checkpoint(lane.checkpoint)
    written = write_savepoint(lane.root / "savepoint", like=like, rows=history).made
    lane.checkpoint = lane.root / "written"
    written.restore(lane.checkpoint, num_partitions=4)

    assert Checkpoint(lane.checkpoint).verify(deep=True).findings == ()
    assert {name: _shown_rows(rows) for name, rows in history_of(written).items()} == {
        name: _shown_rows(rows) for name, rows in history.items()
    }
    first, *others = query.plan[1]
    if query.conf[JOIN_FORMAT] == "4":
        # Where rows were put, its first batch takes late rows.
        first = _without_late_rows(first, newest_watermark(lane.checkpoint))
    for one in (reference, lane):
        one.run(first, *others)
    assert_same(reference, lane)


def _shown_rows(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.select(["key", "value"]).to_pylist()))


@pytest.mark.parametrize("query", JOINS)
def test_join_begins_with_a_history(make_lane: MakeLane, query: Query) -> None:
    """Catches sources that are read again from their start: nothing was planned of them."""
    streamed, lane = make_lane(query, FILESYSTEM), make_lane(query, FILESYSTEM)
    streamed.run(*query.plan[0])
    num_before = len(streamed.batches)
    history = history_of(Checkpoint(streamed.checkpoint), leave_out=("default",))
    watermark_ms = newest_watermark(streamed.checkpoint)
    first, *others = ([*batches] for batches in query.plan[1:])
    if query.conf[JOIN_FORMAT] == "4":
        # Its first batch takes late rows.
        first[0] = _without_late_rows(first[0], watermark_ms)
        watermark_ms += AHEAD_MS
        Checkpoint(streamed.checkpoint).edit(watermark_ms=watermark_ms)
    lane.feed(*query.plan[0])
    like = captured(lane)

    savepoint = write_savepoint(
        lane.root / "savepoint", like=like, rows=history, watermark_ms=watermark_ms
    ).made
    lane.checkpoint = lane.root / "bootstrapped"
    savepoint.restore(lane.checkpoint)
    for batches in (first, *others):
        streamed.run(*batches)
        lane.run(*batches)
    rest = [rows for _, rows in sorted(streamed.batches.items())][num_before:]
    assert [rows for _, rows in sorted(lane.batches.items())] == rest
    assert pinned(lane)[0] == query.conf[JOIN_FORMAT]


def _without_late_rows(files: Files, watermark_ms: int) -> Files:
    since = datetime.fromtimestamp(watermark_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.999Z")
    return {side: [row for row in rows if row["ts"] > since] for side, rows in files.items()}


@pytest.mark.needs("join-format-4")
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("left_outer", "interval"),
        pytest.param("left_outer", "window", marks=EXTENDED),
        pytest.param("full_outer", "interval", marks=EXTENDED),
    ],
)
def test_rows_are_evicted_by_a_watermark_that_was_set(
    make_lane: MakeLane, how: str, kind: str
) -> None:
    """Catches rows that stay for ever, and that an outer join never returns."""
    in_2, in_4 = (in_runs(join_in(how, kind, version), 1, 1, 1) for version in "24")
    lanes = [make_lane(in_2, FILESYSTEM), make_lane(in_4, FILESYSTEM), make_lane(in_4, ROCKSDB)]
    of_2, of_4, reference = lanes
    for lane in lanes:
        lane.run(*in_4.plan[0])
    num_before = len(reference.batches)
    watermark_ms = newest_watermark(reference.checkpoint) + AHEAD_MS

    for lane in (of_2, of_4):
        Checkpoint(lane.checkpoint).edit(watermark_ms=watermark_ms)
    _move_watermark(reference.checkpoint, watermark_ms)

    for batches in in_4.plan[1:]:
        for lane in lanes:
            lane.run(*batches)
    assert_same(reference, of_4)
    rows = rows_in_order(reference)
    assert [of_2.batches[batch] for batch in sorted(of_2.batches)] == rows
    ended = [row for row in rows[num_before] if "None" in row]
    assert ended, "nothing was evicted: the test tests nothing"


def _move_watermark(checkpoint: Path, watermark_ms: int) -> None:
    """Set the watermark of Spark's own checkpoint, as if its newest batch had moved it."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    version, line = newest.read_text().splitlines()
    moved = json.dumps(json.loads(line) | {"nextBatchWatermarkMs": watermark_ms})
    newest.write_text(f"{version}\n{moved}")
    (newest.parent / f".{newest.name}.crc").unlink()


@pytest.mark.needs("join-format-4")
def test_sparks_hdfs_backed_provider_is_refused(make_lane: MakeLane) -> None:
    """Catches a conversion that writes into a provider without column families, and fails there."""
    query = join_in("inner", "interval", "4")
    lane = make_lane(query, FILESYSTEM)
    lane.run()
    lane.run(query.plan[0][0])

    with pytest.raises(IncompatibleError, match="has no column families"):
        Checkpoint(lane.checkpoint, spark=lane.spark).convert(lane.root / "new", "spark-hdfs")

    assert not (lane.root / "new").exists()
