"""Hands measured values to pytest-benchmark.

The values were measured inside the JVMs. A clock that only moves when told is pytest-benchmark's
timer, so its statistics and its JSON are about the measured times and not about this process.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

_now_s = 0.0


def replayed_time() -> float:
    """Return the time of the replay, in seconds; the timer of every benchmark here."""
    return _now_s


def record(
    benchmark: BenchmarkFixture,
    metric: str,
    provider: str,
    rounds_ms: list[list[float]],
    **counters: Any,
) -> None:
    """Record measured times as the rounds of a pytest-benchmark.

    Args:
        benchmark: The fixture.
        metric: Name of what was measured, such as `W1 batch`.
        provider: ID of the provider.
        rounds_ms: Times in ms, one list a round; all samples together make the median.
        counters: Exact figures to keep beside the times.
    """
    samples = iter([sample for samples in rounds_ms for sample in samples])

    def advance() -> None:
        global _now_s
        _now_s += next(samples) / 1000

    benchmark.group = metric
    benchmark.extra_info.update(
        metric=metric,
        provider=provider,
        unit="ms",
        value=median(sample for samples in rounds_ms for sample in samples),
        round_medians=[median(samples) for samples in rounds_ms],
        **counters,
    )
    replay: Any = benchmark.pedantic
    replay(advance, rounds=sum(len(samples) for samples in rounds_ms))


def record_bytes(
    benchmark: BenchmarkFixture,
    metric: str,
    provider: str,
    values: list[float],
    wall_s: list[float],
    **counters: Any,
) -> None:
    """Record measured bytes, one value a round, with the wall times of the runs as the times."""
    record(benchmark, metric, provider, [[seconds * 1000] for seconds in wall_s], **counters)
    benchmark.extra_info.update(unit="B", value=median(values), round_medians=values)
