"""Timers, values that expire, and the change feed of a million keys.

    $ python -m benchmarks.million_keys [--keys 1000000] [--providers filesystem,rocksdb-backend]

Every run has a JVM of its own (local[2], 4 GiB heap) and 4 state partitions. `transformWithState`
loads the keys, with a timer or a value that expires for each; then each batch updates a tenth of
them. For the change feed an aggregation does the same, and Spark's state reader is asked for all
that its batches wrote, three times. A line tells the median and, of batches, the CPU of all
processes. A feed with another number of rows than the batches wrote is an error.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.processes import run_for_each, say
from benchmarks.query_runs import run_from_start
from benchmarks.sessions import start_session
from benchmarks.workloads import Provider, QueryWorkload, find_provider

DEFAULT_PROVIDERS = "rocksdb-changelog,filesystem,rocksdb-backend"
WORKLOADS = ("timers", "ttl", "feed")
BATCHES, WARM_UP_BATCHES, PARTITIONS = 8, 3, 4
READS = 3


def main() -> int:
    """Run every provider and print its lines; exit status 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--providers", default=DEFAULT_PROVIDERS)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--application", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    workloads = arguments.workloads.split(",")
    if arguments.application:
        measure(find_provider(arguments.application), workloads[0], arguments.keys)
        return 0
    say(f"{'':32} {'median':>9} {'CPU':>9}")
    failed = 0
    for name in workloads:
        given = ["--keys", str(arguments.keys), "--workloads", name]
        failed |= run_for_each("million_keys", arguments.providers, given)
    return failed


def measure(provider: Provider, name: str, keys: int) -> None:
    """Run a workload of one provider in this process and print its line."""
    variable = None if name == "feed" else name
    workload = QueryWorkload(
        name, keys, keys // 10, BATCHES, WARM_UP_BATCHES, 0, PARTITIONS, variable=variable
    )
    work = Path(tempfile.mkdtemp(prefix="statestore-keys-"))
    try:
        batches = run_from_start(workload, provider, work)["batches"]
        if variable:
            warm = batches[1 + WARM_UP_BATCHES :]
            cpu = median(batch["cpu_ms"] for batch in warm if batch["cpu_ms"] is not None)
            took = median(batch["batch_ms"] for batch in warm)
            say(f"{provider.title:25} {name:6} {took:>6,.0f} ms {cpu:>6,.0f} ms")
        else:
            written = keys + BATCHES * workload.updates_per_batch
            took = read_changes(provider, work / "checkpoint", written)
            say(f"{provider.title:25} {name:6} {took:>6,.0f} ms")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def read_changes(provider: Provider, checkpoint: Path, rows: int) -> float:
    """Return the median time of reading all changes of an aggregation's checkpoint, in ms.

    Raises:
        ValueError: The feed has another number of changes than `rows`.
    """
    spark = start_session(provider)
    feed = (
        spark.read.format("statestore")
        .option("readChangeFeed", True)
        .option("changeStartBatchId", 0)
        .load(str(checkpoint))
        .selectExpr("change_type", "key.k", "value")
    )
    times = []
    for _ in range(1 + READS):
        started = time.perf_counter()
        found = feed.where("length(k) > 0 and change_type = 'update'").count()
        times.append((time.perf_counter() - started) * 1000)
        if found != rows:
            raise ValueError(f"the change feed has other rows: rows={found:,}, expected={rows:,}")
    spark.stop()
    return median(times[1:])


if __name__ == "__main__":
    sys.exit(main())
