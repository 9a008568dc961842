"""Queries whose state variables have another schema after a restart, and what it becomes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from .harness import ROCKSDB, STATE_STORE, Lane, Query
from .queries import EVENTS, one_input
from .state_variables import keyed_events

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

AVRO = {f"{STATE_STORE}.encodingFormat": "avro"}
HOUR_MS = 3_600_000

BEGUN = "a INT, b STRING, c DOUBLE"
ROUND = (
    BEGUN,
    "a INT, b STRING, c DOUBLE, d STRING",
    "a BIGINT, b STRING, c DOUBLE, d STRING",
    "d STRING, c DOUBLE, b STRING, a BIGINT",
    "d STRING, c DOUBLE, a BIGINT",
    "d STRING, c DOUBLE, a BIGINT, b STRING",
)
"""A field is added, widened; all are reordered; one is removed, and added again."""
CHANGES = {
    "added": (BEGUN, f"{BEGUN}, d DECIMAL(20,3), e ARRAY<INT>, f STRUCT<x: INT>"),
    "removed": (BEGUN, "a INT, c DOUBLE"),
    "reordered": (BEGUN, "c DOUBLE, a INT, b STRING"),
    "widened": (
        "a INT, b INT, c INT, d BIGINT, e BIGINT, f FLOAT, g STRING",
        "a BIGINT, b FLOAT, c DOUBLE, d FLOAT, e DOUBLE, f DOUBLE, g BINARY",
    ),
    "reread": (
        "a BIGINT, b INT, c DECIMAL(10,2), d DECIMAL(20,3), e BINARY",
        "a TIMESTAMP, b DATE, c DECIMAL(11,2), d DECIMAL(20,5), e STRING",
    ),
    "nested": (
        "s STRUCT<x: INT, y: STRING>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>, n ARRAY<INT>",
        "m MAP<STRING, BIGINT>, s STRUCT<z: DOUBLE, y: STRING>, n ARRAY<DOUBLE>, "
        "l ARRAY<STRUCT<y: STRING, x: BIGINT>>",
    ),
}
"""One change each, of a query that is then begun anew."""


@cache
def evolving(schema: str, ttl_ms: int = 0, *, timers: bool = False) -> Query:
    """Return the query of the helper `Evolving`, of a schema of all its variables."""

    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        made = session._jvm.io.statestore.testing.Evolving
        return DataFrame(made.query(keyed_events(streams)._jdf, schema, ttl_ms, timers), session)

    conf = {**AVRO, "spark.sql.streaming.noDataMicroBatches.enabled": str(timers).lower()}
    name = f"evolving {schema} {ttl_ms} {timers}"
    return Query(name, build, "update", {"events": EVENTS}, one_input(1), conf, ROCKSDB)


def evolve(
    lane: Lane,
    schemas: tuple[str, ...],
    ttl_ms: int = 0,
    *,
    timers: bool = False,
    batches: int = 1,
    made: Callable[..., Query] = evolving,
) -> None:
    """Run a lane with one schema after the other, some batches and a restart each."""
    runs = one_input(*[batches] * len(schemas), num_rows=25)
    for schema, files in zip(schemas, runs, strict=True):
        lane.query = made(schema, ttl_ms, timers=timers)
        lane.run(*files)


class Latest(StatefulProcessor):
    """Keeps the newest value of a key, in fields of a schema, and shows the one before."""

    def __init__(self, schema: str, ttl_ms: int | None = None) -> None:
        self.schema = schema
        self.ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        self.newest = handle.getValueState("newest", self.schema, self.ttl_ms)
        self.all = handle.getListState("all", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        held = list(self.newest.get()) if self.newest.exists() else []
        shown = [list(row) for row in self.all.get()]
        values = sorted(row.value for row in rows)
        made = {"number": values[-1], "text": f"é{values[-1]}"}
        row = tuple(made[field.split()[0]] for field in self.schema.split(", "))
        if values[-1] % 2 == 0:
            self.newest.update(row)
        self.all.appendValue(row)
        yield Row(key=key[0], value=str(held), list=str(shown), map="")

    def close(self) -> None:
        pass


PYTHON = ("number INT", "text STRING, number BIGINT", "text STRING")


@cache
def evolving_in_python(schema: str, ttl_ms: int = 0, *, timers: bool = False) -> Query:
    """Return the query of `Latest`."""

    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        groups = keyed_events(streams).groupBy("key")
        shown = "key STRING, value STRING, list STRING, map STRING"
        return groups.transformWithState(Latest(schema), shown, "Update", "None")

    query = evolving(schema, ttl_ms, timers=timers)
    return replace(query, name=f"{query.name} in Python", build=build)


@cache
def expiring(ttl_ms: int | None) -> Query:
    """Return the query of `Latest` with a value that lives so long, or for ever."""

    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        groups = keyed_events(streams).groupBy("key")
        shown = "key STRING, value STRING, list STRING, map STRING"
        latest = Latest("number INT, text STRING", ttl_ms)
        return groups.transformWithState(latest, shown, "Update", "ProcessingTime")

    query = evolving_in_python(PYTHON[0])
    return replace(query, name=f"expiring after {ttl_ms}", build=build)
