"""Restart strategies: how often and after which delay a failed query is started again.

They are Flink's, with its names, defaults and rules. A strategy is a value that any number of
supervised queries may share; what one of them has used up is in the iterator of `delays`.
Durations are a timedelta or a number of seconds.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from statestore.core.clock import Clock
from statestore.core.durations import Duration, duration_ms, lasts
from statestore.core.errors import InvalidArgumentError

_LARGEST_BACKOFF_MS = 1e300  # a float that can still be multiplied
_AT_LEAST = "a timedelta, or seconds, of at least"


class RestartStrategy(Protocol):
    """Says after each failure whether and when to start again."""

    def delays(self, clock: Clock) -> Iterator[int]:
        """Return an iterator that is asked once at every failure, at the time of the failure.

        Args:
            clock: Tells how far apart the failures are.

        Returns:
            Milliseconds until the next start, at least 0; ended when there is to be none.
        """
        ...


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure is the last."""

    def delays(self, clock: Clock) -> Iterator[int]:  # noqa: ARG002
        """Return an iterator without items."""
        return iter(())


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """A number of restarts, each after the same delay. The count never goes back.

    Args:
        attempts: Restarts, at least 0; the query is started at most `attempts` + 1 times.
        delay: Time between a failure and the next start, at least 0.

    Raises:
        InvalidArgumentError: A value is out of range.
    """

    attempts: int = 1
    delay: Duration = 1.0

    def __post_init__(self) -> None:
        _require(_is_whole(self.attempts, 0), "attempts", self.attempts, "a whole number from 0")
        _require(lasts(self.delay, 0), "delay", self.delay, f"{_AT_LEAST} 0")

    def delays(self, clock: Clock) -> Iterator[int]:  # noqa: ARG002
        """Return the delay, `attempts` times."""
        return itertools.repeat(duration_ms(self.delay), self.attempts)


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restarts while failures are rare: no more than so many within an interval.

    Args:
        max_failures_per_interval: Failures within an interval that are answered by a restart, at
            least 1; one more within it ends the query.
        failure_rate_interval: Length of the interval, more than 0; it slides.
        delay: Time between a failure and the next start, at least 0.

    Raises:
        InvalidArgumentError: A value is out of range.
    """

    max_failures_per_interval: int = 1
    failure_rate_interval: Duration = 60.0
    delay: Duration = 1.0

    def __post_init__(self) -> None:
        allowed = self.max_failures_per_interval
        is_allowed = _is_whole(allowed, 1)
        _require(is_allowed, "max_failures_per_interval", allowed, "a whole number from 1")
        interval = self.failure_rate_interval
        _require(lasts(interval, 1), "failure_rate_interval", interval, f"{_AT_LEAST} 0.001")
        _require(lasts(self.delay, 0), "delay", self.delay, f"{_AT_LEAST} 0")

    def delays(self, clock: Clock) -> Iterator[int]:
        """Yield the delay until the failures of an interval are one too many."""
        failures: deque[float] = deque(maxlen=self.max_failures_per_interval + 1)
        while True:
            failures.append(clock.elapsed_ms())
            is_full = len(failures) == failures.maxlen
            if is_full and failures[-1] - failures[0] <= duration_ms(self.failure_rate_interval):
                return
            yield duration_ms(self.delay)


@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """Restarts after growing delays, which start over once the query has run well for a while.

    Args:
        initial_backoff: First delay, and the least, at least 0.001 s.
        max_backoff: Largest delay, at least `initial_backoff`.
        backoff_multiplier: Factor from one delay to the next, more than 1.
        reset_backoff_threshold: Time from a restart to the next failure after which delay and
            count of attempts start over, at least 0.001 s.
        jitter_factor: Part of a delay that is added or taken away by chance, 0 to 1, so that many
            queries do not restart at the same time.
        attempts_before_reset_backoff: Restarts without such a time in between, at least 1; None
            for any number.
        seed: Of the generator of the jitter; None for another one in every run.

    Raises:
        InvalidArgumentError: A value is out of range.
    """

    initial_backoff: Duration = 1.0
    max_backoff: Duration = 60.0
    backoff_multiplier: float = 1.5
    reset_backoff_threshold: Duration = 3600.0
    jitter_factor: float = 0.1
    attempts_before_reset_backoff: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        first, most = self.initial_backoff, self.max_backoff
        _require(lasts(first, 1), "initial_backoff", first, f"{_AT_LEAST} 0.001")
        is_allowed = lasts(most, duration_ms(first))
        _require(is_allowed, "max_backoff", most, f"{_AT_LEAST} initial_backoff")
        factor = self.backoff_multiplier
        _require(1 < factor < float("inf"), "backoff_multiplier", factor, "more than 1")
        threshold = self.reset_backoff_threshold
        is_allowed = lasts(threshold, 1)
        _require(is_allowed, "reset_backoff_threshold", threshold, f"{_AT_LEAST} 0.001")
        jitter = self.jitter_factor
        _require(0 <= jitter <= 1, "jitter_factor", jitter, "from 0 to 1")
        attempts = self.attempts_before_reset_backoff
        is_allowed = attempts is None or _is_whole(attempts, 1)
        to_set = "a whole number from 1, or None"
        _require(is_allowed, "attempts_before_reset_backoff", attempts, to_set)

    def delays(self, clock: Clock) -> Iterator[int]:
        """Yield `initial_backoff` times `backoff_multiplier` to the power of restarts so far.

        Jitter is applied to that, and the outcome kept between `initial_backoff` and `max_backoff`.
        """
        generator = np.random.default_rng(self.seed)
        first, most = duration_ms(self.initial_backoff), duration_ms(self.max_backoff)
        attempt, backoff, restarted_at = 0, float(first), 0.0
        while True:
            now = clock.elapsed_ms()
            if attempt and now - restarted_at >= duration_ms(self.reset_backoff_threshold):
                attempt, backoff = 0, float(first)
            if attempt == self.attempts_before_reset_backoff:
                return
            jitter = self.jitter_factor * generator.uniform(-1.0, 1.0)
            delay = round(max(first, min(backoff * (1.0 + jitter), most)))
            attempt += 1
            backoff = min(backoff * self.backoff_multiplier, _LARGEST_BACKOFF_MS)
            restarted_at = now + delay
            yield delay


def _is_whole(number: object, least: int) -> bool:
    try:
        return operator.index(number) >= least  # type: ignore[arg-type]
    except TypeError:
        return False


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise InvalidArgumentError(
            "a restart strategy's value is out of range",
            argument=name,
            value=value,
            to_fix=f"set it to {allowed}",
        )
