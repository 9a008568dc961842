"""Runs a query on schedules that load state again and again; fails unless its cost stays flat.

    $ python -m benchmarks.schedules [--batches 500] [--backends filesystem,rocksdb]

| schedule | what it does | loads |
|---|---|---|
| started-anew | a job for each batch, `Trigger.AvailableNow` | every batch, by a new run |
| unloaded | `stateStore.unloadOnCommit`: a store is closed with its commit | every batch |
| two-actions | a `foreachBatch` of two actions, each runs the tasks | as Spark repeats them |
| moved | a busy task keeps pushing the state partition to the other executor | every move |

Judged are the files of the store directory and the files that a load reads: the most of the last
tenth of the batches is at most 1.3 times, and 8 more than, the most of the second tenth. Printed
beside them is how long a batch takes, which machines that do other work make noisy; `started-anew`
has the start of the query in it. At the end the query is started once more, and must have every
row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_of

import statestore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEDULES = ("started-anew", "unloaded", "two-actions", "moved")
BACKENDS = ("filesystem", "rocksdb")
ROWS_PER_BATCH = 200
NUM_KEYS = 1_000
RETAINED = 10
MOST_GROWTH, SLACK = 1.3, 8
STALL_S = 300
BUSY_S = 0.3


def main() -> int:
    """Run every schedule on every backend; exit status 1 when one is not flat."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--batches", type=int, default=500, help="batches of each schedule")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="separated by commas")
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="separated by commas")
    parser.add_argument("--application", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.application:
        schedule, backend, work = arguments.application
        print(json.dumps(run(schedule, backend, Path(work), arguments.batches)))
        return 0
    problems: list[str] = []
    print("| schedule, backend | files of the store | files a load reads | a batch, ms |")
    print("|---|---:|---:|---:|")
    for schedule in arguments.schedules.split(","):
        for backend in arguments.backends.split(","):
            samples = _run_elsewhere(schedule, backend, arguments.batches)
            problems += _report(f"{schedule}, {backend}", samples)
    print("\n".join(f"FAIL {problem}" for problem in problems))
    return 1 if problems else 0


def _run_elsewhere(schedule: str, backend: str, batches: int) -> list[dict[str, float]]:
    """Run a schedule in a process of its own; return its samples."""
    with tempfile.TemporaryDirectory(prefix="statestore-schedules-") as work:
        command = [sys.executable, "-m", "benchmarks.schedules", "--batches", str(batches)]
        command += ["--application", schedule, backend, work]
        log = Path(work, "application.log")
        with log.open("wb") as stderr:
            ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, check=False)
        if ended.returncode:
            raise RuntimeError(f"{schedule}, {backend}: {log.read_text(errors='replace')[-4000:]}")
        return list(json.loads(ended.stdout.decode().splitlines()[-1]))


def _report(name: str, samples: list[dict[str, float]]) -> list[str]:
    """Print a line of early -> late figures; return those that grew."""
    tenth = len(samples) // 10
    early, late = samples[tenth : 2 * tenth], samples[-tenth:]
    problems, cells = [], []
    for figure in ("files", "read"):
        before, after = (max(sample[figure] for sample in part) for part in (early, late))
        cells.append(f"{before:.0f} -> {after:.0f}")
        if after > before * MOST_GROWTH and after > before + SLACK:
            problems.append(f"{name}: {figure} grew from {before:.0f} to {after:.0f}")
    before, after = (median(sample["ms"] for sample in part) for part in (early, late))
    print(f"| {name} | {' | '.join(cells)} | {before:.0f} -> {after:.0f} |", flush=True)
    return problems


def run(schedule: str, backend: str, work: Path, batches: int) -> list[dict[str, float]]:
    """Run a schedule in this process; return for each batch `files`, `read` and `ms`.

    Raises:
        RuntimeError: The query stalls, or rows are missing at its end.
    """
    spark = _start_session(schedule, backend, work)
    if schedule == "moved":
        threading.Thread(target=_keep_busy, args=(spark,), daemon=True).start()
    store = work / "checkpoint" / "state" / "0" / "0"
    samples: list[dict[str, float]] = []
    query: Any = None
    started = time.monotonic()
    while len(samples) < batches:
        if query is None:
            started = time.monotonic()
            query = _start(spark, schedule, work)
        if schedule == "started-anew":
            query.awaitTermination(STALL_S)
        progress = _await_batch(query, len(samples))
        now = time.monotonic()
        operator = progress["stateOperators"][0]
        read = operator["customMetrics"]["statestoreLoadedFiles"]
        samples.append(
            {"files": len(list(store.iterdir())), "read": read, "ms": (now - started) * 1000}
        )
        started = now
        if schedule == "started-anew":
            query = None
    if query is not None:
        query.stop()
    _check_rows(spark, work)
    spark.stop()
    return samples


def _start_session(schedule: str, backend: str, work: Path) -> SparkSession:
    is_moved = schedule == "moved"
    conf: dict[str, str | int | float | bool | None] = {
        "spark.master": "local-cluster[2,1,1024]" if is_moved else "local[2]",
        "spark.deploy.maxExecutorRetries": -1,  # a machine that does other work may starve them
        "spark.local.dir": str(work / "scratch"),
        "spark.locality.wait": "0s",
        "spark.pyspark.python": sys.executable,
        "spark.sql.shuffle.partitions": 1,
        "spark.sql.streaming.stateStore.unloadOnCommit": str(schedule == "unloaded").lower(),
        "spark.ui.enabled": "false",
    }
    builder = statestore.configure(
        SparkSession.builder.appName(schedule).config(map=conf),
        backend,
        min_versions_to_retain=RETAINED,
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _start(spark: SparkSession, schedule: str, work: Path) -> Any:
    rows = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=ROWS_PER_BATCH, numPartitions=1
    )
    keys = rows.load().selectExpr(f"value * 7919 % {NUM_KEYS} AS k", "value AS v")
    sums = keys.groupBy("k").agg(count("*").alias("count"), sum_of("v").alias("sum"))
    writer = sums.writeStream.outputMode("update").option(
        "checkpointLocation", str(work / "checkpoint")
    )
    is_twice = schedule == "two-actions"
    writer = writer.foreachBatch(_act_twice) if is_twice else writer.format("noop")
    if schedule == "started-anew":
        writer = writer.trigger(availableNow=True)
    return writer.start()


def _act_twice(frame: DataFrame, _batch: int) -> None:
    frame.count()
    frame.write.format("noop").mode("overwrite").save()


def _keep_busy(spark: SparkSession) -> None:
    """Have a task on one executor or the other nearly all the time."""
    while True:
        try:
            spark.sparkContext.parallelize([BUSY_S], 1).foreach(time.sleep)
        except Exception:  # noqa: BLE001 - the application has ended
            return


def _await_batch(query: Any, batch: int) -> Any:
    """Return the progress of a batch, or of a later one.

    Raises:
        RuntimeError: It does not come.
    """
    deadline = time.monotonic() + STALL_S
    while time.monotonic() < deadline:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] >= batch and progress["stateOperators"]:
            return progress
        if query.exception() is not None:
            break
        time.sleep(0.01)
    raise RuntimeError(f"the query does not get on: {query.exception() or query.status}")


def _check_rows(spark: SparkSession, work: Path) -> None:

    newest = max(int(path.name) for path in (work / "checkpoint" / "commits").glob("[0-9]*"))
    rows = spark.read.format("statestore").load(str(work / "checkpoint"))
    counted = rows.selectExpr("sum(value.count)").collect()[0][0]
    wanted = (newest + 1) * ROWS_PER_BATCH
    if counted != wanted:
        raise RuntimeError(f"rows are missing: counted={counted}, expected={wanted}")


if __name__ == "__main__":
    sys.exit(main())
