"""Stretches of bytes in one buffer, by start and size: the rows of a column, parts of a row.

All decoders of rows take and return these, so that a nested row is read in place and only the bytes
of a column are copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.rows import from_numpy, to_numpy
from statestore.core.errors import CorruptionError

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

INTERVAL = [("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")]
"""A value of Arrow's month_day_nano_interval, as a dtype for `to_numpy`."""


@dataclass(frozen=True, slots=True)
class ByteRanges:
    """Ranges of a buffer, n of them.

    Attributes:
        data: The buffer.
        starts, sizes: Offset and bytes of each range, length n.
    """

    data: npt.NDArray[np.uint8]
    starts: Int64s
    sizes: Int64s

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of_column(cls, column: pa.Array[Any]) -> ByteRanges:
        """Return the ranges of a binary column, without copying; those of nulls are empty."""
        _, offsets, data = column.buffers()
        if offsets is None:
            return cls(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))
        num_ends = column.offset + len(column) + 1
        all_ends = np.frombuffer(memoryview(offsets), np.int32, num_ends)
        ends = all_ends[column.offset :].astype(np.int64)
        held = np.empty(0, np.uint8) if data is None else np.frombuffer(memoryview(data), np.uint8)
        return cls(held, ends[:-1], ends[1:] - ends[:-1])

    def read(self, dtype: str, positions: Int64s) -> npt.NDArray[Any]:
        """Return the numbers at positions of the buffer, aligned or not.

        Raises:
            CorruptionError: A position is not in the buffer.
        """
        kind = np.dtype(dtype)
        length = max(len(self.data) - kind.itemsize + 1, 0)
        overlapping = np.ndarray((length,), kind, self.data, strides=(1,))
        if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < length:
            raise unreadable("a number lies behind the end")
        found: npt.NDArray[Any] = overlapping[positions]
        return found

    def at(self, starts: Int64s, sizes: Int64s) -> ByteRanges:
        """Return other ranges of the same buffer.

        Raises:
            CorruptionError: One of them is not in the buffer.
        """
        if len(starts):
            most = len(self.data)
            if not 0 <= int(starts.min()) <= int(starts.max()) <= most:
                raise unreadable("a part lies behind the end")
            if int(sizes.min()) < 0 or int((sizes - (most - starts)).max()) > 0:
                raise unreadable("a part lies behind the end")
            # Else a few bytes, named by many, would be many rows.
            if int(sizes.sum()) > most:
                raise unreadable("parts lie upon each other")
        return ByteRanges(self.data, starts, sizes)

    def pick(self, mask: Bools) -> ByteRanges:
        """Return the ranges where the mask is true."""
        return ByteRanges(self.data, self.starts[mask], self.sizes[mask])

    def skip(self, num_bytes: int) -> ByteRanges:
        """Return the ranges without their first bytes.

        Raises:
            CorruptionError: A range is shorter.
        """
        self.require(num_bytes)
        return ByteRanges(self.data, self.starts + num_bytes, self.sizes - num_bytes)

    def require(self, num_bytes: int | Int64s) -> None:
        """Check that every range has at least so many bytes.

        Raises:
            CorruptionError: One is shorter.
        """
        if (self.sizes < num_bytes).any():
            raise unreadable("a row is too short")

    def to_arrow(self, kind: pa.DataType, is_null: Bools | None = None) -> pa.Array[Any]:
        """Return the bytes as a column of its own: string or binary, length n.

        Args:
            kind: pa.string() or pa.binary().
            is_null: Where the column is null, None for nowhere.
        """
        num_rows = len(self)
        if num_rows == 0:
            return from_numpy(np.empty(0, np.uint8), kind)
        ends = self.starts + self.sizes
        # Ranges in ascending order are every second value of a column whose other values are what
        # lies between them: Arrow copies those out faster than an index of every byte could.
        if bool((ends[:-1] <= self.starts[1:]).all()) and int(ends[-1]) < 1 << 31:
            offsets = np.empty(2 * num_rows, np.int32)
            offsets[0::2], offsets[1::2] = self.starts, ends
            wanted = np.zeros(2 * num_rows - 1, bool)
            wanted[0::2] = True
            both: list[pa.Buffer | None] = [None, buffer(offsets), buffer(self.data)]
            everything: Any = pa.Array.from_buffers(kind, 2 * num_rows - 1, both)
            mask = pa.Array.from_buffers(pa.bool_(), 2 * num_rows - 1, [None, bits(wanted)])
            column: pa.Array[Any] = everything.filter(mask)
        else:
            offsets = np.zeros(num_rows + 1, np.int64)
            np.cumsum(self.sizes, out=offsets[1:])
            index = np.repeat(self.starts - offsets[:-1], self.sizes) + np.arange(offsets[-1])
            parts: list[pa.Buffer | None] = [
                None,
                buffer(offsets.astype(np.int32)),
                buffer(self.data[index]),
            ]
            column = pa.Array.from_buffers(kind, num_rows, parts)
        if is_null is None:
            return column
        return pa.Array.from_buffers(kind, num_rows, [bits(~is_null), *column.buffers()[1:]])


def bits(mask: Bools) -> pa.Buffer:
    """Return a mask as Arrow keeps booleans, least significant bit first."""
    return buffer(np.packbits(mask, bitorder="little"))


def buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    """Return the bytes of a contiguous array, without copying."""
    return pa.py_buffer(values.data)


def index_with_nulls(places: Int64s, is_null: Bools) -> pa.Array[Any]:
    """Return places to take, null for none."""
    return pa.Array.from_buffers(pa.int64(), len(places), [bits(~is_null), buffer(places)])


def child(struct: Any, ordinal: int) -> pa.Array[Any]:
    """Return a field of a struct column, undefined where the struct is null."""
    found: pa.Array[Any] = struct.field(ordinal)
    return found


def unpack(column: pa.Array[Any]) -> Bools:
    """Return a boolean column as a mask, undefined where it is null."""
    data = column.buffers()[1]
    if data is None:
        return np.empty(0, bool)
    unpacked = np.unpackbits(np.frombuffer(memoryview(data), np.uint8), bitorder="little")
    return unpacked[column.offset : column.offset + len(column)].astype(bool)


def list_offsets(column: pa.Array[Any]) -> Int64s:
    """Return the offsets of each list's or map's elements among all, and the end."""
    data = column.buffers()[1]
    if len(column) == 0 or data is None:
        return np.zeros(1, np.int64)
    end = column.offset + len(column) + 1
    offsets = np.frombuffer(memoryview(data), np.int32, end)[column.offset :]
    return offsets.astype(np.int64)


def large_decimals(column: pa.Array[Any]) -> ByteRanges:
    """Return decimal128 values as the fewest bytes of two's complement, big-endian."""
    little = to_numpy(column, np.dtype((np.uint8, 16)))
    magnitude = little ^ (little[:, 15:].view(np.int8) >> 7).view(np.uint8)
    highest = 15 - np.argmax(magnitude[:, ::-1] != 0, axis=1)
    top = magnitude[np.arange(len(highest)), highest]
    sizes = (highest + 1 + (top >= 128)).astype(np.int64)
    sizes[~magnitude.any(axis=1)] = 1
    big = np.ascontiguousarray(little[:, ::-1]).reshape(-1)
    return ByteRanges(big, np.arange(len(sizes), dtype=np.int64) * 16 + 16 - sizes, sizes)


def unreadable(
    found: str,
    to_fix: str = "verify the checkpoint; where its checksums hold, report it with the query's "
    "stateful operators",
) -> CorruptionError:
    """Return the error for bytes that are not rows of their schema."""
    return CorruptionError(
        "rows do not fit their schema",
        expected="rows of the column family's schema",
        found=found,
        to_fix=to_fix,
    )
