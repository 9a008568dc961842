"""Draw the table of a run: `python -m benchmarks.plot benchmarks/results/0.1.0/table.md`.

It reads table.md and nothing else, so a plot can be drawn anew without measuring anew. The lines of
`benchmarks/growth.py` are drawn here, too, in the same colours.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from benchmarks.workloads import FINDING, NO_STORE, PROVIDERS, Provider

COLOURS = {
    "hdfs": "#8c8c8c",
    "rocksdb": "#c49c94",
    "rocksdb-changelog": "#e6a23c",
    "rocksdb-tuned": "#d4553a",
    "filesystem": "#2f6fb3",
    "rocksdb-backend": "#8e63b0",
    "heap": "#7fb3e0",
}
FLOOR_COLOUR = "#333333"
"""Of the empty store, which is no bar."""
PANELS = {
    "W1 batch": "batch: 100 k updates of 1 M keys",
    "W1 first batch": "first batch: 1 M inserts",
    "W1 commit": "commit of 100 k updates, over partitions",
    "W2-1M batch": "batch: 1 k updates of 1 M keys",
    "W3 start to first result": "restart to first result",
    "heap per entry updated": "JVM heap an entry of 64 B",
}
"""What is drawn of a table's metrics, and what it is called."""
LOG_SPAN = 50
"""From this ratio of the longest bar to the shortest one a linear one could not be seen."""
Table = dict[str, dict[str, tuple[float, str]]]
"""Value and unit by metric and provider."""
Lines = dict[str, dict[int, float | None]]
"""By provider the ms of a batch by number of keys; None where the run failed."""


def read_table(path: Path) -> Table:
    """Return the times and memory of a run's table.md.

    Raises:
        ValueError: A column is of a provider that nobody knows.
    """
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in path.read_text().partition("## Times and memory")[2].splitlines()
        if line.startswith("|")
    ]
    by_title = {provider.title: provider.id for provider in PROVIDERS}
    header = rows[0][1:]
    if not by_title.keys() >= set(header):
        raise ValueError(f"columns of {path} are not providers: {set(header) - by_title.keys()}")
    table: Table = {}
    for metric, *cells in rows[2:]:
        if len(cells) != len(header):
            break  # the table of counters
        values = {
            by_title[title]: (float(found[1].replace(",", "")), "B" if found[2] else "ms")
            for title, cell in zip(header, cells, strict=True)
            if (found := re.match(r"([\d.,]+)( B)?", cell))
        }
        table[metric] = values
    return table


def plot(path: Path) -> None:
    """Draw plot.png beside a table.md: one panel a metric that it has, one bar a provider."""
    table = read_table(path)
    panels = [(title, table[metric]) for metric, title in PANELS.items() if metric in table]
    num_rows = max(1, -(-len(panels) // 2))
    figure, axes = plt.subplots(num_rows, 2, figsize=(12, 0.5 + 3 * num_rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, bars) in zip(axes.flat, panels, strict=False):
        _draw_panel(axis, title, bars)
    figure.suptitle("Medians of one run; a shorter bar is better")
    figure.tight_layout(h_pad=2)
    figure.savefig(path.with_name("plot.png"), dpi=100)
    plt.close(figure)


def plot_growth(panels: dict[str, Lines], path: Path) -> None:
    """Draw the time of a batch against the number of keys.

    Args:
        panels: What was measured, by the title of the panel it goes into.
        path: The picture.
    """
    columns = len(panels) if len(panels) <= 3 else 2
    num_rows = -(-len(panels) // columns)
    size = (max(8, 4.5 * columns), 0.8 + 3.8 * num_rows)
    figure, axes = plt.subplots(
        num_rows, columns, figsize=size, layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=False):
        for provider in PROVIDERS:
            if provider.id in lines:
                _draw_line(axis, provider, lines[provider.id])
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_xticks(sorted({keys for line in lines.values() for keys in line}))
        axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:,.0f}")
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("keys in the state, logarithmic")
        axis.set_ylabel("ms a batch")
        axis.grid(axis="y", color="#e6e6e6")
        axis.spines[["top", "right"]].set_visible(False)
    named = {
        name: line
        for axis in axes.flat
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.suptitle("The same changes, ever more keys: a flat line is best; x: the run failed")
    in_line = min(len(named), 2 * columns)
    figure.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=in_line, frameon=False
    )
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _draw_line(axis: Axes, provider: Provider, line: dict[int, float | None]) -> None:
    colour = COLOURS.get(provider.id, FLOOR_COLOUR)
    measured = {keys: ms for keys, ms in sorted(line.items()) if ms is not None}
    axis.plot(
        list(measured),
        list(measured.values()),
        color=colour,
        linestyle="-" if provider.keeps_state else "--",
        marker="o",
        markersize=4,
        label=provider.title,
    )
    failed = [keys for keys, ms in line.items() if ms is None]
    for keys in failed:
        # At the top edge, wherever that is.
        axis.annotate(
            "x",
            (keys, 1),
            xycoords=axis.get_xaxis_transform(),
            color=colour,
            ha="center",
            va="top",
            fontsize=14,
        )


def _draw_panel(axis: Axes, title: str, measured: dict[str, tuple[float, str]]) -> None:
    shown = [provider for provider in PROVIDERS if _is_bar(provider, measured)][::-1]
    if not shown:
        axis.set_axis_off()
        return
    values = [measured[provider.id][0] for provider in shown]
    unit = measured[shown[0].id][1]
    bars = axis.barh(
        [provider.title for provider in shown],
        values,
        color=[COLOURS[provider.id] for provider in shown],
    )
    if max(values) > LOG_SPAN * min(values):
        axis.set_xscale("log")
        unit += ", logarithmic"
    else:
        axis.locator_params(axis="x", nbins=5)
        axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.bar_label(bars, labels=[_label(value) for value in values], padding=3, fontsize=9)
    axis.margins(x=0.16)
    floor, _ = measured.get(FINDING, measured.get(NO_STORE, (0.0, "")))
    if floor > 0:
        axis.axvline(floor, color=FLOOR_COLOUR, linestyle="--", linewidth=1.2)
        name = f"empty store = floor: {_label(floor)}"
        axis.annotate(
            name,
            (floor, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, 2),
            textcoords="offset points",
            fontsize=8,
        )
    axis.set_title(f"{title} [{unit}]", fontsize=11, pad=16)
    axis.spines[["top", "right"]].set_visible(False)


def _is_bar(provider: Provider, measured: dict[str, tuple[float, str]]) -> bool:
    return provider.id in measured and provider.keeps_state and measured[provider.id][0] > 0


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def main() -> None:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    plot(parser.parse_args().table)


if __name__ == "__main__":
    main()
