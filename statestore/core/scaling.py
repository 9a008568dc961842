"""How many state partitions a query is to have, by the load that its batches tell.

The rules have sources. Busy is a batch that takes nine tenths of its time, idle one that takes
three: the ratios of Spark's own ExecutorAllocationManager of DStreams. What is wanted is a busy
share of 0.7, `job.autoscaler.target.utilization` of Flink's autoscaler (FLIP-271). Where rows wait
to be read, the share is what DS2 (OSDI 2018) makes of rates: rows that arrive by rows that an
always busy query reads; and as in Flink what waits is to be read in half an hour.

A steady load ends in one number, whatever a state partition costs: a number that a load was too
much for is not gone back to before the load has fallen. The number does not rise again where the
last rise did not make rows cheaper, as with a slow sink or one hot key.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BUSY, IDLE = 0.9, 0.3
"""Shares above which the number rises, and below which it falls."""
TARGET = 0.7
"""The share that a number is chosen for."""
CATCH_UP_S = 1800.0
"""In which time rows that wait are to be read, beside those that arrive."""
LEAST_BATCHES = 3
"""So many batches decide at least."""
_FALLEN = 0.8
"""Part of a load that was too much for a number, below which the number is tried again."""
_HELPED = 0.9
"""Part of the cost of a row, of before a rise, below which the rise has helped."""


@dataclass(frozen=True, slots=True)
class Load:
    """A query's load, as one batch tells.

    Attributes:
        at_ms: When it was noticed, milliseconds of any clock that does not go back.
        duration_ms: How long the batch took.
        arriving: Rows a second that were read, by the time since the batch before was begun; None
            of the first batch of a run, of which that is unknown.
        processed: Rows a second while the batch ran; 0 where it had none.
        backlog: Rows that wait to be read; None where the sources do not tell.
    """

    at_ms: float
    duration_ms: float
    arriving: float | None = 0.0
    processed: float = 0.0
    backlog: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Another number of state partitions.

    Attributes:
        num_partitions: The number to have.
        reason: Why, in words.
    """

    num_partitions: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ms: float
    busy: float
    rate: float
    """Rows a second that were to be read: those that arrived, and some of those that waited."""


class Scaler:
    """Decides for one query, as long as its program supervises it.

    Args:
        numbers: The numbers to choose from, ascending, at least one.
        interval_ms: Time that a batch may take.
        cool_down_ms: From one change to the next at least, and how long the load is low before the
            number falls.
        now_ms: The time, by the clock of `Load.at_ms`.
    """

    def __init__(
        self, numbers: Sequence[int], interval_ms: float, cool_down_ms: float, now_ms: float
    ) -> None:
        self._numbers = tuple(numbers)
        self._interval_ms = interval_ms
        self._cool_down_ms = cool_down_ms
        self._looked_back_ms = max(cool_down_ms, LEAST_BATCHES * interval_ms)
        self._changed_ms = self._ended_ms = now_ms  # the newest change; batch, or start of a run
        self._began_ms = now_ms - self._looked_back_ms  # since when batches are known
        self._has_tried = False  # a number outside of those allowed is left at the start at once
        self._waiting: tuple[float, int] | None = None  # when, and how many rows
        self._samples: deque[_Sample] = deque()
        self._too_much: dict[int, _Sample] = {}  # the load at which a number was risen from
        self._risen_from: int | None = None

    def note(self, load: Load) -> None:
        """Take a batch into account."""
        if self.is_silent(load.at_ms - load.duration_ms):
            self._samples.clear()
        self._ended_ms = load.at_ms
        growth = 0.0
        if load.backlog is not None:
            if self._waiting is not None and load.at_ms > self._waiting[0]:
                at_ms, waiting = self._waiting
                growth = (load.backlog - waiting) * 1000 / (load.at_ms - at_ms)
            self._waiting = load.at_ms, load.backlog
        if load.arriving is None:
            return
        if load.backlog and load.processed:
            rate = max(0.0, load.arriving + growth) + load.backlog / CATCH_UP_S
            busy = rate / load.processed
        else:
            # Rows of an overloaded query have arrived in the time that the batch before took.
            rate = load.arriving
            arrived_ms = rate and load.duration_ms * load.processed / rate
            busy = load.duration_ms / max(self._interval_ms, arrived_ms)
        self._samples.append(_Sample(load.at_ms, busy, rate))

    def decide(self, num_partitions: int, now_ms: float) -> Decision | None:
        """Return another number of state partitions, or None to keep the one there is.

        To be asked when a batch has just ended, or none is under way.

        Args:
            num_partitions: The number now.
            now_ms: The time.
        """
        is_cool = now_ms - self._changed_ms >= self._cool_down_ms
        if num_partitions not in self._numbers and (is_cool or not self._has_tried):
            nearest = min(self._numbers, key=lambda number: abs(number - num_partitions))
            return Decision(nearest, f"{num_partitions} is none of the numbers allowed")
        if not is_cool:
            return None
        self._forget(now_ms)
        return self._rise(num_partitions, now_ms) or self._fall(num_partitions, now_ms)

    def started(self, now_ms: float) -> None:
        """Begin a run of the query: that none ran before it does not mean that no rows came."""
        if not self._samples or now_ms - self._samples[-1].at_ms > self._looked_back_ms:
            self._samples.clear()
            self._began_ms = now_ms
        self._ended_ms = now_ms

    def changed(self, num_partitions: int, before: int, now_ms: float) -> None:
        """Begin anew after a change: what batches told in another number tells nothing now."""
        self._has_tried = True
        newest = self._newest(now_ms)
        if num_partitions > before and newest:
            self._too_much[before] = _middle(newest)
            self._risen_from = before
        else:
            self._risen_from = None
        self._changed_ms = self._ended_ms = now_ms
        self._samples.clear()
        self._waiting = None

    def _forget(self, now_ms: float) -> None:
        """Let go of what is not looked back to."""
        while (
            len(self._samples) > LEAST_BATCHES
            and now_ms - self._samples[0].at_ms > self._looked_back_ms
        ):
            self._samples.popleft()

    def is_silent(self, now_ms: float) -> bool:
        """Return whether no batch has run for as long as is looked back."""
        return now_ms - self._ended_ms > self._looked_back_ms

    def _newest(self, now_ms: float) -> list[_Sample]:
        """Return those of the last fifth of the time looked back to, or the newest few."""
        if self.is_silent(now_ms):
            return []
        since_ms = now_ms - self._looked_back_ms / 5
        newest = [sample for sample in self._samples if sample.at_ms > since_ms]
        return max(newest, list(self._samples)[-LEAST_BATCHES:], key=len)

    def _rise(self, now: int, now_ms: float) -> Decision | None:
        newest = self._newest(now_ms)
        if len(newest) < LEAST_BATCHES:
            return None
        load = _middle(newest)
        if load.busy <= BUSY or now == self._numbers[-1]:
            return None
        before = self._too_much[self._risen_from] if self._risen_from is not None else None
        if before is not None and load.busy * before.rate > _HELPED * before.busy * load.rate:
            return None
        wanted = now * load.busy / TARGET
        number = next((one for one in self._numbers if one >= wanted), self._numbers[-1])
        return Decision(number, f"{_described(load)}, more than {BUSY:.0%}")

    def _fall(self, now: int, now_ms: float) -> Decision | None:
        since_ms = now_ms - self._looked_back_ms
        recent = [sample for sample in self._samples if sample.at_ms > since_ms]
        is_known = recent and self._began_ms <= since_ms
        if not (is_known or self.is_silent(now_ms)):
            return None
        load = _high(recent, now_ms)
        if load.busy >= IDLE:
            return None
        for number in self._numbers:
            if number >= now:
                return None
            too_much = self._too_much.get(number)
            is_low = too_much is None or load.rate < _FALLEN * too_much.rate
            if is_low and number >= now * load.busy / TARGET:
                return Decision(number, f"{_described(load)}, less than {IDLE:.0%}")
        return None


def _middle(samples: Sequence[_Sample]) -> _Sample:
    return _Sample(
        samples[-1].at_ms,
        median(sample.busy for sample in samples),
        median(sample.rate for sample in samples),
    )


def _high(samples: Sequence[_Sample], now_ms: float) -> _Sample:
    """Return the value that nine tenths of the samples are not above; 0 without samples."""
    if not samples:
        return _Sample(now_ms, 0.0, 0.0)
    last = math.ceil(0.9 * len(samples)) - 1
    return _Sample(
        now_ms,
        sorted(sample.busy for sample in samples)[last],
        sorted(sample.rate for sample in samples)[last],
    )


def _described(load: _Sample) -> str:
    return f"busy {load.busy:.0%} of the time at {load.rate:.0f} rows/s"
