"""Handles of keyed state: each is of the key whose rows, or whose timer, are being processed.

Every call of a state variable goes over a socket to the JVM and back. The row of a value,
reducing or aggregating state is therefore read at most once and written at most once for each key
and batch, and what is appended to a list is written together: when the key's rows are done, or when
there is much of it. A batch that fails writes nothing, as ever. Lists are read and maps are read
and written call by call.

What a handle returns is a copy: changing it changes nothing before `update`. Elements and entries
are those of the call that returned them, whatever is written before they are read. What a handle
is given is converted at once, and refused with InvalidArgumentError where it does not fit the type
of the state; then the state is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, TypeVar

from statestore.keyed.columns import Columns
from statestore.keyed.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")
_UNREAD: Any = object()
_MOST_ROWS = 10_000
"""Most rows of a list in one message to the JVM, which ends a batch where it has above 2 GiB."""


def _begun(rows: Iterator[Any]) -> Iterator[Any]:
    """Return rows after a look at the first one: from then on they stay, whatever is written."""
    for first in rows:
        return chain((first,), rows)
    return iter(())


class _Row:
    """The row of a variable of one value, for the current key; None when the key has none."""

    def __init__(self, variable: Any, columns: Columns, ttl: StateTtlConfig | None) -> None:
        self._variable = variable
        self._to_row, self._from_row, self._again = columns[1:]
        self._writes_on_read = ttl is not None and ttl.is_on_read
        self._row: tuple[Any, ...] | None = _UNREAD
        self._is_changed = False

    def _read(self) -> tuple[Any, ...] | None:
        if self._row is _UNREAD:
            self._row = self._stored()
            if self._writes_on_read and self._row is not None:
                self._is_changed = True
        return self._row

    def _stored(self) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._variable.get()
        return self._again(row) if self._writes_on_read and row is not None else row

    def _held(self) -> tuple[Any, ...] | None:
        """Return the row for a write, which may be refused: no time to live begins anew."""
        return self._stored() if self._row is _UNREAD else self._row

    def _write(self, row: tuple[Any, ...] | None) -> None:
        self._row = row
        self._is_changed = True

    def clear(self) -> None:
        """Forget what the current key has."""
        self._write(None)

    def flush(self) -> None:
        """Write what changed. The runtime calls it when the rows of a key are done."""
        if self._is_changed:
            if self._row is None:
                self._variable.clear()
            else:
                self._variable.update(self._row)
            self._is_changed = False
        self._row = _UNREAD


class ValueState(_Row, Generic[T]):
    """A value of each key."""

    def __init__(self, variable: Any, descriptor: ValueStateDescriptor, columns: Columns) -> None:
        super().__init__(variable, columns, descriptor.ttl)
        default = descriptor.default
        self._default = None if default is None else self._to_row(default)

    def value(self) -> T | None:
        """Return the value of the current key; the descriptor's default when it has none."""
        row = self._read() if self._row is _UNREAD else self._row
        if row is None:
            row = self._default
        return None if row is None else self._from_row(row)

    def update(self, value: T | None) -> None:
        """Set the value of the current key; None clears it."""
        self._row = None if value is None else self._to_row(value)
        self._is_changed = True


class ReducingState(_Row, Generic[T]):
    """A value of each key: every added value is reduced into it."""

    def __init__(
        self, variable: Any, descriptor: ReducingStateDescriptor, columns: Columns
    ) -> None:
        super().__init__(variable, columns, descriptor.ttl)
        self._reduce = descriptor.reduce

    def get(self) -> T | None:
        """Return the reduced value; None when nothing was added."""
        row = self._read()
        return None if row is None else self._from_row(row)

    def add(self, value: T) -> None:
        """Reduce a value into the state."""
        row, given = self._held(), self._to_row(value)
        if row is not None:
            given = self._to_row(self._reduce(self._from_row(row), self._from_row(given)))
        self._write(given)


class AggregatingState(_Row, Generic[IN, OUT]):
    """An accumulator of each key: every added value goes into it."""

    def __init__(
        self, variable: Any, descriptor: AggregatingStateDescriptor, columns: Columns
    ) -> None:
        super().__init__(variable, columns, descriptor.ttl)
        self._aggregate: AggregateFunction[IN, Any, OUT] = descriptor.aggregate

    def get(self) -> OUT | None:
        """Return the aggregate function's result; None when nothing was added."""
        row = self._read()
        return None if row is None else self._aggregate.get_result(self._from_row(row))

    def add(self, value: IN) -> None:
        """Aggregate a value into the state."""
        row = self._held()
        whole = self._aggregate.create_accumulator() if row is None else self._from_row(row)
        self._write(self._to_row(self._aggregate.add(value, whole)))


class ListState(Generic[T]):
    """A list of each key."""

    def __init__(self, variable: Any, descriptor: ListStateDescriptor, columns: Columns) -> None:
        self._variable = variable
        self._to_row, self._from_row, self._again = columns[1:]
        self._writes_on_read = descriptor.ttl is not None and descriptor.ttl.is_on_read
        self._added: list[tuple[Any, ...]] = []

    def get(self) -> Iterator[T]:
        """Return the elements of the current key, in their order."""
        self.flush()
        if not self._writes_on_read:
            return map(self._from_row, _begun(self._variable.get()))
        rows = list(map(self._again, self._variable.get()))
        if rows:
            self._put(rows)
        return map(self._from_row, rows)

    def add(self, value: T) -> None:
        """Append an element."""
        self._added.append(self._to_row(value))
        if len(self._added) >= _MOST_ROWS:
            self.flush()

    def add_all(self, values: Iterable[T]) -> None:
        """Append elements."""
        rows = list(map(self._to_row, values))  # which may read the list
        self._added += rows
        if len(self._added) >= _MOST_ROWS:
            self.flush()

    def update(self, values: Iterable[T]) -> None:
        """Replace all elements; by none clears the list."""
        rows = list(map(self._to_row, values))  # which may read the list
        self._added.clear()
        if rows:
            self._put(rows)
        else:
            self._variable.clear()

    def clear(self) -> None:
        """Forget the list of the current key."""
        self._added.clear()
        self._variable.clear()

    def flush(self) -> None:
        """Write what was appended. The runtime calls it when the rows of a key are done."""
        while self._added:  # what cannot be written stays, and ends the batch at its last flush
            self._variable.appendList(self._added[:_MOST_ROWS])
            del self._added[:_MOST_ROWS]

    def _put(self, rows: list[tuple[Any, ...]]) -> None:
        """Replace all elements by some rows."""
        self._variable.put(rows[:_MOST_ROWS])
        self._added = rows[_MOST_ROWS:]
        self.flush()


class MapState(Generic[K, V]):
    """A map of each key; its own keys are called user keys by Spark."""

    def __init__(
        self, variable: Any, descriptor: MapStateDescriptor, keys: Columns, values: Columns
    ) -> None:
        self._variable = variable
        self._to_key, self._from_key, self._key_again = keys[1:]
        self._to_value, self._from_value, self._value_again = values[1:]
        self._writes_on_read = descriptor.ttl is not None and descriptor.ttl.is_on_read

    def get(self, key: K) -> V | None:
        """Return the value of an entry; None when there is none."""
        row = self._read(self._to_key(key))
        return None if row is None else self._from_value(row)

    def put(self, key: K, value: V) -> None:
        """Set the value of an entry."""
        self._variable.updateValue(self._to_key(key), self._to_value(value))

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Set the values of entries, in a call of the variable each."""
        rows = [(self._to_key(key), self._to_value(value)) for key, value in entries.items()]
        for row in rows:
            self._variable.updateValue(*row)

    def remove(self, key: K) -> None:
        """Remove an entry, if it is there."""
        self._variable.removeKey(self._to_key(key))

    def contains(self, key: K) -> bool:
        """Return whether there is an entry; a read of it, as of its time to live."""
        kept = self._to_key(key)
        if self._writes_on_read:
            return self._read(kept) is not None
        return bool(self._variable.containsKey(kept))

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all entries of the current key, in no order."""
        entries = self._entries()
        return ((self._from_key(key), self._from_value(value)) for key, value in entries)

    def keys(self) -> Iterator[K]:
        """Return the keys of all entries, in no order."""
        return self._part(self._variable.keys, self._from_key, 0)

    def values(self) -> Iterator[V]:
        """Return the values of all entries, in no order."""
        return self._part(self._variable.values, self._from_value, 1)

    def is_empty(self) -> bool:
        """Return whether there is no entry; no read of any, as in Flink."""
        return not self._variable.exists()

    def clear(self) -> None:
        """Forget the map of the current key."""
        self._variable.clear()

    def _read(self, kept: tuple[Any, ...]) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._variable.getValue(kept)
        if row is not None and self._writes_on_read:
            row = self._value_again(row)
            self._variable.updateValue(kept, row)
        return row

    def _part(
        self, read: Callable[[], Iterator[Any]], convert: Callable[[Any], Any], place: int
    ) -> Iterator[Any]:
        if self._writes_on_read:
            return (convert(entry[place]) for entry in self._entries())
        return map(convert, _begun(read()))

    def _entries(self) -> Iterable[tuple[Any, Any]]:
        if not self._writes_on_read:
            return _begun(self._variable.iterator())
        entries = [
            (self._key_again(key), self._value_again(value))
            for key, value in self._variable.iterator()
        ]
        for entry in entries:
            self._variable.updateValue(*entry)
        return entries
