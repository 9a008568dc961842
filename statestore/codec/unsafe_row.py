"""Rows as Spark keeps them in memory, `UnsafeRow`, decoded into Arrow columns without a JVM.

    row    null bits, 8 bytes a 64 columns | a word of 8 bytes a column | what does not fit a word
    array  number of elements | null bits | elements, as wide as their type | what does not fit
    map    bytes of the keys | array of keys | array of values

A word holds a number, or the place of the value: its offset from the start of the row (array) in
the upper, its bytes in the lower half. All is little-endian. Columns are decoded one at a time, all
rows at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import (
    ByteRanges,
    bits,
    buffer,
    index_with_nulls,
    unpack,
    unreadable,
)
from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from statestore.codec.byte_ranges import Bools, Int64s
    from statestore.codec.spark_types import SparkType

_NUMBERS = {
    "boolean": "u1",
    "byte": "i1",
    "short": "<i2",
    "integer": "<i4",
    "long": "<i8",
    "float": "<f4",
    "double": "<f8",
    "date": "<i4",
    "timestamp": "<i8",
    "timestamp_ntz": "<i8",
    "time": "<i8",
    "year-month interval": "<i4",
    "day-time interval": "<i8",
    "decimal": "<i8",
}
_MAX_WORD_DIGITS = 18
"""Decimals of more digits do not fit a word."""
_WORD = 8


def decode_column(
    rows: pa.Array[Any], decode: Callable[[ByteRanges], pa.Array[Any]]
) -> pa.Array[Any]:
    """Decode a binary column by a function that decodes ranges; null where `rows` is."""
    ranges = ByteRanges.of_column(rows)
    if rows.null_count == 0:
        return decode(ranges)
    is_null = unpack(rows.is_null())
    return _among_nulls(decode(ranges.pick(~is_null)), is_null)


def decode_rows(rows: ByteRanges, schema: SparkType) -> pa.Array[Any]:
    """Decode rows in place.

    Args:
        rows: n ranges, each the bytes of one UnsafeRow.
        schema: The rows' struct.

    Returns:
        Struct of the schema's Arrow type, length n.

    Raises:
        CorruptionError: The bytes are not rows of the schema.
        IncompatibleError: Arrow cannot hold an interval.
    """
    num_words = (len(schema.fields) + 63) // 64
    rows.require(_WORD * (num_words + len(schema.fields)))
    null_words = [rows.read("<u8", rows.starts + _WORD * word) for word in range(num_words)]
    columns: list[pa.Array[Any]] = []
    for ordinal, kind in enumerate(schema.types):
        is_null = _bits_of(null_words[ordinal // 64], np.uint64(ordinal % 64))
        slots = rows.starts + _WORD * (num_words + ordinal)
        columns.append(_decode(rows, kind, slots, rows.starts, is_null))
    return pa.Array.from_buffers(schema.arrow, len(rows), [None], children=columns)


def decode_field(rows: ByteRanges, schema: SparkType, ordinal: int) -> pa.Array[Any]:
    """Decode one column of rows; as `decode_rows`, length n."""
    num_words = (len(schema.fields) + 63) // 64
    rows.require(_WORD * (num_words + len(schema.fields)))
    words = rows.read("<u8", rows.starts + _WORD * (ordinal // 64))
    slots = rows.starts + _WORD * (num_words + ordinal)
    is_null = _bits_of(words, np.uint64(ordinal % 64))
    return _decode(rows, schema.types[ordinal], slots, rows.starts, is_null)


def _bits_of(words: npt.NDArray[np.uint64], ordinals: Any) -> Bools | None:
    """Return the positions of set null bits, None for none."""
    found = (words >> ordinals & np.uint64(1)).astype(bool)
    return found if found.any() else None


def _decode(
    rows: ByteRanges, kind: SparkType, slots: Int64s, bases: Int64s, is_null: Bools | None
) -> pa.Array[Any]:
    """Decode one column.

    Args:
        rows: Of the buffer.
        kind: Type of the column.
        slots: The place of each value's number or word.
        bases: The start for offsets in words.
        is_null: Where the column is null, None for nowhere.
    """
    if kind.kind == "void":
        return pa.nulls(len(slots))
    if is_number(kind):
        return numbers(rows.read(_NUMBERS[kind.kind], slots), kind, is_null)
    words: Int64s = rows.read("<i8", slots)
    starts, sizes = bases + (words >> 32), words & 0xFFFFFFFF
    if kind.kind in ("string", "binary"):
        if is_null is not None:
            # Empty, and behind what came before: ranges in ascending order are fast to copy.
            sizes = np.where(is_null, 0, sizes)
            ends = np.maximum.accumulate(np.where(is_null, 0, starts + sizes))
            starts = np.where(is_null, ends, starts)
        return rows.at(starts, sizes).to_arrow(kind.arrow, is_null)
    if is_null is None:
        return _PARTS[kind.kind](rows.at(starts, sizes), kind)
    parts = rows.at(starts[~is_null], sizes[~is_null])
    return _among_nulls(_PARTS[kind.kind](parts, kind), is_null)


def is_number(kind: SparkType) -> bool:
    """Return whether values of a type fit a word."""
    return kind.kind in _NUMBERS and kind.precision <= _MAX_WORD_DIGITS


def is_word(kind: SparkType) -> bool:
    """Return whether values of a type are numbers of 8 bytes."""
    return is_number(kind) and np.dtype(_NUMBERS[kind.kind]).itemsize == _WORD


def numbers(values: npt.NDArray[Any], kind: SparkType, is_null: Bools | None) -> pa.Array[Any]:
    """Return numbers, as a row holds them, as a column.

    Args:
        values: Length n; decimals as their unscaled numbers.
        kind: A type that fits a word.
        is_null: Where the column is null, None for nowhere.
    """
    validity = None if is_null is None else bits(~is_null)
    if kind.kind == "boolean":
        data = bits(values != 0)
    elif kind.kind == "decimal":
        data = buffer(np.stack([values, values >> 63], axis=1))
    elif kind.kind == "year-month interval":
        data = _intervals(values, 0, np.zeros(1, np.int64))
    else:
        data = buffer(values)
    return pa.Array.from_buffers(kind.arrow, len(values), [validity, data])


def _intervals(months: Any, days: Any, microseconds: Int64s) -> pa.Buffer:
    parts = np.zeros(len(months), [("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
    most = np.iinfo(np.int64).max // 1000
    if ((microseconds > most) | (microseconds < -most)).any():
        raise IncompatibleError(
            "an interval of more than 292 years of microseconds cannot be read",
            longest_years=292,
            to_fix="read the state with Spark's state reader",
        )
    parts["months"], parts["days"], parts["nanoseconds"] = months, days, microseconds * 1000
    return buffer(parts.view(np.uint8))


def _calendar_intervals(parts: ByteRanges, kind: SparkType) -> pa.Array[Any]:
    parts.require(16)
    data = _intervals(
        parts.read("<i4", parts.starts),
        parts.read("<i4", parts.starts + 4),
        parts.read("<i8", parts.starts + 8),
    )
    return pa.Array.from_buffers(kind.arrow, len(parts), [None, data])


def _large_decimals(parts: ByteRanges, kind: SparkType) -> pa.Array[Any]:
    """Decode two's complement, big-endian, of 1 to 16 bytes."""
    parts.require(1)
    if (parts.sizes > 16).any():
        raise unreadable("a decimal of more than 16 bytes")
    values = np.empty((len(parts), 16), np.uint8)
    values[:] = (parts.read("i1", parts.starts) >> 7).astype(np.uint8)[:, None]
    for place in range(int(parts.sizes.max(initial=0))):
        has = parts.sizes > place
        values[has, place] = parts.read("u1", (parts.starts + parts.sizes - 1 - place)[has])
    return pa.Array.from_buffers(kind.arrow, len(parts), [None, buffer(values)])


def _variants(parts: ByteRanges, kind: SparkType) -> pa.Array[Any]:
    """Decode the bytes of the value, the value, the metadata."""
    parts.require(4)
    sizes: Int64s = parts.read("<i4", parts.starts).astype(np.int64)
    values = parts.at(parts.starts + 4, sizes)
    metadata = parts.at(parts.starts + 4 + sizes, parts.sizes - 4 - sizes)
    columns = [half.to_arrow(pa.binary()) for half in (values, metadata)]
    return pa.Array.from_buffers(kind.arrow, len(parts), [None], children=columns)


def _arrays(parts: ByteRanges, kind: SparkType) -> pa.Array[Any]:
    counts, elements = _elements(parts, kind.types[0])
    return pa.Array.from_buffers(
        kind.arrow, len(parts), [None, _list_offsets(counts)], children=[elements]
    )


def _maps(parts: ByteRanges, kind: SparkType) -> pa.Array[Any]:
    parts.require(_WORD)
    key_sizes: Int64s = parts.read("<i8", parts.starts)
    rest = parts.skip(_WORD)
    halves = (
        rest.at(rest.starts, key_sizes),
        rest.at(rest.starts + key_sizes, rest.sizes - key_sizes),
    )
    counts, keys = _elements(halves[0], kind.types[0])
    value_counts, values = _elements(halves[1], kind.types[1])
    if not np.array_equal(counts, value_counts):
        raise unreadable("a map with more keys than values, or fewer")
    if keys.null_count:
        raise unreadable("a map with a key that is null")
    entries = pa.Array.from_buffers(
        kind.arrow.field(0).type, len(keys), [None], children=[keys, values]
    )
    return pa.Array.from_buffers(
        kind.arrow, len(parts), [None, _list_offsets(counts)], children=[entries]
    )


def _elements(parts: ByteRanges, kind: SparkType) -> tuple[Int64s, pa.Array[Any]]:
    """Return the number of elements of each array, and all elements."""
    parts.require(_WORD)
    counts: Int64s = parts.read("<i8", parts.starts)
    # No element takes less than a bit, that which says whether it is null.
    if (counts < 0).any() or (counts > 8 * parts.sizes).any():
        raise unreadable("an array of more elements than it has room for")
    headers = _WORD + (counts + 63) // 64 * _WORD
    width = np.dtype(_NUMBERS[kind.kind]).itemsize if is_number(kind) else _WORD
    parts.require(headers + counts * width)
    firsts = np.cumsum(counts) - counts
    bases = np.repeat(parts.starts, counts)
    ordinals = np.arange(len(bases)) - np.repeat(firsts, counts)
    words = parts.read("<u8", bases + _WORD + ordinals // 64 * _WORD)
    is_null = _bits_of(words, (ordinals % 64).astype(np.uint64))
    slots = bases + np.repeat(headers, counts) + ordinals * width
    return counts, _decode(parts, kind, slots, bases, is_null)


def _list_offsets(counts: Int64s) -> pa.Buffer:
    return buffer(np.append(0, np.cumsum(counts)).astype(np.int32))


def _among_nulls(column: pa.Array[Any], is_null: Bools) -> pa.Array[Any]:
    """Return a column with nulls put in."""
    places: npt.NDArray[np.int64] = np.cumsum(~is_null) - 1
    return column.take(index_with_nulls(places, is_null))


_PARTS: dict[str, Callable[[ByteRanges, SparkType], pa.Array[Any]]] = {
    "struct": decode_rows,
    "array": _arrays,
    "map": _maps,
    "decimal": _large_decimals,
    "interval": _calendar_intervals,
    "variant": _variants,
}
