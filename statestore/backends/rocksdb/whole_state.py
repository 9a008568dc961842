"""A whole version of a store at once: its rows out of RocksDB, and into one durable file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.ipc as ipc
from rocksdict import IngestExternalFileOptions, Rdict

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import local_errors
from statestore.backends.rocksdb.versions import RocksDBVersions
from statestore.backends.rocksdb.view import View
from statestore.checkpoint.commit import Body
from statestore.codec.rows import SCHEMA
from statestore.codec.trailer import Block, compute_lineage
from statestore.core.options import StateStoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.core.clock import Clock

CHUNK_ROWS = 250_000
"""Rows that are sorted in memory at a time."""


def read_rows_by_key(
    location: StoreLocation,
    head: PublishedFile,
    directory: str,
    clock: Clock,
    memory: sst.Memory,
    options: StateStoreOptions,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version in order of column family and key.

    Args:
        location: The store; its body is sst.
        head: The delta of the version.
        directory: Local directory for the database, which is there until the rows are read.
        clock: Source of time.
        memory: Shared by all databases.
        options: How the database is laid out.

    Yields:
        Record batches of SCHEMA, puts only, at most CHUNK_ROWS rows each.

    Raises:
        NotFoundError, CorruptionError, FencedError, StorageError: As `RocksDBVersions.load`.
    """
    trailer = head.trailer
    versions = RocksDBVersions(location, clock, directory, memory)
    checkpoint_id = trailer.checkpoint_id if trailer.checkpoint_format >= 2 else None
    local = versions.load(trailer.version, checkpoint_id, None, options)
    if local.view is None:
        return
    view = View.of(local)
    try:
        yield from view.batches()
    finally:
        view.close()


def write_whole_body(
    stream_path: str, directory: str, memory: sst.Memory, options: StateStoreOptions
) -> Body:
    """Write the body of a version's whole state.

    Args:
        stream_path: A complete Arrow stream of puts, in any order, each key once.
        directory: Local directory for it.
        memory: Shared by all databases.
        options: How SSTs are laid out.

    Raises:
        StorageError: The local disk failed.
    """
    made = memory.options(options)
    body_path = f"{directory}/body"
    with (
        tempfile.TemporaryDirectory(prefix="chunks-", dir=directory) as chunks,
        local_errors("write an SST", body_path),
    ):
        # Chunks are sorted one by one, RocksDB merges them.
        paths: list[str] = []
        checksums: list[Block] = []
        with ipc.open_stream(pa.memory_map(stream_path)) as stream:
            for number, chunk in enumerate(_chunks(stream)):
                part = f"{chunks}/{number}"
                with ipc.new_stream(part, SCHEMA) as out:
                    out.write_batch(chunk)
                length = Path(part).stat().st_size
                delta = sst.read_delta(part, length)
                Path(part).unlink()
                checksums.append(Block(0, length, 0, delta.checksum, -1, -1))
                written = sst.write_body(delta.rows, part, made)
                paths += [written.sst_path] if written.sst_path else []
                body = written
        lineage = compute_lineage(None, tuple(checksums))
        if len(paths) <= 1:
            if not paths:
                body = sst.write_body([], f"{chunks}/0", made)
            Path(body.path).rename(body_path)
            return Body(body_path, body.blocks, body.rows, lineage)
        database = Rdict(f"{chunks}/db", made)
        try:
            move = IngestExternalFileOptions()
            move.set_move_files(True)
            database.ingest_external_file(paths, opts=move)
            items = cast("Iterator[tuple[bytes, bytes]]", database.items())
            body = sst.write_body(items, body_path, made)
        finally:
            database.close()
        Path(f"{body_path}.sst").unlink()
        return Body(body_path, body.blocks, body.rows, lineage)


def _chunks(stream: ipc.RecordBatchStreamReader) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in stream:
        held.append(batch)
        num_rows += batch.num_rows
        if num_rows >= CHUNK_ROWS:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, num_rows = [], 0
    if held:
        yield from pa.Table.from_batches(held, schema=SCHEMA).combine_chunks().to_batches()
