"""Rescaling: 4 to 8 state partitions, beside Spark's own repartition on its RocksDB store.

    $ python -m benchmarks.rescaling [--keys 100000,1000000] [--rounds 3]

An aggregation by a string key is loaded and updated in 4 state partitions; its checkpoint is copied
for each round and rescaled. Over this package's store the query then restarts on the copy, and on
one that was not rescaled, and the first batch of both is timed: it loads the state and updates a
tenth of the keys. So is that of a query that had 8 state partitions from its first batch on, which
tells what the rescale costs from what 8 state partitions cost. Every provider has a process of its
own, with a JVM warmed by another query.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.datasets import input_files, link_files
from benchmarks.processes import run_module, say
from benchmarks.query_runs import run_from_start, start_query, start_warm_session
from benchmarks.workloads import OURS, Provider, QueryWorkload, find_provider
from statestore import Checkpoint

PARTITIONS, RESCALED_PARTITIONS = 4, 8
SPARKS = "rocksdb"
MOST_SECONDS = 7200
"""For ten million keys."""
PROVIDERS = (OURS, SPARKS)


def main() -> int:
    """Measure every size on both providers and print the figures; exit status 1 on a failure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", default="100000,1000000", help="sizes, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--providers", default=",".join(PROVIDERS))
    parser.add_argument("--application", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.application:
        provider = find_provider(arguments.application)
        say(json.dumps(measure(provider, int(arguments.keys), arguments.rounds)))
        return 0
    figures: dict[tuple[str, int], dict[str, float]] = {}
    for keys in map(int, arguments.keys.split(",")):
        for provider_id in arguments.providers.split(","):
            given = ["--keys", str(keys), "--rounds", str(arguments.rounds)]
            given += ["--application", provider_id]
            done = run_module("rescaling", given, timeout_s=MOST_SECONDS)
            if done.failure:
                say(f"{provider_id} with {keys:,} keys failed: {done.failure}: {done.stderr}")
                return 1
            figures[provider_id, keys] = done.result
            report(provider_id, keys, figures[provider_id, keys])
    compare(figures)
    return 0


def measure(provider: Provider, keys: int, rounds: int) -> dict[str, float]:
    """Return medians in ms: `rescale`; of ours also a `first_batch` of each of three kinds.

    They are `first_batch` in 4 state partitions, `first_batch_rescaled` from those to 8, and
    `first_batch_of_as_many` in 8 all along.

    Args:
        provider: Whose state store.
        keys: Rows of the state.
        rounds: How often each is measured.
    """
    workload = QueryWorkload("rescale", keys, keys // 10, 3, 0, 1, PARTITIONS)
    work = Path(tempfile.mkdtemp(prefix="statestore-rescaling-"))
    as_many = work / "as-many"
    try:
        run_from_start(workload, provider, work)
        if provider.is_ours:
            as_many.mkdir()
            run_from_start(replace(workload, partitions=RESCALED_PARTITIONS), provider, as_many)
        spark = start_warm_session(workload, provider, work)
        rescale = by_spark(spark) if provider.id == SPARKS else by_statestore
        times: dict[str, list[float]] = defaultdict(list)
        for number in range(rounds):
            plain, rescaled = work / f"plain-{number}", work / f"rescaled-{number}"
            for copy in (plain, rescaled):
                shutil.copytree(work / "checkpoint", copy)
            if provider.is_ours:
                shutil.copytree(as_many / "checkpoint", as_many / str(number))
            os.sync()  # not the copies are timed
            started = time.perf_counter()
            rescale(str(rescaled))
            times["rescale"].append((time.perf_counter() - started) * 1000)
        if provider.is_ours:
            for directory in (work, as_many):
                files = input_files(workload)[1 + workload.update_batches :]
                link_files(files, directory / "source")
            # In turn, so that a machine that gets slower or faster treats all alike.
            for number in range(rounds):
                for key, checkpoint in (
                    ("first_batch", work / f"plain-{number}"),
                    ("first_batch_rescaled", work / f"rescaled-{number}"),
                    ("first_batch_of_as_many", as_many / str(number)),
                ):
                    source = checkpoint.parent / "source"
                    times[key].append(first_batch_ms(spark, source, checkpoint))
        spark.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {key: median(values) for key, values in times.items()}


def by_statestore(checkpoint: str) -> None:
    """Rescale with this package."""
    Checkpoint(checkpoint).rescale(RESCALED_PARTITIONS)


def by_spark(spark: SparkSession) -> Callable[[str], None]:
    """Return Spark's own repartition."""
    manager: Any = spark._streamingCheckpointManager
    return lambda checkpoint: manager.repartition(checkpoint, RESCALED_PARTITIONS)


def first_batch_ms(spark: SparkSession, source: Path, checkpoint: Path) -> float:
    """Restart the query on one more file and return the ms of its only batch."""
    query = start_query(spark, source, checkpoint)
    query.awaitTermination()
    # Spark would keep its state loaded, for a restart, beside that of the next one.
    jvm: Any = spark._jvm
    stores = getattr(jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$")
    getattr(stores, "MODULE$").stop()
    (progress,) = (p for p in query.recentProgress if p["numInputRows"])
    return float(progress["durationMs"]["triggerExecution"])


def report(provider_id: str, keys: int, figures: dict[str, float]) -> None:
    """Print a line."""
    text = f"{find_provider(provider_id).title:>12}  {keys:>10,} keys"
    text += f"  rescale {figures['rescale']:>9,.1f} ms"
    if "first_batch" in figures:
        plain, rescaled = figures["first_batch"], figures["first_batch_rescaled"]
        as_many = figures["first_batch_of_as_many"]
        text += f"  first batch in {PARTITIONS} state partitions {plain:>7,.0f} ms"
        text += f", after a rescale to {RESCALED_PARTITIONS} {rescaled:>7,.0f} ms"
        text += f" ({rescaled / plain:.2f}x), in {RESCALED_PARTITIONS} all along"
        text += f" {as_many:>7,.0f} ms ({rescaled / as_many:.2f}x)"
    say(text)


def compare(figures: dict[tuple[str, int], dict[str, float]]) -> None:
    """Print how many times faster the rescale is than Spark's, and how it grows with the state."""
    sizes = sorted({keys for _, keys in figures})
    for keys in sizes:
        if (OURS, keys) in figures and (SPARKS, keys) in figures:
            ratio = figures[SPARKS, keys]["rescale"] / figures[OURS, keys]["rescale"]
            say(f"{keys:,} keys: {ratio:,.0f} times faster than Spark's repartition")
    ours = [figures[OURS, keys]["rescale"] for keys in sizes if (OURS, keys) in figures]
    if len(ours) > 1:
        say(f"from {sizes[0]:,} to {sizes[-1]:,} keys: {ours[-1] / ours[0]:.2f} times as long")


if __name__ == "__main__":
    sys.exit(main())
