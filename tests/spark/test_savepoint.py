"""Savepoints of real queries: taken while they run, restored otherwise, compared row by row."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from examples.edit_diffs import rolling_diffs
from statestore import (
    Checkpoint,
    Savepoint,
    stop_with_savepoint,
)
from statestore.core.errors import InvalidArgumentError
from statestore.spark.driver_session import session_of

from .conftest import OURS, PROVIDER, MakeLane
from .harness import (
    HEAP,
    PROVIDER_CLASS,
    ROCKSDB_BACKEND,
    RUN_TIMEOUT_S,
    STATE_STORE,
    Lane,
    wait_for,
)
from .queries import one_input, single
from .state_variables import changing
from .test_examples import FIRST_FILE_TIME_S, read_edits, sums

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(not OURS or PROVIDER == HEAP, reason="state outlives its driver"),
]
NUM_FILES = 6


class Edits:
    """The edit stream in files, and queries on it."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.source = root / "edits"
        self.source.mkdir()
        lines = read_edits()
        size = -(-len(lines) // NUM_FILES)
        self.chunks = [lines[start : start + size] for start in range(0, len(lines), size)]
        self.sums: list[dict[str, int]] = [{}]
        """Sums by user after each number of files."""
        for chunk in self.chunks:
            so_far = dict(self.sums[-1])
            for user, total in sums(chunk).items():
                so_far[user] = so_far.get(user, 0) + total
            self.sums.append(so_far)
        self.num_fed = 0
        self.rows: dict[str, dict[str, float]] = {}

    def feed(self, number: int) -> None:
        """Add the next files."""
        for _ in range(number):
            partial = self.root / "partial"
            partial.write_text("".join(self.chunks[self.num_fed]))
            os.utime(partial, (FIRST_FILE_TIME_S + self.num_fed,) * 2)
            partial.rename(self.source / f"{self.num_fed:02d}.jsonl")
            self.num_fed += 1

    def start(
        self,
        checkpoint: Path,
        change: Callable[[DataFrame], DataFrame] = lambda diffs: diffs,
        *,
        available_now: bool = True,
    ) -> Any:
        """Start the query from a checkpoint; the newest row of every user goes to `rows`."""
        session = self.spark.newSession()
        session.conf.set(PROVIDER_CLASS, PROVIDER)
        session.conf.set("spark.sql.shuffle.partitions", "4")
        session.conf.set(f"{STATE_STORE}.checkpointFormatVersion", "2")
        rows = self.rows.setdefault(checkpoint.name, {})

        def keep(batch: DataFrame, _batch_id: int) -> None:
            rows.update({row[0]: row[1] for row in batch.collect()})

        edits = (
            session.readStream.schema("user STRING, delta LONG")
            .option("maxFilesPerTrigger", 1)
            .json(str(self.source))
        )
        writer = change(rolling_diffs(edits)).writeStream.outputMode("update").foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def run(
        self, checkpoint: Path, change: Callable[[DataFrame], DataFrame] = lambda diffs: diffs
    ) -> list[dict[str, Any]]:
        """Run the query on the files that are there; return its progress reports."""
        query = self.start(checkpoint, change)
        try:
            assert query.awaitTermination(RUN_TIMEOUT_S)
        finally:
            query.stop()
        return [json.loads(report.json) for report in query.recentProgress]


def test_edit_stream_goes_on_when_restored_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    """Catches sums that are lost, doubled or changed by a savepoint, a restore or a branch."""
    edits = Edits(spark, tmp_path)
    original = tmp_path / "original"
    edits.feed(2)
    query = edits.start(original, available_now=False)
    try:
        wait_for(lambda: (original / "commits" / "1").exists(), "two batches", RUN_TIMEOUT_S)

        running = Checkpoint(original).savepoint(tmp_path / "running", form="native").made.info
        assert query.isActive
        assert (running.version, running.form) == (2, "native")
        Checkpoint(original).branch(tmp_path / "branch")
        edits.feed(2)
        wait_for(lambda: edits.rows["original"] == edits.sums[4], "files 3, 4", RUN_TIMEOUT_S)
        with pytest.raises(InvalidArgumentError, match="no such form"):
            stop_with_savepoint(query, tmp_path / "stopped", form="typo")  # type: ignore[arg-type]
        assert query.isActive
        stopped = stop_with_savepoint(query, tmp_path / "stopped").info
        assert not query.isActive
    finally:
        query.stop()
    assert stopped.version in (3, 4)
    assert stopped.num_rows == len(edits.sums[stopped.version])

    # Another state backend and parallelism. What the original wrote so far is what it starts from.
    other = tmp_path / "other"
    backend = "filesystem" if PROVIDER == ROCKSDB_BACKEND else "rocksdb"
    Savepoint(tmp_path / "stopped").restore(other, backend=backend, num_partitions=8)
    edits.feed(NUM_FILES - edits.num_fed)
    edits.rows["other"] = dict(edits.rows["original"])
    progress = edits.run(other)
    assert edits.rows["other"] == edits.sums[NUM_FILES]
    (operator,) = progress[-1]["stateOperators"]
    assert operator["numShufflePartitions"] == 8
    assert operator["numRowsTotal"] == len(edits.sums[NUM_FILES])
    assert {report["id"] for report in progress} == {str(query.id)}

    # Other business logic, the seeds' assignment 3.2: the sums stay bytes, what comes out are kB.
    kilobytes = tmp_path / "kilobytes"
    plan = Savepoint(tmp_path / "running").restore(kilobytes, claim=True, new_query_id=True)
    assert plan.state_files == "moved"
    assert not (tmp_path / "running").exists()
    progress = edits.run(kilobytes, lambda diffs: diffs.select("user", sf.col("diff") / 1024))
    touched = sums(line for chunk in edits.chunks[2:] for line in chunk)
    assert edits.rows["kilobytes"] == {user: edits.sums[NUM_FILES][user] / 1024 for user in touched}
    assert {report["id"] for report in progress} != {str(query.id)}

    # The branch goes on by itself, whatever became of the original.
    edits.rows["branch"] = dict(edits.sums[2])
    edits.run(tmp_path / "branch")
    assert edits.rows["branch"] == edits.sums[NUM_FILES]


def _distinct_then_count(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["key"]).groupBy().agg(sf.count("*").alias("n"))


GLOBAL = single("distinct-then-count", "complete", _distinct_then_count, one_input(2, 2))
COUNTS = single("counts", "complete", lambda events: events.groupBy("key").count(), one_input(2, 2))
DISTINCT_COUNTS = single(
    "distinct-counts",
    "complete",
    lambda events: events.dropDuplicates(["key", "value"]).groupBy("key").count(),
    one_input(2, 2),
)


def run_restored(lane: Lane, name: str, **how: Any) -> None:
    """Run the first part of a lane's plan, and the second from a restored savepoint."""
    lane.run(*lane.query.plan[0])
    savepoint, restored = lane.root / f"{name}-savepoint", lane.root / name
    Checkpoint(lane.checkpoint).savepoint(savepoint)
    Savepoint(savepoint).restore(restored, **how)
    lane.checkpoint = restored
    lane.run(*lane.query.plan[1])


@pytest.mark.parametrize("num_partitions", [6, 5])
def test_operator_without_a_key_stays_whole_when_the_rest_is_dealt_out(
    make_lane: MakeLane, num_partitions: int
) -> None:
    """Catches a global aggregation that begins anew, as under Spark's own repartition.

    6 state partitions are made of key groups, 5 by hashing every row anew.
    """
    never_interrupted, restored = make_lane(GLOBAL), make_lane(GLOBAL)

    for batches in GLOBAL.plan:
        never_interrupted.run(*batches)
    run_restored(restored, "restored", num_partitions=num_partitions)

    assert restored.batches == never_interrupted.batches
    totals = never_interrupted.counts("numRowsTotal")
    assert restored.counts("numRowsTotal") == totals


def test_operator_that_is_new_begins_empty_and_others_are_renumbered(make_lane: MakeLane) -> None:
    """Catches state taken over by the wrong operator, or an operator that Spark refuses."""
    lane = make_lane(COUNTS)
    lane.run(*COUNTS.plan[0])
    Checkpoint(lane.checkpoint).savepoint(lane.root / "savepoint")
    before = lane.batches[max(lane.batches)]
    fresh = make_lane(DISTINCT_COUNTS)
    fresh.run(*COUNTS.plan[1])
    operators = [
        json.loads(path.read_text().split("\n")[1])["operatorInfo"]
        for path in sorted((fresh.checkpoint / "state").glob("*/_metadata/metadata"))
    ]
    numbers = {info["operatorName"]: info["operatorId"] for info in operators}

    changed = make_lane(DISTINCT_COUNTS)
    Savepoint(lane.root / "savepoint").restore(
        changed.root / "restored",
        map_operators={0: numbers["stateStoreSave"]},
        add_operators={numbers["dedupe"]: "dedupe"},
    )
    changed.checkpoint = changed.root / "restored"
    # The files that the source has read are the first lane's.
    changed.root, changed._fed = lane.root, lane._fed
    changed.run(*COUNTS.plan[1])

    totals = dict(map(_key_and_count, before))
    for key, count in map(_key_and_count, fresh.batches[max(fresh.batches)]):
        totals[key] = totals.get(key, 0) + count
    assert dict(map(_key_and_count, changed.batches[max(changed.batches)])) == totals


@pytest.mark.needs("join-format-4")
def test_join_is_added_where_a_format_with_one_store_is_pinned(make_lane: MakeLane) -> None:
    """Catches a checkpoint that Spark never starts: metadata that a join has from batch 0 alone."""
    (first,), (second,) = one_input(1, 1)

    def joined(events: DataFrame) -> DataFrame:
        once = events.dropDuplicates(["key", "value"])
        other = events.select(sf.col("key").alias("other"))
        return once.join(other, sf.expr("key = other")).select("key", "value")

    def beside(events: DataFrame) -> DataFrame:  # the sources are the same two
        once = events.dropDuplicates(["key", "value"]).select("key", "value")
        return once.union(events.select("key", "value"))

    once = single("once", "append", beside)
    both = single("once joined", "append", joined)
    conf = {"spark.sql.streaming.join.stateFormatVersion": "4"}
    lane, fresh = make_lane(once, conf=conf), make_lane(both, conf=conf)
    lane.run(first)
    savepoint = Checkpoint(lane.checkpoint).savepoint(lane.root / "savepoint").made
    fresh.run(first)
    numbers = {of.name: of.id for of in Checkpoint(fresh.checkpoint).info.operators}
    (join,) = (name for name in numbers if name != "dedupe")

    savepoint.restore(
        lane.root / "restored",
        map_operators={0: numbers["dedupe"]},
        add_operators={numbers[join]: join},
    )
    lane.checkpoint, lane.query = lane.root / "restored", both
    lane.run(second)

    info = Checkpoint(lane.checkpoint).info
    assert {len(of.stores) for of in info.operators} == {1, 4}
    assert lane.batches[max(lane.batches)]
    assert Checkpoint(lane.checkpoint).verify(deep=True).findings == ()


@pytest.mark.needs("row-api")
def test_operator_is_added_beside_one_with_state_variables(make_lane: MakeLane) -> None:
    """Catches a checkpoint that no Spark starts: metadata names the schemas of variables."""
    (first,), (second,) = one_input(1, 1)

    def deduplicated(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        return of.build(session, {"events": streams["events"].dropDuplicates(["key", "value"])})

    of = changing("")
    both = replace(of, name="changing distinct", build=deduplicated)
    lane, fresh = make_lane(of), make_lane(both)
    lane.run(first)
    savepoint = Checkpoint(lane.checkpoint).savepoint(lane.root / "savepoint").made
    fresh.run(first)
    (dedupe,) = (int(p.parts[-3]) for p in fresh.checkpoint.glob("state/*/_metadata/metadata"))

    savepoint.restore(
        lane.root / "restored",
        map_operators={0: 1 - dedupe},
        add_operators={dedupe: "dedupe"},
    )
    lane.checkpoint, lane.query = lane.root / "restored", both
    lane.run(second)

    before, after = (
        {row["key"]["key"]: row["value"]["n"] for row in of.rows("count").read().to_pylist()}
        for of in (savepoint, Checkpoint(lane.checkpoint))
    )
    assert before
    assert after.keys() >= before.keys()
    assert sum(after.values()) > sum(before.values())
    with pytest.raises(InvalidArgumentError, match="batch 0 of a query alone"):
        savepoint.restore(lane.root / "new", add_operators={1: "transformWithStateExec"})


def _key_and_count(row: str) -> tuple[str, int]:
    key, count = row.strip("()").rsplit(", ", 1)
    return key, int(count)


def test_query_refuses_what_is_not_a_whole_checkpoint(make_lane: MakeLane) -> None:
    """Catches a query that begins from nothing where a restore was killed, or in a savepoint."""
    lane = make_lane(COUNTS)
    lane.run(*COUNTS.plan[0])
    Checkpoint(lane.checkpoint).savepoint(lane.root / "savepoint")
    Savepoint(lane.root / "savepoint").restore(lane.root / "restored")
    unfinished = json.dumps({"statestore": {"unfinished": "restore", "attempt": "0"}})
    (lane.root / "restored" / "metadata").write_text(unfinished)

    for name in ("savepoint", "restored"):
        lane.checkpoint = lane.root / name
        before = sorted(path for path in lane.checkpoint.rglob("*"))
        with pytest.raises(Exception, match=r"No usable value for id|metadata"):
            lane.run()
        assert sorted(path for path in lane.checkpoint.rglob("*")) == before


def test_query_is_reached_by_the_session_that_started_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a savepoint that is taken with the credentials of whichever session is active."""
    edits = Edits(spark, tmp_path)
    edits.feed(1)
    query = edits.start(tmp_path / "query", available_now=False)
    try:
        done = tmp_path / "query" / "commits" / "0"
        wait_for(done.exists, "a batch", RUN_TIMEOUT_S)
        session: Any = session_of(query)
        assert session._jsparkSession.equals(query._jsq.sparkSession())
        assert not session._jsparkSession.equals(SparkSession.active()._jsparkSession)

        stop_with_savepoint(query, Savepoint(tmp_path / "stopped", spark=session))
    finally:
        query.stop()
    assert Savepoint(tmp_path / "stopped").verify(deep=True).ok


def test_handle_of_an_earlier_run_stops_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Catches a savepoint that says that the query has stopped, while a later run goes on."""
    edits, checkpoint, to = Edits(spark, tmp_path), tmp_path / "query", tmp_path / "stopped"
    edits.feed(1)
    earlier = edits.start(checkpoint)
    assert earlier.awaitTermination(RUN_TIMEOUT_S)
    query = edits.start(checkpoint, available_now=False)
    try:
        with pytest.raises(InvalidArgumentError, match="the handle of an earlier run") as refused:
            stop_with_savepoint(earlier, to)

        fields = refused.value.fields
        assert (fields["run_id"], fields["active_run_id"]) == (str(earlier.runId), str(query.runId))
        assert query.isActive
        assert not to.exists()
        stop_with_savepoint(session_of(query).streams.get(str(fields["query_id"])), to)
        assert not query.isActive
    finally:
        query.stop()
    assert stop_with_savepoint(earlier, tmp_path / "again").info.version == 1


def test_call_within_a_batch_is_refused_and_the_query_goes_on(make_lane: MakeLane) -> None:
    """Catches a batch that waits for its own end, and a query that ends without a savepoint."""
    lane = make_lane(COUNTS)
    started = Event()
    raised: list[InvalidArgumentError] = []

    def stop(batch_id: int) -> None:
        assert started.wait(RUN_TIMEOUT_S)
        if batch_id == 0:
            try:
                stop_with_savepoint(query, lane.root / "within", wait=2)
            except InvalidArgumentError as error:
                raised.append(error)

    lane.before_batch = stop
    lane.feed(*COUNTS.plan[0])
    query = lane.start(available_now=False)
    started.set()
    try:
        last = lane.checkpoint / "commits" / str(len(COUNTS.plan[0]) - 1)
        wait_for(lambda: last.exists() or not query.isActive, "the last batch", RUN_TIMEOUT_S)
        (refused,) = raised
        assert "call it in a thread of its own" in str(refused)
        assert query.isActive
        assert not (lane.root / "within").exists()
    finally:
        query.stop()


def test_heap_query_leaves_its_driver_with_a_savepoint(
    spark: SparkSession, make_lane: MakeLane
) -> None:
    """Catches state on the heap that cannot be brought out, or into checkpoint memory from what
    any state backend has.
    """
    never_interrupted, lane = make_lane(COUNTS), make_lane(COUNTS, HEAP)
    root = lane.root
    never_interrupted.run(*COUNTS.plan[0])
    Checkpoint(never_interrupted.checkpoint).savepoint(root / "of-files")
    never_interrupted.run(*COUNTS.plan[1])
    lane.feed(*COUNTS.plan[0])
    query = lane.start(available_now=False)
    try:
        last = len(COUNTS.plan[0]) - 1
        wait_for(lambda: (lane.checkpoint / "commits" / str(last)).exists(), "batches", 60)
        taken = stop_with_savepoint(query, root / "of-heap").info
    finally:
        query.stop()
    assert taken.backend == "heap"
    lane.feed(*COUNTS.plan[1])

    def go_on(lane: Lane, savepoint: str, backend: str, num_partitions: int) -> None:
        lane.checkpoint = root / f"{savepoint}-to-{backend}"
        lane.batches = {batch: lane.batches[batch] for batch in range(last + 1)}
        Savepoint(root / savepoint, spark=spark).restore(
            lane.checkpoint, backend=backend, num_partitions=num_partitions
        )
        lane.run()
        assert bool(list(lane.checkpoint.rglob("heap-backend"))) == (backend == "heap")

    expected = dict(never_interrupted.batches)
    go_on(lane, "of-heap", "heap", 1)
    assert lane.batches == expected
    go_on(lane, "of-heap", "rocksdb", 4)
    assert lane.batches == expected
    # The files that the source has read are those of the lane that the savepoint was taken of.
    go_on(never_interrupted, "of-files", "heap", 2)
    assert never_interrupted.batches == expected
