"""The versions of a store as an engine has them, for what is done from outside."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from statestore.backends.filesystem.versions import StoreVersions
from statestore.operations.full_state import open_memory

if TYPE_CHECKING:
    from statestore.backends.rocksdb.versions import RocksDBVersions
    from statestore.checkpoint.layout import StoreLocation
    from statestore.operations.checkpoint import OpenCheckpoint


def open_versions(
    checkpoint: OpenCheckpoint, location: StoreLocation, scratch_directory: str
) -> StoreVersions | RocksDBVersions:
    """Open the versions of a store, which are let go of by `forget_heads`.

    Args:
        checkpoint: The checkpoint.
        location: The store, or one of it over another FileIO.
        scratch_directory: Local directory for a database, deleted by the caller.

    Raises:
        InvalidArgumentError: The package that the state backend needs is not installed.
    """
    if location.body == "arrows":
        return StoreVersions(location, checkpoint.clock, checkpoint.backend)
    memory = open_memory(checkpoint.options)
    # Known to be there: it made the memory.
    from statestore.backends.rocksdb.versions import RocksDBVersions

    directory = tempfile.mkdtemp(prefix="rocksdb-", dir=scratch_directory)
    return RocksDBVersions(location, checkpoint.clock, directory, memory)
