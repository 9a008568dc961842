"""Groups with state: applyInPandasWithState."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from .columns import NAMES, Column
from .families import Family, Key, State
from .operators import Batch, Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.random import Generator
    from pyspark.sql import DataFrame

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
REMOVED_AT = 9


class Groups(Operator):
    """count and sum by key, removed when there were so many."""

    names = tuple(name for name in NAMES if "." not in name)
    """PySpark finds no others."""
    reserved = ("number",)

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        return (Column("number", "long"),)

    def _make_families(self) -> tuple[Family, ...]:
        values = tuple(Column(name, "long", ("groupState",)) for name in ("count", "total"))
        return (Family("default", self.keys, values),)

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        return read().groupBy(*self.columns).applyInPandasWithState(
            add_up, "done INT", "count BIGINT, total BIGINT", "update", "NoTimeout"
        )  # fmt: skip

    def draw_values(self, rng: Generator) -> Key:
        return (int(rng.integers(-1000, 1000)),)

    def draw_value_of(
        self, rng: Generator, family: Family, key: Key, old: tuple[Any, ...] | None
    ) -> tuple[Any, ...]:
        return int(rng.integers(1, REMOVED_AT)), int(rng.integers(-1000, 1000))

    def step(self, state: State, batch: Batch) -> State:
        groups: dict[Key, list[int]] = {}
        for *columns, number in batch.rows:
            groups.setdefault(tuple(columns), []).append(number)
        rows = dict(state["default"])
        for key, numbers in groups.items():
            count, total = rows.pop(key, (0, 0))
            if count + len(numbers) < REMOVED_AT:
                rows[key] = (count + len(numbers), total + sum(numbers))
        return {"default": rows}


def add_up(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """Keep the count and sum of a group in its state."""
    import pandas as pd

    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        count += len(frame)
        total += int(frame["number"].sum())
    if count < REMOVED_AT:
        state.update((count, total))
    elif state.exists:
        state.remove()
    yield pd.DataFrame({"done": [1]})
