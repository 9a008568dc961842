"""Turn the JSON of a benchmark run into table.md, plot.png and RUN-INFO.md beside it.

$ python -m benchmarks.report benchmarks/results/0.1.0/benchmark.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.figures import FIGURES, Results
from benchmarks.plot import plot
from benchmarks.workloads import FINDING, PROVIDERS

COUNTERS = (
    "input_rows",
    "state_rows",
    "state_memory_bytes",
    "state_files",
    "state_bytes",
    "published_bytes",
)
FSYNC_NOTE = (
    "Ours makes every commit durable (fsync of file and directory); Spark's providers do not fsync."
)
NO_STORE_NOTE = (
    '"Empty store" is a provider that keeps nothing, finds nothing and writes nothing: its batches'
    " are what Spark itself takes, and no store can bring a figure below it."
)
FINDING_NOTE = (
    'The one "that finds rows" returns a row for each key of an aggregation, though always the same'
    " one: it spares Spark nothing, so own cost is what comes on top of it."
)


def write_report(json_path: Path) -> None:
    """Write the three files; whatever the run lacks is left out of them."""
    results = Results(json_path)
    directory = json_path.parent
    (directory / "table.md").write_text(render_tables(results))
    (directory / "RUN-INFO.md").write_text(render_run_info(results))
    plot(directory / "table.md")


def render_tables(results: Results) -> str:
    """Return the figures to reach, then every metric by provider, then the counters."""
    blocks = ["# Results", FSYNC_NOTE, "## Figures to reach", NO_STORE_NOTE]
    if any(results.find(metric, FINDING) for metric in results.metrics()):
        blocks += [FINDING_NOTE]
    blocks += [_figures_table(results)]
    blocks += ["## Times and memory", _legend(), _metrics_table(results)]
    blocks += [
        "## Counters",
        "Medians a batch or commit; state_files and state_bytes: the checkpoint at the end.",
        _counters_table(results),
    ]
    return "\n\n".join(blocks) + "\n"


def render_run_info(results: Results) -> str:
    """Return where and how the run was made."""
    machine = results.document["machine_info"]
    commit = results.document["commit_info"]
    facts = {
        "commit": commit.get("id", "unknown") + (" + changes" if commit.get("dirty") else ""),
        "CPU": f"{machine['cpu'].get('brand_raw', machine['machine'])}, {machine['cpus']} cores",
        "memory": f"{machine['memory_bytes'] / 2**30:.0f} GiB",
        "system": f"{machine['system']} {machine['kernel']}",
        "Java": machine["java"],
        "Python": machine["python_version"],
        "Spark": machine["spark"],
        "pyarrow": machine["pyarrow"],
        "options": f"`{results.document.get('options', '')}`",
        "sizes": f"`{results.document['suite']}`",
    }
    table = _table(["", ""], [[name, value] for name, value in facts.items()])
    method = (
        "Every run of a provider has a JVM of its own (local[2], 4 GiB heap), warmed by a tiny"
        " query of the same kind. Providers alternate; the order is reversed in every other round."
        " Values are medians over all rounds. State and input are on the local disk. Queries on"
        " RocksDB with changelog, statestore and empty stores are of checkpoint format 2; every"
        " other setting is at its default. " + FSYNC_NOTE
    )
    return f"# Run\n\n{table}\n\n{method}\n"


def _figures_table(results: Results) -> str:
    rows = []
    for figure in FIGURES:
        value = figure.value(results)
        if value is None:
            continue  # a run of some workloads, or some providers
        limit = f"≤ {figure.limit:g} {figure.unit}".strip()
        floor = figure.floor(results)
        least = "" if floor is None else f"{floor:.2f} {figure.unit}".strip()
        reached = "yes" if value <= figure.limit else "**no**"
        measured = f"{value:.2f} {figure.unit}".strip()
        rows.append([figure.title, measured, limit, reached, least])
    return _table(["figure", "measured", "limit", "reached", "empty store"], rows)


def _legend() -> str:
    return (
        "Median [smallest .. largest median of a round]; ms unless another unit is named. W4 is in"
        " ns a row, its getStore one call in ms."
    )


def _metrics_table(results: Results) -> str:
    metrics = results.metrics()
    shown = [p for p in PROVIDERS if any(results.find(metric, p.id) for metric in metrics)]
    rows = [
        [metric, *(_cell(metric, results.find(metric, p.id)) for p in shown)] for metric in metrics
    ]
    return _table(["metric", *(p.title for p in shown)], rows)


def _cell(metric: str, record: dict[str, Any] | None) -> str:
    if record is None:
        return ""
    if "ns_per_row" in record and " getStore " not in metric:
        return f"{record['ns_per_row']:,.0f}"
    unit = " B" if record["unit"] == "B" else ""
    low, high = min(record["round_medians"]), max(record["round_medians"])
    text = f"{_number(record['value'])}{unit} [{_number(low)} .. {_number(high)}]"
    if "raw_write_ms" in record:
        text += f", raw write {_number(record['raw_write_ms'])}"
    return text


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _counters_table(results: Results) -> str:
    rows = []
    for metric in results.metrics():
        for provider in PROVIDERS:
            record = results.find(metric, provider.id)
            if record is None or "custom_metrics" not in record:
                continue
            counters = {name: record[name] for name in COUNTERS if name in record}
            counters |= record["custom_metrics"]
            rows += [
                [metric, provider.title, name, f"{value:,.0f}"]
                for name, value in counters.items()
                if value > 0
            ]
    return _table(["metric", "provider", "counter", "value"], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Parse the command line and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    write_report(parser.parse_args().json)


if __name__ == "__main__":
    main()
