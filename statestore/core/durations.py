"""Durations as people give them."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from statestore.core.errors import InvalidArgumentError

Duration = timedelta | float
"""A timedelta, or seconds; kept to the millisecond."""


def duration_ms(duration: Duration) -> int:
    """Return a duration in milliseconds; it is finite."""
    if isinstance(duration, timedelta):
        return round(duration / timedelta(milliseconds=1))
    return round(duration * 1000)


def lasts(duration: object, least_ms: int) -> bool:
    """Return whether this is a duration, finite, and at least so many milliseconds."""
    if not isinstance(duration, timedelta | float | int) or isinstance(duration, bool):
        return False
    is_finite = isinstance(duration, timedelta) or math.isfinite(duration)
    return is_finite and duration_ms(duration) >= least_ms


def require_duration(name: str, duration: Duration, least_ms: int = 1000) -> int:
    """Return a duration of at least a second in milliseconds.

    Args:
        name: Its name in errors.
        duration: A timedelta, or seconds.
        least_ms: The least, where it is not a second; 0 for one that may be none.

    Raises:
        InvalidArgumentError: It is shorter, not finite, or no duration.
    """
    if not lasts(duration, least_ms):
        given: dict[str, Any] = {name: duration}
        problem = f"`{name}` is not a duration of at least {'a second' if least_ms else '0'}"
        to_fix = "give a timedelta, or seconds"
        raise InvalidArgumentError(problem, to_fix=to_fix, **given)
    return duration_ms(duration)
