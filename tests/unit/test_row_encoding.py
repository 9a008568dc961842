"""Columns become the very rows and keys that Spark makes of the same values, and back again."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Context, Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.codec.column_family import ColumnFamily
from statestore.codec.evolution import decode_value_rows, decode_values
from statestore.codec.key_bytes import decode_keys, split_values
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.codec.merge import merge_rows
from statestore.codec.rows import MERGE, SCHEMA
from statestore.codec.spark_types import SparkType, parse_schema
from statestore.codec.unsafe_row import decode_column, decode_rows
from statestore.codec.unsafe_row_encoding import encode_column
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from tests.golden.row_cases import CASES, KEYS, ROWS_PATH

GOLDEN = json.loads(ROWS_PATH.read_text())


def _decoded(rows, schema):
    return decode_column(rows, partial(decode_rows, schema=schema))


def _binary(rows: list[str]) -> Any:
    return pa.array([bytes.fromhex(row) for row in rows], pa.binary())


@pytest.mark.parametrize("name", ["wide", *(case[0] for case in CASES)])
def test_rows_of_every_type_are_those_that_spark_wrote(name: str) -> None:
    """Catches a byte that differs from Spark's: a key would not be found, nor a sum go on."""
    golden = GOLDEN["rows"][name]
    schema = parse_schema(golden["schema"])
    rows = _binary(golden["bytes"])
    if name == "interval":
        rows = rows.slice(0, 1)  # the null beside it is of no type

    column = _decoded(rows, schema)

    assert encode_column(column, schema).equals(rows)
    shifted = pa.concat_arrays([column.slice(0, 1), column]).slice(1)
    assert encode_column(shifted, schema).equals(rows)


def _family(encoder: str, schema: str, argument: Any) -> ColumnFamily:
    family = ColumnFamily(1, "timers", schema, schema, encoder)
    if encoder == "prefix":
        return replace(family, num_prefix_columns=argument)
    return replace(family, ordering_ordinals=tuple(argument) if argument else None)


@pytest.mark.parametrize("number", range(len(KEYS)))
def test_keys_of_every_encoder_are_those_that_spark_wrote(number: int) -> None:
    """Catches a key that Spark does not find, or finds in another order."""
    encoder, _, argument, _ = KEYS[number]
    golden = GOLDEN["keys"][number]
    family = _family(encoder, golden["schema"], argument)
    keys = _binary(golden["bytes"])

    assert encode_keys(decode_keys(keys, family), family).equals(keys)


_PLAIN = [
    *("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz", "time", "day-time interval", "void"),
]


def _decimals() -> st.SearchStrategy[SparkType]:
    return st.integers(1, 38).flatmap(
        lambda digits: st.builds(
            SparkType, st.just("decimal"), st.just(()), st.just(digits), st.integers(0, digits)
        )
    )


def _nested(inner: st.SearchStrategy[SparkType]) -> st.SearchStrategy[SparkType]:
    keys = st.sampled_from(["integer", "string", "short"]).map(SparkType)
    return st.one_of(
        st.lists(inner, max_size=3).map(_struct),
        inner.map(lambda kind: SparkType("array", (("element", kind),))),
        st.tuples(keys, inner).map(
            lambda kinds: SparkType("map", (("key", kinds[0]), ("value", kinds[1])))
        ),
    )


def _struct(kinds: list[SparkType]) -> SparkType:
    return SparkType("struct", tuple((f"c{n}", kind) for n, kind in enumerate(kinds)))


def _values(kind: SparkType) -> st.SearchStrategy[Any]:
    """Return values of a type, as `pa.array` takes them."""
    if kind.kind == "struct":
        return st.fixed_dictionaries({name: _optional(part) for name, part in kind.fields})
    if kind.kind == "array":
        return st.lists(_optional(kind.types[0]), max_size=70 if len(str(kind)) < 200 else 3)
    if kind.kind == "map":
        return st.lists(st.tuples(_values(kind.types[0]), _optional(kind.types[1])), max_size=3)
    if kind.kind == "decimal":
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-kind.scale, _EXACT))
    if kind.kind == "void":
        return st.none()
    arrow = kind.arrow
    if kind.kind == "string":
        return st.text(max_size=20)
    if kind.kind == "binary":
        return st.binary(max_size=20)
    if kind.kind == "boolean":
        return st.booleans()
    if kind.kind in ("float", "double"):
        return st.floats(width=32, allow_nan=False)
    width = 86_400_000_000_000 - 1 if kind.kind == "time" else 1 << (arrow.bit_width - 1)
    low = 0 if kind.kind == "time" else -width
    return st.integers(low, width - 1)


_EXACT = Context(prec=50)


def _optional(kind: SparkType) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), _values(kind))


_TYPES = st.recursive(
    st.one_of(st.sampled_from(_PLAIN).map(SparkType), _decimals()), _nested, max_leaves=5
)


def _column(data: st.DataObject, schema: SparkType, rows: st.SearchStrategy[Any]) -> Any:
    return _array(data.draw(st.lists(rows, max_size=5)), schema)


def _array(values: list[Any], kind: SparkType) -> Any:
    """Return a column; numbers of a time's type are made through the numbers they are."""
    if kind.kind in ("struct", "array", "map"):
        return _nested_array(values, kind)
    if kind.kind in ("timestamp", "timestamp_ntz", "time", "day-time interval"):
        return pa.array(values, pa.int64()).cast(kind.arrow)
    if kind.kind == "date":
        return pa.array(values, pa.int32()).cast(kind.arrow)
    return pa.array(values, kind.arrow)


def _nested_array(values: list[Any], kind: SparkType) -> Any:
    is_null = pa.array([value is None for value in values], pa.bool_())
    if kind.kind == "struct":
        children = [
            _array([None if value is None else value[name] for value in values], part)
            for name, part in kind.fields
        ]
        if not children:
            return pa.array(values, kind.arrow)
        return pa.StructArray.from_arrays(children, fields=list(kind.arrow), mask=is_null)
    offsets, flat = [0], []
    for value in values:
        flat += value or []
        offsets.append(len(flat))
    if kind.kind == "array":
        elements = _array(flat, kind.types[0])
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), elements, type=kind.arrow, mask=is_null
        )
    keys, items = (
        _array([entry[side] for entry in flat], part) for side, part in enumerate(kind.types)
    )
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), keys, items, type=kind.arrow, mask=is_null
    )


@given(st.lists(_TYPES, min_size=1, max_size=4).map(_struct), st.data())
def test_what_was_encoded_is_decoded_to_the_same(schema: SparkType, data: st.DataObject) -> None:
    """Catches a type, a null or a nesting that goes wrong one way only."""
    column = _column(data, schema, _optional(schema))
    column.validate(full=True)

    found = _decoded(encode_column(column, schema), schema)
    found.validate(full=True)
    assert found.equals(column)
    assert _decoded(encode_column(column.slice(1), schema), schema).equals(column.slice(1))


_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "a", "type": "long", "nullable": True, "metadata": {}},
            {"name": "b", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)
_ROWS = [{"a": 1, "b": "x"}, {"a": None, "b": "a longer text"}, {"a": 3, "b": None}]
_FAMILY = ColumnFamily(0, "default", _SCHEMA, _SCHEMA)


def test_values_carry_the_number_of_their_schema_where_it_may_change() -> None:
    """Catches a value that is read by another schema than it was written by."""
    older = json.dumps({"type": "struct", "fields": json.loads(_SCHEMA)["fields"][:1]})
    family = replace(_FAMILY, value_schemas={0: older, 3: _SCHEMA})
    values = pa.array(_ROWS, parse_schema(_SCHEMA).arrow)

    encoded = encode_values(values, family)

    assert {row[-8:] for row in encoded.to_pylist()} == {(3).to_bytes(8, "little")}
    assert decode_values(encoded, family).to_pylist() == _ROWS


def test_values_of_one_key_are_joined_in_their_order() -> None:
    """Catches a list that loses an element or its order when it is written as data."""
    family = replace(_FAMILY, multi_values=True)
    values = pa.array(_ROWS, parse_schema(_SCHEMA).arrow)
    count = len(_ROWS)
    columns = [
        pa.array([0] * count, pa.uint16()),
        pa.array([0] * count, pa.uint16()),
        pa.array([MERGE] * count, pa.uint8()),
        pa.array([b"k"] * count, pa.binary()),
        encode_values(values, family),
    ]

    merged = merge_rows([pa.RecordBatch.from_arrays(columns, schema=SCHEMA)], [0], 1)

    rows, owners = split_values(merged.column("value"))
    assert owners.tolist() == [0] * count
    assert decode_value_rows(rows, family).to_pylist() == _ROWS


def test_what_no_key_can_hold_is_refused() -> None:
    """Catches a key that sorts nowhere, or bytes of an encoder that nobody knows."""
    values = pa.array([{"a": 1, "b": "x"}], parse_schema(_SCHEMA).arrow)
    with pytest.raises(IncompatibleError, match="encoder='other'"):
        encode_keys(values, replace(_FAMILY, encoder="other"))
    timed = json.dumps({"type": "struct", "fields": json.loads(_SCHEMA)["fields"][::-1]})
    column = pa.array([{"b": "x", "a": None}], parse_schema(timed).arrow)
    with pytest.raises(InvalidArgumentError, match="column='a'"):
        encode_keys(column, ColumnFamily(0, "left", timed, timed, "timestamp-postfix"))
