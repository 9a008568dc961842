"""Diff: rows added, removed and changed between two versions of a store, typed.

The versions may be of one checkpoint, or of two: a savepoint, a branch, the same query elsewhere,
another state backend or number of state partitions. Values are compared byte by byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.codec.byte_ranges import index_with_nulls, unpack
from statestore.codec.key_bytes import decode_keys, key_type, value_type
from statestore.codec.rows import from_numpy, no_rows, to_numpy
from statestore.core.errors import IncompatibleError
from statestore.operations.reading.ordering import Side, side_by_side
from statestore.operations.reading.read import decode_by_key
from statestore.operations.states import families_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import numpy.typing as npt

    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.states import FoundRows

_RAW = pa.schema({"key": pa.binary(), "old_value": pa.binary(), "new_value": pa.binary()})


@dataclass(frozen=True, slots=True)
class DiffCounts:
    """Keys by what happened to them; those that are equal are not counted."""

    added: int = 0
    removed: int = 0
    changed: int = 0


def diff_batches(
    old: FoundRows, new: FoundRows, scratch_directory: str
) -> Generator[pa.RecordBatch, None, None]:
    """Compare rows batch by batch; columns and errors as `Rows.diff_batches`.

    Args:
        old: Rows.
        new: Rows of the same kind, of the same checkpoint or another.
        scratch_directory: Local directory for what does not fit memory.
    """
    families = _families(old, new)
    yield _decode(no_rows(_RAW), *families)
    for raw in _differences(old, new, scratch_directory):
        yield _decode(raw, *families)


def count_differences(old: FoundRows, new: FoundRows, scratch_directory: str) -> DiffCounts:
    """Count what `diff_batches` would yield, in bounded memory; arguments and errors as there."""
    _families(old, new)
    added = removed = changed = 0
    for raw in _differences(old, new, scratch_directory):
        added += raw.column(1).null_count
        removed += raw.column(2).null_count
        changed += raw.num_rows - raw.column(1).null_count - raw.column(2).null_count
    return DiffCounts(added, removed, changed)


def _families(old: FoundRows, new: FoundRows) -> tuple[ColumnFamily, ColumnFamily]:
    # One of the versions may be from before the column family was made.
    of_old, of_new = (families_of(rows.states).get(rows.name) for rows in (old, new))
    _check_keys(of_old, of_new)
    either = of_new or of_old or new.family
    return of_old or either, of_new or either


def _check_keys(old: ColumnFamily | None, new: ColumnFamily | None) -> None:
    """Check that equal keys have equal bytes, and that both sides' keys are of the same types.

    Raises:
        IncompatibleError: They are encoded in different ways, or their types differ.
    """
    if old is None or new is None:
        return
    if (old.encoder, old.avro) != (new.encoder, new.avro):
        raise IncompatibleError(
            "keys that are encoded in different ways are not compared",
            column_family=new.name,
            old_encoder=old.encoder + (" as Avro" if old.avro else ""),
            new_encoder=new.encoder + (" as Avro" if new.avro else ""),
            to_fix="restore the checkpoint of Spark's own provider whose rows are Avro, or which "
            "has no prefixes of keys, and compare the new one",
        )
    if None in (old.key_schema, new.key_schema) or old.key_schema == new.key_schema:
        return
    if key_type(old).nameless != key_type(new).nameless:
        raise IncompatibleError(
            "keys of different types are not compared",
            column_family=new.name,
            old_key=key_type(old).arrow,
            new_key=key_type(new).arrow,
            to_fix="compare states of one query, whose grouping columns have the same types in the "
            "same order; join others by SQL, on the columns that they share",
        )


def _differences(
    old: FoundRows, new: FoundRows, scratch_directory: str
) -> Iterator[pa.RecordBatch]:
    """Yield (key, old value or null, new value or null) of the keys that differ."""
    sides = (Side(rows.states, rows.name, scratch_directory) for rows in (old, new))
    for old_rows, new_rows, groups in side_by_side(*sides):
        if not old_rows.select(["key", "value"]).equals(new_rows.select(["key", "value"])):
            raw = _compare(old_rows, new_rows, groups)
            if raw.num_rows:
                yield raw


def _compare(
    old_rows: pa.RecordBatch, new_rows: pa.RecordBatch, groups: npt.NDArray[np.uint32]
) -> pa.RecordBatch:
    """Sort the rows of both, an old one before the new one of its key, and compare neighbours."""
    keys: pa.Array[Any] = pa.concat_arrays([old_rows.column(3), new_rows.column(3)])
    is_new = np.arange(len(keys)) >= old_rows.num_rows
    columns = [from_numpy(groups, pa.uint32()), keys, pa.array(is_new.view(np.uint8))]
    order = pc.sort_indices(
        pa.table(columns, names=["group", "key", "is_new"]),
        sort_keys=[("group", "ascending"), ("key", "ascending"), ("is_new", "ascending")],
    )
    keys = keys.take(order)
    at = to_numpy(order, np.uint64).astype(np.int64)
    is_new = is_new[at]
    at[is_new] -= old_rows.num_rows
    is_pair = np.zeros(len(keys), bool)  # true at the old one of two rows of a key
    if len(keys) > 1:
        is_pair[:-1] = unpack(pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)))
        is_pair[:-1] &= ~is_new[:-1] & is_new[1:]
    # Where each key's old and new value are; -1 for nowhere.
    old_at = np.where(is_new, -1, at)
    new_at = np.where(is_new, at, np.where(is_pair, np.roll(at, -1), -1))
    # Values of both sides may be more than one column holds: each is taken from its own.
    old_values, new_values = old_rows.column(4), new_rows.column(4)
    pairs = np.flatnonzero(is_pair)
    is_same = np.zeros(len(keys), bool)
    is_same[pairs] = unpack(
        pc.equal(
            old_values.take(from_numpy(old_at[pairs], pa.int64())),
            new_values.take(from_numpy(new_at[pairs], pa.int64())),
        )
    )
    is_second = np.append(False, is_pair[:-1])
    wanted = np.flatnonzero(~is_second & ~is_same)
    old_at, new_at = old_at[wanted], new_at[wanted]
    return pa.RecordBatch.from_arrays(
        [
            keys.take(from_numpy(wanted, pa.int64())),
            old_values.take(index_with_nulls(old_at, old_at < 0)),
            new_values.take(index_with_nulls(new_at, new_at < 0)),
        ],
        schema=_RAW,
    )


def _decode(raw: pa.RecordBatch, old: ColumnFamily, new: ColumnFamily) -> pa.RecordBatch:
    keys, old_values, new_values = raw.columns
    is_added, is_removed = unpack(old_values.is_null()), unpack(new_values.is_null())
    change = np.where(is_added, "added", np.where(is_removed, "removed", "changed"))
    columns: list[pa.Array[Any]] = [
        pa.array(change.tolist(), pa.string()),
        decode_keys(keys, new),
        decode_by_key(old_values, old),
        decode_by_key(new_values, new),
    ]
    types = [value_type(old).arrow, value_type(new).arrow]
    old_type, new_type = (
        pa.list_(kind) if family.multi_values else kind
        for kind, family in zip(types, (old, new), strict=True)
    )
    schema = pa.schema(
        {
            "change": pa.string(),
            "key": key_type(new).arrow,
            "old_value": old_type,
            "new_value": new_type,
        }
    )
    return pa.RecordBatch.from_arrays(columns, schema=schema)
