"""Nexmark on every store, or on yours.

    $ ./build.sh nexmark
    $ python -m benchmarks.nexmark --provider org.example.MyStateStoreProvider --jars my.jar

Every query runs on every store in a JVM of its own (local[2], 4 GiB heap, 4 state partitions): over
files of 100,000 events, one a batch, as fast as it can, into a sink that drops the rows. One in ten
files warms up. Half way the query is started anew from its checkpoint. All rows that come out are
counted and hashed, and compared with what DuckDB computes over the same files.

Each result is added to `nexmark.jsonl` of `build/nexmark/EVENTS`, or of another folder, when it is
there. A run leaves out what the file has: one that was interrupted goes on where it stopped. A run
that failed is a result, with its cause; to repeat it, delete its line. `nexmark.md` and
`nexmark.png` are made of that file, and `--draw` does no more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyspark

from benchmarks.growth import find_cause, say
from benchmarks.nexmark.expected import expect
from benchmarks.nexmark.generator import event_files
from benchmarks.nexmark.queries import QUERIES, Query, find_query
from benchmarks.nexmark.report import Run, plot_runs, read_runs, render
from benchmarks.nexmark.run import Measured, open_session, run_query
from benchmarks.nexmark.stores import FLOOR, GIVEN, STORES, find_stores, given_store
from benchmarks.processes import own_results, run_module
from benchmarks.sessions import benchmark_jar
from benchmarks.workloads import Provider

EVENTS, EVENTS_PER_FILE = 5_000_000, 100_000


def main() -> int:
    """Measure what is not there yet, then draw; exit status 1 when a run of these failed."""
    arguments = _parse()
    files = event_files(arguments.events, arguments.files)
    queries = [find_query(name) for name in arguments.queries.split(",")]
    given = given_store(arguments.provider, arguments.conf) if arguments.provider else None
    stores = find_stores(arguments.stores.split(","), given)
    if arguments.application:
        say(f"\n{json.dumps(_measure(arguments, queries, stores[0], files))}")
        return 0
    results: Path = arguments.results or own_results("nexmark", str(arguments.events))
    results.mkdir(parents=True, exist_ok=True)
    kept = results / "nexmark.jsonl"
    runs = read_runs(kept) if kept.exists() else []
    if not arguments.draw and any(run.events != arguments.events for run in runs):
        say(f"{kept} has runs of other sizes. To fix: --results")
        return 2
    num_failed = 0
    if not arguments.draw:
        benchmark_jar()  # compiled once, and not in a run
        for run in _run_missing(arguments, queries, stores, runs):
            with kept.open("a") as lines:
                lines.write(json.dumps(asdict(run)) + "\n")
            runs.append(run)
            num_failed += run.failure is not None
            say(f"round {run.round}, {run.query} on {run.title}: {run.outcome}")
    if not runs:
        say(f"nothing was measured: {kept} has no lines")
        return 2
    (results / "nexmark.md").write_text(render(runs))
    plot_runs(runs, results / "nexmark.png")
    say(f"{results / 'nexmark.md'}, nexmark.png")
    return 1 if num_failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--files", type=int, help="one is a batch; default: 100,000 events in each")
    parser.add_argument("--queries", default=",".join(query.name for query in QUERIES))
    parser.add_argument("--stores", help="IDs, separated by commas; default: all, or yours")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each query on each store")
    parser.add_argument("--provider", help="class of a state store provider of yours")
    parser.add_argument("--conf", action="append", default=[], help="key=value, of its session")
    parser.add_argument("--jars", default="", help="with its class, separated by commas")
    parser.add_argument("--results", type=Path, help="folder of the three files")
    parser.add_argument("--draw", action="store_true", help="draw what was measured, no more")
    parser.add_argument("--application", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.files = arguments.files or max(1, arguments.events // EVENTS_PER_FILE)
    if arguments.files < 3 or arguments.events % arguments.files:
        parser.error("there must be 3 files at least, with as many events in each")
    if arguments.stores is None:
        alone = [GIVEN, FLOOR.id]
        known = alone if arguments.provider else [store.id for store in STORES]
        arguments.stores = ",".join(known)
    return arguments


def _run_missing(
    arguments: argparse.Namespace, queries: list[Query], stores: list[Provider], runs: list[Run]
) -> Iterator[Run]:
    """Run what has no line yet, in turn, and yield each result when it is there.

    The order of the stores is reversed with every other query, so that a machine that gets slower
    meanwhile treats them alike.
    """
    done = {(run.round, run.query, run.store) for run in runs}
    for number in range(arguments.rounds):
        for place, query in enumerate(queries):
            for store in stores[:: -1 if (number + place) % 2 else 1]:
                if (number, query.name, store.id) in done:
                    continue
                if not query.processor or store.has_families:
                    yield _run_elsewhere(arguments, number, query, store)


def _run_elsewhere(
    arguments: argparse.Namespace, number: int, query: Query, store: Provider
) -> Run:
    """Measure in a process of its own, and so in a JVM of its own."""
    given = ["--provider", arguments.provider] if arguments.provider else []
    given += [f"--conf={one}" for one in arguments.conf]
    given += [f"--events={arguments.events}", f"--files={arguments.files}", "--application"]
    given += [f"--queries={query.name}", f"--stores={store.id}", f"--jars={arguments.jars}"]
    with tempfile.TemporaryDirectory(
        prefix="statestore-nexmark-", ignore_cleanup_errors=True
    ) as work:
        done = run_module("nexmark", [*given, f"--work={work}"])
    cause = f": {find_cause(done.stderr)}" if done.stderr else ""
    return Run(
        round=number,
        query=query.name,
        store=store.id,
        title=store.title,
        events=arguments.events,
        files=arguments.files,
        cores=os.cpu_count() or 0,
        spark=pyspark.__version__,
        measured=None if done.failure is not None else Measured.of(done.result[0]),
        failure=None if done.failure is None else done.failure + cause,
    )


def _measure(
    arguments: argparse.Namespace, queries: list[Query], store: Provider, files: list[Path]
) -> list[dict[str, object]]:
    """Run queries in this process; return the fields of a `Measured` for each.

    Raises:
        RuntimeError: The rows are not those of the batch computation.
    """
    spark = open_session(store, [Path(jar) for jar in arguments.jars.split(",") if jar])
    found = []
    for query in queries:
        measured = run_query(spark, query, files, arguments.events, arguments.work / query.name)
        wanted = expect(spark, query, files, arguments.events)
        if measured.check != wanted:
            raise RuntimeError(
                f"rows differ: query={query.name}, streamed={measured.check}, batch={wanted}"
            )
        found.append(asdict(measured))
    spark.stop()
    return found


if __name__ == "__main__":
    sys.exit(main())
