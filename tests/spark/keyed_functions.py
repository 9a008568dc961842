"""Functions of keyed state for the tests, and handles of plain dicts to compare them with."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from statestore import keyed

from .harness import ROCKSDB, Query

# Workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

START_MS = 1_700_000_000_000
TIMER_MS = 60_000
KEYS = ("a", "bé", "c" * 40)


@dataclass(frozen=True)
class Part:
    """An element of a list."""

    value: int
    label: str | None


class Seen(NamedTuple):
    """A value of a field of every type."""

    count: int
    last: datetime | None
    price: Annotated[Decimal, "DECIMAL(18,2)"]
    data: bytes
    tags: list[str]
    ratio: float
    even: bool
    pairs: list[tuple[int, str]]
    parts: dict[str, Part | None]


@dataclass(frozen=True)
class Report:
    """A row that is returned: what the key has of each kind of state."""

    key: str
    what: str
    seen: str
    parts: list[Part]
    totals: list[tuple[int, str, int]]
    largest: int | None
    mean: float | None


def larger(left: int, right: int) -> int:
    """What a reducing state keeps."""
    return max(left, right)


class Mean(keyed.AggregateFunction[int, tuple[int, int], float]):
    """What an aggregating state keeps: count and sum."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[1] / accumulator[0]


class AllStates(keyed.KeyedProcessFunction):
    """Calls every method of every kind of state; timers by event time."""

    def __init__(self, ttl: keyed.StateTtlConfig | None = None, *, timers: bool = True) -> None:
        self.ttl = ttl
        self.timers = timers

    def open(self, runtime: keyed.RuntimeContext) -> None:
        nothing = Seen(0, None, Decimal(0), b"", [], 0.0, True, [], {})
        self.seen = runtime.get_state(
            keyed.ValueStateDescriptor("seen", Seen, nothing, ttl=self.ttl)
        )
        self.parts = runtime.get_list_state(keyed.ListStateDescriptor("parts", Part, ttl=self.ttl))
        self.totals = runtime.get_map_state(
            keyed.MapStateDescriptor("totals", tuple[int, str], int, ttl=self.ttl)
        )
        self.largest = runtime.get_reducing_state(
            keyed.ReducingStateDescriptor("largest", larger, ttl=self.ttl)
        )
        self.mean = runtime.get_aggregating_state(
            keyed.AggregatingStateDescriptor("mean", Mean(), ttl=self.ttl)
        )

    def process_element(self, value: Row, context: keyed.Context) -> Iterator[Report]:
        seen, number = self.seen.value(), value.value
        seen.tags.append("never stored")
        count = seen.count + 1
        if count > 5:
            for state in (self.seen, self.parts, self.totals, self.largest, self.mean):
                state.clear()
            yield self.report(context, "cleared")
            return
        at = datetime.fromtimestamp(value.at / 1000, UTC)
        price, data = seen.price + Decimal(number) / 4, number.to_bytes(2, "big")
        tags = [*self.seen.value().tags, str(number)]
        pairs, parts = [*seen.pairs, (number, "é")], {"last": Part(number, None), "none": None}
        ratio, even = number / 3, number % 2 == 0
        self.seen.update(Seen(count, at, price, data, tags, ratio, even, pairs, parts))
        if count % 4 == 0:
            self.parts.update(list(self.parts.get())[-2:])
        self.parts.add(Part(number, None if number % 5 == 0 else str(number)))
        if count == 2:
            self.parts.add_all([Part(number, "twice"), Part(-number, "")])
        at_rest = number % 3, "é"
        if self.totals.contains(at_rest) and number % 7 == 0:
            self.totals.remove(at_rest)
        else:
            self.totals.put(at_rest, (self.totals.get(at_rest) or 0) + number)
        self.totals.put_all({(9, "last"): number})
        self.largest.add(number)
        self.mean.add(number)
        if self.timers:
            timers = context.timer_service()
            timers.register_event_time_timer(value.at + TIMER_MS)
            timers.register_event_time_timer(value.at + TIMER_MS + 1)
            timers.delete_event_time_timer(value.at + TIMER_MS + 1)
        yield self.report(context, "seen")

    def on_timer(self, timestamp: int, context: keyed.Context) -> Iterator[Report]:
        self.parts.update([])
        self.largest.clear()
        yield self.report(context, f"timer {timestamp}")
        self.largest.add(timestamp % 1000)

    def report(self, context: keyed.Context, what: str) -> Report:
        items = sorted(self.totals.items())
        assert [key for key, _ in items] == sorted(self.totals.keys())
        assert sorted(total for _, total in items) == sorted(self.totals.values())
        assert self.totals.is_empty() == (not items)
        seen = self.seen.value()
        price, parts = seen.price.quantize(Decimal("0.01")), dict(sorted(seen.parts.items()))
        shown = seen._replace(price=price, parts=parts)
        return Report(
            context.get_current_key(),
            what,
            repr(shown),
            list(self.parts.get()),
            [(*key, total) for key, total in items],
            self.largest.get(),
            self.mean.get(),
        )


class Timed(keyed.KeyedProcessFunction):
    """State with a time to live: a positive value is written, zero only reads."""

    def __init__(self, ttl: keyed.StateTtlConfig) -> None:
        self.ttl = ttl

    def open(self, runtime: keyed.RuntimeContext) -> None:
        self.value = runtime.get_state(keyed.ValueStateDescriptor("value", int, ttl=self.ttl))
        self.list = runtime.get_list_state(keyed.ListStateDescriptor("list", int, ttl=self.ttl))
        self.map = runtime.get_map_state(keyed.MapStateDescriptor("map", int, int, ttl=self.ttl))

    def process_element(self, value: Row, context: keyed.Context) -> Iterator[tuple[str, str]]:
        if value.value:
            self.value.update(value.value)
            self.list.add(value.value)
            self.map.put(value.value, value.value)
            timers = context.timer_service()
            timers.register_processing_time_timer(timers.current_processing_time() + 40_000)
        else:
            shown = self.value.value(), list(self.list.get()), dict(self.map.items())
            yield context.get_current_key(), repr(shown)

    def on_timer(self, timestamp: int, context: keyed.Context) -> Iterator[tuple[str, str]]:
        yield context.get_current_key(), "timer"


class Fields(keyed.RichFlatMapFunction, keyed.Checkpointed):
    """A field that is state: all values of the key so far. It is forgotten when there are five.

    Beside it a state that is combined by the instance: the newest value and how many of the field.
    """

    def __init__(self) -> None:
        self.values: list[int] = []

    def open(self, runtime: keyed.RuntimeContext) -> None:
        self.newest = runtime.get_reducing_state(
            keyed.ReducingStateDescriptor(
                "newest", lambda _, new: (new[0], len(self.values)), tuple[int, int]
            )
        )

    def flat_map(self, value: Row) -> Iterator[tuple[str, str]]:
        self.values.append(value.value)
        self.newest.add((value.value, 1))
        yield value.key, repr((self.values, self.newest.get()))

    def snapshot_state(self, checkpoint_id: int, checkpoint_timestamp: int) -> list[int] | None:
        assert checkpoint_id >= 1
        assert checkpoint_timestamp == -1
        return None if len(self.values) > 4 else self.values

    def restore_state(self, state: list[int]) -> None:
        self.values = state


def total_so_far(value: Row, before: int | None) -> tuple[tuple[str, int], int | None]:
    """Return the sum of a key's values, for a map with state; begins anew beyond 100."""
    total = (before or 0) + value.value
    return (value.key, total), None if total > 100 else total


def odd_totals(value: Row, before: int | None) -> tuple[list[int], int]:
    """Return the sum twice where it is odd, for a flat map with state."""
    total = (before or 0) + value.value
    return [total] * 2 * (total % 2), total


def rows_of(batch: int, per_key: int = 2) -> list[dict[str, Any]]:
    """Return a file's rows: of each key some, a minute after those of the batch before."""
    return [
        {
            "key": key,
            "value": (batch * 37 + place * 11 + len(key) * 5) % 60,
            "at": START_MS + batch * 60_000 + place * 1000,
        }
        for place in range(per_key)
        for key in KEYS
    ]


def query_of(
    name: str,
    function: Any,
    plan: Sequence[Sequence[list[dict[str, Any]]]],
    time_mode: Any = "EventTime",
) -> Query:
    """Return the query of a process function, or of what makes a frame, over rows of `rows_of`."""

    def build(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
        events = streams["events"].withColumn("ts", sf.timestamp_millis("at"))
        groups = events.withWatermark("ts", "0 seconds").groupBy("key")
        if isinstance(function, keyed.KeyedProcessFunction):
            return keyed.process(groups, function, time_mode=time_mode)
        return function(groups)

    conf = {"spark.sql.streaming.noDataMicroBatches.enabled": str(time_mode == "EventTime").lower()}
    schemas = {"events": "key STRING, value LONG, at LONG"}
    files = [[{"events": rows} for rows in run] for run in plan]
    return Query(name, build, "append", schemas, files, conf, ROCKSDB)


class Plain:
    """All kinds of state of all keys, as dicts; runs a function over batches as Flink would."""

    def __init__(self, function: keyed.KeyedProcessFunction) -> None:
        self.key = ""
        self.timers: set[tuple[int, str]] = set()
        self.function = function
        self.states: dict[str, _PlainState] = {}
        function.open(self)  # type: ignore[arg-type]

    def run(self, rows: Sequence[Mapping[str, Any]], watermark_ms: int) -> list[Any]:
        """Return what a batch returns."""
        returned = []
        for row in rows:
            self.key = row["key"]
            returned += list(self.function.process_element(Row(**row), self) or ())  # type: ignore[arg-type]
        for at_ms, key in sorted(timer for timer in self.timers if timer[0] <= watermark_ms):
            self.key = key
            returned += list(self.function.on_timer(at_ms, self) or ())  # type: ignore[arg-type]
            self.timers.remove((at_ms, key))
        return returned

    def get_current_key(self) -> str:
        return self.key

    def timer_service(self) -> Plain:
        return self

    def register_event_time_timer(self, at_ms: int) -> None:
        self.timers.add((at_ms, self.key))

    def delete_event_time_timer(self, at_ms: int) -> None:
        self.timers.discard((at_ms, self.key))

    def get_state(self, descriptor: Any) -> _PlainState:
        return self.states.setdefault(descriptor.name, _PlainState(self, descriptor))

    get_list_state = get_map_state = get_reducing_state = get_aggregating_state = get_state


class _PlainState:
    """A state of any kind: what the current key has is an entry of a dict."""

    def __init__(self, plain: Plain, descriptor: Any) -> None:
        self.plain = plain
        self.descriptor = descriptor
        self.of_keys: dict[str, Any] = defaultdict(lambda: None)

    @property
    def held(self) -> Any:
        return self.of_keys[self.plain.key]

    def value(self) -> Any:
        return deepcopy(self.descriptor.default if self.held is None else self.held)

    def clear(self) -> None:
        self.of_keys.pop(self.plain.key, None)

    def update(self, value: Any) -> None:
        self.of_keys[self.plain.key] = deepcopy(value)

    def add(self, value: Any) -> None:
        held, combine = self.held, getattr(self.descriptor, "aggregate", None)
        if isinstance(self.descriptor, keyed.ListStateDescriptor):
            self.update([*(held or []), value])
        elif combine is not None:
            self.update(combine.add(value, combine.create_accumulator() if held is None else held))
        else:
            self.update(value if held is None else self.descriptor.reduce(held, value))

    def add_all(self, values: Sequence[Any]) -> None:
        self.update([*(self.held or []), *values])

    def get(self, *key: Any) -> Any:
        if key:
            return (self.held or {}).get(*key)
        if isinstance(self.descriptor, keyed.ListStateDescriptor):
            return iter(self.held or [])
        combine = getattr(self.descriptor, "aggregate", None)
        return self.held if combine is None or self.held is None else combine.get_result(self.held)

    def put(self, key: Any, value: Any) -> None:
        self.update({**(self.held or {}), key: value})

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        self.update({**(self.held or {}), **entries})

    def remove(self, key: Any) -> None:
        self.update({each: value for each, value in (self.held or {}).items() if each != key})

    def contains(self, key: Any) -> bool:
        return key in (self.held or {})

    def items(self) -> Any:
        return (self.held or {}).items()

    def keys(self) -> Any:
        return (self.held or {}).keys()

    def values(self) -> Any:
        return (self.held or {}).values()

    def is_empty(self) -> bool:
        return not self.held
