"""Columns encoded as key bytes and values of a column family, for `key_bytes` to decode.

State files never hold Avro, which only Spark's own RocksDB provider writes: so this module writes
none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import ByteRanges, child, unpack
from statestore.codec.key_bytes import (
    BIG_ENDIAN,
    NULL_MARKER,
    SIGN,
    key_type,
    ordering_ordinals,
    value_type,
)
from statestore.codec.rows import to_numpy
from statestore.codec.spark_types import SparkType
from statestore.codec.unsafe_row_encoding import (
    encode_column,
    fixed_binary,
    join_binary,
)
from statestore.core.errors import IncompatibleError, InvalidArgumentError

if TYPE_CHECKING:
    from statestore.codec.column_family import ColumnFamily

_BINARY = SparkType("binary")
_VERSION = b"\0"
"""Of Spark's encoding, before each row."""


def encode_keys(keys: pa.Array[Any], family: ColumnFamily) -> pa.Array[Any]:
    """Encode the keys of a column family.

    Args:
        keys: Struct of `key_type`, length n, no nulls.
        family: Whose encoder is to make them.

    Returns:
        Binary, length n: `decode_keys` returns the same keys.

    Raises:
        InvalidArgumentError: Rows are too large, or a time of an ordered key is null.
        IncompatibleError: As `key_type`, or an encoder that is not known.
    """
    schema = key_type(family)
    columns = _Columns(keys, schema)
    if family.encoder == "no-prefix":
        return encode_column(keys, schema)
    num_columns = len(schema.fields)
    if family.encoder == "prefix":
        firsts = ordering_ordinals(range(family.num_prefix_columns or 0), num_columns)
        return _halves(columns.rows(firsts), columns.rows(_others(firsts, num_columns)))
    if family.encoder == "range":
        firsts = ordering_ordinals(family.ordering_ordinals or (), num_columns)
        rest = _others(firsts, num_columns)
        return _halves(columns.ordered(firsts), columns.rows(rest) if rest else None)
    if family.encoder in ("timestamp-prefix", "timestamp-postfix"):
        row, time = columns.rows(tuple(range(num_columns - 1))), columns.time(num_columns - 1)
        is_prefix = family.encoder == "timestamp-prefix"
        return join_binary(time, _VERSION, row) if is_prefix else join_binary(_VERSION, row, time)
    raise IncompatibleError(
        "a column family has an unknown key encoder",
        column_family=family.name,
        encoder=family.encoder,
        to_fix="use the statestore release that wrote it, or a later one",
    )


def encode_values(values: pa.Array[Any], family: ColumnFamily) -> pa.Array[Any]:
    """Encode the values of a column family.

    Args:
        values: Struct of `value_type`, length n, no nulls. For a multi-value family these are the
            rows of one value, which is all of them end to end.
        family: Whose values they are.

    Returns:
        Binary, length n. Where the schema of values may change, each row has the ID of the newest
        one behind it; in a multi-value family, its length before it.

    Raises:
        InvalidArgumentError: Rows are too large.
        IncompatibleError: As `value_type`.
    """
    rows = encode_column(values, value_type(family))
    if family.value_schemas:
        newest = np.full(len(rows), max(family.value_schemas), "<i8")
        rows = join_binary(rows, fixed_binary(newest))
    if family.multi_values:
        lengths = ByteRanges.of_column(rows).sizes.astype(">i4")
        rows = join_binary(fixed_binary(lengths), rows)
    return rows


def _others(ordinals: tuple[int, ...], num_columns: int) -> tuple[int, ...]:
    return tuple(ordinal for ordinal in range(num_columns) if ordinal not in ordinals)


def _halves(first: pa.Array[Any], rest: pa.Array[Any] | None) -> pa.Array[Any]:
    """Return the length of the first half, the first half, and the second half, if there is one."""
    lengths = fixed_binary((ByteRanges.of_column(first).sizes + len(_VERSION)).astype("<i4"))
    return join_binary(lengths, _VERSION, first, _VERSION, *(() if rest is None else (rest,)))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Keys and their type."""

    keys: pa.Array[Any]
    schema: SparkType

    def rows(self, ordinals: tuple[int, ...]) -> pa.Array[Any]:
        """Return some columns as rows of their own."""
        return self._encode([child(self.keys, o) for o in ordinals], self.schema.select(ordinals))

    def ordered(self, ordinals: tuple[int, ...]) -> pa.Array[Any]:
        """Return ordering columns as rows of binary columns, whose bytes sort as the values."""
        names = tuple((f"c{place}", _BINARY) for place in range(len(ordinals)))
        columns = [_ordering_column(child(self.keys, o), self.schema.types[o]) for o in ordinals]
        return self._encode(columns, SparkType("struct", names))

    def time(self, ordinal: int) -> pa.Array[Any]:
        """Return a time as 8 bytes that sort as it does."""
        column = child(self.keys, ordinal)
        if column.null_count:
            raise InvalidArgumentError(
                "the time of an ordered key is null",
                column=self.schema.names[ordinal],
                to_fix="leave such rows out: Spark has none",
            )
        return fixed_binary((to_numpy(column, "<u8") ^ SIGN).astype(">u8"))

    def _encode(self, columns: list[pa.Array[Any]], schema: SparkType) -> pa.Array[Any]:
        struct = pa.Array.from_buffers(schema.arrow, len(self.keys), [None], children=columns)
        return encode_column(struct, schema)


def _ordering_column(column: pa.Array[Any], kind: SparkType) -> pa.Array[Any]:
    dtype = np.dtype(BIG_ENDIAN[kind.kind])
    values = to_numpy(column, dtype.newbyteorder("="))
    is_null = unpack(column.is_null())
    marks = (values >= 0).astype(np.uint8)
    if kind.kind in ("float", "double"):
        values = np.where(marks == 0, ~values, values)
    marks[is_null] = NULL_MARKER
    values = np.where(is_null, 0, values)
    return join_binary(fixed_binary(marks), fixed_binary(values.astype(dtype)))
