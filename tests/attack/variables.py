"""transformWithState: a value, a list and a map, with and without a time to live."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from .columns import NAMES, NAN, TYPES, Column, draw_columns, plain
from .families import Family, Key, State
from .operators import Batch, Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.random import Generator
    from pyspark.sql import DataFrame

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
AVRO = "spark.sql.streaming.stateStore.encodingFormat"
NOT_IN_AVRO = ("byte", "short")
"""Types that Spark writes as Avro's int and refuses to read from it."""
LONG_MS = 10**10
"""A time to live that nobody waits for."""


class Processor(StatefulProcessor):
    """Counts, keeps what it saw in a list and by the rest of a number.

    Args:
        number: Name of the column by which rows come in order.
        other: Name of the column that is kept.
        schemas: Of value, list and map.
        ttl_ms: Time to live, None for ever.
    """

    def __init__(self, number: str, other: str, schemas: list[str], ttl_ms: int | None) -> None:
        self.number = number
        self.other = other
        self.schemas = schemas
        self.ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        value, listed, key, of_key = self.schemas
        self.last = handle.getValueState("last", value, self.ttl_ms)
        self.seen = handle.getListState("seen", listed, self.ttl_ms)
        self.rests = handle.getMapState("rests", key, of_key, self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        for row in sorted(rows, key=lambda row: row[self.number]):
            number, other = row[self.number], row[self.other]
            count = self.last.get()[0] if self.last.exists() else 0
            self.last.update((count + 1, other))
            if number % 7 == 0:
                self.seen.clear()
            else:
                self.seen.appendValue((other,))
            rest = (number % 3,)
            if number % 5 == 0 and self.rests.containsKey(rest):
                self.rests.removeKey(rest)
            else:
                self.rests.updateValue(rest, (other,))
        yield Row(done=1)

    def close(self) -> None:
        pass


class Variables(Operator):
    """The query of `Processor`."""

    names = tuple(name for name in NAMES if name.isascii() and name.isidentifier())
    """Spark writes its state schemas as Avro, which takes no others."""
    types = tuple(name for name in TYPES if not name.startswith(("array", "struct")))
    """PySpark fails to parse the schema of an array in a key or value. Of a struct in a grouping
    key it makes nulls of the text, on Spark's own provider too."""

    def __init__(self, rng: Generator) -> None:
        self._of_nan: set[Key] = set()
        self._ttl_ms = LONG_MS if rng.random() < 0.4 else None
        is_avro = bool(rng.random() < 0.25)
        if is_avro:
            self.types = tuple(name for name in self.types if name not in NOT_IN_AVRO)
        super().__init__(rng)
        if is_avro:
            self.conf[AVRO] = "avro"

    def _draw_values(self, rng: Generator, taken: list[str]) -> tuple[Column, ...]:
        types = [*self.types, "struct"]
        (other,) = draw_columns(rng, 1, types, [*taken, "number"], self.names)
        return Column("number", "long"), other

    def _make_families(self) -> tuple[Family, ...]:
        other, number = self.inputs[-1], len(self.keys)
        within = () if self._ttl_ms is None else ("value",)
        kept = replace(other, within=within)
        count = Column("count" if other.name != "count" else "count_", "long", within)
        nested = tuple(replace(key, within=("key",)) for key in self.keys)
        rest = Column("rest", "long", ("userKey",))
        families = (
            Family("last", self.keys, (count, kept)),
            Family("seen", self.keys, (kept,), kind="list"),
            Family("rests", (*nested, rest), (kept,)),
        )
        return tuple(
            replace(
                family, column_family=family.name, variable=family.name, num_grouping=number,
                is_edited=self._ttl_ms is None,
            )
            for family in families
        )  # fmt: skip

    def build(self, read: Callable[[], DataFrame]) -> DataFrame:
        last, seen, rests = self.families
        schemas = [
            ", ".join(replace(column, within=()).ddl for column in columns)
            for columns in (last.values, seen.values, rests.keys[-1:], rests.values)
        ]
        made = Processor("number", self.inputs[-1].name, schemas, self._ttl_ms)
        mode = "None" if self._ttl_ms is None else "ProcessingTime"
        return read().groupBy(*self.columns).transformWithState(made, "done INT", "Update", mode)

    def draw_rows(self, rng: Generator) -> list[Key]:
        rows = []
        for row in super().draw_rows(rng):
            key = row[: len(self.keys)]
            # PySpark groups by Python's equality: rows of a NaN come one by one, in no order. So
            # there is one of each such key, whatever files a batch has.
            if NAN not in key:
                rows.append(row)
            elif key not in self._of_nan:
                self._of_nan.add(key)
                rows.append(row)
        return rows

    def draw_values(self, rng: Generator) -> Key:
        # Rows of one number would come in no order.
        return int(rng.integers(0, 10**12)), plain(self.inputs[-1].draw(rng))

    def _draw_row_of(self, rng: Generator, family: Family) -> tuple[Any, ...]:
        kept = plain(self.inputs[-1].draw(rng))
        return (int(rng.integers(1, 1000)), kept) if family.name == "last" else (kept,)

    def step(self, state: State, batch: Batch) -> State:
        last, seen, rests = (dict(state[family.name]) for family in self.families)
        size = len(self.keys)
        for row in sorted(batch.rows, key=lambda row: row[size]):
            key, number, other = row[:size], row[size], row[size + 1]
            last[key] = (last.get(key, (0, None))[0] + 1, other)
            if number % 7 == 0:
                seen.pop(key, None)
            else:
                seen[key] = (*seen.get(key, ()), (other,))
            rest = (*key, number % 3)
            if number % 5 == 0 and rest in rests:
                del rests[rest]
            else:
                rests[rest] = (other,)
        return {"last": last, "seen": seen, "rests": rests}
