"""A stream-stream join: four stores that go with one another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from .columns import TYPES, Column, draw_columns, plain, tick
from .families import Family, Key, Rows, State
from .operators import Batch, Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator
    from pyspark.sql import DataFrame

SIDES = ("left", "right")


class Join(Operator):
    """An inner join of rows with an even number and rows with an odd one, for ever."""

    mode = "append"
    reserved = ("matched", "index")

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
        number = len(self.keys)
        after = dict(state)
        for side, rest in zip(SIDES, (0, 1), strict=True):
            rows: Rows = dict(after[f"{side}-keyWithIndexToValue"])
            for row in batch.rows:
                key = row[:number]
                if row[number] % 2 == rest and None not in key:
                    rows[key] = tuple(sorted((*rows.get(key, ()), row), key=repr))
            after[f"{side}-keyWithIndexToValue"] = rows
            counts: Rows = {key: (len(values),) for key, values in rows.items()}
            after[f"{side}-keyToNumValues"] = counts
        return after
