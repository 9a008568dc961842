"""Rows of a state file as Arrow: schema, making record batches, order and its check."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.core.errors import InternalError
from statestore.core.key_groups import rank_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from statestore.codec.column_family import ColumnFamily
    from statestore.core.key_groups import KeyGroupSet

PUT, DELETE, MERGE = 0, 1, 2

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key_group", pa.uint16(), nullable=False),
    pa.field("column_family", pa.uint16(), nullable=False),
    pa.field("op", pa.uint8(), nullable=False),
    pa.field("key", pa.binary(), nullable=False),
    pa.field("value", pa.binary(), nullable=True),
]
SCHEMA = pa.schema(_FIELDS)

MAX_BLOCK_ROWS = 16_384
MAX_BLOCK_BYTES = 4 * 1024 * 1024
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Bytes of a record batch in memory, about: a column of one holds 2 GiB at most."""

RowKey = tuple[int, bytes]
"""Place of a row in file order: rank * 65536 + column family, key."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a delta; value is None exactly for a delete."""

    key_group: int
    column_family: int
    op: int
    key: bytes
    value: bytes | None


def batch_from_rows(rows: Iterable[Row], max_parallelism: int) -> pa.RecordBatch:
    """Return rows as a record batch in file order; arguments as `batches_from_rows`."""
    return _as_batch(_in_file_order(rows, max_parallelism))


def batches_from_rows(rows: Iterable[Row], max_parallelism: int) -> list[pa.RecordBatch]:
    """Return rows in file order as record batches of about MAX_BATCH_BYTES; at least one.

    For the Python store, row by row.

    Args:
        rows: Each (column family, key) at most once, in any order.
        max_parallelism: Number of key groups.
    """
    ordered = _in_file_order(rows, max_parallelism)
    sizes = np.array([len(row.key) + len(row.value or b"") for row in ordered], np.int64)
    return [_as_batch(ordered[part]) for part in parts_by_bytes(sizes, MAX_BATCH_BYTES)]


def parts_by_bytes(sizes: npt.NDArray[np.int64], part_bytes: int) -> Iterator[slice]:
    """Cut rows into parts of about so many bytes, each longer by one row at most.

    Args:
        sizes: Bytes of each row.
        part_bytes: Bytes of a part.

    Yields:
        The rows of each part, in order; one part without rows where there are none.
    """
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // part_bytes)) + 1
    for start, end in pairwise([0, *cuts.tolist(), len(sizes)]):
        yield slice(start, end)


def _in_file_order(rows: Iterable[Row], max_parallelism: int) -> list[Row]:
    ranks = rank_table(max_parallelism)
    return sorted(rows, key=lambda row: (int(ranks[row.key_group]), row.column_family, row.key))


def _as_batch(ordered: Sequence[Row]) -> pa.RecordBatch:
    columns = [
        pa.array((getattr(row, field.name) for row in ordered), field.type, size=len(ordered))
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def write_options(compression: str) -> ipc.IpcWriteOptions:
    """Return Arrow's options for the option file.compression, "none" or "zstd"."""
    return ipc.IpcWriteOptions(compression="zstd" if compression == "zstd" else None)


def from_numpy(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return a numpy array of the same width as an Arrow array, without copying.

    `pa.array` would import pandas when it is installed, which takes longer than starting the
    engine. An empty array serves every type.
    """
    if len(values) == 0:
        nothing = pa.py_buffer(bytes(8))
        return pa.Array.from_buffers(kind, 0, [None, *[nothing] * (kind.num_buffers - 1)])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.data)])


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch without rows; `from_pylist` would import pandas."""
    columns: list[pa.Array[Any]] = [pa.nulls(0, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def to_numpy(column: pa.Array[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a fixed-width Arrow array as numpy without copying, undefined where null."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), dtype)
    # A buffer may be longer than its column, by no whole number of values.
    end = column.offset + len(column)
    found: npt.NDArray[Any] = np.frombuffer(memoryview(data), dtype, end)[column.offset :]
    return found


def sort_group(batch: pa.RecordBatch, max_parallelism: int | None) -> npt.NDArray[np.uint32]:
    """Return a number of each row: its order is by this, then by key.

    In file order it is rank * 65536 + column family; without a number of key groups the column
    family alone.
    """
    families: npt.NDArray[np.uint32] = to_numpy(batch.column(1), np.uint16).astype(np.uint32)
    if max_parallelism is None:
        return families
    ranks = rank_table(max_parallelism)[to_numpy(batch.column(0), np.uint16)]
    groups: npt.NDArray[np.uint32] = ranks.astype(np.uint32) << np.uint32(16) | families
    return groups


def place_of(
    groups: npt.NDArray[np.uint32], keys: pa.Array[Any], key: RowKey, *, is_behind: bool = False
) -> int:
    """Return the first row at or behind a place, or behind it only; their number without one.

    Args:
        groups: What `sort_group` returns of sorted rows.
        keys: Their keys.
        key: The place.
        is_behind: Whether rows at the place itself are passed over.
    """
    group, of_group = key
    low = int(np.searchsorted(groups, group, "left"))
    high = int(np.searchsorted(groups, group, "right"))
    find = bisect.bisect_right if is_behind else bisect.bisect_left
    return low + find(range(low, high), of_group, key=lambda row: keys[row].as_py())


def rows_by_family(
    batch: pa.RecordBatch, families: Iterable[ColumnFamily]
) -> Iterator[tuple[ColumnFamily, npt.NDArray[np.int64]]]:
    """Yield each column family that has rows in a record batch, and which these are, ascending."""
    of_rows = to_numpy(batch.column(1), np.uint16)
    for family in families:
        rows = np.flatnonzero(of_rows == family.id)
        if len(rows):
            yield family, rows


def rows_in(batch: pa.RecordBatch, key_groups: KeyGroupSet) -> pa.RecordBatch:
    """Return the rows of a record batch whose key group is in a set."""
    groups = to_numpy(batch.column(0), np.uint16)
    is_in = groups % key_groups.modulus == key_groups.remainder
    return pick(batch, is_in)


def pick(batch: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows of a record batch for which a mask holds."""
    return batch if mask.all() else batch.take(from_numpy(np.flatnonzero(mask), pa.int64()))


def sort_rows(rows: pa.RecordBatch, max_parallelism: int | None) -> pa.RecordBatch:
    """Return rows in file order; by column family and key without a number of key groups."""
    # Imported here because an engine that only loads and commits never needs it.
    import pyarrow.compute as pc

    groups = from_numpy(sort_group(rows, max_parallelism), pa.uint32())
    order = pc.sort_indices(
        pa.table([groups, rows.column(3)], names=["group", "key"]),
        sort_keys=[("group", "ascending"), ("key", "ascending")],
    )
    return rows.take(order)


def sort_rows_by_key(rows: pa.RecordBatch, max_parallelism: int) -> pa.RecordBatch:
    """Return rows in file order whose keys ascend within each key group: no key is looked at."""
    ranks = rank_table(max_parallelism)[to_numpy(rows.column(0), np.uint16)]
    return rows.take(from_numpy(np.argsort(ranks, kind="stable"), pa.int64()))


def check_key_group_order(
    key_groups: pa.Array[Any], previous_rank: int, max_parallelism: int, path: str
) -> int:
    """Check that key groups of a block are in range and in rank order; return the last rank.

    Raises:
        InternalError: They are not, by a fault of the file's writer.
    """
    values = to_numpy(key_groups, np.uint16)
    if len(values) == 0:
        return previous_rank
    largest = int(values.max())
    if largest < max_parallelism:
        ranks = rank_table(max_parallelism)[values]
        if int(ranks[0]) >= previous_rank and not (ranks[1:] < ranks[:-1]).any():
            return int(ranks[-1])
    raise InternalError(
        "rows of a state file are not in the order of their key groups",
        file=path,
        max_parallelism=max_parallelism,
        largest_key_group=largest,
        to_fix="report it with the query's stateful operators; nothing was published",
    )


def split_for_blocks(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut a record batch into pieces of at most 16,384 rows and about 4 MiB, without copying."""
    pieces: list[pa.RecordBatch] = []
    num_pieces = max(
        1, -(-batch.num_rows // MAX_BLOCK_ROWS), -(-int(batch.nbytes) // MAX_BLOCK_BYTES)
    )
    step = -(-batch.num_rows // num_pieces)
    if step == 0:
        return pieces
    return [batch.slice(start, step) for start in range(0, batch.num_rows, step)]
