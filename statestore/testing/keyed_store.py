"""State variables and timers as dicts, behind Spark's `StatefulProcessorHandle`.

They keep what the JVM would: rows are converted by PySpark's own types when they are written and
read, and entries expire by the batch's clock.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import pyarrow as pa
from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql import types as sql
from pyspark.sql.streaming.stateful_processor import TimerValues

from statestore.codec.python_values import to_pylist
from statestore.codec.spark_types import parse_schema
from statestore.core.errors import InvalidArgumentError
from statestore.keyed.ddl import parse_ddl
from statestore.keyed.runtime import TimeMode, whole_ms
from statestore.operations.addresses import NO_SUCH_ROWS

Key = tuple[Any, ...]
Columns = tuple[Any, ...]
_verifier = cast("Any", sql)._make_type_verifier  # noqa: SLF001
TIMERS = {
    "EventTime": "$eventTimers_keyToTimestamp",
    "ProcessingTime": "$procTimers_keyToTimestamp",
}
"""Addresses of timers in a checkpoint, by time mode."""
_EXPIRES = "ttlExpirationMs"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@runtime_checkable
class StateToBeginWith(Protocol):
    """A `Checkpoint` or a `Savepoint`."""

    def rows(self, name: Any) -> Any:
        """Return the rows of a state variable."""


class Entry(NamedTuple):
    """A value, an element of a list or an entry of a map; rows are Spark's internal ones.

    Attributes:
        map_key: Of a map's entry.
        expires_ms: When, by processing time; None for never. It stays when the time to live of the
            state becomes another one.
    """

    map_key: Any
    row: Any
    expires_ms: int | None


@dataclass
class OfKey:
    """Entries of a key in one state; they are never changed in place."""

    key: Key
    entries: tuple[Entry, ...] = ()


@dataclass
class Variable:
    """A state variable. Names of the methods below are Spark's.

    Attributes:
        store: Has the key in hand and the time.
        name: Of the state.
        kind: value, list or map.
        schemas: Of the values, and before it of a map's keys.
        ttl_ms: How long a new entry lives; None for ever.
        entries: What each key has, by the key's identity.
    """

    store: KeyedStore
    name: str
    kind: str
    schemas: list[sql.StructType]
    ttl_ms: int | None
    entries: dict[Any, OfKey] = field(default_factory=dict)

    def exists(self) -> bool:
        """Return whether the key in hand has some."""
        return bool(self.alive())

    def clear(self) -> None:
        """Have the key in hand have none."""
        self.entries.pop(identity(self.store.key), None)

    def show(self, of_key: OfKey, converts: Sequence[Callable[[Any], Any]]) -> Any:
        """Return the state of a key as a test sees it; None when all has expired."""
        alive = [each for each in of_key.entries if self._lives(each)]
        of_map_key, of_value = (converts[0], converts[-1]) if converts else (tuple, tuple)
        values = [of_value(self.read(each)) for each in alive]
        if not values or self.kind == "list":
            return values or None
        if self.kind == "value":
            return values[0]
        keys: list[Any] = []
        for row in map(self.map_key, alive):
            keys.append(of_map_key(row))
            try:
                hash(keys[-1])
            except TypeError:
                keys[-1] = shown_key(row) if converts else hashable(row)
        return dict(zip(keys, values, strict=True))

    def alive(self) -> list[Entry]:
        """Return the entries of the key in hand that have not expired."""
        of_key = self.entries.get(identity(self.store.key))
        return [each for each in of_key.entries if self._lives(each)] if of_key else []

    def replace(self, entries: Iterable[Entry]) -> None:
        """Have the key in hand have these, and no others."""
        if kept := tuple(entries):
            self.entries[identity(self.store.key)] = OfKey(self.store.key, kept)
        else:
            self.clear()

    def entry(self, value: Columns, map_key: Any = None) -> Entry:
        """Return a new entry, of now.

        Raises:
            InvalidArgumentError: The value is not of the columns' types.
        """
        expires_ms = None if self.ttl_ms is None else self.store.now_ms + self.ttl_ms
        return Entry(map_key, kept_of(value, self.schemas[-1]), expires_ms)

    def read(self, entry: Entry) -> Columns:
        """Return an entry's row as a program gets it: a copy."""
        return tuple(self.schemas[-1].fromInternal(copy.deepcopy(entry.row)))

    def map_key(self, entry: Entry) -> Columns:
        """Return an entry's key in its map, likewise."""
        return tuple(self.schemas[0].fromInternal(copy.deepcopy(entry.map_key)))

    def _lives(self, entry: Entry) -> bool:
        return entry.expires_ms is None or entry.expires_ms > self.store.now_ms


class _Value(Variable):
    def get(self) -> Columns | None:
        alive = self.alive()
        return self.read(alive[0]) if alive else None

    def update(self, newValue: Columns) -> None:
        self.replace([self.entry(newValue)])


class _List(Variable):
    def get(self) -> Iterator[Columns]:
        yield from [self.read(each) for each in self.alive()]  # when asked for one, as Spark's

    def put(self, newState: Iterable[Columns]) -> None:
        self.replace(self._entries(newState))

    def appendValue(self, newState: Columns) -> None:
        self.appendList([newState])

    def appendList(self, newState: Iterable[Columns]) -> None:
        self.replace([*self.alive(), *self._entries(newState)])

    def _entries(self, rows: Iterable[Columns]) -> list[Entry]:
        if not (entries := [*map(self.entry, rows)]):
            raise InvalidArgumentError(
                "Spark writes no empty list, and ends the query",
                to_fix="call clear() for none, or append nothing",
                state=self.name,
            )
        return entries


class _Map(Variable):
    def getValue(self, key: Columns) -> Columns | None:
        wanted = identity(kept_of(key, self.schemas[0]))
        return next((self.read(e) for e in self.alive() if identity(e.map_key) == wanted), None)

    def containsKey(self, key: Columns) -> bool:
        return self.getValue(key) is not None

    def updateValue(self, key: Columns, value: Columns) -> None:
        kept = kept_of(key, self.schemas[0])
        self.replace([*self._without(kept), self.entry(value, kept)])

    def removeKey(self, key: Columns) -> None:
        self.replace(self._without(kept_of(key, self.schemas[0])))

    def iterator(self) -> Iterator[tuple[Columns, Columns]]:
        yield from [(self.map_key(each), self.read(each)) for each in self.alive()]  # likewise

    def keys(self) -> Iterator[Columns]:
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[Columns]:
        return (value for _, value in self.iterator())

    def _without(self, map_key: Any) -> list[Entry]:
        unwanted = identity(map_key)
        return [each for each in self.alive() if identity(each.map_key) != unwanted]


_KINDS = {"value": _Value, "list": _List, "map": _Map}


class KeyedStore:
    """All state variables and timers.

    Args:
        begins_with: Of the harness.
        operator: Of the harness.
        time_mode: Of the harness.

    Attributes:
        key: The key in hand.
        now_ms: When the batch began; -1 without a time mode.
        variables: By name.
        timers: The key of each timer, by the key's identity and when it is due.
    """

    def __init__(
        self, begins_with: StateToBeginWith | None, operator: int | None, time_mode: TimeMode
    ) -> None:
        self._begins_with = begins_with
        self._operator = operator
        self._begun: frozenset[str] = frozenset()  # what is taken from `begins_with` no more
        self.key: Key = ()
        self.now_ms = -1
        self.variables: dict[str, Variable] = {}
        self.timers: dict[tuple[Any, int], Key] = {}
        found = self._table(TIMERS[time_mode]) if time_mode in TIMERS else None
        for row in [] if found is None else to_pylist(found):
            key = tuple(as_spark(row["key"]["key"]))
            self.timers[identity(key), row["key"]["expiryTimestampMs"]] = key

    @contextmanager
    def or_as_before(self) -> Iterator[None]:
        """Go back to what is here now, where the batch fails."""
        variables = {
            name: replace(each, entries={**each.entries}) for name, each in self.variables.items()
        }
        before = self._begun, self.now_ms, {**self.timers}
        try:
            yield
        except BaseException:
            self.variables = variables
            self._begun, self.now_ms, self.timers = before
            raise

    def take(
        self, kind: str, name: str, schemas: list[sql.StructType], ttl_ms: int | None
    ) -> Variable:
        """Return a state variable, with what there was of it before.

        Raises:
            InvalidArgumentError: It was of another kind, or of other columns, or its time to live
                was added or removed.
        """
        taken = _KINDS[kind](self, name, kind, schemas, ttl_ms)
        before = self.variables.get(name)
        if before is not None:
            was, now = (
                [each.kind, each.ttl_ms is None, *map(_shape, each.schemas)]
                for each in (before, taken)
            )
            if was != now:
                raise _other_state(name)
            taken.entries = before.entries
        elif name not in self._begun:
            for key, entry in self._stored(name, taken):
                of_key = taken.entries.setdefault(identity(key), OfKey(key))
                of_key.entries = (*of_key.entries, entry)
        self._begun |= {name}
        self.variables[name] = taken
        return taken

    def drop(self, name: str) -> None:
        """Forget a state of all keys."""
        self.variables.pop(name, None)
        self._begun |= {name}

    def _stored(self, name: str, variable: Variable) -> Iterator[tuple[Key, Entry]]:
        """Yield key and entry of what a state begins with."""
        of_map_key, of_value = variable.schemas[0], variable.schemas[-1]
        found = self._table(name)
        if found is None or not found.num_rows:
            return
        if _stored_shape(found.schema) != [
            variable.ttl_ms is not None,
            _declared_shape(of_map_key) if variable.kind == "map" else None,
            _declared_shape(of_value),
        ]:
            raise _other_state(name)
        keys = set()
        for row in to_pylist(found):
            key, map_key, value, expires_ms = row["key"], None, row["value"], None
            if variable.kind == "map":
                key, map_key = (
                    key["key"],
                    kept_of(_of_arrow(key["userKey"], of_map_key), of_map_key),
                )
            if variable.ttl_ms is not None:
                value, expires_ms = value["value"], value[_EXPIRES]
            kept = kept_of(_of_arrow(value, of_value), of_value)
            of_key = tuple(as_spark(key))
            if variable.kind == "value" and identity(of_key) in keys:  # of a list
                raise _other_state(name)
            keys.add(identity(of_key))
            yield of_key, Entry(map_key, kept, expires_ms)

    def _table(self, name: str) -> pa.Table | None:
        """Return the rows of an address that the state to begin with has, else None."""
        if self._begins_with is None:
            return None
        address = name if self._operator is None else f"{self._operator}/{name}"
        try:
            return cast("pa.Table", self._begins_with.rows(address).read())
        except InvalidArgumentError as error:
            if error.problem != NO_SUCH_ROWS:
                raise
            return None


class Handle:
    """Spark's handle of a task.

    Attributes:
        is_open: Whether the processor has taken its states.
    """

    def __init__(self, store: KeyedStore, time_mode: TimeMode, now: TimerValues) -> None:
        self._store = store
        self._time_mode = time_mode
        self._taken: set[str] = set()
        self.is_open = False
        store.now_ms = now.getCurrentProcessingTimeInMs()

    def getValueState(
        self,
        stateName: str,
        schema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._take("value", stateName, [schema], ttlDurationMs)

    def getListState(
        self,
        stateName: str,
        schema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._take("list", stateName, [schema], ttlDurationMs)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        return self._take("map", stateName, [userKeySchema, valueSchema], ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        self._store.drop(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        place = identity(self._store.key), whole_ms(expiryTimestampMs)
        self._timers()[place] = self._store.key

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        place = identity(self._store.key), whole_ms(expiryTimestampMs)
        self._timers().pop(place, None)

    def listTimers(self) -> Iterator[int]:
        mine = identity(self._store.key)
        return iter(sorted(at_ms for key, at_ms in self._timers() if key == mine))

    def _take(self, kind: str, name: str, schemas: list[Any], ttl_ms: int | None) -> Any:
        problem = ""
        if self.is_open:
            problem, to_fix = "a state is taken when a processor begins", "take it in init"
        elif name in self._taken:
            problem, to_fix = "two states of one name", "give each a name of its own"
        elif ttl_ms is not None and self._time_mode != "ProcessingTime":
            problem, to_fix = "a time to live is by processing time", "time_mode='ProcessingTime'"
        if problem:
            raise InvalidArgumentError(problem, to_fix=to_fix, state=name)
        self._taken.add(name)
        parsed = [parse_ddl(each) if isinstance(each, str) else each for each in schemas]
        return self._store.take(kind, name, parsed, ttl_ms)

    def _timers(self) -> dict[tuple[Any, int], Key]:
        if self._time_mode == "None":
            raise InvalidArgumentError(
                "a query without a time mode has no timers",
                to_fix="give time_mode='EventTime' or time_mode='ProcessingTime'",
                time_mode=self._time_mode,
            )
        return self._store.timers


def grouped(value: Any) -> Any:
    """Return a column of a grouping key as Spark groups by it: one zero, one NaN."""
    if isinstance(value, float):
        return value + 0.0 if value == value else math.nan
    return value


def identity(value: Any) -> Any:
    """Return a value that can be hashed and is equal for keys that Spark holds equal."""
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, datetime):
        return microseconds(value)
    if isinstance(value, bytearray):
        return bytes(value)
    return tuple(map(identity, value)) if isinstance(value, list | tuple) else value


def hashable(value: Any) -> Any:
    """Return a value of columns as a key of a dict: arrays and structs as tuples."""
    if isinstance(value, bytearray):
        return bytes(value)
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


def shown_key(key: Key) -> Any:
    """Return a key as a test sees it: its value where it is one column, else the tuple."""
    shown = hashable(key)
    return shown[0] if len(key) == 1 else shown


def microseconds(at: datetime) -> int:
    """Return microseconds since 1970; a time without a zone is in the local one, as in PySpark."""
    return (at.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def kept_of(value: Any, schema: sql.StructType) -> Any:
    """Return a row as the JVM keeps it, made of new objects.

    Raises:
        InvalidArgumentError: A value is not of its column's type.
    """
    try:
        _verifier(schema, nullable=False)(value)
        return _fitted(schema.toInternal(value), schema)
    except (PySparkTypeError, PySparkValueError, InvalidOperation) as error:
        raise InvalidArgumentError(
            "a value is not of the type that the state keeps; Spark would keep another",
            to_fix="give a value of each column's type",
            columns=schema.simpleString(),
            found=error,
        ) from error


def _fitted(row: Any, kind: sql.DataType) -> Any:
    """Return an internal value as the JVM keeps it."""
    if row is None:
        return None
    if isinstance(kind, sql.StructType):
        return tuple(map(_fitted, row, (each.dataType for each in kind)))
    if isinstance(kind, sql.ArrayType):
        return [_fitted(each, kind.elementType) for each in row]
    if isinstance(kind, sql.MapType):
        pairs = row.items()
        return {_fitted(k, kind.keyType): _fitted(v, kind.valueType) for k, v in pairs}
    if isinstance(kind, sql.FloatType):
        return struct.unpack("f", struct.pack("f", row))[0]
    if isinstance(kind, sql.DecimalType):
        digits = Context(prec=kind.precision, traps=[InvalidOperation])
        return row.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, digits)
    return bytes(row) if isinstance(kind, sql.BinaryType) else row


def _shape(kind: sql.DataType) -> Any:
    """Return what of a type Spark compares: no names."""
    if isinstance(kind, sql.StructType):
        return [_shape(each.dataType) for each in kind]
    if isinstance(kind, sql.ArrayType):
        return ["array", _shape(kind.elementType)]
    if isinstance(kind, sql.MapType):
        return ["map", _shape(kind.keyType), _shape(kind.valueType)]
    return kind.simpleString()


def _stored_shape(schema: pa.Schema) -> list[Any]:
    """Return of stored rows: whether they expire, `_shape` of keys of a map, and of values."""
    key, value = (schema.field(name).type for name in ("key", "value"))
    expires = value.get_field_index(_EXPIRES) >= 0 and value.get_field_index("value") >= 0
    if expires:
        value = value.field("value").type
    of_map = [key.field(place) for place in range(key.num_fields)]
    is_map = [each.name for each in of_map] == ["key", "userKey"] and all(
        pa.types.is_struct(each.type) for each in of_map
    )
    of_map_key = _arrow_shape(key.field("userKey").type) if is_map else None
    return [expires, of_map_key, _arrow_shape(value)]


def _declared_shape(schema: sql.StructType) -> Any:
    return _arrow_shape(parse_schema(schema.json()).arrow)


def _arrow_shape(kind: Any) -> Any:
    """Return what `_shape` does, of a type as rows of a checkpoint are read."""
    if pa.types.is_struct(kind):
        return [_arrow_shape(field.type) for field in kind]
    if pa.types.is_list(kind):
        return ["array", _arrow_shape(kind.value_type)]
    if pa.types.is_map(kind):
        return ["map", _arrow_shape(kind.key_type), _arrow_shape(kind.item_type)]
    return str(kind)


def _other_state(name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a state is of another kind or type than before, or its time to live was added or removed; "
        "Spark refuses it, but for other fields in a query that began with encodingFormat=avro",
        to_fix="with encodingFormat=avro, try the query on its state: `statestore try`; else give "
        "the state another name",
        state=name,
    )


def as_spark(value: Any) -> Any:
    """Return a key as Spark hands it to a timer, of one of a row or of Arrow; it has no map.

    Its times have no zone there, and are local. In rows and their keys they have one.
    """
    if isinstance(value, Row):
        value = value.asDict()
    if isinstance(value, dict):
        return Row(*value)(*map(as_spark, value.values()))
    if isinstance(value, list):
        return [*map(as_spark, value)]
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone().replace(tzinfo=None)
    return value


def delivered(value: Any) -> Any:
    """Return a value of a row as Spark hands it to a function.

    What `createDataFrame` takes for a struct, a Row, is a dict there; of a map, a dict, it is the
    list of its entries.
    """
    if (names := getattr(value, "__fields__", None)) is not None:
        return dict(zip(names, map(delivered, value), strict=True))
    if isinstance(value, dict):
        return [(delivered(key), delivered(each)) for key, each in value.items()]
    return [*map(delivered, value)] if isinstance(value, list) else value


def _of_arrow(value: Any, kind: sql.DataType) -> Any:
    """Return a value as a program gives it, of one that Arrow shows."""
    if value is None:
        return None
    if isinstance(kind, sql.StructType):
        return tuple(map(_of_arrow, value.values(), (each.dataType for each in kind)))
    if isinstance(kind, sql.ArrayType):
        return [_of_arrow(each, kind.elementType) for each in value]
    if isinstance(kind, sql.MapType):
        return {_of_arrow(k, kind.keyType): _of_arrow(v, kind.valueType) for k, v in value}
    return value
