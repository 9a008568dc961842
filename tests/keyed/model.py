"""Keyed state as dicts of Python: the handles, the timers and the clock of a plain model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from statestore import keyed


@dataclass
class Entry:
    """A value, an element of a list or an entry of a map, and when it was written."""

    key: Any
    value: Any
    at_ms: int


class Plain:
    """What all keys have of each state; it is the runtime and the context of a function.

    Attributes:
        now_ms: Processing time of the batch; -1 without.
        watermark_ms: That of the batch; -1 without.
        seen: How often entries expired and were renewed, and what became of timers.
    """

    def __init__(self, key_columns: Sequence[str]) -> None:
        self.key_columns = key_columns
        self.states: dict[str, PlainState] = {}
        self.timers: set[tuple[int, Any]] = set()
        self.fields: dict[Any, Any] = {}
        self.key: Any = ()
        self.now_ms = self.watermark_ms = -1
        self.fired_ms: int | None = None
        self.seen: Counter[str] = Counter()

    def begin(self, function: keyed.KeyedProcessFunction) -> None:
        """Go on with a function after a restart."""
        self.function = function
        function.open(self)  # type: ignore[arg-type]

    @property
    def due_ms(self) -> int:
        """Timers of this time, and earlier ones, are due."""
        return max(self.now_ms, self.watermark_ms)

    def run(self, rows: Iterable[Any], now_ms: int, watermark_ms: int) -> list[Any]:
        """Return what a batch returns."""
        self.now_ms, self.watermark_ms = now_ms, watermark_ms
        of_key: dict[Any, list[Any]] = {}
        for row in rows:
            of_key.setdefault(tuple(row[name] for name in self.key_columns), []).append(row)
        returned = []
        for key, its_rows in of_key.items():
            with_each = [
                lambda row=row: self.function.process_element(row, self) for row in its_rows
            ]  # type: ignore[misc]
            returned += self._run(key, with_each)
        due = [timer for timer in self.timers if timer[0] <= self.due_ms]
        for at_ms, key in sorted(due, key=lambda timer: timer[0]):  # what they register waits
            if (at_ms, key) not in self.timers:
                self.seen["timer deleted by another one that fires"] += 1
                continue
            self.seen["timer fired"] += 1
            self.fired_ms = at_ms
            returned += self._run(key, [lambda at_ms=at_ms: self.function.on_timer(at_ms, self)])  # type: ignore[misc]
            self.fired_ms = None
            self.timers.discard((at_ms, key))  # registered again by itself, it is gone
        return returned

    def _run(self, key: Any, calls: Sequence[Callable[[], Any]]) -> Iterator[Any]:
        self.key = key
        if isinstance(self.function, keyed.Checkpointed):
            self.function.restore_state(self.fields.get(key))
        for call in calls:
            yield from call() or ()
        if isinstance(self.function, keyed.Checkpointed):
            self.fields[key] = deepcopy(self.function.snapshot_state(0, 0))

    def get_current_key(self) -> Any:
        return self.key[0] if len(self.key) == 1 else self.key

    def timer_service(self) -> Plain:
        return self

    def current_processing_time(self) -> int:
        return self.now_ms

    def current_watermark(self) -> int:
        return self.watermark_ms

    def register_event_time_timer(self, at_ms: int) -> None:
        self.seen["timer registered when due"] += at_ms <= self.due_ms
        self.seen["timer registered by one that fires"] += self.fired_ms is not None
        self.timers.add((at_ms, self.key))

    def delete_event_time_timer(self, at_ms: int) -> None:
        self.timers.discard((at_ms, self.key))

    register_processing_time_timer = register_event_time_timer
    delete_processing_time_timer = delete_event_time_timer

    def get_state(self, descriptor: Any) -> PlainState:
        state = self.states.setdefault(descriptor.name, PlainState(self, descriptor))
        state.descriptor = descriptor
        return state

    def delete_state(self, name: str) -> None:
        self.seen["state deleted"] += self.states.pop(name, None) is not None

    get_list_state = get_map_state = get_reducing_state = get_aggregating_state = get_state


class PlainState:
    """A state of any kind: a list of entries for each key."""

    def __init__(self, plain: Plain, descriptor: Any) -> None:
        self.plain = plain
        self.descriptor = descriptor
        self.is_list = isinstance(descriptor, keyed.ListStateDescriptor)
        self.is_map = isinstance(descriptor, keyed.MapStateDescriptor)
        self.of_keys: dict[Any, list[Entry]] = {}

    def alive(self, *, is_read: bool) -> list[Entry]:
        """Return the entries that have not expired; a read may start their time anew."""
        ttl = self.descriptor.ttl
        entries = self.of_keys.get(self.plain.key, [])
        if ttl is not None:
            kept = [each for each in entries if each.at_ms + ttl.ttl_ms > self.plain.now_ms]
            self._count("expired", len(entries) - len(kept))
            if kept:
                self._count("expired beside one that lives", len(entries) - len(kept))
            self.of_keys[self.plain.key] = entries = kept
            if is_read:
                self._renew(entries)
        return entries

    def _renew(self, entries: list[Entry]) -> None:
        if self.descriptor.ttl is not None and self.descriptor.ttl.is_on_read:
            self._count("renewed", sum(each.at_ms < self.plain.now_ms for each in entries))
            for entry in entries:
                entry.at_ms = self.plain.now_ms

    def _count(self, what: str, times: int) -> None:
        kind = type(self.descriptor).__name__.removesuffix("StateDescriptor").lower()
        self.plain.seen[f"{kind} {self.descriptor.ttl.update_type} {what}"] += times

    def write(self, *pairs: tuple[Any, Any], append: bool = False) -> None:
        entries = self.alive(is_read=False) if append else []
        made = [Entry(*deepcopy(pair), self.plain.now_ms) for pair in pairs]
        self.of_keys[self.plain.key] = [*entries, *made]

    def clear(self) -> None:
        self.of_keys.pop(self.plain.key, None)

    def _only(self) -> Any:
        entries = self.alive(is_read=True)
        return deepcopy(entries[0].value) if entries else None

    def value(self) -> Any:
        found = self._only()
        return deepcopy(self.descriptor.default) if found is None else found

    def update(self, value: Any) -> None:
        if self.is_list:
            self.write(*((None, each) for each in value))
        elif value is None:
            self.clear()
        else:
            self.write((None, value))

    def add(self, value: Any) -> None:
        if self.is_list:
            self.write((None, value), append=True)
            return
        combine, held = getattr(self.descriptor, "aggregate", None), self._only()
        if combine is not None:
            value = combine.add(value, combine.create_accumulator() if held is None else held)
        elif held is not None:
            value = self.descriptor.reduce(held, value)
        self.write((None, value))

    def add_all(self, values: Iterable[Any]) -> None:
        self.write(*((None, each) for each in list(values)), append=True)

    def get(self, *key: Any) -> Any:
        if self.is_list:
            return iter([deepcopy(each.value) for each in self.alive(is_read=True)])
        if self.is_map:
            found = self._found(key[0])
            return deepcopy(found[0].value) if found else None
        combine, held = getattr(self.descriptor, "aggregate", None), self._only()
        return held if combine is None or held is None else combine.get_result(held)

    def put(self, key: Any, value: Any) -> None:
        self.remove(key)
        self.write((key, value), append=True)

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        kept = [each for each in self.alive(is_read=False) if each.key != key]
        self.of_keys[self.plain.key] = kept

    def contains(self, key: Any) -> bool:
        return bool(self._found(key))

    def _found(self, key: Any) -> list[Entry]:
        found = [each for each in self.alive(is_read=False) if each.key == key]
        self._renew(found)
        return found

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter([deepcopy((each.key, each.value)) for each in self.alive(is_read=True)])

    def keys(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def values(self) -> Iterator[Any]:
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        return not self.alive(is_read=False)
