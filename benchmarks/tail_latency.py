"""How long the slowest batches take: hundreds of batches with snapshots and merges beside them.

    $ python -m benchmarks.tail_latency [--batches 500] [--providers filesystem,rocksdb-backend]

Every provider has a JVM of its own (local[2], 4 GiB heap). It loads 500,000 keys; then each batch
updates 10,000 random ones in 4 state partitions. The first batches are left out: the JVM compiles
in them. A line tells the median, the 99th percentile and the longest batch, and how much longer
the median batch is while a snapshot (of rocksdb: a merge) is under way.
Below it stand the slowest batches, each with what Spark says it spent its time on.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.datasets import input_files, link_files
from benchmarks.processes import run_for_each, say
from benchmarks.query_runs import start_query, start_warm_session, summarise_progress
from benchmarks.workloads import QueryWorkload, find_provider

DEFAULT_PROVIDERS = "hdfs,rocksdb,rocksdb-changelog,filesystem,rocksdb-backend"
KEYS, UPDATED_KEYS, PARTITIONS = 500_000, 10_000, 4
WARM_UP_BATCHES = 30
SLOWEST = 5
OWN_TIMES = ("addBatch", "queryPlanning", "walCommit", "commitOffsets", "latestOffset")


def main() -> int:
    """Run every provider and print its lines; exit status 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--batches", type=int, default=500, help="update batches that count")
    parser.add_argument("--providers", default=DEFAULT_PROVIDERS)
    parser.add_argument("--application", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.application:
        measure(arguments.application, arguments.batches)
        return 0
    say(f"{'':26} {'median':>9} {'p99':>9} {'longest':>9} {'p99 / median':>13}")
    return run_for_each("tail_latency", arguments.providers, ["--batches", str(arguments.batches)])


def measure(name: str, num_batches: int) -> None:
    """Run the batches of one provider in this process and print its lines."""
    provider = find_provider(name)
    updates = WARM_UP_BATCHES + num_batches
    workload = QueryWorkload("tail", KEYS, UPDATED_KEYS, updates, WARM_UP_BATCHES, 0, PARTITIONS)
    work = Path(tempfile.mkdtemp(prefix="statestore-tail-"))
    try:
        spark = start_warm_session(workload, provider, work)
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", updates + 10)
        link_files(input_files(workload), work / "source")
        query = start_query(spark, work / "source", work / "checkpoint", workload)
        query.awaitTermination()
        batches = [summarise_progress(json.loads(one.json)) for one in query.recentProgress]
        spark.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report(provider.title, batches[1 + WARM_UP_BATCHES :])


def report(title: str, batches: Sequence[dict[str, Any]]) -> None:
    """Print the line of a provider and its slowest batches."""
    times = [float(batch["batch_ms"]) for batch in batches]
    p99 = percentile(times, 99)
    say(
        f"{title:26} {median(times):>6,.0f} ms {p99:>6,.0f} ms {max(times):>6,.0f} ms"
        f" {p99 / median(times):>13.2f}"
    )
    taken = [batch["custom_metrics"].get("statestoreSnapshots", 0) for batch in batches]
    # A commit tells of the snapshots that ended before it: they ran beside it or the one before.
    ended = [later > earlier for earlier, later in pairwise(taken)]
    beside = [
        time for time, *ends in zip(times[1:], ended, [*ended[1:], False], strict=True) if any(ends)
    ]
    if beside:
        share = median(beside) / median(times)
        say(f"{'':28}with a snapshot: {len(beside)} batches, median {share:.2f} of all")
    for batch in sorted(batches, key=lambda batch: -batch["batch_ms"])[:SLOWEST]:
        spent = batch["durations_ms"]
        parts = ", ".join(f"{part} {spent[part]:,.0f}" for part in OWN_TIMES if spent.get(part))
        say(f"{'':28}batch {batch['batch']}: {batch['batch_ms']:,} ms ({parts};"
            f" commits {batch['commit_ms']:,})")  # fmt: skip


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest of the values that so many percent of them do not exceed.

    Args:
        values: At least one.
        percent: 1 to 100.
    """
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


if __name__ == "__main__":
    sys.exit(main())
