"""Functions of keyed state in plain Python return and keep what the model of plain dicts does."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from examples.count_window_average import (
    PAIRS,
    CheckpointedCountWindowAverage,
    CountWindowAverage,
)
from statestore import keyed
from statestore.core.errors import InvalidArgumentError, ProtocolError
from statestore.core.version import __version__
from statestore.keyed.processor import keyed_processor
from statestore.keyed.runtime import TimerService
from statestore.testing.keyed_harness import KeyedHarness
from tests.attack.keyed import STEP_MS, Plan, plan_of
from tests.keyed import model
from tests.keyed.program import PLANNED, START_MS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
ENDS = {"ttlExpirationMs": HOUR_MS}


def assert_equals_model(plan: Plan, directory: Path) -> Counter[str]:
    """Run a random program in the harness and in the model, batch by batch."""
    plain = model.Plain(plan.key_columns)
    harness: KeyedHarness | None = None
    for number, run in enumerate(plan.runs):
        function = plan.function(0, number, directory)
        if harness is None:
            harness = KeyedHarness(function, plan.key_columns, time_mode=plan.time_mode)
        else:
            harness.restart(function)
        plain.begin(plan.function(1, number, directory))
        for batch in run:
            rows = [Row(**row) for row in plan.batches[batch]]
            now_ms = START_MS + batch * STEP_MS
            times = {"at_ms": now_ms} if plan.time_mode != "None" else {}
            if plan.time_mode == "EventTime":
                times["watermark_ms"] = now_ms
            try:
                returned = harness.batch(rows, **times)
            except RuntimeError as error:
                assert str(error) == PLANNED  # noqa: PT017
                returned = harness.batch(rows, **times)
            by_event = plan.time_mode == "EventTime"
            seen_ms = now_ms if plan.time_mode == "ProcessingTime" else -1
            expected = plain.run(rows, seen_ms, now_ms if by_event else -1)
            assert sorted(map(repr, map(tuple, returned))) == sorted(map(repr, expected))
        assert harness.timers() == {(at, _shown(key)) for at, key in plain.timers}
    return plain.seen


def _shown(key: tuple[Any, ...]) -> Any:
    return key[0] if len(key) == 1 else key


def test_programs_return_what_plain_dicts_do(tmp_path: Path) -> None:
    """Catches state, a timer or a time to live that is not that of a query."""
    seen: Counter[str] = Counter()
    for number in range(20):
        directory = tmp_path / str(number)
        directory.mkdir()
        try:
            seen += assert_equals_model(plan_of(Random(f"harness-{number}")), directory)
        except Exception as error:
            error.add_note(f"program {number}")
            raise

    assert seen["timer fired"] > 50
    assert seen["timer deleted by another one that fires"] > 0
    assert seen["state deleted"] > 2
    assert sum(times for what, times in seen.items() if what.endswith("expired")) > 30
    assert sum(times for what, times in seen.items() if what.endswith("renewed")) > 5


@pytest.mark.parametrize("function", [CountWindowAverage, CheckpointedCountWindowAverage])
def test_example_returns_what_it_says(function: Any) -> None:
    """Catches an example of the docs that does not do what they say."""
    harness = KeyedHarness(function(), "key")

    returned = [harness.batch([Row(key=key, value=value)]) for key, value in PAIRS]

    assert [tuple(row) for batch in returned for row in batch] == [(1, 4), (1, 5)]


class Product(keyed.RichMapFunction, keyed.Checkpointed):
    """Has modules, also within a field, and all values of the key."""

    def __init__(self) -> None:
        self.module, self.modules = math, {"of operators": operator}
        self.values: list[int] = []

    def map(self, value: Row) -> tuple[str, int]:
        self.values.append(value.value)
        return value.key, self.modules["of operators"].neg(self.module.prod(self.values))

    def snapshot_state(self, checkpoint_id: int, checkpoint_timestamp: int) -> list[int]:
        del checkpoint_id, checkpoint_timestamp
        return self.values

    def restore_state(self, state: list[int]) -> None:
        self.values = state


def test_keys_share_the_modules_of_a_function_and_no_other_field() -> None:
    """Catches a function that no task can copy, and a field that one key has of another."""
    harness = KeyedHarness(Product(), "key")
    rows = [Row(key=key, value=value) for value in (2, 3) for key in "ab"]

    returned = [harness.batch(rows), harness.batch(rows[:2])]

    assert [sorted(map(tuple, batch)) for batch in returned] == [
        [("a", -6), ("a", -2), ("b", -6), ("b", -2)],
        [("a", -12), ("b", -12)],
    ]


class Seen(keyed.RichFlatMapFunction, keyed.Checkpointed):
    """Has the values of the key that it knows."""

    def __init__(self) -> None:
        self.known = dict.fromkeys([1, 2]).keys()  # cloudpickle takes it, and `deepcopy` does not
        self.values: list[int] = []

    def flat_map(self, value: Row) -> Iterator[tuple[str, int]]:
        self.values += [value.value] if value.value in self.known else []
        yield value.key, len(self.values)

    def snapshot_state(self, checkpoint_id: int, checkpoint_timestamp: int) -> list[int]:
        del checkpoint_id, checkpoint_timestamp
        return self.values

    def restore_state(self, state: list[int]) -> None:
        self.values = state


def test_keys_share_no_field_of_a_function_that_can_be_pickled_only() -> None:
    """Catches a function that passes its checks, and that no task can open for a key."""
    harness = KeyedHarness(Seen(), "key")
    rows = [Row(key=key, value=value) for key in "ab" for value in (1, 2, 3)]

    returned = [sorted(map(tuple, harness.batch(rows))) for _ in range(2)]

    assert returned == [
        [("a", 1), ("a", 2), ("a", 2), ("b", 1), ("b", 2), ("b", 2)],
        [("a", 3), ("a", 4), ("a", 4), ("b", 3), ("b", 4), ("b", 4)],
    ]


class Visits(keyed.KeyedProcessFunction):
    """Counts the visits of a day, and returns the count an hour after the first."""

    def open(self, runtime: Any) -> None:
        day = keyed.StateTtlConfig(timedelta(days=1))
        self.count = runtime.get_state(keyed.ValueStateDescriptor("count", int, ttl=day))
        self.pages = runtime.get_map_state(keyed.MapStateDescriptor("pages", str, int))
        self.last = runtime.get_list_state(keyed.ListStateDescriptor("last", str))

    def process_element(self, value: Any, context: Any) -> Iterator[tuple[str, int]]:
        timers = context.timer_service()
        if self.count.value() is None:
            timers.register_processing_time_timer(timers.current_processing_time() + 3_600_000)
        self.count.update((self.count.value() or 0) + 1)
        self.pages.put(value.page, (self.pages.get(value.page) or 0) + 1)
        self.last.add(value.page)
        return iter(())

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[str, int]]:
        yield context.get_current_key(), self.count.value() or 0


def visits(*pages: str) -> list[Row]:
    return [Row(user="ann", page=page) for page in pages]


def test_time_is_moved_by_hand() -> None:
    """Catches a timer that does not fire, and state that outlives its time."""
    harness = KeyedHarness(Visits(), "user", time_mode="ProcessingTime")

    assert harness.batch(visits("a", "b", "a"), at_ms=1_000) == []
    assert harness.state("count") == {"ann": 3}
    assert harness.state("pages") == {"ann": {"a": 2, "b": 1}}
    assert harness.state("last") == {"ann": ["a", "b", "a"]}
    assert harness.timers() == {(3_601_000, "ann")}

    assert harness.batch(at_ms=3_601_000) == [Row(_1="ann", _2=3)]
    assert harness.timers() == set()

    harness.batch(at_ms=1_000 + DAY_MS)
    assert harness.state("count") == {}
    assert harness.state("pages") == {"ann": {"a": 2, "b": 1}}


def test_batch_that_fails_changes_nothing() -> None:
    """Catches state of a batch that a query would run again."""
    harness = KeyedHarness(Visits(), "user", time_mode="ProcessingTime")
    harness.batch(visits("a"), at_ms=1_000)
    shown = [{name: harness.state(name) for name in ("count", "pages", "last")}, harness.timers()]

    with pytest.raises(InvalidArgumentError, match="does not fit"):
        harness.batch([*visits("b"), Row(user="ann", page=7)], at_ms=2_000)

    assert harness.at_ms == 1_000
    again = [{name: harness.state(name) for name in ("count", "pages", "last")}, harness.timers()]
    assert again == shown


class Appends(keyed.RichFlatMapFunction):
    """Counts the rows of a key, in a handle that `open` appends to a list."""

    def __init__(self, handles: list[Any]) -> None:
        self.handles = handles

    def open(self, runtime: Any) -> None:
        self.handles.append(runtime.get_state(keyed.ValueStateDescriptor("count", int)))

    def flat_map(self, value: Any) -> Iterator[int]:
        count = (self.handles[0].value() or 0) + 1
        self.handles[0].update(count)
        yield count


def test_function_is_not_changed_by_the_look_at_its_states() -> None:
    """Catches a handle of the driver in a list of the function: of all keys, and never written."""
    function = Appends([])
    harness = KeyedHarness(function, "key")

    returned = [harness.batch([Row(key=1), Row(key=2)]) for _ in range(2)]

    assert returned == [[Row(value=1), Row(value=1)], [Row(value=2), Row(value=2)]]
    assert function.handles == []


def test_function_need_not_be_copied_where_it_can_be_pickled() -> None:
    """Catches a query that does not start for a field which is no part of its state."""

    class OfNames(keyed.RichFlatMapFunction):
        def __init__(self) -> None:
            self.known = dict.fromkeys([1]).keys()  # cloudpickle takes it, and `deepcopy` does not

        def open(self, runtime: Any) -> None:
            self.count = runtime.get_state(keyed.ValueStateDescriptor("count", int))

        def flat_map(self, value: Any) -> Iterator[bool]:
            self.count.update(1)
            yield value.key in self.known

    harness = KeyedHarness(OfNames(), "key")

    assert harness.batch([Row(key=1), Row(key=2)]) == [Row(value=True), Row(value=False)]


def test_refused_when_a_handle_is_that_of_the_driver() -> None:
    """Catches updates that are lost, in a list that the copies of a function share."""

    class OfClass(Appends):
        handles: list[Any] = []  # noqa: RUF012

        def __init__(self) -> None:
            pass

    harness = KeyedHarness(OfClass(), "key")

    with pytest.raises(InvalidArgumentError, match=r"state='count'. To fix: .*`open`"):
        harness.batch([Row(key=1)])


class Stateful(StatefulProcessor):
    """A processor as Spark's documentation writes one."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sum = handle.getValueState("sum", "total BIGINT, price DECIMAL(10,2), at TIMESTAMP")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N803
        total = self.sum.get()[0] if self.sum.exists() else 0
        for row in rows:
            total += row.value
            self.sum.update((total, row.price, row.at))
        yield Row(key=key[0], total=total)


def test_processor_of_spark_runs() -> None:
    """Catches a processor that is refused, or values that come back as Spark does not give them."""
    from decimal import Decimal

    harness = KeyedHarness(Stateful(), "key")
    at = datetime(2024, 1, 31, 12)  # noqa: DTZ001, of the local zone as in PySpark

    row = {"key": "a", "value": 3, "price": Decimal("1.005"), "at": at}
    assert harness.batch([row, row]) == [Row(key="a", total=6)]
    assert harness.state("sum") == {"a": (6, Decimal("1.01"), at)}


@pytest.mark.parametrize("value", ["3", 1 << 63, 3.0, True])
def test_refused_what_spark_would_keep_as_something_else(value: Any) -> None:
    """Catches NULL, or a number that wrapped around, in the state of a tested processor."""
    from decimal import Decimal

    class Keeps(Stateful):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N803
            for row in rows:
                self.sum.update((row.value, Decimal(1), None))
            yield from ()

    harness = KeyedHarness(Keeps(), "key")

    with pytest.raises(InvalidArgumentError, match="not of the type that the state keeps"):
        harness.batch([Row(key="a", value=value)])


class Returns(keyed.RichFlatMapFunction):
    """Returns what each row's function gives, which is handed over as it is."""

    def flat_map(self, value: Any) -> Any:
        yield value.gives()


@pytest.mark.parametrize("value", [(1, "x"), [1, "x"], {"b": "x", "a": 1}, Row(a=1, b="x")])
def test_row_of_columns_that_ddl_names_is_returned(value: Any) -> None:
    """Catches names of columns in place of their values."""
    harness = KeyedHarness(Returns(), "key", output="a INT, b STRING")

    assert harness.batch([Row(key=1, gives=lambda: value)]) == [Row(a=1, b="x")]
    assert harness.batch([Row(key=1, gives=lambda: {"b": "x"})]) == [Row(a=None, b="x")]


@pytest.mark.parametrize(
    "value",
    [{"a": 1, "c": 2}, "xy", 1, {1, 2}, (1,), [1, "x", 2], None, Row(a=1), Row(a=1, b="x", c=2)],
)
def test_refused_what_is_no_row_of_the_columns_that_ddl_names(value: Any) -> None:
    """Catches the characters of a text, or a part of a value, as the columns of a row."""
    harness = KeyedHarness(Returns(), "key", output="a INT, b STRING")

    with pytest.raises(InvalidArgumentError, match=r"output_of='Returns'.* a, b"):
        harness.batch([Row(key=1, gives=lambda: value)])


class Part(NamedTuple):
    """A struct."""

    x: int
    y: int


KINDS: list[tuple[Any, Any, Row]] = [
    ("a INT, b STRING", Row(b="x", a=1), Row(a=1, b="x")),
    (tuple[int, str], Row(_2="x", _1=1), Row(_1=1, _2="x")),
    (Part, Row(y=2, x=1), Row(x=1, y=2)),
    (int, Row(value=1), Row(value=1)),
    (tuple[Part], Row(_1=Row(y=2, x=1)), Row(_1={"x": 1, "y": 2})),
    (tuple[int, str], Row(1, "x"), Row(_1=1, _2="x")),
]


@pytest.mark.parametrize(("output", "given", "returned"), KINDS)
def test_row_of_spark_is_returned_by_its_names(output: Any, given: Row, returned: Row) -> None:
    """Catches values under each other's names, and a row that is refused for its order."""
    harness = KeyedHarness(Returns(), "key", output=output)

    found = harness.batch([Row(key=1, gives=lambda: given)])

    assert [row.asDict() for row in found] == [returned.asDict()]


@pytest.mark.parametrize(
    ("output", "given"),
    [
        (tuple[int, str], Row(b=1, a="x")),
        (tuple[int, str], Row(_1=1, _2="x", _3=3)),
        (tuple[int, str], Row(_1=1, _2=2)),
        (Part, Row(x=1, z=2)),
        (int, Row(total=1)),
        (tuple[Part], Row(_1=Row(x=1))),
    ],
)
def test_refused_a_row_of_spark_that_does_not_fit(output: Any, given: Row) -> None:
    """Catches NULL in place of a field of another name, and fields that are dropped."""
    harness = KeyedHarness(Returns(), "key", output=output)

    with pytest.raises(InvalidArgumentError, match=r"does not fit .*output_of='Returns'"):
        harness.batch([Row(key=1, gives=lambda: given)])


class Sets(StatefulProcessor):
    """Sets and deletes timers by Spark's handle."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N803
        for row in rows:
            getattr(self.handle, f"{row.does}Timer")(row.at_ms)
        yield from ()


class SetsOurs(keyed.KeyedProcessFunction):
    """Sets and deletes timers by ours."""

    def process_element(self, value: Any, context: Any) -> Iterator[int]:
        getattr(context.timer_service(), f"{value.does}_event_time_timer")(value.at_ms)
        yield from ()


@pytest.mark.parametrize("at_ms", [1.5, 1 << 63, -(1 << 63) - 1])
@pytest.mark.parametrize("does", ["register", "delete"])
@pytest.mark.parametrize("function", [Sets(), SetsOurs()])
def test_refused_when_a_timer_is_at_no_whole_number_of_64_bits(
    function: Any, does: str, at_ms: Any
) -> None:
    """Catches a time that passes its test, and ends every batch of the query."""
    harness = KeyedHarness(function, "key", time_mode="EventTime")
    harness.batch([Row(key=1, does="register", at_ms=np.int64(5))])
    assert repr(harness.timers()) == "{(5, 1)}"

    with pytest.raises(InvalidArgumentError, match=rf"timestamp={at_ms}\. To fix: .*int"):
        harness.batch([Row(key=1, does=does, at_ms=at_ms)])


class EndsQuery(StatefulProcessor):
    """Does what ends a query on Spark."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.list = handle.getListState("list", "value INT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N803
        for row in rows:
            if row.does == "register":
                self.handle.registerTimer(5)
            elif row.does == "return":
                return None
            else:
                getattr(self.list, row.does)([])
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:  # noqa: N803
        return None


@pytest.mark.parametrize("does", ["put", "appendList"])
def test_refused_when_a_processor_writes_an_empty_list(does: str) -> None:
    """Catches a processor that passes its test, and whose query Spark ends."""
    harness = KeyedHarness(EndsQuery(), "key")

    with pytest.raises(InvalidArgumentError, match=r"empty list.*state='list'\. To fix: .*clear"):
        harness.batch([Row(key=1, does=does)])


def test_refused_when_a_processor_returns_no_iterator() -> None:
    """Catches a processor that passes its test, and whose query Spark ends."""
    harness = KeyedHarness(EndsQuery(), "key", time_mode="EventTime")
    harness.batch([Row(key=1, does="register")])

    with pytest.raises(InvalidArgumentError, match=r"returned=None\. To fix: .*iter"):
        harness.batch([Row(key=1, does="return")])
    with pytest.raises(InvalidArgumentError, match=r"returned=None\. To fix: .*iter"):
        harness.batch(watermark_ms=5)


def test_time_in_a_key_has_a_zone_in_rows_and_none_in_timers() -> None:
    """Catches a comparison of times that ends the query at its first timer."""

    class ShowsKey(keyed.KeyedProcessFunction):
        def process_element(self, value: Any, context: Any) -> Iterator[str]:
            context.timer_service().register_event_time_timer(5)
            yield repr(context.get_current_key())

        def on_timer(self, timestamp: int, context: Any) -> Iterator[str]:
            yield repr(context.get_current_key())

    harness = KeyedHarness(ShowsKey(), "key", time_mode="EventTime")
    at = datetime(2024, 1, 31, 12, tzinfo=UTC)
    local = at.astimezone().replace(tzinfo=None)

    assert harness.batch([Row(key=at)]) == [Row(value=repr(at))]
    assert harness.batch(watermark_ms=5) == [Row(value=repr(local))]


class ShowsRow(keyed.RichFlatMapFunction):
    """Shows each row."""

    def flat_map(self, value: Any) -> Iterator[str]:
        yield repr(value)


def test_row_within_a_row_is_what_spark_makes_of_it() -> None:
    """Catches a function that takes a struct or a map as Spark does not hand it over."""
    row = Row(
        key=1,
        struct=Row(a=1, of=[Row(c=2)]),
        map={"x": Row(c=3), "y": None},
        of_structs={Row(k=1): {"q": 1}},
        maps=[{"z": 1}],
        array=[1, None],
    )
    seen = Row(
        key=1,
        struct={"a": 1, "of": [{"c": 2}]},
        map=[("x", {"c": 3}), ("y", None)],
        of_structs=[({"k": 1}, [("q", 1)])],
        maps=[[("z", 1)]],
        array=[1, None],
    )
    harness = KeyedHarness(ShowsRow(), "key")

    assert harness.batch([row, row.asDict()]) == [Row(value=repr(seen))] * 2


@pytest.mark.parametrize("time_mode", ["None", "ProcessingTime", "EventTime"])
def test_rows_that_are_late_are_dropped(time_mode: Any) -> None:
    """Catches a row that Spark drops: by the watermark of the batch before, not by its own.

    By event time only: the other time modes have no watermark.
    """

    class Counts(keyed.RichFlatMapFunction):
        def open(self, runtime: Any) -> None:
            self.count = runtime.get_state(keyed.ValueStateDescriptor("count", int))

        def flat_map(self, value: Any) -> Iterator[int]:
            self.count.update((self.count.value() or 0) + 1)
            yield self.count.value()

    def row(second: int | None) -> Row:
        return Row(key=1, at=None if second is None else datetime.fromtimestamp(second))  # noqa: DTZ006

    harness = KeyedHarness(Counts(), "key", time_mode=time_mode, event_time="at")

    assert len(harness.batch([row(5), row(None)], watermark_ms=10_000)) == 2
    assert len(harness.batch([row(10), row(11)])) == (1 if time_mode == "EventTime" else 2)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: KeyedHarness(Visits(), "user", time_mode="Later"),
            "time_mode='Later'. To fix: use one of None, ",
        ),  # type: ignore[arg-type]
        (lambda: KeyedHarness(Visits(), "user"), "needs the time mode ProcessingTime"),
        (lambda: KeyedHarness(object(), "user"), "not an instance of a class of functions"),  # type: ignore[arg-type]
        (lambda: KeyedHarness(dict, "user"), "function='dict'. To fix: give an instance"),  # type: ignore[arg-type]
        (
            lambda: KeyedHarness(lambda row: (row.n,), "user", output="n INT"),  # type: ignore[arg-type]
            "function='<lambda>'. To fix: give an instance",
        ),
        (
            lambda: KeyedHarness(CountWindowAverage, "user", output="n INT"),  # type: ignore[arg-type]
            "function='CountWindowAverage'. To fix: give an instance",
        ),
        (lambda: KeyedHarness(Visits(), "user", state="/ck"), "state='/ck'. To fix: give"),  # type: ignore[arg-type]
        (
            lambda: harness_of_visits().batch([Row(page="a")]),
            "lacks a column: column='user', row=.* all columns",
        ),
        (lambda: harness_of_visits().state("count"), "no state has the name"),
        (lambda: harness_of_visits().batch(at_ms=-1), "does not go back"),
        (lambda: harness_of_visits().batch(at_ms=1.5), "at_ms=1.5, .* a whole number"),  # type: ignore[arg-type]
        (lambda: harness_of_visits().batch(at_ms="5"), "at_ms='5', .* a whole number"),  # type: ignore[arg-type]
        (lambda: harness_of_visits().batch(Row(user=1)), "neither a Row nor a dict: row=1"),
        (lambda: harness_of_visits().batch([("a", 1)]), "neither a Row nor a dict: row=.'a', 1"),  # type: ignore[list-item]
        (lambda: harness_of_visits().batch([{"user": {"a": 1}}]), "groups by no map"),
        (
            lambda: harness_of_events().batch([Row(key=1, at="10:00")]),
            "is not a datetime: column='at'",
        ),
    ],
)
def test_refused_by_name(call: Any, match: str) -> None:
    """Catches an error from the inside for what a test got wrong."""
    with pytest.raises(InvalidArgumentError, match=match):
        call()


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        (bytearray(b"a"), b"a"),
        ([1, None], (1, None)),
        (Row(name="a", of=[bytearray(b"b")]), ("a", (b"b",))),
        (None, None),
    ],
)
def test_state_of_a_key_of_any_type_is_shown(user: Any, shown: Any) -> None:
    """Catches a key by which Spark groups, and that no dict of a test can have."""
    harness = harness_of_visits()

    harness.batch([{"user": user, "page": "a"}, {"user": user, "page": "b"}], at_ms=1_000)

    assert harness.state("count") == {shown: 2}
    assert {of for _, of in harness.timers()} <= {shown}


@dataclass
class Place:
    """A struct that cannot be hashed."""

    x: int
    y: int


PLACES: list[tuple[Any, Any, Any]] = [
    (Place, Place(1, 2), (1, 2)),
    (list[Place], [Place(1, 2)], ((1, 2),)),
    (list[int], [1, 2], (1, 2)),
    (tuple[Place, int], (Place(1, 2), 3), ((1, 2), 3)),
    (Part, Part(1, 2), Part(1, 2)),
]


@pytest.mark.parametrize(("kind", "key", "shown"), PLACES)
def test_map_with_keys_of_any_type_is_shown(kind: Any, key: Any, shown: Any) -> None:
    """Catches a key of a map that Spark keeps, and that no dict of a test can have."""

    class Puts(keyed.RichFlatMapFunction):
        def open(self, runtime: Any) -> None:
            self.map = runtime.get_map_state(keyed.MapStateDescriptor("map", kind, int))

        def flat_map(self, value: Any) -> Iterator[int]:
            self.map.put(key, 7)
            yield self.map.get(key)

    harness = KeyedHarness(Puts(), "key")

    assert harness.batch([Row(key=1)]) == [Row(value=7)]
    assert harness.state("map") == {1: {shown: 7}}


def test_map_of_a_processor_with_arrays_for_keys_is_shown() -> None:
    """Catches a key of a map that Spark keeps, and that no dict of a test can have."""

    class Puts(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.map = handle.getMapState("map", "key ARRAY<INT>", "value INT")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N803
            self.map.updateValue(([1, 2],), (7,))
            return iter([])

    harness = KeyedHarness(Puts(), "key")
    harness.batch([Row(key=1)])

    assert harness.state("map") == {1: {((1, 2),): (7,)}}


def harness_of_events() -> KeyedHarness:
    return KeyedHarness(CountWindowAverage(), "key", time_mode="EventTime", event_time="at")


def harness_of_visits() -> KeyedHarness:
    return KeyedHarness(Visits(), "user", time_mode="ProcessingTime")


class Keeps(keyed.RichFlatMapFunction):
    """Keeps the value of a row that has one, and returns what it has."""

    def __init__(self, ttl_hours: float | None) -> None:
        self.ttl = ttl_hours and keyed.StateTtlConfig(timedelta(hours=ttl_hours))

    def open(self, runtime: Any) -> None:
        self.kept = runtime.get_state(keyed.ValueStateDescriptor("kept", int, ttl=self.ttl))

    def flat_map(self, value: Any) -> Iterator[int | None]:
        if value.value:
            self.kept.update(value.value)
        yield self.kept.value()


def test_entry_keeps_its_end_when_the_time_to_live_is_another() -> None:
    """Catches state that lives shorter or longer than Spark, which keeps the end, has it live."""
    harness = KeyedHarness(Keeps(2), "key", time_mode="ProcessingTime")
    harness.batch([Row(key=1, value=7)], at_ms=0)

    harness.restart(Keeps(1))
    lives = harness.batch([Row(key=1, value=None)], at_ms=2 * HOUR_MS - 1)
    harness.restart(Keeps(3))
    ended = harness.batch([Row(key=1, value=None)], at_ms=2 * HOUR_MS)

    assert lives + ended == [Row(value=7), Row(value=None)]


@pytest.mark.parametrize("hours", [(None, 1), (1, None)])
@pytest.mark.parametrize("is_stored", [False, True])
def test_refused_when_a_time_to_live_is_added_or_removed(hours: Any, is_stored: bool) -> None:
    """Catches an upgrade that passes its test, and whose values Spark refuses to read."""
    before, after = map(Keeps, hours)
    if is_stored:
        value = {"value": 7} if before.ttl is None else {"value": {"value": 7}, **ENDS}
        state: Any = Stored({"kept": [{"key": {"key": 1}, "value": value}]})
        harness = KeyedHarness(after, "key", time_mode="ProcessingTime", state=state)
    else:
        harness = KeyedHarness(before, "key", time_mode="ProcessingTime")
        harness.batch([Row(key=1, value=7)], at_ms=1)
        harness.restart(after)

    with pytest.raises(InvalidArgumentError, match=r"time to live.*state='kept'"):
        harness.batch([Row(key=1, value=None)], at_ms=2)


class Stored:
    """Rows of a checkpoint, by address."""

    def __init__(self, rows: dict[str, Any]) -> None:
        self._rows = rows

    def rows(self, name: str) -> Any:
        rows = self._rows.get(name, [])
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
        return SimpleNamespace(read=lambda: table)


class Kept(keyed.RichFlatMapFunction):
    """Has one state, and does nothing with it."""

    def __init__(self, descriptor: Any, get: str) -> None:
        self.descriptor, self.get = descriptor, get

    def open(self, runtime: Any) -> None:
        getattr(runtime, self.get)(self.descriptor)

    def flat_map(self, value: Any) -> Iterator[int]:
        yield from ()


TIMES = pa.struct({"at": pa.timestamp("us"), "zoned": pa.timestamp("us", "UTC")})
PAIR = pa.struct({"a": pa.int64(), "b": pa.int32()})


@pytest.mark.parametrize(
    ("types", "get", "fits"),
    [
        (["a BIGINT, b INT"], "get_state", True),
        (["x BIGINT, y INT"], "get_state", True),  # Spark compares no names
        (["a BIGINT"], "get_state", False),
        (["a BIGINT, b INT, c INT"], "get_state", False),
        (["a INT, b INT"], "get_state", False),
        (["a BIGINT, b BIGINT"], "get_state", False),
        (["a BIGINT, b STRING"], "get_state", False),
        (["a BIGINT, b TIMESTAMP_NTZ"], "get_state", False),
        (["a BIGINT, b INT"], "get_list_state", True),
        (["value STRING", "a BIGINT, b INT"], "get_map_state", False),
    ],
)
def test_state_of_a_checkpoint_is_taken_as_it_was_written(types: Any, get: str, fits: bool) -> None:
    """Catches an upgrade that passes its test on a checkpoint, and that Spark then refuses.

    But for a value that becomes a list: rows do not tell which it was.
    """
    kinds = {
        "get_state": keyed.ValueStateDescriptor,
        "get_list_state": keyed.ListStateDescriptor,
        "get_map_state": keyed.MapStateDescriptor,
    }
    schema = pa.schema({"key": pa.struct({"key": pa.int64()}), "value": PAIR})
    row = {"key": {"key": 1}, "value": {"a": 7, "b": 8}}
    state = Stored({"kept": pa.Table.from_pylist([row], schema=schema)})
    harness = KeyedHarness(Kept(kinds[get]("kept", *types), get), "key", state=state)
    if fits:
        harness.batch([Row(key=1)])
        assert harness.state("kept") == {1: [(7, 8)] if get == "get_list_state" else (7, 8)}
        return
    with pytest.raises(InvalidArgumentError, match=r"another kind or type.*avro.*state='kept'"):
        harness.batch([Row(key=1)])


def test_times_of_a_checkpoint_have_a_zone_or_none() -> None:
    """Catches a state that is refused for a type that it has."""
    schema = pa.schema({"key": pa.struct({"key": pa.int64()}), "value": TIMES})
    at = datetime(2024, 1, 1)  # noqa: DTZ001
    row = {"key": {"key": 1}, "value": {"at": at, "zoned": at.replace(tzinfo=UTC)}}
    state = Stored({"kept": pa.Table.from_pylist([row], schema=schema)})
    descriptor = keyed.ValueStateDescriptor("kept", "at TIMESTAMP_NTZ, zoned TIMESTAMP")
    harness = KeyedHarness(Kept(descriptor, "get_state"), "key", state=state)

    harness.batch([Row(key=1)])

    assert harness.state("kept") == {1: (at, at.replace(tzinfo=UTC))}


def test_list_of_a_checkpoint_is_no_value() -> None:
    """Catches all elements but one lost in a test that passes."""
    rows = [{"key": {"key": 1}, "value": {"value": number}} for number in (1, 2)]
    descriptor = keyed.ValueStateDescriptor("kept", int)
    state = Stored({"kept": pa.Table.from_pylist(rows)})
    harness = KeyedHarness(Kept(descriptor, "get_state"), "key", state=state)

    with pytest.raises(InvalidArgumentError, match="another kind or type"):
        harness.batch([Row(key=1)])


def test_refused_when_a_state_has_another_type_than_before() -> None:
    """Catches an upgrade that passes its test and is refused by Spark."""

    class Other(Visits):
        def open(self, runtime: Any) -> None:
            day = keyed.StateTtlConfig(timedelta(days=1))
            self.count = runtime.get_state(keyed.ValueStateDescriptor("count", str, ttl=day))

    harness = harness_of_visits()
    harness.batch(visits("a"), at_ms=1_000)
    harness.restart(Other())

    with pytest.raises(InvalidArgumentError, match="another kind or type"):
        harness.batch(at_ms=2_000)


@pytest.mark.parametrize(
    ("time_mode", "known"), [("EventTime", 7), ("ProcessingTime", -1), ("None", -1)]
)
def test_watermark_is_that_of_event_time_alone(time_mode: Any, known: int) -> None:
    """Catches a function that takes another way on Spark, which has one in processing time too."""
    timers = TimerService(None, time_mode)
    timers.now = TimerValues(5, 7)

    assert timers.current_watermark() == known


class OfThatRelease(keyed.RichMapFunction):
    """A function with a field that another release cannot read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.truediv, (1, 0)

    def map(self, row: Row) -> int:
        return len(row)


def test_processor_of_another_release_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a worker's TypeError about whatever another release keeps in another way."""
    processor = keyed_processor(CountWindowAverage())
    same = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    assert same.columns.ddl == processor.columns.ddl
    processor._function = OfThatRelease()
    monkeypatch.setattr("statestore.keyed.processor.__version__", "0.0.9")
    there = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]

    with pytest.raises(ProtocolError, match="same wheel") as caught:
        cloudpickle.loads(there)

    assert caught.value.kind == "version-apart"
    found = caught.value.fields
    assert (found["release_there"], found["release_here"]) == ("0.0.9", __version__)
