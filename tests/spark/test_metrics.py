"""What a query's progress says about its state, and how often the shim calls the engine for it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.states import find_states
from tests.seams import place_of

from .conftest import BODY, PROVIDER, state_in_files, state_in_memory
from .harness import (
    HDFS,
    NUM_PARTITIONS,
    STATE_STORE,
    Lane,
    assert_same,
    engine_calls,
    run_plan,
    wait_for,
)
from .queries import AGGREGATION, JOIN, SESSION_APPEND, one_input

pytestmark = pytest.mark.ours

NUM_BATCHES = 7  # fewer than a snapshot is taken at
PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
IN_EVERY_BATCH = (
    "rocksdbGetCount",
    "rocksdbPutCount",
    "rocksdbTotalBytesWritten",
    "statestoreDeltaRows",
    "statestoreEngineCalls",
    "statestoreOverlayBytes",
    "statestoreStoragePuts",
)
"""Metrics that no batch with input leaves at 0."""


@pytest.fixture(scope="module")
def lane(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lane:
    """A finished aggregation of several batches in one run."""
    root = tmp_path_factory.mktemp("metrics")
    query = replace(AGGREGATION, plan=one_input(NUM_BATCHES))
    reference = Lane(spark, query, HDFS, root / "reference")
    candidate = Lane(spark, query, PROVIDER, root / "candidate")
    run_plan(reference, candidate)
    assert_same(reference, candidate)
    return candidate


def test_progress_has_the_documented_metrics(lane: Lane) -> None:
    """Catches a metric that is documented and not reported, or reported and not documented."""
    rows = re.findall(r"^\| `(\w+)` \| (?:number|ms|bytes) \|", PAGE.read_text(), re.MULTILINE)
    documented = set(rows)
    of_single_stores = set(re.findall(r"^\| `(\w+)\.…`", PAGE.read_text(), re.MULTILINE))

    for metrics in lane.custom_metrics():
        of_stores = {name for name in metrics if "." in name}
        assert {name.split(".")[0] for name in of_stores} <= of_single_stores
        assert metrics.keys() - of_stores == documented
    assert all(sizes[0] > 0 for sizes in lane.counts("memoryUsedBytes").values())
    assert all(
        stores == [NUM_PARTITIONS] for stores in lane.counts("numShufflePartitions").values()
    )


@state_in_files
@pytest.mark.needs("outlier-metrics")
def test_progress_names_the_slowest_and_the_largest_stores(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches the smallest in place of the largest, and bytes of one store under another's name."""
    query = replace(AGGREGATION, plan=one_input(1))
    conf = {f"{STATE_STORE}.numStateStoreInstanceMetricsToReport": "2"}
    lane = Lane(spark, query, PROVIDER, tmp_path, conf)
    run_plan(lane)
    sizes = {
        partition: sum(file.stat().st_size for file in directory.glob("1[_.]*"))
        for partition in range(NUM_PARTITIONS)
        for directory in [lane.checkpoint / "state" / "0" / str(partition)]
    }

    metrics = lane.custom_metrics()[0]

    largest = sorted(sizes, key=sizes.__getitem__)[1:]
    assert {name: value for name, value in metrics.items() if "LargestVersion" in name} == {
        f"statestoreLargestVersionBytes.partition_{p}_default": sizes[p] for p in largest
    }
    assert sum("statestoreSlowestCommitMs." in name for name in metrics) == 2


def test_metrics_are_counted(lane: Lane) -> None:
    """Catches a metric that is declared, and with that reported, but stays 0 or counts amiss."""
    batches = lane.custom_metrics()[:NUM_BATCHES]

    for metrics in batches:
        assert [name for name in IN_EVERY_BATCH if metrics[name] <= 0] == []
        assert metrics["rocksdbTotalBytesWritten"] == metrics["statestoreDeltaBytes"]
        assert metrics["statestoreVersionBytes"] >= metrics["statestoreDeltaBytes"]
        assert metrics["statestoreEngineRssBytes"] > 1 << 20
        assert metrics["rocksdbNumExternalColumnFamilies"] == NUM_PARTITIONS
    # Of the versions before it, too.
    assert batches[-1]["statestoreVersionBytes"] > batches[-1]["statestoreDeltaBytes"]
    # In whole milliseconds, of which a commit may take none.
    assert sum(metrics["statestoreCommitEngineMs"] for metrics in batches) > 0


@pytest.mark.needs("outlier-metrics")  # Spark 4.3, which tells while it idles what was before
def test_what_there_is_is_told_while_the_query_idles(spark: SparkSession, tmp_path: Path) -> None:
    """Catches a size of the state that is 0, and an alert that ends, as soon as no rows come."""
    query = replace(AGGREGATION, plan=one_input(2))
    conf = {"spark.sql.streaming.noDataProgressEventInterval": "500"}
    lane = Lane(spark, query, PROVIDER, tmp_path, conf)
    lane.feed(*query.plan[0])
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: len(lane.batches) == len(query.plan[0]), "the batches")
        wait_for(lambda: "addBatch" not in handle.lastProgress["durationMs"], "an idle report")
        reports = handle.recentProgress
    finally:
        handle.stop()

    ran = [each for each in reports if "addBatch" in each["durationMs"]][-1]
    told, idle = (each["stateOperators"][0]["customMetrics"] for each in (ran, reports[-1]))
    stays = {name for name in told if told[name] == idle[name] > 0}
    assert stays >= {
        "rocksdbNumExternalColumnFamilies", "statestoreVersionBytes", "statestoreEngineRssBytes"
    }  # fmt: skip
    assert idle["rocksdbPutCount"] == idle["statestoreDeltaBytes"] == 0 < told["rocksdbPutCount"]


def test_one_engine_call_a_partition_a_batch(lane: Lane) -> None:
    """Catches rows, or anything else of a batch, that travel by calls of their own."""
    calls = [metrics["statestoreEngineCalls"] for metrics in lane.custom_metrics()[:NUM_BATCHES]]

    assert calls[1:] == [NUM_PARTITIONS] * (NUM_BATCHES - 1)
    assert calls[0] <= 2 * NUM_PARTITIONS


def test_one_engine_call_a_store_when_a_partition_has_four(
    spark: SparkSession, tmp_path: Any
) -> None:
    """Catches calls that the progress does not show: a join reports two of its four stores."""
    batches = [batch for run in JOIN.plan for batch in run]
    lane = Lane(spark, replace(JOIN, plan=[batches]), PROVIDER, tmp_path)
    before = engine_calls(spark)

    run_plan(lane)

    num_batches = len(lane.progress)
    made = {op: count - before.get(op, 0) for op, count in engine_calls(spark).items()}
    assert made["commit"] == 4 * NUM_PARTITIONS * num_batches
    assert made["load"] == 4 * NUM_PARTITIONS
    calls = [metrics["statestoreEngineCalls"] for metrics in lane.custom_metrics()]
    assert calls[1:] == [2 * NUM_PARTITIONS] * (num_batches - 1)


def test_one_engine_call_a_partition_when_every_batch_scans(
    spark: SparkSession, tmp_path: Any
) -> None:
    """Catches a version that is opened for every batch: a session window scans by a prefix."""
    query = replace(SESSION_APPEND, plan=one_input(NUM_BATCHES))
    reference = Lane(spark, query, HDFS, tmp_path / "reference")
    lane = Lane(spark, query, PROVIDER, tmp_path / "candidate")

    run_plan(reference, lane)

    assert_same(reference, lane)
    calls = [metrics["statestoreEngineCalls"] for metrics in lane.custom_metrics()]
    assert calls[1:] == [NUM_PARTITIONS] * (len(calls) - 1)


@state_in_files
def test_written_rows_and_bytes_are_those_on_disk(lane: Lane) -> None:
    """Catches counters that count other things than their names say."""
    for batch_id, metrics in enumerate(lane.custom_metrics()):
        name = f"{batch_id + 1}.delta.{BODY}"
        files = [lane.checkpoint / "state" / "0" / str(p) / name for p in range(NUM_PARTITIONS)]
        assert metrics["statestoreDeltaBytes"] == sum(path.stat().st_size for path in files)
        assert metrics["statestoreDeltaRows"] == len(lane.batches[batch_id])
        assert metrics["rocksdbPutCount"] >= metrics["statestoreDeltaRows"]


@state_in_files
def test_files_tell_what_commits_took(lane: Lane) -> None:
    """Catches phases on the disk that are not those of the query's progress."""
    with open_checkpoint(place_of(lane.checkpoint)) as checkpoint:
        for batch_id, metrics in enumerate(lane.custom_metrics()[: NUM_BATCHES - 1]):
            states = find_states(checkpoint, batch_id + 2).values()
            commits = [state.parent_commit for state in states if state.parent_commit]
            assert len(commits) == NUM_PARTITIONS
            write_ms = sum(commit.write_ms for commit in commits)
            assert write_ms == metrics["rocksdbChangeLogWriterCommitLatencyMs"]
            publish_ms = sum(commit.publish_ms for commit in commits)
            assert publish_ms == pytest.approx(metrics["statestoreCommitPublishMs"], abs=2)


@state_in_memory
def test_load_metrics_are_of_restarts_only(lane: Lane) -> None:
    """Catches a view that is rebuilt in every batch."""
    files = [metrics["statestoreLoadedFiles"] for metrics in lane.custom_metrics()[:NUM_BATCHES]]
    assert files == [0] * NUM_BATCHES

    lane.run({"events": one_input(1)[0][0]["events"]})

    restarted = lane.custom_metrics()[-1]
    assert restarted["statestoreLoadedFiles"] >= NUM_PARTITIONS
    assert restarted["rocksdbNumReplayChangelogFiles"] >= NUM_PARTITIONS
    assert restarted["rocksdbTotalBytesRead"] > 0
    assert restarted["rocksdbLoadLatencyMs"] > 0


def test_snapshot_metrics_say_what_was_taken(spark: SparkSession, tmp_path: Any) -> None:
    """Catches snapshots that happen unseen."""
    conf = {
        f"{STATE_STORE}.snapshot.maxChainLength": "2",
        f"{STATE_STORE}.rocksdb.mergeMinFiles": "2",
    }
    query = replace(AGGREGATION, plan=one_input(6))
    lane = Lane(spark, query, PROVIDER, tmp_path, conf)

    run_plan(lane)

    last = lane.custom_metrics()[-1]
    assert last["statestoreSnapshotBytes"] > 0
    assert last["statestoreSnapshotDurationMs"] > 0
    assert last["statestoreSnapshots"] >= NUM_PARTITIONS
