"""Rows of a former value schema become rows of the newest by Avro's rules."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.codec.column_family import ColumnFamily
from statestore.codec.evolution import decode_values, evolve
from statestore.codec.spark_types import SparkType
from statestore.core.errors import CorruptionError, IncompatibleError

_AVRO = {
    "boolean": "boolean",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
}
_WIDER = {
    "integer": ["integer", "long", "float", "double"],
    "long": ["long", "float", "double"],
    "float": ["float", "double"],
    "string": ["string", "binary"],
}
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=3),
    "binary": st.binary(max_size=3),
}


def _avro(kind: SparkType, path: str = "top") -> Any:
    """Return what Spark makes of a type: everything but an element may be null."""
    if kind.kind == "struct":
        fields = [
            {"name": name, "type": _nullable(_avro(of, f"{path}_{name}")), "default": None}
            for name, of in kind.fields
        ]
        return {"type": "record", "name": path, "fields": fields}
    if kind.kind == "array":
        return {"type": "array", "items": _avro(kind.types[0], f"{path}_e")}
    if kind.kind == "map":
        return {"type": "map", "values": _avro(kind.types[1], f"{path}_v")}
    return _AVRO[kind.kind]


def _nullable(schema: Any) -> list[Any]:
    return ["null", schema]


@st.composite
def _changes(draw: st.DrawFn, depth: int = 2) -> tuple[SparkType, SparkType]:
    """Draw a type and one that it may become."""
    kinds = [*_VALUES, *(["struct", "array", "map"] if depth else [])]
    kind = draw(st.sampled_from(kinds))
    if kind == "struct":
        return draw(_structs(depth - 1))
    if kind in ("array", "map"):
        parts = draw(_changes(depth - 1))
        names = [("element",)] if kind == "array" else [("key",), ("value",)]
        strings = [] if kind == "array" else [SparkType("string")]
        written, wanted = (
            SparkType(kind, tuple(zip([n for (n,) in names], [*strings, part], strict=True)))
            for part in parts
        )
        return written, wanted
    return SparkType(kind), SparkType(draw(st.sampled_from(_WIDER.get(kind, [kind]))))


@st.composite
def _structs(draw: st.DrawFn, depth: int = 2) -> tuple[SparkType, SparkType]:
    names = draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1, max_size=4))
    changes = {name: draw(_changes(depth)) for name in names}
    added = draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=2))
    kept = draw(st.lists(st.sampled_from(names), unique=True))
    later = {name: changes[name][1] for name in kept}
    later |= {name: draw(_changes(0))[1] for name in added}
    order = draw(st.permutations(sorted(later)))
    return (
        SparkType("struct", tuple((name, changes[name][0]) for name in names)),
        SparkType("struct", tuple((name, later[name]) for name in order)),
    )


def _values(kind: SparkType) -> st.SearchStrategy[Any]:
    if kind.kind == "struct":
        return st.fixed_dictionaries(
            {name: st.none() | _values(of) for name, of in kind.fields},
        )
    if kind.kind == "array":
        return st.lists(_values(kind.types[0]), max_size=3)
    if kind.kind == "map":
        return st.dictionaries(st.text("kl", max_size=2), _values(kind.types[1]), max_size=2)
    return _VALUES[kind.kind]


def _resolved(row: Any, written: SparkType, wanted: SparkType) -> Any:
    data = BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(_avro(written)), row)
    data.seek(0)
    schemas = (fastavro.parse_schema(_avro(kind)) for kind in (written, wanted))
    return fastavro.schemaless_reader(data, *schemas)


def _shown(found: Any, kind: SparkType) -> Any:
    """Return a value as Arrow and Avro both show it."""
    if found is None:
        return None
    if kind.kind == "struct":
        return {name: _shown(found[name], of) for name, of in kind.fields}
    if kind.kind == "array":
        return [_shown(one, kind.types[0]) for one in found]
    if kind.kind == "map":
        return {key: _shown(one, kind.types[1]) for key, one in dict(found).items()}
    if kind.kind == "float":
        return pa.scalar(float(found), pa.float64()).cast(pa.float32(), safe=False).as_py()
    return found


@given(_structs(), st.data())
def test_rows_evolve_as_avro_resolves_them(
    change: tuple[SparkType, SparkType], data: st.DataObject
) -> None:
    """Catches a field that is taken by place, a null lost, a number widened wrongly, and all that
    at any depth of structs, lists and maps.
    """
    written, wanted = change
    rows = data.draw(st.lists(_values(written), max_size=4))

    column = evolve(pa.array(rows, written.arrow), written, wanted)
    column.validate(full=True)

    assert column.type == wanted.arrow
    expected = [_resolved(row, written, wanted) for row in rows]
    assert [_shown(row, wanted) for row in column.to_pylist()] == [
        _shown(row, wanted) for row in expected
    ]


@pytest.mark.parametrize(
    ("written", "wanted"),
    [("long", "integer"), ("double", "float"), ("string", "long"), ("boolean", "integer")],
)
def test_evolving_refuses_when_avro_would(written: str, wanted: str) -> None:
    """Catches numbers cut, or taken for what they are not, without a word."""
    with pytest.raises(IncompatibleError, match="former value schema"):
        evolve(pa.array([None], SparkType(written).arrow), SparkType(written), SparkType(wanted))


@pytest.mark.parametrize(
    ("written", "wanted", "found"),
    [
        (SparkType("long"), SparkType("timestamp"), "1970-01-01 00:00:00.000007Z"),
        (SparkType("integer"), SparkType("date"), "1970-01-08"),
        (SparkType("decimal", (), 10, 2), SparkType("decimal", (), 11, 3), "0.007"),
        (SparkType("void"), SparkType("string"), None),
    ],
)
def test_a_value_is_reread_when_avro_keeps_both_alike(
    written: SparkType, wanted: SparkType, found: str | None
) -> None:
    """Catches the same bytes given another value than Spark gives them: it asks for no more."""
    number = "0.07" if written.kind == "decimal" else 7
    column = pa.array([None if found is None else number])
    if found is not None:
        column = column.cast(written.arrow)

    evolved = evolve(column, written, wanted)

    assert evolved.type == wanted.arrow
    assert evolved.cast(pa.string()).to_pylist() == [found]


def _schema(*names: str) -> str:
    fields = [{"name": n, "type": "long", "nullable": True, "metadata": {}} for n in names]
    return json.dumps({"type": "struct", "fields": fields})


def _row(schema: int, *numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in (0, *numbers, schema))


def test_rows_of_several_schemas_are_decoded_in_their_order() -> None:
    """Catches rows shown behind those of another schema, or read by it."""
    schemas = {0: _schema("a"), 1: _schema("a", "b"), 3: _schema("b", "a")}
    family = ColumnFamily(1, "v", value_schema=schemas[3], value_schemas=schemas)
    rows = [_row(1, 1, 2), None, _row(0, 3), _row(3, 4, 5), _row(0, 6)]

    found = decode_values(pa.array(rows, pa.binary()), family)

    assert [row and tuple(row.items()) for row in found.to_pylist()] == [
        (("b", 2), ("a", 1)),
        None,
        (("b", None), ("a", 3)),
        (("b", 4), ("a", 5)),
        (("b", None), ("a", 6)),
    ]
    with pytest.raises(CorruptionError, match=r"value schema 2.*let it end a batch"):
        decode_values(pa.array([_row(2, 1)], pa.binary()), family)
