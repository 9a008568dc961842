"""Memory of the working view in the JVM, and of the engine while it takes a snapshot."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.measurements import Measurements
from benchmarks.recording import record_bytes, replayed_time
from benchmarks.workloads import OURS

pytestmark = [pytest.mark.benchmark(timer=replayed_time), pytest.mark.timeout(7200)]


@pytest.mark.parametrize("state", ["loaded", "updated"])
def test_heap_per_entry(
    benchmark: BenchmarkFixture, store_measurements: Measurements, state: str, provider: str
) -> None:
    """Live heap with W1's state minus without, an entry: after the load, and after updates."""
    runs = store_measurements.store("heap", provider)
    results = runs.checked()
    record_bytes(
        benchmark,
        f"heap per entry {state}",
        provider,
        [result[f"{state}_heap_bytes"] / result["entries"] for result in results],
        runs.wall_s,
        entries=results[0]["entries"],
        payload_bytes_per_entry=results[0]["payload_bytes"] / results[0]["entries"],
        memory_used_bytes=results[-1]["memory_used_bytes"],
    )


def test_engine_memory_during_snapshot(
    benchmark: BenchmarkFixture, store_measurements: Measurements, provider: str
) -> None:
    """Growth of the engine's anonymous memory from before the state to the snapshot's peak."""
    if provider != OURS:
        pytest.skip("this provider has no engine process")
    runs = store_measurements.store("snapshot", provider)
    # Only one engine serves the one state partition: the one whose memory grows.
    engines = [
        max(result, key=lambda engine: engine["peak_bytes"] - engine["before_bytes"])
        for result in runs.checked()
    ]
    record_bytes(
        benchmark,
        "engine memory during snapshot",
        provider,
        [engine["peak_bytes"] - engine["before_bytes"] for engine in engines],
        runs.wall_s,
        **engines[-1],
    )
