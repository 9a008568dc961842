"""State files on the local disk: an Arrow IPC stream with a trailer behind it.

Writing: the stream is complete already (the shim or `write_snapshot` wrote it); `describe_stream`
finds its messages. Reading: `StateFile` hands out a record batch only after the CRC32C of its block
was checked.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.codec.arrow_batch import most_unpacked, read_batch, unpacked_bytes
from statestore.codec.rows import SCHEMA, check_key_group_order, rows_in, to_numpy
from statestore.codec.sealed_file import SealedFile, map_file
from statestore.codec.trailer import Block
from statestore.core.errors import CorruptionError, InvalidArgumentError
from statestore.core.key_groups import rank_table

if TYPE_CHECKING:
    from statestore.codec.trailer import Trailer
    from statestore.core.key_groups import KeyGroupSet

Slice = tuple[int, int]
"""Offset and length of some bytes of a file."""

MAX_SLICES = 16
"""Most slices of a file: each is a request to a remote storage."""


def describe_stream(path: str, length: int, max_parallelism: int) -> tuple[Block, ...]:
    """Find the Arrow messages of a complete stream and checksum them.

    Args:
        path: Local file that begins with the stream.
        length: Bytes of the stream, from the start of the file.
        max_parallelism: Number of key groups, for checking the row order.

    Returns:
        Blocks that cover [0, length) without a gap.

    Raises:
        InvalidArgumentError: The bytes are not a complete stream of the state file schema.
        InternalError: Rows are not in the order of their key groups.
    """
    found = Path(path).stat().st_size
    if found < length or length == 0:
        raise not_a_stream(path, length, f"{found} bytes")
    whole = map_file(path).slice(0, length)
    ends = _message_ends(whole, path)
    with ipc.open_stream(pa.BufferReader(whole)) as full:
        if full.schema != SCHEMA:
            raise not_a_stream(path, length, str(full.schema).replace("\n", ", "))
    only_key_group = ipc.IpcReadOptions(included_fields=[0], use_threads=False)
    key_groups = ipc.open_stream(pa.BufferReader(whole), options=only_key_group)
    blocks = [_block(whole, 0, ends[0])]
    rank = 0
    for start, end in pairwise(ends[:-1]):
        column = key_groups.read_next_batch().column(0)
        rank = check_key_group_order(column, rank, max_parallelism, path)
        blocks.append(_block(whole, start, end, column))
    blocks.append(_block(whole, ends[-2], ends[-1]))
    if ends[-1] != length:
        raise not_a_stream(path, length, f"end of stream at {ends[-1]}")
    return tuple(blocks)


def describe_own_stream(path: str, max_parallelism: int) -> tuple[Block, ...]:
    """Describe a stream that this process wrote, which is the whole file.

    One that unpacks to more than a reader takes, such as a list of many equal elements, is written
    again without compression first.

    Args:
        path: Local file.
        max_parallelism: Number of key groups.

    Returns:
        As `describe_stream`.

    Raises:
        InvalidArgumentError, InternalError: As `describe_stream`.
        OSError: The local disk failed.
    """
    try:
        return describe_stream(path, Path(path).stat().st_size, max_parallelism)
    except InvalidArgumentError as error:
        if "unpacked_bytes" not in error.fields:
            raise
    unpacked = Path(f"{path}.unpacked")
    try:
        with (
            ipc.open_stream(pa.BufferReader(map_file(path))) as packed,
            ipc.new_stream(str(unpacked), SCHEMA) as stream,
        ):
            for batch in packed:
                stream.write_batch(batch)
        unpacked.replace(path)
    finally:
        unpacked.unlink(missing_ok=True)
    return describe_stream(path, Path(path).stat().st_size, max_parallelism)


def _message_ends(whole: pa.Buffer, path: str) -> list[int]:
    """Return the end of each message: schema, every record batch, end-of-stream marker."""
    reader = pa.BufferReader(whole)
    messages = ipc.MessageReader.open_stream(reader)
    ends: list[int] = []
    try:
        while True:
            message = messages.read_next_message()
            start = ends[-1] if ends else 0
            ends.append(reader.tell())
            if start and unpacked_bytes(message) > most_unpacked(ends[-1] - start):
                raise InvalidArgumentError(
                    "compressed rows of a commit unpack to more than a reader takes",
                    file=path,
                    offset=start,
                    unpacked_bytes=unpacked_bytes(message),
                    maximum=most_unpacked(ends[-1] - start),
                    to_fix="set spark.sql.streaming.stateStore.file.compression to none",
                )
    except StopIteration:
        if reader.tell() == (ends[-1] if ends else 0):
            raise not_a_stream(path, whole.size, "no end of stream") from None
        ends.append(reader.tell())
    except (pa.ArrowInvalid, OSError) as error:
        raise not_a_stream(path, whole.size, "bytes Arrow cannot read") from error
    return ends


def _block(whole: pa.Buffer, start: int, end: int, column: pa.Array[Any] | None = None) -> Block:
    crc32c = google_crc32c.value(whole.slice(start, end - start))
    if column is None or len(column) == 0:
        return Block(start, end - start, 0, crc32c, -1, -1)
    return Block(
        start, end - start, len(column), crc32c, column[0].as_py(), column[len(column) - 1].as_py()
    )


def not_a_stream(path: str, length: int, found: str) -> InvalidArgumentError:
    """Return the error for a file that no shim hands over."""
    return InvalidArgumentError(
        "a file is not a complete Arrow stream of state rows",
        file=path,
        length=length,
        found=found,
        to_fix="write the stream to its end-of-stream marker before handing it over",
    )


def empty_stream() -> tuple[bytes, tuple[Block, ...]]:
    """Return a complete stream without rows, and its blocks."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, SCHEMA):
        pass
    whole = sink.getvalue()
    start, end = _message_ends(whole, "")
    return whole.to_pybytes(), (_block(whole, 0, start), _block(whole, start, end))


def blocks_of(trailer: Trailer, clip: KeyGroupSet | None) -> tuple[Block, ...]:
    """Return the blocks of an Arrow body that may hold rows of some key groups.

    Args:
        trailer: Of the file.
        clip: The key groups, None for all.
    """
    blocks = trailer.blocks[1:-1]
    if clip is None:
        return blocks
    ranks = rank_table(trailer.max_parallelism)
    is_wanted = np.zeros(trailer.max_parallelism + 1, np.int64)
    is_wanted[ranks[clip.remainder :: clip.modulus].astype(np.int64) + 1] = 1
    num_before = np.cumsum(is_wanted)
    return tuple(
        block
        for block in blocks
        if block.rows
        and num_before[int(ranks[block.last_key_group]) + 1]
        > num_before[int(ranks[block.first_key_group])]
    )


def slices_of(trailer: Trailer, clip: KeyGroupSet | None) -> tuple[Slice, ...]:
    """Return slices of an Arrow body that are a stream with all rows of some key groups.

    Args:
        trailer: Of the file.
        clip: The key groups, None for all.

    Returns:
        At most MAX_SLICES slices in file order: schema, record batches, end of stream. Some batches
        among them may hold no such row.
    """
    slices: list[Slice] = []
    for block in (trailer.blocks[0], *blocks_of(trailer, clip), trailer.blocks[-1]):
        if slices and sum(slices[-1]) == block.offset:
            slices[-1] = (slices[-1][0], slices[-1][1] + block.length)
        else:
            slices.append((block.offset, block.length))
    while len(slices) > MAX_SLICES:
        gaps = [after[0] - sum(before) for before, after in pairwise(slices)]
        at = gaps.index(min(gaps))
        start = slices[at][0]
        slices[at : at + 2] = [(start, sum(slices[at + 1]) - start)]
    return tuple(slices)


class StateFile(SealedFile):
    """A state file whose body is an Arrow stream. Batches are zero-copy unless compressed.

    Args:
        path: Local file; of its body only the slices of `clip` need to be there.
        clip: Only rows of these key groups are wanted, None for all.
        name: As `SealedFile`.
    """

    def __init__(self, path: str, clip: KeyGroupSet | None = None, name: str | None = None) -> None:
        """Map a local file and check its trailer; errors as `SealedFile`."""
        super().__init__(path, name)
        if clip is not None and self.trailer.key_groups & clip == self.trailer.key_groups:
            clip = None
        self.clip = clip
        """The key groups whose rows are handed out; None where that is every row of the file."""
        self.slices = slices_of(self.trailer, clip)
        """The bytes of the body that are read."""
        self._blocks = [
            block
            for block in self.trailer.blocks[1:-1]
            if block.rows and any(0 <= block.offset - start < n for start, n in self.slices)
        ]
        self._verified = [False] * len(self._blocks)

    @property
    def num_batches(self) -> int:
        """Number of record batches with rows; after a clip some may be empty."""
        return len(self._blocks)

    def verify(self) -> None:
        """Check every block that is read; errors as `SealedFile`."""
        for block in (self.trailer.blocks[0], *self._blocks, self.trailer.blocks[-1]):
            self._verify_block(block)
        self._verified = [True] * len(self._blocks)

    def batch(self, index: int) -> pa.RecordBatch:
        """Return the rows of one record batch after checking its block.

        Raises:
            CorruptionError: As `verify`, or there are no such rows in the block.
        """
        block = self._blocks[index]
        if not self._verified[index]:
            self._verify_block(block)
            self._verified[index] = True
        data = self._file.bytes.slice(block.offset, block.length)
        batch = read_batch(data, SCHEMA, self.name, block.offset)
        groups = to_numpy(batch.column(0), np.uint16)
        if len(groups) != block.rows or int(groups.max()) >= self.trailer.max_parallelism:
            raise CorruptionError(
                "a block of a state file holds other rows than its trailer says",
                file=self.name,
                offset=block.offset,
                expected=f"{block.rows} rows, key groups below {self.trailer.max_parallelism}",
                found=f"{len(groups)} rows, key groups up to {groups.max(initial=0)}",
                to_fix="restore the file from a copy; its checksum is right, so it was written "
                "like this",
            )
        return batch if self.clip is None else rows_in(batch, self.clip)
