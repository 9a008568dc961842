"""Rows of a former value schema as rows of the newest, by Avro's rules, on columns.

As Spark's encoder, which writes a row as Avro with one schema and reads it with another: fields go
by name, a missing one is null, a number becomes a wider one. Spark checks whether a schema may
follow another before it writes a row.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from statestore.codec.avro_rows import decode_avro_rows, fixed_bytes
from statestore.codec.byte_ranges import ByteRanges, buffer, unreadable
from statestore.codec.key_bytes import AVRO_ID_BYTES, value_type
from statestore.codec.rows import from_numpy
from statestore.codec.spark_types import SparkType, parse_schema
from statestore.codec.unsafe_row import decode_column, decode_rows
from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from statestore.codec.column_family import ColumnFamily

_ID_BYTES = 8
_INTS = {"byte": "i1", "short": "i2", "integer": "i4", "date": "i4"}
_LONGS = {"long": "i8", "timestamp": "i8", "timestamp_ntz": "i8"}
_FLOATS = {"float": "f4", "double": "f8"}
_NUMBERS = _INTS | _LONGS | _FLOATS
_WIDER = [_INTS.keys(), _LONGS.keys(), {"float"}, {"double"}]
"""Avro's numbers: each is read as itself and as those after it."""
_BYTES = {"string", "binary"}


def decode_values(values: pa.Array[Any], family: ColumnFamily) -> pa.Array[Any]:
    """Decode the values of a column family that has one for each key.

    Args:
        values: Binary, length n.
        family: Whose values they are.

    Returns:
        Struct of `value_type`, length n, null where `values` is.

    Raises:
        CorruptionError: The bytes are not values of the family.
        IncompatibleError: A type cannot be read, or not as the newest.
    """
    return decode_column(values, partial(decode_value_rows, family=family))


def decode_value_rows(rows: ByteRanges, family: ColumnFamily) -> pa.Array[Any]:
    """Decode values in place, where a key may have several; as `decode_values`."""
    newest = value_type(family)
    if not family.value_schemas:
        return decode_rows(rows, newest)
    decode = decode_avro_rows if family.avro else decode_rows
    if family.avro:
        bare = rows.skip(AVRO_ID_BYTES)
        ids = rows.read("<i2", rows.starts)
    else:
        rows.require(_ID_BYTES)
        bare = ByteRanges(rows.data, rows.starts, rows.sizes - _ID_BYTES)
        ids = rows.read("<i8", rows.starts + bare.sizes)
    parts: list[pa.Array[Any]] = []
    places: list[Any] = []
    for number in np.unique(ids).tolist():
        if number not in family.value_schemas:
            # Spark may name the schemas of a program that began a batch and did not end it.
            raise unreadable(
                f"a row of value schema {number}, which its column family has not",
                "verify the checkpoint; of one of Spark's own stores, start the query as it is and "
                "let it end a batch, which writes its schemas anew",
            )
        schema = parse_schema(family.value_schemas[number])
        is_so = ids == number
        parts.append(evolve(decode(bare.pick(is_so), schema), schema, newest))
        places.append(np.flatnonzero(is_so))
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return decode_rows(bare, newest)
    order = np.argsort(np.concatenate(places))
    return pa.concat_arrays(parts).take(from_numpy(order, pa.int64()))


def evolve(column: Any, written: SparkType, wanted: SparkType) -> pa.Array[Any]:
    """Return a column of one type as one of another.

    Args:
        column: Of the Arrow type of `written`, length n, no slice.
        written: Its type.
        wanted: The type of the result.

    Raises:
        IncompatibleError: Avro reads no value of the one type as the other.
    """
    if written == wanted:
        return cast("pa.Array[Any]", column)
    if written.kind == "void":
        return _nulls(len(column), wanted)
    kinds = (written.kind, wanted.kind)
    buffers = column.buffers()
    children: list[pa.Array[Any]] = []
    if kinds == ("struct", "struct"):
        del buffers[1:]
        for name, kind in wanted.fields:
            if name in written.names:
                place = written.names.index(name)
                children.append(evolve(column.field(place), written.types[place], kind))
            else:
                children.append(_nulls(len(column), kind))
    elif kinds == ("array", "array"):
        del buffers[2:]
        children.append(evolve(column.values, written.types[0], wanted.types[0]))
    elif kinds == ("map", "map"):
        del buffers[2:]
        entries = SparkType("struct", written.fields), SparkType("struct", wanted.fields)
        children.append(_entries(column, *entries))
    elif written.kind in _NUMBERS and wanted.kind in _NUMBERS:
        if _rank(written) > _rank(wanted):
            raise _refused(written, wanted)
        buffers[1] = _numbers(column, _NUMBERS[written.kind], _NUMBERS[wanted.kind])
    elif not (_BYTES.issuperset(kinds) or _are_as_long(written, wanted)):
        raise _refused(written, wanted)
    return pa.Array.from_buffers(wanted.arrow, len(column), buffers, children=children)


def _nulls(length: int, kind: SparkType) -> pa.Array[Any]:
    found: pa.Array[Any] = pa.array([None], kind.arrow)
    return found.take(from_numpy(np.zeros(length, np.int64), pa.int64()))


def _entries(column: Any, written: SparkType, wanted: SparkType) -> pa.Array[Any]:
    """Return the entries of all maps of a column."""
    parts = [
        evolve(part, *kinds)
        for part, kinds in zip(
            (column.keys, column.items), zip(written.types, wanted.types, strict=True), strict=True
        )
    ]
    kind = pa.map_(*(kind.arrow for kind in wanted.types)).field(0).type
    return pa.Array.from_buffers(kind, len(parts[0]), [None], children=parts)


def _rank(kind: SparkType) -> int:
    return next(rank for rank, kinds in enumerate(_WIDER) if kind.kind in kinds)


def _numbers(column: pa.Array[Any], written: str, wanted: str) -> pa.Buffer:
    """Return the numbers of a column, cut to a narrower type as Java does."""
    held = column.buffers()[1]
    if held is None:
        return buffer(np.empty(0, wanted))
    return buffer(np.frombuffer(memoryview(held), written, len(column)).astype(wanted))


def _are_as_long(written: SparkType, wanted: SparkType) -> bool:
    """Whether Avro keeps both decimals in as many bytes: it compares nothing else."""
    if (written.kind, wanted.kind) != ("decimal", "decimal"):
        return False
    return fixed_bytes(written) == fixed_bytes(wanted)


def _refused(written: SparkType, wanted: SparkType) -> IncompatibleError:
    return IncompatibleError(
        "rows of a former value schema cannot be read as those of the newest",
        written=str(written.arrow),
        newest=str(wanted.arrow),
        to_fix="read a version from before the schema changed, or use Spark's state reader",
    )
