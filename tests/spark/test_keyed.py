"""Keyed state in Flink's words does on a real Spark what plain dicts do."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from examples import count_window_average, flink_listings
from statestore import Checkpoint, Savepoint, keyed
from statestore.core.errors import InvalidArgumentError
from statestore.testing.keyed_harness import KeyedHarness

from .conftest import EXTENDED, PROVIDER, MakeLane
from .harness import HEAP, PROVIDER_CLASS, Lane
from .keyed_functions import (
    AllStates,
    Fields,
    Plain,
    Report,
    Timed,
    odd_totals,
    query_of,
    rows_of,
    total_so_far,
)
from .test_transform_with_state import run_at

pytestmark = [pytest.mark.ours, pytest.mark.needs("row-api")]
# Workers import neither the examples nor the tests.
cloudpickle.register_pickle_by_value(count_window_average)
cloudpickle.register_pickle_by_value(flink_listings)
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _watermark_ms(progress: Mapping[str, Any]) -> int:
    at = datetime.strptime(progress["eventTime"]["watermark"], "%Y-%m-%dT%H:%M:%S.%f%z")
    return round(at.timestamp() * 1000)


def _as_row(report: Report) -> str:
    parts = [Row(value=part.value, label=part.label) for part in report.parts]
    totals = [Row(_1=rest, _2=word, _3=total) for rest, word, total in report.totals]
    before = report.key, report.what, report.seen
    return repr((*before, parts, totals, report.largest, report.mean))


def _returned(lane: Lane) -> Iterator[list[str]]:
    """Return the rows of each batch that had input."""
    return (lane.batches[report["batchId"]] for report in lane.progress if report["numInputRows"])


def _read(checkpoint: Checkpoint | Savepoint, name: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return what is stored under a name, by key: of a map the user key before the value."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in checkpoint.rows(name).read().to_pylist():
        key, *user_key = _leaves(row["key"])
        found.setdefault(key, []).append((*user_key, *_leaves(row["value"])))
    return found


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    return [value]


def test_every_kind_of_state_is_what_plain_dicts_are(make_lane: MakeLane, tmp_path: Path) -> None:
    """Catches a handle that loses, mixes up or changes what it was given, over a restart.

    Also after a rescale, and what is read of it, and of a savepoint, under the descriptors' names.
    """
    plan = [[rows_of(0), rows_of(1)], [rows_of(2, 3)]]
    lane = make_lane(query_of("keyed", AllStates(), plan))

    lane.run(*lane.query.plan[0])
    if PROVIDER != HEAP:
        Checkpoint(lane.checkpoint).rescale(6)
    lane.run(*lane.query.plan[1])

    model, files = Plain(AllStates()), iter([rows for run in plan for rows in run])
    for progress in lane.progress:
        rows = next(files) if progress["numInputRows"] else []
        returned = model.run(rows, _watermark_ms(progress))
        assert lane.batches[progress["batchId"]] == sorted(map(_as_row, returned))
    shown = "".join(row for rows in lane.batches.values() for row in rows)
    assert all(f"'{what}" in shown for what in ("seen", "cleared", "timer")), "too little happens"
    if PROVIDER == HEAP:
        return
    savepoint = Checkpoint(lane.checkpoint).savepoint(tmp_path / "savepoint").made
    for stored in (Checkpoint(lane.checkpoint), savepoint):
        kept = {name: state.of_keys for name, state in model.states.items()}
        assert _read(stored, "largest") == {key: [(v,)] for key, v in kept["largest"].items()}
        assert _read(stored, "mean") == {key: [pair] for key, pair in kept["mean"].items()}
        assert {key: row[0][:3] for key, row in _read(stored, "seen").items()} == {
            key: seen[:3] for key, seen in kept["seen"].items()
        }
        assert {key: sorted(rows) for key, rows in _read(stored, "totals").items()} == {
            key: sorted((*at, total) for at, total in totals.items())
            for key, totals in kept["totals"].items()
        }


class Totals(StatefulProcessor):
    """A processor of Spark: the total of each key, and a timer that returns it."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "total BIGINT, latest TIMESTAMP")
        self.values = handle.getMapState("values", "value BIGINT", "times INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N803
        for row in rows:
            before = self.total.get() or (0, None)
            self.total.update((before[0] + row.value, row.ts))
            self.values.updateValue(
                (row.value,), ((self.values.getValue((row.value,)) or [0])[0] + 1,)
            )
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 10_000 * row.value)
        yield Row(key=key[0], what=f"{self.total.get()} {sorted(self.values.iterator())}")

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        yield Row(key=key[0], what=f"{expiredTimerInfo.getExpiryTimeInMs()} {self.total.get()}")


def test_harness_runs_a_processor_as_spark_does_and_drops_what_it_drops(
    make_lane: MakeLane,
) -> None:
    """Catches a processor that passes its tests and does something else in its query."""

    def build(groups: Any) -> Any:
        return groups.transformWithState(Totals(), "key STRING, what STRING", "Append", "EventTime")

    def rows(*seconds: int | None) -> list[dict[str, Any]]:
        return [
            {"key": key, "value": n, "at": None if second is None else second * 1000}
            for n, second in enumerate(seconds)
            for key in ("a", "é")
        ]

    plan = [
        [rows(10, 20), rows(5, 20, 21, None, 40)],
        [rows(39, 40, 41), rows(1, *range(41, 47), 90, 47, 48)],
    ]
    lane = make_lane(query_of("processor", build, plan))
    for run in lane.query.plan:
        lane.run(*run)

    harness = KeyedHarness(Totals(), "key", time_mode="EventTime", event_time="ts")
    files = iter([rows for run in plan for rows in run])
    for progress in lane.progress:
        given = [
            Row(**row, ts=row["at"] and datetime.fromtimestamp(row["at"] / 1000))  # noqa: DTZ006
            for row in (next(files) if progress["numInputRows"] else [])
        ]
        returned = harness.batch(given, watermark_ms=_watermark_ms(progress))
        assert lane.batches[progress["batchId"]] == sorted(map(repr, map(tuple, returned)))

    assert harness.timers()
    checkpoint = Checkpoint(lane.checkpoint)
    begun = [
        KeyedHarness(Totals(), "key", time_mode="EventTime", event_time="ts", state=state)
        for state in (checkpoint, checkpoint.savepoint(lane.root / "savepoint").made)
    ]
    last = Row(key="a", value=3, at=100_000, ts=datetime.fromtimestamp(100))  # noqa: DTZ006
    wanted, *found = (
        (one.timers(), sorted(map(repr, one.batch([last], watermark_ms=10**9))))
        for one in (harness, *begun)
    )
    assert found == [wanted, wanted]


@pytest.mark.parametrize(
    "function",
    [
        count_window_average.CountWindowAverage(),
        pytest.param(count_window_average.CheckpointedCountWindowAverage(), marks=EXTENDED),
    ],
    ids=lambda function: type(function).__name__,
)
def test_count_window_average_prints_what_flink_prints(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], function: Any
) -> None:
    """Catches a state that is lost, or not cleared, between batches."""
    session = spark.newSession()
    session.conf.set(PROVIDER_CLASS, PROVIDER)

    count_window_average.run(session, tmp_path, function)

    assert capsys.readouterr().out == "(1,4)\n(1,5)\n"


LISTINGS = {
    "map_with_counter": ["(3)", "(0)", "(8)", "(9)"],
    "map_with_state": ["(a,0)", "(a,3)", "(a,7)", "(b,0)"],
    "compute_diffs": ["(ann,10)", "(bob,-2)", "(ann,7)", "(bob,0)"],
    "word_count": [
        f"(00:00:0{start},{word},{times})"
        for start in range(5)
        for word, times in (("be", 2), ("not", 1), ("or", 1), ("to", 2))
    ],
}


@EXTENDED
@pytest.mark.parametrize("name", LISTINGS)
def test_listing_of_flink_prints_what_its_text_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Catches a counterpart of a listing that does something else."""
    session = spark.newSession()
    session.conf.set(PROVIDER_CLASS, PROVIDER)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    assert LISTINGS.keys() == flink_listings.LISTINGS.keys()

    flink_listings.run(session, tmp_path, flink_listings.LISTINGS[name])

    assert capsys.readouterr().out.splitlines() == LISTINGS[name]


@EXTENDED
@pytest.mark.parametrize(
    ("update_type", "after_a_read"),
    [("OnCreateAndWrite", "(None, [], {})"), ("OnReadAndWrite", "(7, [7], {7: 7})")],
)
def test_state_lives_as_long_as_its_ttl_says(
    make_lane: MakeLane, update_type: Any, after_a_read: str
) -> None:
    """Catches an entry that a read keeps, or does not keep, against what was asked for.

    Also a timer by processing time.
    """
    function = Timed(keyed.StateTtlConfig(timedelta(seconds=50), update_type))
    lane = make_lane(query_of(f"ttl-{update_type}", function, [], "ProcessingTime"))

    for value, at_ms in ((7, 0), (0, 35_000), (0, 60_000), (0, 200_000)):
        run_at(lane, {"events": [{"key": "a", "value": value, "at": 0}]}, at_ms)

    assert lane.batches == {
        0: [],
        1: [repr(("a", "(7, [7], {7: 7})"))],
        2: sorted([repr(("a", after_a_read)), repr(("a", "timer"))]),
        3: [repr(("a", "(None, [], {})"))],
    }


@EXTENDED
def test_fields_are_of_a_key_and_restored(make_lane: MakeLane) -> None:
    """Catches fields that one key sees of another, or that a batch does not get back.

    Also a state whose function is that of another key's instance.
    """
    plan = [[rows_of(0), rows_of(1)], [rows_of(2)], [rows_of(3)]]
    lane = make_lane(query_of("fields", lambda groups: keyed.process(groups, Fields()), plan))

    for run in lane.query.plan:
        lane.run(*run)

    held: dict[str, list[int]] = {}
    returned = _returned(lane)
    for rows in (rows for run in plan for rows in run):
        expected = []
        for row in rows:
            values = held.setdefault(row["key"], [])
            values.append(row["value"])
            shown = repr((values, (row["value"], len(values))))
            expected.append(repr((row["key"], shown)))
        held = {key: values for key, values in held.items() if len(values) <= 4}
        assert next(returned) == sorted(expected)


@EXTENDED
@pytest.mark.parametrize("is_flat", [False, True])
def test_map_with_state_keeps_what_the_function_returns(make_lane: MakeLane, is_flat: bool) -> None:
    """Catches a state that is not cleared by None, not handed back, or has another name."""
    shorthand = keyed.flat_map_with_state if is_flat else keyed.map_with_state
    function: Any = odd_totals if is_flat else total_so_far
    plan = [[rows_of(0), rows_of(1)], [rows_of(2)]]

    def build(groups: Any) -> Any:
        return shorthand(groups, function, name="total", output_mode="Update")

    lane = make_lane(replace(query_of(shorthand.__name__, build, plan), mode="update"))

    for run in lane.query.plan:
        lane.run(*run)

    held: dict[str, int | None] = {}
    returned = _returned(lane)
    for rows in (rows for run in plan for rows in run):
        expected = []
        for row in rows:
            values, held[row["key"]] = function(Row(**row), held.get(row["key"]))
            expected += [(value,) for value in values] if is_flat else [values]
        assert next(returned) == sorted(map(repr, expected))
    if PROVIDER != HEAP:
        kept = {key: [(total,)] for key, total in held.items() if total is not None}
        assert _read(Checkpoint(lane.checkpoint), "total") == kept


class Stamped(keyed.RichMapFunction):
    """Hands on the key and the time of a row."""

    def map(self, value: Row) -> Row:
        return Row(key=value.key, at=value.ts)


@EXTENDED
def test_output_carries_the_watermark_on_to_the_next_operator(make_lane: MakeLane) -> None:
    """Catches a column of time that the windows behind the function do not know."""

    def build(groups: Any) -> Any:
        stamped = keyed.process(
            groups,
            Stamped(),
            "key STRING, at TIMESTAMP",
            time_mode="EventTime",
            event_time_column="at",
        )
        windows = stamped.groupBy(sf.window("at", "10 seconds"), "key").count()
        return windows.select(sf.unix_seconds("window.start").alias("start"), "key", "count")

    def rows(*seconds: int) -> list[dict[str, Any]]:
        return [{"key": "a", "value": 0, "at": second * 1000} for second in seconds]

    lane = make_lane(query_of("stamped", build, [[rows(1, 2, 11), rows(12, 31)]]))

    lane.run(*lane.query.plan[0])

    returned = sorted(row for batch in lane.batches.values() for row in batch)
    assert returned == [repr((0, "a", 2)), repr((10, "a", 2))]


class Refused(keyed.RichMapFunction):
    """Takes two states of one name."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        runtime.get_state(keyed.ValueStateDescriptor("state", int))
        runtime.get_list_state(keyed.ListStateDescriptor("state", int))

    def map(self, value: Row) -> int:
        return int(value.value)


class Untyped(keyed.RichMapFunction):
    """Says nothing of its output."""

    def map(self, value):
        return value


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Refused(), "two different states have the same name: name='state'"),
        (Untyped(), "the schema of the output is not known"),
        (object(), "not an instance of a class of functions"),
    ],
)
def test_refused_before_a_query_starts(spark: SparkSession, function: Any, message: str) -> None:
    """Catches an error that Spark's worker in the driver would hide."""
    groups = spark.createDataFrame([("a", 1)], "key STRING, value LONG").groupBy("key")

    with pytest.raises(ValueError, match=message) as refused:
        keyed.process(groups, function)

    assert isinstance(refused.value, InvalidArgumentError)


@EXTENDED
def test_timer_of_another_time_is_refused_by_name(make_lane: MakeLane) -> None:
    """Catches a timer that never comes."""
    lane = make_lane(query_of("other-time", AllStates(), [[rows_of(0)]], "ProcessingTime"))

    with pytest.raises(StreamingQueryException, match="need another time mode"):
        lane.run(*lane.query.plan[0])
