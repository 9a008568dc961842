"""What became of a supervised query: how often it was started and how it failed."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_FAILURES_KEPT = 100
"""How many failures, the newest, a Restart holds."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a supervised query.

    Attributes:
        attempt: Which start it was, counted from 1.
        at_ms: When it was noticed, milliseconds since the Unix epoch.
        reason: The line of the error that says most, at most 500 characters.
        obstacle: What makes a restart useless; None when the failure was worth one.
        delay_ms: Milliseconds from the failure to the next start; None when there was none.
    """

    attempt: int
    at_ms: int
    reason: str
    obstacle: str | None = None
    delay_ms: int | None = None


@dataclass(slots=True)
class Restart:
    """What became of a supervised query.

    Attributes:
        attempts: How often it was started, or was tried to be; also in another number of state
            partitions.
        failures: The newest MAX_FAILURES_KEPT failures, oldest first.
    """

    attempts: int = 0
    failures: list[Failure] = field(default_factory=list)

    def note(self, failure: Failure) -> None:
        """Add a failure; the oldest goes when there are too many."""
        self.failures = [*self.failures, failure][-MAX_FAILURES_KEPT:]
