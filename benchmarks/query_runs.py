"""Runs of a streaming query: W1, W2, the restart of W1 (W3), W7 to W9. One call, one JVM."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.datasets import input_files, link_files
from benchmarks.processes import cpu_ms
from benchmarks.sessions import benchmark_jar, start_session
from benchmarks.workloads import Provider, QueryWorkload, full

POLL_S = 0.005
CPU_POLL_S = 0.1
"""Looking every 5 ms makes a batch of W1 a tenth longer on 2 cores; so often it does not."""
AGGREGATION = full().w1


def run_from_start(workload: QueryWorkload, provider: Provider, work: Path) -> dict[str, Any]:
    """Run the query over the load and the updates, in a JVM warmed by another query.

    Args:
        workload: Sizes.
        provider: Whose state stores to use.
        work: Empty directory; afterwards holds `source/` and `checkpoint/`, which
            `run_after_restart` goes on with.

    Returns:
        `batches`: one summary a batch that reads rows, as `summarise_progress` makes it, the load
        first; with `cpu_ms`, of JVM, engines and Python since the batch before, None where that is
        not known.
        `state_files`, `state_bytes`: files below `checkpoint/state` at the end.
    """
    spark = start_warm_session(workload, provider, work)
    num_files = workload.load_batches + workload.update_batches
    link_files(input_files(workload)[:num_files], work / "source")
    with _cpu_of_batches(work / "checkpoint") as cpu:
        query = start_query(spark, work / "source", work / "checkpoint", workload)
        query.awaitTermination()
    batches = [{**batch, "cpu_ms": cpu.get(batch["batch"])} for batch in _batches(query)]
    result = {"batches": batches, **_count_state_files(work / "checkpoint")}
    spark.stop()
    return result


def run_after_restart(workload: QueryWorkload, provider: Provider, work: Path) -> dict[str, Any]:
    """Restart the query of `run_from_start` with more data, in a JVM warmed by another query.

    Returns:
        `batches`: as above, the first one is the batch that restores the state.
        `first_result_ms`: from the call of `start()` to the end of the first batch.
    """
    spark = start_warm_session(workload, provider, work)
    num_files = workload.load_batches + workload.update_batches
    link_files(input_files(workload)[num_files:], work / "source")
    started = time.perf_counter()
    query = start_query(spark, work / "source", work / "checkpoint", workload)
    while query.lastProgress is None and query.isActive:
        time.sleep(POLL_S)
    first_result_ms = (time.perf_counter() - started) * 1000
    query.awaitTermination()
    result = {
        "batches": _batches(query),
        "first_result_ms": first_result_ms,
        **_count_state_files(work / "checkpoint"),
    }
    spark.stop()
    return result


def summarise_progress(progress: dict[str, Any]) -> dict[str, Any]:
    """Return what one StreamingQueryProgress (as a dict) says about time and state.

    Times are in ms; `update_ms` and `commit_ms` are Spark's sums over the partitions.
    """
    operator = progress["stateOperators"][0]
    return {
        "batch": progress["batchId"],
        "input_rows": progress["numInputRows"],
        "batch_ms": progress["durationMs"]["triggerExecution"],
        "durations_ms": progress["durationMs"],
        "update_ms": operator["allUpdatesTimeMs"],
        "commit_ms": operator["commitTimeMs"],
        "state_rows": operator["numRowsTotal"],
        "updated_rows": operator["numRowsUpdated"],
        "state_memory_bytes": operator["memoryUsedBytes"],
        "custom_metrics": operator.get("customMetrics", {}),
    }


def start_warm_session(workload: QueryWorkload, provider: Provider, work: Path) -> SparkSession:
    """Start Spark and run a tiny query of the same kind: no batch pays for class loading."""
    spark = start_session(provider, (benchmark_jar(),) if workload.variable else ())
    spark.conf.set("spark.sql.shuffle.partitions", workload.partitions)
    tiny = replace(
        workload,
        name="warm-up",
        keys=2_000,
        updates_per_batch=500,
        update_batches=3,
        warm_up_batches=0,
        restart_batches=0,
        load_batches=1,
    )
    directory = work / "warm-up"
    link_files(input_files(tiny), directory / "source")
    query = start_query(spark, directory / "source", directory / "checkpoint", tiny)
    query.awaitTermination()
    shutil.rmtree(directory)
    return spark


def start_query(
    spark: SparkSession, source: Path, checkpoint: Path, workload: QueryWorkload = AGGREGATION
) -> StreamingQuery:
    """Start the query of a workload; it ends when it has read what is in the source.

    Args:
        spark: The session; for a variable with the jar of the benchmarks.
        source: Directory of its files.
        checkpoint: Its checkpoint.
        workload: Whose operator it has.
    """
    rows = (
        spark.readStream.schema("k string, v bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
    )
    spark.conf.set("spark.sql.streaming.join.stateFormatVersion", workload.join_format)
    results = _results(spark, rows, workload)
    return (
        results.writeStream.format("noop")
        .outputMode("update" if workload.operator == "aggregation" else "append")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def _results(spark: SparkSession, rows: DataFrame, workload: QueryWorkload) -> DataFrame:
    """Return the rows with the operator of a workload."""
    if workload.variable:
        # By processing time Spark asks for another batch for ever.
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", False)
        jvm: Any = spark._jvm
        of_variable = jvm.io.statestore.bench.VariableQueries.of(rows._jdf, workload.variable)
        return DataFrame(of_variable, spark)
    if workload.operator == "join":
        return rows.join(rows.select("k", sf.col("v").alias("other")), "k")
    if workload.operator == "session":
        # Far apart, and none of them ends: an update begins or extends a session of its key.
        timed = rows.withColumn("ts", sf.timestamp_seconds(sf.col("v") * 100))
        return (
            timed.withWatermark("ts", "100 days")
            .groupBy(sf.session_window("ts", "60 seconds"), "k")
            .agg(sf.count("*").alias("count"), sf.sum("v").alias("sum"))
        )
    return rows.groupBy("k").agg(sf.count("*").alias("count"), sf.sum("v").alias("sum"))


def _batches(query: StreamingQuery) -> list[dict[str, Any]]:
    error = query.exception()
    if error is not None:
        raise error
    reports = [json.loads(progress.json) for progress in query.recentProgress]
    return [summarise_progress(report) for report in reports if report["numInputRows"]]


@contextmanager
def _cpu_of_batches(checkpoint: Path) -> Iterator[dict[int, float]]:
    """Fill in, while a query runs, the CPU that was used in each of its batches, in ms.

    The end of a batch is told by its file in the commit log: to ask Spark would be work for it.
    """
    used: dict[int, float] = {}
    is_over = threading.Event()

    def watch() -> None:
        before, batch = None, 0
        while not is_over.wait(CPU_POLL_S):
            if (checkpoint / "commits" / str(batch)).exists():
                now = cpu_ms()
                if before is not None:
                    used[batch] = now - before
                before, batch = now, batch + 1

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield used
    finally:
        is_over.set()
        thread.join()


def _count_state_files(checkpoint: Path) -> dict[str, int]:
    sizes = [file.stat().st_size for file in (checkpoint / "state").rglob("*") if file.is_file()]
    return {"state_files": len(sizes), "state_bytes": sum(sizes)}
