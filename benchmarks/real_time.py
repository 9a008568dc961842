"""Latency of queries in real-time mode, from Kafka to Kafka, beside Spark's RocksDB.

    $ ./build.sh bench-real-time [--seconds 300] [--rates 1000,5000] [--rounds 2] [--quick]

Needs the jars of Kafka, which Maven Central has. A broker is started, and for each run an
application of its own (4 slots, 4 GiB heap): a count by key, as an aggregation and as a
`transformWithState`, between two topics, under a constant load of random keys. The time of a row is
from the producer's timestamp to the broker's, of the record that it was told by. A run whose
topic lacks a row, or has one twice, fails.

In each round the stores run one after the other, in the next round in the reverse order. Each run
is a line of `real-time.jsonl` in `build/real-time/full`, or in another folder; `real-time.md` is
made of all its lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import pyspark

from benchmarks.growth import find_cause
from benchmarks.processes import own_results, run_module, say
from benchmarks.real_time_run import Load, measure
from benchmarks.sessions import benchmark_jar, load_jars
from benchmarks.workloads import find_provider
from examples.wikipedia_edits.broker import Broker

COMPARED = "rocksdb-changelog,filesystem,rocksdb-backend"
QUERIES = {"aggregation": "`groupBy` + `count`", "variable": "`transformWithState`"}
BUSY = 0.1
"""Share of the machine that others may have had, for a run that says something of latency."""


def main() -> int:
    """Measure, and write the page; exit status 1 when a run failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--providers", default=COMPARED, help="IDs, separated by commas")
    parser.add_argument("--queries", default=",".join(QUERIES), help="separated by commas")
    parser.add_argument("--rates", default="1000,5000", help="rows a second, by commas")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--warm-up", type=int, default=60, help="seconds that do not count")
    parser.add_argument("--seconds", type=int, default=300, help="seconds that count")
    parser.add_argument("--batch", type=int, default=60, help="seconds of a batch")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="short: a smoke test")
    parser.add_argument("--results", type=Path, help="folder of the two files")
    parser.add_argument("--application", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.application:
        provider, load, servers = arguments.application
        say(json.dumps(measure(find_provider(provider), Load(**json.loads(load)), servers)))
        return 0
    if arguments.quick:
        arguments.warm_up, arguments.seconds, arguments.batch, arguments.rounds = 10, 20, 10, 1
    results: Path = arguments.results or own_results(
        "real-time", "quick" if arguments.quick else "full"
    )
    results.mkdir(parents=True, exist_ok=True)
    file = results / "real-time.jsonl"
    loads = [
        Load(query, rate, arguments.keys, arguments.warm_up, arguments.seconds, arguments.batch)
        for query in arguments.queries.split(",")
        for rate in map(int, arguments.rates.split(","))
    ]
    providers = arguments.providers.split(",")
    failed = False
    with tempfile.TemporaryDirectory(prefix="statestore-kafka-") as work:
        benchmark_jar()  # compiled once, and not in a run
        load_jars()
        broker = Broker(Path(work))
        try:
            for number, load, provider in schedule(arguments.rounds, loads, providers):
                given = [provider, json.dumps(asdict(load)), broker.servers]
                done = run_module("real_time", ["--application", *given])
                if done.failure:
                    failed = True
                    say(f"{provider} {load}: {done.failure}: {find_cause(done.stderr)}")
                    continue
                line = {"provider": provider, "round": number, "load_of": asdict(load)}
                line |= {**done.result, "cores": os.cpu_count(), "spark": pyspark.__version__}
                with file.open("a") as lines:
                    lines.write(json.dumps(line) + "\n")
                say(" ".join(map(str, (provider, load.query, load.rate, *figures([line])))))
        finally:
            broker.kill()
    if file.exists():
        (results / "real-time.md").write_text(render(read_runs(file)))
        say(str(results / "real-time.md"))
    return int(failed)


def schedule(
    rounds: int, loads: Sequence[Load], providers: Sequence[str]
) -> Iterable[tuple[int, Load, str]]:
    """Yield all runs in their order: the stores of a load are beside each other."""
    for number in range(rounds):
        for load in loads:
            for provider in providers[:: -1 if number % 2 else 1]:
                yield number, load, provider


def read_runs(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a `real-time.jsonl`."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def render(runs: Sequence[dict[str, Any]]) -> str:
    """Return the page: a table for each load."""
    blocks = ["# Real-time mode, from Kafka to Kafka", HEAD]
    shapes = sorted({json.dumps(run["load_of"]) for run in runs})
    for load in (Load(**json.loads(shape)) for shape in shapes):
        of_load = [run for run in runs if run["load_of"] == asdict(load)]
        title = f"## {QUERIES[load.query]}, {load.rate:,} rows a second of {load.keys:,} keys"
        what = f"{load.seconds} s after {load.warm_up_s} s of warm-up, batches of {load.batch_s} s"
        machine = f"Spark {of_load[0]['spark']}, {of_load[0]['cores']} cores"
        rows = [COLUMNS, ["---", *["---:"] * (len(COLUMNS) - 1)]]
        for provider in dict.fromkeys(run["provider"] for run in of_load):
            found = [run for run in of_load if run["provider"] == provider]
            rows.append([find_provider(provider).title, *figures(found)])
        blocks += [title, f"{what}. {machine}.", "\n".join(f"| {' | '.join(r)} |" for r in rows)]
    return "\n\n".join(blocks) + "\n"


COLUMNS = [
    "", "p50, ms", "p99, ms", "longest, ms", "silence, ms", "CPU, µs a row", "JVM, MiB",
    "engines, MiB", "overlay, MiB", "others' CPU", "load",
]  # fmt: skip
HEAD = f"""\
Time from the producer's timestamp of a row to the broker's of the record that tells it, by
`python -m benchmarks.real_time`. Runs are separated by a slash, in the order in which they were
made. *Silence* is the longest time without a record, as between two batches. *CPU* is that of the
JVM with its engines. *Overlay*: what the writes of the largest batch took, all state partitions
together. *Others* is the share of the machine that programs beside this benchmark had, *load* its
number of runnable threads before and after. Where others had more than {BUSY:.0%}, times compare no
stores."""


def figures(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the cells of runs of one store, after its name."""

    def cell(text: Any) -> str:
        told = [text(run) for run in runs]
        return " / ".join(told) if any(told) else ""

    def overlay(run: dict[str, Any]) -> str:
        sizes = [batch["overlay_bytes"] for batch in run["batches"]]
        return "" if None in sizes else f"{max(sizes) / 2**20:,.1f}"

    return [
        *(cell(lambda run, name=name: f"{run[name]:,.0f}") for name in ("p50", "p99", "max")),
        cell(lambda run: f"{run['silence']:,}"),
        cell(lambda run: f"{run['cpu_us']:,.0f}"),
        cell(lambda run: memory(run["jvm_mib"])),
        cell(lambda run: memory(run["engine_mib"])),
        cell(overlay),
        cell(lambda run: f"{run['others']:.0%}"),
        cell(lambda run: " to ".join(f"{load:.1f}" for load in run["load"])),
    ]


def memory(samples: Sequence[int]) -> str:
    """Return the medians of the second and the last third of samples, 0 as nothing."""
    third = len(samples) // 3
    if not any(samples) or not third:
        return ""
    return f"{median(samples[third : 2 * third]):,.0f} to {median(samples[-third:]):,.0f}"


if __name__ == "__main__":
    sys.exit(main())
