"""Handles of state, timers and the current key, for functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.annotations import record_of, without_none
from statestore.keyed.columns import Columns, columns_of
from statestore.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from statestore.keyed.states import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)

TimeMode = Literal["None", "ProcessingTime", "EventTime"]
State = TypeVar("State")


class RuntimeContext:
    """Gives out the handles of a function's state, one for each name.

    Args:
        handle: Spark's handle of the task, or of the driver; None where the function is only asked
            for its states. Then every call of what is given out raises InvalidArgumentError.
        columns: How each state is kept, by name. A name that is missing is added: the driver
            finds them out, where the annotations can be read, and a task is given them.
        time_mode: The query's.
    """

    def __init__(
        self, handle: Any, columns: dict[str, tuple[Columns, ...]], time_mode: TimeMode
    ) -> None:
        self._handle = handle
        self._columns = columns
        self._time_mode = time_mode
        self._variables: dict[str, Any] = {}
        self._given: dict[str, tuple[StateDescriptor, Any]] = {}
        self._deleted: set[str] = set()
        self.flushes: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Go on to another instance of the function, whose handles are its own."""
        self._given.clear()
        self.flushes.clear()

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Return the handle of a value state.

        Raises:
            InvalidArgumentError: Another state has its name, or `delete_state` was given it; no
                type of Spark is its type, or not that of its default; it has a time to live, and
                the time mode is another one.
        """
        return self._give(descriptor, ValueState, "getValueState")

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """Return the handle of a list state; raises as `get_state`."""
        return self._give(descriptor, ListState, "getListState")

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Return the handle of a map state; raises as `get_state`."""
        return self._give(descriptor, MapState, "getMapState")

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Return the handle of a reducing state; raises as `get_state`."""
        return self._give(descriptor, ReducingState, "getValueState")

    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor
    ) -> AggregatingState[Any, Any]:
        """Return the handle of an aggregating state; raises as `get_state`."""
        return self._give(descriptor, AggregatingState, "getValueState")

    def delete_state(self, name: str) -> None:
        """Forget a state of all keys that the function had before, if there is one of the name.

        A `Checkpointed` function is opened again for each key: its task has deleted it by then.

        Raises:
            InvalidArgumentError: The function has taken a state of the name; it is as it was.
        """
        if name in self._given:
            raise _deleted_and_taken(name)
        if self._handle is not None and name not in self._deleted:
            self._handle.deleteIfExists(name)
        self._deleted.add(name)

    def _give(self, descriptor: StateDescriptor, kind: Callable[..., State], get: str) -> State:
        name = descriptor.name
        if name in self._deleted:
            raise _deleted_and_taken(name)
        if name in self._given:
            known, state = self._given[name]
            if self._is_same(known, descriptor):
                return state  # type: ignore[no-any-return]
            raise InvalidArgumentError(
                "two different states have the same name",
                to_fix="give each state of a function a name of its own",
                name=name,
            )
        if descriptor.ttl is not None and self._time_mode != "ProcessingTime":
            raise InvalidArgumentError(
                "a time to live needs the time mode ProcessingTime",
                to_fix="give process() time_mode='ProcessingTime'",
                state=name,
                time_mode=self._time_mode,
            )
        if name not in self._columns:
            of_map = isinstance(descriptor, MapStateDescriptor)
            if of_map or isinstance(descriptor, ListStateDescriptor):
                _require_not_none(descriptor)
            self._columns[name] = tuple(
                columns_of(each, is_key=of_map and place == 0, state=name)
                for place, each in enumerate(descriptor.types)
            )
        columns = self._columns[name]
        if self._handle is not None and name not in self._variables:
            ddls = [each.ddl for each in columns]
            ttl_ms = descriptor.ttl.ttl_ms if descriptor.ttl else None
            self._variables[name] = getattr(self._handle, get)(name, *ddls, ttl_ms)
        state = kind(self._variables.get(name), descriptor, *columns)
        if self._handle is None:
            _refuse_calls(state, name)
        self._given[name] = descriptor, state
        if hasattr(state, "flush"):
            self.flushes.append(state.flush)
        return state

    def _is_same(self, known: StateDescriptor, descriptor: StateDescriptor) -> bool:
        """Tell whether two descriptors are of one state. Functions that combine are not compared.

        Types are compared in the driver, where annotations can be read.
        """
        if known is descriptor:
            return True
        says = (
            (type(each), each.ttl, getattr(each, "default", None)) for each in (known, descriptor)
        )
        is_same = next(says) == next(says)
        return is_same and (self._handle is not None or known.types == descriptor.types)


def _require_not_none(descriptor: StateDescriptor) -> None:
    """Check that no row of several columns, of a list or map, may be None as a whole."""
    for kind in descriptor.types:
        inner = without_none(kind)
        if inner is not kind and record_of(inner) is not None:
            raise InvalidArgumentError(
                "an element of several fields cannot be None: they are its columns",
                to_fix="leave None out of the type; let a field of it be `T | None`",
                state=descriptor.name,
                type=kind,
            )


def _deleted_and_taken(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a state is deleted and taken: each task would empty it",
        to_fix="take it under another name, or do not delete it",
        state=name,
    )


def _refuse_calls(state: Any, name: str) -> None:
    """Have a handle without a state variable refuse every call; it would lose what it is given."""

    def refuse(*_: Any, **__: Any) -> None:
        raise InvalidArgumentError(
            "a state is used outside of a running task",
            to_fix="call it where rows are processed, and keep it in a field that `open` sets anew "
            "in every task",
            state=name,
        )

    for method in dir(state):
        if not method.startswith("_"):
            setattr(state, method, refuse)


class TimerService:
    """Timers of the current key, and the time. Milliseconds since 1970 throughout.

    Args:
        handle: Spark's handle of the task.
        time_mode: Of the query: its timers are all by that time.

    Attributes:
        now: Spark's times of the batch.
        key: The current one.
    """

    def __init__(self, handle: Any, time_mode: TimeMode) -> None:
        self._handle = handle
        self._time_mode = time_mode
        self._is_firing = False
        self._deleted: set[tuple[str, int]] = set()
        self.now: Any = None
        self.key: tuple[Any, ...] = ()

    def fire(self, timestamp: int) -> bool:
        """Return whether a timer that Spark found due is still there.

        Spark finds out which ones are due before it fires the first, which may delete another one.
        """
        self._is_firing = True
        return (repr(self.key), timestamp) not in self._deleted

    def current_watermark(self) -> int:
        """Return the watermark of the batch; -1 unless the time mode is EventTime.

        Spark has one in ProcessingTime, too, where the frame has: no row was dropped by it.
        """
        is_event_time = self._time_mode == "EventTime"
        return int(self.now.getCurrentWatermarkInMs()) if is_event_time else -1

    def current_processing_time(self) -> int:
        """Return when the batch began, the same for all its rows; -1 when the time mode is None."""
        return int(self.now.getCurrentProcessingTimeInMs())

    def register_event_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` in the first batch whose watermark has reached it.

        Raises:
            InvalidArgumentError: The time mode is another one, or the time no whole number of 64
                bits; no timer is changed. So do the three below.
        """
        self._register("EventTime", timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call `on_timer` in the first batch that begins at that time or later."""
        self._register("ProcessingTime", timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Forget the timer, if there is one."""
        self._delete("EventTime", timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Forget the timer, if there is one."""
        self._delete("ProcessingTime", timestamp)

    def _register(self, time_mode: TimeMode, timestamp: int) -> None:
        self._require(time_mode)
        timestamp = whole_ms(timestamp)
        self._handle.registerTimer(timestamp)
        self._deleted.discard((repr(self.key), timestamp))

    def _delete(self, time_mode: TimeMode, timestamp: int) -> None:
        self._require(time_mode)
        timestamp = whole_ms(timestamp)
        self._handle.deleteTimer(timestamp)
        if self._is_firing:
            self._deleted.add((repr(self.key), timestamp))

    def _require(self, time_mode: TimeMode) -> None:
        if self._time_mode != time_mode:
            raise InvalidArgumentError(
                "timers of this kind need another time mode of the query",
                to_fix=f"give process() time_mode={time_mode!r}",
                time_mode=self._time_mode,
            )


def whole_ms(timestamp: Any) -> int:
    """Return the time of a timer as an int.

    Raises:
        InvalidArgumentError: It is no whole number, or has more than 64 bits; Spark refuses it,
            too, by no name.
    """
    whole = None
    with suppress(TypeError):
        whole = operator.index(timestamp)
    if whole is None or not -1 << 63 <= whole < 1 << 63:
        raise InvalidArgumentError(
            "the time of a timer is not a whole number of milliseconds that fits 64 bits",
            to_fix="give int(timestamp), milliseconds since 1970",
            timestamp=timestamp,
        )
    return whole


class Context:
    """The current key and its timers, for a function with timers.

    Args:
        timers: The task's timers.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self._key: tuple[Any, ...] = ()

    def enter(self, key: tuple[Any, ...], now: Any) -> None:
        """Go on to a key."""
        self._key = key
        self._timers.now, self._timers.key = now, key

    def get_current_key(self) -> Any:
        """Return the key: its value where it is one column, else the tuple of its columns."""
        return self._key[0] if len(self._key) == 1 else tuple(self._key)

    def timer_service(self) -> TimerService:
        """Return the timers of the current key."""
        return self._timers
