"""Types of Python as columns of Spark: their DDL, and how a value becomes a row and back.

A tuple, a NamedTuple and a dataclass are rows of their fields; every other type is one column,
`value`. The types below may be nested.

    int BIGINT · float DOUBLE · bool BOOLEAN · str STRING · bytes BINARY · date DATE
    datetime TIMESTAMP · Decimal DECIMAL(38,18) · list[T] ARRAY<T> · tuple[T, ...] ARRAY<T>
    dict[K, V] MAP<K, V> · tuple[A, B], NamedTuple, dataclass STRUCT<…>
    Annotated[T, "TYPE"]: TYPE, as in Annotated[Decimal, "DECIMAL(18,2)"]

Where a value of several fields is meant, a Row of Spark is taken by its names, which are those of
the fields or columns; where those of a state have none, as in tuple[int, str], by their order.

A row has one form, whether a value was just made one or Spark read it: structs are tuples, arrays
lists, scalars what `statestore.keyed.scalars` makes of them. A datetime comes back in UTC; one that
is given without a zone is in the worker's, as in Spark. None is taken where `T | None` is said, and
no `TYPE` may say NOT NULL there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.annotations import Record, record_of, without_none
from statestore.keyed.scalars import Convert, MisfitError, as_key, scalar_of, timestamp

Json = Any
_SCALARS: dict[Any, tuple[Json, str]] = {
    int: ("long", "BIGINT"),
    float: ("double", "DOUBLE"),
    bool: ("boolean", "BOOLEAN"),
    str: ("string", "STRING"),
    bytes: ("binary", "BINARY"),
    date: ("date", "DATE"),
    datetime: ("timestamp", "TIMESTAMP"),
    Decimal: ("decimal(38,18)", "DECIMAL(38,18)"),
}


class Columns(NamedTuple):
    """How values of a type are kept.

    Attributes:
        ddl: Names and types of the columns.
        to_row: Makes a row of a value; the row shares nothing mutable with it. Raises
            InvalidArgumentError of a value that would not come back as it is.
        from_row: Makes a new value of a row.
        again: Makes of a row that Spark read one to be written once more. NULL stays NULL, which a
            bootstrap or an edit may have given where the type has no None. Raises as `to_row`.
    """

    ddl: str
    to_row: Convert
    from_row: Convert
    again: Convert


class _Column(NamedTuple):
    """The type of one column; the rest as of `Scalar`."""

    type: str
    to_row: Convert
    from_row: Convert | None = None
    are_kept: Callable[[Collection[Any]], bool] | None = None
    is_nullable: bool = True


def columns_of(
    kind: Any, *, is_key: bool = False, is_output: bool = False, **owner: Any
) -> Columns:
    """Return how values of a type are kept.

    Args:
        kind: A type of the table above, or the DDL of columns, `"count BIGINT, sum BIGINT"`: then
            values are tuples of them.
        is_key: Rows are keys: equal values have equal rows.
        is_output: Rows leave the query: structs are dicts. Of columns that DDL names, a value is a
            tuple, a list, or a dict by their names, where one that is missing is NULL; a datetime
            of a TIMESTAMP gets its zone, and Spark checks their types.
        owner: Fields of errors, as in `state="average"`.

    Raises:
        InvalidArgumentError: No type of Spark belongs to it.
    """
    if isinstance(kind, str) and is_output:
        fields = _parse(kind)["fields"]
        names = [each["name"] for each in fields]
        if len(set(names)) != len(names):
            raise _no_type(kind)
        to_row = _to_named(names)
        to_row = _to_zoned(to_row, [each["type"] for each in fields])
        return Columns(kind, _refusing(to_row, owner), tuple, tuple)
    try:
        ddl, to_row, from_row = _columns_of(kind, _Maker(is_key, is_output))
    except InvalidArgumentError as error:
        error.fields = {**owner, **error.fields}
        raise
    keep = _columns_of(kind, _Maker(is_key, is_output, takes_null=True))[1]
    again = _refusing(lambda row: keep(from_row(row)), owner)
    return Columns(ddl, _refusing(to_row, owner), from_row, again)


def _columns_of(kind: Any, maker: _Maker) -> tuple[str, Convert, Convert]:
    if isinstance(kind, str):
        named = _parse(kind)
        parts = maker.fields(_kind_of(named, kind), named)
        return kind, _to_tuple(*parts), _from_struct(*parts)
    inner = without_none(kind)
    if record_of(inner) is None:
        column = maker.column(kind)
        of_row = column.from_row
        read = _or_by_name(["value"], lambda value: (value,)) if maker.is_output else None
        return (
            f"`value` {column.type}",
            lambda value: (column.to_row(read(value)[0] if read else value),),
            itemgetter(0) if of_row is None else lambda row: of_row(row[0]),
        )
    record, columns = maker.fields(inner)
    ddl = ", ".join(f"`{name}` {column.type}" for name, column in columns.items())
    return ddl, _to_tuple(record, columns), _from_struct(record, columns)


@dataclass(frozen=True)
class _Maker:
    """Makes columns; the type that DDL names for one is the JSON of Spark's schemas, or None."""

    is_key: bool
    is_output: bool
    takes_null: bool = False
    within: tuple[Any, ...] = ()

    def column(self, kind: Any, named: Json = None) -> _Column:
        """Return the column of a type, which `T | None` lets be null."""
        inner = without_none(kind)
        column = self._not_null(inner, named)
        if column.from_row is not None:
            column = column._replace(from_row=_nullable(column.from_row))
        if inner is not kind and not column.is_nullable:
            raise _no_type(kind)
        if inner is kind and not self.takes_null:
            return column
        return column._replace(to_row=_nullable(column.to_row))

    def fields(self, kind: Any, named: Json = None) -> tuple[Record, dict[str, _Column]]:
        """Return the columns of a type of several fields."""
        record = record_of(kind)
        if record is None or not record.hints or kind in self.within:
            raise _no_type(kind)
        names, types = list(record.hints), [None] * len(record.hints)
        hints = list(record.hints.values())
        if named is not None:
            given = named["fields"] if isinstance(named, dict) and "fields" in named else []
            if len(given) != len(names):
                raise _no_type(kind)
            if record.is_named and [each["name"] for each in given] != names:
                raise _no_type(kind)
            names, types = [each["name"] for each in given], [each["type"] for each in given]
            if len(set(names)) != len(names):
                raise _no_type(kind)
            hints = [
                hint if each["nullable"] else without_none(hint)
                for hint, each in zip(hints, given, strict=True)
            ]
        if not self.is_output and not all(map(str.isidentifier, names)):
            raise InvalidArgumentError(
                "Spark keeps no field of the name in a state variable",
                to_fix="take letters, digits and '_'",
                names=names,
            )
        inside = replace(self, within=(*self.within, kind))
        columns = [inside.column(*each) for each in zip(hints, types, strict=True)]
        if record.is_named or named is not None or self.is_output:
            record = record._replace(read=_or_by_name(names, record.read))
        return record, dict(zip(names, columns, strict=True))

    def _not_null(self, kind: Any, named: Json) -> _Column:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            texts = [each for each in kind.__metadata__ if isinstance(each, str)]
            if not texts:
                return self.column(arguments[0], named)
            field, *others = _parse(f"value {texts[0]}")["fields"]
            found, is_nullable = field["type"], field["nullable"]
            is_clear = is_nullable or without_none(arguments[0]) is arguments[0]
            if others or named not in (None, found) or not is_clear:
                raise _no_type(kind)
            column = self.column(arguments[0], found)
            return column._replace(type=texts[0], is_nullable=is_nullable)
        if isinstance(kind, type) and kind in _SCALARS:
            return self._scalar(kind, named)
        if origin is list or (origin is tuple and arguments[1:] == (...,)):
            element = self.column(arguments[0], _part(named, "elementType", kind))
            if not element.is_nullable:  # Spark has no NOT NULL within a type
                raise _no_type(kind)
            return _Column(
                f"ARRAY<{element.type}>",
                _to_array(origin, element),
                _from_array(origin, element.from_row),
            )
        if origin is dict:
            return self._map(kind, named)
        record, columns = self.fields(kind, named)
        fields = ", ".join(f"`{name}`: {column.type}" for name, column in columns.items())
        to_row = _to_tuple(record, columns)
        return _Column(
            f"STRUCT<{fields}>",
            _to_dict(list(columns), to_row) if self.is_output else to_row,
            _from_struct(record, columns),
        )

    def _scalar(self, kind: type, named: Json) -> _Column:
        default, ddl = _SCALARS[kind]
        named = default if named is None else named
        scalar = scalar_of(named) if isinstance(named, str) else None
        if scalar is None or scalar.kind is not kind:
            raise _no_type(kind)
        if self.is_key and kind is float:
            return _Column(ddl, as_key(scalar.to_row))
        return _Column(ddl, *scalar[1:])

    def _map(self, kind: Any, named: Json) -> _Column:
        of_key, of_value = get_args(kind)
        if self.is_key or not (_is_scalar(of_key) if self.is_output else _bare(of_key) is str):
            raise InvalidArgumentError(
                "Spark keeps no map in a key, and in a value only one whose keys are text",
                to_fix="take a map state: its keys may be of any type, and of several fields",
                type=kind,
            )
        key = replace(self, is_key=True).column(of_key, _part(named, "keyType", kind))
        value = self.column(of_value, _part(named, "valueType", kind))
        if not (key.is_nullable and value.is_nullable):
            raise _no_type(kind)
        return _Column(
            f"MAP<{key.type}, {value.type}>",
            _to_map(key, value),
            _from_map(key.from_row, value.from_row),
        )


def _parse(ddl: str) -> Json:
    """Return the JSON of the columns that DDL names."""
    from statestore.keyed.ddl import parse_ddl  # descriptors need no pyspark

    return parse_ddl(ddl).jsonValue()


def _to_named(names: list[str]) -> Convert:
    """Return a function that makes a tuple of columns of a value that has them."""
    expected = f"tuple, list or dict of {', '.join(names)}"

    def to_row(value: Any) -> tuple[Any, ...]:
        if isinstance(value, dict):
            if not value.keys() <= set(names):
                raise MisfitError(expected, value, "with other names")
            return tuple(map(value.get, names))
        if not isinstance(value, tuple | list):
            raise MisfitError(expected, value)
        if len(value) != len(names):
            raise MisfitError(expected, value, f"of {len(value)}")
        return tuple(value)

    return _or_by_name(names, to_row)


def _or_by_name(names: list[str], read: Convert) -> Convert:
    """Return a reader of fields that takes a Row of Spark by its names; others it lets `read`."""
    ordered = sorted(names)

    def by_name(value: Any) -> Any:
        given = getattr(value, "__fields__", None)
        if given is None:
            return read(value)
        if sorted(given) != ordered:
            raise MisfitError(f"Row of {', '.join(names)}", value, "with other names")
        return tuple(value[name] for name in names)

    return by_name


def _to_zoned(to_row: Convert, types: list[Json]) -> Convert:
    """Return a function that gives the times of its row their zone; `to_row` where it has none."""
    if '"timestamp"' not in json.dumps(types):
        return to_row
    return lambda value: tuple(map(_zoned, to_row(value), types))


def _zoned(value: Any, named: Json) -> Any:
    """Return a value of a column, its times in the worker's zone where they have none.

    A value of another shape than the column's is left to Spark.
    """
    if named == "timestamp":
        # NaT, which Arrow takes for NULL, is the datetime that does not equal itself.
        is_naive = isinstance(value, datetime) and value.tzinfo is None and value == value
        return timestamp(value) if is_naive else value
    kind = named["type"] if isinstance(named, dict) else None
    if kind == "array" and isinstance(value, list | tuple):
        return [_zoned(each, named["elementType"]) for each in value]
    if kind == "map" and isinstance(value, dict | list):
        pairs = [*value.items()] if isinstance(value, dict) else value
        if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
            return value
        of_key, of_value = named["keyType"], named["valueType"]
        zoned = [(_zoned(key, of_key), _zoned(each, of_value)) for key, each in pairs]
        return dict(zoned) if isinstance(value, dict) else zoned
    if kind == "struct":
        types = {each["name"]: each["type"] for each in named["fields"]}
        given = value.asDict() if hasattr(value, "__fields__") else value
        if isinstance(given, dict):
            return {name: _zoned(each, types.get(name)) for name, each in given.items()}
        if isinstance(given, tuple) and len(given) == len(types):
            return tuple(map(_zoned, given, types.values()))
    return value


def _kind_of(named: Json, ddl: str) -> Any:
    """Return the type of Python of values of a type of Spark."""
    if isinstance(named, str):
        scalar = scalar_of(named)
        if scalar is None:
            raise _no_type(ddl)
        return scalar.kind
    if named["type"] == "array":
        return list[_kind_of(named["elementType"], ddl) | None]  # type: ignore[misc]
    if named["type"] == "map":
        key, value = (_kind_of(named[part], ddl) for part in ("keyType", "valueType"))
        return dict[key, value | None]  # type: ignore[valid-type]
    if named["type"] != "struct":
        raise _no_type(ddl)
    return tuple[tuple(_kind_of(field["type"], ddl) | None for field in named["fields"])]  # type: ignore[misc]


def _part(named: Json, part: str, kind: Any) -> Json:
    if named is None:
        return None
    if not isinstance(named, dict) or part not in named:
        raise _no_type(kind)
    return named[part]


def _is_scalar(kind: Any) -> bool:
    kind = _bare(kind)
    return isinstance(kind, type) and kind in _SCALARS


def _bare(kind: Any) -> Any:
    """Return T of `Annotated[T, …] | None`."""
    kind = without_none(kind)
    return _bare(get_args(kind)[0]) if get_origin(kind) is Annotated else kind


def _no_type(kind: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        "no type of Spark belongs to the type",
        to_fix='take one of statestore.keyed.columns, name it as in Annotated[int, "INT"], or '
        'give the columns, "name TYPE, …"',
        type=kind,
    )


def _refusing(to_row: Convert, owner: dict[str, Any]) -> Convert:
    def refusing(value: Any) -> Any:
        try:
            return to_row(value)
        except MisfitError as misfit:
            raise InvalidArgumentError(
                "a value does not fit the type that it is kept as",
                to_fix="give a value of the expected type, or keep another type: T | None takes "
                "None",
                **owner,
                at=misfit.at.removeprefix(".") or "the value itself",
                expected=misfit.expected,
                found=misfit.found,
            ) from None

    return refusing


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _to_array(collection: Any, element: _Column) -> Convert:
    convert, are_kept = element.to_row, element.are_kept

    def to_row(values: Any) -> list[Any]:
        if not isinstance(values, collection):
            raise MisfitError(collection.__name__, values)
        if are_kept is not None and are_kept(values):
            return list(values)
        row: list[Any] = []
        try:
            row.extend(map(convert, values))  # which keeps what fitted before
        except MisfitError as misfit:
            misfit.enter(f"[{len(row)}]")
            raise
        return row

    return to_row


def _from_array(collection: Any, convert: Convert | None) -> Convert:
    if convert is None:
        return collection  # type: ignore[no-any-return]
    return lambda row: collection(map(convert, row))


def _to_map(keys: _Column, values: _Column) -> Convert:
    of_key, of_value = keys.to_row, values.to_row
    are_kept = None if keys.are_kept is None else values.are_kept

    def to_row(entries: Any) -> dict[Any, Any]:
        if not isinstance(entries, dict):
            raise MisfitError("dict", entries)
        if are_kept is not None and are_kept(entries.values()) and keys.are_kept(entries):  # type: ignore[misc]
            return dict(entries)
        row: dict[Any, Any] = {}
        part = "keys"
        try:
            for key, value in entries.items():
                part = "keys"
                kept = of_key(key)
                part = "values"
                row[kept] = of_value(value)
        except MisfitError as misfit:
            misfit.enter(f".{part}()[{len(row)}]")
            raise
        if None in row:
            raise MisfitError("dict", entries, "with a key None")
        if len(row) != len(entries):
            raise MisfitError("dict", entries, "of which two keys are kept as one")
        return row

    return to_row


def _from_map(of_key: Convert | None, of_value: Convert | None) -> Convert:
    if of_key is None and of_value is None:
        return dict
    key, value = of_key or _same, of_value or _same
    return lambda row: {key(each): value(row[each]) for each in row}


def _to_tuple(record: Record, columns: dict[str, _Column]) -> Convert:
    """Return a function that makes a tuple of a value of several fields."""
    read, names = record.read, list(columns)
    converts = [column.to_row for column in columns.values()]

    def to_row(value: Any) -> tuple[Any, ...]:
        row: list[Any] = []
        fields = read(value)
        try:
            for convert, field in zip(converts, fields, strict=True):
                row.append(convert(field))
        except MisfitError as misfit:
            misfit.enter(names[len(row)])
            raise
        return tuple(row)

    return to_row


def _to_dict(names: list[str], to_tuple: Convert) -> Convert:
    return lambda value: dict(zip(names, to_tuple(value), strict=True))


def _from_struct(record: Record, columns: dict[str, _Column]) -> Convert:
    make = record.make
    if all(column.from_row is None for column in columns.values()):
        return make
    converts = [column.from_row or _same for column in columns.values()]
    return lambda row: make(
        tuple(convert(field) for convert, field in zip(converts, row, strict=True))
    )
