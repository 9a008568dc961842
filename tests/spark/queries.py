"""The stateful queries of the lane, one per operator and mode, with their generated input."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from .harness import Build, Files, Plan, Query

EVENTS = "key STRING, value BIGINT, ts TIMESTAMP"
START = datetime(2024, 1, 1, tzinfo=UTC)
BATCH_SPAN_S = 60
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"


def generate_events(
    seed: str, batch: int, num_rows: int = 40, num_keys: int = 14
) -> list[dict[str, Any]]:
    """Make one file's events, the same for the same arguments.

    Event time advances by a minute a batch; some events are out of order and a few are later than
    any watermark allows. One key in num_keys is null.
    """
    events = []
    for row in range(num_rows):
        noise = zlib.crc32(f"{seed}/{batch}/{row}".encode())
        late_s = 120 if noise % 17 == 0 else 0
        at = START + timedelta(seconds=BATCH_SPAN_S * batch + (noise >> 8) % 75 - late_s)
        key = (noise >> 4) % num_keys
        events.append(
            {
                "key": None if key == 0 else f"kéy-{key}" * (1 + key % 3),
                "value": (noise >> 12) % 1000 - 300,
                "ts": at.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            }
        )
    return events


def one_input(*runs: int, **sizes: int) -> Plan:
    """Return a plan with as many batches of one input in each run as given."""
    batches: Iterator[Files] = iter(
        {"events": generate_events("events", batch, **sizes)} for batch in range(sum(runs))
    )
    return [[next(batches) for _ in range(run)] for run in runs]


def in_runs(query: Query, *runs: int) -> Query:
    """Return a query with as many batches in each run."""
    make = two_inputs if "left" in query.schemas else one_input
    return replace(query, plan=make(*runs))


def two_inputs(*runs: int) -> Plan:
    """Return a plan with as many batches of a left and a right input in each run as given."""
    batches: Iterator[Files] = iter(
        {side: generate_events(side, batch, num_rows=25) for side in ("left", "right")}
        for batch in range(sum(runs))
    )
    return [[next(batches) for _ in range(run)] for run in runs]


def _late(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds")


def _total(events: DataFrame, *keys: Any) -> DataFrame:
    return events.groupBy(*keys).agg(
        sf.count("*").alias("n"),
        sf.sum("value").alias("total"),
        sf.min("key").alias("least"),
        sf.max("value").alias("most"),
        sf.sort_array(sf.collect_set(sf.col("value") % 5)).alias("remainders"),
    )


def single(name: str, mode: str, build: Any, plan: Plan | None = None, **conf: str) -> Query:
    """Return a query of one input; `a__b="c"` sets spark.sql.streaming.a.b."""
    dotted = {f"spark.sql.streaming.{key.replace('__', '.')}": conf[key] for key in conf}
    wrapped: Build = lambda session, streams: build(streams["events"])  # noqa: E731
    return Query(name, wrapped, mode, {"events": EVENTS}, plan or one_input(2, 2), dotted)


AGGREGATION = single(
    "aggregation-update", "update", lambda events: _total(events, "key"), one_input(2, 1, 2)
)


def _window() -> Column:
    return sf.window("ts", "20 seconds")


def _session() -> Column:
    return sf.session_window("ts", "4 seconds")


AGGREGATIONS = [
    AGGREGATION,
    single(
        "aggregation-update-format-1",
        "update",
        lambda events: _total(events, "key"),
        aggregation__stateFormatVersion="1",
    ),
    single(
        "aggregation-complete",
        "complete",
        lambda events: _total(events, "key", sf.col("value") % 3),
        one_input(1, 2),
    ),
    single("aggregation-global-update", "update", lambda events: _total(events)),
    single("aggregation-global-complete", "complete", lambda events: _total(events)),
]
GLOBAL = next(query for query in AGGREGATIONS if "global" in query.name)
WINDOW_APPEND, WINDOW_UPDATE, WINDOW_COMPLETE = (
    single(f"window-{mode}", mode, lambda events: _total(_late(events), _window(), "key"))
    for mode in ("append", "update", "complete")
)
WINDOWS = [
    WINDOW_APPEND,
    WINDOW_UPDATE,
    WINDOW_COMPLETE,
    single(
        "window-append-format-1",
        "append",
        lambda events: _total(_late(events), _window(), "key"),
        aggregation__stateFormatVersion="1",
    ),
    single(
        "window-sliding-append",
        "append",
        lambda events: _total(_late(events), sf.window("ts", "20 seconds", "10 seconds")),
        one_input(1, 2),
    ),
]
SESSION_APPEND, SESSION_COMPLETE = (
    single(f"session-{mode}", mode, lambda events: _total(_late(events), _session(), "key"))
    for mode in ("append", "complete")
)
WATERMARK_DEDUP = single(
    "dedup-watermark", "append", lambda events: _late(events).dropDuplicates(["key", "ts"])
)
DEDUPS = [
    WATERMARK_DEDUP,
    single("dedup", "append", lambda events: events.dropDuplicates(["key"]), one_input(1, 2)),
    single(
        "dedup-within-watermark",
        "append",
        lambda events: _late(events).dropDuplicatesWithinWatermark(["key"]),
    ),
]
_EVICTING = {"statefulOperator__incrementalCleanupFactor": "2"}
EVICTING = [
    single(
        "window-append-evicting",
        "append",
        lambda events: _total(_late(events), _window(), "key"),
        **_EVICTING,
    ),
    single(
        "dedup-watermark-evicting",
        "append",
        lambda events: _late(events).dropDuplicates(["key", "ts"]),
        **_EVICTING,
    ),
]
"""Rows are evicted while a batch puts others; Spark 4.3 knows the key."""
LIMITS = [
    single("global-limit", "append", lambda events: events.limit(60), one_input(1, 2)),
]


def _window_of_windows(events: DataFrame) -> DataFrame:
    inner = (
        _late(events)
        .groupBy(sf.window("ts", "10 seconds"), "key")
        .agg(sf.sum("value").alias("total"))
    )
    return inner.groupBy(sf.window(sf.window_time("window"), "40 seconds")).agg(
        sf.count("*").alias("n"), sf.sum("total").alias("total")
    )


def _aggregation_then_dedup(events: DataFrame) -> DataFrame:
    # Both operators are partitioned by (window, key): they run in one stage, in one task.
    totals = _late(events).groupBy(_window(), "key").agg(sf.sum("value").alias("total"))
    return totals.dropDuplicates(["window", "key"])


def _dedup_then_aggregation(events: DataFrame) -> DataFrame:
    return _total(_late(events).dropDuplicates(["key", "ts"]), _window())


AGGREGATION_THEN_DEDUP = single("aggregation-then-dedup", "append", _aggregation_then_dedup)
CHAINS = [
    single("window-of-windows", "append", _window_of_windows),
    AGGREGATION_THEN_DEDUP,
    single("dedup-then-aggregation", "append", _dedup_then_aggregation),
]


def _join(how: str, *, watermark: bool = True, windowed: bool = False) -> Build:
    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        left, right = streams["left"], streams["right"]
        if watermark:
            left, right = _late(left), _late(right)
        right = right.select(*(sf.col(name).alias(f"r_{name}") for name in right.columns))
        if windowed:
            left = left.select("value", sf.window("ts", "15 seconds").alias("w"))
            right = right.select("r_value", sf.window("r_ts", "15 seconds").alias("w"))
            found = ("value",) if how == "left_semi" else ("value", "r_value")
            return left.join(right, "w", how).select(*found)
        condition = "key = r_key"
        if watermark:
            condition += " AND r_ts BETWEEN ts - INTERVAL 20 SECONDS AND ts + INTERVAL 20 SECONDS"
        return left.join(right, sf.expr(condition), how)

    return build


def _joins(name: str, version: str, build: Build, runs: tuple[int, ...] = (2, 1)) -> Query:
    conf = {JOIN_FORMAT: version}
    if version == "1":  # Spark refuses outer joins of this format
        # Spark 4.3.0 has no writer for the schema file of a new format 1 join.
        conf["spark.sql.streaming.stateStore.stateSchemaCheck"] = "false"
    schemas = {"left": EVENTS, "right": EVENTS}
    return Query(f"{name}-format-{version}", build, "append", schemas, two_inputs(*runs), conf)


def join_query(how: str, kind: str) -> Query:
    """Return a join of what `kind` bounds: times apart, a window that is the key, or nothing."""
    build = _join(how, watermark=kind != "always", windowed=kind == "window")
    return Query(
        f"join-{how}-{kind}",
        build,
        "append",
        {"left": EVENTS, "right": EVENTS},
        two_inputs(2, 1),
        {},
    )


def _join_then_window(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
    joined = _join("inner")(session, streams)
    return joined.groupBy(sf.window("ts", "30 seconds")).agg(sf.sum("r_value").alias("total"))


JOIN = _joins("join-left-outer", "2", _join("left_outer"), (2, 1, 1))
JOINS = [
    JOIN,
    _joins("join-inner-no-watermark", "2", _join("inner", watermark=False)),
    _joins("join-inner-no-watermark", "1", _join("inner", watermark=False)),
    _joins("join-inner", "2", _join("inner")),
    _joins("join-inner", "1", _join("inner")),
    _joins("join-right-outer", "2", _join("right_outer")),
    _joins("join-full-outer", "2", _join("full_outer")),
    _joins("join-left-semi", "2", _join("left_semi")),
    _joins("join-window-left-outer", "2", _join("left_outer", windowed=True)),
    _joins("join-then-window", "2", _join_then_window),
]


def _pandas_groups(mode: str, timeout: str) -> Build:
    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        def total(key: Any, frames: Any, state: Any) -> Any:
            import pandas as pd

            count, value_sum = state.get if state.exists else (0, 0)
            timed_out = state.hasTimedOut
            if timed_out:
                state.remove()
            else:
                newest_ms = 0
                for frame in frames:
                    count += len(frame)
                    value_sum += int(frame["value"].sum())
                    newest_ms = max(newest_ms, int(frame["ts"].max().timestamp() * 1000))
                if count > 12:
                    if state.exists:
                        state.remove()
                else:
                    state.update((count, value_sum))
                    if timeout == "ProcessingTimeTimeout":
                        state.setTimeoutDuration(1)
                    if timeout == "EventTimeTimeout":
                        floor_ms = state.getCurrentWatermarkMs()
                        state.setTimeoutTimestamp(max(newest_ms, floor_ms) + 30_000)
            row = {"key": [key[0]], "n": [count], "total": [value_sum], "timed_out": [timed_out]}
            yield pd.DataFrame(row)

        return (
            _late(streams["events"])
            .groupBy("key")
            .applyInPandasWithState(
                total,
                "key STRING, n BIGINT, total BIGINT, timed_out BOOLEAN",
                "n BIGINT, total BIGINT",
                mode,
                timeout,
            )
        )

    return build


def _scala(session: SparkSession) -> Any:
    return session._jvm.io.statestore.testing.GroupStateQueries


def _scala_map_groups(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
    events = streams["events"].na.fill("none", ["key"])
    return DataFrame(_scala(session).mapGroups(events._jdf), session)


def _scala_flat_map_groups(mode: str, timeout: str) -> Build:
    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        events = _late(streams["events"]).na.fill("none", ["key"])
        jdf = _scala(session).flatMapGroups(events._jdf, mode, timeout)
        return DataFrame(jdf, session)

    return build


def _groups(name: str, mode: str, build: Build, **conf: str) -> Query:
    dotted = {f"spark.sql.streaming.{key.replace('__', '.')}": conf[key] for key in conf}
    # A processing-time timeout asks for another batch for ever unless no-data batches are off.
    dotted["spark.sql.streaming.noDataMicroBatches.enabled"] = str("processing" not in name).lower()
    return Query(name, build, mode, {"events": EVENTS}, one_input(2, 1, num_rows=15), dotted)


EVENT_TIME_GROUPS = _groups(
    "flat-map-groups-event-time", "update", _scala_flat_map_groups("update", "EventTimeTimeout")
)
GROUP_STATES = [
    EVENT_TIME_GROUPS,
    _groups(
        "pandas-groups-processing-time-update",
        "update",
        _pandas_groups("update", "ProcessingTimeTimeout"),
    ),
    _groups(
        "pandas-groups-event-time-append", "append", _pandas_groups("append", "EventTimeTimeout")
    ),
    _groups("map-groups", "update", _scala_map_groups),
    _groups(
        "flat-map-groups-format-1",
        "update",
        _scala_flat_map_groups("update", "NoTimeout"),
        flatMapGroupsWithState__stateFormatVersion="1",
    ),
    _groups(
        "flat-map-groups-processing-time",
        "append",
        _scala_flat_map_groups("append", "ProcessingTimeTimeout"),
    ),
]


def _every_type(events: DataFrame) -> DataFrame:
    """Group by a column of every type that can be grouped by, and keep values of the others."""
    keys = {
        "flag": "value % 2 = 0",
        "tiny": "CAST(value % 100 AS TINYINT)",
        "small": "CAST(value AS SMALLINT)",
        "number": "CAST(value AS INT)",
        "single": "CAST(value AS FLOAT) / 8",
        "real": "CASE WHEN value % 5 = 0 THEN -0.0D ELSE value / 3 END",
        "money": "CAST(value / 7 AS DECIMAL(12, 4))",
        "much": "CAST(value AS DECIMAL(38, 10)) * 1000000000000000",
        "word": "key",
        "data": "CAST(key AS BINARY)",
        "day": "CAST(ts AS DATE)",
        "at": "ts",
        "local": "CAST(ts AS TIMESTAMP_NTZ)",
        "months": "make_ym_interval(value % 9, 3)",
        "seconds": "make_dt_interval(1, 2, 3, value)",
        "pair": "named_struct('a', value, 'b', key, 'c', named_struct('d', ts))",
        "list": "array(key, NULL, 'x')",
        "lists": "array(array(value), NULL, array())",
    }
    values = {
        "map": "first(map(coalesce(key, ''), value, 'none', NULL))",
        "maps": "first(map(value, map('k', array(named_struct('s', key)))))",
        "span": "first(make_interval(0, value % 12, 0, 1, 0, 0, 0.5))",
        "some": "collect_set(value)",
        "most": "max(named_struct('v', value, 'w', key))",
        "nothing": "first(IF(value > 1e9, array(key), NULL))",
    }
    columns = [sf.expr(text).alias(name) for name, text in keys.items()]
    totals = [sf.expr(text).alias(name) for name, text in values.items()]
    rows = events.groupBy(*columns).agg(*totals)
    # As text, since intervals cannot be collected.
    return rows.select(*(sf.col(name).cast("string") for name in rows.columns))


EVERY_TYPE = single("aggregation-of-every-type", "update", _every_type, one_input(1, 1))

OPERATORS = [
    *AGGREGATIONS,
    EVERY_TYPE,
    *WINDOWS,
    SESSION_APPEND,
    SESSION_COMPLETE,
    *DEDUPS,
    *EVICTING,
    *LIMITS,
    *CHAINS,
    *JOINS,
    *GROUP_STATES,
]
WITH_SCHEMAS = [query for query in OPERATORS if not re.fullmatch("join-.*format-1", query.name)]
"""Those of which Spark writes a state schema."""
