"""The page and the picture of what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.comparison.benchmark import Benchmark, Q
from benchmarks.comparison.run import Measured
from benchmarks.comparison.stores import FLOOR, STORES
from benchmarks.plot import COLOURS, FLOOR_COLOUR
from benchmarks.report import FSYNC_NOTE
from benchmarks.workloads import find_provider

SPARKS = [store.id for store in STORES if store.keeps_state and not store.is_ours]
OURS = [store.id for store in STORES if store.is_ours]
GIVEN_COLOUR = "#4d9a5b"
HOW = (
    "Each {column} runs on each store in a JVM of its own, with local[2], a heap of 4 GiB and 4"
    " state partitions. A batch is one file of {rows}, and batches follow each other at once. The"
    " sink drops the rows. One in ten files warms up. Half way the query is started anew from its"
    " checkpoint, and its stores read it; JVM and engines go on. Spark's maintenance"
    " begins after 60 s: in a half that is shorter, its RocksDB with a changelog has no snapshot,"
    " and replays all of it."
)
TUNED = (
    " *Tuned* does not count rows (trackTotalNumberOfRows=false), and has a cache of 64 MiB a store"
    " in place of 8."
)
VERIFIED = (
    "All rows that came out of every run were counted and hashed. They are those that {origin};"
    " a run whose rows differ is a failed one."
)
NO_RESTART = (
    " A store without figures still had its local database then, so that it read nothing: its CPU"
    " and its rows a second spare it two reads of the state, which the others have."
)
FLOOR_NOTE = (
    "The *floor* is Spark's own part: a run on a map on the heap, which has all rows and writes"
    " nothing, without the time of the map's calls. *Own cost* is what a store takes beyond it."
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a query on a store: a line of the results.

    `events` are all rows of the input, `cores` those of the machine; `measured` is
    None where it failed, with the `failure`.
    """

    round: int
    query: str
    store: str
    title: str
    events: int
    files: int
    cores: int
    spark: str
    measured: Measured | None
    failure: str | None

    @property
    def place(self) -> tuple[int, str, str]:
        """What it is the run of."""
        return self.round, self.query, self.store

    @property
    def outcome(self) -> str:
        """One line of it."""
        if self.measured is None:
            return str(self.failure)
        return f"{self.measured.cpu_s:.1f} s of CPU, {self.measured.wall_s:.1f} s"


def read_runs(file: Path) -> list[Run]:
    """Return the runs of a file of results."""
    runs = []
    for line in file.read_text().splitlines():
        run = json.loads(line)
        measured = Measured.of(run["measured"]) if run["measured"] else None
        runs.append(Run(**run | {"measured": measured}))
    return runs


def write_runs(file: Path, runs: Sequence[Run]) -> None:
    """Write a file of results; it is whole at any time."""
    staged = file.with_suffix(".tmp")
    staged.write_text("".join(f"{json.dumps(asdict(run))}\n" for run in runs))
    staged.replace(file)


class Figures:
    """Medians over the rounds by query and store."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs
        self.queries = sorted({run.query for run in runs}, key=_number)
        order = [store.id for store in STORES]
        titles = {run.store: run.title for run in runs}
        self.stores = sorted(titles, key=lambda one: order.index(one) if one in order else -1)
        self.titles = titles

    def of(self, query: str, store: str, field: Callable[[Measured], float | None]) -> float | None:
        """Return the median; None when it was not measured or a run failed."""
        runs = [run for run in self._runs if (run.query, run.store) == (query, store)]
        found = [field(run.measured) for run in runs if run.measured is not None]
        values = [value for value in found if value is not None]
        return median(values) if values and len(values) == len(runs) else None

    @property
    def has_every_restart(self) -> bool:
        """Whether each store had to read its checkpoint half way."""
        return all(
            run.measured is None or run.measured.restart_ms is not None for run in self._runs
        )

    def cpu(self, query: str, store: str) -> float | None:
        """Return the CPU for a million rows of input, in s; of the floor without its own calls."""
        return self.of(query, store, lambda m: (m.cpu_s - m.call_s) / m.events * 1e6)

    def own(self, query: str, store: str) -> float | None:
        """Return what the store adds to it."""
        cpu, floor = self.cpu(query, store), self.cpu(query, FLOOR.id)
        return None if cpu is None or floor is None else cpu - floor

    def least(
        self, query: str, stores: list[str], figure: Callable[[str, str], float | None]
    ) -> float | None:
        """Return the smallest figure of some stores."""
        found = [figure(query, store) for store in stores]
        return min((value for value in found if value is not None), default=None)


def render(benchmark: Benchmark[Q], runs: list[Run]) -> str:
    """Return the page: what was measured, how it was asked, and what failed."""
    figures = Figures(runs)
    first, rows, page = runs[0], benchmark.rows, benchmark.page
    size = f"{first.events:,} {rows} in {first.files} files"
    rounds = max(run.round for run in runs) + 1
    column = benchmark.column
    blocks = [
        f"# {page.title}",
        f"{page.about} {HOW.format(column=column, rows=rows)}"
        f"{TUNED if 'rocksdb-tuned' in figures.stores else ''}",
        f"Measured: {size}, Spark {first.spark} on {first.cores} cores, runs of each: {rounds}."
        f" {VERIFIED.format(origin=page.origin)} {page.notes}",
        f"{FLOOR_NOTE} {FSYNC_NOTE}",
        f"![CPU of each {column} by store]({benchmark.name}.png)",
        "## CPU",
        f"Seconds of all cores for a million {rows}, JVM, engines and Python together.",
        _table(column, figures, figures.cpu, "{:.1f}"),
    ]
    if any(store in figures.stores for store in OURS) and FLOOR.id in figures.stores:
        blocks += ["## Beside Spark's best store of these", _ratios(benchmark, figures)]
    blocks += [
        f"## {rows.capitalize()} a second",
        "Of both halves together, with two starts of the query. The floor has the time of its calls"
        " in it, and is left out.",
        _table(
            column,
            figures,
            _of(figures, _events_per_s),
            "{:,.0f}",
            is_more_better=True,
            has_floor=False,
        ),
        "## Restart half way",
        "From the start of the query to the end of its first batch, ms. Heap has its state in the"
        f" memory of the driver.{'' if figures.has_every_restart else NO_RESTART}",
        _table(column, figures, _of(figures, lambda m: m.restart_ms), "{:,.0f}", has_floor=False),
        "## State",
        "Files of the checkpoint at the end, in MB; heap keeps them in memory.",
        _table(
            column, figures, _of(figures, lambda m: m.state_bytes / 1e6), "{:,.1f}", has_best=False
        ),
    ]
    failures = [
        f"- {run.query} on {run.title}, round {run.round + 1}: {run.failure}"
        for run in runs
        if run.failure is not None
    ]
    if failures:
        blocks += ["## Failed", "\n".join(failures)]
    return "\n\n".join([*blocks, *page.end]) + "\n"


def _number(query: str) -> int:
    return int(re.sub(r"\D", "", query))


def _events_per_s(measured: Measured) -> float:
    return measured.events / measured.wall_s


def _of(
    figures: Figures, field: Callable[[Measured], float | None]
) -> Callable[[str, str], float | None]:
    return lambda query, store: figures.of(query, store, field)


def _table(
    column: str,
    figures: Figures,
    figure: Callable[[str, str], float | None],
    form: str,
    *,
    is_more_better: bool = False,
    has_best: bool = True,
    has_floor: bool = True,
) -> str:
    shown = [store for store in figures.stores if has_floor or store != FLOOR.id]
    rows = [[column, *(figures.titles[store] for store in shown)]]
    for query in figures.queries:
        values = {store: figure(query, store) for store in shown}
        stores = [v for s, v in values.items() if v is not None and s != FLOOR.id]
        best = (max if is_more_better else min)(stores, default=None)
        cells = [query]
        for store, value in values.items():
            text = "" if value is None else form.format(value)
            is_best = has_best and value == best and store != FLOOR.id and value is not None
            cells.append(f"**{text}**" if is_best else text)
        rows.append(cells)
    return _markdown(rows)


def _ratios(benchmark: Benchmark[Q], figures: Figures) -> str:
    shown = [store for store in OURS if store in figures.stores]
    header = [benchmark.column, "Spark's best, own cost"]
    for store in shown:
        title = find_provider(store).title.removeprefix("statestore ")
        header += [f"{title}: CPU", f"{title}: own cost"]
    rows, all_ratios = [header], dict[str, list[float]]()
    for query in figures.queries:
        cpu = figures.least(query, SPARKS, figures.cpu)
        own = figures.least(query, SPARKS, figures.own)
        cells = [query, "" if own is None else f"{own:.1f} s"]
        for store in shown:
            for of_spark, ours in ((cpu, figures.cpu), (own, figures.own)):
                value = ours(query, store)
                if value is None or of_spark is None or of_spark <= 0:
                    cells.append("")
                    continue
                all_ratios.setdefault(f"{store} {len(cells)}", []).append(value / of_spark)
                cells.append(f"{value / of_spark:.2f}")
        rows.append(cells)
    medians = ["median", ""]
    for store in shown:
        for _ in range(2):
            ratios = all_ratios.get(f"{store} {len(medians)}")
            medians.append(f"{median(ratios):.2f}" if ratios else "")
    explained = (
        f"Ratios, for a million {benchmark.rows}; below 1 the store is ahead. Spark's best is, of"
        f" each {benchmark.column}, the one of Spark's stores above that takes least."
    )
    return f"{explained}\n\n{_markdown([*rows, medians])}"


def _markdown(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---"] + ["---:"] * (len(rows[0]) - 1), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plot_runs(benchmark: Benchmark[Q], runs: list[Run], path: Path) -> None:
    """Draw the CPU of each query by store, and the floor as a line."""
    figures = Figures(runs)
    stores = [store for store in figures.stores if store != FLOOR.id]
    figure, axis = plt.subplots(figsize=(12, 5.5), layout="constrained")
    width = 0.86 / max(1, len(stores))
    for place, store in enumerate(stores):
        values = [figures.cpu(query, store) for query in figures.queries]
        starts = [number + (place - len(stores) / 2) * width for number in range(len(values))]
        axis.bar(
            starts,
            [value or 0 for value in values],
            width,
            align="edge",
            color=COLOURS.get(store, GIVEN_COLOUR),
            label=figures.titles[store],
        )
    for number, query in enumerate(figures.queries):
        floor = figures.cpu(query, FLOOR.id)
        if floor is not None:
            label = "" if number else "floor: Spark's own part"
            ends = (number - 0.45, number + 0.45)
            axis.hlines(floor, *ends, color=FLOOR_COLOUR, linestyle="--", label=label)
    axis.set_xticks(range(len(figures.queries)), figures.queries)
    axis.set_ylabel(f"s of CPU for a million {benchmark.rows}")
    hint = "a lower bar is better; no bar: the run failed or cannot be"
    axis.set_title(f"{benchmark.page.title}: {hint}")
    axis.grid(axis="y", color="#e6e6e6")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=100)
    plt.close(figure)
