"""The versions of a store, as an engine opens them: which state backend needs what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.backends.filesystem.versions import FilesystemVersions
from statestore.backends.rocksdb.requirement import require_rocksdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore.backends.rocksdb.database_memory import DatabaseMemory
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.versions import VersionsBase
    from statestore.core.clock import Clock


def open_versions(
    backend: str,
    location: StoreLocation,
    clock: Clock,
    home: Callable[[], StoreLocation],
    database: Callable[[], tuple[str, DatabaseMemory]],
) -> VersionsBase:
    """Return the versions of a store; nothing is read.

    Args:
        backend: State backend.
        location: Where its state files are.
        clock: Source of time.
        home: Tells the store's directory in the checkpoint, where state is in a driver's memory.
        database: Makes room for a local database: its directory, and the memory that it shares.

    Raises:
        InvalidArgumentError: The backend needs a package that is not installed.
    """
    match backend:
        case "heap":
            # Imported here, as below, because it needs what no other backend does.
            from statestore.backends.heap.versions import HeapVersions

            return HeapVersions(location, home(), clock)
        case "rocksdb":
            require_rocksdict()
            from statestore.backends.rocksdb.versions import RocksDBVersions

            return RocksDBVersions(location, clock, *database())
        case _:
            return FilesystemVersions(location, clock, backend)
