"""Growth: what a batch costs with the same changes and ever more keys in the state.

    $ ./build.sh bench-growth [--workloads W1,W2,W7] [--providers none,filesystem] [--quick]

The queries of W1, W2 and W7 run with several numbers of keys loaded, for every provider and number
in a JVM of its own. The changes of a batch are always as many, so its time should be, too. Each
result is added to `growth.jsonl` of `build/growth/full`, or of another folder, when it is there. A
run leaves out what the file has: one that was interrupted goes on where it stopped. A run that
failed is a result, with its cause; to repeat it, delete its line. `growth.md` and `growth.png` are
made of that file, and `--draw` does no more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import pyspark

from benchmarks.plot import Lines, plot_growth
from benchmarks.processes import own_results, run_module, say
from benchmarks.query_runs import run_from_start
from benchmarks.report import FSYNC_NOTE, NO_STORE_NOTE
from benchmarks.sessions import benchmark_jar, is_available
from benchmarks.workloads import (
    NO_STORE,
    PROVIDERS,
    Provider,
    QueryWorkload,
    find_provider,
    full,
    quick,
)

COMPARED = "hdfs,rocksdb-changelog,filesystem,rocksdb-backend,none"
CAUSE_LENGTH = 200
RAISED = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt)\b")
HEAD = (
    "Each number is what a batch of updates takes, in ms: the median of the warm batches of a query"
    " that has loaded so many keys. All batches of a table change equally many random keys, so a"
    " store whose cost depends on the changes alone has about the same number in every row. The"
    " last row divides the one with most keys by the one with fewest. The fastest store of a row"
    " is bold. Each number has a JVM of its own (local[2], 4 GiB heap), warmed by a tiny query."
    " W6 is of `python -m benchmarks.large_state`, with 2 GiB of heap and 100 B of value that do"
    " not compress."
)


@dataclass(frozen=True, slots=True)
class Growing:
    """A query whose number of keys grows; of `query` all else counts.

    The keys are loaded in batches of at most `load_keys`.
    """

    query: QueryWorkload
    sizes: tuple[int, ...]
    load_keys: int = 1_000_000

    def at(self, keys: int) -> QueryWorkload:
        """Return the query with so many keys."""
        return replace(self.query, keys=keys, load_batches=-(-keys // self.load_keys))


@dataclass(frozen=True, slots=True)
class Cell:
    """What one run took, or why it failed: a line of `growth.jsonl`.

    `batches_ms` are the warm batches of updates, `cores` those of the machine.
    """

    workload: str
    provider: str
    keys: int
    updates: int
    partitions: int
    batches_ms: tuple[float, ...]
    failure: str | None
    cores: int
    spark: str

    @property
    def ms(self) -> float | None:
        """The median batch; None when the run failed."""
        return median(self.batches_ms) if self.failure is None else None


def growing(*, is_quick: bool) -> dict[str, Growing]:
    """Return the queries by name, with the sizes of the figures or those of a smoke test."""
    suite = quick() if is_quick else full()
    w1 = replace(suite.w1, name="W1", restart_batches=0)
    w2 = replace(suite.w2_large, name="W2")
    if is_quick:
        return {
            "W1": Growing(w1, (10_000, 30_000), 10_000),
            "W2": Growing(w2, (2_000, 30_000), 10_000),
            "W7": Growing(suite.w7, (2_000, 20_000), 10_000),
        }
    # A small state is loaded at once: its batches are warm late.
    w1 = replace(w1, update_batches=15, warm_up_batches=8)
    w2 = replace(w2, update_batches=30, warm_up_batches=20)
    w7 = replace(suite.w7, update_batches=8, warm_up_batches=4)
    return {
        "W1": Growing(w1, (100_000, 1_000_000, 5_000_000)),
        "W2": Growing(w2, (10_000, 100_000, 1_000_000, 5_000_000)),
        "W7": Growing(w7, (20_000, 200_000, 2_000_000)),
    }


def main() -> int:
    """Measure what is not there yet, then draw; exit status 1 when a run of these failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workloads", default="W1,W2,W7", help="separated by commas")
    parser.add_argument("--providers", default=COMPARED, help="IDs, separated by commas")
    parser.add_argument("--sizes", help="numbers of keys, in place of each workload's own")
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    parser.add_argument("--results", type=Path, help="folder of the three files")
    parser.add_argument("--draw", action="store_true", help="draw what was measured, no more")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    results: Path = arguments.results or own_results(
        "growth", "quick" if arguments.quick else "full"
    )
    file = results / "growth.jsonl"
    known = growing(is_quick=arguments.quick)
    if unknown := set(arguments.workloads.split(",")) - known.keys():
        parser.error(f"no such workload: {', '.join(unknown)}; use {', '.join(known)}")
    chosen = [known[name] for name in arguments.workloads.split(",")]
    if arguments.sizes:
        sizes = tuple(map(int, arguments.sizes.split(",")))
        chosen = [replace(one, sizes=sizes) for one in chosen]
    providers = [find_provider(name) for name in arguments.providers.split(",")]
    if arguments.work:
        times = measure(chosen[0].at(chosen[0].sizes[0]), providers[0], arguments.work)
        say(f"\n{json.dumps(times)}")
        return 0
    cells = read_cells(file) if file.exists() else []
    num_failed = 0
    if not arguments.draw:
        # Nothing is run, and nothing written, before all of it can be.
        if lacking := [provider.id for provider in providers if not is_available(provider)]:
            parser.error(f"no jar for {', '.join(lacking)}. To fix: ./build.sh jar")
        for one in chosen:
            if min(one.sizes) < one.query.updates_per_batch:
                parser.error(f"{one.query.name} updates {one.query.updates_per_batch:,} keys")
            if any(is_other(cell, one.query) for cell in cells):
                parser.error(f"{file} has other sizes of {one.query.name}. To fix: --results")
        results.mkdir(parents=True, exist_ok=True)
        benchmark_jar()  # compiled once, and not in a run
        for cell in run_missing(chosen, providers, cells, is_quick=arguments.quick):
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(cell)) + "\n")
            cells.append(cell)
            num_failed += cell.failure is not None
            outcome = cell.failure or f"{cell.ms:,.0f} ms"
            say(f"{cell.workload} {cell.provider} {cell.keys:,} keys: {outcome}")
    if not cells:
        parser.error(f"nothing was measured: {file} has no lines")
    (results / "growth.md").write_text(render(cells))
    plot_growth(panels(cells), results / "growth.png")
    say(f"{results / 'growth.md'}, growth.png")
    return 1 if num_failed else 0


def run_missing(
    chosen: list[Growing], providers: list[Provider], cells: list[Cell], *, is_quick: bool
) -> Iterator[Cell]:
    """Run what has no cell yet, in turn, and yield each result when it is there.

    The order of the providers is reversed with every other number of keys, so that a machine that
    gets slower meanwhile treats them alike.
    """
    done = {(cell.workload, cell.provider, cell.keys) for cell in cells}
    for one in chosen:
        for number, keys in enumerate(one.sizes):
            for provider in providers[:: -1 if number % 2 else 1]:
                if (one.query.name, provider.id, keys) not in done:
                    yield run_elsewhere(one.at(keys), provider, is_quick=is_quick)


def run_elsewhere(query: QueryWorkload, provider: Provider, *, is_quick: bool) -> Cell:
    """Measure in a process of its own, and so in a JVM of its own."""
    arguments = ["--workloads", query.name, "--providers", provider.id, "--sizes", str(query.keys)]
    arguments += ["--quick"] if is_quick else []
    with tempfile.TemporaryDirectory(
        prefix="statestore-growth-", ignore_cleanup_errors=True
    ) as work:
        done = run_module("growth", [*arguments, "--work", work])
    cause = f": {find_cause(done.stderr)}" if done.stderr else ""
    return Cell(
        query.name,
        provider.id,
        query.keys,
        query.updates_per_batch,
        query.partitions,
        tuple(done.result or ()),
        None if done.failure is None else done.failure + cause,
        os.cpu_count() or 0,
        pyspark.__version__,
    )


def measure(query: QueryWorkload, provider: Provider, work: Path) -> list[float]:
    """Run the query in this process; return the ms of its warm batches of updates.

    Raises:
        RuntimeError: The state does not have the keys that were loaded.
    """
    batches = run_from_start(query, provider, work)["batches"]
    rows = batches[-1]["state_rows"]
    if provider.tells_its_rows and rows != query.keys:
        raise RuntimeError(f"rows are missing: state_rows={rows}, keys={query.keys}")
    first_warm = query.load_batches + query.warm_up_batches
    return [float(batch["batch_ms"]) for batch in batches[first_warm:]]


def find_cause(stderr: str) -> str:
    """Return the line that says why a run failed: memory before all that follows from its lack."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    memory = [line for line in lines if "OutOfMemoryError" in line]
    raised = [line for line in lines if RAISED.match(line)]
    return (memory[:1] or raised[-1:] or lines[-1:] or ["it says nothing"])[0][:CAUSE_LENGTH]


def is_other(cell: Cell, query: QueryWorkload) -> bool:
    """Return whether a cell is of a query of the same name and other changes."""
    sizes = (query.updates_per_batch, query.partitions)
    return cell.workload == query.name and (cell.updates, cell.partitions) != sizes


def read_cells(file: Path) -> list[Cell]:
    """Return the results of a `growth.jsonl`."""
    return [Cell(**json.loads(line)) for line in file.read_text().splitlines()]


def render(cells: list[Cell]) -> str:
    """Return the page: a table for each workload, and why runs failed."""
    machines = sorted({f"Spark {cell.spark} on {cell.cores} cores" for cell in cells})
    blocks = ["# A batch against the size of the state", HEAD]
    blocks += [f"Measured with {', '.join(machines)}. {FSYNC_NOTE}"]
    if any(cell.provider == NO_STORE for cell in cells):
        blocks += [NO_STORE_NOTE]
    for cells_of_one in _by_workload(cells).values():
        blocks += [f"## {_title(cells_of_one[0])}", _table(cells_of_one)]
        failures = [
            f"- {find_provider(cell.provider).title}, {cell.keys:,} keys failed: {cell.failure}"
            for cell in cells_of_one
            if cell.failure is not None
        ]
        if failures:
            blocks.append("\n".join(failures))
    return "\n\n".join(blocks) + "\n"


def panels(cells: list[Cell]) -> dict[str, Lines]:
    """Return what is drawn: a panel for each workload."""
    return {_title(found[0]): _lines(found) for found in _by_workload(cells).values()}


def _by_workload(cells: list[Cell]) -> dict[str, list[Cell]]:
    names = sorted({cell.workload for cell in cells})
    return {name: [cell for cell in cells if cell.workload == name] for name in names}


def _title(cell: Cell) -> str:
    partitions = "1 partition" if cell.partitions == 1 else f"{cell.partitions} partitions"
    return f"{cell.workload}: {cell.updates:,} updates a batch, {partitions}"


def _lines(cells: list[Cell]) -> Lines:
    lines: Lines = {}
    for cell in cells:
        lines.setdefault(cell.provider, {})[cell.keys] = cell.ms
    return lines


def _table(cells: list[Cell]) -> str:
    lines = _lines(cells)
    shown = [provider for provider in PROVIDERS if provider.id in lines]
    sizes = sorted({cell.keys for cell in cells})
    header = ["keys", *(provider.title for provider in shown)]
    rows = [header, ["---"] + ["---:"] * len(shown)]
    for keys in sizes:
        stores = [lines[p.id].get(keys) for p in shown if p.keeps_state]
        best = min((ms for ms in stores if ms is not None), default=None)
        rows.append([f"{keys:,}", *(_cell(lines[p.id], keys, p, best) for p in shown)])
    ratios = [_ratio(lines[p.id].get(sizes[0]), lines[p.id].get(sizes[-1])) for p in shown]
    rows.append(["largest / smallest", *ratios])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(line: dict[int, float | None], keys: int, provider: Provider, best: float | None) -> str:
    if keys not in line:
        return ""
    ms = line[keys]
    if ms is None:
        return "failed"
    return f"**{ms:,.0f}**" if provider.keeps_state and ms == best else f"{ms:,.0f}"


def _ratio(smallest: float | None, largest: float | None) -> str:
    return f"{largest / smallest:.2f}" if smallest and largest else "-"


if __name__ == "__main__":
    sys.exit(main())
