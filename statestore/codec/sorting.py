"""Sorts rows that may not fit memory: pieces are sorted into runs on the local disk.

`merge_runs` merges the runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.codec.rows import SCHEMA, sort_rows, sort_rows_by_key, split_for_blocks
from statestore.codec.sealed_file import map_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

RUN_BYTES = 64 * 1024 * 1024
"""Rows sorted in memory at a time."""


class LocalRun:
    """A sorted run mapped from the local disk; deleting the file meanwhile is harmless.

    Args:
        path: An Arrow IPC file of rows in file order.
    """

    def __init__(self, path: str) -> None:
        self._reader = ipc.open_file(pa.BufferReader(map_file(path)))
        self.num_batches = self._reader.num_record_batches

    def batch(self, index: int) -> pa.RecordBatch:
        """Return one record batch."""
        return self._reader.get_batch(index)


def sort_into_runs(
    batches: Iterable[pa.RecordBatch],
    max_parallelism: int | None,
    directory: str,
    *,
    is_by_key: bool = False,
) -> list[LocalRun]:
    """Write rows as runs in file order, with no more than about RUN_BYTES of them in memory.

    Args:
        batches: Record batches of SCHEMA, in any order.
        max_parallelism: Number of key groups; None for runs by column family and key alone.
        is_by_key: Whether rows come in order of column family and key: `append_runs` then puts the
            runs together.
        directory: Local directory for the runs, empty; may be deleted when they are read.

    Raises:
        OSError: The local disk failed.
    """
    runs: list[LocalRun] = []
    for piece in gather(batches, RUN_BYTES):
        path = f"{directory}/{len(runs)}.arrow"
        if is_by_key and max_parallelism is not None:
            runs.append(_write_sorted(sort_rows_by_key(piece, max_parallelism), path))
        else:
            runs.append(write_run(piece, max_parallelism, path))
    return runs


def write_run(piece: pa.RecordBatch, max_parallelism: int | None, path: str) -> LocalRun:
    """Write rows as one run.

    Args:
        piece: Rows of SCHEMA in any order.
        max_parallelism: As `sort_into_runs`.
        path: Local path of the run; may be deleted when it is read.

    Raises:
        OSError: The local disk failed.
    """
    return _write_sorted(sort_rows(piece, max_parallelism), path)


def _write_sorted(rows: pa.RecordBatch, path: str) -> LocalRun:
    with ipc.new_file(path, SCHEMA) as file:
        for block in split_for_blocks(rows):
            file.write_batch(block)
    return LocalRun(path)


def gather(
    batches: Iterable[pa.RecordBatch], batch_bytes: int = RUN_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches of about so many bytes each."""
    waiting: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        waiting.append(batch)
        num_bytes += int(batch.nbytes)
        if num_bytes >= batch_bytes:
            yield from _combine(waiting)
            waiting, num_bytes = [], 0
    if waiting:
        yield from _combine(waiting)


def join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return record batches of one schema as one.

    Raises:
        ValueError: A column of them has more than 2 GiB.
    """
    joined = _combine(batches) or batches[:1]
    (one,) = joined
    return one


def _combine(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return record batches as one; none without rows, several above 2 GiB in a column."""
    return pa.Table.from_batches(batches).combine_chunks().to_batches()
