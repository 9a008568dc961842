"""One run of one query on one store, in this process and so in a JVM of its own."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.comparison.benchmark import Benchmark, Q
from benchmarks.comparison.check import Check, checks
from benchmarks.datasets import link_files
from benchmarks.processes import cpu_ms
from benchmarks.sessions import benchmark_jar, start_session
from benchmarks.workloads import Provider

PARTITIONS = 4
WARM_UP_SHARE = 10
"""One in so many files warms the JVM up and is not measured."""
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run took; a part of a line of the results.

    Attributes:
        events: Rows of the input that were measured, without the warm-up.
        wall_s: From the start of the query to its end, of both halves together.
        cpu_s: Of JVM, engines and Python in that time.
        call_s: CPU of it in the calls of the floor, not more than their time; 0 of a store.
        batch_ms: The median batch.
        restart_ms: From the second start of the query to the end of its first batch; None of a run
            whose store did not have to read its checkpoint.
        restart_files: State files that ours loaded in it; None of another store.
        state_rows: At the end.
        state_bytes: Files below `checkpoint/state` at the end.
        check: Of all rows that came out, also those of the warm-up.
    """

    events: int
    wall_s: float
    cpu_s: float
    call_s: float
    batch_ms: float
    restart_ms: float | None
    state_rows: int
    state_bytes: int
    check: Check
    restart_files: int | None = None

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Measured:
        """Return what its fields were made of, as JSON."""
        return cls(**fields | {"check": Check(**fields["check"])})


def open_session(store: Provider, jars: Sequence[Path] = ()) -> SparkSession:
    """Start Spark with a store, with further jars on the class path."""
    spark = start_session(store, tuple(dict.fromkeys((*jars, benchmark_jar()))))
    spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
    return spark


def run_query(
    spark: SparkSession,
    benchmark: Benchmark[Q],
    query: Q,
    files: Sequence[Path],
    num_rows: int,
    work: Path,
    *,
    is_durable: bool,
) -> Measured:
    """Run a query over the files, one a batch: some to warm up, then two halves.

    Between them the query is stopped, its stores are closed, and it is started anew from a copy of
    its checkpoint, which no store knows: so the state is read once in the middle of what is
    measured. A store whose state ends with the JVM goes on with the checkpoint itself.

    Args:
        spark: Of `open_session`.
        benchmark: Whose query it is.
        query: What to run.
        files: With equally many rows each.
        num_rows: In all files.
        work: Directory that is not there yet; afterwards holds `source/` and `checkpoint-N/`.
        is_durable: Whether the state outlives the JVM.
    """
    warm = max(1, len(files) // WARM_UP_SHARE)
    middle = warm + (len(files) - warm) // 2
    part = partial(_run_part, spark, benchmark, query)
    checkpoint = work / "checkpoint-0"
    first, _ = part(files[:warm], work, checkpoint)
    checkpoint = _next(checkpoint, is_durable=is_durable)
    cpu_before = cpu_ms()
    second, second_s = part(files[warm:middle], work, checkpoint)
    copied_before = time.process_time()
    checkpoint = _next(checkpoint, is_durable=is_durable)
    copied_s = time.process_time() - copied_before
    third, third_s = part(files[middle:], work, checkpoint)
    cpu_s = (cpu_ms() - cpu_before) / 1000 - copied_s
    measured = second + third
    state = checkpoint / "state"
    made = [report["observedMetrics"]["check"] for report in first + measured]
    return Measured(
        events=num_rows // len(files) * (len(files) - warm),
        wall_s=second_s.whole + third_s.whole,
        cpu_s=cpu_s,
        call_s=sum(_counted(report, "mapCallNanos") or 0 for report in measured) / 1e9,
        batch_ms=median(
            report["durationMs"]["triggerExecution"]
            for report in measured
            if report["numInputRows"]
        ),
        restart_ms=third_s.first_batch * 1000,
        state_rows=sum(one["numRowsTotal"] for one in measured[-1]["stateOperators"]),
        state_bytes=sum(file.stat().st_size for file in state.rglob("*") if file.is_file()),
        check=Check(sum(one["rows"] for one in made), sum(one["hash"] for one in made)),
        restart_files=_counted(third[0], "statestoreLoadedFiles"),
    )


def _next(checkpoint: Path, *, is_durable: bool) -> Path:
    """Return the checkpoint that the next part goes on from; the former stays where it is.

    Spark's metadata of an operator names files of schemas by their whole paths.
    """
    if not is_durable:
        return checkpoint
    name, _, number = checkpoint.name.rpartition("-")
    return Path(shutil.copytree(checkpoint, checkpoint.with_name(f"{name}-{int(number) + 1}")))


@dataclass(frozen=True, slots=True)
class _Times:
    """From the start of a query, in seconds."""

    first_batch: float
    whole: float


def _run_part(
    spark: SparkSession,
    benchmark: Benchmark[Q],
    query: Q,
    files: Sequence[Path],
    work: Path,
    checkpoint: Path,
) -> tuple[list[dict[str, Any]], _Times]:
    """Run the query over its next files; return its reports, also of batches without rows."""
    link_files(list(files), work / "source")
    commits = checkpoint / "commits"
    next_batch = max((int(file.name) for file in commits.glob("[0-9]*")), default=-1) + 1
    began = time.perf_counter()
    running = _start(spark, benchmark, query, work, checkpoint)
    while not (commits / str(next_batch)).exists() and running.isActive:
        time.sleep(POLL_S)
    first_batch = time.perf_counter() - began
    running.awaitTermination()
    times = _Times(first_batch, time.perf_counter() - began)
    reports = [json.loads(one.json) for one in running.recentProgress]
    # Closes all stores of this process.
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    return [one for one in reports if one["observedMetrics"]], times


def _start(
    spark: SparkSession, benchmark: Benchmark[Q], query: Q, work: Path, checkpoint: Path
) -> StreamingQuery:
    """Start a query; it ends when it has read what is in the source."""
    results, made = checks(benchmark.stream(spark, query, work / "source"))
    return (
        results.observe("check", *made)
        .writeStream.format("noop")
        .outputMode(query.output_mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def _counted(report: dict[str, Any], metric: str) -> int | None:
    """Return a provider's metric of a batch, of all operators; None where there is none."""
    counted = [one.get("customMetrics", {}) for one in report["stateOperators"]]
    found = [int(metrics[metric]) for metrics in counted if metric in metrics]
    return sum(found) if found else None
