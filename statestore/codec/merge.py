"""Merges sorted runs, last writer wins, vectorised, in bounded memory.

A run is mostly a state file; runs are given oldest first. `merge_runs` walks them slice by slice in
file order (rank of the key group, column family, key), so that never more than a slice of the state
is in memory. `interleave` does so for runs without a key in common, and keeps every row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from statestore.codec.rows import (
    DELETE,
    MERGE,
    PUT,
    SCHEMA,
    from_numpy,
    no_rows,
    pick,
    place_of,
    sort_group,
    sort_rows,
    sort_rows_by_key,
    to_numpy,
)
from statestore.core.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from statestore.codec.rows import RowKey

SLICE_BYTES = 4 * 1024 * 1024


class SortedRun(Protocol):
    """Rows in file order: a state file, with each key once, or a temporary sorted run.

    Of the rows of a key the later ones are younger.
    """

    @property
    def num_batches(self) -> int:
        """Number of record batches; some may be empty."""
        ...

    def batch(self, index: int) -> pa.RecordBatch:
        """Return one record batch."""
        ...


class _Cursor:
    """A run read in file order; keeps only the record batch of its position."""

    def __init__(self, run: SortedRun, max_parallelism: int | None) -> None:
        self._run = run
        self._max_parallelism = max_parallelism
        self._index = -1
        self._batch: pa.RecordBatch | None = None
        self._groups: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self._start = 0

    def take_until(self, end: RowKey | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows from where the last call stopped up to a key, None for all."""
        while True:
            batch = self._batch or self._next_batch()
            if batch is None:
                return
            stop = batch.num_rows
            if end is not None:
                stop = max(place_of(self._groups, batch.column(3), end), self._start)
            if stop > self._start:
                yield batch.slice(self._start, stop - self._start)
                self._start = stop
            if stop < batch.num_rows:
                return
            self._batch = None

    def _next_batch(self) -> pa.RecordBatch | None:
        if self._index + 1 >= self._run.num_batches:
            return None
        self._index += 1
        self._batch = self._run.batch(self._index)
        self._groups = sort_group(self._batch, self._max_parallelism)
        self._start = 0
        return self._batch


def merge_runs(
    runs: Sequence[SortedRun],
    max_parallelism: int | None,
    *,
    slice_bytes: int = SLICE_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Merge runs into the live rows of the state, in the order of the runs.

    Args:
        runs: Oldest first; each sorted by (rank, column family, key).
        max_parallelism: Number of key groups; None where runs are by column family and key alone.
        slice_bytes: Bytes of rows that are merged at a time, about.

    Yields:
        Record batches of puts only, each key once, each batch about slice_bytes or less.

    Raises:
        CorruptionError: A block does not match its checksum.
    """
    for pieces, ages in _slices(runs, max_parallelism, slice_bytes):
        merged = merge_rows(pieces, ages, max_parallelism)
        if merged.num_rows:
            yield merged


def interleave(
    runs: Sequence[SortedRun],
    max_parallelism: int | None,
    *,
    slice_bytes: int = SLICE_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield every row of runs without a common key, deletes too, in order.

    Args:
        runs: As `merge_runs`; in any order.
        max_parallelism: Number of key groups; None where runs are by column family and key alone.
        slice_bytes: Bytes of rows that are put in order at a time, about.

    Raises:
        CorruptionError: As `merge_runs`.
    """
    for pieces, _ in _slices(runs, max_parallelism, slice_bytes):
        if len(pieces) == 1:
            yield pieces[0]
        elif pieces:
            yield sort_rows(_single_batch(pieces), max_parallelism)


def append_runs(
    runs: Sequence[SortedRun], max_parallelism: int, *, slice_bytes: int = SLICE_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of runs in file order, where each has later keys than those before it.

    That is so within each key group: no key is looked at. Arguments and errors as `merge_runs`.
    """
    for pieces, _ in _slices(runs, max_parallelism, slice_bytes):
        if len(pieces) == 1:
            yield pieces[0]
        elif pieces:
            yield sort_rows_by_key(_single_batch(pieces), max_parallelism)


def _slices(
    runs: Sequence[SortedRun], max_parallelism: int | None, slice_bytes: int
) -> Iterator[tuple[list[pa.RecordBatch], list[int]]]:
    """Yield the rows of each slice as pieces of runs, and the index of each piece's run.

    All rows of a key are in one slice.
    """
    if len(runs) == 1:
        for block in _blocks(runs[0], max_parallelism):
            yield block, [0] * len(block)
        return
    cursors = [_Cursor(run, max_parallelism) for run in runs]
    for end in [*_slice_ends(runs, max_parallelism, slice_bytes), None]:
        pieces: list[pa.RecordBatch] = []
        ages: list[int] = []
        for age, cursor in enumerate(cursors):
            for piece in cursor.take_until(end):
                pieces.append(piece)
                ages.append(age)
        yield pieces, ages


def _blocks(run: SortedRun, max_parallelism: int | None) -> Iterator[list[pa.RecordBatch]]:
    """Yield a run record batch by record batch; rows of a key that are in several come together."""
    held: list[pa.RecordBatch] = []
    for index in range(run.num_batches):
        batch = run.batch(index)
        if batch.num_rows == 0:
            continue
        if held:
            start = _start_of_key(held[-1], batch, max_parallelism)
            # Where it is not 0, what is held before the key has no row of it.
            if start:
                yield [*held[:-1], held[-1].slice(0, start)]
                held = [held[-1].slice(start)] if start < held[-1].num_rows else []
        held.append(batch)
    if held:
        yield held


def _start_of_key(
    before: pa.RecordBatch, batch: pa.RecordBatch, max_parallelism: int | None
) -> int:
    """Return the first row in a record batch of the key that the next one starts with."""
    key = batch.column(3)[0].as_py()
    keys = before.column(3)
    if keys[-1].as_py() != key:
        return before.num_rows
    groups = sort_group(before, max_parallelism)
    group = int(sort_group(batch.slice(0, 1), max_parallelism)[0])
    return place_of(groups, keys, (group, key))


def _slice_ends(
    runs: Sequence[SortedRun], max_parallelism: int | None, slice_bytes: int
) -> list[RowKey]:
    """Choose where slices end: every run proposes a row about each 1/16 of a slice."""
    proposals: list[tuple[RowKey, int]] = []
    for run in runs:
        for index in range(run.num_batches):
            batch = run.batch(index)
            if batch.num_rows == 0:
                continue
            groups = sort_group(batch, max_parallelism)
            num_pieces = max(1, -(-16 * int(batch.nbytes) // slice_bytes))
            step = -(-batch.num_rows // num_pieces)
            weight = int(batch.nbytes) * step // batch.num_rows
            proposals += [
                ((int(groups[row]), batch.column(3)[row].as_py()), weight)
                for row in range(0, batch.num_rows, step)
            ]
    proposals.sort()
    ends: list[RowKey] = []
    filled = 0
    for row_key, weight in proposals:
        if filled + weight > slice_bytes and filled:
            ends.append(row_key)
            filled = 0
        filled += weight
    return ends


def merge_rows(
    pieces: Sequence[pa.RecordBatch], ages: Sequence[int], max_parallelism: int | None
) -> pa.RecordBatch:
    """Merge rows of several runs, all of one slice, into live rows.

    Args:
        pieces: Record batches of SCHEMA.
        ages: Age of each piece, ascending from the oldest; a younger row wins over an older one.
        max_parallelism: As `merge_runs`.

    Returns:
        Puts only, in the order of the runs. A key with merges has its put's value, if any after the
        last delete, with the merged values appended in order of age.
    """
    # Imported here because an engine that only loads and commits never needs it.
    import pyarrow.compute as pc

    filled = [(piece, age) for piece, age in zip(pieces, ages, strict=True) if piece.num_rows]
    if not filled:
        return _EMPTY
    pieces = [piece for piece, _ in filled]
    groups = np.concatenate([sort_group(piece, max_parallelism) for piece in pieces])
    ops = np.concatenate([to_numpy(piece.column(2), np.uint8) for piece in pieces])
    keys: Any = pa.concat_arrays([piece.column(3) for piece in pieces])
    order = np.arange(len(groups))
    if len(filled) > 1:
        age_column = np.concatenate([np.full(p.num_rows, age, np.int32) for p, age in filled])
        sorted_indices = pc.sort_indices(
            pa.table(
                [from_numpy(groups, pa.uint32()), keys, from_numpy(age_column, pa.int32())],
                names=["group", "key", "age"],
            ),
            sort_keys=[("group", "ascending"), ("key", "ascending"), ("age", "ascending")],
        )
        order = to_numpy(sorted_indices, np.uint64).astype(np.int64)
        groups, ops, keys = groups[order], ops[order], keys.take(sorted_indices)
    starts_key = _starts_of_keys(keys, groups)
    # Of a key that changes often most rows go: values are put together of those that stay.
    if not (ops == MERGE).any():
        counts = np.append(starts_key[1:], True) & (ops == PUT)
        return _as_puts(_taken(pieces, order[counts]))
    key_number = np.cumsum(starts_key) - 1
    counts = _counting(ops, key_number)
    return _joined(_taken(pieces, order[counts]), key_number[counts])


_EMPTY = no_rows(SCHEMA)


def _single_batch(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(pieces) == 1:
        return pieces[0]
    batches = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    if len(batches) != 1:
        raise InternalError(
            "rows that are merged together do not fit one record batch",
            num_bytes=sum(int(piece.nbytes) for piece in pieces),
            to_fix="keep the values of a single key below 1 GiB",
        )
    return batches[0]


def _taken(pieces: Sequence[pa.RecordBatch], rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows by their number in all pieces together; values of others are not copied."""
    if not len(rows):
        return _EMPTY
    ends = np.cumsum([piece.num_rows for piece in pieces])
    if len(rows) < ends[-1]:
        is_taken = np.zeros(ends[-1], bool)
        is_taken[rows] = True
        starts = np.append(0, ends[:-1])
        pieces = [
            pick(piece, is_taken[start:end])
            for piece, start, end in zip(pieces, starts, ends, strict=True)
        ]
        rows = np.cumsum(is_taken)[rows] - 1
    taken = _single_batch(pieces)
    is_in_order = bool((rows[1:] > rows[:-1]).all())
    return taken if is_in_order else taken.take(from_numpy(rows, pa.int64()))


def _starts_of_keys(keys: Any, groups: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """Return which of the sorted rows are the first of their key."""
    import pyarrow.compute as pc

    starts = np.ones(len(keys), bool)
    if len(keys) > 1:
        other_key = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        differs = to_numpy(other_key.cast(pa.uint8()), np.uint8).astype(bool)
        starts[1:] = differs | (groups[1:] != groups[:-1])
    return starts


def _counting(
    ops: npt.NDArray[np.uint8], key_number: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which rows count: those from the last put or delete of their key on, but deletes."""
    row = np.arange(len(ops))
    last_base = np.full(key_number[-1] + 1, -1)
    is_base = ops != MERGE
    # Rows ascend, and of several assignments to one place numpy keeps the last.
    last_base[key_number[is_base]] = row[is_base]
    counts: npt.NDArray[np.bool_] = (row >= last_base[key_number]) & (ops != DELETE)
    return counts


def _joined(kept: pa.RecordBatch, kept_keys: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Join the values of each key, whose rows lie side by side."""
    if not len(kept_keys):
        return _EMPTY
    starts = np.flatnonzero(np.append(True, kept_keys[1:] != kept_keys[:-1]))
    # Dropping the offsets between values joins them.
    values = kept.column(4)
    data = values.buffers()[2]
    offsets = _offsets(values)
    joined = np.append(offsets[starts], offsets[-1]).astype(np.int32)
    firsts = kept.take(from_numpy(starts, pa.int64()))
    column = pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(joined.data), data]
    )
    columns = [*firsts.columns[:4], column]
    return _as_puts(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def _offsets(values: pa.Array[Any]) -> npt.NDArray[np.int32]:
    buffer = values.buffers()[1]
    raw = memoryview(bytes(4) if buffer is None else buffer)
    return np.frombuffer(raw, np.int32, values.offset + len(values) + 1)[values.offset :]


def _as_puts(batch: pa.RecordBatch) -> pa.RecordBatch:
    if not to_numpy(batch.column(2), np.uint8).any():
        return batch
    ops = from_numpy(np.full(batch.num_rows, PUT, np.uint8), pa.uint8())
    columns = [*batch.columns[:2], ops, *batch.columns[3:]]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
