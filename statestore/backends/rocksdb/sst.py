"""SSTs: rows as RocksDB keeps them, and the bodies of durable files made of them.

key = column family u16 BE | key; value = key group u16 BE | value. The key group stands with the
value so that scans go by key: a store that took over files of other state partitions skips foreign
rows. The body of a durable file is the SST, then the keys that it deletes as an Arrow stream
of one binary column: RocksDB shows no deletes to those who read, but a merge must pass them on.

Invariants of every body:

- Keys ascend, and each comes once: an SST takes no other order. A stream of the shim goes by key
  groups, so `read_delta` sorts it; callers that join several sources merge them by key.
- The SST has its deletes too, as RocksDB's own: ingested over older files, it hides their rows. The
  second block lists the same keys, ascending.
- No row is a merge: the whole value is put together before, by the shim or by `resolve_merges`, so
  that a reader needs the newest row of a key only.
- The checksum of a block is computed from the file after it was written. A file without rows has
  one empty block and no SST.

`write_body` holds no more than one block of deletes in memory, however many rows there are.
"""

from __future__ import annotations

import itertools
import operator
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
from rocksdict import Options, SstFileWriter

from statestore.backends.database_rows import split, to_batches
from statestore.codec.arrow_batch import read_stream
from statestore.codec.byte_ranges import ByteRanges
from statestore.codec.rows import (
    MAX_BLOCK_BYTES,
    MAX_BLOCK_ROWS,
    MERGE,
    PUT,
    SCHEMA,
    from_numpy,
    split_for_blocks,
    to_numpy,
    write_options,
)
from statestore.codec.sealed_file import MappedFile, map_file
from statestore.codec.state_file import not_a_stream
from statestore.codec.trailer import Block, RowCounts
from statestore.core.liveness import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from statestore.backends.database_rows import Rows
    from statestore.codec.sealed_file import SealedFile
    from statestore.core.key_groups import KeyGroupSet

FAMILY_BYTES = 2
KEY_GROUP_BYTES = 2
_STEP_ROWS = 100_000
"""Rows that are written to an SST for a step of the call under way."""
_DELETES = pa.schema([pa.field("key", pa.binary(), nullable=False)])

_NOTHING: pa.Scalar[Any] = pa.Array.from_buffers(
    pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")]
)[0]
"""No bytes; `pa.scalar` would import pandas."""

EncodedRow = tuple[bytes, bytes | None]
"""Key and value as RocksDB keeps them; no value for a delete."""


@dataclass(frozen=True, slots=True)
class SstBody:
    """A body written to a local file, and the SST in it as a file of its own."""

    path: str
    sst_path: str | None
    blocks: tuple[Block, ...]
    rows: RowCounts


@dataclass(frozen=True, slots=True)
class Delta:
    """The rows of a commit, encoded.

    Attributes:
        keys: In key order.
        values: One for each key, None for a delete.
        merges: Keys of the rows that are merges: their value is what to append.
        checksum: CRC32C of the stream they came in.
    """

    keys: list[bytes]
    values: list[bytes | None]
    merges: list[bytes]
    checksum: int

    @property
    def rows(self) -> Iterator[EncodedRow]:
        """The rows in key order."""
        # A tuple at a time: the garbage collector would look through a list of them.
        return zip(self.keys, self.values, strict=True)


def read_delta(path: str, arrow_length: int) -> Delta:
    """Read the rows of a delta as the shim hands it over.

    Args:
        path: Local file that begins with an Arrow stream of state rows, in any order, each
            (column family, key) once.
        arrow_length: Bytes of the stream.

    Raises:
        InvalidArgumentError: It is not such a stream.
    """
    stream, batches = _open_delta(path, arrow_length)
    keys: list[bytes] = []
    values: list[bytes | None] = []
    merges: list[bytes] = []
    for batch in batches:
        encoded = _listed(_encoded_keys(batch))
        keys += encoded
        values += _listed(_encoded_values(batch))
        ops = to_numpy(batch.column(2), np.uint8)
        merges += [encoded[row] for row in np.flatnonzero(ops == MERGE)]
    if not all(map(operator.lt, keys, itertools.islice(keys, 1, None))):
        order = sorted(range(len(keys)), key=keys.__getitem__)
        keys, values = [keys[row] for row in order], [values[row] for row in order]
    return Delta(keys, values, merges, int(google_crc32c.value(stream)))


NO_KEYS: pa.ChunkedArray[Any] = pa.chunked_array([], pa.binary())
"""Result of `read_keys` for a delta without rows."""


def read_keys(path: str, arrow_length: int) -> pa.ChunkedArray[Any]:
    """Read the encoded keys of a delta in key order, as a binary column.

    Args and errors as `read_delta`.
    """
    _, batches = _open_delta(path, arrow_length)
    keys = pa.chunked_array([_encoded_keys(batch) for batch in batches], pa.binary())
    ascends = pc.all(pc.less(keys.slice(0, max(len(keys) - 1, 0)), keys.slice(1)), min_count=0)
    return keys if ascends.as_py() else keys.sort()


def _open_delta(path: str, arrow_length: int) -> tuple[pa.Buffer, list[pa.RecordBatch]]:
    """Return the stream of a delta, and its record batches."""
    whole = map_file(path)
    if whole.size < arrow_length:
        raise not_a_stream(path, arrow_length, f"{whole.size} bytes")
    stream = whole.slice(0, arrow_length)
    try:
        with ipc.open_stream(pa.BufferReader(stream)) as reader:
            table = reader.read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise not_a_stream(path, arrow_length, str(error)) from error
    if table.schema != SCHEMA:
        raise not_a_stream(path, arrow_length, str(table.schema).replace("\n", ", "))
    return stream, table.to_batches()


def _encoded_keys(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Return the keys of rows of SCHEMA as RocksDB keeps them."""
    return _join(_big_endian(batch.column(1)), batch.column(3))


def _encoded_values(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Return the values of rows of SCHEMA as RocksDB keeps them, null for a delete."""
    return _join(_big_endian(batch.column(0)), batch.column(4))


def _listed(column: pa.Array[Any]) -> list[Any]:
    """Return the bytes of each row: none is None but where the column is null."""
    return column.to_pylist()


def _join(first: pa.Array[Any], second: pa.Array[Any]) -> pa.Array[Any]:
    """Return two binary columns joined value by value; null where one is null."""
    return pc.binary_join_element_wise(first, second, _NOTHING)  # type: ignore[call-overload,no-any-return]


def _big_endian(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return a uint16 column as two bytes each."""
    swapped = to_numpy(column, np.uint16).astype(">u2")
    data = pa.py_buffer(swapped.tobytes() or bytes(2))
    fixed = pa.Array.from_buffers(pa.binary(2), len(column), [None, data])
    return fixed.cast(pa.binary())


def write_body(
    rows: Iterable[EncodedRow], path: str, options: Options, *, keeps_sst: bool = True
) -> SstBody:
    """Write a body.

    Args:
        rows: In key order, each key once.
        path: File to write; the SST goes beside it under the same name and `.sst`.
        options: Of the SST.
        keeps_sst: Whether the SST stays there; otherwise the result has none.

    Raises:
        OSError: The local disk failed.
    """
    sst_path = f"{path}.sst"
    num_rows = 0
    writer = None
    with _Deletes(f"{path}.deletes") as deletes:
        for num_rows, (key, value) in enumerate(rows, 1):
            if writer is None:
                writer = SstFileWriter(options)
                writer.open(sst_path)
            if value is None:
                del writer[key]
                deletes.append(key)
            else:
                writer[key] = value
            if num_rows % _STEP_ROWS == 0:
                step()
        if writer is None:
            Path(path).write_bytes(b"")
            return _without_rows(path)
        writer.finish()
        deletes.finish()
        num_puts = num_rows - deletes.num_keys
        return _join_body(sst_path, num_puts, deletes, path, keeps_sst=keeps_sst)


def write_body_of(
    sst_path: str, num_puts: int, deleted: pa.ChunkedArray[Any], path: str
) -> SstBody:
    """Write the body that an SST begins.

    Args:
        sst_path: The SST; stays. Empty without rows.
        num_puts: Rows in it that are puts.
        deleted: Encoded keys that it deletes, as `read_keys` returns them.
        path: File to write.

    Raises:
        OSError: The local disk failed.
    """
    with _Deletes(f"{path}.deletes") as deletes:
        deletes.extend(deleted)
        deletes.finish()
        return _join_body(sst_path, num_puts, deletes, path)


class _Deletes:
    """Keys that a body deletes, written to a file of their own as they come.

    Args:
        path: The file, an Arrow stream; not there without keys, and gone at the end.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.num_keys = 0
        self._keys: list[bytes] = []
        self._num_bytes = 0
        self._stream: ipc.RecordBatchStreamWriter | None = None

    def __enter__(self) -> _Deletes:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._close()
        finally:
            Path(self.path).unlink(missing_ok=True)

    def append(self, key: bytes) -> None:
        """Add a key."""
        self._keys.append(key)
        self._num_bytes += len(key)
        if len(self._keys) >= MAX_BLOCK_ROWS or self._num_bytes >= MAX_BLOCK_BYTES:
            self._write_appended()

    def extend(self, keys: pa.ChunkedArray[Any]) -> None:
        """Add the keys of a column, which come behind all that were appended."""
        self._write_appended()
        for chunk in keys.chunks:
            for piece in split_for_blocks(pa.RecordBatch.from_arrays([chunk], schema=_DELETES)):
                self._write(piece)

    def finish(self) -> None:
        """Write the remaining keys; none is added after."""
        self._write_appended()
        self._close()

    def _write_appended(self) -> None:
        if self._keys:
            self._write(
                pa.RecordBatch.from_arrays([pa.array(self._keys, pa.binary())], schema=_DELETES)
            )
        self._keys, self._num_bytes = [], 0

    def _write(self, keys: pa.RecordBatch) -> None:
        if self._stream is None:
            options = write_options("zstd")
            self._stream = ipc.new_stream(self.path, _DELETES, options=options)
        self._stream.write_batch(keys)
        self.num_keys += keys.num_rows

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _join_body(
    sst_path: str, num_puts: int, deletes: _Deletes, path: str, *, keeps_sst: bool = True
) -> SstBody:
    """Write the body; the deletes are finished."""
    num_deletes = deletes.num_keys
    (shutil.copyfile if keeps_sst else os.rename)(sst_path, path)
    if num_puts + num_deletes == 0:
        return _without_rows(path)
    size = Path(path).stat().st_size
    if num_deletes:
        with Path(path).open("ab") as body, Path(deletes.path).open("rb") as stream:
            shutil.copyfileobj(stream, body)
    whole = MappedFile(path)
    blocks = [_block(whole, 0, size, num_puts + num_deletes)]
    if num_deletes:
        blocks.append(_block(whole, size, whole.size - size, num_deletes))
    kept = sst_path if keeps_sst else None
    return SstBody(path, kept, tuple(blocks), RowCounts(num_puts, num_deletes))


def _without_rows(path: str) -> SstBody:
    return SstBody(path, None, (Block(0, 0, 0, 0, -1, -1),), RowCounts())


def _block(file: MappedFile, offset: int, length: int, num_rows: int) -> Block:
    return Block(offset, length, num_rows, file.checksum(offset, length), -1, -1)


def extract_sst(file: SealedFile, path: str) -> str | None:
    """Copy the SST out of a durable file; None when it has no rows.

    Raises:
        OSError: The local disk failed.
    """
    if file.trailer.blocks[0].length == 0:
        return None
    with Path(path).open("wb") as copy:
        copy.writelines(file.block_pieces(0))
    return path


def read_deletes(file: SealedFile) -> Iterator[bytes]:
    """Yield the keys that a durable file deletes, in key order.

    Raises:
        CorruptionError: The block is not a stream of keys.
    """
    if len(file.trailer.blocks) < 2:
        return
    offset = file.trailer.blocks[1].offset
    for batch in read_stream(file.block_bytes(1), _DELETES, file.path, offset):
        yield from _listed(batch.column(0))


def encode_key(column_family: int, key: bytes) -> bytes:
    """Return a key as RocksDB keeps it."""
    return column_family.to_bytes(FAMILY_BYTES) + key


def encode_rows(batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes]]:
    """Yield puts of SCHEMA as encoded rows."""
    return zip(_listed(_encoded_keys(batch)), _listed(_encoded_values(batch)), strict=True)


def decode_rows(pieces: Iterable[Rows]) -> Iterator[pa.RecordBatch]:
    """Yield encoded puts as record batches of SCHEMA, of about MAX_BLOCK_BYTES each."""
    yield from map(_decoded, to_batches(map(split, pieces)))


def _decoded(encoded: pa.RecordBatch) -> pa.RecordBatch:
    """Return encoded puts, one at least, in columns of SCHEMA."""
    keys, values = map(ByteRanges.of_column, encoded.columns)
    families = keys.read(">u2", keys.starts).astype(np.uint16)
    groups = values.read(">u2", values.starts).astype(np.uint16)
    columns = [
        from_numpy(groups, pa.uint16()),
        from_numpy(families, pa.uint16()),
        from_numpy(np.full(len(keys), PUT, np.uint8), pa.uint8()),
        keys.skip(FAMILY_BYTES).to_arrow(pa.binary()),
        values.skip(KEY_GROUP_BYTES).to_arrow(pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def family_of(key: bytes) -> int:
    """Return the column family of an encoded key."""
    return int.from_bytes(key[:FAMILY_BYTES])


def rows_in(
    rows: Iterable[tuple[bytes, bytes]], key_groups: KeyGroupSet | None
) -> Iterator[tuple[bytes, bytes]]:
    """Return the encoded rows whose key group is in a set; all where it is None."""
    if key_groups is None:
        return iter(rows)
    return (row for row in rows if int.from_bytes(row[1][:KEY_GROUP_BYTES]) in key_groups)


def split_row(key: bytes, value: bytes) -> tuple[int, bytes, int, bytes]:
    """Return column family, key, key group and value of an encoded put."""
    family = int.from_bytes(key[:FAMILY_BYTES])
    group = int.from_bytes(value[:KEY_GROUP_BYTES])
    return family, key[FAMILY_BYTES:], group, value[KEY_GROUP_BYTES:]


def resolve_merges(
    rows: Iterable[EncodedRow], merges: list[bytes], current: Callable[[bytes], bytes | None]
) -> Iterator[EncodedRow]:
    """Yield rows with every merge turned into the put of the whole value.

    Args:
        rows: Encoded rows.
        merges: Keys of the rows that are merges.
        current: Returns the encoded value that a key has.
    """
    merged = set(merges)
    for key, value in rows:
        if value is not None and key in merged:
            before = current(key)
            yield key, value if before is None else before + value[KEY_GROUP_BYTES:]
        else:
            yield key, value


def apply_rows(
    base: Iterable[tuple[bytes, bytes]], rows: Iterable[EncodedRow]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the state that a delta makes of a state; both in key order."""
    pending = iter(rows)
    row = next(pending, None)
    for key, value in base:
        while row is not None and row[0] < key:
            if row[1] is not None:
                yield row[0], row[1]
            row = next(pending, None)
        if row is None or row[0] != key:
            yield key, value
    while row is not None:
        if row[1] is not None:
            yield row[0], row[1]
        row = next(pending, None)
