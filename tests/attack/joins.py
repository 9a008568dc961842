"""Stream-stream joins, in state format 2 and 4: stores and families that go with one another."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from tests.spark.queries import JOIN_FORMAT

from .columns import TYPES, Column, draw_columns, plain, tick
from .families import Family, Key, Rows, State
from .operators import Batch, Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator
    from pyspark.sql import DataFrame

SIDES = ("left", "right")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Join(Operator):
    """An inner join of rows with an even number and rows with an odd one, for ever."""

    mode = "append"
    reserved: tuple[str, ...] = ("matched", "index")

    def __init__(self, rng: Generator) -> None:
        # One source twice, or two sources: the offset log has two entries for either.
        self._is_shared = bool(rng.random() < 0.3)
        super().__init__(rng)

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        (other,) = draw_columns(rng, 1, list(TYPES), [*taken, *self.reserved, "number"])
        return Column("number", "long"), other

    def _make_families(self) -> tuple[Family, ...]:
        keys = tuple(
            Column(f"field{number}", column.type_name) for number, column in enumerate(self.keys)
        )
        families = []
        for side in SIDES:
            prefix = "r_" if side == "right" else ""
            values = tuple(Column(prefix + one.name, one.type_name) for one in self.inputs)
            store = f"{side}-keyWithIndexToValue"
            families.append(
                Family(store, keys, values, store, variable=store, kind="bag", is_edited=False)
            )
            store, count = f"{side}-keyToNumValues", (Column("value", "long"),)
            families.append(Family(store, keys, count, store, variable=store, is_edited=False))
        return tuple(families)

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        first = read()
        second = first if self._is_shared else read()
        left, right = first.where("number % 2 = 0"), second.where("number % 2 <> 0")
        names = [(column.name, f"r_{column.name}") for column in self.inputs]
        right = right.select(*(sf.col(tick(name)).alias(new) for name, new in names))
        condition = sf.lit(True)
        for column in self.keys:
            condition = condition & (sf.col(tick(column.name)) == sf.col(tick(f"r_{column.name}")))
        return left.join(right, condition, "inner")

    def draw_values(self, rng: Generator) -> Key:
        return int(rng.integers(0, 10**6)), plain(self.inputs[-1].draw(rng))

    def step(self, state: State, batch: Batch) -> State:
        after = dict(state)
        for side, of_side in self.joined(batch).items():
            rows: Rows = dict(after[f"{side}-keyWithIndexToValue"])
            for key, row in of_side:
                rows[key] = tuple(sorted((*rows.get(key, ()), row), key=repr))
            after[f"{side}-keyWithIndexToValue"] = rows
            counts: Rows = {key: (len(values),) for key, values in rows.items()}
            after[f"{side}-keyToNumValues"] = counts
        return after

    def joined(self, batch: Batch) -> dict[str, list[tuple[Key, Key]]]:
        """Return key and row of what a batch adds to each side."""
        number = len(self.keys)
        return {
            side: [
                (row[:number], row)
                for row in batch.rows
                if row[number] % 2 == rest and None not in row[:number]
            ]
            for side, rest in zip(SIDES, (0, 1), strict=True)
        }

    def lists_in_format_4(self) -> dict[str, Family]:
        """Return where the rows of a family are in format 4, but for times that are drawn."""
        return {
            family.name: replace(
                family,
                name=family.name.replace("keyWithIndexToValue", "keyWithTsToValues"),
                variable=family.name.replace("keyWithIndexToValue", "keyWithTsToValues"),
            )
            for family in self.families
            if family.kind == "bag"
        }


class JoinByTime(Join):
    """The same join in state format 4, of rows with a time that never expires."""

    reserved: tuple[str, ...] = (*Join.reserved, "at", "__event_time")

    def __init__(self, rng: Generator) -> None:
        super().__init__(rng)
        self.conf = {JOIN_FORMAT: "4"}

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        return (*super()._draw_values(rng, taken), Column("at", "timestamp"))

    def draw_values(self, rng: Generator) -> Key:
        number = int(rng.integers(0, 10**6))
        other, at = self.inputs[-2:]
        return number, plain(other.draw(rng)), plain(at.draw(rng, 0))

    def _make_families(self) -> tuple[Family, ...]:
        families = []
        for family in super()._make_families():
            if family.kind != "bag":
                continue
            keys = (*family.keys, Column("__event_time", "long"))
            for name, values in (("keyWithTsToValues", family.values), ("tsWithKey", ())):
                of = family.name.replace("keyWithIndexToValue", name)
                made = replace(family, name=of, keys=keys, values=values, store="default")
                number = len(family.keys)
                families.append(replace(made, column_family=of, variable=of, num_grouping=number))
        return tuple(families)

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        return super().build(lambda: read().withWatermark("at", "100000 days"))

    def step(self, state: State, batch: Batch) -> State:
        after = {name: dict(rows) for name, rows in state.items()}
        for side, of_side in self.joined(batch).items():
            lists, index = (after[f"{side}-{name}"] for name in ("keyWithTsToValues", "tsWithKey"))
            for key, row in of_side:
                timed = (*key, (row[-1] - EPOCH) // timedelta(microseconds=1))
                lists[timed] = tuple(sorted((*lists.get(timed, ()), row), key=repr))
                index[timed] = (*index.get(timed, ()), ())
        return after
