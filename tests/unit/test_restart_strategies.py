"""Restart strategies: which failures they answer with a restart, and after which delay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.core.clock import ManualClock
from statestore.core.errors import InvalidArgumentError
from statestore.core.restart_strategies import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)

STEADY = {"jitter_factor": 0.0}


def answers(strategy: RestartStrategy, runs_ms: list[int]) -> Iterator[int]:
    """Yield the delay after each failure of a query that runs so long each time."""
    clock = ManualClock()
    delays = strategy.delays(clock)
    for run_ms in runs_ms:
        clock.advance(run_ms)
        delay = next(delays, None)
        if delay is None:
            return
        yield delay
        clock.sleep_ms(delay)


def test_defaults_are_those_of_flink():
    """Catches a default that a reader of Flink's documents would not expect."""
    assert (FixedDelay().attempts, FixedDelay().delay) == (1, 1)
    rate = FailureRate()
    assert (rate.max_failures_per_interval, rate.failure_rate_interval, rate.delay) == (1, 60, 1)
    growing = ExponentialDelay()
    assert (growing.initial_backoff, growing.max_backoff) == (1, 60)
    assert (growing.backoff_multiplier, growing.jitter_factor) == (1.5, 0.1)
    assert growing.reset_backoff_threshold == 3600
    assert growing.attempts_before_reset_backoff is None


def test_flinks_example_gives_the_delays_its_documents_say():
    """Catches a delay that is doubled too early or too late, or not capped."""
    strategy = ExponentialDelay(1, 10, backoff_multiplier=2, **STEADY)

    assert list(answers(strategy, [1] * 7)) == [1000, 2000, 4000, 8000, 10_000, 10_000, 10_000]


def test_no_restart_gives_none():
    """Catches a restart that nobody asked for."""
    assert list(answers(NoRestart(), [1])) == []


@given(st.integers(0, 20), st.integers(0, 100_000), st.integers(0, 1_000_000))
def test_fixed_delay_restarts_its_number_of_times(attempts: int, delay_ms: int, run_ms: int):
    """Catches a count that is off by one, or that a long run sets back."""
    strategy = FixedDelay(attempts, timedelta(milliseconds=delay_ms))

    assert list(answers(strategy, [run_ms] * (attempts + 5))) == [delay_ms] * attempts


@given(
    st.integers(1, 5),
    st.integers(1, 500),
    st.integers(0, 50),
    st.lists(st.integers(0, 300), max_size=40),
)
def test_failure_rate_ends_with_the_failure_that_is_one_too_many(
    allowed: int, interval_ms: int, delay_ms: int, runs_ms: list[int]
):
    """Catches a window that forgets or keeps failures wrongly, against counting them all."""
    strategy = FailureRate(allowed, interval_ms / 1000, delay_ms / 1000)

    given_delays = list(answers(strategy, runs_ms))

    expected = len(runs_ms)
    times = [at + delay_ms * n for n, at in enumerate(itertools.accumulate(runs_ms))]
    for n, now in enumerate(times):
        if sum(now - at <= interval_ms for at in times[: n + 1]) > allowed:
            expected = n
            break
    assert given_delays == [delay_ms] * expected


backoffs = st.tuples(st.integers(1, 10_000), st.integers(0, 100_000)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)


@given(backoffs, st.floats(1.001, 10), st.floats(0, 1), st.integers(0, 2**32))
def test_exponential_delay_stays_within_its_bounds(
    bounds: tuple[int, int], multiplier: float, jitter: float, seed: int
):
    """Catches jitter beyond its part of the backoff, and delays outside of the bounds."""
    first, most = bounds
    strategy = ExponentialDelay(
        first / 1000, most / 1000, multiplier, jitter_factor=jitter, seed=seed
    )

    delays = list(answers(strategy, [1] * 30))

    for attempt, delay in enumerate(delays):
        backoff = first * multiplier**attempt
        assert min(most, max(first, backoff * (1 - jitter))) - 1 <= delay
        assert delay <= max(first, min(most, backoff * (1 + jitter))) + 1
        assert first <= delay <= most
    assert delays == list(answers(strategy, [1] * 30))


@given(backoffs, st.floats(1.001, 10))
def test_exponential_delay_grows_up_to_its_maximum(bounds: tuple[int, int], multiplier: float):
    """Catches a backoff that falls, or that never reaches the maximum."""
    first, most = bounds
    strategy = ExponentialDelay(first / 1000, most / 1000, multiplier, **STEADY)

    steps = math.ceil(math.log(most / first, multiplier)) + 2
    delays = list(itertools.islice(strategy.delays(ManualClock()), steps))

    assert delays[0] == first
    assert delays == sorted(delays)
    assert delays[-1] == most


@given(st.integers(1, 6), st.lists(st.booleans(), max_size=40))
def test_exponential_delay_starts_over_after_a_long_run(allowed: int, ran_well: list[bool]):
    """Catches a reset that comes too early, too late, or leaves the count of attempts."""
    threshold_ms = 600_000
    strategy = ExponentialDelay(
        1, 100, 2, threshold_ms / 1000, attempts_before_reset_backoff=allowed, **STEADY
    )
    runs_ms = [threshold_ms if well else threshold_ms - 1 for well in ran_well]

    delays = list(answers(strategy, runs_ms))

    expected: list[int] = []
    attempt = 0
    for well in ran_well:
        attempt = 0 if well else attempt
        if attempt == allowed:
            break
        expected.append(min(1000 * 2**attempt, 100_000))
        attempt += 1
    assert delays == expected


def test_runs_without_a_seed_do_not_restart_together():
    """Catches queries that all come back at the same moment."""
    strategy = ExponentialDelay(60, 600, jitter_factor=1)

    assert list(answers(strategy, [1] * 5)) != list(answers(strategy, [1] * 5))


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: FixedDelay(-1), "attempts"),
        (lambda: FixedDelay(2.0), "attempts"),
        (lambda: FixedDelay(1, -1), "delay"),
        (lambda: FixedDelay(1, float("inf")), "delay"),
        (lambda: FixedDelay(3, "10s"), "delay"),
        (lambda: FixedDelay(3, True), "delay"),
        (lambda: FailureRate(1, "5 min"), "failure_rate_interval"),
        (lambda: ExponentialDelay("1s"), "initial_backoff"),
        (lambda: ExponentialDelay(max_backoff=None), "max_backoff"),
        (lambda: FailureRate(0), "max_failures_per_interval"),
        (lambda: FailureRate(2.0), "max_failures_per_interval"),
        (lambda: FailureRate(failure_rate_interval=0), "failure_rate_interval"),
        (lambda: FailureRate(delay=timedelta(seconds=-1)), "delay"),
        (lambda: ExponentialDelay(initial_backoff=0), "initial_backoff"),
        (lambda: ExponentialDelay(2, 1), "max_backoff"),
        (lambda: ExponentialDelay(max_backoff=float("nan")), "max_backoff"),
        (lambda: ExponentialDelay(backoff_multiplier=1), "backoff_multiplier"),
        (lambda: ExponentialDelay(reset_backoff_threshold=0), "reset_backoff_threshold"),
        (lambda: ExponentialDelay(jitter_factor=1.5), "jitter_factor"),
        (
            lambda: ExponentialDelay(attempts_before_reset_backoff=0),
            "attempts_before_reset_backoff",
        ),
        (
            lambda: ExponentialDelay(attempts_before_reset_backoff=2.5),
            "attempts_before_reset_backoff",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(make, argument: str):
    """Catches a strategy that fails only when the first failure comes."""
    with pytest.raises(InvalidArgumentError) as raised:
        make()

    assert raised.value.fields["argument"] == argument
