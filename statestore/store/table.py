"""A version in memory: an immutable tuple of sorted runs, shared with every other version.

`apply` makes the next version out of all runs of this one and the delta; nothing is copied, so an
older version stays readable as long as somebody holds it. Rows are looked up run by run, youngest
first; `merged` makes one of runs that are many, where all are in memory.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.codec.merge import merge_runs
from statestore.codec.rows import (
    DELETE,
    MAX_BATCH_BYTES,
    MERGE,
    PUT,
    SCHEMA,
    from_numpy,
    parts_by_bytes,
    pick,
    to_numpy,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from statestore.backends.rocksdb.view import View
    from statestore.checkpoint.load import LoadedVersion
    from statestore.codec.state_file import StateFile


MAX_RUNS = 32
"""Runs of a version; more of them become one."""


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row of one run: what it does, its value (None for a delete) and its key group."""

    op: int
    value: bytes | None
    key_group: int


class Run(Protocol):
    """Sorted rows of one column family and key each, immutable."""

    def find(self, column_family: int, key: bytes) -> FoundRow | None:
        """Return the row of a key, or None."""
        ...

    def take_prefix(self, column_family: int, prefix: bytes) -> list[pa.RecordBatch]:
        """Return the rows of a column family whose key begins with a prefix, in key order."""
        ...


class ArrowRun:
    """Rows of one delta or snapshot, immutable.

    The index by (column family, key) is made on the first lookup, the sizes of rows on the first
    scan: 8 bytes a row each.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Keep record batches of SCHEMA, zero-copy; they hold their files' mappings alive.

        Args:
            batches: In file order.
        """
        self._batches = [batch for batch in batches if batch.num_rows]
        self.rows = pa.Table.from_batches(self._batches, schema=SCHEMA)

    @property
    def num_batches(self) -> int:
        """Number of record batches, none of them empty."""
        return len(self._batches)

    def batch(self, index: int) -> pa.RecordBatch:
        """Return one record batch."""
        return self._batches[index]

    @classmethod
    def from_file(cls, file: StateFile) -> ArrowRun:
        """Map the rows of a state file.

        Raises:
            CorruptionError: A block does not match its checksum.
        """
        return cls([file.batch(index) for index in range(file.num_batches)])

    @cached_property
    def _by_key(self) -> npt.NDArray[np.uint64]:
        """Row numbers ordered by column family and key."""
        order = pc.sort_indices(
            self.rows.select(["column_family", "key"]),
            sort_keys=[("column_family", "ascending"), ("key", "ascending")],
        )
        return to_numpy(order, np.uint64)

    def find(self, column_family: int, key: bytes) -> FoundRow | None:
        """Return the row of a key, or None."""
        place = self._first_at(column_family, key)
        if place == self.rows.num_rows or self._key_at(place) != (column_family, key):
            return None
        row = int(self._by_key[place])
        value = self.rows.column(4)[row].as_py()
        return FoundRow(self.rows.column(2)[row].as_py(), value, self.rows.column(0)[row].as_py())

    def take_prefix(self, column_family: int, prefix: bytes) -> list[pa.RecordBatch]:
        """Return the rows of a column family whose key begins with a prefix, in key order."""
        start = self._first_at(column_family, prefix)
        following = _after_prefix(prefix)
        if following is None:
            end = self._first_at(column_family + 1, b"")
        else:
            end = self._first_at(column_family, following)
        rows = self._by_key[start:end].astype(np.int64)
        parts = parts_by_bytes(self._row_bytes[rows], MAX_BATCH_BYTES) if len(rows) else ()
        return [self._take(rows[part]) for part in parts]

    def _take(self, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return rows by their numbers, at a cost that goes by these alone."""
        batches = np.searchsorted(self._ends, rows, side="right")
        pieces: list[pa.RecordBatch] = []
        for number in np.unique(batches):
            batch = self._batches[number]
            start = int(self._ends[number]) - batch.num_rows
            own = rows[batches == number] - start
            pieces.append(batch.take(from_numpy(own, pa.int64())))
        if len(pieces) == 1:
            return pieces[0]
        places = np.empty(len(rows), np.int64)
        places[np.argsort(batches, kind="stable")] = np.arange(len(rows))
        joined: pa.RecordBatch
        (joined,) = pa.Table.from_batches(pieces).combine_chunks().to_batches()
        return joined.take(from_numpy(places, pa.int64()))

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """Return the number of rows up to the end of each batch."""
        return np.cumsum([batch.num_rows for batch in self._batches], dtype=np.int64)

    @cached_property
    def _row_bytes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of each row's key and value."""
        lengths = (pc.binary_length(self.rows.column(number)) for number in (3, 4))
        sizes: list[npt.NDArray[np.int64]] = [
            each.fill_null(0).to_numpy().astype(np.int64) for each in lengths
        ]
        return sizes[0] + sizes[1]

    def _first_at(self, column_family: int, key: bytes) -> int:
        return bisect.bisect_left(range(self.rows.num_rows), (column_family, key), key=self._key_at)

    def _key_at(self, place: int) -> tuple[int, bytes]:
        row = int(self._by_key[place])
        return self.rows.column(1)[row].as_py(), self.rows.column(3)[row].as_py()


class ViewRun:
    """Rows of a version in RocksDB."""

    def __init__(self, view: View) -> None:
        self._view = view

    def find(self, column_family: int, key: bytes) -> FoundRow | None:
        """Return the row of a key, or None."""
        found = self._view.get(column_family, key)
        return None if found is None else FoundRow(PUT, found[1], found[0])

    def take_prefix(self, column_family: int, prefix: bytes) -> list[pa.RecordBatch]:
        """Return the rows of a column family whose key begins with a prefix, in key order."""
        rows = list(self._view.scan(column_family, prefix))
        groups, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
        constant = ([column_family] * len(rows), [PUT] * len(rows))
        return pa.table([groups, *constant, keys, values], schema=SCHEMA).to_batches()


def _after_prefix(prefix: bytes) -> bytes | None:
    """Return the least key behind every key with the prefix, None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


@dataclass(frozen=True)
class Table:
    """One version of a store's rows.

    Attributes:
        runs: Oldest first; a younger run wins over an older one.
        max_parallelism: Number of key groups.
        num_keys: Rows of the version.
    """

    runs: tuple[Run, ...]
    max_parallelism: int
    num_keys: int

    @classmethod
    def from_restored(cls, restored: LoadedVersion) -> Table:
        """Map the files of a restored version, or open its view."""
        head = restored.head.trailer
        num_keys = head.num_keys
        if restored.view:
            # Known to be there: it made the view.
            from statestore.backends.rocksdb.view import View

            view = View(restored.view, restored.owned)
            num_keys = view.count() if num_keys is None else num_keys
            return cls((ViewRun(view),), head.max_parallelism, num_keys)
        runs = tuple(ArrowRun.from_file(file) for file in restored.files)
        if num_keys is None:
            merged = merge_runs(restored.files, head.max_parallelism)
            num_keys = sum(batch.num_rows for batch in merged)
        return cls(runs, head.max_parallelism, num_keys)

    def apply(self, run: Run, num_keys: int) -> Table:
        """Return the version that a delta makes of this one; this one does not change.

        Args:
            run: Rows of the delta.
            num_keys: Rows of the new version.
        """
        return Table((*self.runs, run), self.max_parallelism, num_keys)

    def merged(self) -> Table:
        """Return the same rows in one run; all runs are in memory."""
        in_memory = [run for run in self.runs if isinstance(run, ArrowRun)]
        rows = list(merge_runs(in_memory, self.max_parallelism))
        return Table((ArrowRun(rows),), self.max_parallelism, self.num_keys)

    def get(self, column_family: int, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        merged: list[bytes] = []
        is_there = False
        for row in self._rows_of(column_family, key):
            if row.op == DELETE:
                break
            is_there = True
            merged.append(row.value or b"")
            if row.op != MERGE:
                break
        return b"".join(reversed(merged)) if is_there else None

    def key_group_of(self, column_family: int, key: bytes) -> int | None:
        """Return the key group under which a key was last written, or None when it never was."""
        youngest = next(self._rows_of(column_family, key), None)
        return None if youngest is None else youngest.key_group

    def scan(
        self, column_family: int, prefix: bytes = b"", key_group: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the rows with a prefix, in key order.

        Needs memory for all rows that match.

        Args:
            column_family: ID of the column family.
            prefix: First bytes of the keys, empty for all.
            key_group: Only rows of this key group, None for all.
        """
        runs: list[ArrowRun] = []
        for run in self.runs:
            pieces = run.take_prefix(column_family, prefix)
            if key_group is not None:
                pieces = [
                    pick(piece, to_numpy(piece.column(0), np.uint16) == key_group)
                    for piece in pieces
                ]
            runs.append(ArrowRun(pieces))
        for rows in merge_runs(runs, None):
            for key, value in zip(rows.column(3), rows.column(4), strict=True):
                yield key.as_py(), value.as_py()

    def _rows_of(self, column_family: int, key: bytes) -> Iterator[FoundRow]:
        for run in reversed(self.runs):
            row = run.find(column_family, key)
            if row is not None:
                yield row
