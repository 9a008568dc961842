"""W1, W2, W3, W7: the micro-batches of an aggregation. W8: of others. W9: of transformWithState."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.measurements import Measurements
from benchmarks.recording import record, replayed_time
from benchmarks.workloads import READ_FIRST, find_provider

pytestmark = [pytest.mark.benchmark(timer=replayed_time), pytest.mark.timeout(7200)]

DURATIONS = ("addBatch", "queryPlanning", "latestOffset", "walCommit", "commitOffsets")


def test_first_batch(
    benchmark: BenchmarkFixture, measurements: Measurements, query_name: str, provider: str
) -> None:
    """The load: every row is an insert."""
    runs = measurements.from_start(query_name, provider).checked()
    loads = [run["batches"][0] for run in runs]
    rounds = [[load["batch_ms"]] for load in loads]
    record(benchmark, f"{query_name} first batch", provider, rounds, **counters(loads))


def test_batch(
    benchmark: BenchmarkFixture, measurements: Measurements, query_name: str, provider: str
) -> None:
    """An update batch, once warm."""
    runs = measurements.from_start(query_name, provider).checked()
    rounds = [warm_batches(measurements, query_name, provider, run) for run in runs]
    record(
        benchmark,
        f"{query_name} batch",
        provider,
        [[batch["batch_ms"] for batch in batches] for batches in rounds],
        state_files=runs[-1]["state_files"],
        state_bytes=runs[-1]["state_bytes"],
        **counters([batch for batches in rounds for batch in batches]),
    )


def test_commit(
    benchmark: BenchmarkFixture, measurements: Measurements, query_name: str, provider: str
) -> None:
    """The commits of an update batch, summed over the state partitions by Spark."""
    runs = measurements.from_start(query_name, provider).checked()
    rounds = [
        [batch["commit_ms"] for batch in warm_batches(measurements, query_name, provider, run)]
        for run in runs
    ]
    record(benchmark, f"{query_name} commit", provider, rounds)


def test_restart_to_first_result(
    benchmark: BenchmarkFixture, measurements: Measurements, provider: str
) -> None:
    """W3: from the call of start() to the end of the first batch, after W1, in a new JVM."""
    restarts = w1_restarts(measurements, provider)
    record(
        benchmark,
        "W3 start to first result",
        provider,
        [[restart["first_result_ms"]] for restart in restarts],
        first_batch_ms=median(restart["batches"][0]["batch_ms"] for restart in restarts),
        **counters([restart["batches"][0] for restart in restarts]),
    )


def test_restore(benchmark: BenchmarkFixture, measurements: Measurements, provider: str) -> None:
    """W3: how much longer the first batch after the restart takes than the ones that follow."""
    restarts = w1_restarts(measurements, provider)
    record(
        benchmark,
        "W3 restore",
        provider,
        [
            [max(0, times[0] - median(times[1:]))]
            for times in ([batch["batch_ms"] for batch in run["batches"]] for run in restarts)
        ],
    )


def test_variable_batch(
    benchmark: BenchmarkFixture,
    variable_measurements: Measurements,
    variable_name: str,
    provider: str,
) -> None:
    """An update batch of a `transformWithState`, once warm."""
    workload = variable_measurements.suite.query(variable_name)
    reads_back = ("timers", "ttl", *READ_FIRST)
    if workload.variable in reads_back and not find_provider(provider).keeps_state:
        pytest.skip("Spark reads back what it wrote in the same batch")
    runs = variable_measurements.from_start(variable_name, provider).checked()
    rounds = [run["batches"][1 + workload.warm_up_batches :] for run in runs]
    assert all(
        batch["input_rows"] == workload.updates_per_batch for batches in rounds for batch in batches
    )
    if find_provider(provider).tells_its_rows:
        assert all(batches[-1]["state_rows"] >= workload.keys for batches in rounds)
    record(
        benchmark,
        f"{variable_name} batch",
        provider,
        [[batch["batch_ms"] for batch in batches] for batches in rounds],
        state_files=runs[-1]["state_files"],
        state_bytes=runs[-1]["state_bytes"],
        **counters([batch for batches in rounds for batch in batches]),
    )


def test_operator_batch(
    benchmark: BenchmarkFixture,
    operator_measurements: Measurements,
    operator_name: str,
    provider: str,
) -> None:
    """An update batch of a join or of session windows, once warm."""
    rounds = warm_operator_batches(operator_measurements, operator_name, provider)
    runs = operator_measurements.from_start(operator_name, provider).checked()
    record(
        benchmark,
        f"{operator_name} batch",
        provider,
        [[batch["batch_ms"] for batch in batches] for batches in rounds],
        state_files=runs[-1]["state_files"],
        state_bytes=runs[-1]["state_bytes"],
        **counters([batch for batches in rounds for batch in batches]),
    )


def test_operator_cpu(
    benchmark: BenchmarkFixture,
    operator_measurements: Measurements,
    operator_name: str,
    provider: str,
) -> None:
    """What such a batch takes of JVM, engines and Python; others on the machine add less to it."""
    rounds = warm_operator_batches(operator_measurements, operator_name, provider)
    known = [[batch["cpu_ms"] for batch in batches if batch["cpu_ms"]] for batches in rounds]
    record(benchmark, f"{operator_name} CPU", provider, known)


def warm_operator_batches(
    measurements: Measurements, operator_name: str, provider: str
) -> list[list[dict[str, Any]]]:
    """Return for each round the update batches without those that warm up."""
    workload = measurements.suite.query(operator_name)
    runs = measurements.from_start(operator_name, provider).checked()
    rounds = [
        run["batches"][1 + workload.warm_up_batches : 1 + workload.update_batches] for run in runs
    ]
    assert all(len(batches) == len(rounds[0]) > 0 for batches in rounds)
    return rounds


def w1_restarts(measurements: Measurements, provider: str) -> list[dict[str, Any]]:
    """Return the restarts of W1, of a provider whose state outlives its JVM."""
    if not find_provider(provider).is_durable:
        pytest.skip("the state of this provider ends with its JVM")
    return measurements.restart("W1", provider).checked()


def warm_batches(
    measurements: Measurements, query_name: str, provider: str, run: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the update batches of a run without those that warm up."""
    workload = measurements.suite.query(query_name)
    batches: list[dict[str, Any]] = run["batches"][1 + workload.warm_up_batches :]
    assert len(batches) == workload.update_batches - workload.warm_up_batches
    if find_provider(provider).tells_its_rows:
        assert all(batch["state_rows"] == workload.keys for batch in batches)
    assert all(batch["updated_rows"] == workload.updates_per_batch for batch in batches)
    return batches


def counters(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of what Spark and the provider counted in these batches."""
    custom = {name for batch in batches for name in batch["custom_metrics"]}
    return {
        "input_rows": median(batch["input_rows"] for batch in batches),
        "state_rows": median(batch["state_rows"] for batch in batches),
        "state_memory_bytes": median(batch["state_memory_bytes"] for batch in batches),
        "update_ms": median(batch["update_ms"] for batch in batches),
        "commit_ms": median(batch["commit_ms"] for batch in batches),
        "durations_ms": {
            name: median(batch["durations_ms"].get(name, 0) for batch in batches)
            for name in DURATIONS
        },
        "custom_metrics": {
            name: median(batch["custom_metrics"].get(name, 0) for batch in batches)
            for name in sorted(custom)
        },
    }
