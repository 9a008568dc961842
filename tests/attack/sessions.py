"""Session windows: the key is in the value again, under the same name."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from .columns import START, Column, draw_columns, plain, tick
from .families import Family, Key, State
from .operators import Batch, Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator
    from pyspark.sql import DataFrame

GAP = timedelta(seconds=5)
DELAY = "20 seconds"
SPAN_S = 40
"""Events of a file lie within so much; each file's a little later."""


class Sessions(Operator):
    """count(*) and sum by key and session, until the watermark has passed its end."""

    mode = "append"
    reserved = ("session_window",)

    def __init__(self, rng: Generator) -> None:
        self._num_files = 0
        super().__init__(rng)

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        amount, at = draw_columns(rng, 2, ["long"], [*taken, *self.reserved])
        return amount, Column(at.name, "timestamp")

    def _make_families(self) -> tuple[Family, ...]:
        start = Column("sessionStartTime", "timestamp")
        window = [Column(name, "timestamp", ("session_window",)) for name in ("start", "end")]
        names = [key.name for key in self.keys]
        # The later of two fields of one name gets a number.
        sums = [Column(f"{name}_2" if name in names else name, "long") for name in ("count", "sum")]
        values = (*window, *self.keys, *sums)
        number = len(self.keys)
        return (Family("default", (*self.keys, start), values, num_grouping=number),)

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        amount, at = (tick(column.name) for column in self.inputs[-2:])
        window = sf.session_window(sf.col(at), f"{GAP.seconds} seconds")
        return (
            read()
            .withWatermark(tick(self.inputs[-1].name), DELAY)
            .groupBy(window, *self.columns)
            .agg(sf.count("*").alias("out_1"), sf.sum(sf.col(amount)).alias("out_2"))
        )

    def draw_rows(self, rng: Generator) -> list[Key]:
        self._num_files += 1
        return super().draw_rows(rng)

    def draw_values(self, rng: Generator) -> Key:
        # An even number of seconds: no two sessions touch.
        second = 20 * self._num_files + 2 * int(rng.integers(0, SPAN_S // 2))
        amount = None if rng.random() < 0.1 else int(rng.integers(-1000, 1000))
        return amount, plain(START + timedelta(seconds=second))

    def draw_value_of(
        self, rng: Generator, family: Family, key: Key, old: tuple[Any, ...] | None
    ) -> tuple[Any, ...] | None:
        return None if old is None else (*old[:-2], int(rng.integers(1, 99)), old[-1])

    def step(self, state: State, batch: Batch) -> State:
        number = len(self.keys)
        sessions: dict[Key, list[tuple[datetime, datetime, int, int | None]]] = {}
        late, evict = (_time(ms) for ms in (batch.late_ms, batch.evict_ms))
        came = set()
        for row in batch.rows:
            key, amount, at = row[:number], row[-2], row[-1]
            if at + GAP > late:
                came.add(key)
                sessions.setdefault(key, []).append((at, at + GAP, 1, amount))
        rows = {}
        for key, value in state["default"].items():
            if key[:number] in came:
                sessions[key[:number]].append((value[0], value[1], *value[-2:]))
            else:
                rows[key] = value
        for key, parts in sessions.items():
            for start, end, count, total in _merged(parts):
                rows[*key, start] = (start, end, *key, count, total)
        return {"default": {key: value for key, value in rows.items() if value[1] > evict}}


def _merged(parts: list[Any]) -> list[Any]:
    merged: list[Any] = []
    for start, end, count, total in sorted(parts, key=lambda part: part[:2]):
        if merged and start <= merged[-1][1]:
            first, last, more, sums = merged.pop()
            known = [one for one in (sums, total) if one is not None]
            whole = sum(known) if known else None
            merged.append((first, max(last, end), more + count, whole))
        else:
            merged.append((start, end, count, total))
    return merged


def _time(ms: int) -> datetime:
    return plain(datetime.fromtimestamp(ms / 1000, START.tzinfo))
