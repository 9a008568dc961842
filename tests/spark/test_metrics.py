"""What a query's progress says about its state, and how often the shim calls the engine for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from .conftest import BODY, PROVIDER, state_on_heap
from .harness import HDFS, NUM_PARTITIONS, STATE_STORE, Lane, assert_same, run_plan
from .queries import AGGREGATION, JOIN, one_input

pytestmark = pytest.mark.ours

NUM_BATCHES = 8
SHARED_NAMES = {
    "rocksdbGetCount",
    "rocksdbPutCount",
    "rocksdbCommitFileSyncLatencyMs",
    "rocksdbLoadLatencyMs",
    "rocksdbTotalBytesRead",
    "rocksdbTotalBytesWritten",
}
OWN_NAMES = {
    "statestoreDeltaRows",
    "statestoreDeltaBytes",
    "statestoreEngineCalls",
    "statestoreCommitEngineMs",
    "statestoreCommitPublishMs",
    "statestoreSnapshotVersion",
    "statestoreSnapshotBytes",
    "statestoreSnapshotDurationMs",
    "statestoreLoadedFiles",
    *(f"statestoreStorage{kind}s" for kind in ("Put", "Get", "Head", "List", "Delete")),
}


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
    """Catches a metric that is declared but never reported, or renamed."""
    for metrics in lane.custom_metrics():
        assert metrics.keys() >= SHARED_NAMES | OWN_NAMES
    assert all(sizes[0] > 0 for sizes in lane.counts("memoryUsedBytes").values())
    assert all(
        stores == [NUM_PARTITIONS] for stores in lane.counts("numShufflePartitions").values()
    )


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
    before = _engine_calls(spark)

    run_plan(lane)

    num_batches = len(lane.progress)
    made = {op: count - before.get(op, 0) for op, count in _engine_calls(spark).items()}
    assert made["commit"] == 4 * NUM_PARTITIONS * num_batches
    assert made["load"] == 4 * NUM_PARTITIONS
    calls = [metrics["statestoreEngineCalls"] for metrics in lane.custom_metrics()]
    assert calls[1:] == [2 * NUM_PARTITIONS] * (num_batches - 1)


def _engine_calls(spark: SparkSession) -> dict[str, int]:
    counts = spark._jvm.io.statestore.engine.Engines.callCounts()
    return {op: counts.apply(op) for op in ("load", "commit") if counts.contains(op)}


def test_written_rows_and_bytes_are_those_on_disk(lane: Lane) -> None:
    """Catches counters that count other things than their names say."""
    for batch_id, metrics in enumerate(lane.custom_metrics()):
        name = f"{batch_id + 1}.delta.{BODY}"
        files = [lane.checkpoint / "state" / "0" / str(p) / name for p in range(NUM_PARTITIONS)]
        assert metrics["statestoreDeltaBytes"] == sum(path.stat().st_size for path in files)
        assert metrics["statestoreDeltaRows"] == len(lane.batches[batch_id])
        assert metrics["rocksdbPutCount"] >= metrics["statestoreDeltaRows"]


@state_on_heap
def test_load_metrics_are_of_restarts_only(lane: Lane) -> None:
    """Catches a view that is rebuilt in every batch."""
    files = [metrics["statestoreLoadedFiles"] for metrics in lane.custom_metrics()[:NUM_BATCHES]]
    assert files == [0] * NUM_BATCHES

    lane.run({"events": one_input(1)[0][0]["events"]})

    restarted = lane.custom_metrics()[-1]
    assert restarted["statestoreLoadedFiles"] >= NUM_PARTITIONS
    assert restarted["rocksdbTotalBytesRead"] > 0


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
    assert 2 * NUM_PARTITIONS <= last["statestoreSnapshotVersion"] <= 6 * NUM_PARTITIONS
