"""Values that a filter asks for: a look-up by key goes by them.

A filter is an expression of Arrow, as people write it (`pc.field("key.shop") == "x"`) and as DuckDB
hands down what it has of a query. Where it can hold for some values of a column alone, these are
its *asked* values. Whoever reads by them applies the filter all the same: what is not understood
here costs time, and no row.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.codec.byte_ranges import child
from statestore.codec.key_bytes import key_type
from statestore.codec.murmur3 import hash_columns, key_groups
from statestore.codec.partition_key import field_type, partition_key_columns
from statestore.codec.rows import from_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow.compute as pc

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.spark_types import SparkType
    from statestore.operations.store_state import States

Names = tuple[str, ...]
"""Of a column, a field in it, and so on."""
Path = tuple[int, ...]
"""Ordinals of the same."""
Places: TypeAlias = "Mapping[Names, tuple[Path, pa.DataType]]"
"""Path and type of fields by their names in a filter."""
Values: TypeAlias = "Mapping[Names, Sequence[Any]]"
"""Scalars of Arrow by the names of a field."""

_MOST_KEYS = 1024
"""Keys whose key groups are computed; a filter that asks for more of them reads everything."""


class Asked(dict[Path, "pa.Array[Any]"]):
    """Values that a column, or a field of one, must have one of; of its own type.

    A path begins with the number of a column: 0 of the key, 1 of the value, 2 of `partition_id`.
    """

    def of_key(self) -> dict[Path, pa.Array[Any]]:
        """Return those of the key, by paths from the key on."""
        return {path[1:]: values for path, values in self.items() if path[0] == 0}

    @property
    def partitions(self) -> set[int] | None:
        """State partitions that `partition_id` must be one of; None for any."""
        found = self.get((2,))
        partitions: list[Any] | None = None if found is None else found.to_pylist()
        return None if partitions is None else set(partitions)


@dataclass(frozen=True, slots=True)
class LookUp:
    """Where the rows of some keys are.

    Attributes:
        partitions: State partitions, None for all.
        key_group: Their only key group, None where there are several.
    """

    partitions: frozenset[int] | None = None
    key_group: int | None = None


def look_up(keys: Mapping[Path, pa.Array[Any]], states: States, family: ColumnFamily) -> LookUp:
    """Return where rows are that have one of some values in each of some columns of the key.

    Args:
        keys: Values by path from the key on, of the column's own type.
        states: The store's versions.
        family: The column family.
    """
    first = next(iter(states.values()), None)
    if first is None:
        return LookUp()
    paths = partition_key_columns(first.store.name, family)
    if not paths or not all(one.rescalable and one.is_checked for one in states.values()):
        return LookUp()
    schema = key_type(family)
    columns = _every_key(keys, paths, schema)
    if columns is None:
        return LookUp()
    hashes = hash_columns(columns, len(columns[0][0]))
    groups = np.unique(key_groups(hashes, first.max_parallelism))
    partitions = frozenset((groups % first.num_partitions).tolist())
    return LookUp(partitions, int(groups[0]) if len(groups) == 1 else None)


def _every_key(
    keys: Mapping[Path, pa.Array[Any]], paths: Sequence[Path], schema: SparkType
) -> list[tuple[pa.Array[Any], SparkType]] | None:
    """Return the columns of all keys that the values make; None where they do not say, or many."""
    used = {
        path: values
        for path, values in keys.items()
        if any(path == of[: len(path)] or of == path[: len(of)] for of in paths)
    }
    counts = [len(values) for values in used.values()]
    if not used or not 0 < math.prod(counts) <= _MOST_KEYS:
        return None
    numbers = np.indices(counts).reshape(len(counts), -1)
    spread = {
        path: values.take(from_numpy(numbers[place].astype(np.int64), pa.int64()))
        for place, (path, values) in enumerate(used.items())
    }
    found: list[tuple[pa.Array[Any], SparkType]] = []
    for path in paths:
        kind = field_type(schema, path)
        column = _column(spread, path, kind)
        if column is None:
            return None
        found.append((column, kind))
    return found


def _column(
    values: Mapping[Path, pa.Array[Any]], path: Path, kind: SparkType
) -> pa.Array[Any] | None:
    """Return a column of which the values, of fields in it or of what it is in, are known."""
    for length in range(len(path) + 1):
        column = values.get(path[:length])
        if column is not None:
            for ordinal in path[length:]:
                column = child(column, ordinal)
            return column
    if kind.kind != "struct" or not kind.fields:
        return None
    fields: list[pa.Array[Any]] = []
    for place, of in enumerate(kind.types):
        field = _column(values, (*path, place), of)
        if field is None:
            return None
        fields.append(field)
    arrow: Any = kind.arrow
    return pa.StructArray.from_arrays(fields, fields=list(arrow))


@dataclass(frozen=True, slots=True)
class Demand:
    """Values and fields that a filter asks for.

    Attributes:
        values: Values that a field must have one of, by its names; none of them null.
        fields: Names of all fields that the filter looks at; None where that is not known.
    """

    values: Values
    fields: frozenset[Names] | None

    def asked(self, places: Places) -> Asked:
        """Return the values by path, of fields whose type they have."""
        found = Asked()
        for names, scalars in self.values.items():
            path, kind = places.get(names, ((), pa.null()))
            if path and all(_is_of(scalar.type, kind) for scalar in scalars):
                try:
                    ones = [pa.repeat(scalar, 1).cast(kind) for scalar in scalars]
                    found[path] = pa.concat_arrays(ones)
                except pa.ArrowException:
                    continue  # no value of the column is like it; the filter says so as well
        return found


def _is_of(given: pa.DataType, kind: pa.DataType) -> bool:
    both_whole = pa.types.is_integer(given) and pa.types.is_integer(kind)
    return both_whole or given == kind


def demand_of(expression: pc.Expression) -> Demand:
    """Return the demand of a filter; an empty one where it is not understood."""
    try:
        tree = _Reader(expression).node()
    except (pa.ArrowException, AttributeError, LookupError, TypeError, ValueError):
        return Demand({}, None)
    return Demand(_values(tree), frozenset(_fields(tree)))


@dataclass(frozen=True, slots=True)
class _Field:
    names: Names


@dataclass(frozen=True, slots=True)
class _Literal:
    value: pa.Scalar[Any]


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    arguments: tuple[_Node, ...]
    options: pa.Scalar[Any] | None


if TYPE_CHECKING:
    _Node: TypeAlias = _Field | _Literal | _Call


class _Reader:
    """Reads an expression as Arrow pickles it: as instructions, beside a row of its values.

    Arrow has no other way to look into one. The instructions are metadata of a schema, of which
    Python shows a name once: so they are read as the C data interface lays them out.
    """

    def __init__(self, expression: pc.Expression) -> None:
        pickle: Any = expression.__reduce__()
        _, (pickled,) = pickle
        self._row = ipc.open_file(pickled).get_batch(0)
        self._instructions = _metadata(self._row.schema)
        self._at = 0

    def node(self) -> _Node:
        """Read the next part of the expression."""
        kind, text = self._next()
        if kind == "literal":
            return _Literal(self._row.column(int(text))[0])
        if kind == "field_ref":
            return _Field((text,))
        if kind == "nested_field_ref":
            return _Field(tuple(self._name() for _ in range(int(text))))
        if kind != "call":
            raise ValueError(kind)
        arguments, options = [], None
        while self._instructions[self._at] != ("end", text):
            if self._instructions[self._at][0] == "options":
                options = self._row.column(int(self._next()[1]))[0]
            else:
                arguments.append(self.node())
        self._next()
        return _Call(text, tuple(arguments), options)

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "field_ref":
            raise ValueError(kind)
        return text

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._instructions[self._at - 1]


class _CSchema(ctypes.Structure):
    """The first members of ArrowSchema of the C data interface."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the metadata of a schema, in order, also names that are there more than once."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = schema.__arrow_c_schema__()
    at = _CSchema.from_address(pointer(capsule, b"arrow_schema")).metadata

    def number() -> int:
        nonlocal at
        at += 4
        return ctypes.c_int32.from_address(at - 4).value

    def text() -> str:
        nonlocal at
        length = number()
        at += length
        return ctypes.string_at(at - length, length).decode()

    return [(text(), text()) for _ in range(number())] if at else []


def _fields(node: _Node) -> Iterator[Names]:
    if isinstance(node, _Field):
        yield node.names
    elif isinstance(node, _Call):
        for part in node.arguments:
            yield from _fields(part)


def _values(node: _Node) -> Values:
    """Return values of which a field must have one where an expression is true."""
    if not isinstance(node, _Call):
        return {}
    arguments = node.arguments
    if node.function in ("and", "and_kleene"):
        found: dict[Names, Sequence[Any]] = {}
        for part in arguments:
            for names, values in _values(part).items():
                if names not in found or len(values) < len(found[names]):
                    found[names] = values
        return found
    if node.function in ("or", "or_kleene"):
        first, second = map(_values, arguments)
        return {names: [*first[names], *second[names]] for names in first.keys() & second.keys()}
    if node.function == "equal":
        for field, value in (arguments, arguments[::-1]):
            if isinstance(field, _Field) and isinstance(value, _Literal) and value.value.is_valid:
                return {field.names: [value.value]}
    if node.function == "is_in" and node.options is not None:
        options: Any = node.options
        (field,), values = arguments, list(options["value_set"])
        if isinstance(field, _Field) and all(value.is_valid for value in values):
            return {field.names: values}
    if node.function == "if_else" and _is_never_true(arguments[2]):
        return _values(arguments[1])
    return {}


def _is_never_true(node: _Node) -> bool:
    return isinstance(node, _Literal) and node.value.as_py() in (None, False)
