"""The command of a benchmark that compares stores: measures what is missing, writes its page.

Every query runs on every store in a JVM of its own (local[2], 4 GiB heap, 4 state partitions): over
files of which each is a batch, as fast as it can, into a sink that drops the rows. One in ten
files warms up. Half way the query is started anew from a copy of its checkpoint. All rows that come
out are counted and hashed, and compared with what must come out.

Each result is added to `NAME.jsonl` of `build/NAME/ROWS`, or of another folder, when it is there. A
store of yours has a folder of its own, by its class, settings and jars. A run leaves out what the
file has: one that was interrupted goes on where it stopped. A run that failed is a result, with its
cause, until it is done again, by the next command. `NAME.md` and `NAME.png` are made
of that file, and `--draw` does no more than that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyspark

from benchmarks.comparison.benchmark import Benchmark, Q
from benchmarks.comparison.report import Run, plot_runs, read_runs, render, write_runs
from benchmarks.comparison.run import Measured, open_session, run_query
from benchmarks.comparison.stores import FLOOR, GIVEN, STORES, find_stores, given_store
from benchmarks.growth import find_cause
from benchmarks.processes import own_results, run_module, say
from benchmarks.sessions import benchmark_jar
from benchmarks.workloads import Provider


def run_command(benchmark: Benchmark[Q]) -> int:
    """Measure what is not there yet, then draw; return 1 when a run of these failed."""
    arguments = _parse(benchmark)
    name, rows = benchmark.name, benchmark.rows
    queries = [benchmark.find_query(one) for one in arguments.queries.split(",")]
    given = given_store(arguments.provider, arguments.conf) if arguments.provider else None
    stores = find_stores(arguments.stores.split(","), given)
    if arguments.application:
        say(f"\n{json.dumps(_measure(arguments, benchmark, queries, stores[0]))}")
        return 0
    results: Path = arguments.results or own_results(
        name, f"{arguments.rows}{mark_of_given(arguments)}"
    )
    results.mkdir(parents=True, exist_ok=True)
    kept = results / f"{name}.jsonl"
    runs = read_runs(kept) if kept.exists() else []
    if not arguments.draw and any(run.events != arguments.rows for run in runs):
        say(f"{kept} has runs with other numbers of {rows}. To fix: --results")
        return 2
    num_failed = 0
    if not arguments.draw:
        benchmark_jar()  # compiled once, and not in a run
        benchmark.input_files(arguments.rows, arguments.files)
        for run in _run_missing(arguments, benchmark, queries, stores, runs):
            # Another command may have written to it meanwhile.
            known = read_runs(kept) if kept.exists() else []
            runs = [one for one in known if one.place != run.place] + [run]
            write_runs(kept, runs)
            num_failed += run.failure is not None
            say(f"round {run.round}, {run.query} on {run.title}: {run.outcome}")
    if not runs:
        say(f"nothing was measured: {kept} has no lines")
        return 2
    (results / f"{name}.md").write_text(render(benchmark, runs))
    plot_runs(benchmark, runs, results / f"{name}.png")
    say(f"{results / name}.md, {name}.png")
    return 1 if num_failed else 0


def _parse(benchmark: Benchmark[Q]) -> argparse.Namespace:
    rows, choice, size = benchmark.rows, benchmark.choice, benchmark.rows_per_file
    parser = argparse.ArgumentParser(description=f"{benchmark.page.title} on every store, or yours")
    parser.add_argument(f"--{rows}", dest="rows", type=int, default=benchmark.num_rows)
    parser.add_argument("--files", type=int, help=f"one is a batch; default: {size:,} {rows} each")
    queries = ",".join(benchmark.queries)
    parser.add_argument(f"--{choice}", dest="queries", default=queries, help=f"default: {queries}")
    parser.add_argument("--stores", help="IDs, separated by commas; default: all, or yours")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each on each store")
    parser.add_argument("--provider", help="class of a state store provider of yours")
    parser.add_argument("--conf", action="append", default=[], help="key=value, of its session")
    parser.add_argument("--jars", default="", help="with its class, separated by commas")
    parser.add_argument("--results", type=Path, help="folder of the three files")
    parser.add_argument("--draw", action="store_true", help="draw what was measured, no more")
    parser.add_argument("--application", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.files = arguments.files or max(1, arguments.rows // size)
    if arguments.files < 3 or arguments.rows % arguments.files:
        found = f"{rows}={arguments.rows} in files={arguments.files}"
        parser.error(f"{found}: there must be 3 files at least, with as many {rows} in each")
    if missing := [jar for jar in arguments.jars.split(",") if jar and not Path(jar).is_file()]:
        parser.error(f"no such file: jars={missing}")
    if arguments.stores is None:
        alone = [GIVEN, FLOOR.id]
        known = alone if arguments.provider else [store.id for store in STORES]
        arguments.stores = ",".join(known)
    return arguments


def mark_of_given(arguments: argparse.Namespace) -> str:
    """Return what a folder of results has in its name for a store that is given."""
    if not arguments.provider:
        return ""
    told = hashlib.sha256(json.dumps([arguments.provider, sorted(arguments.conf)]).encode())
    for jar in filter(None, arguments.jars.split(",")):
        told.update(Path(jar).read_bytes())
    return f"-{arguments.provider.rpartition('.')[2]}-{told.hexdigest()[:8]}"


def _run_missing(
    arguments: argparse.Namespace,
    benchmark: Benchmark[Q],
    queries: list[Q],
    stores: list[Provider],
    runs: list[Run],
) -> Iterator[Run]:
    """Run what has no line yet, in turn, and yield each result when it is there.

    The order of the stores is reversed with every other query, so that a machine that gets slower
    meanwhile treats them alike.
    """
    done = {run.place for run in runs if run.failure is None}
    for number in range(arguments.rounds):
        for place, query in enumerate(queries):
            for store in stores[:: -1 if (number + place) % 2 else 1]:
                if (number, query.name, store.id) in done:
                    continue
                if not query.needs_families or store.has_families:
                    yield _run_elsewhere(arguments, benchmark, number, query, store)


def _run_elsewhere(
    arguments: argparse.Namespace, benchmark: Benchmark[Q], number: int, query: Q, store: Provider
) -> Run:
    """Measure in a process of its own, and so in a JVM of its own."""
    given = ["--provider", arguments.provider] if arguments.provider else []
    given += [f"--conf={one}" for one in arguments.conf]
    given += [f"--{benchmark.rows}={arguments.rows}", f"--files={arguments.files}"]
    given += [f"--{benchmark.choice}={query.name}", f"--stores={store.id}"]
    given += ["--application", f"--jars={arguments.jars}"]
    with tempfile.TemporaryDirectory(
        prefix=f"statestore-{benchmark.name}-", ignore_cleanup_errors=True
    ) as work:
        done = run_module(benchmark.name, [*given, f"--work={work}"])
    cause = f": {find_cause(done.stderr)}" if done.stderr else ""
    return Run(
        round=number,
        query=query.name,
        store=store.id,
        title=store.title,
        events=arguments.rows,
        files=arguments.files,
        cores=os.cpu_count() or 0,
        spark=pyspark.__version__,
        measured=None if done.failure is not None else Measured.of(done.result[0]),
        failure=None if done.failure is None else done.failure + cause,
    )


def _measure(
    arguments: argparse.Namespace, benchmark: Benchmark[Q], queries: list[Q], store: Provider
) -> list[dict[str, object]]:
    """Run queries in this process; return the fields of a `Measured` for each.

    Raises:
        RuntimeError: The rows are not those that must come out, or the state has more or fewer.
    """
    files = benchmark.input_files(arguments.rows, arguments.files)
    spark = open_session(store, [Path(jar) for jar in arguments.jars.split(",") if jar])
    found = []
    for query in queries:
        work = arguments.work / query.name
        measured = run_query(
            spark, benchmark, query, files, arguments.rows, work, is_durable=store.is_durable
        )
        wanted = benchmark.expect(spark, query, files, arguments.rows)
        if measured.check != wanted.check:
            raise RuntimeError(
                f"rows differ: query={query.name}, streamed={measured.check}, batch={wanted.check}"
            )
        if store.counts_rows and wanted.state_rows not in (None, measured.state_rows):
            raise RuntimeError(
                f"state rows differ: query={query.name}, streamed={measured.state_rows},"
                f" batch={wanted.state_rows}"
            )
        found.append(asdict(measured))
    spark.stop()
    return found
