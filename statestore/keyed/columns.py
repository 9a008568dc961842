"""Types of Python as columns of Spark: their DDL, and how a value becomes a row and back.

A tuple, a NamedTuple and a dataclass are rows of their fields; every other type is one column,
`value`. The types below may be nested. `T | None` is T: every column may be null.

    int BIGINT · float DOUBLE · bool BOOLEAN · str STRING · bytes BINARY · date DATE
    datetime TIMESTAMP · Decimal DECIMAL(38,18) · list[T] ARRAY<T> · tuple[T, ...] ARRAY<T>
    dict[K, V] MAP<K, V> · tuple[A, B], NamedTuple, dataclass STRUCT<…>
    Annotated[T, "TYPE"]: TYPE, as in Annotated[Decimal, "DECIMAL(18,2)"]

A datetime comes back in UTC. One that is given without a zone is in the worker's, as in Spark.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import attrgetter, itemgetter
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from statestore.core.errors import InvalidArgumentError

Convert = Callable[[Any], Any]
_SCALARS: dict[Any, str] = {
    int: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    str: "STRING",
    bytes: "BINARY",
    date: "DATE",
    datetime: "TIMESTAMP",
    Decimal: "DECIMAL(38,18)",
}


class Columns(NamedTuple):
    """How values of a type are kept.

    Attributes:
        ddl: Names and types of the columns.
        to_row: Makes a row of a value that is not None; it shares nothing mutable with the value.
        from_row: Makes a new value of a row.
    """

    ddl: str
    to_row: Convert
    from_row: Convert


class _Column(NamedTuple):
    """The type of one column; a conversion is None where Spark takes and gives the value itself."""

    type: str
    to_spark: Convert | None = None
    from_spark: Convert | None = None


def columns_of(kind: Any) -> Columns:
    """Return how values of a type are kept.

    Args:
        kind: A type of the table above, or the DDL of columns, `"count BIGINT, sum BIGINT"`: then
            values are tuples of them.

    Raises:
        InvalidArgumentError: No type of Spark belongs to it.
    """
    if isinstance(kind, str):
        return Columns(kind, tuple, tuple)
    kind = without_none(kind)
    fields = _fields_of(kind)
    if fields is None:
        column = _column_of(kind)
        return Columns(
            f"`value` {column.type}",
            _one(column.to_spark),
            _only(column.from_spark),
        )
    names, columns, make = fields
    ddl = ", ".join(f"`{name}` {column.type}" for name, column in zip(names, columns, strict=True))
    return Columns(ddl, _to_tuple(kind, names, columns), _from_struct(columns, make))


def _column_of(kind: Any) -> _Column:
    kind = without_none(kind)
    if get_origin(kind) is Annotated and isinstance(kind.__metadata__[0], str):
        inner = kind.__origin__
        column = _Column("") if inner in _SCALARS else _column_of(inner)
        return column._replace(type=kind.__metadata__[0])
    if kind in _SCALARS:
        return _Column(_SCALARS[kind], from_spark=_in_utc if kind is datetime else None)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        element = _column_of(arguments[0])
        return _Column(
            f"ARRAY<{element.type}>",
            _each(list, element.to_spark),
            _each(origin, element.from_spark),
        )
    if origin is dict:
        key, value = map(_column_of, arguments)
        if key.to_spark is not None:
            raise InvalidArgumentError(
                "a key of a map within a row has to be one scalar",
                to_fix="take a map state: its keys may be of several fields",
                type=kind,
            )
        return _Column(
            f"MAP<{key.type}, {value.type}>",
            _entries(key.to_spark, value.to_spark),
            _entries(key.from_spark, value.from_spark),
        )
    fields = _fields_of(kind)
    if fields is None:
        raise InvalidArgumentError(
            "no type of Spark belongs to the type",
            to_fix='take one of statestore.keyed.columns, name it as in Annotated[int, "INT"], or '
            'give the columns, "name TYPE, …"',
            type=kind,
        )
    names, columns, make = fields
    types_ = ", ".join(
        f"`{name}`: {column.type}" for name, column in zip(names, columns, strict=True)
    )
    return _Column(
        f"STRUCT<{types_}>", _to_struct(kind, names, columns), _from_struct(columns, make)
    )


def _fields_of(kind: Any) -> tuple[list[str], list[_Column], Convert] | None:
    """Return names and columns of the fields of a row, and what makes a value of them, or None."""
    if get_origin(kind) is tuple and get_args(kind)[1:] != (...,):
        hints = {f"_{number}": hint for number, hint in enumerate(get_args(kind), 1)}
        make: Convert = tuple
    elif hasattr(kind, "_fields") and hasattr(kind, "_make"):
        hints, make = hints_of(kind), kind._make
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        found = hints_of(kind)
        hints = {field.name: found[field.name] for field in dataclasses.fields(kind)}
        make = _constructor(kind)
    else:
        return None
    return list(hints), [_column_of(hint) for hint in hints.values()], make


def _constructor(kind: Callable[..., Any]) -> Convert:
    return lambda row: kind(*row)


def hints_of(annotated: Any) -> dict[str, Any]:
    """Return the annotations of a function or class.

    Raises:
        InvalidArgumentError: One of them names what is not there, or nothing at all.
    """
    try:
        return get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidArgumentError(
            "the annotations cannot be read",
            to_fix='let them name classes of a module, or give the columns, "name TYPE, …"',
            annotated=annotated,
        ) from error


def element_of(kind: Any) -> Any:
    """Return what an annotated iterator, iterable, list or generator is of; None where unknown."""
    arguments = get_args(without_none(kind))
    return arguments[0] if arguments else None


def without_none(kind: Any) -> Any:
    """Return T of `T | None`, and any other type as it is."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    kinds = [each for each in get_args(kind) if each is not type(None)]
    return kinds[0] if len(kinds) == 1 else kind


def _in_utc(value: datetime | None) -> datetime | None:
    """Spark gives timestamps without a zone, in the worker's."""
    return None if value is None else value.astimezone(UTC)


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _one(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: (value,)
    return lambda value: (convert(value),)


def _only(convert: Convert | None) -> Convert:
    if convert is None:
        return itemgetter(0)
    return lambda row: convert(row[0])


def _each(collect: Convert, convert: Convert | None) -> Convert:
    if convert is None:
        return _nullable(collect)
    return _nullable(lambda values: collect(map(convert, values)))


def _entries(key: Convert | None, value: Convert | None) -> Convert:
    if key is None and value is None:
        return _nullable(dict)
    of_key, of_value = key or _same, value or _same
    return _nullable(lambda found: {of_key(each): of_value(found[each]) for each in found})


def _same(value: Any) -> Any:
    return value


def _to_tuple(kind: Any, names: list[str], columns: list[_Column]) -> Convert:
    """Return what makes a tuple of a value of several fields."""
    read = _attributes(names) if dataclasses.is_dataclass(kind) else tuple
    if all(column.to_spark is None for column in columns):
        return read
    converts = [column.to_spark or _same for column in columns]
    return lambda value: tuple(
        convert(field) for convert, field in zip(converts, read(value), strict=True)
    )


def _to_struct(kind: Any, names: list[str], columns: list[_Column]) -> Convert:
    """Return what makes of it what both a state variable and an output take within a row."""
    to_tuple = _to_tuple(kind, names, columns)
    return _nullable(lambda value: dict(zip(names, to_tuple(value), strict=True)))


def _attributes(names: list[str]) -> Convert:
    read = attrgetter(*names)
    return read if len(names) > 1 else lambda value: (read(value),)


def _from_struct(columns: list[_Column], make: Convert) -> Convert:
    if all(column.from_spark is None for column in columns):
        return _nullable(make)
    converts = [column.from_spark or _same for column in columns]
    return _nullable(
        lambda row: make(
            tuple(convert(field) for convert, field in zip(converts, row, strict=True))
        )
    )
