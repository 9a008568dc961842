"""Handles are given out by name, and what the driver can know is refused there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import date, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.stateful_processor import TimerValues

from statestore import keyed
from statestore.core.errors import InvalidArgumentError
from statestore.keyed.runtime import Context, RuntimeContext, TimeMode, TimerService
from statestore.testing.keyed_store import Handle, KeyedStore

HOUR = keyed.StateTtlConfig(timedelta(hours=1))


def reducing(kind: Any = int, ttl: Any = None) -> keyed.ReducingStateDescriptor:
    """A descriptor as `open` makes one: its function is equal to no other."""
    return keyed.ReducingStateDescriptor("sum", lambda left, right: left + right, kind, ttl=ttl)


def a_store(time_mode: TimeMode = "None") -> KeyedStore:
    """State in dicts, with a key in hand."""
    store = KeyedStore(None, None, time_mode)
    store.key = (1,)
    return store


def task(store: KeyedStore, time_mode: TimeMode = "None", at_ms: int = -1) -> Handle:
    """The handle of the task of a batch."""
    return Handle(store, time_mode, TimerValues(at_ms, -1))


def rows(store: KeyedStore, name: str = "list") -> list[Any]:
    """The rows that the key in hand has of a state."""
    variable = store.variables[name]
    return [variable.read(entry) for entry in variable.alive()]


def test_one_state_when_its_descriptor_is_made_twice() -> None:
    """Catches a reducing state that is refused for a function that is another object."""
    runtime = RuntimeContext(None, {}, "None")

    assert runtime.get_reducing_state(reducing()) is runtime.get_reducing_state(reducing())


def test_instances_of_a_function_have_handles_of_their_own() -> None:
    """Catches a state that is refused to the next key's instance, or combined by the last one's."""
    runtime = RuntimeContext(task(a_store()), {}, "None")
    runtime.get_reducing_state(reducing())

    runtime.begin()
    product = keyed.ReducingStateDescriptor("sum", lambda left, right: left * right, int)
    state = runtime.get_reducing_state(product)

    state.add(3)
    state.add(5)
    assert state.get() == 15
    assert len(runtime.flushes) == 1


def test_list_is_sent_in_messages_that_are_not_too_long() -> None:
    """Catches all that a hot key adds in a batch in one message, which cannot pass 2 GiB, and
    what is lost of it where a message is refused and the function goes on."""
    sent: list[tuple[str, int]] = []
    store = a_store()
    runtime = RuntimeContext(task(store), {}, "None")
    state = runtime.get_list_state(keyed.ListStateDescriptor("list", int))
    variable = store.variables["list"]

    def send(name: str, call: Any, rows: Any) -> None:
        sent.append((name, len(rows)))
        call(rows)

    for name in ("put", "appendList"):
        setattr(variable, name, partial(send, name, getattr(variable, name)))

    refuses = [True]

    def refuse_once(call: Any, rows: Any) -> None:
        if refuses and len(rows) == 10_000:
            refuses.clear()
            raise OSError("the JVM is busy")
        call(rows)

    variable.appendList = partial(refuse_once, variable.appendList)
    for number in range(12_000):
        with suppress(OSError):
            state.add(number)
    state.add_all(range(12_000, 25_000))
    assert list(state.get()) == list(range(25_000))
    state.update(range(15_000))
    assert list(state.get()) == list(range(15_000))

    assert not refuses
    appended = [10_000, 1, 10_000, 4_999]
    assert sent == [*(("appendList", n) for n in appended), ("put", 10_000), ("appendList", 5_000)]


@pytest.mark.parametrize(
    "descriptor",
    [
        keyed.ListStateDescriptor("state", tuple[int, str] | None),
        keyed.MapStateDescriptor("state", str, tuple[int, str] | None),
        keyed.MapStateDescriptor("state", tuple[int, str] | None, str),
    ],
)
def test_refused_when_an_element_of_several_fields_may_be_none(descriptor: Any) -> None:
    """Catches a type that is taken, and ends the query at its first None."""
    of_list = isinstance(descriptor, keyed.ListStateDescriptor)
    runtime = RuntimeContext(None, {}, "None")

    with pytest.raises(InvalidArgumentError, match=r"cannot be None.*state='state'"):
        (runtime.get_list_state if of_list else runtime.get_map_state)(descriptor)


def test_state_is_deleted_once_for_all_instances_of_a_function() -> None:
    """Catches a state that is deleted again at the next key, when Spark takes that no longer."""
    deleted: list[str] = []
    runtime = RuntimeContext(SimpleNamespace(deleteIfExists=deleted.append), {}, "None")
    runtime.delete_state("sum")

    runtime.begin()
    runtime.delete_state("sum")

    assert deleted == ["sum"]


@pytest.mark.parametrize("handle", [None, task(a_store())])
def test_refused_when_a_state_is_deleted_and_taken(handle: Any) -> None:
    """Catches a state that each task of each batch empties."""
    runtime = RuntimeContext(handle, {}, "None")
    runtime.delete_state("sum")
    with pytest.raises(InvalidArgumentError, match=r"deleted and taken.*state='sum'"):
        runtime.get_reducing_state(reducing())

    runtime = RuntimeContext(handle, {}, "None")
    runtime.get_reducing_state(reducing())
    with pytest.raises(InvalidArgumentError, match=r"deleted and taken.*state='sum'"):
        runtime.delete_state("sum")


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

    with pytest.raises(InvalidArgumentError, match="two different states have the same name"):
        runtime.get_state(other)


@pytest.mark.parametrize("time_mode", ["None", "EventTime"])
def test_refused_when_a_time_to_live_has_no_processing_time(time_mode: Any) -> None:
    """Catches a query that fails in its tasks for what its program says."""
    runtime = RuntimeContext(None, {}, time_mode)

    with pytest.raises(InvalidArgumentError, match="needs the time mode ProcessingTime") as refused:
        runtime.get_reducing_state(reducing(ttl=HOUR))

    assert refused.value.fields == {"state": "sum", "time_mode": time_mode}


def test_refused_when_a_default_is_of_another_type() -> None:
    """Catches a program that fails at its first key without a value."""
    runtime = RuntimeContext(None, {}, "None")

    with pytest.raises(InvalidArgumentError, match="does not fit") as refused:
        runtime.get_state(keyed.ValueStateDescriptor("sum", int, default="0"))

    assert refused.value.fields["state"] == "sum"


def list_of(*elements: int) -> tuple[KeyedStore, keyed.ListState[int]]:
    """A list state with elements, the last of which are not written yet."""
    store = a_store()
    state = RuntimeContext(task(store), {}, "None").get_list_state(
        keyed.ListStateDescriptor("list", int)
    )
    state.add_all(elements)
    return store, state


def lazily(state: keyed.ListState[int]) -> Iterator[int]:
    """Yield the elements that there are when the first one is asked for."""
    yield from state.get()


def test_elements_and_entries_are_those_of_the_call_that_returned_them() -> None:
    """Catches those that are lost, or new, as they are read after a clear or a write."""
    runtime = RuntimeContext(task(a_store()), {}, "None")
    elements = runtime.get_list_state(keyed.ListStateDescriptor("list", int))
    entries = runtime.get_map_state(keyed.MapStateDescriptor("map", int, int))
    calls = elements.get, entries.items, entries.keys, entries.values

    none = [call() for call in calls]
    elements.update([1, 2])
    entries.put(3, 4)
    some = [call() for call in calls]
    elements.clear()
    entries.clear()

    assert [*map(list, none)] == [[], [], [], []]
    assert [*map(list, some)] == [[1, 2], [(3, 4)], [3], [4]]


def test_list_is_what_it_is_replaced_by_when_that_reads_it() -> None:
    """Catches elements that are lost because they were appended in the same batch."""
    store, state = list_of(1, 2, 3)

    state.update(each for each in lazily(state) if each > 1)

    assert rows(store) == [(2,), (3,)]


def test_list_is_extended_once_when_that_reads_it() -> None:
    """Catches elements that are written twice."""
    store, state = list_of(1, 2)

    state.add_all(each + 2 for each in lazily(state))
    state.flush()

    assert rows(store) == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("method", ["add_all", "update"])
def test_list_is_as_it_was_when_an_element_is_refused(method: str) -> None:
    """Catches a part of what was refused."""
    store, state = list_of(1, 2)
    refused: Any = [3, "4"]

    with pytest.raises(InvalidArgumentError):
        getattr(state, method)(refused)

    state.flush()
    assert rows(store) == [(1,), (2,)]


@pytest.mark.parametrize("refused", ["4", None])
def test_time_to_live_does_not_begin_anew_when_an_addition_is_refused(refused: Any) -> None:
    """Catches state that lives on because somebody tried to add what does not fit."""
    store = a_store("ProcessingTime")
    ttl = keyed.StateTtlConfig(timedelta(hours=1), "OnReadAndWrite")
    for at_ms in (1, 2):
        handle = task(store, "ProcessingTime", at_ms)
        state = RuntimeContext(handle, {}, "ProcessingTime").get_reducing_state(reducing(ttl=ttl))
        if at_ms == 1:
            state.add(3)
            state.flush()

    with pytest.raises(InvalidArgumentError):
        state.add(refused)
    state.flush()

    (entry,) = store.variables["sum"].alive()
    assert entry.expires_ms == HOUR.ttl_ms + 1
    assert state.get() == 3
    state.flush()
    (entry,) = store.variables["sum"].alive()
    assert (entry.row, entry.expires_ms) == ((3,), HOUR.ttl_ms + 2)


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
    store = a_store("ProcessingTime")
    ttl = keyed.StateTtlConfig(timedelta(hours=1), "OnReadAndWrite")
    descriptor = keyed.ListStateDescriptor("list", kind, ttl=ttl)
    handle = task(store, "ProcessingTime", 1)
    state = RuntimeContext(handle, {}, "ProcessingTime").get_list_state(descriptor)
    variable = store.variables["list"]
    variable.replace([variable.entry(row)])
    store.now_ms = 2

    assert [*state.get()] == [element]

    assert rows(store) == [row]
    assert [entry.expires_ms for entry in variable.alive()] == [HOUR.ttl_ms + 2]
    with pytest.raises(InvalidArgumentError):
        state.add(element)


def test_refused_by_name_when_a_read_cannot_write_again() -> None:
    """Catches an error that says neither which state has the row, nor what is wrong with it."""
    store = a_store("ProcessingTime")
    ttl = keyed.StateTtlConfig(timedelta(hours=1), "OnReadAndWrite")
    state = RuntimeContext(task(store, "ProcessingTime", 1), {}, "ProcessingTime").get_state(
        keyed.ValueStateDescriptor("day", date, ttl=ttl)
    )
    variable = store.variables["day"]
    variable.replace([variable.entry((date(1582, 10, 10),))])

    with pytest.raises(InvalidArgumentError, match=r"state='day', .* of 5 to 14 October 1582"):
        state.value()


def test_time_to_live_begins_anew_when_a_map_is_asked_for_a_key() -> None:
    """Catches a key that is asked for in every batch, and goes; another key's time goes on."""
    store = a_store("ProcessingTime")
    ttl = keyed.StateTtlConfig(timedelta(hours=1), "OnReadAndWrite")
    handle = task(store, "ProcessingTime", 1)
    state = RuntimeContext(handle, {}, "ProcessingTime").get_map_state(
        keyed.MapStateDescriptor("map", int, int, ttl=ttl)
    )
    state.put_all({5: 50, 6: 60})
    store.now_ms = 2

    assert [state.contains(key) for key in (5, 7)] == [True, False]

    ends = {entry.map_key[0]: entry.expires_ms for entry in store.variables["map"].alive()}
    assert ends == {5: HOUR.ttl_ms + 2, 6: HOUR.ttl_ms + 1}


def test_timer_does_not_fire_when_one_before_it_deleted_it() -> None:
    """Catches a timer that fires for Spark found it due before another one deleted it.

    The same time of another key fires, and one that was registered again.
    """
    context = Context(TimerService(task(a_store("EventTime"), "EventTime"), "EventTime"))
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
