"""A function of keyed state that does what it is told: calls of its states, row by row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pyspark import TaskContext

from statestore import keyed
from statestore.core.errors import InvalidArgumentError
from tests.keyed.kinds import Given, show

START_MS = 1_700_000_000_000
TICK_MS = 5_000
"""Timers are due at multiples of it."""
PLANNED = "planned to fail"


class State(NamedTuple):
    """A state of a program."""

    name: str
    what: str
    kind: Any
    key_kind: Any
    default: Given | None
    ttl: keyed.StateTtlConfig | None

    def take(self, runtime: Any, which: int) -> Any:
        """Return the handle: of what is given (0), or of the model (1)."""
        kind = getattr(self.kind, "text", self.kind)
        if self.what == "value":
            default = None if self.default is None else self.default[which]
            return runtime.get_state(
                keyed.ValueStateDescriptor(self.name, kind, default, ttl=self.ttl)
            )
        if self.what == "list":
            return runtime.get_list_state(keyed.ListStateDescriptor(self.name, kind, ttl=self.ttl))
        if self.what == "map":
            return runtime.get_map_state(
                keyed.MapStateDescriptor(self.name, self.key_kind, kind, ttl=self.ttl)
            )
        if self.what == "reducing":
            return runtime.get_reducing_state(
                keyed.ReducingStateDescriptor(
                    self.name, lambda a, b: max(a, b, key=show), kind, ttl=self.ttl
                )
            )
        return runtime.get_aggregating_state(
            keyed.AggregatingStateDescriptor(
                self.name,
                Newest(),
                tuple[int, list[kind]],
                ttl=self.ttl,  # type: ignore[valid-type]
            )
        )


class Newest(keyed.AggregateFunction[Any, Any, str]):
    """Count, and the newest two values."""

    def create_accumulator(self) -> Any:
        return 0, []

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, [*accumulator[1][-1:], value]

    def get_result(self, accumulator: Any) -> str:
        return show(accumulator)


class Call(NamedTuple):
    """A method of a state with its arguments, as they are given and as they come back.

    Of a timer `state` is when it is due: so many ms after the time, or after the one that fired.
    """

    state: int
    method: str
    arguments: tuple[Given, ...] = ()


class Program(keyed.KeyedProcessFunction):
    """Calls what each row says, and returns what it got as text.

    Args:
        states: Its states.
        calls: What a step calls.
        on_timers: What a timer calls, in turn.
        time_mode: The query's.
        which: 0 on Spark, 1 in the model.
        taken: Numbers of the states that it has now; it deletes the others.
        fails_at: Files, by step: before its last call the step fails on Spark, and makes its file;
            where that is there it does not.
        plant: Plants a bug in a worker of Spark.
    """

    def __init__(
        self,
        states: list[State],
        calls: list[list[Call]],
        on_timers: list[list[Call]],
        time_mode: str,
        which: int,
        taken: Collection[int],
        fails_at: dict[int, str],
        plant: Callable[[], None] | None,
    ) -> None:
        self.states, self.calls, self.on_timers = states, calls, on_timers
        self.time_mode, self.which = time_mode, which
        self.taken, self.fails_at = taken, fails_at
        self.plant = plant

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        """Return a copy; what it is told is long, and never changed."""
        return copy(self)

    def open(self, runtime: Any) -> None:
        if self.plant is not None and TaskContext.get() is not None:
            self.plant()
        self.handles = {n: self.states[n].take(runtime, self.which) for n in self.taken}
        for number, state in enumerate(self.states):
            if number not in self.taken:
                runtime.delete_state(state.name)

    def process_element(self, value: Any, context: Any) -> Iterator[tuple[str, str]]:
        calls = self.calls[value.step]
        for number, call in enumerate(calls):
            if number == len(calls) - 1:
                self.fail(value.step)
            text = self.perform(call, context)
            yield show(context.get_current_key()), f"{value.step}.{number} {call.method} {text}"

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[str, str]]:
        place = timestamp // TICK_MS % len(self.on_timers)
        for number, call in enumerate(self.on_timers[place]):
            text = self.perform(call, context, timestamp)
            yield show(context.get_current_key()), f"{timestamp}.{number} {call.method} {text}"

    def fail(self, step: int) -> None:
        """Fail where it is planned, once."""
        file = Path(self.fails_at.get(step, ""))
        if self.which == 0 and step in self.fails_at and not file.exists():
            file.touch()
            raise RuntimeError(PLANNED)

    def perform(self, call: Call, context: Any, fired_ms: int | None = None) -> str:
        """Call a method, and return what it returned."""
        if call.method in ("register", "delete"):
            return self.set_timer(call, context, fired_ms)
        if call.state not in self.handles:
            return "not taken"
        handle, method = self.handles[call.state], call.method
        arguments = [each[self.which] for each in call.arguments]
        if method == "misfit":
            return self.refuse(handle, arguments)
        if method == "update_by_itself":
            return show(handle.update(each for each in self.lazily(handle.get)))
        if method == "add_itself":
            return show(handle.add_all(islice(self.lazily(handle.get), 1)))
        if method == "get_twice":
            return show(list(zip(handle.get(), handle.get(), strict=True)))
        if method == "get_and_clear":
            elements = handle.get()
            handle.clear()
            return show(list(elements))
        if method == "items_and_clear":
            read = handle.items(), handle.keys(), handle.values()
            handle.clear()
            return show([sorted(map(show, each)) for each in read])
        if method == "get_first":
            return show(next(handle.get(), None))
        if method == "is_any":
            return show(next(handle.keys(), None) is not None)
        if method == "items_by_part":
            pairs = zip(handle.keys(), handle.values(), strict=True)
            return show(sorted(map(show, pairs)))
        if method == "put_itself":
            for key, value in handle.items():
                handle.put(key, value)
            return ""
        if method == "remove_some":
            removed = 0
            for key in handle.keys():  # noqa: SIM118
                if len(show(key)) % 2:
                    handle.remove(key)
                    removed += 1
            return str(removed)
        returned = getattr(handle, method)(*arguments)
        if isinstance(returned, Iterator):
            returned = list(returned)
            text = show(returned)
            if method != "get":
                text = show(sorted(map(show, returned)))
        else:
            text = show(returned)
        _spoil(returned)
        return text

    def lazily(self, read: Any) -> Iterator[Any]:
        """Yield what is there when it is asked for."""
        yield from read()

    def refuse(self, handle: Any, arguments: list[Any]) -> str:
        """Give what does not fit."""
        if self.which == 1:
            return "refused"
        method, *given = arguments
        try:
            getattr(handle, method)(*given)
        except InvalidArgumentError as error:
            return "refused" if "state" in error.fields else str(error)
        return "taken"

    def set_timer(self, call: Call, context: Any, fired_ms: int | None) -> str:
        """Register or delete a timer, which may be due by now."""
        timers, is_by_event = context.timer_service(), self.time_mode == "EventTime"
        now = timers.current_watermark() if is_by_event else timers.current_processing_time()
        after_ms = max(now, START_MS if is_by_event else 0) if fired_ms is None else fired_ms
        at_ms = after_ms // TICK_MS * TICK_MS + call.state
        of_time = "event_time" if is_by_event else "processing_time"
        getattr(timers, f"{call.method}_{of_time}_timer")(at_ms)
        return ""


class FieldsProgram(Program, keyed.Checkpointed):
    """A program with fields that are state: the steps of the key, forgotten when there are six."""

    steps: list[int] = []  # noqa: RUF012

    def process_element(self, value: Any, context: Any) -> Iterator[tuple[str, str]]:
        self.steps = [*self.steps, value.step]
        yield show(context.get_current_key()), show(self.steps)
        yield from super().process_element(value, context)

    def snapshot_state(self, checkpoint_id: int, checkpoint_timestamp: int) -> list[int] | None:
        return None if len(self.steps) > 5 else self.steps

    def restore_state(self, state: Any) -> None:
        self.steps = state or []


def _spoil(value: Any) -> None:
    """Change what a handle returned, which is a copy."""
    if isinstance(value, list):
        for each in value:
            _spoil(each)
        value.append("spoiled")
    elif isinstance(value, dict):
        value.clear()
    elif isinstance(value, tuple):
        for each in value:
            _spoil(each)
