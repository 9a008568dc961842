"""Which rows and columns of what is read a caller wants, by names of nested fields with dots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.codec.rows import no_rows
from statestore.core.errors import InvalidArgumentError
from statestore.operations.reading.condition import Condition
from statestore.operations.reading.lookup import Asked, demand_of
from statestore.operations.reading.names import paths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.compute as pc

    from statestore.operations.reading.lookup import Names, Path


@dataclass(frozen=True, slots=True)
class Needed:
    """Columns and rows that have to be read for a selection.

    Attributes:
        columns: Names of the columns, without fields of them.
        asked: Values that its rows have.
    """

    columns: frozenset[str]
    asked: Asked = field(default_factory=Asked)


@dataclass(frozen=True)
class Selection:
    """Rows and columns.

    Attributes:
        columns: Names of columns, of fields in them with dots (`key.shop`); all when None.
        filter: Rows that are wanted, by those names, also where the column is not; as text a
            condition in SQL (`Condition`); all when None.
        flatten: Whether a struct becomes a column a field, and those of structs in it likewise.
    """

    columns: tuple[str, ...] | None = None
    filter: pc.Expression | str | None = None
    flatten: bool = False

    @cached_property
    def _condition(self) -> Condition | None:
        return Condition(self.filter) if isinstance(self.filter, str) else None

    def needed(self, schema: pa.Schema) -> Needed:
        """Return the part of rows of a schema that has to be read for it; errors as `apply`."""
        self.apply(no_rows(schema))
        names = set(schema.names if self.columns is None else self.columns)
        if self._condition is not None:
            names |= {path.names[0] for path in self._condition.bind(schema).paths}
            return Needed(_columns_of(names), self._condition.asked(schema))
        if self.filter is None or isinstance(self.filter, str):
            return Needed(_columns_of(names))
        demand = demand_of(self.filter)
        if demand.fields is None:
            return Needed(frozenset(schema.names))
        names |= {name for (name, *_) in demand.fields}
        paths = paths_of(schema)
        times = Counter(".".join(path.names) for path in paths)
        places: dict[Names, tuple[Path, pa.DataType]] = {
            (name,): (path.ordinals, path.type)
            for path in paths
            if times[name := ".".join(path.names)] == 1
        }
        return Needed(_columns_of(names), demand.asked(places))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows and columns of a batch.

        Raises:
            InvalidArgumentError: There is no such column, or the filter does not fit them; names
                those there are. Or two have one name as they are flattened; or the package that a
                condition needs is not installed.
        """
        if self.columns is None and self.filter is None and not self.flatten:
            return batch
        names = batch.schema.names if self.columns is None else self.columns
        if self._condition is not None:
            batch = self._condition.apply(batch)
        every = _with_fields(batch)
        if self.filter is not None and not isinstance(self.filter, str):
            batch = pa.RecordBatch.from_arrays(list(every.values()), names=list(every))
            try:
                batch = batch.filter(self.filter)
            except pa.ArrowException as error:
                raise InvalidArgumentError(
                    "the filter does not fit the rows",
                    reason=str(error).splitlines()[0],
                    known=", ".join(every),
                    to_fix="use these columns, and values of their types",
                ) from error
            every = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in names:
            if name not in every:
                raise _no_such_column(name, every)
        found = {name: every[name] for name in names}
        if self.flatten:
            found = dict(leaf for pair in found.items() for leaf in _leaves(*pair))
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def _columns_of(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in names)


def _with_fields(batch: pa.RecordBatch) -> dict[str, pa.Array[Any]]:
    """Return columns and the fields of structs by name; a name that two have stands for none."""
    found = [
        pair
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        for pair in ((name, column), *_fields(name, column))
    ]
    times = Counter(name for name, _ in found)
    return {name: column for name, column in found if times[name] == 1}


def _fields(name: str, column: pa.Array[Any]) -> Iterator[tuple[str, pa.Array[Any]]]:
    if isinstance(column, pa.StructArray):
        for field, child in zip(column.type, column.flatten(), strict=True):
            yield f"{name}.{field.name}", child
            yield from _fields(f"{name}.{field.name}", child)


def _leaves(name: str, column: pa.Array[Any]) -> list[tuple[str, pa.Array[Any]]]:
    found = [
        (inner, child)
        for inner, child in ((name, column), *_fields(name, column))
        if not isinstance(child, pa.StructArray)
    ]
    for inner, times in Counter(inner for inner, _ in found).items():
        if times > 1:
            raise InvalidArgumentError(
                "two fields of a column have one name when it is flattened",
                column=name,
                name=inner,
                to_fix="leave out flatten; or read columns that do not have both",
            )
    return found


def _no_such_column(name: str, known: dict[str, pa.Array[Any]]) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the rows have no such column",
        column=name,
        known=", ".join(known),
        to_fix="use one of these",
    )
