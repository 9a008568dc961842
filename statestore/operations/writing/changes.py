"""Changes of some rows of a store as its next version, as a batch of the query would commit them.

The version is a delta on top of the one before: rows that stay are not written again. Rows are
looked at as they pass, and those that go are laid by on the local disk, so memory holds no more
than what a user gave.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.checkpoint.commit import NewVersion, publish_delta
from statestore.checkpoint.key_group_rows import NUM_CLASSES, count_classes
from statestore.codec.merge import merge_runs
from statestore.codec.rows import (
    DELETE,
    SCHEMA,
    from_numpy,
    pick,
    to_numpy,
)
from statestore.codec.sorting import sort_into_runs
from statestore.codec.trailer import RowCounts
from statestore.io.local import named_errors
from statestore.operations.key_set import KeySet
from statestore.operations.states import read_rows
from statestore.operations.writing.family_rows import Gone

if TYPE_CHECKING:
    import numpy.typing as npt

    from statestore.backends.form import Work
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.writing.family_rows import FamilyRows
    from statestore.operations.writing.shape import StoreShape

IsGone = Callable[[pa.RecordBatch], "npt.NDArray[np.bool_]"]


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows that a state partition of a store gets and loses.

    Attributes:
        puts: Rows that it gets, each key once, in file order.
        before: Reads the rows that it has.
        is_gone: Tells which of them go, or get another value.
        families: Column families of the store in all its state partitions, where rows are put: this
            one may not have had a row of each yet. Empty where there are just those it knows.
    """

    puts: Sequence[pa.RecordBatch] = ()
    before: Iterable[pa.RecordBatch] = ()
    is_gone: IsGone | None = None
    families: tuple[ColumnFamily, ...] = ()


NO_CHANGES = Changes()


def changes_of(
    checkpoint: OpenCheckpoint,
    shape: StoreShape,
    rows: Iterable[FamilyRows],
    scratch_directory: str,
) -> Callable[[PublishedFile], Changes]:
    """Return a function that gives the changes of a state partition of a store, by its version.

    Its rows are read with them. Each call makes the conditions anew, which take threads and memory:
    to be called where the changes are written, and not for all state partitions at once.

    Args:
        checkpoint: The checkpoint.
        shape: The store.
        rows: Rows that some of its column families get and lose; the former are held in memory.
        scratch_directory: Local directory.

    Raises:
        InvalidArgumentError: Rows do not fit.
    """
    rows = list(rows)
    if not rows:
        return lambda _: NO_CHANGES
    puts = _puts(shape, rows, scratch_directory)
    return lambda head: _changes(checkpoint, shape, rows, puts, head)


def _changes(
    checkpoint: OpenCheckpoint,
    shape: StoreShape,
    rows: list[FamilyRows],
    puts: list[pa.RecordBatch],
    head: PublishedFile,
) -> Changes:
    partition = head.trailer.store.partition
    if len(rows) == 1 and rows[0].given is None and partition in rows[0].laid_by:
        # They were looked for already: no row is read again.
        laid_by = rows[0].laid_by[partition].batches()
        return Changes((), laid_by, lambda batch: np.ones(batch.num_rows, bool))
    own = [pick(batch, _partitions(batch, shape) == partition) for batch in puts]
    own = [batch for batch in own if batch.num_rows]
    before, gone = read_rows(checkpoint, head), Gone(rows, partition)
    return Changes(own, before, gone, shape.new.column_families)


def _partitions(batch: pa.RecordBatch, shape: StoreShape) -> npt.NDArray[np.uint16]:
    found: npt.NDArray[np.uint16] = to_numpy(batch.column(0), np.uint16) % shape.num_states
    return found


def _puts(
    shape: StoreShape, rows: Iterable[FamilyRows], scratch_directory: str
) -> list[pa.RecordBatch]:
    """Return the rows that a store gets, each key once, in file order.

    Elements of a list become its value.
    """
    max_parallelism = shape.new.max_parallelism

    def given(scratch: str) -> Iterator[pa.RecordBatch]:
        for of in rows:
            if of.given is not None:
                yield from of.columns.encode(of.given.batches(scratch), max_parallelism)

    with tempfile.TemporaryDirectory(prefix="puts-", dir=scratch_directory) as own:
        return list(merge_runs(sort_into_runs(given(own), max_parallelism, own), max_parallelism))


def write_changes(
    location: StoreLocation,
    head: PublishedFile,
    changes: Changes,
    new_id: str,
    work: Work,
) -> PublishedFile:
    """Publish the next version of a store in a state partition; without a change it has no rows.

    Args:
        location: The store.
        head: Its version.
        changes: The changes.
        new_id: Checkpoint ID of the new one.
        work: Means to write state.

    Guarantee: as `publish_delta`; the version before stays readable.

    Raises:
        InvalidArgumentError: A condition does not fit the rows.
        NotFoundError, CorruptionError, FencedError, IncompatibleError: As `read_rows`.
        StorageError: The storage or the local disk failed.
    """
    of = head.trailer
    families = changes.families or of.column_families
    with tempfile.TemporaryDirectory(prefix="change-", dir=work.scratch_directory) as own:
        counted = _Counted(of.num_partitions, [one.id for one in families if one.internal])
        path = f"{own}/rows"
        with named_errors("write to the scratch directory", path):
            body_of = work.form(location.body).write_changes(
                changes.puts,
                _deletes(changes, counted),
                path,
                of.max_parallelism,
                replace(work, scratch_directory=own),
            )
        new = NewVersion(
            version=of.version + 1,
            parent=of.version_ref,
            checkpoint_id=new_id,
            checkpoint_format=of.checkpoint_format,
            rows=RowCounts(put=counted.num_puts, delete=counted.num_deletes),
            num_keys=_grown(of.num_keys, counted.growth),
            num_internal_keys=_grown(of.num_internal_keys, counted.internal_growth),
            key_group_growth=tuple(counted.by_class.tolist()),
            max_parallelism=of.max_parallelism,
            num_partitions=of.num_partitions,
            rescalable=of.rescalable,
            column_families=families,
            backend=of.backend,
        )
        return publish_delta(
            location,
            new,
            head,
            head.chain,
            body_of(new),
            sync=work.options.fsync_enabled,
            clock=work.clock,
        )


@dataclass
class _Counted:
    """Numbers of rows that a version has more or less than the one before, counted as rows pass.

    Attributes:
        num_partitions: Number of state partitions.
        internal: IDs of internal column families.
    """

    num_partitions: int
    internal: list[int]
    num_puts: int = 0
    num_deletes: int = 0
    growth: int = 0
    internal_growth: int = 0
    by_class: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_CLASSES, np.int64))

    def add(self, rows: pa.RecordBatch, sign: int) -> None:
        """Count rows that come (1) or go (-1)."""
        families = to_numpy(rows.column(1), np.uint16)
        groups = to_numpy(rows.column(0), np.uint16)
        self.growth += sign * rows.num_rows
        self.internal_growth += sign * int(np.isin(families, self.internal).sum())
        self.by_class += sign * count_classes(groups, self.num_partitions)


def _deletes(changes: Changes, counted: _Counted) -> Iterator[pa.RecordBatch]:
    """Yield a delete for each row that goes and does not come again; count all that change."""
    put: dict[int, list[pa.Array[Any]]] = {}
    for batch in changes.puts:
        counted.add(batch, 1)
        counted.num_puts += batch.num_rows
        families = to_numpy(batch.column(1), np.uint16)
        for family in np.unique(families).tolist():
            put.setdefault(family, []).append(pick(batch, families == family).column(3))
    again = {family: KeySet(keys) for family, keys in put.items()}
    if changes.is_gone is None:
        return
    for batch in changes.before:
        gone = pick(batch, changes.is_gone(batch))
        counted.add(gone, -1)
        deleted = pick(gone, ~_is_among(gone, again))
        counted.num_deletes += deleted.num_rows
        if deleted.num_rows:
            yield _as_deletes(deleted)


def _is_among(batch: pa.RecordBatch, keys: Mapping[int, KeySet]) -> npt.NDArray[np.bool_]:
    """Return for each row whether its key is one of its column family's."""
    families = to_numpy(batch.column(1), np.uint16)
    found = np.zeros(batch.num_rows, bool)
    for family, of_family in keys.items():
        found |= (families == family) & of_family.has(batch.column(3))
    return found


def _as_deletes(rows: pa.RecordBatch) -> pa.RecordBatch:
    count = rows.num_rows
    columns = [
        rows.column(0),
        rows.column(1),
        from_numpy(np.full(count, DELETE, np.uint8), pa.uint8()),
        rows.column(3),
        pa.nulls(count, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _grown(before: int | None, growth: int) -> int | None:
    return None if before is None else before + growth
