"""Signs of life of a call that takes long: whoever waits for it tells it from one that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

STEP_BYTES = 8 << 20
"""Bytes that are copied, or checked, on the local disk for a step."""

_WATCHED_S = 0.2


class Steps:
    """Steps that one call has done, of any kind: a number that grows says that the call goes on."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        """Count a step; some are lost where threads count at the same time, which does no harm."""
        self.steps += 1


_of_this_call: ContextVar[Steps | None] = ContextVar("statestore_steps", default=None)


def step(**_: object) -> None:
    """Say that the call under way goes on: bytes have moved, or a file is done.

    A thread that works for a call must run in a copy of its context, as those of a CallPool do.
    """
    steps = _of_this_call.get()
    if steps is not None:
        steps.step()


@contextmanager
def watched(steps: Steps) -> Iterator[None]:
    """Count what is done in this context as steps of a call."""
    token = _of_this_call.set(steps)
    try:
        yield
    finally:
        _of_this_call.reset(token)


class CallPool(ThreadPoolExecutor):
    """Threads that each work in the context of the call that handed them the work."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See Executor."""
        return super().submit(copy_context().run, fn, *args, **kwargs)


def wait_with_steps(future: Future[Any], timeout_s: float) -> None:
    """Wait for a future, for so many seconds at most: the call goes on meanwhile. Never raises."""
    end = time.monotonic() + timeout_s
    while not wait([future], min(_WATCHED_S, max(0.0, end - time.monotonic()))).done:
        if time.monotonic() >= end:
            return
        step()


class Turn:
    """A lock for which calls wait; a call that waits goes on while the one that has it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Steps | None = None

    def __enter__(self) -> None:
        seen = -1
        while not self._lock.acquire(timeout=_WATCHED_S):
            holder = self._holder
            if holder is not None and holder.steps != seen:
                seen = holder.steps
                step()
        self._holder = _of_this_call.get()

    def __exit__(self, *_: object) -> None:
        self.release()

    def try_acquire(self, timeout_s: float = 0.0) -> bool:
        """Take the turn unless other calls have it for so many seconds; `release` ends it."""
        is_taken = self._lock.acquire(timeout=timeout_s)
        if is_taken:
            self._holder = _of_this_call.get()
        return is_taken

    def release(self) -> None:
        """Let the next call have its turn."""
        self._holder = None
        self._lock.release()
