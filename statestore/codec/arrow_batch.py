"""Record batches out of files, checked: Arrow's own reader trusts a file.

Arrow checks neither the offsets of binary columns nor, before it makes room, the unpacked size that
a compressed buffer claims.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.core.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNPACKED_BYTES = 64 * 1024 * 1024
_UNPACKED_RATIO = 1024
_OF_ARROW = (pa.ArrowException, OSError, EOFError, TypeError, ValueError)
"""What Arrow says of damaged bytes. pa.ArrowMemoryError is one, too, and says nothing of them."""


def read_batch(data: pa.Buffer, schema: pa.Schema, path: str, offset: int) -> pa.RecordBatch:
    """Read one record batch; zero-copy unless it is compressed.

    Args:
        data: The message, whose checksum was checked.
        schema: Of the batch; its columns are without nulls where it says so.
        path: File of the message, for errors.
        offset: Where the message begins in it.

    Raises:
        CorruptionError: It is no such batch, or unpacks to more than any commit writes.
    """
    try:
        batch = _read(ipc.read_message(data), data.size, schema)
    except MemoryError:
        raise
    except _OF_ARROW as error:
        raise _no_batch(path, offset, error) from error
    return batch


def read_stream(
    data: pa.Buffer, schema: pa.Schema, path: str, offset: int
) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a stream; arguments and errors as `read_batch`."""
    try:
        # Not ipc.read_schema: given another message it crashes the process.
        if ipc.open_stream(pa.BufferReader(data)).schema != schema:
            raise pa.ArrowInvalid("other columns")
        messages = ipc.MessageReader.open_stream(pa.BufferReader(data))
        messages.read_next_message()
        for message in messages:
            yield _read(message, data.size, schema)
    except MemoryError:
        raise
    except (*_OF_ARROW, StopIteration) as error:
        raise _no_batch(path, offset, error) from error


def _read(message: ipc.Message, size: int, schema: pa.Schema) -> pa.RecordBatch:
    if unpacked_bytes(message) > most_unpacked(size):
        raise pa.ArrowInvalid(f"unpacks to more than {most_unpacked(size)} bytes")
    batch = ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    for field, column in zip(schema, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise pa.ArrowInvalid(f"a null in column {field.name}")
    return batch


def most_unpacked(num_bytes: int) -> int:
    """Return the most that a record batch of some bytes may unpack to.

    Only a single row of more than 64 MiB, nearly all of one byte, could be above it: it is written
    as it is.
    """
    return _UNPACKED_BYTES + _UNPACKED_RATIO * num_bytes


def unpacked_bytes(message: ipc.Message) -> int:
    """Return the unpacked bytes that a record batch's buffers claim; 0 without any.

    Raises:
        pa.ArrowInvalid: It is no record batch, or a buffer is not in it.
    """
    if message.type != "record batch":
        raise pa.ArrowInvalid(f"a message of type {message.type}")
    metadata, body = memoryview(message.metadata), memoryview(message.body or b"")
    try:
        return sum(_declared(body, *buffer) for buffer in _compressed_buffers(metadata))
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid("a buffer that is not in the message") from error


def _declared(body: memoryview, offset: int, length: int) -> int:
    if length == 0:
        return 0
    (declared,) = struct.unpack_from("<q", body, offset)
    return length if declared < 0 else int(declared)  # -1: as it is, uncompressed


def _compressed_buffers(metadata: memoryview) -> Iterator[tuple[int, int]]:
    """Yield offset and length of a compressed record batch's buffers, none of another.

    Source: Arrow's Message.fbs. A message is {version, header type, header, …}, its header
    {length, nodes, buffers, compression, …}. Arrow verified the flatbuffer as it read the message.
    """
    (root,) = struct.unpack_from("<I", metadata)
    header = _follow(metadata, _field(metadata, root, 2))
    buffers, compression = _field(metadata, header, 2), _field(metadata, header, 3)
    if buffers and compression:
        start = _follow(metadata, buffers)
        (count,) = struct.unpack_from("<I", metadata, start)
        yield from struct.iter_unpack("<qq", metadata[start + 4 : start + 4 + 16 * count])


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return the place of a field in a flatbuffer's table, 0 where it is missing."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * number >= size:
        return 0
    (at,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
    return table + at if at else 0


def _follow(metadata: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _no_batch(path: str, offset: int, error: Exception) -> CorruptionError:
    return CorruptionError(
        "a block of a state file has no readable rows",
        file=path,
        offset=offset,
        expected="an Arrow record batch of state rows",
        found=str(error).partition("\n")[0][:200],
        to_fix="restore the file from a copy; its checksum is right, so it was written like this",
    )
