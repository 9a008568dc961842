"""Handles are given out by name, and what the driver can know is refused there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from statestore import keyed
from statestore.core.errors import InvalidArgumentError
from statestore.keyed.runtime import Context, RuntimeContext, TimerService

HOUR = keyed.StateTtlConfig(timedelta(hours=1))


def reducing(kind: Any = int, ttl: Any = None) -> keyed.ReducingStateDescriptor:
    """A descriptor as `open` makes one: its function is equal to no other."""
    return keyed.ReducingStateDescriptor("sum", lambda left, right: left + right, kind, ttl=ttl)


def test_one_state_when_its_descriptor_is_made_twice() -> None:
    """Catches a reducing state that is refused for a function that is another object."""
    runtime = RuntimeContext(None, {}, "None")

    assert runtime.get_reducing_state(reducing()) is runtime.get_reducing_state(reducing())


def test_instances_of_a_function_have_handles_of_their_own() -> None:
    """Catches a state that is refused to the next key's instance, or combined by the last one's."""
    runtime = RuntimeContext(Variable(), {}, "None")
    runtime.get_reducing_state(reducing())

    runtime.begin()
    product = keyed.ReducingStateDescriptor("sum", lambda left, right: left * right, int)
    state = runtime.get_reducing_state(product)

    state.add(3)
    state.add(5)
    assert state.get() == 15
    assert len(runtime.flushes) == 1


def test_state_is_deleted_once_for_all_instances_of_a_function() -> None:
    """Catches a state that is deleted again at the next key, when Spark takes that no longer."""
    deleted: list[str] = []
    runtime = RuntimeContext(SimpleNamespace(deleteIfExists=deleted.append), {}, "None")
    runtime.delete_state("sum")

    runtime.begin()
    runtime.delete_state("sum")

    assert deleted == ["sum"]


@pytest.mark.parametrize(
    "other",
    [
        reducing(float),
        reducing(ttl=HOUR),
        keyed.ValueStateDescriptor("sum", int),
    ],
)
def test_refused_when_two_states_have_one_name(other: Any) -> None:
    """Catches a state that is read as another type, or lives as long as another one."""
    runtime = RuntimeContext(None, {}, "ProcessingTime")
    runtime.get_reducing_state(reducing())

    with pytest.raises(InvalidArgumentError, match="two states of one name"):
        runtime.get_state(other)


@pytest.mark.parametrize("time_mode", ["None", "EventTime"])
def test_refused_when_a_time_to_live_has_no_processing_time(time_mode: Any) -> None:
    """Catches a query that fails in its tasks for what its program says."""
    runtime = RuntimeContext(None, {}, time_mode)

    with pytest.raises(InvalidArgumentError, match="by processing time") as refused:
        runtime.get_reducing_state(reducing(ttl=HOUR))

    assert refused.value.fields == {"state": "sum", "time_mode": time_mode}


def test_refused_when_a_default_is_of_another_type() -> None:
    """Catches a program that fails at its first key without a value."""
    runtime = RuntimeContext(None, {}, "None")

    with pytest.raises(InvalidArgumentError, match="does not fit") as refused:
        runtime.get_state(keyed.ValueStateDescriptor("sum", int, default="0"))

    assert refused.value.fields["state"] == "sum"


class Variable:
    """A variable of Spark of one list, and the handle that it is had from."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.get = lambda: iter([*self.rows])
        self.put = lambda rows: self.rows.__setitem__(slice(None), rows)
        self.appendList = lambda rows: self.rows.extend(rows)
        self.clear = lambda: self.rows.clear()

    def getListState(self, name: str, ddl: str, ttl_ms: int | None) -> Variable:
        return self

    def getValueState(self, name: str, ddl: str, ttl_ms: int | None) -> Any:
        return SimpleNamespace(
            get=lambda: self.rows[-1] if self.rows else None, update=self.rows.append
        )


def list_of(*elements: int) -> tuple[Variable, keyed.ListState[int]]:
    """A list state with elements, the last of which are not written yet."""
    variable = Variable()
    state = RuntimeContext(variable, {}, "None").get_list_state(
        keyed.ListStateDescriptor("list", int)
    )
    state.add_all(elements)
    return variable, state


def lazily(state: keyed.ListState[int]) -> Iterator[int]:
    """Yield the elements that there are when the first one is asked for."""
    yield from state.get()


def test_list_is_what_it_is_replaced_by_when_that_reads_it() -> None:
    """Catches elements that are lost because they were appended in the same batch."""
    variable, state = list_of(1, 2, 3)

    state.update(each for each in lazily(state) if each > 1)

    assert variable.rows == [(2,), (3,)]


def test_list_is_extended_once_when_that_reads_it() -> None:
    """Catches elements that are written twice."""
    variable, state = list_of(1, 2)

    state.add_all(each + 2 for each in lazily(state))
    state.flush()

    assert variable.rows == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("method", ["add_all", "update"])
def test_list_is_as_it_was_when_an_element_is_refused(method: str) -> None:
    """Catches a part of what was refused."""
    variable, state = list_of(1, 2)
    refused: Any = [3, "4"]

    with pytest.raises(InvalidArgumentError):
        getattr(state, method)(refused)

    state.flush()
    assert variable.rows == [(1,), (2,)]


@pytest.mark.parametrize("refused", ["4", None])
def test_time_to_live_does_not_begin_anew_when_an_addition_is_refused(refused: Any) -> None:
    """Catches state that lives on because somebody tried to add what does not fit."""
    variable = Variable()
    variable.rows = [(3,)]
    ttl = keyed.StateTtlConfig(timedelta(hours=1), "OnReadAndWrite")
    state = RuntimeContext(variable, {}, "ProcessingTime").get_reducing_state(reducing(ttl=ttl))

    with pytest.raises(InvalidArgumentError):
        state.add(refused)
    state.flush()

    assert variable.rows == [(3,)]
    assert state.get() == 3
    state.flush()
    assert variable.rows == [(3,), (3,)]


@pytest.mark.parametrize(
    ("kind", "row", "element"),
    [
        (int, (None,), None),
        (list[int], ([1, None],), [1, None]),
        (tuple[int, str], (None, "a"), (None, "a")),
        (dict[str, tuple[int, str]], ({"a": None},), {"a": None}),
    ],
)
def test_null_is_read_when_a_read_writes_it_again(
    kind: Any, row: tuple[Any, ...], element: Any
) -> None:
    """Catches a NULL of a bootstrap that ends the query where a read starts the time anew."""
    variable = Variable()
    variable.rows = [row]
    ttl = keyed.StateTtlConfig(timedelta(hours=1), "OnReadAndWrite")
    descriptor = keyed.ListStateDescriptor("list", kind, ttl=ttl)
    state = RuntimeContext(variable, {}, "ProcessingTime").get_list_state(descriptor)

    assert [*state.get()] == [element]

    assert variable.rows == [row]
    with pytest.raises(InvalidArgumentError):
        state.add(element)


def test_timer_does_not_fire_when_one_before_it_deleted_it() -> None:
    """Catches a timer that fires for Spark found it due before another one deleted it.

    The same time of another key fires, and one that was registered again.
    """
    handle: Any = SimpleNamespace(registerTimer=lambda at: None, deleteTimer=lambda at: None)
    context = Context(TimerService(handle, "EventTime"))
    timers = context.timer_service()
    context.enter(([1, 2],), None)
    assert timers.fire(1)
    timers.delete_event_time_timer(2)
    timers.delete_event_time_timer(3)
    timers.register_event_time_timer(3)

    fires = {}
    for at_ms, key in [(2, [1, 2]), (2, [1, 3]), (3, [1, 2])]:
        context.enter((key,), None)
        fires[at_ms, *key] = timers.fire(at_ms)

    assert fires == {(2, 1, 2): False, (2, 1, 3): True, (3, 1, 2): True}
