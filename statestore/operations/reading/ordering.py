"""Rows of versions in one order, so that two of them can be walked side by side.

Within a state partition the rows of a state file are in file order already, and those of the
rocksdb backend in order of column family and key. Where two versions are not in the same order, or
not split into the same state partitions, both are sorted by column family and key: in pieces, on
the local disk.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from statestore.codec.merge import merge_runs
from statestore.codec.rows import SCHEMA, from_numpy, no_rows, place_of, sort_group
from statestore.codec.sorting import sort_into_runs
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from statestore.codec.rows import RowKey
    from statestore.operations.store_state import States, StoreState


@dataclass(frozen=True, slots=True)
class Side:
    """A version of a store.

    Attributes:
        states: The version, one a state partition.
        column_family: Name of the column family wanted; the version may have none of it.
        scratch_directory: Local directory to sort rows in.
    """

    states: States
    column_family: str
    scratch_directory: str

    @property
    def num_partitions(self) -> int:
        """Number of state partitions."""
        return self._first.num_partitions

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return self._first.max_parallelism

    @property
    def is_by_key(self) -> bool:
        """Whether rows of a state partition are in order of column family and key."""
        return self._first.is_by_key

    @property
    def _first(self) -> StoreState:
        return next(iter(self.states.values()))

    def contents(self, partition: int) -> tuple[object, ...] | None:
        """Return what a state partition is made of, None for no state.

        Where two are equal, each column family has the same rows in both.
        """
        for store, state in self.states.items():
            if store.partition == partition:
                return state.contents
        return None

    def rows(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one state partition, with 0 as the ID of their column family.

        Its ID is not the same in every store: it tells which column family was made first.
        """
        for store, state in self.states.items():
            if store.partition == partition:
                for batch in state.rows(self.column_family):
                    yield _with_zeros(batch, 1)

    def all_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all state partitions."""
        for store in self.states:
            yield from self.rows(store.partition)


def side_by_side(
    old: Side, new: Side
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch, npt.NDArray[np.uint32]]]:
    """Walk two versions side by side, passing over state partitions made of the same files.

    Yields:
        Rows of the old version and of the new one such that a key of either is only here, and the
        order of all of them, the old ones first: by (group, key), where the group is the third.
    """
    if old.num_partitions != new.num_partitions:
        yield from _aligned(_by_key(old, None), _by_key(new, None), 1)
        return
    in_file_order = (
        not old.is_by_key and not new.is_by_key and old.max_parallelism == new.max_parallelism
    )
    for partition in range(new.num_partitions):
        is_same_family = old.column_family == new.column_family
        if is_same_family and old.contents(partition) == new.contents(partition):
            continue
        if in_file_order:
            yield from _aligned(old.rows(partition), new.rows(partition), new.max_parallelism)
        else:
            yield from _aligned(_by_key(old, partition), _by_key(new, partition), 1)


def _by_key(side: Side, partition: int | None) -> Iterator[pa.RecordBatch]:
    """Yield rows in order of column family and key, their key groups all 0."""
    rows = side.all_rows() if partition is None else side.rows(partition)
    without_groups = (_with_zeros(batch, 0) for batch in rows)
    if side.is_by_key and partition is not None:
        yield from without_groups
        return
    with tempfile.TemporaryDirectory(prefix="sort-", dir=side.scratch_directory) as directory:
        with named_errors("sort rows in the scratch directory", directory):
            runs = sort_into_runs(without_groups, 1, directory)
        yield from merge_runs(runs, 1)


def _with_zeros(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Return rows with 0 in a column of numbers: 0 is the key group, 1 the column family."""
    zeros = from_numpy(np.zeros(batch.num_rows, np.uint16), pa.uint16())
    columns = [*batch.columns[:number], zeros, *batch.columns[number + 1 :]]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class _Stream:
    """Sorted rows, read as far as asked for."""

    def __init__(self, batches: Iterator[pa.RecordBatch], max_parallelism: int) -> None:
        self._batches = batches
        self._max_parallelism = max_parallelism
        self._batch = no_rows(SCHEMA)
        self._groups: npt.NDArray[np.uint32] = np.empty(0, np.uint32)

    def fill(self) -> bool:
        """Have rows at hand unless there are no more."""
        while self._batch.num_rows == 0:
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._batch, self._groups = batch, sort_group(batch, self._max_parallelism)
        return True

    def last(self) -> RowKey:
        """Return group and key of the last row at hand."""
        return int(self._groups[-1]), self._batch.column(3)[-1].as_py()

    def take_through(self, end: RowKey) -> tuple[pa.RecordBatch, npt.NDArray[np.uint32]]:
        """Return the rows at hand up to a key and with it, and their groups."""
        stop = place_of(self._groups, self._batch.column(3), end, is_behind=True)
        taken = self._batch.slice(0, stop), self._groups[:stop]
        self._batch, self._groups = self._batch.slice(stop), self._groups[stop:]
        return taken


def _aligned(
    old: Iterator[pa.RecordBatch], new: Iterator[pa.RecordBatch], max_parallelism: int
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch, npt.NDArray[np.uint32]]]:
    streams = [_Stream(rows, max_parallelism) for rows in (old, new)]
    while True:
        ends = [stream.last() for stream in streams if stream.fill()]
        if not ends:
            return
        end = min(ends)
        (old_rows, old_groups), (new_rows, new_groups) = (
            stream.take_through(end) for stream in streams
        )
        yield old_rows, new_rows, np.concatenate([old_groups, new_groups])
