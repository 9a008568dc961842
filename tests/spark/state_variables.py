"""Queries of `transformWithState`: one processor that uses all there is, in each of its APIs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from .features import missing
from .harness import ROCKSDB, Build, Query
from .queries import EVENTS, START, one_input

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Api = Literal["row", "pandas", "scala"]
COMPARED: Api = "pandas" if missing("row-api") else "row"
"""What the others are compared with."""
TimeMode = Literal["EventTime", "ProcessingTime", "None"]

START_MS = int(START.timestamp() * 1000)
TIMER_MS = 40_000
CLEARED_AT = 8
REPORT = "key STRING, what STRING, count BIGINT, seen STRING, totals STRING, timers STRING"
INITIAL = [(f"kéy-{key}" * (1 + key % 3), key * 10) for key in range(1, 20, 2)]
"""Initial state of keys of `generate_events`, and of some that no event has."""
CHANGES = ("", "list removed, map added", "list again, map removed")
"""What `Changing` has beside its value, in the order in which the queries of a test have it."""


class Everything(StatefulProcessor):
    """Calls every method of value, list and map state and of timers.

    TransformWithStateQueries.scala does the same.

    Args:
        frames: The pandas API: rows come and go as data frames.
        time_mode: Whether timers are set, and by which time.
        ttls_ms: Of value, list and map state; none where 0.
    """

    def __init__(self, frames: bool, time_mode: TimeMode, ttls_ms: tuple[int, int, int]) -> None:
        self.frames = frames
        self.time_mode = time_mode
        self.ttls_ms = ttls_ms

    def init(self, handle: Any) -> None:
        count, seen, totals = (ttl or None for ttl in self.ttls_ms)
        self.handle = handle
        self.count = handle.getValueState("count", "n BIGINT", count)
        self.seen = handle.getListState("seen", "value BIGINT", seen)
        self.totals = handle.getMapState("totals", "rest BIGINT", "total BIGINT", totals)

    def handleInitialState(self, key: Any, initial: Any, timers: Any) -> None:
        first = int(initial["first"].iloc[0]) if self.frames else initial.first
        self.count.update((first % 5,))
        self.seen.put([(first,), (first + 1,)])
        self.totals.updateValue((first % 5,), (first,))
        self.totals.updateValue((7,), (first,))
        if self.time_mode == "EventTime":
            self.handle.registerTimer(START_MS + 15_000)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        values, newest_ms = self._take(rows)
        count = (self.count.get()[0] if self.count.exists() else 0) + len(values)
        if count > CLEARED_AT:
            self.count.clear()
            self.seen.clear()
            self.totals.clear()
            for timer in list(self._timers()):
                self.handle.deleteTimer(timer)
            yield from self._report(key, "cleared", count)
            return
        self.count.update((count,))
        if not self.seen.exists():
            self.seen.put([(value,) for value in values])
        elif count % 3 == 0:
            for value in values:
                self.seen.appendValue((value,))
        elif count % 3 == 1:
            self.seen.appendList([(value,) for value in values])
        else:
            self.seen.put([*list(self.seen.get())[-2:], *((value,) for value in values)])
        for value in values:
            rest = (abs(value) % 5,)
            if abs(value) % 7 == 0:
                self.totals.removeKey(rest)
            elif self.totals.containsKey(rest):
                self.totals.updateValue(rest, (self.totals.getValue(rest)[0] + value,))
            else:
                self.totals.updateValue(rest, (value,))
        self._set_timer(newest_ms, timers)
        yield from self._report(key, "seen", count)

    def _set_timer(self, newest_ms: int, timers: Any) -> None:
        if self.time_mode == "None":
            return
        known = self._timers()
        if len(known) > 1:
            self.handle.deleteTimer(known[0])
        if self.time_mode == "ProcessingTime":
            newest_ms = timers.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(max(newest_ms, timers.getCurrentWatermarkInMs()) + TIMER_MS)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: Any,  # noqa: N803, given by this name
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Any]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        count = self.count.get()[0] if self.count.exists() else -1
        if count % 2:
            self.seen.clear()
        else:
            self.totals.clear()
        what = f"timer {at_ms}" if self.time_mode == "EventTime" else "timer"
        yield from self._report(key, what, count)

    def close(self) -> None:
        pass

    def _take(self, rows: Iterator[Any]) -> tuple[list[int], int]:
        if self.frames:
            pairs = [
                (int(value), int(at))
                for frame in rows
                for value, at in zip(frame["value"], frame["at"], strict=True)
            ]
        else:
            pairs = [(row.value, row.at) for row in rows]
        return sorted(value for value, _ in pairs), max(at for _, at in pairs)

    def _timers(self) -> list[int]:
        return sorted(self.handle.listTimers())

    def _report(self, key: Any, what: str, count: int) -> Iterator[Any]:
        entries = sorted((rest[0], total[0]) for rest, total in self.totals.iterator())
        rests = self.totals.keys()
        assert [rest for rest, _ in entries] == sorted(rest for (rest,) in rests)
        assert sum(total for _, total in entries) == sum(
            sum(total) for total in self.totals.values()
        )
        assert self.totals.exists() == bool(entries)
        report = {
            "key": key[0],
            "what": what,
            "count": count,
            "seen": ",".join(str(value) for (value,) in self.seen.get()),
            "totals": ",".join(f"{rest}:{total}" for rest, total in entries),
            "timers": "" if self.time_mode != "EventTime" else ",".join(map(str, self._timers())),
        }
        if not self.frames:
            yield Row(**report)
            return
        import pandas as pd

        yield pd.DataFrame({name: [value] for name, value in report.items()})


class Changing(StatefulProcessor):
    """Has a value that stays, and other variables by a change of `CHANGES`."""

    def __init__(self, change: str) -> None:
        self.change = change

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n BIGINT")
        self.seen = self.totals = None
        if self.change == CHANGES[1]:
            handle.deleteIfExists("seen")
            self.totals = handle.getMapState("totals", "value BIGINT", "n BIGINT")
        else:
            if self.change == CHANGES[2]:
                handle.deleteIfExists("totals")
            self.seen = handle.getListState("seen", "value BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        values = sorted(row.value for row in rows)
        count = (self.count.get()[0] if self.count.exists() else 0) + len(values)
        self.count.update((count,))
        shown = ""
        if self.seen is not None:
            self.seen.appendList([(value,) for value in values])
            shown = ",".join(str(value) for (value,) in self.seen.get())
        if self.totals is not None:
            for value in values:
                self.totals.updateValue((value,), (count,))
            shown = str(sorted(pair[0] for pair in self.totals.iterator()))
        yield Row(key=key[0], count=count, shown=shown)

    def close(self) -> None:
        pass


def keyed_events(streams: Mapping[str, DataFrame]) -> DataFrame:
    """Return the events with a key each, and their time in milliseconds, `at`."""
    events = streams["events"].na.fill("none", ["key"]).withColumn("at", sf.unix_millis("ts"))
    return events.withWatermark("ts", "10 seconds")


@cache
def everything(
    api: Api,
    time_mode: TimeMode = "EventTime",
    ttls_ms: tuple[int, int, int] = (0, 0, 0),
    *,
    initial: bool = False,
) -> Query:
    """Return the query of `Everything` in an API."""

    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        events = keyed_events(streams)
        first = session.createDataFrame(INITIAL, "key STRING, first BIGINT") if initial else None
        if api == "scala":
            queries = session._jvm.io.statestore.testing.TransformWithStateQueries
            given = first._jdf if first is not None else None
            return DataFrame(queries.everything(events._jdf, given, time_mode, *ttls_ms), session)
        groups = events.groupBy("key")
        run = groups.transformWithStateInPandas if api == "pandas" else groups.transformWithState
        processor = Everything(api == "pandas", time_mode, ttls_ms)
        given = first.groupBy("key") if first is not None else None
        return run(processor, REPORT, "Update", time_mode, given)

    name = f"everything-{api}-{time_mode}-{'-'.join(map(str, ttls_ms))}{'-initial' * initial}"
    return _query(name, build, time_mode)


def _query(name: str, build: Build, time_mode: TimeMode, mode: str = "update") -> Query:
    # By processing time Spark asks for another batch for ever unless no-data batches are off.
    conf = {"spark.sql.streaming.noDataMicroBatches.enabled": str(time_mode == "EventTime").lower()}
    plan = one_input(2, 1, 1, num_rows=30)
    return Query(name, build, mode, {"events": EVENTS}, plan, conf, ROCKSDB)


@cache
def changing(change: str) -> Query:
    """Return the query of `Changing`."""

    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        shown = "key STRING, count BIGINT, shown STRING"
        groups = streams["events"].na.fill("none", ["key"]).groupBy("key")
        return groups.transformWithState(Changing(change), shown, "Update", "None")

    return replace(_query(f"changing {change}", build, "None"), plan=one_input(1, 1, 1))


class Latest(StatefulProcessor):
    """Returns every event that is the newest of its key, with its time, for operators after it."""

    def init(self, handle: Any) -> None:
        self.newest = handle.getValueState("newest", "at BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
        newest = self.newest.get()[0] if self.newest.exists() else -1
        for row in sorted(rows, key=lambda row: (row.at, row.value)):
            if row.at > newest:
                newest = row.at
                yield Row(key=key[0], value=row.value, ts=row.ts)
        self.newest.update((newest,))

    def close(self) -> None:
        pass


def _chained(name: str, after: Any) -> Query:
    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        groups = keyed_events(streams).groupBy("key")
        latest = groups.transformWithState(
            Latest(), EVENTS, "Append", "EventTime", eventTimeColumnName="ts"
        )
        return after(latest)

    return _query(f"chained-{name}", build, "EventTime", "append")


def _by_number(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
    queries = session._jvm.io.statestore.testing.TransformWithStateQueries
    return DataFrame(queries.byNumber(keyed_events(streams)._jdf), session)


BY_NUMBER = _query("by-number", _by_number, "None")
"""Spark groups by a number, of which state has the text as its key."""
EVENT_TIME = everything("scala")
"""In the API that starts no Python workers, which take most of a query's time."""
CHAINED = [
    _chained(
        "window",
        lambda latest: latest.groupBy(sf.window("ts", "30 seconds")).agg(
            sf.count("*").alias("n"), sf.sum("value").alias("total")
        ),
    ),
    _chained("dedup", lambda latest: latest.dropDuplicatesWithinWatermark(["value"])),
]
