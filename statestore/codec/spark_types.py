"""Spark's data types: read from the JSON of a schema, and turned into Arrow's.

| Spark | Arrow |
|---|---|
| boolean, byte, short, integer, long, float, double, string, binary, date | of the same name |
| decimal(p,s) | decimal128(p, s) |
| timestamp, timestamp_ntz, time(p) to 6 | timestamp(us, UTC), timestamp(us), time64(ns) |
| interval, interval year to month | month_day_nano_interval |
| interval day to second | duration(us) |
| variant | struct<value: binary, metadata: binary> |
| geometry, geography | binary |
| void | null |
| struct, array, map, udt | struct, list, map, its sqlType |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.core.errors import CorruptionError, IncompatibleError
from statestore.core.json_fields import Fields, MalformedError, parse_json

if TYPE_CHECKING:
    from collections.abc import Sequence

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "interval": pa.month_day_nano_interval(),
    "year-month interval": pa.month_day_nano_interval(),
    "day-time interval": pa.duration("us"),
    "variant": pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary())]),
    "void": pa.null(),
}
_YEAR_MONTH = re.compile(r"interval (year|month)( to month)?")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?")
_CHARACTERS = re.compile(r"string( collate \w+)?|(var)?char\(\d+\)")
_SHAPE = re.compile(r"(geometry|geography)\([^()]*\)")
_DECIMAL = re.compile(r"decimal\((\d{1,9}),\s*(-?\d{1,9})\)")
_TIME = re.compile(r"time(\([0-6]\))?")
_MAX_DIGITS = 38  # Spark's
_MAX_DEPTH = 100
# Names of older releases, and of DDL.
_SYNONYMS = {"null": "void", "int": "integer", "bigint": "long", "tinyint": "byte"}


@dataclass(frozen=True)
class SparkType:
    """A data type.

    Attributes:
        kind: A key of the Arrow table above, or decimal, struct, array, map.
        fields: Name and type of each field of a struct; one nameless element of an array; key and
            value of a map.
        precision, scale: Of a decimal.
        never_null: Ordinals of the fields in which Spark has no null, and does not check for one.
    """

    kind: str
    fields: tuple[tuple[str, SparkType], ...] = ()
    precision: int = 0
    scale: int = 0
    never_null: frozenset[int] = field(default=frozenset(), compare=False)

    @cached_property
    def arrow(self) -> pa.DataType:
        """The type of a column of it in Arrow; every field may be null.

        A field with the name of an earlier one, as after two sums in one aggregation, gets a
        number: `sum`, `sum_2`.
        """
        if self.kind == "struct":
            names = distinct_names(self.names)
            return pa.struct(
                [pa.field(name, kind.arrow) for name, kind in zip(names, self.types, strict=True)]
            )
        if self.kind == "array":
            return pa.list_(self.types[0].arrow)
        if self.kind == "map":
            return pa.map_(self.types[0].arrow, self.types[1].arrow)
        if self.kind == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return _ARROW[self.kind]

    @property
    def types(self) -> tuple[SparkType, ...]:
        """Types of the fields."""
        return tuple(field for _, field in self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(name for name, _ in self.fields)

    @property
    def nameless(self) -> SparkType:
        """The type without names: of columns that were renamed it is the same."""
        return replace(self, fields=tuple(("", part.nameless) for part in self.types))

    def select(self, ordinals: tuple[int, ...]) -> SparkType:
        """Return the struct of some of this struct's fields."""
        return SparkType("struct", tuple(self.fields[ordinal] for ordinal in ordinals))


VARIANT_PARTS = SparkType(
    "struct",
    (("value", SparkType("binary")), ("metadata", SparkType("binary"))),
    never_null=frozenset({0, 1}),
)
"""What a variant is made of; a null one has neither."""
_OF_ARROW: tuple[tuple[Any, str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "byte"),
    (pa.types.is_int16, "short"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_string_view, "string"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_binary_view, "binary"),
    (pa.types.is_date32, "date"),
    (pa.types.is_time64, "time(6)"),
    (pa.types.is_interval, "interval"),
    (pa.types.is_duration, "interval day to second"),
    (pa.types.is_null, "void"),
)
"""How Spark names the type that a column of Arrow becomes."""


def describe_type(kind: Any) -> Any:
    """Return Spark's type of a column of Arrow, as in the JSON of a schema.

    Args:
        kind: A type of Arrow; of a struct every field may be null.

    Raises:
        IncompatibleError: Spark has no such type.
    """
    if pa.types.is_dictionary(kind):
        return describe_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind) and kind.precision <= _MAX_DIGITS:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [describe_field(f.name, f.type) for f in kind]}
    if pa.types.is_map(kind):
        types = {"keyType": kind.key_type, "valueType": kind.item_type}
        described = {name: describe_type(part) for name, part in types.items()}
        return {"type": "map", **described, "valueContainsNull": True}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = describe_type(kind.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    for is_so, name in _OF_ARROW:
        if is_so(kind):
            return name
    raise IncompatibleError(
        "Spark has no data type for a column of Arrow",
        type=str(kind),
        to_fix="cast the column",
    )


def describe_field(name: str, kind: Any) -> dict[str, Any]:
    """Return a nullable field of a struct, as in the JSON of a schema."""
    return {"name": name, "type": describe_type(kind), "nullable": True, "metadata": {}}


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return names, of which one that is there before gets a number: `sum`, `sum_2`."""
    found: list[str] = []
    for name in names:
        number, made = 1, name
        while made in found or (number > 1 and made in names):
            number += 1
            made = f"{name}_{number}"
        found.append(made)
    return found


@lru_cache(maxsize=256)
def parse_schema(text: str) -> SparkType:
    """Read a schema as Spark prints it: `StructType.json`.

    Args:
        text: JSON of a column family's key or value schema, as a trailer holds it.

    Raises:
        CorruptionError: It is not a schema.
        IncompatibleError: This package cannot read a type.
    """
    try:
        return _parse_struct(parse_json(text))
    except MalformedError as error:
        raise CorruptionError(
            "the schema of a column family is not one of Spark's",
            expected="the JSON of a StructType",
            found=str(error),
            to_fix="verify the checkpoint; where its checksums hold, report it with the query's "
            "stateful operators",
        ) from error


def _parse_struct(described: Any) -> SparkType:
    found = _parse(described, _MAX_DEPTH)
    if found.kind != "struct":
        raise MalformedError("no struct")
    return found


def _parse(described: Any, depth: int) -> SparkType:
    if isinstance(described, str):
        return _parse_name(described)
    if depth == 0:
        raise MalformedError("nested too deep")
    fields = Fields(described)
    kind = fields.text("type")
    if kind == "struct":
        columns = list(map(Fields, fields.items("fields")))
        return SparkType(
            "struct",
            tuple(
                (column.text("name"), _parse(column.value("type"), depth - 1)) for column in columns
            ),
            never_null=frozenset(
                ordinal
                for ordinal, column in enumerate(columns)
                if column.all.get("nullable") is False
            ),
        )
    parts = {"array": ("elementType",), "map": ("keyType", "valueType"), "udt": ("sqlType",)}
    if kind not in parts:
        raise _unknown(kind)
    types = [_parse(fields.value(part), depth - 1) for part in parts[kind]]
    if kind == "udt":
        return types[0]
    if kind == "array":
        never_null = {0} if fields.all.get("containsNull") is False else set()
        return SparkType(kind, (("element", types[0]),), never_null=frozenset(never_null))
    never_null = {0, 1} if fields.all.get("valueContainsNull") is False else {0}
    named = tuple(zip(("key", "value"), types, strict=True))
    return SparkType(kind, named, never_null=frozenset(never_null))


def _parse_name(name: str) -> SparkType:
    name = _SYNONYMS.get(name, name)
    if name in _ARROW:
        return SparkType(name)
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= _MAX_DIGITS or not -_MAX_DIGITS <= scale <= precision:
            raise MalformedError(
                f"a decimal of {precision} digits, {scale} of them behind the point"
            )
        return SparkType("decimal", (), precision, scale)
    for pattern, kind in (
        (_CHARACTERS, "string"),
        (_SHAPE, "binary"),
        (_TIME, "time"),
        (_YEAR_MONTH, "year-month interval"),
        (_DAY_TIME, "day-time interval"),
    ):
        if pattern.fullmatch(name):
            return SparkType(kind)
    raise _unknown(name)


def _unknown(name: str) -> IncompatibleError:
    return IncompatibleError(
        "a column is of a data type that cannot be read",
        type=name,
        to_fix="read the state with Spark's state reader, or a later release of statestore",
    )
