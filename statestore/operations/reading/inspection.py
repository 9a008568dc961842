"""Looking into a checkpoint: what it holds, rows by key, the largest keys, rows by key group."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.codec.byte_ranges import ByteRanges, child, unpack
from statestore.codec.joined_trailers import add_counts
from statestore.codec.key_bytes import decode_keys, key_type, value_type
from statestore.codec.python_values import to_pylist
from statestore.codec.rows import from_numpy, pick, to_numpy
from statestore.codec.spark_types import SparkType, distinct_names
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.operations.addresses import places_of
from statestore.operations.reading.lookup import Asked
from statestore.operations.reading.read import read_batches
from statestore.operations.states import check_committed, families_of, find_store
from statestore.operations.typed_text import value_of_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from statestore.checkpoint.operator_metadata import OperatorInfo
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.states import FoundRows
    from statestore.operations.store_state import States

_NOT_OF_TYPE = (pa.ArrowException, OverflowError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class FamilyDescription:
    """A column family.

    Attributes:
        name: Its name.
        key, value: Structs of its keys and values; Spark's schema as text, or nothing where there
            is none, where this release cannot read a type in it.
        encoder: How keys are encoded.
        multi_values: Whether a key has a list of values.
        internal: Whether the rows are Spark's own, and not counted by it.
        variable: What kind of state variable it holds, in Spark's words, such as ListState, or
            TimerState; None where it holds none.
        has_ttl: Whether the variable's entries expire.
        address: What `Checkpoint.rows` takes for its rows; None where no query has any in it.
    """

    name: str
    key: pa.DataType | str
    value: pa.DataType | str
    encoder: str
    multi_values: bool
    internal: bool
    variable: str | None = None
    has_ttl: bool = False
    address: str | None = None


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """A store of a stateful operator at a version.

    Attributes:
        operator, operator_name: ID and Spark's short name of the operator.
        name: Store name.
        num_partitions, max_parallelism: Numbers of state partitions and of key groups.
        rescalable: Whether every row's key group belongs to its state partition.
        num_keys: Rows by state partition, of those that hold state; None where only reading them
            tells.
        column_families: With their schemas.
    """

    operator: int
    operator_name: str
    name: str
    num_partitions: int
    max_parallelism: int
    rescalable: bool
    num_keys: dict[int, int | None]
    column_families: tuple[FamilyDescription, ...]

    def fields(self) -> dict[str, Any]:
        """Return it as JSON and Arrow have it, types as text."""
        return {
            "operator": self.operator,
            "operator_name": self.operator_name,
            "store": self.name,
            "num_partitions": self.num_partitions,
            "max_parallelism": self.max_parallelism,
            "rescalable": self.rescalable,
            "num_keys": add_counts(self.num_keys.values()),
            "num_keys_by_partition": self.num_keys,
            "column_families": [
                {**asdict(family), "key": str(family.key), "value": str(family.value)}
                for family in self.column_families
            ],
        }


def describe(
    checkpoint: OpenCheckpoint,
    *,
    version: int | None = None,
) -> tuple[StoreDescription, ...]:
    """Describe every store of a checkpoint, from the trailers of one version alone.

    Raises:
        NotFoundError, IncompatibleError, CorruptionError, FencedError, StorageError: As
            `find_store`.
    """
    if version is not None:
        check_committed(checkpoint, version)
    if checkpoint.newest_version:
        checkpoint.require_metadata(checkpoint.newest_version)
    operators = checkpoint.operators_at(version or checkpoint.newest_version)
    found = {
        (operator.id, store.name): find_store(checkpoint, operator.id, store.name, version)
        for operator in operators
        for store in operator.stores
    }
    places = [
        place
        for operator in operators
        for place in places_of(operator, lambda *store: families_of(found[store]).values())
    ]
    addresses = {
        (place.operator, place.store, place.family): place.address(among=places) for place in places
    }
    return tuple(
        _describe(operator, states, addresses)
        for operator in operators
        for store in operator.stores
        if (states := found[operator.id, store.name])
    )


def _describe(
    operator: OperatorInfo, states: States, addresses: Mapping[tuple[int, str, str], str]
) -> StoreDescription:
    of = list(states.values())
    variables = {variable.name: variable for variable in operator.variables}
    families = tuple(
        FamilyDescription(
            family.name,
            _type_of(key_type, family, family.key_schema),
            _type_of(value_type, family, family.value_schema),
            family.encoder,
            family.multi_values,
            family.internal,
            variables[family.name].kind if family.name in variables else None,
            family.name in variables and variables[family.name].has_ttl,
            addresses.get((operator.id, of[0].store.name, family.name)),
        )
        for family in families_of(states).values()
    )
    return StoreDescription(
        operator.id,
        operator.name,
        of[0].store.name,
        of[0].num_partitions,
        of[0].max_parallelism,
        all(state.rescalable for state in of),
        {state.store.partition: state.num_keys for state in of},
        families,
    )


def _type_of(
    read: Callable[[ColumnFamily], SparkType], family: ColumnFamily, schema: str | None
) -> pa.DataType | str:
    """Return a type; as text where it cannot be read, so that it hides no other one."""
    try:
        return read(family).arrow
    except IncompatibleError:
        return schema or ""


def find_key(rows: FoundRows, key: Sequence[Any]) -> pa.Table:
    """Read the rows of a key, or of all keys that begin with some columns; all as `Rows.find`.

    Of the state partition that the columns decide on, only the blocks of the key's group are read,
    where its files are in that order.
    """
    schema = key_type(rows.family)
    if isinstance(key, str | bytes):
        raise InvalidArgumentError(
            "a key is several values, one for each of its columns",
            type=type(key).__name__,
            to_fix="give a list, also of one value: [key]",
        )
    if len(key) > len(schema.fields):
        raise InvalidArgumentError(
            "more values than the key has columns",
            values=len(key),
            columns=", ".join(schema.names),
            to_fix="give values of the first columns, in order",
        )
    wanted = [_literal(*pair) for pair in zip(key, schema.types, schema.names, strict=False)]
    found: list[pa.RecordBatch] = []
    # Spark's hash of a map depends on the order of its entries, and equality does not.
    asked = Asked(
        {
            (0, ordinal): value
            for ordinal, value in enumerate(wanted)
            if not _has_maps(schema.types[ordinal])
        }
    )
    for batch in read_batches(rows, asked=asked):
        keys = batch.column("key")
        mask = np.ones(batch.num_rows, bool)
        for ordinal, value in enumerate(wanted):
            mask &= _equals(child(keys, ordinal), value)
        found.append(pick(batch, mask))
    return pa.Table.from_batches(found)


def _has_maps(kind: SparkType) -> bool:
    return kind.kind == "map" or any(map(_has_maps, kind.types))


def _literal(value: Any, kind: SparkType, name: str) -> pa.Array[Any]:
    """Return a value as a column of one row.

    Raises:
        InvalidArgumentError: It is not of the type.
    """
    if kind.kind == "struct" and isinstance(value, dict | list | tuple):
        return _struct_literal(value, kind, name)
    try:
        try:
            return pa.array([_fitting(value, kind)], kind.arrow)
        except _NOT_OF_TYPE:
            if isinstance(value, bool | dict | list):
                raise
            return pa.array([value_of_text(str(value), kind)], kind.arrow)
    except _NOT_OF_TYPE as error:
        raise InvalidArgumentError(
            "a value is not of the type of its key column",
            column=name,
            type=str(kind.arrow),
            reason=str(error).partition("\n")[0],
            to_fix="give a value of that type, as `read --output json` prints it",
        ) from error


def _fitting(value: Any, kind: SparkType) -> Any:
    """Return a value as Arrow takes it: text and numbers are read by the type, as in files.

    A member of an enum is its value, whatever text it is for people.

    Raises:
        ValueError, OverflowError: It is not of the type.
    """
    if isinstance(value, Enum):
        value = value.value
    is_typed = isinstance(value, str | Number) and not isinstance(value, bool)
    if is_typed and kind.kind in ("float", "double"):
        return float(value)  # one that is too large is found nowhere, and is no error
    if is_typed:
        return value_of_text(str(value), kind)
    if kind.kind in ("interval", "year-month interval") and isinstance(value, list):
        return tuple(value)
    if kind.kind in ("array", "map") and isinstance(value, list):
        of = kind.types[0] if kind.kind == "array" else SparkType("struct", kind.fields)
        return [_fitting(one, of) for one in value]
    if kind.kind == "map" and isinstance(value, dict):
        return {key: _fitting(one, kind.types[1]) for key, one in value.items()}
    if kind.kind == "struct" and isinstance(value, dict):
        fields = zip(distinct_names(kind.names), kind.types, strict=True)
        return {name: _fitting(value.get(name), of) for name, of in fields}
    return value


def _struct_literal(
    value: dict[str, Any] | Sequence[Any], kind: SparkType, name: str
) -> pa.Array[Any]:
    struct: Any = kind.arrow
    names = [field.name for field in struct]
    given = {*value} if isinstance(value, dict) else {*names[: len(value)]}
    if given != {*names} or len(value) != len(names):
        raise InvalidArgumentError(
            "a value does not have the fields of its key column",
            column=name,
            fields=", ".join(names),
            to_fix="give each of these fields; `statestore read --where` finds rows by one of them",
        )
    values = [value[field] for field in names] if isinstance(value, dict) else value
    columns = [
        _literal(one, of, f"{name}.{field}")
        for one, of, field in zip(values, kind.types, names, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, names=names)


def _equals(column: pa.Array[Any], value: pa.Array[Any]) -> npt.NDArray[np.bool_]:
    if value.null_count:
        return unpack(column.is_null())
    if pa.types.is_struct(column.type):
        mask = ~unpack(column.is_null())
        for ordinal in range(column.type.num_fields):
            mask &= _equals(child(column, ordinal), child(value, ordinal))
        return mask
    if pa.types.is_nested(column.type) or pa.types.is_interval(column.type):
        (wanted,) = to_pylist(value)
        return np.fromiter((_same(one, wanted) for one in to_pylist(column)), bool, len(column))
    found = unpack(pc.equal(column, value[0])) & ~unpack(column.is_null())
    if pa.types.is_floating(column.type) and math.isnan(value[0].as_py()):
        # One key, whatever bits it has.
        found |= unpack(pc.is_nan(column)) & ~unpack(column.is_null())
    return found


def _same(one: Any, other: Any) -> bool:
    """Return whether values are equal, where NaN is one number and a map has no order."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return False
        if one and type(one[0]) is tuple:  # entries of a map, each a key of its own
            return all(any(_same(entry, each) for each in other) for entry in one)
        return all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other or (one != one and other != other))


def largest_keys(rows: FoundRows, num_keys: int) -> pa.Table:
    """Find the keys with the most bytes of values, as `Rows.largest`."""
    family, states = rows.family, rows.states
    fields: list[pa.Field[Any]] = [
        pa.field("key", pa.binary()),
        pa.field("partition_id", pa.int32()),
        pa.field("key_bytes", pa.int64()),
        pa.field("value_bytes", pa.int64()),
    ]
    schema = pa.schema(fields)
    best = pa.Table.from_pylist([], schema=schema)
    for batch, partition in _batches(states, family):
        key_bytes, value_bytes = (ByteRanges.of_column(batch.column(n)).sizes for n in (3, 4))
        order = np.argsort(-value_bytes, kind="stable")[:num_keys]
        index = from_numpy(order, pa.int64())
        columns = [
            batch.column("key").take(index),
            pa.array(np.full(len(order), partition, np.int32)),
            pa.array(key_bytes[order]),
            pa.array(value_bytes[order]),
        ]
        candidates = pa.concat_tables([best, pa.Table.from_arrays(columns, schema=schema)])
        best = candidates.sort_by([("value_bytes", "descending")]).slice(0, num_keys)
    keys = best.column("key").combine_chunks()
    return best.set_column(0, "key", decode_keys(keys, family))


def key_group_histogram(rows: FoundRows) -> pa.Table:
    """Count the rows of every key group, as `Rows.key_groups`."""
    family, states = rows.family, rows.states
    max_parallelism = next(iter(states.values())).max_parallelism
    sums = np.zeros((3, max_parallelism), np.int64)
    partitions = np.zeros(max_parallelism, np.int32)
    for batch, partition in _batches(states, family):
        groups = to_numpy(batch.column(0), np.uint16)
        partitions[groups] = partition
        sums[0] += np.bincount(groups, minlength=max_parallelism)
        for place in (1, 2):
            sizes = ByteRanges.of_column(batch.column(place + 2)).sizes
            np.add.at(sums[place], groups, sizes)
    used = np.flatnonzero(sums[0])
    return pa.table(
        {
            "key_group": used.astype(np.uint16),
            "partition_id": partitions[used],
            "num_rows": sums[0][used],
            "key_bytes": sums[1][used],
            "value_bytes": sums[2][used],
        }
    )


def _batches(states: States, family: ColumnFamily) -> Iterator[tuple[pa.RecordBatch, int]]:
    for store, state in states.items():
        for batch in state.rows(family.name):
            yield batch, store.partition
