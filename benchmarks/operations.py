"""Operations on a checkpoint: rows a second of read, verify, savepoint, restore and convert.

    $ python -m benchmarks.operations [--keys 1000000] [--rounds 3]

An aggregation by a string key is loaded and updated in 4 state partitions, on the filesystem and
the rocksdb backend and on Spark's own providers; every operation then runs on those checkpoints in
turn, and its median is printed, with the rows of a second of the processors. Restores go from one
backend to the other, and from Spark's providers, also to other state partitions. Beside them is
what a query takes that reads the same rows from Parquet and aggregates them into a new checkpoint.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.processes import say
from benchmarks.query_runs import run_from_start, start_query, start_warm_session
from benchmarks.workloads import OUR_ROCKSDB, OURS, QueryWorkload, find_provider
from statestore import Checkpoint, Savepoint
from statestore.operations.savepoint.savepoint import SavepointForm

PARTITIONS = 4
SPARKS = {"spark-rocksdb": "rocksdb", "spark-changelog": "rocksdb-changelog", "spark-hdfs": "hdfs"}
BACKENDS = {"filesystem": OURS, "rocksdb": OUR_ROCKSDB, **SPARKS}
OTHER_PARTITIONS = 8
FORMS: tuple[SavepointForm, ...] = ("canonical", "native")


def main() -> int:
    """Measure every operation and print its line; exit status 1 when a checkpoint was not made."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000, help="rows of the state")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make", choices=list(BACKENDS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make_checkpoint(arguments.make, arguments.keys, arguments.work)
        return 0
    work = Path(tempfile.mkdtemp(prefix="statestore-operations-"))
    try:
        for name in BACKENDS:
            # A process for each, because a JVM has one provider's jars and settings.
            command = [sys.executable, "-m", "benchmarks.operations", "--make", name]
            command += ["--keys", str(arguments.keys), "--work", str(work / name)]
            if subprocess.run(command, check=False).returncode:
                say(f"no checkpoint could be made: backend={name}")
                return 1
        measure(work, arguments.keys, arguments.rounds)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


def make_checkpoint(name: str, keys: int, work: Path) -> None:
    """Run the query into `work`/checkpoint."""
    run_from_start(workload(keys), find_provider(BACKENDS[name]), work)


def measure(work: Path, keys: int, rounds: int) -> None:
    """Time every operation on the checkpoints below `work`."""

    def line(title: str, operation: Callable[[str], object]) -> None:
        """Time what is called with a new directory's path."""
        seconds, processors = [], []
        for number in range(rounds):
            new = work / f"new-{number}"
            started, used = time.perf_counter(), time.process_time()
            operation(str(new))
            seconds.append(time.perf_counter() - started)
            processors.append(time.process_time() - used)
            shutil.rmtree(new, ignore_errors=True)
        rate, of_processors = (keys / median(each) / 1e6 for each in (seconds, processors))
        say(
            f"{title:<42} {median(seconds):>8.2f} s  {rate:>6.2f} M rows/s"
            f"  {of_processors:>6.2f} M rows/CPU s"
        )

    paths = {name: str(work / name / "checkpoint") for name in BACKENDS}
    for name, other in (("filesystem", "rocksdb"), ("rocksdb", "filesystem")):
        line(f"read, {name}", partial(_read, paths[name]))
        line(f"verify fast, {name}", partial(_verify, paths[name], False))
        line(f"verify deep, {name}", partial(_verify, paths[name], True))
        for form in FORMS:
            savepoint = str(work / f"savepoint-{name}-{form}")
            line(f"savepoint {form}, {name}", partial(_save, paths[name], form))
            _save(paths[name], form, savepoint)
            line(f"restore {form}, {name} to {other}", partial(_restore, savepoint, other))
    for name in ("filesystem", "rocksdb"):
        provider, again = find_provider(BACKENDS[name]), work / f"again-{name}"
        spark = start_warm_session(workload(keys), provider, again)
        _write_rows(paths[name], again / "source" / "rows.parquet")
        line(f"aggregate again, {name}", partial(_aggregate, spark, again / "source"))
        line(f"convert, {name} to spark-rocksdb", partial(_convert, spark, paths[name]))
        spark.stop()
        for source in SPARKS:
            for number in (PARTITIONS, OTHER_PARTITIONS):
                line(
                    f"restore, {source} to {name}, {number} partitions",
                    partial(_restore_from_spark, paths[source], name, number),
                )


def workload(keys: int) -> QueryWorkload:
    """Return a load and three batches that each update a tenth of the keys."""
    return QueryWorkload("operations", keys, keys // 10, 3, 0, 0, PARTITIONS)


def _read(checkpoint: str, _: str) -> None:
    for _batch in Checkpoint(checkpoint).rows().read_batches():
        pass


def _verify(checkpoint: str, deep: bool, _: str) -> None:
    findings = Checkpoint(checkpoint).verify(deep=deep).findings
    if findings:
        raise SystemExit(f"the checkpoint is not whole: {findings}")


def _save(checkpoint: str, form: SavepointForm, new: str) -> None:
    Checkpoint(checkpoint).savepoint(new, form=form)


def _restore(savepoint: str, backend: str, new: str) -> None:
    Savepoint(savepoint).restore(new, backend=backend)


def _aggregate(spark: SparkSession, source: Path, new: str) -> None:
    start_query(spark, source, Path(new)).awaitTermination()


def _convert(spark: SparkSession, checkpoint: str, new: str) -> None:
    Checkpoint(checkpoint, spark=spark).convert(new, "spark-rocksdb")


def _restore_from_spark(checkpoint: str, backend: str, num_partitions: int, new: str) -> None:
    Checkpoint(checkpoint).restore(new, backend=backend, num_partitions=num_partitions)


def _write_rows(checkpoint: str, path: Path) -> None:
    """Write the state's keys, once each, as input of the query."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = Checkpoint(checkpoint).rows().read().flatten()
    pq.write_table(table.select(["key.k", "value.sum"]).rename_columns(["k", "v"]), path)


if __name__ == "__main__":
    sys.exit(main())
