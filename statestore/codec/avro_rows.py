"""Rows that Spark's RocksDB provider encoded as Avro, decoded into Arrow columns.

A record of the fields of a struct. A field may be null, as may a struct, array or map anywhere; any
other element of an array or value of a map may not. Source: Spark's
SchemaConverters.toAvroTypeWithDefaults, releases 4.0 to 4.3, which takes no interval and no TIME.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.codec.byte_ranges import unreadable
from statestore.core.errors import IncompatibleError, InvalidArgumentError

if TYPE_CHECKING:
    from statestore.codec.byte_ranges import ByteRanges
    from statestore.codec.spark_types import SparkType

_NAMES = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "date": "int",
    "long": "long",
    "timestamp": "long",
    "timestamp_ntz": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "void": "null",
}
_NESTED = ("struct", "array", "map")
_DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    pa.ArrowException,
    struct.error,
)


def decode_avro_rows(rows: ByteRanges, schema: SparkType) -> pa.Array[Any]:
    """Decode records, one at a time.

    Args:
        rows: n ranges of a buffer, each the bytes of one record.
        schema: The struct that they were written from.

    Returns:
        Struct of the schema's Arrow type, length n.

    Raises:
        CorruptionError: The bytes are not records of the schema.
        IncompatibleError: Avro lacks a type of it.
        InvalidArgumentError: fastavro is not installed.
    """
    try:
        from fastavro import schemaless_reader
    except ImportError as error:
        raise InvalidArgumentError(
            "rows are encoded as Avro, and the package that reads it is not installed",
            missing="fastavro",
            to_fix="pip install 'statestore[avro]'",
        ) from error
    record = _parsed(schema)
    held = rows.data.tobytes()
    found = []
    try:
        for start, size in zip(rows.starts.tolist(), rows.sizes.tolist(), strict=True):
            source = BytesIO(held[start : start + size])
            found.append(schemaless_reader(source, record, None))
            if source.tell() != size:
                raise unreadable("bytes behind a record")
        return pa.array(found, schema.arrow)
    except _DAMAGED as error:
        raise unreadable(f"no record: {error}") from error


@lru_cache(maxsize=256)
def _parsed(schema: SparkType) -> Any:
    from fastavro import parse_schema

    return parse_schema(_avro(schema, "record"))


def _avro(kind: SparkType, name: str) -> Any:
    """Return the Avro schema of a type; `name` is unique to its place."""
    places = [f"{name}_{ordinal}" for ordinal in range(len(kind.fields))]
    if kind.kind == "struct":
        fields = [
            {"name": field, "type": _field(part, place)}
            for (field, part), place in zip(kind.fields, places, strict=True)
        ]
        return {"type": "record", "name": name, "fields": fields}
    if kind.kind == "array":
        return {"type": "array", "items": _element(kind.types[0], places[0])}
    if kind.kind == "map" and kind.types[0].kind == "string":
        return {"type": "map", "values": _element(kind.types[1], places[1])}
    if kind.kind == "decimal":
        number = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", "name": name, "size": fixed_bytes(kind), **number}
    if kind.kind not in _NAMES:
        raise IncompatibleError(
            "a column is of a data type that Spark does not encode as Avro",
            type=str(kind.arrow),
            to_fix="check that the schema files in the checkpoint are those of this state",
        )
    return _NAMES[kind.kind]


def _field(kind: SparkType, name: str) -> Any:
    found = _avro(kind, name)
    return found if kind.kind == "void" else ["null", found]


def _element(kind: SparkType, name: str) -> Any:
    return _field(kind, name) if kind.kind in _NESTED else _avro(kind, name)


def fixed_bytes(decimal: SparkType) -> int:
    """Return the bytes of a decimal in Spark's Avro, by its precision."""
    most: int = 10**decimal.precision - 1
    return (most.bit_length() + 8) // 8
