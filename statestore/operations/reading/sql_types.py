"""Rows as DuckDB takes them: names that SQL can tell apart, and intervals that it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import unpack
from statestore.codec.rows import to_numpy
from statestore.core.errors import InvalidArgumentError
from statestore.operations.reading.names import paths_of
from statestore.operations.reading.tables import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MOST_US = (1 << 63) // 1000
"""Microseconds of a duration that DuckDB gives back: it counts them in nanoseconds."""
_TOO_LONG = "an interval is too long for SQL: longest_years=292"
_MICROSECONDS = (
    "abs(date_part('hour', {0}) * 3600000000 + date_part('minute', {0}) * 60000000 + "
    "date_part('microsecond', {0}))"
)


def with_short_durations(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of which DuckDB gives every duration back as it was.

    Raises:
        InvalidArgumentError: One is longer than 292 years.
    """
    for path in paths_of(batch.schema):
        if "duration[" not in str(path.type) or pa.types.is_struct(path.type):
            continue
        for column in _durations(path.of(batch)):
            us = np.where(unpack(column.is_valid()), to_numpy(column, "<i8"), 0)
            if ((us > _MOST_US) | (us < -_MOST_US)).any():
                raise InvalidArgumentError(
                    "an interval is too long for SQL",
                    column=str(path),
                    longest_years=292,
                    to_fix="give a function in place of SQL; to read it, use Checkpoint.rows",
                )
    return batch


def _durations(column: pa.Array[Any]) -> Iterator[pa.Array[Any]]:
    """Yield a column of durations, or those within its lists, maps and structs."""
    if pa.types.is_duration(column.type):
        yield column
    elif isinstance(column, pa.StructArray):
        for part in column.flatten():
            yield from _durations(part)
    elif isinstance(column, pa.MapArray):
        yield from _durations(column.keys)
        yield from _durations(column.items)
    elif isinstance(column, pa.ListArray):
        yield from _durations(column.flatten())


def with_short_intervals(found: Any) -> Any:
    """Return a result of DuckDB that fails where an interval of it would come out as another.

    Args:
        found: A relation. Intervals in its lists and maps are not looked at.
    """
    checked = [
        [_MICROSECONDS.format(interval) for interval in _intervals(f"#{number}", kind)]
        for number, kind in enumerate(found.types, 1)
    ]
    if not any(checked):
        return found
    return found.project(
        ", ".join(
            f"CASE WHEN greatest({', '.join(us)}) > {_MOST_US} THEN error({_TOO_LONG!r}) "
            f"ELSE #{number} END AS {quoted(name)}"
            if us
            else f"#{number} AS {quoted(name)}"
            for number, (name, us) in enumerate(zip(found.columns, checked, strict=True), 1)
        )
    )


def _intervals(of: str, kind: Any) -> Iterator[str]:
    """Yield an expression of SQL if it is an interval; or those of the intervals in a struct."""
    if kind.id == "interval":
        yield of
    elif kind.id == "struct":
        for name, part in kind.children:
            escaped = name.replace("'", "''")
            yield from _intervals(f"struct_extract({of}, '{escaped}')", part)


def sql_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which no two fields of a struct have one name in SQL.

    Case of letters does not count there. Of fields whose names differ by it alone, or that have
    none, each gets a number: `a_1`, `A_2`. Bytes of 0 are left out.
    """
    return pa.schema([pa.field(field.name, _sql_type(field.type)) for field in schema])


def _sql_type(kind: Any) -> pa.DataType:
    made = _with_parts(kind, _sql_type)
    if not pa.types.is_struct(kind):
        return made
    names, fields = _told_apart([field.name for field in kind]), cast("pa.StructType", made)
    return pa.struct([(name, field.type) for name, field in zip(names, fields, strict=True)])


def given_back(kind: Any) -> pa.DataType:
    """Return the type that DuckDB gives back for one: it has one type for all intervals."""
    if pa.types.is_duration(kind):
        return pa.month_day_nano_interval()
    return _with_parts(kind, given_back)


def _with_parts(kind: Any, of: Callable[[Any], pa.DataType]) -> pa.DataType:
    """Return a type with what a function makes of the types that it consists of."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(of(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(of(kind.key_type), of(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(of(kind.value_type))
    found: pa.DataType = kind
    return found


def _told_apart(names: Sequence[str]) -> list[str]:
    found = [name.replace("\0", "") for name in names]
    folded = [name.casefold() for name in found]
    taken = {*folded}
    for place, name in enumerate(found):
        if name and folded.count(folded[place]) == 1:
            continue
        number = place + 1
        while f"{name}_{number}".casefold() in taken:
            number += len(names)
        found[place] = f"{name}_{number}"
        taken.add(found[place].casefold())
    return found


def as_sql_has_it(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the names of fields of a schema of `sql_schema`; nothing is copied."""
    if batch.schema.equals(schema):
        return batch
    renamed: list[Any] = [
        _Renamed(column, field.type) for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(list(map(pa.array, renamed)), schema=schema)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A column that says that it is of a type, which has the same layout."""

    column: Any
    kind: Any

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        del requested_schema
        _, array = self.column.__arrow_c_array__()
        return self.kind.__arrow_c_schema__(), array
