"""Listing: rows of one kind, as objects in Python and as a table to everything else."""

from __future__ import annotations

import html
from dataclasses import is_dataclass
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import pyarrow as pa

from statestore.core.errors import InvalidArgumentError
from statestore.core.text import format_cell, format_table, format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Row = TypeVar("Row")

_TYPES: dict[type, pa.DataType] = {
    int: pa.int64(),
    str: pa.string(),
    bool: pa.bool_(),
    float: pa.float64(),
    pa.DataType: pa.string(),
}

_MOST_LINES = 60
_TIMES = ("committed_ms", "begun_ms", "done_ms", "created_ms")
"""Columns that are shown as times."""


def check_limit(limit: int | None) -> None:
    """Check how many a listing is to have.

    Raises:
        InvalidArgumentError: It is less than 1.
    """
    if limit is not None and limit < 1:
        raise InvalidArgumentError(
            "a listing has at least one entry",
            limit=limit,
            to_fix="give a number of at least 1, or None for all",
        )


def schema_of(kind: type) -> pa.Schema:
    """Return the columns of a dataclass of numbers, texts, dataclasses like it, and None."""
    columns: dict[str, pa.DataType] = {}
    for name, hint in get_type_hints(kind).items():
        (columns[name],) = {
            pa.struct(list(schema_of(found))) if is_dataclass(found) else _TYPES[found]
            for found in {*_types(hint)} - {NoneType}
        }
    return pa.schema(columns)


def _types(hint: Any) -> Iterator[type]:
    """Yield the types of a hint: of each of a union, and of the values of a literal."""
    if get_origin(hint) is Literal:
        yield from map(type, get_args(hint))
    elif get_args(hint):
        for one in get_args(hint):
            yield from _types(one)
    else:
        yield hint


class Listing(Generic[Row]):
    """Rows of one kind, in order: it has a length, and is indexed and iterated as a tuple is.

    pandas, Polars, DuckDB and pyarrow take it for a table, by the Arrow PyCapsule interface:
    `polars.DataFrame(listing)`, `pandas.DataFrame.from_arrow(listing)`, `pyarrow.table(listing)`.

    Args:
        rows: The rows.
        schema: Columns of the table.
        fields: Returns a row as the values of the columns by name.
    """

    def __init__(
        self, rows: Iterable[Row], schema: pa.Schema, fields: Callable[[Row], dict[str, Any]]
    ) -> None:
        self._rows = tuple(rows)
        self._schema = schema
        self._fields = fields

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Listing[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Listing[Row]:
        if isinstance(index, slice):
            return Listing(self._rows[index], self._schema, self._fields)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table, of the same columns however many rows there are."""
        found = [self._fields(row) for row in self._rows]
        rows = [{name: fields[name] for name in self._schema.names} for fields in found]
        return pa.Table.from_pylist(rows, schema=self._schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        names, rows = self._cells()
        more = f"\n… {len(self) - len(rows)} more" if len(rows) < len(self) else ""
        return format_table(names, rows) + more

    def _repr_html_(self) -> str:
        names, rows = self._cells()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        lines = [
            "".join(f"<td>{html.escape(format_cell(value))}</td>" for value in row) for row in rows
        ]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        more = f"<p>{len(self) - len(rows):,} more</p>" if len(rows) < len(self) else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _cells(self) -> tuple[list[str], list[list[object]]]:
        """Return the columns that fit a line, and the first rows' values."""
        names = [field.name for field in self._schema if not pa.types.is_struct(field.type)]
        found = [self._fields(row) for row in self._rows[:_MOST_LINES]]
        return names, [[_shown(name, fields[name]) for name in names] for fields in found]


def _shown(name: str, value: object) -> object:
    """Return a value as a listing shows it: a time, or the names of the items of a list."""
    if isinstance(value, list):
        return ", ".join(str(item["name"]) for item in value)
    if name in _TIMES and isinstance(value, int):
        return format_time(value)
    return value
