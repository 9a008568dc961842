"""Draw the table of a run: `python -m benchmarks.plot benchmarks/results/0.1.0/no-store/table.md`.

It reads table.md and nothing else, so a plot can be drawn anew without measuring anew.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.workloads import NO_STORE, PROVIDERS, Provider

COLOURS = {
    "hdfs": "#8c8c8c",
    "rocksdb": "#c49c94",
    "rocksdb-changelog": "#e6a23c",
    "filesystem": "#2f6fb3",
    "rocksdb-backend": "#8e63b0",
    "heap": "#7fb3e0",
}
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
    """Draw plot.png beside a table.md: one panel a metric, one bar a provider."""
    table = read_table(path)
    figure, axes = plt.subplots(3, 2, figsize=(12, 9.5))
    for axis, (metric, title) in zip(axes.flat, PANELS.items(), strict=True):
        _draw_panel(axis, title, table.get(metric, {}))
    figure.suptitle("Medians of one run; a shorter bar is better")
    figure.tight_layout(h_pad=2)
    figure.savefig(path.with_name("plot.png"), dpi=100)
    plt.close(figure)


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
    floor, _ = measured.get(NO_STORE, (0.0, ""))
    if floor > 0:
        axis.axvline(floor, color="#333333", linestyle="--", linewidth=1.2)
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
