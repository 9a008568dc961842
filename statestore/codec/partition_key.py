"""The columns of a state key by which Spark partitioned the input, and their key group.

As the shim's PartitionKey.scala decides when it writes; every operator's layout is a case of
`partition_key_columns`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from statestore.codec.byte_ranges import child
from statestore.codec.column_family import DEFAULT_FAMILY
from statestore.codec.key_bytes import decode_keys, key_type
from statestore.codec.murmur3 import hash_columns, key_groups
from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy.typing as npt
    import pyarrow as pa

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.spark_types import SparkType

_JOIN_INDEXED = "-keyWithIndexToValue"
JOIN_TIME = "__event_time"
"""The last field of the key of a join's rows in state format 4."""
TTL_PREFIX = "$ttl_"
"""What the name of an index of expiries begins with, in `transformWithState`."""


def partition_key_columns(store: str, family: ColumnFamily) -> tuple[tuple[int, ...], ...]:
    """Return the partition-key columns of a column family's keys.

    Args:
        store: Name of the state store.
        family: The column family; only a store with several has others than `default`.

    Returns:
        Each column as ordinals from the key down to a field, (1, 0) the first field of the second
        column. Empty where all state is in state partition 0: no key columns, or none with a value.

    Raises:
        IncompatibleError: As `key_type`.
    """
    schema = key_type(family)
    has_families = family.name != DEFAULT_FAMILY
    join_store = family.name if has_families else store
    found: tuple[tuple[int, ...], ...] = tuple((ordinal,) for ordinal in range(len(schema.fields)))
    if family.encoder.startswith("timestamp-"):
        if schema.names[-1:] == (JOIN_TIME,):
            found = found[:-1]
    elif family.encoder == "no-prefix":
        if join_store.endswith(_JOIN_INDEXED):
            found = found[:-1]
        elif family.num_prefix_columns:
            # Session windows of a provider that does not set the prefix apart.
            found = found[: family.num_prefix_columns]
    elif family.encoder == "prefix":
        # Map state and the timers of a key: the first column is the grouping key. Session windows:
        # the last column is the start of the session.
        found = found[: 1 if has_families else family.num_prefix_columns]
    elif family.encoder == "range" and has_families and len(found) == 2:
        # Timers by time and expiry indexes: the second column holds the grouping key.
        found = (_expiring_key(family, schema),)
    return () if all(_holds_nothing(field_type(schema, path)) for path in found) else found


def is_single(store: str, families: Iterable[ColumnFamily], partitions: Collection[int]) -> bool:
    """Return whether a store has one state partition, whatever the query's number.

    That is where Spark does not partition by a key: a limit, an aggregation without a key. Without
    schemas of its column families the answer is no.

    Args:
        store: Name of the state store.
        families: Its column families.
        partitions: The state partitions that have it.

    Raises:
        IncompatibleError: As `key_type`.
    """
    described = [family for family in families if family.key_schema is not None]
    return (
        set(partitions) == {0}
        and bool(described)
        and not any(partition_key_columns(store, family) for family in described)
    )


def grouped_otherwise(
    store: str, families: Iterable[ColumnFamily]
) -> tuple[SparkType, SparkType] | None:
    """Return the key of state and what Spark partitions by, where the two hash otherwise.

    With `groupBy(…).as[K, V]` Spark hashes columns, and `transformWithState` keeps state by the
    encoded K: its fields may be of other types, or in another order. Spark notes the columns as the
    key of the column family `default`, which has no row.

    Args:
        store: Name of the state store.
        families: Its column families, by Spark's schemas.

    Returns:
        None where they hash alike, and where nothing tells: in Python state has the columns.
    """
    keys: list[SparkType] = []
    grouped_by: list[SparkType] = []
    for family in families:
        # What this release cannot read tells nothing; all variables have the same grouping key.
        with suppress(IncompatibleError):
            schema = key_type(family)
            if family.name == DEFAULT_FAMILY:
                grouped_by.append(schema)
            elif family.encoder == "no-prefix":
                keys.append(schema)
            else:
                keys += [field_type(schema, path) for path in partition_key_columns(store, family)]
    pairs = ((key, columns) for key in keys for columns in grouped_by)
    return next((pair for pair in pairs if not _hash_alike(*pair)), None)


def _hash_alike(key: SparkType, columns: SparkType) -> bool:
    """Return whether columns of a key are others of the same types, in the same order.

    A class takes columns by name, however they are ordered; what has no names, by order.
    """
    names, others = ([name.casefold() for name in kind.names] for kind in (key, columns))
    return (
        replace(key, fields=()) == replace(columns, fields=())
        and len(names) == len(others)
        and (names == others or sorted(names) != sorted(others))
        and all(map(_hash_alike, key.types, columns.types))
    )


def field_type(schema: SparkType, path: tuple[int, ...]) -> SparkType:
    """Return the type of a column named by ordinals."""
    for ordinal in path:
        schema = schema.types[ordinal]
    return schema


def compute_key_groups(
    keys: pa.Array[Any], store: str, family: ColumnFamily, max_parallelism: int
) -> npt.NDArray[np.uint16]:
    """Compute the key group of keys, as the shim does when it writes them.

    Args:
        keys: Binary key bytes of one column family, length n, no nulls.
        store: Name of the state store.
        family: The column family.
        max_parallelism: Number of key groups.

    Raises:
        CorruptionError, IncompatibleError: As `decode_keys` and `hash_columns`.
    """
    if not partition_key_columns(store, family):
        return np.zeros(len(keys), np.uint16)
    return key_groups_of(decode_keys(keys, family), store, family, max_parallelism)


def key_groups_of(
    keys: pa.Array[Any], store: str, family: ColumnFamily, max_parallelism: int
) -> npt.NDArray[np.uint16]:
    """Compute the key group of keys that are columns; as `compute_key_groups`.

    Args:
        keys: Struct of `key_type`, length n, no nulls.
        store: Name of the state store.
        family: The column family.
        max_parallelism: Number of key groups.
    """
    schema = key_type(family)
    paths = partition_key_columns(store, family)
    if not paths:
        return np.zeros(len(keys), np.uint16)
    columns = [(_field(keys, path), field_type(schema, path)) for path in paths]
    return key_groups(hash_columns(columns, len(keys)), max_parallelism)


def _field(struct: pa.Array[Any], path: tuple[int, ...]) -> pa.Array[Any]:
    for ordinal in path:
        struct = child(struct, ordinal)
    return struct


def _expiring_key(family: ColumnFamily, schema: SparkType) -> tuple[int, ...]:
    """The expiry index of a map state has (grouping key, user key) where others have the key."""
    element = schema.types[1]
    is_map = (
        family.name.startswith(TTL_PREFIX)
        and element.kind == "struct"
        and element.names == ("key", "userKey")
        and all(kind.kind == "struct" for kind in element.types)
    )
    return (1, 0) if is_map else (1,)


def _holds_nothing(kind: SparkType) -> bool:
    return kind.kind == "void" or (kind.kind == "struct" and not kind.fields)
