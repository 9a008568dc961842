"""Stores of a query that is made without Spark: what rows they have of what batches are given."""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.checkpoint.operator_metadata import JOIN_OPERATOR
from statestore.codec.column_family import ColumnFamily
from statestore.codec.partition_key import compute_key_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Changes = dict[bytes, bytes | None]
"""Rows by key, None for one that is deleted."""


def schema_of(**types: Any) -> str:
    """Return the schema of a struct as Spark writes it: types by the names of its fields."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in types.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def unsafe_row(*columns: Any) -> bytes:
    """Return Spark's row of numbers of 64 bits, strings, bytes, nulls, and structs: tuples."""
    if not columns:
        return b""
    nulls, slots, rest = 0, b"", b""
    at = 8 + 8 * len(columns)
    for ordinal, column in enumerate(columns):
        if column is None:
            nulls |= 1 << ordinal
            slots += bytes(8)
        elif isinstance(column, int):
            slots += struct.pack("<q", column)
        else:
            text = unsafe_row(*column) if isinstance(column, tuple) else column
            text = text.encode() if isinstance(text, str) else text
            slots += struct.pack("<q", (at + len(rest)) << 32 | len(text))
            rest += text + bytes(-len(text) % 8)
    return struct.pack("<Q", nulls) + slots + rest


class StoreOfQuery(ABC):
    """A store of a query that is made, and the rows it has of what batches are given.

    Attributes:
        name: Its name.
        columns: Key columns; the first is the grouping key. Without any it has one state partition.
        family: Its only column family.
    """

    name: str
    columns: tuple[str, ...]
    if TYPE_CHECKING:  # a subclass has a field or a property

        @property
        def family(self) -> ColumnFamily: ...  # noqa: D102

    @abstractmethod
    def rows(self, changes: Mapping[Any, Any]) -> Changes:
        """Return its rows for what a batch is given, by key; None for a row that is deleted."""

    @property
    def families(self) -> tuple[ColumnFamily, ...]:
        """All its column families."""
        return (self.family,)

    @property
    def schema_file(self) -> bytes | None:
        """Content of Spark's file of its schemas, None where there is no such file."""
        return None

    def rows_by_family(self, changes: Mapping[Any, Any]) -> dict[int, Changes]:
        """Return `rows` of every column family, by its ID."""
        return {self.family.id: self.rows(changes)}

    def changed(self, changes: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[int, Changes]:
        """Return the rows that a batch writes, by column family; `after` is all that it leaves."""
        del after
        return self.rows_by_family(changes)

    def key_groups(
        self, family: ColumnFamily, keys: Iterable[bytes], max_parallelism: int
    ) -> list[int]:
        """Return the key group of each key."""
        of = pa.array(keys, pa.binary())
        found: list[int] = compute_key_groups(of, self.name, family, max_parallelism).tolist()
        return found


@dataclass(frozen=True)
class MadeStore(StoreOfQuery):
    """A store of numbers by number."""

    name: str
    columns: tuple[str, ...]

    @property
    def family(self) -> ColumnFamily:
        """Its only column family."""
        columns = dict.fromkeys(self.columns, "long")
        return ColumnFamily(0, "default", schema_of(**columns), schema_of(value="long"))

    def rows(self, numbers: Mapping[int, int | None]) -> Changes:
        """Return its rows for numbers by number; without columns one of their sum."""
        if not self.columns:
            return {b"": unsafe_row(sum(value or 0 for value in numbers.values()))}
        rest = len(self.columns) - 1
        return {
            unsafe_row(key, *[0] * rest): None if value is None else unsafe_row(value)
            for key, value in numbers.items()
        }

    def changed(self, changes: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[int, Changes]:
        """Return the rows that a batch writes: without columns the sum of all numbers."""
        return self.rows_by_family(changes if self.columns else after)


OPERATORS: tuple[tuple[str, tuple[MadeStore, ...]], ...] = (
    ("stateStoreSave", (MadeStore("default", ("k",)),)),
    (
        JOIN_OPERATOR,
        (
            MadeStore("left-keyToNumValues", ("field0",)),
            MadeStore("left-keyWithIndexToValue", ("field0", "index")),
        ),
    ),
    ("stateStoreSave", (MadeStore("default", ()),)),
)
"""An aggregation, a join and an aggregation without keys."""
