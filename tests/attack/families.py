"""What an operator keeps, as plain dicts, and how it is read through the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from statestore import Checkpoint

from .columns import Column, array, plain

if TYPE_CHECKING:
    from pathlib import Path

Key = tuple[Any, ...]
Rows = dict[Key, tuple[Any, ...]]
"""Values by key; of a list the elements by key, in order."""
State = dict[str, Rows]
"""Rows by the name of their family."""
Kind = Literal["value", "list"]


class WrongRowsError(AssertionError):
    """Rows are not what they must be."""


@dataclass(frozen=True)
class Family:
    """A place where an operator keeps rows.

    Attributes:
        name: Its name in the model.
        keys: Key columns, which are those that Spark partitions by where `num_grouping` says no
            other.
        values: Value columns.
        store, column_family: Where `read` finds it.
        variable: What an edit calls it; None where it is the only one.
        kind: Whether a key has a value or a list of them.
        path: Names of structs in the key that hold the key columns.
        operator: Number of the operator.
        num_grouping: Number of the key columns, from the first on, that keys are forgotten by.
        is_checked: Whether values are compared; else only keys are.
    """

    name: str
    keys: tuple[Column, ...]
    values: tuple[Column, ...]
    store: str = "default"
    column_family: str = "default"
    variable: str | None = None
    kind: Kind = "value"
    operator: int = 0
    num_grouping: int | None = None

    @property
    def grouping(self) -> tuple[Column, ...]:
        """The key columns that keys are forgotten by."""
        return self.keys[: self.num_grouping]

    def read(self, path: Path | str, version: int | None = None, where: str | None = None) -> Rows:
        """Return its rows in a checkpoint or savepoint.

        Raises:
            WrongRowsError: A key is there twice.
            StateStoreError: As `Checkpoint.read`.
        """
        table = Checkpoint(path).read(
            operator=self.operator,
            store=self.store,
            column_family=self.column_family,
            version=version,
            filter=where,
        )
        return self.rows_of(table)

    def rows_of(self, table: pa.Table) -> Rows:
        """Return the rows of a table that `read` returned."""
        rows: Rows = {}
        for row in table.to_pylist():
            key = self._taken(row["key"], self.keys)
            value = self._taken(row["value"], self.values)
            if self.kind == "list":
                rows[key] = (*rows.get(key, ()), value)
            elif key in rows:
                raise WrongRowsError(f"a key is there twice: {key}")
            else:
                rows[key] = value
        return rows

    def _taken(self, struct: Any, columns: tuple[Column, ...]) -> Key:
        return tuple(plain(struct[column.name]) for column in columns)

    def table(self, rows: Rows, *, structs: bool = False) -> pa.Table:
        """Return rows as Arrow data that writes them."""
        pairs = [
            (key, value)
            for key, values in rows.items()
            for value in (values if self.kind == "list" else (values,))
        ]
        keys = _columns([key for key, _ in pairs], self.keys)
        values = _columns([value for _, value in pairs], self.values)
        if structs:
            return pa.table(
                {"key": _struct(keys, self.keys), "value": _struct(values, self.values)}
            )
        return pa.table(
            {f"key.{column.name}": one for column, one in zip(self.keys, keys, strict=True)}
            | {f"value.{column.name}": one for column, one in zip(self.values, values, strict=True)}
        )


def keys_table(columns: tuple[Column, ...], keys: list[Key]) -> pa.Table:
    """Return keys as Arrow data, a column `key.NAME` each."""
    made = _columns(keys, columns)
    return pa.table({f"key.{column.name}": one for column, one in zip(columns, made, strict=True)})


def _columns(rows: list[Any], columns: tuple[Column, ...]) -> list[pa.Array]:
    return [
        array([row[number] for row in rows], column.type.arrow)
        for number, column in enumerate(columns)
    ]


def _struct(arrays: list[pa.Array], columns: tuple[Column, ...]) -> pa.Array:
    return pa.StructArray.from_arrays(arrays, fields=[column.field for column in columns])


def difference(found: Rows, expected: Rows) -> str:
    """Return how rows differ, in some lines; empty where they are the same."""
    lines = [f"  lost: {key}: {expected[key]}" for key in expected.keys() - found.keys()]
    lines += [f"  not expected: {key}: {found[key]}" for key in found.keys() - expected.keys()]
    lines += [
        f"  {key}: {found[key]}, expected {expected[key]}"
        for key in expected.keys() & found.keys()
        if found[key] != expected[key]
    ]
    more = [f"  and {len(lines) - 8} more"] if len(lines) > 8 else []
    return "\n".join([*sorted(lines)[:8], *more])
