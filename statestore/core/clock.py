"""The clock: the only module that asks for the time of day, so that tests can stop it."""

from __future__ import annotations

import math
import time
from typing import Protocol

LAST_MS = 253_402_300_799_999
"""The last millisecond that a calendar has, of the year 9999."""


class Clock(Protocol):
    """Source of time. Implementations are thread-safe."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch, for comparing with file times."""
        ...

    def elapsed_ms(self) -> float:
        """Return milliseconds since an arbitrary point, never going backwards, for durations."""
        ...

    def sleep_ms(self, duration_ms: float) -> None:
        """Return when that many milliseconds, at least 0, have passed."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> float:
        """Return milliseconds of the monotonic clock."""
        return time.perf_counter() * 1000.0

    def sleep_ms(self, duration_ms: float) -> None:
        """Let the thread sleep."""
        time.sleep(duration_ms / 1000.0)


class ManualClock:
    """A clock that stands still until it is advanced; for tests."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the time set by the constructor and `advance`."""
        return self._now_ms

    def elapsed_ms(self) -> float:
        """Return the same time as a float."""
        return float(self._now_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        """Move the clock forward at once, by whole milliseconds."""
        self.advance(math.ceil(duration_ms))

    def advance(self, by_ms: int) -> None:
        """Move the clock forward by a number of milliseconds, at least 0."""
        self._now_ms += by_ms
