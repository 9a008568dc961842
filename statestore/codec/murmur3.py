"""Spark's partition hash of columns: Murmur3 x86 32-bit, seed 42, all rows at once.

As `HashPartitioning.partitionIdExpression` before its pmod: every column goes on from the hash of
those before it, and a null leaves the hash as it is. The tail of a string goes in byte by byte,
each signed and mixed like a whole word, which only Spark does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import (
    INTERVAL,
    ByteRanges,
    child,
    large_decimals,
    list_offsets,
    unpack,
)
from statestore.codec.rows import from_numpy, to_numpy
from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from statestore.codec.spark_types import SparkType

    Hashes = npt.NDArray[np.uint32]

SEED = 42
_INTS = {"byte": np.int8, "short": np.int16, "integer": np.int32, "date": np.int32}
_LONGS = ("long", "timestamp", "timestamp_ntz", "time", "day-time interval")


def hash_columns(
    columns: Iterable[tuple[pa.Array[Any], SparkType]], num_rows: int
) -> npt.NDArray[np.int32]:
    """Hash rows by some of their columns, in order.

    Args:
        columns: Each of length num_rows, with its type.
        num_rows: Length of the result; without columns every hash is the seed.

    Raises:
        IncompatibleError: A type that Spark does not hash.
    """
    hashes: Hashes = np.full(num_rows, SEED, np.uint32)
    for column, kind in columns:
        hashes = _hash(column, kind, hashes)
    return hashes.view(np.int32)


def key_groups(hashes: npt.NDArray[np.int32], max_parallelism: int) -> npt.NDArray[np.uint16]:
    """Return the key group of each hash: its positive remainder by max_parallelism."""
    return np.mod(hashes, np.int32(max_parallelism)).astype(np.uint16)


def _hash(column: pa.Array[Any], kind: SparkType, seeds: Hashes) -> Hashes:
    if kind.kind == "void":
        return seeds
    if kind.kind == "struct":
        found = seeds
        for ordinal, child_kind in enumerate(kind.types):
            found = _hash(child(column, ordinal), child_kind, found)
    elif kind.kind in ("array", "map"):
        found = _hash_elements(column, kind, seeds)
    else:
        found = _hash_values(column, kind, seeds)
    if column.null_count == 0:
        return found
    return np.where(unpack(column.is_null()), seeds, found)


def _hash_elements(column: Any, kind: SparkType, seeds: Hashes) -> Hashes:
    """Hash the first element of every row, then the second of those that have one, and so on."""
    offsets = list_offsets(column)
    counts = offsets[1:] - offsets[:-1]
    if kind.kind == "map":
        children = [(column.keys, kind.types[0]), (column.items, kind.types[1])]
    else:
        children = [(column.values, kind.types[0])]
    found = seeds.copy()
    for number in range(int(counts.max(initial=0))):
        has = np.flatnonzero(counts > number)
        index = from_numpy(offsets[has] + number, pa.int64())
        part = found[has]
        for elements, child_kind in children:
            part = _hash(elements.take(index), child_kind, part)
        found[has] = part
    return found


def _hash_values(column: pa.Array[Any], kind: SparkType, seeds: Hashes) -> Hashes:
    name = kind.kind
    if name == "boolean":
        return _hash_int(unpack(column).view(np.int8), seeds)
    if name in ("string", "binary"):
        return _hash_bytes(ByteRanges.of_column(column), seeds)
    if name in _INTS:
        return _hash_int(to_numpy(column, _INTS[name]), seeds)
    if name in _LONGS:
        return _hash_long(to_numpy(column, np.int64), seeds)
    if name in ("float", "double"):
        return _hash_floating(column, name, seeds)
    if name == "decimal":
        return _hash_decimal(column, kind, seeds)
    if name == "year-month interval":
        return _hash_int(to_numpy(column, INTERVAL)["months"], seeds)
    if name == "interval":
        parts = to_numpy(column, INTERVAL)
        found = _hash_long(parts["nanoseconds"] // 1000, seeds)
        return _hash_int(parts["months"], _hash_int(parts["days"], found))
    raise IncompatibleError(
        "a column is of a data type that Spark does not partition by",
        type=name,
        to_fix="report it with the query's stateful operators",
    )


def _hash_floating(column: pa.Array[Any], name: str, seeds: Hashes) -> Hashes:
    float_type, int_type, nan = (
        (np.float32, np.int32, 0x7FC00000)
        if name == "float"
        else (np.float64, np.int64, 0x7FF8000000000000)
    )
    values = to_numpy(column, float_type)
    words = np.where(values == 0, 0, values.view(int_type))  # -0.0 is 0.0
    words = np.where(np.isnan(values), int_type(nan), words)
    return (_hash_int if name == "float" else _hash_long)(words, seeds)


def _hash_decimal(column: pa.Array[Any], kind: SparkType, seeds: Hashes) -> Hashes:
    if kind.precision <= 18:
        return _hash_long(to_numpy(column, [("lower", "<i8"), ("upper", "<i8")])["lower"], seeds)
    return _hash_bytes(large_decimals(column), seeds)


def _hash_bytes(ranges: ByteRanges, seeds: Hashes) -> Hashes:
    """Hash words of 4 bytes, then the remaining bytes one by one."""
    # Longest first, so that those that have no more words are at the end.
    order = np.argsort(-ranges.sizes, kind="stable")
    starts, sizes = ranges.starts[order], ranges.sizes[order]
    found = seeds[order]
    num_words = sizes // 4
    for word in range(int(num_words.max(initial=0))):
        active = int(np.searchsorted(-num_words, -word, "left"))
        values = ranges.read("<i4", starts[:active] + 4 * word)
        found[:active] = _mix(found[:active], values)
    for byte in range(3):
        active_rows = np.flatnonzero(sizes % 4 > byte)
        values = ranges.read("i1", (starts + num_words * 4)[active_rows] + byte)
        found[active_rows] = _mix(found[active_rows], values)
    result = np.empty_like(found)
    result[order] = _finish(found, sizes.astype(np.uint32))
    return result


def _hash_int(values: npt.NDArray[Any], seeds: Hashes) -> Hashes:
    return _finish(_mix(seeds, values), np.uint32(4))


def _hash_long(values: npt.NDArray[Any], seeds: Hashes) -> Hashes:
    words = values.astype(np.int64)
    upper = _mix(_mix(seeds, words), words >> 32)
    return _finish(upper, np.uint32(8))


def _mix(hashes: Hashes, values: npt.NDArray[Any]) -> Hashes:
    """Mix the lower 32 bits of sign-extended numbers into hashes."""
    word = values.astype(np.int64).astype(np.uint32)
    word = word * np.uint32(0xCC9E2D51)
    word = (word << np.uint32(15) | word >> np.uint32(17)) * np.uint32(0x1B873593)
    mixed = hashes ^ word
    mixed = mixed << np.uint32(13) | mixed >> np.uint32(19)
    return mixed * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashes: Hashes, num_bytes: Any) -> Hashes:
    mixed = hashes ^ num_bytes
    mixed = (mixed ^ mixed >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ mixed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    found: Hashes = mixed ^ mixed >> np.uint32(16)
    return found
