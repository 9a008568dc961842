"""Full states: a version written row by row, where key groups cannot be moved as they are.

Rows come in any order and may be more than fit memory: they are sorted in runs on the local disk,
which are merged into the version's file.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.checkpoint.commit import Body, NewVersion, delta_trailer, publish_delta
from statestore.codec.merge import merge_runs
from statestore.codec.rows import (
    SCHEMA,
    from_numpy,
    sort_group,
    split_for_blocks,
    to_numpy,
    write_options,
)
from statestore.codec.sealed_file import append_trailer
from statestore.codec.state_file import StateFile, describe_stream
from statestore.codec.trailer import RowCounts, compute_lineage
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions

RUN_BYTES = 64 * 1024 * 1024
"""Rows sorted in memory at a time."""


def write_full_version(
    location: StoreLocation,
    new: NewVersion,
    batches: Iterable[pa.RecordBatch],
    scratch_directory: str,
    options: StateStoreOptions,
    clock: Clock,
) -> PublishedFile:
    """Publish a version that is all its rows and stands on no other; of an Arrow body.

    Args:
        location: The store.
        new: What the version is, without a parent; its counts are those of the rows.
        batches: Record batches of SCHEMA, puts only, each key once, with the key groups they shall
            have; in any order.
        scratch_directory: Local directory for the files while they are written: twice the state.
        options: file_compression and fsync_enabled are used.
        clock: For the times.

    Guarantee: as `publish_delta`.

    Raises:
        InternalError: A key group is out of range.
        StorageError: The storage or the local disk failed.
    """
    with (
        tempfile.TemporaryDirectory(prefix="full-", dir=scratch_directory) as directory,
        named_errors("write to the scratch directory", directory),
    ):
        runs = [
            _write_run(location, new, run, f"{directory}/{number}.arrows")
            for number, run in enumerate(sorted_runs(batches, new.max_parallelism))
        ]
        internal = [family.id for family in new.column_families if family.internal]
        path = f"{directory}/{new.file_name(location)}"
        num_rows = num_internal = 0
        how = write_options(options.file_compression)
        with ipc.new_stream(path, SCHEMA, options=how) as stream:
            for batch in merge_runs(runs, new.max_parallelism):
                for block in split_for_blocks(batch):
                    stream.write_batch(block)
                num_rows += batch.num_rows
                num_internal += int(np.isin(to_numpy(batch.column(1), np.uint16), internal).sum())
        body = _describe(path, new)
        counted = replace(
            new,
            rows=RowCounts(put=num_rows),
            num_keys=num_rows,
            num_internal_keys=num_internal,
        )
        body = replace(body, rows=counted.rows)
        sync = options.fsync_enabled
        return publish_delta(location, counted, None, (), body, sync=sync, clock=clock)[0]


def sorted_runs(
    batches: Iterable[pa.RecordBatch], max_parallelism: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches in file order, of about RUN_BYTES each."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        if sum(int(piece.nbytes) for piece in pending) >= RUN_BYTES:
            yield _sorted(pending, max_parallelism)
            pending = []
    if pending:
        yield _sorted(pending, max_parallelism)


def _sorted(pieces: list[pa.RecordBatch], max_parallelism: int) -> pa.RecordBatch:
    import pyarrow.compute as pc

    rows = pa.Table.from_batches(pieces, SCHEMA).combine_chunks()
    (batch,) = rows.to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]
    groups = from_numpy(sort_group(batch, max_parallelism), pa.uint32())
    order = pc.sort_indices(
        pa.table([groups, batch.column(3)], names=["group", "key"]),
        sort_keys=[("group", "ascending"), ("key", "ascending")],
    )
    return batch.take(order)


def _write_run(
    location: StoreLocation, new: NewVersion, rows: pa.RecordBatch, path: str
) -> StateFile:
    with ipc.new_stream(path, SCHEMA) as stream:
        for block in split_for_blocks(rows):
            stream.write_batch(block)
    body = _describe(path, new)
    append_trailer(path, delta_trailer(location.store, new, None, (), body))
    return StateFile(path)


def _describe(path: str, new: NewVersion) -> Body:
    blocks = describe_stream(path, Path(path).stat().st_size, new.max_parallelism)
    return Body(path, blocks, new.rows, compute_lineage(None, blocks))
