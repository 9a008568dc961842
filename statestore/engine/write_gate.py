"""The gate that every write of an engine passes, open as long as its JVM lives."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from statestore.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


class WriteGate:
    """Lets writes through until it is closed, or the parent process is gone.

    A JVM's leases cover its engines' writes, so none may come after they end. Thread-safe.
    """

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._changed = threading.Condition()
        self._num_writes = 0
        self._is_closed = False

    @contextmanager
    def write(self) -> Iterator[None]:
        """Let one write through: the block.

        Raises:
            StorageError: It came too late; nothing was written.
        """
        with self._changed:
            # Asked each time: the reader of stdin may notice the end a while later.
            if self._is_closed or os.getppid() != self._parent:
                raise StorageError(
                    "the engine writes no more: its Spark application has ended",
                    to_fix="start the query again in a running application",
                )
            self._num_writes += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_writes -= 1
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Let no write through any more; return whether running ones ended in time."""
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: self._num_writes == 0, timeout_s)
