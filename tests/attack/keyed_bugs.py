"""Bugs to be planted in keyed state on Spark's workers: the lane must find each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statestore.keyed.descriptors import StateTtlConfig
from statestore.keyed.runtime import TimerService
from statestore.keyed.states import _Row

if TYPE_CHECKING:
    from collections.abc import Callable


def _keeps_a_row() -> None:
    """A value that the next key finds, for it was read or written by the key before."""

    def flush(self: Any) -> None:
        if self._is_changed and self._row is None:
            self._variable.clear()
        elif self._is_changed:
            self._variable.update(self._row)
        self._is_changed = False

    _Row.flush = flush  # type: ignore[method-assign]


def _renews_nothing() -> None:
    """A read that starts no time to live anew."""
    StateTtlConfig.is_on_read = property(lambda self: False)  # type: ignore[assignment]


def _fires_deleted() -> None:
    """A timer that fires though another one deleted it."""
    TimerService.fire = lambda self, timestamp: True  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "keeps-a-row": _keeps_a_row,
    "renews-nothing": _renews_nothing,
    "fires-deleted": _fires_deleted,
}
