"""Stateful operators of Spark over random columns, and what each does in plain Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sf

from .columns import NAMES, ORDERED, TYPES, Column, array, draw_columns, order_key, plain, tick
from .families import Family, Key, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Batch:
    """What a batch of the query reads.

    Attributes:
        rows: Rows of its files, plain values in the order of the input's columns.
        late_ms: Rows are late by this watermark.
        evict_ms: State goes by this one.
    """

    rows: list[Key]
    late_ms: int = 0
    evict_ms: int = 0


POOL = 24
"""Grouping keys that come again and again."""
NEW_KEYS = 0.15
"""Share of rows that have a key of their own."""


class Operator(ABC):
    """A query with one stateful operator.

    Attributes:
        mode: Output mode.
        has_file_sink: Whether its output goes to files: a row for each key that is new.
        inputs: Columns of its input: the grouping key first.
        families: Where its state is.
        conf: Configuration of the query.
    """

    mode = "update"
    has_file_sink = False
    inputs: tuple[Column, ...]
    families: tuple[Family, ...]
    conf: dict[str, str]

    def __init__(self, rng: Generator) -> None:
        self.conf = {}
        number = int(rng.choice([1, 1, 1, 2, 3]))
        # Text more often than each other type.
        types = [*self.types, *["string"] * 4]
        self.keys = draw_columns(rng, number, types, self.reserved, self.names)
        self.inputs = (*self.keys, *self._draw_values(rng, [key.name for key in self.keys]))
        self.families = self._make_families()
        self._pool = [self.draw_key(rng) for _ in range(POOL)]

    reserved: tuple[str, ...] = ()
    """Names that no key column may have, beside those of values."""
    names: tuple[str, ...] = NAMES
    """Names that columns may have."""
    types: tuple[str, ...] = tuple(TYPES)
    """Types that they may have."""

    @abstractmethod
    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        """Draw the columns of the input that are no key."""

    @abstractmethod
    def _make_families(self) -> tuple[Family, ...]:
        """Return where the state is."""

    @abstractmethod
    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        """Return the query over its input, a stream each time it is read."""

    @abstractmethod
    def step(self, state: State, batch: Batch) -> State:
        """Return the state after a batch."""

    @property
    def ddl(self) -> str:
        """Schema of its input."""
        return ", ".join(column.ddl for column in self.inputs)

    @property
    def columns(self) -> list[SparkColumn]:
        """The grouping key as Spark's columns."""
        return [sf.col(tick(column.name)) for column in self.keys]

    def draw_key(self, rng: Generator) -> Key:
        """Draw a grouping key."""
        return tuple(plain(column.draw(rng)) for column in self.keys)

    def draw_rows(self, rng: Generator) -> list[Key]:
        """Draw the rows of a batch."""
        rows = []
        for _ in range(int(rng.integers(1, 25))):
            is_new = rng.random() < NEW_KEYS
            key = self.draw_key(rng) if is_new else self._pool[rng.integers(len(self._pool))]
            rows.append((*key, *self.draw_values(rng)))
        return rows

    def draw_values(self, rng: Generator) -> Key:
        """Draw the part of a row behind its key."""
        return tuple(plain(column.draw(rng)) for column in self.inputs[len(self.keys) :])

    def draw_key_of(self, rng: Generator, family: Family) -> Key:
        """Draw a key of a family."""
        more = family.keys[len(self.keys) :]
        return (*self.draw_key(rng), *(plain(column.draw(rng, 0)) for column in more))

    def draw_value_of(
        self, rng: Generator, family: Family, key: Key, old: tuple[Any, ...] | None
    ) -> tuple[Any, ...] | None:
        """Draw what an edit may put for a key in place of what it has; None for nothing."""
        if family.kind == "list":
            return tuple(self._draw_row_of(rng, family) for _ in range(int(rng.integers(1, 4))))
        return self._draw_row_of(rng, family)

    def _draw_row_of(self, rng: Generator, family: Family) -> tuple[Any, ...]:
        return tuple(plain(column.draw(rng)) for column in family.values)

    def table(self, rows: list[Key]) -> pa.Table:
        """Return rows as a file's."""
        return pa.table(
            {
                column.name: array([row[number] for row in rows], column.type.arrow)
                for number, column in enumerate(self.inputs)
            }
        )


class Aggregation(Operator):
    """count(*), sum of a small number, max of a column of any ordered type, by key."""

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        amount, other = draw_columns(rng, 2, ORDERED, taken)
        return Column(amount.name, "long"), other

    def _make_families(self) -> tuple[Family, ...]:
        values = (
            Column("count", "long"), Column("sum", "long"), Column("max", self.inputs[-1].type_name)
        )  # fmt: skip
        return (Family("default", self.keys, values),)

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        amount, other = (sf.col(tick(column.name)) for column in self.inputs[-2:])
        return (
            read()
            .groupBy(*self.columns)
            .agg(
                sf.count("*").alias("out_1"),
                sf.sum(amount).alias("out_2"),
                sf.max(other).alias("out_3"),
            )
        )

    def draw_values(self, rng: Generator) -> Key:
        amount = None if rng.random() < 0.1 else int(rng.integers(-1000, 1000))
        return amount, plain(self.inputs[-1].draw(rng))

    def _draw_row_of(self, rng: Generator, family: Family) -> tuple[Any, ...]:
        return int(rng.integers(1, 10**6)), *self.draw_values(rng)

    def step(self, state: State, batch: Batch) -> State:
        values = dict(state["default"])
        for *key, amount, other in batch.rows:
            count, total, most = values.get(tuple(key), (0, None, None))
            if amount is not None:
                total = amount + (total or 0)
            if other is not None and (most is None or order_key(other) > order_key(most)):
                most = other
            values[tuple(key)] = (count + 1, total, most)
        return {"default": values}


class Dedup(Operator):
    """dropDuplicates by the key, for ever."""

    mode = "append"

    def __init__(self, rng: Generator) -> None:
        super().__init__(rng)
        self.has_file_sink = bool(rng.random() < 0.5)

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        return draw_columns(rng, 1, list(TYPES), taken)

    def _make_families(self) -> tuple[Family, ...]:
        return (Family("default", self.keys, ()),)

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        return read().dropDuplicates([column.name for column in self.keys])

    def step(self, state: State, batch: Batch) -> State:
        came = {row[: len(self.keys)]: () for row in batch.rows}
        return {"default": state["default"] | came}


class DedupThenCount(Operator):
    """dropDuplicates by key and event, and count(*) of what passes by key: two operators."""

    reserved = ("event",)

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        return (Column("event", "long"),)

    def _make_families(self) -> tuple[Family, ...]:
        # Spark numbers operators from the last one on.
        return (
            Family("count", self.keys, (Column("count", "long"),)),
            Family("dedup", self.inputs, (), operator=1, is_edited=False),
        )

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        unique = read().dropDuplicates([column.name for column in self.inputs])
        return unique.groupBy(*self.columns).agg(sf.count("*").alias("out_1"))

    def draw_values(self, rng: Generator) -> Key:
        return (int(rng.integers(0, 20)),)

    def step(self, state: State, batch: Batch) -> State:
        counts, known = dict(state["count"]), dict(state["dedup"])
        for row in batch.rows:
            if row not in known:
                known[row] = ()
                counts[row[:-1]] = (counts.get(row[:-1], (0,))[0] + 1,)
        return {"count": counts, "dedup": known}
