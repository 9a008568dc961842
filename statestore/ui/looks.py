"""Looks at checkpoints, whose results are kept for a while: pages ask again and again.

The longer a look took, the longer its result is kept: looking is a fifth of the time at most.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from statestore.core.errors import StateStoreError

if TYPE_CHECKING:
    from statestore.api.checkpoint import Checkpoint
    from statestore.core.clock import Clock
    from statestore.operations.upkeep.query_info import QueryInfo
    from statestore.report.facts import Facts

Seen = TypeVar("Seen")

_KEEP_MS = 1000.0
_KEEP_TIMES = 4
_THREADS = 8


class Kept(Generic[Seen]):
    """The last look at something. Thread-safe: those who ask meanwhile wait for the same look.

    Args:
        look: Looks.
        clock: Tells how old a result is.
    """

    def __init__(self, look: Callable[[], Seen], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._generation = self._kept = object()
        self._kept_until_ms = -math.inf
        self.last: Seen | None = None
        """Result of the last look; None where nobody has looked, or the last look failed."""
        self._problem: StateStoreError | None = None

    def get(self) -> Seen:
        """Return the result of a look.

        Raises:
            StateStoreError: It ended with this.
        """
        with self._lock:
            began_ms = self._clock.elapsed_ms()
            generation = self._generation
            if began_ms >= self._kept_until_ms or generation is not self._kept:
                try:
                    self.last, self._problem = self._look(), None
                except StateStoreError as error:
                    self.last, self._problem = None, error
                ended_ms = self._clock.elapsed_ms()
                keep_ms = max(_KEEP_MS, _KEEP_TIMES * (ended_ms - began_ms))
                self._kept, self._kept_until_ms = generation, ended_ms + keep_ms
            if self._problem is not None:
                raise self._problem.with_traceback(None)
            return cast("Seen", self.last)

    def forget(self) -> None:
        """Look anew the next time: something was changed. A look that is under way is not kept."""
        self._generation = object()


class Looks:
    """The looks at one checkpoint.

    Args:
        checkpoint: The checkpoint.
        report: Gathers the facts of its page.
        clock: As `Kept`.

    Attributes:
        facts: All that its page shows, which takes a read of every trailer.
        query: Its query, which takes a few small files.
    """

    def __init__(
        self, checkpoint: Checkpoint, report: Callable[[Checkpoint], Facts], clock: Clock
    ) -> None:
        self.checkpoint = checkpoint
        self.facts: Kept[Facts] = Kept(lambda: report(checkpoint), clock)
        self.query: Kept[QueryInfo] = Kept(lambda: checkpoint.query, clock)

    def forget(self) -> None:
        """Look anew the next time."""
        self.facts.forget()
        self.query.forget()


def look_at_all(looks: Sequence[Looks]) -> list[tuple[QueryInfo | None, str | None]]:
    """Look at the queries of all checkpoints, several at once."""

    def look(one: Looks) -> tuple[QueryInfo | None, str | None]:
        try:
            return one.query.get(), None
        except StateStoreError as error:
            return None, str(error)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(look, looks))
