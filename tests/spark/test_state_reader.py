"""Spark's state data source reads a checkpoint of ours as it reads its own."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from statestore import Checkpoint

from .conftest import PROVIDER, state_in_files, state_in_memory
from .harness import (
    FILESYSTEM,
    HDFS,
    NUM_PARTITIONS,
    PROVIDER_CLASS,
    ROCKSDB,
    ROCKSDB_BACKEND,
    STATE_STORE,
    Lane,
    open_stores,
    run_plan,
    wait_for,
)
from .queries import (
    AGGREGATION,
    JOIN,
    SESSION_APPEND,
    WATERMARK_DEDUP,
    WINDOW_APPEND,
    one_input,
    two_inputs,
)

QUERIES = [
    *(
        replace(query, plan=one_input(1, 2))
        for query in (AGGREGATION, WINDOW_APPEND, SESSION_APPEND, WATERMARK_DEDUP)
    ),
    replace(JOIN, plan=two_inputs(1, 2)),
]
JOIN_STORES = [f"{side}-{kind}" for side in ("left", "right") for kind in (
    "keyToNumValues", "keyWithIndexToValue")]  # fmt: skip


@pytest.fixture(scope="module")
def lanes(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Lane, Lane]]:
    """A finished lane of every query on Spark's provider and on the one under test."""
    root = tmp_path_factory.mktemp("state-reader")
    pairs = {}
    for query in QUERIES:
        reference = Lane(spark, query, HDFS, root / query.name / "reference")
        candidate = Lane(spark, query, PROVIDER, root / query.name / "candidate")
        run_plan(reference, candidate)
        pairs[query.name] = (reference, candidate)
    return pairs


def _state(lane: Lane, **options: Any) -> list[str]:
    reader = lane.spark.read.format("statestore").options(**options)
    return sorted(repr(row) for row in reader.load(str(lane.checkpoint)).collect())


def _same_state(lanes: tuple[Lane, Lane], **options: Any) -> list[str]:
    expected, found = (_state(lane, **options) for lane in lanes)
    assert found == expected, options
    return found


@pytest.mark.parametrize("query", QUERIES[:-1], ids=lambda query: query.name)
@pytest.mark.few(2)
def test_state_equals_built_in_at_every_batch(lanes: Any, query: Any) -> None:
    """Catches versions that cannot be read beside newer ones, and missing partition directories."""
    pair = lanes[query.name]

    assert _same_state(pair)
    for batch_id in (0, max(pair[0].batches) - 1):
        _same_state(pair, batchId=batch_id)


def test_join_state_equals_built_in_by_side_and_by_store(lanes: Any) -> None:
    """Catches a join side read from another store than the one it was written to."""
    pair = lanes[JOIN.name]

    for side in ("left", "right"):
        assert _same_state(pair, joinSide=side)
    for store in JOIN_STORES:
        assert _same_state(pair, storeName=store)


def _keyed_state(lane: Lane, batch_id: int) -> dict[str, str]:
    reader = lane.spark.read.format("statestore").option("batchId", batch_id)
    rows = reader.load(str(lane.checkpoint)).collect()
    return {repr((row.partition_id, row.key)): repr(row.value) for row in rows}


def _change_feed(lane: Lane, first: int, last: int) -> Any:
    options = {"readChangeFeed": "true", "changeStartBatchId": first, "changeEndBatchId": last}
    return lane.spark.read.format("statestore").options(**options).load(str(lane.checkpoint))


def _changes(lane: Lane, first: int, last: int) -> list[Any]:
    return sorted(_change_feed(lane, first, last).collect(), key=lambda row: row.batch_id)


@pytest.mark.parametrize(
    "query", [AGGREGATION, WINDOW_APPEND, WATERMARK_DEDUP], ids=lambda query: query.name
)
@pytest.mark.few(2)
def test_change_feed_leads_from_state_to_state(lanes: Any, query: Any) -> None:
    """Catches changes that are lost, repeated or under the wrong batch."""
    _, candidate = lanes[query.name]
    last = max(candidate.batches)

    for first in (0, 1, 2):
        state = _keyed_state(candidate, first - 1) if first else {}
        changes = _changes(candidate, first, last)
        for batch_id in range(first, last + 1):
            for row in changes:
                if row.batch_id != batch_id:
                    continue
                key = repr((row.partition_id, row.key))
                if row.change_type == "update":
                    state[key] = repr(row.value)
                else:
                    assert row.change_type == "delete"
                    state.pop(key, None)
            assert state == _keyed_state(candidate, batch_id)


def test_change_feed_equals_built_in(lanes: Any, application_root: Path) -> None:
    """Catches columns, types or kinds of changes unlike Spark's own, and files left on the disk."""
    reference, candidate = lanes[AGGREGATION.name]
    last = max(reference.batches)

    found = sorted(map(repr, _changes(candidate, 0, last)))

    assert found == sorted(map(repr, _changes(reference, 0, last)))
    _change_feed(candidate, 0, last).limit(1).collect()
    assert not list(application_root.rglob("changes-*"))


@pytest.mark.ours
def test_change_feed_has_the_last_write_of_a_key_where_built_in_has_every(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a page that says otherwise: docs/spark.md shows this very example.

    A join writes a row when it comes in, and once more when it finds a match in the same batch.
    """
    event = {"key": "a", "value": 1, "ts": "2024-01-01T00:00:00.000Z"}
    query = replace(JOIN, plan=[[{"left": [event], "right": [event]}]])
    feeds = {}
    for provider in (HDFS, ROCKSDB, FILESYSTEM, ROCKSDB_BACKEND):
        lane = Lane(spark, query, provider, tmp_path / provider)
        run_plan(lane)
        options = {
            "storeName": "left-keyWithIndexToValue",
            "readChangeFeed": "true",
            "changeStartBatchId": 0,
        }
        reader = spark.read.format("statestore").options(**options)
        rows = reader.load(str(lane.checkpoint)).collect()
        feeds[provider] = [
            (row.batch_id, row.change_type, row.key["index"], row.value.matched) for row in rows
        ]

    every = [(0, "update", 0, False), (0, "update", 0, True)]
    assert feeds == {
        HDFS: every,
        ROCKSDB: every,
        FILESYSTEM: every[1:],
        ROCKSDB_BACKEND: every[1:],
    }


@pytest.mark.ours
@pytest.mark.parametrize(
    ("provider", "built_in"),
    [
        pytest.param(PROVIDER, HDFS, marks=[state_in_files, state_in_memory], id="arrows"),
        pytest.param(ROCKSDB_BACKEND, ROCKSDB, id="sst"),
    ],
)
@pytest.mark.few(1)
def test_state_from_a_snapshot_equals_state(
    spark: SparkSession, tmp_path: Path, provider: str, built_in: str
) -> None:
    """Catches a snapshot that differs from the deltas it summarises, or a replay from another."""
    conf = {
        f"{STATE_STORE}.snapshot.maxChainLength": "2",
        f"{STATE_STORE}.rocksdb.mergeMinFiles": "2",
    }
    reference = Lane(spark, WINDOW_APPEND, built_in, tmp_path / "reference")
    lane = Lane(spark, WINDOW_APPEND, provider, tmp_path / "ours", conf)
    run_plan(reference, lane)

    read = 0
    last = max(lane.batches)
    without = set()
    for path in sorted((lane.checkpoint / "state" / "0").rglob("*.delta.*")):
        version, partition = int(path.name.split(".")[0]), path.parent.name
        if not list(path.parent.glob(f"{version}_*.snapshot.*")):
            without.add((version, partition))
            continue
        options = {"snapshotStartBatchId": version - 1, "snapshotPartitionId": partition}
        for end in (version - 1, last):
            found = _state(lane, batchId=end, **options)
            frame = (
                spark.read.format("statestore").option("batchId", end).load(str(lane.checkpoint))
            )
            in_partition = frame.where(f"partition_id = {partition}")
            assert found == sorted(repr(row) for row in in_partition.collect())
            read += len(found)
    assert read, "no snapshot had rows: the test tests nothing"

    version, partition = min(without)
    missing = {"snapshotStartBatchId": version - 1, "snapshotPartitionId": partition}
    missing_file = re.compile(
        rf"/state/0/{partition}/{version}[._][\w.]*(snapshot|zip)\S* does not exist"
    )
    for refused in (reference, lane):
        with pytest.raises(Exception, match=missing_file) as raised:
            _state(refused, batchId=last, **missing)
    text = str(raised.value)
    assert "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE]" in text
    assert "[snapshot-not-found]" in text


@pytest.mark.ours
def test_read_that_fails_leaves_no_store_open(
    spark: SparkSession, tmp_path: Path, unload_all: Callable[[], None]
) -> None:
    """Catches copies and pins that stay as long as the application, or its query, runs."""
    lane = Lane(spark, AGGREGATION, PROVIDER, tmp_path / "read")
    run_plan(lane)
    unload_all()
    before = open_stores(spark)

    with pytest.raises(Exception, match="snapshot"):
        _state(lane, batchId=1, snapshotStartBatchId=0, snapshotPartitionId=0)

    wait_for(lambda: open_stores(spark) == before, "the end of the stores that were read")


@pytest.mark.ours
def test_options_of_the_readers_session_are_not_those_of_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a read that is refused by what the session says of its own query's checkpoint."""
    lane = Lane(spark, AGGREGATION, PROVIDER, tmp_path / "read")
    run_plan(lane)
    session = spark.newSession()
    session.conf.set(f"{STATE_STORE}.checkpointStorage", f"file://{tmp_path}/elsewhere")
    session.conf.set(f"{STATE_STORE}.maxParallelism", "12")
    reader = session.read.format("statestore")

    found = sorted(repr(row) for row in reader.load(str(lane.checkpoint)).collect())

    assert found == _state(lane)
    assert found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
@pytest.mark.few(3)
def test_state_metadata_equals_built_in(lanes: Any, query: Any) -> None:
    """Catches files of ours where Spark looks for its own."""
    found = []
    for lane in lanes[query.name]:
        frame = lane.spark.read.format("state-metadata").load(str(lane.checkpoint))
        found.append(sorted(repr(row) for row in frame.collect()))

    assert found[0] == found[1]
    assert found[0]


def test_partition_directories_exist_when_partitions_are_empty(lanes: Any) -> None:
    """Catches a store without a directory: the reader refuses such a checkpoint."""
    for query in QUERIES:
        _, candidate = lanes[query.name]
        names = {path.name for path in (candidate.checkpoint / "state" / "0").iterdir()}
        assert {str(partition) for partition in range(NUM_PARTITIONS)} <= names


@pytest.mark.ours
@state_in_files
@pytest.mark.parametrize("num_partitions", [NUM_PARTITIONS, NUM_PARTITIONS + 2])
def test_state_that_a_batch_of_another_query_reads_is_left_alone(
    spark: SparkSession, tmp_path: Path, num_partitions: int
) -> None:
    """Catches a read within foreachBatch, or later in its session, that is taken for a query's.

    It would take a lease there, and clean up by what the reading query retains; and with another
    number of state partitions the read would be refused.
    """
    lane = Lane(spark, AGGREGATION, PROVIDER, tmp_path / "read")
    run_plan(lane)
    Checkpoint(lane.checkpoint).compact()  # then newer versions need no file of those before
    for batches in AGGREGATION.plan:
        lane.run(*batches)
    wait_for(lambda: not _leases(lane), "the end of the lane's own leases")
    before = _state_files(lane)
    session = spark.newSession()
    for key, value in {
        PROVIDER_CLASS: PROVIDER,
        "spark.sql.streaming.minBatchesToRetain": "1",
        "spark.sql.shuffle.partitions": str(num_partitions),
    }.items():
        session.conf.set(key, value)
    (tmp_path / "input").mkdir()
    (tmp_path / "input/1.json").write_text('{"key": "a"}\n')
    found, leases, sessions = [], [], []

    def read_in(session: SparkSession) -> None:
        found.append(session.read.format("statestore").load(str(lane.checkpoint)).count())
        leases.extend(_leases(lane))

    def look(batch: DataFrame, _: int) -> None:
        batch.collect()  # Spark wants every state partition of the batch committed
        read_in(batch.sparkSession)
        sessions.append(batch.sparkSession)

    words = session.readStream.schema("key STRING").json(str(tmp_path / "input"))
    writer = words.groupBy("key").count().writeStream.outputMode("update").foreachBatch(look)
    writer = writer.option("checkpointLocation", str(tmp_path / "reading"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    read_in(sessions[0])

    assert found == [len(_state(lane))] * 2
    assert leases == []
    time.sleep(2)  # an engine cleans up when a load has ended
    assert _state_files(lane) == before


def _leases(lane: Lane) -> list[Path]:
    return list(lane.checkpoint.glob("statestore-leases/*.json"))


def _state_files(lane: Lane) -> dict[str, bytes]:
    files = (path for path in (lane.checkpoint / "state").rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}
