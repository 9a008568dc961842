"""Which storage a call's store lies on, and every request made to it, counted."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import StoreLocation
from statestore.core.errors import ProtocolError
from statestore.io.counting import CountingFileIO
from statestore.io.local import LocalFileIO

if TYPE_CHECKING:
    from statestore.core.clock import Clock
    from statestore.engine.requests import Request
    from statestore.io.file_io import FileIO
    from statestore.io.memory_address import MemoryAddress


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
        self._lock = threading.Lock()
        self._memory: tuple[MemoryAddress, FileIO] | None = None
        self._local = CountingFileIO(io or LocalFileIO(clock=clock), self.requests)

    def locate_in_memory(self, request: Request, home: StoreLocation) -> StoreLocation:
        """Return where the driver's memory keeps the store whose checkpoint directory is home.

        Raises:
            ProtocolError: The call does not say where the driver's memory is.
        """
        # Imported here because no other backend needs it.
        from statestore.io.driver_memory import DriverMemoryFileIO

        address = request.memory()
        if address is None:
            raise ProtocolError(
                "a call for the heap backend does not say where the driver's memory is",
                to_fix="use the shim and the package of one version",
            )
        with self._lock:
            if self._memory is None or self._memory[0] != address:
                cache_directory = f"{self._scratch_directory}/memory"
                Path(cache_directory).mkdir(exist_ok=True)
                io = DriverMemoryFileIO(address, cache_directory)
                self._memory = (address, CountingFileIO(io, self.requests))
            return StoreLocation(self._memory[1], home.root, home.store)

    def locate(self, request: Request) -> StoreLocation:
        """Return where the store of a call is.

        Raises:
            InvalidArgumentError: Its root is on storage of a scheme that is not supported.
        """
        return StoreLocation(self._local, request.root(), request.store_name())
