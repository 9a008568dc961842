"""A whole version of a store at once: its rows out of RocksDB, and into one durable file."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from rocksdict import AccessType, IngestExternalFileOptions, Options, Rdict

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import local_errors
from statestore.backends.rocksdb.versions import RocksDBVersions
from statestore.checkpoint.commit import Body
from statestore.codec.rows import PUT, SCHEMA, from_numpy, to_numpy
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
    raw = Options(raw_mode=True)
    raw.set_max_open_files(-1)
    database = Rdict(local.view, raw, access_type=AccessType.read_only())
    try:
        items = cast("Iterator[tuple[bytes, bytes]]", database.items())
        while chunk := list(islice(items, CHUNK_ROWS)):
            batch = _decode(chunk)
            if local.has_foreign_files:
                groups = to_numpy(batch.column(0), np.uint16)
                own = groups % trailer.num_partitions == trailer.store.partition
                batch = batch.take(from_numpy(np.flatnonzero(own), pa.int64()))
            yield batch
    finally:
        database.close()


def _decode(rows: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    encoded_keys, encoded_values = zip(*rows, strict=True)
    families, keys = _split(encoded_keys)
    groups, values = _split(encoded_values)
    ops = from_numpy(np.full(len(rows), PUT, np.uint8), pa.uint8())
    return pa.RecordBatch.from_arrays([groups, families, ops, keys, values], schema=SCHEMA)


def _split(column: tuple[bytes, ...]) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """Return the number that the first two bytes of each value are, and the bytes after them."""
    _, offset_buffer, data_buffer = pa.array(column, pa.binary()).buffers()
    offsets = np.frombuffer(memoryview(offset_buffer or b""), np.int32, len(column) + 1)
    data = np.frombuffer(memoryview(data_buffer or b""), np.uint8, int(offsets[-1]))
    first, second = offsets[:-1], offsets[:-1] + 1
    numbers = data[first].astype(np.uint16) << np.uint16(8) | data[second]
    is_rest = np.ones(len(data), bool)
    is_rest[first] = is_rest[second] = False
    rest = data[is_rest]
    ends = (offsets - 2 * np.arange(len(offsets))).astype(np.int32)
    buffers = [None, pa.py_buffer(ends.data), pa.py_buffer(rest.tobytes())]
    return from_numpy(numbers, pa.uint16()), pa.Array.from_buffers(
        pa.binary(), len(column), buffers
    )


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
                rows, _, checksum = sst.read_delta(part, length)
                Path(part).unlink()
                checksums.append(Block(0, length, 0, checksum, -1, -1))
                written = sst.write_body(rows, part, made)
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
