"""Full states of the rocksdb backend: a version written row by row, see checkpoint.full_state."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import local_errors
from statestore.backends.rocksdb.merging import database_of
from statestore.checkpoint.commit import Body, NewVersion, publish_delta
from statestore.checkpoint.full_state import sorted_runs
from statestore.codec.trailer import compute_lineage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions


def write_full_version(
    location: StoreLocation,
    new: NewVersion,
    batches: Iterable[pa.RecordBatch],
    scratch_directory: str,
    options: StateStoreOptions,
    clock: Clock,
) -> PublishedFile:
    """Publish a version that is all its rows and stands on no other; of an SST body.

    Arguments, guarantee and errors as of `checkpoint.full_state.write_full_version`; rows are
    written with rocksdb_compression and rocksdb_block_size_kb.
    """
    sst_options = sst.Memory(options.rocksdb_memory_bytes).options(options)
    internal = [family.id for family in new.column_families if family.internal]
    num_internal = 0

    def counted(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        nonlocal num_internal
        for row in rows:
            num_internal += sst.family_of(row[0]) in internal
            yield row

    with (
        tempfile.TemporaryDirectory(prefix="full-", dir=scratch_directory) as directory,
        local_errors("write a full state", directory),
    ):
        copies = []
        for number, run in enumerate(sorted_runs(batches, new.max_parallelism)):
            rows = sorted(sst.encode_rows(run))
            copies.append(sst.write_body(rows, f"{directory}/{number}", sst_options).sst_path)
        database = database_of(copies, directory, sst_options)
        try:
            path = f"{directory}/{new.file_name(location)}"
            body = sst.write_body(counted(sst.all_rows(database)), path, sst_options)
        finally:
            database.close()
        full = replace(new, rows=body.rows, num_keys=body.rows.put, num_internal_keys=num_internal)
        lineage = compute_lineage(None, body.blocks)
        made = Body(body.path, body.blocks, body.rows, lineage)
        sync = options.fsync_enabled
        return publish_delta(location, full, None, (), made, sync=sync, clock=clock)[0]
