"""Runs the queries of flights_job.py on every state backend and on Spark's own stores.

    python -m examples.store_comparison --input DIR --work DIR --jar JAR

One application runs all of them, one after the other, after a run that nobody looks at: each reads
half of the files, is stopped, and goes on from its checkpoint with the other half. Each store has a
directory of its own below --work, with its checkpoints and its result rows; what is printed last is
a JSON object with the figures of every store.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from examples.flights_job import SCHEMA, aircraft_figures, routes, start_query, start_spark
from statestore.core.providers import PROVIDERS

FILES_PER_BATCH = 2
SPARK_STATE = "org.apache.spark.sql.execution.streaming.state"
STATE_STORE = "spark.sql.streaming.stateStore"
CHANGELOG = f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled"
DELTA_BYTES = "statestoreDeltaBytes"


@dataclass(frozen=True, slots=True)
class StateStore:
    """A state store to compare.

    Attributes:
        title: Its name in the table.
        provider: Its provider class.
        conf: What else selects it.
        suffixes: Names of the files in which it keeps what a batch changed, where its progress does
            not say how many bytes those are.
    """

    title: str
    provider: str
    conf: tuple[tuple[str, str], ...] = ()
    suffixes: tuple[str, ...] = ()


ROCKSDB = f"{SPARK_STATE}.RocksDBStateStoreProvider"
STORES = (
    StateStore("HDFS-backed", f"{SPARK_STATE}.HDFSBackedStateStoreProvider", (), (".delta",)),
    StateStore("RocksDB", ROCKSDB, ((CHANGELOG, "false"),), (".zip", ".sst")),
    StateStore("RocksDB + changelog", ROCKSDB, ((CHANGELOG, "true"),), (".changelog",)),
    *(StateStore(f"statestore {backend}", PROVIDERS[backend]) for backend in PROVIDERS),
)
TITLES = [store.title for store in STORES]


def run_queries(spark: SparkSession, source: Path, work: Path) -> list[list[dict[str, Any]]]:
    """Run both queries over the files that are there; return the reports of each one's batches."""
    flights = (
        spark.readStream.schema(SCHEMA)
        .options(header=True, nullValue="NA", maxFilesPerTrigger=FILES_PER_BATCH)
        .csv(str(source))
    )
    queries = [
        start_query(frame, name, mode, work / "output", work / "checkpoint")
        for frame, name, mode in (
            (aircraft_figures(flights), "aircraft", "update"),
            (routes(flights), "routes", "append"),
        )
    ]
    for query in queries:
        query.awaitTermination()
    reports = [[json.loads(report.json) for report in query.recentProgress] for query in queries]
    return [[report for report in run if report["stateOperators"]] for run in reports]


def run_store(
    spark: SparkSession, store: StateStore, files: list[Path], work: Path
) -> dict[str, float]:
    """Run both queries on a store, stop half way, go on; return the figures of the two together."""
    session = spark.newSession()
    session.conf.set(f"{STATE_STORE}.providerClass", store.provider)
    for key, value in store.conf:
        session.conf.set(key, value)
    source = work / "input"
    source.mkdir(parents=True)
    runs = []
    for half in (files[: len(files) // 2], files[len(files) // 2 :]):
        for file in half:
            os.link(file, source / file.name)
        runs.append(run_queries(session, source, work))
    first_batches = [reports[0] for reports in runs[1]]
    last_states = [reports[-1]["stateOperators"][0] for reports in runs[1]]
    settled = [report for run in runs for reports in run for report in reports[1:]]
    return {
        "batches": sum(len(reports) for run in runs for reports in run),
        "state rows": sum(state["numRowsTotal"] for state in last_states),
        "batch, ms": median(duration_ms(settled)),
        "restart, ms": median(duration_ms(first_batches)),
        "memory, bytes": sum(state["memoryUsedBytes"] for state in last_states),
        "deltas, bytes": delta_bytes(
            store, work, [report for run in runs for reports in run for report in reports]
        ),
    }


def duration_ms(reports: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return how long each batch took."""
    return [report["durationMs"]["triggerExecution"] for report in reports]


def delta_bytes(store: StateStore, work: Path, reports: list[dict[str, Any]]) -> int:
    """Return the bytes of what the batches changed, as the store keeps them."""
    if not store.suffixes:
        metrics = (report["stateOperators"][0]["customMetrics"] for report in reports)
        return sum(values[DELTA_BYTES] for values in metrics)
    return sum(
        path.stat().st_size
        for path in (work / "checkpoint").rglob("*")
        if path.name.endswith(store.suffixes)
    )


def main() -> None:
    """Parse the command line, run every store, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--input", type=Path, required=True, help="directory of CSV files")
    parser.add_argument("--work", type=Path, required=True, help="an empty directory")
    parser.add_argument("--jar", required=True, help="shim jar")
    parser.add_argument("--stores", nargs="+", choices=TITLES, default=TITLES)
    arguments = parser.parse_args()
    files = sorted(arguments.input.iterdir())
    spark = start_spark(arguments.jar, STORES[0].provider, [])
    run_store(spark, STORES[0], files[: 4 * FILES_PER_BATCH], arguments.work / "warm-up")
    found = {
        store.title: run_store(spark, store, files, arguments.work / store.title)
        for store in STORES
        if store.title in arguments.stores
    }
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
