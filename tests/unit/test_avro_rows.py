"""Records of Avro, as Spark's RocksDB provider writes them, become columns."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.codec.avro_rows import decode_avro_rows
from statestore.codec.byte_ranges import ByteRanges
from statestore.codec.column_family import ColumnFamily
from statestore.codec.evolution import decode_values
from statestore.codec.key_bytes import decode_keys
from statestore.codec.spark_types import SparkType, parse_schema
from statestore.core.errors import CorruptionError, IncompatibleError, InvalidArgumentError

_LEAVES: list[tuple[Any, Any, Any]] = [
    ("boolean", "boolean", True),
    ("integer", "int", -5),
    ("long", {"type": "long"}, 1 << 60),
    ("float", "float", 0.5),
    ("double", "double", -0.25),
    ("string", "string", "é"),
    ("binary", "bytes", b"\0\xff"),
    ("date", {"type": "int", "logicalType": "date"}, date(1901, 2, 3)),
    (
        "timestamp",
        {"type": "long", "logicalType": "timestamp-micros"},
        datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    ),
    (
        "decimal(20,3)",
        {
            "type": "fixed",
            "size": 9,
            "name": "f",
            "logicalType": "decimal",
            "precision": 20,
            "scale": 3,
        },
        Decimal("-12345678901234567.891"),
    ),
]


def _struct(**kinds: Any) -> Any:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in kinds.items()
    ]
    return {"type": "struct", "fields": fields}


def _record(name: str, **kinds: Any) -> Any:
    fields = [{"name": field, "type": ["null", kind]} for field, kind in kinds.items()]
    return {"type": "record", "name": name, "fields": fields}


def _written(schema: Any, *rows: Any) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    found = []
    for row in rows:
        data = BytesIO()
        fastavro.schemaless_writer(data, parsed, row)
        found.append(data.getvalue())
    return found


def _decoded(rows: list[bytes], schema: Any) -> pa.Array[Any]:
    kind = parse_schema(json.dumps(schema))
    column = decode_avro_rows(ByteRanges.of_column(pa.array(rows, pa.binary())), kind)
    column.validate(full=True)
    assert column.type == kind.arrow
    return column


@pytest.mark.parametrize(("kind", "avro", "value"), _LEAVES, ids=[case[0] for case in _LEAVES])
def test_every_type_is_read_as_it_was_written(kind: str, avro: Any, value: Any) -> None:
    """Catches a type read as another, at the top and in structs, lists and maps."""
    schema = _struct(
        plain=kind,
        nested=_struct(inner=kind),
        several={"type": "array", "elementType": kind, "containsNull": True},
        named={
            "type": "map",
            "keyType": "string",
            "valueType": _struct(inner=kind),
            "valueContainsNull": True,
        },
    )
    again = avro if not isinstance(avro, dict) or "name" not in avro else avro["name"]
    record = _record(
        "top",
        plain=avro,
        nested=_record("nested", inner=again),
        several={"type": "array", "items": again},
        named={"type": "map", "values": ["null", _record("named", inner=again)]},
    )
    rows = [
        {
            "plain": value,
            "nested": {"inner": value},
            "several": [value, value],
            "named": {"a": {"inner": value}, "b": None},
        },
        {"plain": None, "nested": None, "several": [], "named": {}},
        {"plain": None, "nested": {"inner": None}, "several": None, "named": None},
    ]

    found = _decoded(_written(record, *rows), schema).to_pylist()

    for row in found:
        row["named"] = row["named"] if row["named"] is None else dict(row["named"])
    assert found == rows


@given(st.binary(max_size=40))
def test_bytes_that_are_no_record_are_an_error(data: bytes) -> None:
    """Catches an error of the library's own, or nonsense shown as a row."""
    schema = parse_schema(
        json.dumps(
            _struct(
                a="string",
                b={"type": "array", "elementType": "long", "containsNull": True},
                c="decimal(10,2)",
                d=_struct(e="boolean", f="binary"),
            )
        )
    )
    rows = ByteRanges.of_column(pa.array([data], pa.binary()))
    try:
        column = decode_avro_rows(rows, schema)
    except CorruptionError:
        return
    column.validate(full=True)


def test_bytes_behind_a_record_are_an_error() -> None:
    """Catches a record read by a schema of fewer fields than it has."""
    record = _record("top", a="long", b="long")

    with pytest.raises(CorruptionError, match="behind a record"):
        _decoded(_written(record, {"a": 1, "b": 2}), _struct(a="long"))


def test_a_type_that_avro_has_not_is_refused() -> None:
    """Catches columns of such a type shown empty."""
    rows = ByteRanges.of_column(pa.array([b"\0"], pa.binary()))

    with pytest.raises(IncompatibleError, match="does not encode as Avro"):
        decode_avro_rows(rows, SparkType("struct", (("a", SparkType("interval")),)))


def test_values_and_ordered_keys_have_the_numbers_of_their_schemas_before_them() -> None:
    """Catches a schema's number taken for data; a map's key, or a timer's time, elsewhere."""
    one, two = (json.dumps(_struct(**dict.fromkeys(names, "long"))) for names in ("a", "ab"))
    family = ColumnFamily(
        1, "v", value_schema=two, value_schemas={0: one, 1: two}, avro=True, key_schema=two
    )
    (old,), (new,) = (
        _written(_record("top", **dict.fromkeys(names, "long")), dict.fromkeys(names, 7))
        for names in ("a", "ab")
    )

    values = decode_values(pa.array([b"\0\0" + old, b"\1\0" + new], pa.binary()), family)

    assert values.to_pylist() == [{"a": 7, "b": None}, {"a": 7, "b": 7}]
    half = len(old) + 1
    key = half.to_bytes(4, "little") + b"\0" + old + b"\0\0\0" + old
    prefix = ColumnFamily(1, "v", two, two, "prefix", 1, avro=True)
    assert decode_keys(pa.array([key], pa.binary()), prefix).to_pylist() == [{"a": 7, "b": 7}]
    markers = _record("top", m="bytes", v="bytes")
    rows = [{"m": b"\1", "v": (9).to_bytes(8)}, {"m": b"\2", "v": bytes(8)}]
    keys = [
        (len(part) + 1).to_bytes(4, "little") + b"\0" + part + b"\0\0\0" + old
        for part in _written(markers, *rows)
    ]
    ranged = ColumnFamily(1, "v", two, two, "range", None, (1,), avro=True)
    assert decode_keys(pa.array(keys, pa.binary()), ranged).to_pylist() == [
        {"a": 7, "b": 9},
        {"a": 7, "b": None},
    ]


def test_missing_package_is_no_damage(monkeypatch):
    """Catches rows that are taken for unreadable, on a machine that lacks what reads them."""
    monkeypatch.setitem(sys.modules, "fastavro", None)

    with pytest.raises(InvalidArgumentError, match="missing='fastavro'"):
        decode_avro_rows(None, None)
