"""W4 and W5: a store without a query."""

from __future__ import annotations

from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.measurements import Measurements
from benchmarks.recording import record, replayed_time

pytestmark = [pytest.mark.benchmark(timer=replayed_time), pytest.mark.timeout(7200)]

OPERATIONS = ("getStore", "get", "put", "remove", "evict", "commit")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation(
    benchmark: BenchmarkFixture,
    store_measurements: Measurements,
    operation: str,
    rows: int,
    overlap: int,
    provider: str,
) -> None:
    """W4: `rows` operations of one kind, of whose keys `overlap` percent exist.

    getStore is one call; evict scans all rows and removes `overlap` percent of them.
    """
    runs = store_measurements.store("operations", provider).checked()
    samples = [
        [ns * rows / 1e6 for ns in result["ns_per_row"][operation]]
        for run in runs
        for result in run
        if (result["rows"], result["overlap"]) == (rows, overlap)
    ]
    ns_per_row = median(ms for one_round in samples for ms in one_round) * 1e6 / rows
    metric = f"W4 {operation} {rows} rows {overlap} % overlap"
    record(benchmark, metric, provider, samples, rows=rows, ns_per_row=ns_per_row)


def test_commit_against_raw_write(
    benchmark: BenchmarkFixture,
    store_measurements: Measurements,
    delta_bytes: int,
    value_bytes: int,
    provider: str,
) -> None:
    """W5: a commit, and beside it the raw durable write of as many bytes as it published."""
    runs = store_measurements.store("commits", provider).checked()
    results = [
        result
        for run in runs
        for result in run
        if (result["delta_bytes"], result["value_bytes"]) == (delta_bytes, value_bytes)
    ]
    raw_ms = median(ms for result in results for ms in result["raw_ms"])
    commits = [metrics for result in results for metrics in result["custom_metrics"]]
    metric = f"W5 commit {delta_bytes // 1_000_000} MB of {value_bytes} B values"
    record(
        benchmark,
        metric,
        provider,
        [result["commit_ms"] for result in results],
        rows=results[0]["rows"],
        published_bytes=median(size for result in results for size in result["published_bytes"]),
        raw_write_ms=raw_ms,
        custom_metrics={
            name: median(metrics[name] for metrics in commits) for name in sorted(commits[0])
        },
    )
