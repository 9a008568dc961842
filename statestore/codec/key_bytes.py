"""Key bytes of a column family, decoded into columns by its key encoder.

    no-prefix          UnsafeRow
    prefix             length, u32 | 0, UnsafeRow of the first columns | 0, UnsafeRow of the others
    range              length, u32 | 0, UnsafeRow of the ordering columns, each as binary: a marker
                       (0 negative, 1 not, 2 null) and the value, big-endian | 0, UnsafeRow of the
                       others, if there are any
    timestamp-prefix   timestamp | 0, UnsafeRow of all but the last column
    timestamp-postfix  0, UnsafeRow of all but the last column | timestamp

The 0 is the version of Spark's encoding, and counts in the length; a timestamp is 8 bytes
big-endian with its sign flipped. Spark's own Avro encoding has a record in place of each UnsafeRow,
with the ID of its schema before it, i16, but not in a first half; and an ordering column is two
fields, marker and value. Also here: splitting the values of a multi-value family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.avro_rows import decode_avro_rows
from statestore.codec.byte_ranges import ByteRanges, child, unreadable
from statestore.codec.spark_types import SparkType, parse_schema
from statestore.codec.unsafe_row import decode_rows, is_word, numbers
from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from statestore.codec.byte_ranges import Int64s
    from statestore.codec.column_family import ColumnFamily

AVRO_ID_BYTES = 2
"""Of a schema's ID in front of a record."""

NULL_MARKER = 2
"""Before an ordering column's value that is null."""
_FEW = 16
_WRONG_LENGTH = "a value of several rows with a wrong length"
SIGN = np.uint64(1 << 63)
"""The bit of a time that is flipped, so that bytes sort as times do."""
BIG_ENDIAN = {
    "byte": "i1",
    "short": ">i2",
    "integer": ">i4",
    "long": ">i8",
    "float": ">i4",
    "double": ">i8",
}
"""Ordering columns: floating-point numbers as their bits, all flipped where negative."""


def key_type(family: ColumnFamily) -> SparkType:
    """Return the struct of a column family's keys.

    Raises:
        IncompatibleError: The trailer has no schema, or a type cannot be read.
    """
    return _schema(family, family.key_schema)


def value_type(family: ColumnFamily) -> SparkType:
    """Return the struct of a column family's values; errors as `key_type`."""
    return _schema(family, family.value_schema)


def _schema(family: ColumnFamily, text: str | None) -> SparkType:
    if text is None:
        raise IncompatibleError(
            "a column family has no schema",
            column_family=family.name,
            to_fix="read it as bytes: Checkpoint(…).open_store(…).scan(column_family=…)",
        )
    return parse_schema(text)


def decode_keys(keys: pa.Array[Any], family: ColumnFamily) -> pa.Array[Any]:
    """Decode the keys of a column family.

    Args:
        keys: Binary, length n, no nulls.
        family: Whose encoder made them.

    Returns:
        Struct of `key_type`, length n.

    Raises:
        CorruptionError: The bytes are not keys of the family.
        IncompatibleError: As `key_type`, or an encoder that is not known.
    """
    schema = key_type(family)
    ranges = ByteRanges.of_column(keys)
    num_columns = len(schema.fields)
    decode = decode_avro_rows if family.avro else decode_rows
    id_bytes = AVRO_ID_BYTES if family.avro else 0
    if family.encoder == "no-prefix":
        return decode(ranges.skip(id_bytes), schema)
    if family.encoder == "prefix":
        firsts = ordering_ordinals(range(family.num_prefix_columns or 0), num_columns)
        first, others = _split(ranges)
        found = _fields(decode(first.skip(1), schema.select(firsts)), firsts)
    elif family.encoder == "range":
        firsts = ordering_ordinals(family.ordering_ordinals or (), num_columns)
        first, others = _split(ranges)
        ordered = _ordered_avro if family.avro else _ordered
        found = ordered(first.skip(1), schema, firsts)
    elif family.encoder in ("timestamp-prefix", "timestamp-postfix"):
        firsts = ordering_ordinals((num_columns - 1,), num_columns)
        if not is_word(schema.types[-1]):
            raise unreadable(f"a time of type {schema.types[-1].kind}")
        times, others = _timestamps(ranges, is_prefix=family.encoder == "timestamp-prefix")
        found = {num_columns - 1: numbers(times, schema.types[-1], None)}
    else:
        raise IncompatibleError(
            "a column family has an unknown key encoder",
            column_family=family.name,
            encoder=family.encoder,
            to_fix="use the statestore release that wrote it, or a later one",
        )
    rest = tuple(ordinal for ordinal in range(num_columns) if ordinal not in firsts)
    if rest:
        found |= _fields(decode(others.skip(1 + id_bytes), schema.select(rest)), rest)
    columns = [found[ordinal] for ordinal in range(num_columns)]
    return pa.Array.from_buffers(schema.arrow, len(keys), [None], children=columns)


def ordering_ordinals(ordinals: Sequence[int], num_columns: int) -> tuple[int, ...]:
    """Return ordinals of a key's columns, each once."""
    if len(ordinals) > num_columns or {*ordinals} - {*range(num_columns)}:
        raise unreadable("an ordinal of a column that the key does not have")
    if len({*ordinals}) != len(ordinals):
        raise unreadable("an ordinal that is there twice")
    return tuple(ordinals)


def _fields(struct: pa.Array[Any], ordinals: tuple[int, ...]) -> dict[int, pa.Array[Any]]:
    return {ordinal: child(struct, place) for place, ordinal in enumerate(ordinals)}


def _split(keys: ByteRanges) -> tuple[ByteRanges, ByteRanges]:
    """Split keys that begin with the length of their first half."""
    halves = keys.skip(4)
    lengths: Int64s = keys.read("<i4", keys.starts).astype(np.int64)
    return (
        halves.at(halves.starts, lengths),
        halves.at(halves.starts + lengths, halves.sizes - lengths),
    )


def _ordered(
    rows: ByteRanges, schema: SparkType, ordinals: tuple[int, ...]
) -> dict[int, pa.Array[Any]]:
    """Decode ordering columns from a row of binary columns."""
    binary = SparkType("struct", tuple(("", SparkType("binary")) for _ in ordinals))
    encoded = decode_rows(rows, binary)
    columns = {}
    for place, ordinal in enumerate(ordinals):
        parts = ByteRanges.of_column(child(encoded, place))
        columns[ordinal] = _ordering_column(parts, parts.skip(1), schema.types[ordinal])
    return columns


def _ordered_avro(
    rows: ByteRanges, schema: SparkType, ordinals: tuple[int, ...]
) -> dict[int, pa.Array[Any]]:
    """Decode ordering columns from a record of a marker and a value each."""
    names = [f"{part}{place}" for place in range(len(ordinals)) for part in ("marker", "value")]
    binary = SparkType("struct", tuple((name, SparkType("binary")) for name in names))
    encoded = decode_avro_rows(rows, binary)
    columns = {}
    for place, ordinal in enumerate(ordinals):
        marker, value = (ByteRanges.of_column(child(encoded, 2 * place + part)) for part in (0, 1))
        columns[ordinal] = _ordering_column(marker, value, schema.types[ordinal])
    return columns


def _ordering_column(markers: ByteRanges, values: ByteRanges, kind: SparkType) -> pa.Array[Any]:
    dtype = BIG_ENDIAN.get(kind.kind)
    if dtype is None:
        raise unreadable(f"an ordering column of type {kind.kind}")
    markers.require(1)
    values.require(np.dtype(dtype).itemsize)
    marked = markers.read("u1", markers.starts)
    found = values.read(dtype, values.starts)
    found = found.astype(found.dtype.newbyteorder("="))
    if kind.kind in ("float", "double"):
        found = np.where(marked == 0, ~found, found)
    is_null = marked == NULL_MARKER
    return numbers(found, kind, is_null if is_null.any() else None)


def _timestamps(keys: ByteRanges, *, is_prefix: bool) -> tuple[npt.NDArray[Any], ByteRanges]:
    if is_prefix:
        others = keys.skip(8)
        at = keys.starts
    else:
        keys.require(8)
        others = keys.at(keys.starts, keys.sizes - 8)
        at = others.starts + others.sizes
    flipped = keys.read(">u8", at).astype(np.uint64)
    return (flipped ^ SIGN).view(np.int64), others


def split_values(values: pa.Array[Any]) -> tuple[ByteRanges, npt.NDArray[np.int64]]:
    """Split the values of a multi-value family.

    Args:
        values: Binary, length n, no nulls; each one or more of (u32 big-endian length, row).

    Returns:
        Ranges of all rows in order, and for each the index of the value it is from.

    Raises:
        CorruptionError: The lengths do not fit.
    """
    rows = ByteRanges.of_column(values)
    ends = rows.starts + rows.sizes
    active = np.flatnonzero(rows.sizes > 0)
    position = rows.starts[active]
    found: list[tuple[Int64s, Int64s, Int64s]] = []
    # The first row of every value, then the second of those that have one, and so on; the last few
    # values each by itself, since a step for them all takes as long as for many.
    while len(active) > _FEW:
        sizes: Int64s = rows.read(">i4", position).astype(np.int64)
        found.append((active, position + 4, sizes))
        position = position + 4 + sizes
        if (sizes < 0).any() or (position > ends[active]).any():
            raise unreadable(_WRONG_LENGTH)
        more = position < ends[active]
        active, position = active[more], position[more]
    for owner, start in zip(active.tolist(), position.tolist(), strict=True):
        sizes = _row_sizes(rows.data, start, int(ends[owner]))
        starts = start + 4 * np.arange(1, len(sizes) + 1) + np.cumsum(sizes) - sizes
        found.append((np.full(len(sizes), owner), starts, sizes))
    if not found:
        return rows.pick(np.zeros(len(rows), bool)), np.empty(0, np.int64)
    owners, starts, row_sizes = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(starts, kind="stable")
    return rows.at(starts[order], row_sizes[order]), owners[order]


def _row_sizes(data: npt.NDArray[np.uint8], position: int, end: int) -> Int64s:
    """Return the sizes of the rows of one value, from a position to its end."""
    sizes = []
    while position < end:
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4 + size
        if size < 0 or position > end:
            raise unreadable(_WRONG_LENGTH)
        sizes.append(size)
    return np.array(sizes, np.int64)
