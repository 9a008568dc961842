"""What an operator keeps, as plain dicts, and how it is read through the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from statestore import Checkpoint

from .columns import Column, array, plain

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.random import Generator

    from .conditions import Condition

Key = tuple[Any, ...]
Rows = dict[Key, tuple[Any, ...]]
"""Values by key; of a list the elements by key, in order."""
State = dict[str, Rows]
"""Rows by the name of their family."""
Kind = Literal["value", "list", "bag"]
"""A value, a list of values, or values in no order."""


class WrongRowsError(AssertionError):
    """Rows are not what they must be."""


@dataclass(frozen=True)
class Family:
    """A place where an operator keeps rows.

    Attributes:
        name: Its name in the model.
        keys: Key columns.
        values: Value columns.
        store, column_family: Where Spark's reader finds it.
        variable: Its name in an address: a state variable, a store of a join; None where the
            operator has no other.
        kind: What a key has.
        operator: Number of the operator.
        num_grouping: Number of the key columns, from the first on, that Spark partitions by; all
            when None.
        is_edited: Whether rows of it may change without others: not those of a join.
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
    is_edited: bool = True

    @property
    def grouping(self) -> tuple[Column, ...]:
        """The key columns that keys are forgotten by."""
        return self.keys[: self.num_grouping]

    @property
    def address(self) -> str:
        """The address that stands for its rows whatever else there is."""
        operator = str(self.operator)
        return operator if self.variable is None else f"{operator}/{self.variable}"

    def draw_address(self, rng: Generator, *, is_alone: bool = False) -> str | int | None:
        """Return its address in one of the ways in which people write it.

        Args:
            rng: Draws.
            is_alone: Whether the query has no other rows.
        """
        ways: list[str | int | None] = [self.address]
        if is_alone:
            ways.append(None)
        if self.variable is None:
            ways.append(self.operator)
        elif not self.variable[0].isdigit():
            ways.append(self.variable)
        return ways[rng.integers(len(ways))]

    def key_columns(self, key: Key) -> list[pa.Array[Any]]:
        """Return the columns of a key as Spark has them, each with its one value."""
        return list(_fields([key], self.keys).values())

    def read(self, path: Path | str, version: int | None = None, where: str | None = None) -> Rows:
        """Return its rows in a checkpoint or savepoint.

        Raises:
            WrongRowsError: A key is there twice.
            StateStoreError: As `Rows.read`.
        """
        table = Checkpoint(path).rows(self.address, version=version).read(filter=where)
        return self.rows_of(table)

    def rows_of(self, table: pa.Table) -> Rows:
        """Return the rows of a table that `read` returned."""
        rows: Rows = {}
        for row in table.to_pylist():
            key = taken(row["key"], self.keys)
            value = taken(row["value"], self.values)
            if self.kind != "value":
                rows[key] = (*rows.get(key, ()), value)
            elif key in rows:
                raise WrongRowsError(f"a key is there twice: {key}")
            else:
                rows[key] = value
        if self.kind == "bag":
            rows = {key: tuple(sorted(values, key=repr)) for key, values in rows.items()}
        return rows

    def table(self, rows: Rows, *, structs: bool = False) -> pa.Table:
        """Return rows as Arrow data that writes them."""
        pairs = [
            (key, value)
            for key, values in rows.items()
            for value in ((values,) if self.kind == "value" else values)
        ]
        keys = _fields([key for key, _ in pairs], self.keys)
        values = _fields([value for _, value in pairs], self.values)
        if structs:
            # Of a dedup there is no value to give.
            given = {"key": _struct(keys)} | ({"value": _struct(values)} if values else {})
            return pa.table(given)
        return pa.table(
            {f"key.{name}": one for name, one in keys.items()}
            | {f"value.{name}": one for name, one in values.items()}
        )


def keys_table(columns: tuple[Column, ...], keys: list[Key]) -> pa.Table:
    """Return keys as Arrow data, a column `key.NAME` each."""
    return pa.table({f"key.{name}": one for name, one in _fields(keys, columns).items()})


def taken(struct: Any, columns: tuple[Column, ...]) -> Key:
    """Return the plain values of columns of a key or value."""
    values = []
    for column in columns:
        value = struct
        for name in column.path:
            value = value[name]
        values.append(plain(value))
    return tuple(values)


def _fields(
    rows: list[Any], columns: tuple[Column, ...], depth: int = 0
) -> dict[str, pa.Array[Any]]:
    """Return the columns of rows by name, structs for those that are within one."""
    made: dict[str, pa.Array[Any]] = {}
    for number, column in enumerate(columns):
        name = column.path[depth]
        if depth == len(column.within):
            made[name] = array([row[number] for row in rows], column.type.arrow)
        elif name not in made:
            here = column.path[: depth + 1]
            inner = [at for at, one in enumerate(columns) if one.path[: depth + 1] == here]
            parts = [tuple(row[at] for at in inner) for row in rows]
            made[name] = _struct(_fields(parts, tuple(columns[at] for at in inner), depth + 1))
    return made


def _struct(fields: dict[str, pa.Array[Any]]) -> pa.Array[Any]:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))


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


def select(family: Family, state: State, condition: Condition) -> Rows:
    """Return the rows for which a condition holds."""
    if family.kind != "value":
        chosen = {
            key: tuple(one for one in values if condition.holds(key, one))
            for key, values in state[family.name].items()
        }
        return {key: values for key, values in chosen.items() if values}
    rows = state[family.name]
    return {key: value for key, value in rows.items() if condition.holds(key, value)}
