"""The figures to reach, and how each is computed from the results of one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workloads import FINDING, NO_STORE, OUR_ROCKSDB, OURS, VARIABLES, find_provider


class Results:
    """Results of one run, read from pytest-benchmark's JSON."""

    def __init__(self, path: Path) -> None:
        self.document: dict[str, Any] = json.loads(path.read_text())
        self._records: dict[tuple[str, str], dict[str, Any]] = {
            (info["metric"], info["provider"]): info
            for info in (entry["extra_info"] for entry in self.document["benchmarks"])
        }

    def metrics(self) -> list[str]:
        """Return the names of what was measured, sorted."""
        return sorted({metric for metric, _ in self._records}, key=_natural)

    def find(self, metric: str, provider: str) -> dict[str, Any] | None:
        """Return what was recorded, or None when that provider was not measured."""
        return self._records.get((metric, provider))

    def value(self, metric: str, provider: str = OURS, field: str = "value") -> float:
        """Return a recorded median (ms or B) or another field of the record.

        Raises:
            KeyError: It was not measured in this run.
        """
        return float(self._records[metric, provider][field])

    def ratio(self, metric: str, other: str, ours: str = OURS) -> float:
        """Return a provider of ours divided by another one."""
        return self.value(metric, ours) / self.value(metric, other)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure to reach: `compute` must not exceed `limit`.

    `least` gives what the figure is with no store at all, where Spark itself has a part in it: no
    store can bring it below that.
    """

    title: str
    limit: float
    unit: str
    compute: Callable[[Results], float]
    least: Callable[[Results], float] | None = None

    def value(self, results: Results) -> float | None:
        """Return the figure, or None when the run lacks a part of it."""
        return _computed(self.compute, results)

    def floor(self, results: Results) -> float | None:
        """Return the least that any store can reach, or None when that is not known."""
        return _computed(self.least, results) if self.least else None


def _computed(compute: Callable[[Results], float], results: Results) -> float | None:
    try:
        return compute(results)
    except (KeyError, ZeroDivisionError):
        return None


def _against(limit: float, metric: str, other: str, ours: str = OURS, title: str = "") -> Figure:
    """Return the figure of a provider of ours divided by a provider of Spark's."""
    return Figure(
        f"{title or metric} / {find_provider(other).title}",
        limit,
        "x",
        lambda r: r.ratio(metric, other, ours),
        lambda r: r.ratio(metric, other, floor_of(r, metric)),
    )


def _own_cost(results: Results, metric: str, provider: str) -> float:
    """Return what a provider adds to a query's batch: its time without that of the empty store."""
    return results.value(metric, provider) - results.value(metric, floor_of(results, metric))


def floor_of(results: Results, metric: str) -> str:
    """Return the ID of the empty store that is the floor: the one that finds rows, if it ran."""
    return FINDING if results.find(metric, FINDING) else NO_STORE


def _own_against(limit: float, metric: str, other: str, ours: str, title: str) -> Figure:
    """Return the own cost of a provider of ours divided by that of a provider of Spark's."""
    return Figure(
        f"{title}, own cost / {find_provider(other).title}",
        limit,
        "x",
        lambda r: _own_cost(r, metric, ours) / _own_cost(r, metric, other),
    )


def _against_raw_write(delta_mb: int, value_bytes: int) -> Figure:
    metric = f"W5 commit {delta_mb} MB of {value_bytes} B values"
    return Figure(
        f"W5 commit / raw durable write, {delta_mb} MB of {value_bytes} B values",
        2.0,
        "x",
        lambda r: r.value(metric) / r.value(metric, field="raw_write_ms"),
    )


def _heap_overhead(results: Results) -> float:
    metric = "heap per entry updated"
    return results.value(metric) - results.value(metric, field="payload_bytes_per_entry")


def _engine_memory(results: Results) -> float:
    """Return the engine's growth by the UnsafeRow bytes of the version; files may be compressed."""
    metric = "engine memory during snapshot"
    return results.value(metric) / results.value(metric, field="version_bytes")


def _engine_calls(results: Results) -> float:
    """Return the py4j calls of a W1 update batch, a partition."""
    record = results.find("W1 batch", OURS)
    if record is None:
        raise KeyError("W1 batch")
    return float(record["custom_metrics"]["statestoreEngineCalls"]) / 4


FIGURES = (
    _against(0.40, "W1 batch", "hdfs"),
    _against(0.45, "W1 batch", "rocksdb-changelog"),
    _against(0.6, "W1 first batch", "hdfs"),
    _against(1.05, "W1 first batch", "hdfs", OUR_ROCKSDB, "rocksdb backend, W1 first batch"),
    *(
        figure
        for ours, title in ((OURS, "W1 batch"), (OUR_ROCKSDB, "rocksdb backend, W1 batch"))
        for figure in (
            _against(1.25, "W1 batch", FINDING, ours, title),
            _own_against(0.15, "W1 batch", "hdfs", ours, title),
        )
    ),
    _against(0.5, "W1 commit", "hdfs"),
    _against(0.2, "W2-1M batch", "hdfs"),
    Figure(
        "W2-1M batch / W2-10k batch",
        1.2,
        "x",
        lambda r: r.value("W2-1M batch") / r.value("W2-10k batch"),
    ),
    _against(0.5, "W3 start to first result", "hdfs"),
    _against(0.5, "W3 restore", "hdfs"),
    *(_against_raw_write(delta, value) for delta in (10, 40) for value in (100, 1_000)),
    Figure("heap per entry - payload", 32, "B", _heap_overhead),
    Figure(
        "heap per entry / HDFS-backed",
        0.45,
        "x",
        lambda r: r.ratio("heap per entry updated", "hdfs"),
    ),
    Figure("engine memory with a snapshot in flight / one version", 1.2, "x", _engine_memory),
    Figure("py4j calls a partition a batch", 1, "", _engine_calls),
    *(
        _against(
            limit, metric, "rocksdb-changelog", OUR_ROCKSDB, title=f"rocksdb backend, {metric}"
        )
        for metric, limit in (
            ("W1 batch", 0.5),
            ("W1 first batch", 0.5),
            ("W1 commit", 0.6),
            ("W3 start to first result", 0.5),
        )
    ),
    *(
        figure
        for ours, limit, title in (
            (OURS, 0.5, "W9-{} batch"),
            (OUR_ROCKSDB, 0.7, "rocksdb backend, W9-{} batch"),
        )
        for kind in VARIABLES
        for figure in (
            _against(limit, f"W9-{kind} batch", "rocksdb-changelog", ours, title.format(kind)),
            _own_against(0.6, f"W9-{kind} batch", "rocksdb-changelog", ours, title.format(kind)),
        )
    ),
    *(
        Figure(
            f"{title}W7 batch, own cost",
            400,
            "ms",
            lambda r, ours=ours: _own_cost(r, "W7 batch", ours),  # type: ignore[misc]
        )
        for ours, title in ((OURS, ""), (OUR_ROCKSDB, "rocksdb backend, "))
    ),
    *(
        figure
        for ours, title in ((OURS, ""), (OUR_ROCKSDB, "rocksdb backend, "))
        for metric in ("W8-join-4 batch", "W8-join-4 CPU")
        for figure in (
            _against(1.0, metric, "rocksdb-changelog", ours, f"{title}{metric}"),
            _own_against(0.4, metric, "rocksdb-changelog", ours, f"{title}{metric}"),
        )
    ),
    *(
        Figure(
            f"heap backend, {metric} / filesystem",
            1.1,
            "x",
            lambda r, metric=metric: r.value(metric, "heap") / r.value(metric),  # type: ignore[misc]
        )
        for metric in ("W1 batch", "W2-1M batch", "W2-10k batch")
    ),
)


def _natural(metric: str) -> list[tuple[int, int | str]]:
    """Sort numbers in a name by value."""
    words = metric.split()
    return [(0, int(word)) if word.isdigit() else (1, word) for word in words]
