"""The gate that every write of an engine passes, for as long as its JVM wants it to write."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from statestore.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


class WriteGate:
    """Lets writes through until it is closed, or the process that started this one is gone.

    Leases say that a JVM's engines write; so nothing may be written once they count no more.
    Thread-safe.
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
            # Asked each time: whoever reads stdin may notice the end a while later.
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
        """Let no write through any more; return whether those under way ended in time."""
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: self._num_writes == 0, timeout_s)
