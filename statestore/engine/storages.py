"""Which storage a call's store lies on, and every request made to it, counted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import StoreLocation
from statestore.io.counting import CountingFileIO
from statestore.io.local import LocalFileIO

if TYPE_CHECKING:
    from statestore.core.clock import Clock
    from statestore.engine.requests import Request
    from statestore.io.file_io import FileIO


class Storages:
    """The storages of one engine. Thread-safe.

    Args:
        scratch_directory: Local directory for files fetched from remote storage.
        clock: Source of time.
        io: The storage of every store, for tests; found by the store's root when None.
    """

    def __init__(self, scratch_directory: str, clock: Clock, io: FileIO | None = None) -> None:
        self._scratch_directory = scratch_directory
        self.requests: Counter[str] = Counter()
        """Requests made, by kind."""
        self._local = CountingFileIO(io or LocalFileIO(clock=clock), self.requests)

    def locate(self, request: Request) -> StoreLocation:
        """Return where the store of a call is.

        Raises:
            InvalidArgumentError: Its root is on storage of a scheme that is not supported.
        """
        return StoreLocation(self._local, request.root(), request.store_name())
