"""Queries go on from a checkpoint that was edited in place, and of which keys were forgotten."""

from __future__ import annotations

import ast
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from statestore import Checkpoint, write_savepoint
from statestore.core.errors import IncompatibleError, InvalidArgumentError, StorageError
from statestore.io.local import LocalFileIO
from tests.fault_io import Fault, FaultFileIO
from tests.rescaled import end_process
from tests.seams import at

from .conftest import EXTENDED, MakeLane, state_in_files
from .harness import HEAP, Lane, Query
from .queries import single
from .state_variables import everything
from .test_bootstrap_operators import captured, history_of

pytestmark = [
    pytest.mark.ours,
    state_in_files,
]


def _totals(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(sf.count("*").alias("n"), sf.sum("value").alias("total"))


def event(key: str, value: int, second: int = 0) -> dict[str, Any]:
    """An event of a second after midnight."""
    return {"key": key, "value": value, "ts": f"2024-01-01T00:00:{second:02d}.000Z"}


def files(*batches: list[dict[str, Any]]) -> list[dict[str, list[dict[str, Any]]]]:
    """The files of as many batches."""
    return [{"events": rows} for rows in batches]


ONE, TWO = files([event("a", 1), event("b", 2), event("c", 3)], [event("a", 10), event("d", 4)])
TOTALS = single("totals", "update", _totals, [[ONE], [TWO]])


def rows_of(lane: Lane, batch: int) -> dict[str, tuple[int, int]]:
    """The rows of a batch by key."""
    rows = map(ast.literal_eval, lane.batches.get(batch, []))
    return {key: (n, total) for key, n, total in rows}


@pytest.mark.parametrize("checkpoint_format", ["1", pytest.param("2", marks=EXTENDED)])
def test_query_goes_on_from_edited_rows(make_lane: MakeLane, checkpoint_format: str) -> None:
    """Catches rows that Spark reads otherwise, and an edit killed half way that counts."""
    conf = {"spark.sql.streaming.stateStore.checkpointFormatVersion": checkpoint_format}
    lane = make_lane(TOTALS, conf=conf)
    lane.run(ONE)
    checkpoint = Checkpoint(lane.checkpoint)
    put = pa.table({"key.key": ["b", "e"], "value.count": [100, 5], "value.sum": [7, 50]})
    assert checkpoint.edit(delete="key.key = 'c'", upsert=put).version == 2
    # As a process that died before the entry of the commit log leaves it.
    for name in ("1", ".1.crc"):
        (lane.checkpoint / "commits" / name).unlink(missing_ok=True)

    lane.run()

    assert checkpoint.info.newest_version == 2
    assert checkpoint.rows().read().num_rows == 3
    checkpoint.edit(delete="key.key = 'c'", upsert=put)
    lane.run(*files([event("b", 1), event("c", 1), event("e", 1)]))
    assert rows_of(lane, 3) == {"b": (101, 8), "c": (1, 1), "e": (6, 51)}
    forgotten = checkpoint.forget(keys=pa.table({"key.key": ["a", "b"]})).certificate
    assert forgotten.is_forgotten, forgotten.describe()
    assert forgotten.version == 5
    lane.run(*files([event("a", 1), event("e", 1)]))
    assert rows_of(lane, 5) == {"a": (1, 1), "e": (7, 52)}
    assert checkpoint.verify(deep=True).findings == ()


@pytest.mark.extended
def test_state_in_the_memory_of_the_driver_is_edited(make_lane: MakeLane) -> None:
    """Catches an edit that does not reach the heap backend, or a key said to be forgotten."""
    lane = make_lane(TOTALS, HEAP)
    lane.run(ONE)
    checkpoint = Checkpoint(lane.checkpoint, spark=lane.spark)

    checkpoint.edit(delete="key.key = 'c'")

    lane.run(*files([event("b", 1), event("c", 1)]))
    assert rows_of(lane, 2) == {"b": (2, 3), "c": (1, 1)}
    with pytest.raises(IncompatibleError, match="memory of the query's driver"):
        checkpoint.forget("key.key = 'a'")


def _windows(events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "0 seconds")
        .groupBy(sf.window("ts", "10 seconds"))
        .agg(sf.count("*").alias("n"))
        .select(sf.second("window.start").alias("key"), "n", sf.lit(0).alias("total"))
    )


WINDOWS = single("windows", "append", _windows, [[ONE], [TWO]])
START_MS = 1_704_067_200_000
WRITE_OF_COMMIT = 3
"""Of an edit: it writes its lease, the history and the offset log before."""


def test_watermark_that_was_set_is_as_one_that_a_batch_moved(make_lane: MakeLane) -> None:
    """Catches one that the next batch forgets, and late rows that are never dropped."""
    lane, left = make_lane(WINDOWS), make_lane(WINDOWS)
    early = files([event("a", 1, 1), event("a", 1, 12)])
    later = files([event("a", 1, 13), event("a", 1, 25)], [event("a", 1, 14), event("a", 1, 50)])
    for one in (lane, left):
        one.run(*early)
    Checkpoint(lane.checkpoint).edit(watermark_ms=START_MS + 20_000)
    for one in (lane, left):
        one.run(*later)

    def windows(one: Lane) -> dict[str, tuple[int, int]]:
        return {key: row for batch in one.batches for key, row in rows_of(one, batch).items()}

    assert windows(left) == {0: (1, 0), 10: (3, 0), 20: (1, 0)}
    assert windows(lane) == {0: (1, 0), 10: (2, 0), 20: (1, 0)}


def test_a_query_that_ran_in_place_of_a_killed_edit_gives_each_window_once(
    make_lane: MakeLane,
) -> None:
    """Catches a window that comes out in that batch and again after the repeated edit, and a batch
    of the query's that is taken for the edit's.
    """
    lane = make_lane(WINDOWS)
    lane.run(*files([event("a", 1, 1), event("a", 1, 12)]))
    checkpoint = Checkpoint(lane.checkpoint)
    checkpoint.edit(watermark_ms=START_MS + 20_000)
    io = FaultFileIO(LocalFileIO())
    io.arm(Fault(WRITE_OF_COMMIT, calls=("write",)))
    with pytest.raises(StorageError):
        at(lane.checkpoint, io=io).edit(watermark_ms=START_MS + 30_000)
    end_process(lane.checkpoint)

    lane.run()
    assert lane.batches[3] == []
    assert [one.made_by for one in checkpoint.versions(limit=2)] == [None, "edit"]
    checkpoint.edit(watermark_ms=START_MS + 30_000)
    lane.run(*files([event("a", 1, 13)]))

    assert [one.made_by for one in checkpoint.versions(limit=3)] == [None, "edit", None]
    given = [row for batch in sorted(lane.batches) for row in lane.batches[batch]]
    assert given == ["(0, 1, 0)", "(10, 2, 0)"]
    # A repair runs the query's batch again, as it was planned.
    for version in (4, 5, 6):
        for file in (lane.checkpoint / "state").glob(f"0/*/{version}[._]*"):
            file.write_bytes(b"damaged")
    plan = checkpoint.repair(dry_run=True)
    assert (plan.version, plan.replayed_batch, plan.undone_edits) == (3, 3, (4,))


def _last(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(sf.max("ts").alias("n"), sf.count("*").alias("total"))


LAST = single(
    "last",
    "update",
    lambda events: _last(events).select("key", sf.second("n").alias("n"), "total"),
    [[ONE], [TWO]],
)


def test_rows_expire_by_a_column(make_lane: MakeLane) -> None:
    """Catches a row that is not old enough, one that stays, and a key that does not begin anew."""
    lane = make_lane(LAST)
    lane.run(*files([event("a", 1, 10), event("b", 1, 20), event("c", 1, 30)]))
    checkpoint = Checkpoint(lane.checkpoint)
    limit = datetime(2024, 1, 1, 0, 0, 20)  # noqa: DTZ001 (in UTC)

    plan = checkpoint.edit(expire="value.max", older_than=limit, dry_run=True)
    assert "1 row of 3 deleted, where value.max < TIMESTAMPTZ" in str(plan)
    of_all = {"expire": "value.max", "older_than": timedelta(days=1)}
    with pytest.raises(InvalidArgumentError, match="all rows of a store would be deleted"):
        checkpoint.edit(**of_all, dry_run=True)
    everything_goes = checkpoint.edit(**of_all, all_rows=True, dry_run=True)
    assert "all 3 rows deleted: the whole store" in str(everything_goes)
    checkpoint.edit(expire="value.max", older_than=limit)

    lane.run(*files([event("a", 1, 40), event("b", 1, 40)]))
    assert rows_of(lane, 2) == {"a": (40, 1), "b": (40, 2)}
    refused = r"is not a timestamp or date.*value\.count < 1704067220000"
    with pytest.raises(InvalidArgumentError, match=refused):
        checkpoint.edit(expire="value.count", older_than=limit, dry_run=True)
    with pytest.raises(InvalidArgumentError, match="`older_than` is missing"):
        checkpoint.edit(expire="value.max", dry_run=True)
    with pytest.raises(InvalidArgumentError, match="`expire` and `delete` are both given"):
        checkpoint.edit(expire="value.max", older_than=limit, delete="key.key = 'a'", dry_run=True)


@pytest.mark.extended
@pytest.mark.parametrize(
    "query",
    [everything("scala"), everything("scala", "ProcessingTime", (10**9,) * 3)],
    ids=["timers", "ttl"],
)
def test_a_key_is_forgotten_in_every_state_variable(make_lane: MakeLane, query: Query) -> None:
    """Catches a key left in a list, a map's element, a timer or an expiry index."""
    lane = make_lane(query)
    first, second, *_ = query.plan
    lane.run(*first)
    checkpoint = Checkpoint(lane.checkpoint)
    (store,) = checkpoint.inspect()
    names = [family.name for family in store.column_families if family.name != "default"]
    before = {name: checkpoint.rows(name).read().num_rows for name in names}
    held = (checkpoint.rows(name).read(flatten=True) for name in ("count", "seen"))
    gone = min(set.intersection(*({*rows["key.value"].to_pylist()} for rows in held)))

    done = checkpoint.forget(keys=pa.table({"key.value": [gone]}))

    assert done.certificate.is_forgotten, str(done)
    assert done.num_keys == 1
    for name in names:
        left = str(checkpoint.rows(name).read()["key"].to_pylist())
        assert f"'{gone}'" not in left, name
    fewer = {name for name in names if checkpoint.rows(name).read().num_rows < before[name]}
    assert {"count", "seen"} <= fewer
    assert any(name.startswith("$") for name in fewer), fewer
    assert checkpoint.verify(deep=True).findings == ()
    ran = {*lane.batches}
    lane.run(*second)
    (events,) = second
    num_events = sum((row["key"] or "none") == gone for row in events["events"])
    new = [row for batch in lane.batches if batch not in ran for row in lane.batches[batch]]
    counts = {key: n for key, what, n, *_ in map(ast.literal_eval, new) if what == "seen"}
    assert len(counts) > 3
    assert counts.get(gone, 0) == num_events


HOUR_MS = 3_600_000
EXPIRING = everything("scala", "ProcessingTime", (HOUR_MS,) * 3)


@pytest.mark.parametrize("is_history", [False, pytest.param(True, marks=EXTENDED)])
def test_rows_that_had_expired_when_they_were_put_are_evicted(
    make_lane: MakeLane, is_history: bool
) -> None:
    """Catches rows that are hidden, and that Spark takes to be evicted since long."""
    lane = make_lane(EXPIRING)
    first, second, *_ = EXPIRING.plan
    lane.run(*first)
    checkpoint = Checkpoint(lane.checkpoint)
    history = history_of(checkpoint)
    index = history["$ttl_count"].select(["key", "value"])
    expired = {
        "$ttl_count": _expired(index, "key", "expirationMs"),
        "count": _expired(history["count"].select(["key", "value"]), "value", "ttlExpirationMs"),
    }
    assert index.num_rows > 5

    if is_history:
        lane = make_lane(EXPIRING)
        lane.feed(*first)
        like = captured(lane)
        written = write_savepoint(lane.root / "written", like=like, rows=history | expired).made
        lane.checkpoint = lane.root / "bootstrapped"
        written.restore(lane.checkpoint)
        checkpoint = Checkpoint(lane.checkpoint)
    else:
        keys = index.select(["key"])
        checkpoint.edit("$ttl_count", delete=keys, upsert=expired["$ttl_count"], all_rows=True)
        checkpoint.edit("count", upsert=expired["count"])
    lane.run(*second)

    left = [row["expirationMs"] for row in checkpoint.rows("$ttl_count").read()["key"].to_pylist()]
    assert left
    assert START_MS not in left
    values = checkpoint.rows("count").read()["value"].to_pylist()
    assert len(values) == len(left)
    assert START_MS not in [value["ttlExpirationMs"] for value in values]


def _expired(rows: pa.Table, side: str, field: str) -> pa.Table:
    """Return rows that expired long ago."""
    changed = [row[side] | {field: START_MS} for row in rows.to_pylist()]
    column = pa.array(changed, rows.schema.field(side).type)
    return rows.set_column(rows.column_names.index(side), side, column)
