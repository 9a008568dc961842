"""The full state of a version of the rocksdb backend: reads it from a view, writes it as a body."""

from __future__ import annotations

import tempfile
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import local_errors
from statestore.backends.rocksdb.versions import RocksDBVersions
from statestore.backends.rocksdb.view import View
from statestore.checkpoint.commit import Body
from statestore.codec.merge import interleave
from statestore.codec.sorting import sort_into_runs
from statestore.codec.trailer import compute_lineage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore.backends.rocksdb.database_memory import DatabaseMemory
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions


def read_full_state(
    location: StoreLocation,
    head: PublishedFile,
    scratch_directory: str,
    options: StateStoreOptions,
    clock: Clock,
    memory: DatabaseMemory,
    column_family: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version in order of column family and key; see FileForm.rows.

    The database is in scratch_directory, and gone after the last row.
    """
    trailer = head.trailer
    checkpoint_id = trailer.checkpoint_id if trailer.checkpoint_format >= 2 else None
    with tempfile.TemporaryDirectory(prefix="rows-", dir=scratch_directory) as directory:
        versions = RocksDBVersions(location, clock, directory, memory)
        try:
            local = versions.load(trailer.version, checkpoint_id, None, options)
        finally:
            # The view stays. RocksDB would go on to compact a database that is not closed.
            versions.forget_heads()
        if local.view is None:
            return
        view = View.of(local)
        try:
            yield from view.batches(column_family)
        finally:
            view.close()


def write_full_body(
    batches: Iterable[pa.RecordBatch],
    directory: str,
    options: StateStoreOptions,
    memory: DatabaseMemory,
) -> Body:
    """Write the body of a full state.

    Args:
        batches: Puts of SCHEMA in any order, each key once; they are sorted on the local disk.
        directory: Local directory for the body and the rows; empty.
        options: rocksdb_compression and rocksdb_block_size_kb are used.
        memory: Shared by all databases.

    Raises:
        StorageError: The local disk failed.
    """
    with local_errors("write a full state", directory):
        runs = sort_into_runs(batches, None, directory)
        rows = chain.from_iterable(map(sst.encode_rows, interleave(runs, None)))
        body = sst.write_body(rows, f"{directory}/body", memory.options(options), keeps_sst=False)
    return Body(body.path, body.blocks, body.rows, compute_lineage(None, body.blocks))
