"""Arrow columns encoded as rows that Spark keeps in memory, `UnsafeRow`; `unsafe_row` decodes them.

Byte for byte as Spark's UnsafeRowWriter and UnsafeArrayWriter encode them, since a key is looked up
by its bytes. Columns are encoded one at a time, all rows at once: a first pass computes the bytes
of each row, a second one writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import (
    INTERVAL,
    ByteRanges,
    bits,
    buffer,
    child,
    large_decimals,
    list_offsets,
    unpack,
)
from statestore.codec.rows import from_numpy, to_numpy
from statestore.codec.unsafe_row import is_number
from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from statestore.codec.byte_ranges import Bools, Int64s
    from statestore.codec.spark_types import SparkType

    Words = npt.NDArray[np.uint64]

_WORD = 8
_MOST_BYTES = (1 << 31) - 1
_UNSIGNED = {
    "boolean": "<u1",
    "byte": "<u1",
    "short": "<u2",
    "integer": "<u4",
    "float": "<u4",
    "date": "<u4",
    "year-month interval": "<u4",
}
"""Numbers of less than a word, by their bits."""
_DECIMAL = [("lower", "<u8"), ("upper", "<u8")]


def encode_column(column: pa.Array[Any], schema: SparkType) -> pa.Array[Any]:
    """Encode a column of structs.

    Args:
        column: Struct of the schema's Arrow type, length n.
        schema: The rows' struct.

    Returns:
        Binary, length n, each value the bytes of one UnsafeRow; null where the struct is.

    Raises:
        InvalidArgumentError: The rows take 2 GiB or more together, or a key of a map is null.
    """
    part = _part(column, schema, in_row=False)
    ends = np.cumsum(part.sizes)
    total = int(ends[-1]) if len(ends) else 0
    if total > _MOST_BYTES:
        raise InvalidArgumentError(
            "rows are too large to be encoded together",
            num_rows=len(column),
            num_bytes=total,
            to_fix="hand rows over in smaller record batches",
        )
    rows: Words = np.zeros(total // _WORD, np.uint64)
    part.write(rows, ends - part.sizes)
    offsets = np.append(0, ends).astype(np.int32)
    validity = bits(~unpack(column.is_null())) if column.null_count else None
    return pa.Array.from_buffers(
        pa.binary(), len(column), [validity, buffer(offsets), buffer(rows)]
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a column that does not fit words.

    Attributes:
        sizes: Bytes of each value, length n; 0 where it is null.
        room: Bytes that it takes, a multiple of 8.
        write: Called with the words of all rows and where each value begins in them, in bytes.
        keeps_null: Whether a row has the place of a null's room.
    """

    sizes: Int64s
    room: Int64s
    write: Callable[[Words, Int64s], None]
    keeps_null: bool = False


def _part(column: Any, kind: SparkType, *, in_row: bool) -> _Part:
    """Lay out a column of a type that is no number.

    Args:
        column: Length n.
        kind: Its type.
        in_row: Whether it is a field of a row; else it is a column of rows, or of elements.
    """
    if kind.kind in ("string", "binary"):
        ranges = ByteRanges.of_column(column)
        if column.null_count:
            sizes = np.where(unpack(column.is_null()), 0, ranges.sizes)
            ranges = ByteRanges(ranges.data, ranges.starts, sizes)
        return _bytes_part(ranges)
    is_null = unpack(column.is_null()) if column.null_count else None
    if is_null is not None:
        column = column.filter(from_bools(~is_null))
    part = _PARTS[kind.kind](column, kind)
    if is_null is not None:
        part = _among_nulls(part, is_null)
    if in_row and kind.kind in ("decimal", "interval"):
        # Fields of both have a room of 16 bytes that Spark may write another value to.
        room = np.full(len(part.sizes), 16, np.int64)
        sizes = room if kind.kind == "interval" else part.sizes
        part = replace(part, sizes=sizes, room=room, keeps_null=True)
    return part


def _among_nulls(part: _Part, is_null: Bools) -> _Part:
    def spread(values: Int64s) -> Int64s:
        found = np.zeros(len(is_null), np.int64)
        found[~is_null] = values
        return found

    def write(rows: Words, starts: Int64s) -> None:
        part.write(rows, starts[~is_null])

    return _Part(spread(part.sizes), spread(part.room), write)


def _struct(column: Any, kind: SparkType) -> _Part:
    num_rows = len(column)
    num_words = (len(kind.fields) + 63) // 64
    columns = [child(column, ordinal) for ordinal in range(len(kind.fields))]
    nulls: Words = np.zeros((num_words, num_rows), np.uint64)
    words: list[Words | _Part] = []
    size: Any = np.full(num_rows, _WORD * (num_words + len(columns)), np.int64)
    for ordinal, (field, field_kind) in enumerate(zip(columns, kind.types, strict=True)):
        is_null = _nulls_of(field)
        if is_null is not None:
            nulls[ordinal // 64] |= is_null.astype(np.uint64) << np.uint64(ordinal % 64)
        if field_kind.kind == "void" or is_number(field_kind):
            words.append(_numbers(field, field_kind, is_null).astype(np.uint64))
        else:
            part = _part(field, field_kind, in_row=True)
            size = size + part.room
            words.append(part)

    def write(rows: Words, starts: Int64s) -> None:
        base = starts // _WORD
        for word in range(num_words):
            rows[base + word] = nulls[word]
        cursor = starts + _WORD * (num_words + len(columns))
        for ordinal, found in enumerate(words):
            slots = base + num_words + ordinal
            if isinstance(found, _Part):
                where = (cursor - starts) << 32 | found.sizes
                if columns[ordinal].null_count and not found.keeps_null:
                    where[unpack(columns[ordinal].is_null())] = 0
                rows[slots] = where.view(np.uint64)
                found.write(rows, cursor)
                cursor = cursor + found.room
            else:
                rows[slots] = found

    return _Part(size, size, write)


def _nulls_of(column: Any) -> Bools | None:
    if pa.types.is_null(column.type):
        return np.ones(len(column), bool)
    return unpack(column.is_null()) if column.null_count else None


def _numbers(column: Any, kind: SparkType, is_null: Bools | None) -> npt.NDArray[Any]:
    """Return the bits of numbers, as wide as their type; 0 where null."""
    if kind.kind == "void":
        return np.zeros(len(column), np.uint8)
    if kind.kind == "boolean":
        values: Any = unpack(column).view(np.uint8)
    elif kind.kind == "decimal":
        values = to_numpy(column, _DECIMAL)["lower"]
    elif kind.kind == "year-month interval":
        values = to_numpy(column, INTERVAL)["months"].view("<u4")
    else:
        values = to_numpy(column, _UNSIGNED.get(kind.kind, "<u8"))
    found: npt.NDArray[Any] = values
    return found if is_null is None else np.where(is_null, found.dtype.type(0), found)


def _bytes_part(ranges: ByteRanges) -> _Part:
    room = (ranges.sizes + 7) & ~7
    return _Part(ranges.sizes, room, lambda rows, starts: copy_bytes(ranges, rows, starts))


def copy_bytes(ranges: ByteRanges, rows: Words, starts: Int64s) -> None:
    """Copy ranges to places of a buffer, a word at a time.

    Args:
        ranges: What to copy, length n.
        rows: The buffer; the last word of each range is filled up with zeros.
        starts: Where each goes, in bytes, a multiple of 8.
    """
    num_words = (ranges.sizes + 7) >> 3
    total = int(num_words.sum())
    if total == 0:
        return
    some = ranges.sizes > 0
    first = int(ranges.starts[some].min())
    last = int((ranges.starts + ranges.sizes)[some].max())
    data = np.zeros(last - first + _WORD, np.uint8)
    data[: last - first] = ranges.data[first:last]
    overlapping = np.ndarray((last - first + 1,), "<u8", data, strides=(1,))
    ends = np.cumsum(num_words)
    number = np.arange(total) - np.repeat(ends - num_words, num_words)
    values = overlapping[np.repeat(ranges.starts - first, num_words) + _WORD * number]
    rest = (ranges.sizes & 7).astype(np.uint64)
    cut = np.flatnonzero(rest)
    values[ends[cut] - 1] &= (np.uint64(1) << (rest[cut] * np.uint64(8))) - np.uint64(1)
    rows[np.repeat(starts >> 3, num_words) + number] = values


def _large_decimals(column: Any, _: SparkType) -> _Part:
    return _bytes_part(large_decimals(column))


def _calendar_intervals(column: Any, _: SparkType) -> _Part:
    parts = to_numpy(column, INTERVAL)
    sizes = np.full(len(column), 16, np.int64)

    def write(rows: Words, starts: Int64s) -> None:
        rows[starts >> 3] = parts["months"].view("<u4") | (
            parts["days"].view("<u4").astype(np.uint64) << np.uint64(32)
        )
        rows[(starts >> 3) + 1] = (parts["nanoseconds"] // 1000).view("<u8")

    return _Part(sizes, sizes, write)


def _variants(column: Any, _: SparkType) -> _Part:
    """Lay out the bytes of the value, the value, the metadata."""
    value, metadata = child(column, 0), child(column, 1)
    lengths = fixed_binary(ByteRanges.of_column(value).sizes.astype("<i4"))
    return _bytes_part(ByteRanges.of_column(join_binary(lengths, value, metadata)))


def _arrays(column: Any, kind: SparkType) -> _Part:
    offsets = list_offsets(column)
    return _elements(_between(column.values, offsets), kind.types[0], np.diff(offsets))


def _maps(column: Any, kind: SparkType) -> _Part:
    offsets = list_offsets(column)
    counts = np.diff(offsets)
    if column.keys.null_count:
        raise InvalidArgumentError(
            "a map has a key that is null",
            num_entries=column.keys.null_count,
            to_fix="leave such entries out: Spark has none",
        )
    keys, values = (
        _elements(_between(elements, offsets), element, counts)
        for elements, element in zip((column.keys, column.items), kind.types, strict=True)
    )
    sizes = _WORD + keys.room + values.room

    def write(rows: Words, starts: Int64s) -> None:
        rows[starts >> 3] = keys.room.view(np.uint64)
        keys.write(rows, starts + _WORD)
        values.write(rows, starts + _WORD + keys.room)

    return _Part(sizes, sizes, write)


def _between(elements: Any, offsets: Int64s) -> Any:
    return elements.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _elements(column: Any, kind: SparkType, counts: Int64s) -> _Part:
    """Lay out arrays of so many elements each; `column` has the elements of all."""
    is_null = _nulls_of(column)
    part, width = None, _WORD
    if kind.kind == "void" or is_number(kind):
        numbers = _numbers(column, kind, is_null)
        width = _WORD if kind.kind == "void" else numbers.itemsize
    else:
        part = _part(column, kind, in_row=False)
    headers = _WORD + (counts + 63) // 64 * _WORD
    fixed = headers + ((counts * width + 7) & ~7)
    firsts = np.cumsum(counts) - counts
    sizes = fixed
    if part is not None:
        before = np.append(0, np.cumsum(part.room))
        sizes = fixed + before[firsts + counts] - before[firsts]
    ordinals = np.arange(len(column)) - np.repeat(firsts, counts)

    def write(rows: Words, starts: Int64s) -> None:
        rows[starts >> 3] = counts.view(np.uint64)
        bases = np.repeat(starts, counts)
        if is_null is not None:
            places = ((bases >> 3) + 1 + ordinals // 64)[is_null]
            bit = np.uint64(1) << (ordinals[is_null] % 64).astype(np.uint64)
            np.bitwise_or.at(rows, places, bit)
        slots = bases + np.repeat(headers, counts) + ordinals * width
        if part is None:
            if kind.kind != "void":
                rows.view(numbers.dtype)[slots // width] = numbers
            return
        cursor = np.repeat(starts + fixed - before[firsts], counts) + before[:-1]
        where = (cursor - bases) << 32 | part.sizes
        if is_null is not None:
            where[is_null] = 0
        rows[slots >> 3] = where.view(np.uint64)
        part.write(rows, cursor)

    return _Part(sizes, sizes, write)


def from_bools(mask: Bools) -> pa.Array[Any]:
    """Return a mask as a column."""
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits(mask)])


def fixed_binary(values: npt.NDArray[Any]) -> pa.Array[Any]:
    """Return the bytes of numbers, as they lie in memory, as a binary column."""
    offsets = (np.arange(len(values) + 1) * values.itemsize).astype(np.int32)
    if len(values) == 0:
        return from_numpy(np.empty(0, np.uint8), pa.binary())
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, buffer(offsets), buffer(np.ascontiguousarray(values))]
    )


def join_binary(*parts: Any) -> pa.Array[Any]:
    """Join the bytes of several columns in each row.

    Args:
        parts: Binary columns of one length, and bytes that are the same in every row.
    """
    import pyarrow.compute as pc

    joined: pa.Array[Any] = pc.binary_join_element_wise(*parts, b"")
    return joined


_PARTS: dict[str, Callable[[Any, SparkType], _Part]] = {
    "struct": _struct,
    "array": _arrays,
    "map": _maps,
    "decimal": _large_decimals,
    "interval": _calendar_intervals,
    "variant": _variants,
}
