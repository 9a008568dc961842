"""Runs thousands of small batches on each state backend, and fails unless everything stays flat.

    $ python -m benchmarks.soak [--batches 2000] [--backends heap,filesystem,rocksdb] [--work DIR]
    $ python -m benchmarks.soak --off-heap 256 --batches 500 --backends filesystem,rocksdb

Each backend has a Spark application of its own. Its state stops growing after the first batches, so
from then on nothing else may grow either: the memory and the open files of JVM and engines, the
files of the checkpoint and of the scratch directories. Flat means that the median of a figure over
the last third of the batches is at most GROWTH times that over the middle third, plus a slack of
its own: generous, since garbage collectors and allocators give back what they like, but a leak of a
few hundred bytes a batch does not hide in two thousand. Retention holds when the newest versions
can be read and have all rows, and versions that are long expired cannot.

With `--off-heap` rows lie outside of the JVM's heap, in so many MiB of Spark's memory; there are
more of them, and a run where none does fails.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.query import StreamingQuery

import statestore
from benchmarks.processes import engines_of, resident_bytes
from statestore.core.providers import PROVIDERS

ROWS_PER_BATCH = 200
NUM_KEYS = 1_000
NUM_PARTITIONS = 2
OFF_HEAP_TIMES = 100
"""So many times the keys and rows of a batch where rows are outside of the heap, in large pages."""
RETAINED = 20
CHAIN_LENGTH = 10
MAINTENANCE_S = 2
POLL_S = 0.02
STALL_S = 300
SAMPLE_EVERY = 100
MIN_SAMPLES = 15

GROWTH = 1.1
MIB = 1 << 20
FIGURES = {
    "JVM memory, MiB": 48.0,
    "JVM heap in use, MiB": 16.0,
    "rows outside of it, MiB": 0.2,
    "engine memory, MiB": 24.0,
    "JVM open files": 16.0,
    "engine open files": 16.0,
    "checkpoint files": 40.0,
    "scratch files": 40.0,
    "batch, ms": math.inf,
}
"""Slack of every figure, in its own unit; the duration of a batch is printed and not judged."""


def main() -> int:
    """Soak every backend; exit status 1 when one is not flat, or does not keep its versions."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--batches", type=int, default=2000, help="batches of each backend")
    parser.add_argument("--backends", default=",".join(PROVIDERS), help="separated by commas")
    parser.add_argument("--off-heap", type=int, default=0, help="MiB of Spark's memory there")
    parser.add_argument("--work", type=Path, help="where the applications work, kept afterwards")
    parser.add_argument("--application", choices=list(PROVIDERS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.application:
        given = (arguments.application, arguments.batches, arguments.work, arguments.off_heap)
        print(json.dumps(soak(*given)))
        return 0
    backends = arguments.backends.split(",")
    if unknown := set(backends) - PROVIDERS.keys():
        parser.error(f"no such backend: {', '.join(unknown)}; use {', '.join(PROVIDERS)}")
    if arguments.batches < 6 * RETAINED:
        parser.error(f"a third of the batches must be longer than retention: {6 * RETAINED}")
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix="statestore-soak-") as scratch:
        for backend in backends:
            work = (arguments.work or Path(scratch)) / backend
            result = run_application(backend, arguments.batches, work, arguments.off_heap)
            problems = result["problems"] + judge(result["samples"])
            print_table(backend, result["samples"])
            for problem in problems:
                print(f"  FAIL {problem}")
            num_failed += bool(problems)
    print(f"soak: {len(backends) - num_failed} of {len(backends)} backends stayed flat")
    return 1 if num_failed else 0


def run_application(
    backend: str, num_batches: int, work: Path, off_heap_mib: int
) -> dict[str, Any]:
    """Soak a backend in a process of its own; return its samples and what went wrong."""
    work.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.soak", "--application", backend]
    command += ["--batches", str(num_batches), "--work", str(work)]
    command += ["--off-heap", str(off_heap_mib)]
    log = work / "application.log"
    with log.open("wb") as stderr:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            check=False,
            cwd=Path(__file__).parents[1],
        )
    lines = done.stdout.decode().splitlines()
    if done.returncode == 0 and lines:
        return dict(json.loads(lines[-1]))
    tail = log.read_text(errors="replace")[-4000:]
    return {"samples": [], "problems": [f"the application failed: {done.returncode}\n{tail}"]}


def soak(backend: str, num_batches: int, work: Path, off_heap_mib: int) -> dict[str, Any]:
    """Run the batches in this process.

    Returns:
        `samples`, in order, each with its batch and every figure; `problems` with retention.
    """
    spark = start_session(backend, work, off_heap_mib)
    times = OFF_HEAP_TIMES if off_heap_mib else 1
    query = start_query(spark, work, times)
    num_samples = max(MIN_SAMPLES, num_batches // SAMPLE_EVERY)
    samples = []
    started, before = time.monotonic(), 0
    for number in range(1, num_samples + 1):
        batch = num_batches * number // num_samples
        wait_for_batch(query, batch)
        now = time.monotonic()
        figures = sample(spark, work)
        figures["batch, ms"] = (now - started) * 1000 / (batch - before)
        started, before = time.monotonic(), batch
        samples.append({"batch": batch, **figures})
    query.stop()
    problems = check_retention(spark, work, samples, times)
    if off_heap_mib and not samples[-1]["rows outside of it, MiB"]:
        problems.append("no row was outside of the heap")
    spark.stop()
    return {"samples": samples, "problems": problems}


def start_session(backend: str, work: Path, off_heap_mib: int) -> SparkSession:
    """Start an application whose own books are short, so that what grows is not Spark's."""
    short = ("jobs", "stages", "tasks", "deadExecutors")
    conf: dict[str, str | int | float | bool | None] = {
        "spark.master": f"local[{NUM_PARTITIONS}]",
        "spark.driver.memory": "512m",
        # All of the heap is resident from the start; what grows is in it or beside it.
        "spark.driver.extraJavaOptions": "-Xms512m -XX:+AlwaysPreTouch",
        "spark.local.dir": str(work / "scratch"),
        "spark.pyspark.python": sys.executable,
        "spark.sql.shuffle.partitions": NUM_PARTITIONS,
        "spark.sql.streaming.stateStore.maintenanceInterval": f"{MAINTENANCE_S}s",
        "spark.sql.streaming.numRecentProgressUpdates": 10,
        "spark.sql.ui.retainedExecutions": 10,
        "spark.ui.enabled": "false",
        **{f"spark.ui.retained{name.capitalize()}": 10 for name in short},
    }
    if off_heap_mib:
        conf["spark.memory.offHeap.enabled"] = True
        conf["spark.memory.offHeap.size"] = f"{off_heap_mib}m"
    builder = statestore.configure(
        SparkSession.builder.appName(f"soak-{backend}").config(map=conf),
        backend,
        min_versions_to_retain=RETAINED,
        snapshot_max_chain_length=CHAIN_LENGTH,
        orphan_age_ms=1000 * MAINTENANCE_S,
        off_heap_enabled=off_heap_mib > 0,
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def start_query(spark: SparkSession, work: Path, times: int) -> StreamingQuery:
    """Start a query whose batches each update a part of the same keys."""
    rows = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=times * ROWS_PER_BATCH, numPartitions=1
    )
    keys = rows.load().selectExpr(f"value * 7919 % {times * NUM_KEYS} AS k", "value AS v")
    return (
        keys.groupBy("k")
        .agg(count("*").alias("count"), sum_of("v").alias("sum"))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )


def wait_for_batch(query: StreamingQuery, num_batches: int) -> None:
    """Return once so many batches are done.

    Raises:
        RuntimeError: The query ended, or no batch ends any more.
    """
    deadline = time.monotonic() + STALL_S
    while query.isActive and time.monotonic() < deadline:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] + 1 >= num_batches:
            return
        time.sleep(POLL_S)
    raise RuntimeError(f"the query does not get on: {query.exception() or query.status}")


def sample(spark: SparkSession, work: Path) -> dict[str, float]:
    """Return every figure but the duration, after a garbage collection of the JVM."""
    jvm = spark._jvm
    if jvm is None:
        raise RuntimeError("the session has no JVM")
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    pid = jvm.ProcessHandle.current().pid()
    engines = engines_of(pid)
    return {
        "JVM memory, MiB": resident_bytes(pid) / MIB,
        "JVM heap in use, MiB": (runtime.totalMemory() - runtime.freeMemory()) / MIB,
        "rows outside of it, MiB": jvm.io.statestore.provider.OffHeap.bytes() / MIB,
        "engine memory, MiB": sum(map(resident_bytes, engines)) / MIB,
        "JVM open files": num_open_files(pid),
        "engine open files": sum(map(num_open_files, engines)),
        "checkpoint files": num_files(work / "checkpoint"),
        "scratch files": num_files(work / "scratch"),
    }


def num_open_files(pid: int) -> int:
    """Return the number of open file descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def num_files(directory: Path) -> int:
    """Return the number of files below a directory that changes meanwhile."""
    listing = subprocess.run(
        ["find", str(directory), "-type", "f"], capture_output=True, check=False
    )
    return listing.stdout.count(b"\n")


def check_retention(
    spark: SparkSession, work: Path, samples: list[dict[str, Any]], times: int
) -> list[str]:
    """Return what is wrong with the versions that can be read."""
    committed = max(int(path.name) for path in (work / "checkpoint" / "commits").glob("[0-9]*"))
    batch_ms = median(figures["batch, ms"] for figures in samples)
    # Snapshots make a chain start a little earlier, and maintenance is a little late.
    slack = 2 * CHAIN_LENGTH + math.ceil(5 * MAINTENANCE_S * 1000 / batch_ms)
    problems = []
    for batch in (committed, committed - RETAINED // 2, committed - RETAINED + 1):
        num_rows = read_num_rows(spark, work, batch)
        if num_rows != (batch + 1) * times * ROWS_PER_BATCH:
            problems.append(f"batch {batch} of {committed} is retained, but reads {num_rows} rows")
    expired = committed - RETAINED - slack
    if expired > 0 and read_num_rows(spark, work, expired) is not None:
        problems.append(f"batch {expired} of {committed} is expired, but can be read")
    return problems


def read_num_rows(spark: SparkSession, work: Path, batch: int) -> int | None:
    """Return how many rows the state after a batch has counted, None when it cannot be read."""
    reader = spark.read.format("statestore").option("batchId", batch)
    try:
        rows = reader.load(str(work / "checkpoint")).selectExpr("sum(value.count)").collect()
    except PySparkException:
        return None
    return int(rows[0][0])


def thirds(samples: Sequence[dict[str, Any]], figure: str) -> tuple[float, float]:
    """Return the medians of a figure over the middle and the last third."""
    values = [float(figures[figure]) for figures in samples]
    third = len(values) // 3
    return median(values[third : 2 * third]), median(values[-third:])


def judge(samples: list[dict[str, Any]]) -> list[str]:
    """Return the figures that are not flat."""
    problems = []
    for figure, slack in FIGURES.items():
        if samples:
            middle, last = thirds(samples, figure)
            if last > middle * GROWTH + slack:
                problems.append(f"{figure}: grew from {middle:,.0f} to {last:,.0f}")
    return problems


def print_table(backend: str, samples: list[dict[str, Any]]) -> None:
    """Print the figures of a backend."""
    print(f"\n  {backend}, {samples[-1]['batch'] if samples else 0} batches")
    print(f"  {'':<24}{'first':>10}{'middle third':>14}{'last third':>12}{'allowed':>10}")
    for figure, slack in FIGURES.items():
        if samples:
            middle, last = thirds(samples, figure)
            first, allowed = samples[0][figure], middle * GROWTH + slack
            print(f"  {figure:<24}{first:>10,.0f}{middle:>14,.0f}{last:>12,.0f}{allowed:>10,.0f}")


if __name__ == "__main__":
    sys.exit(main())
