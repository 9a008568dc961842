"""transformWithState with timers of event time."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from .columns import START, Column
from .families import Family, Key, Rows, State
from .operators import Batch, Operator
from .variables import Variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.random import Generator
    from pyspark.sql import DataFrame

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
START_MS = int(START.timestamp() * 1000)
LASTS_MS = 10_001
"""No timer is due at the very moment of a watermark."""


class Counting(StatefulProcessor):
    """Counts rows of a key, and sets a timer for each of their times: then it begins anew."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.count = handle.getValueState("count", "count BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        times = [row["number"] for row in rows]
        count = self.count.get()[0] if self.count.exists() else 0
        self.count.update((count + len(times),))
        for at_ms in set(times):
            self.handle.registerTimer(at_ms + LASTS_MS)
        yield Row(done=1)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: Any,  # noqa: N803, given by this name
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Any]:
        self.count.clear()
        yield Row(done=2)

    def close(self) -> None:
        pass


class Timers(Operator):
    """The query of `Counting`."""

    names = Variables.names
    types = Variables.types
    reserved = ("number", "at_")

    def __init__(self, rng: Generator) -> None:
        self._num_files = 0
        super().__init__(rng)

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        return (Column("number", "long"),)

    def _make_families(self) -> tuple[Family, ...]:
        nested = tuple(replace(key, within=("key",)) for key in self.keys)
        at = Column("expiryTimestampMs", "long")
        timers, size = "$eventTimers_keyToTimestamp", len(self.keys)
        return (
            Family(
                "count", self.keys, (Column("count", "long"),),
                column_family="count", variable="count",
            ),
            Family(
                "timers", (*nested, at), (), column_family=timers, variable=timers,
                num_grouping=size, is_edited=False,
            ),
        )  # fmt: skip

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        events = read().withColumn("at_", sf.timestamp_millis("number"))
        return (
            events.withWatermark("at_", "20 seconds")
            .groupBy(*self.columns)
            .transformWithState(Counting(), "done INT", "Update", "EventTime")
        )

    def draw_rows(self, rng: Generator) -> list[Key]:
        self._num_files += 1
        return super().draw_rows(rng)

    def draw_values(self, rng: Generator) -> Key:
        return (START_MS + 20_000 * self._num_files + 2000 * int(rng.integers(0, 20)),)

    def draw_value_of(
        self, rng: Generator, family: Family, key: Key, old: tuple[Any, ...] | None
    ) -> tuple[Any, ...]:
        return (int(rng.integers(1, 1000)),)

    def step(self, state: State, batch: Batch) -> State:
        counts, timers = dict(state["count"]), dict(state["timers"])
        for *key, at_ms in batch.rows:
            if at_ms > batch.late_ms:
                counts[tuple(key)] = (counts.get(tuple(key), (0,))[0] + 1,)
                timers[*key, at_ms + LASTS_MS] = ()
        left: Rows = {}
        for timer in timers:
            if timer[-1] < batch.evict_ms:
                counts.pop(timer[:-1], None)
            else:
                left[timer] = ()
        return {"count": counts, "timers": left}
