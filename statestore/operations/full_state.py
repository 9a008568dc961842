"""Full states: a version read and written as all its rows, in a file that stands on no other.

Rows are read once, dealt out anew, and written once, whatever state backend they come from and go
to and however many state partitions there are on either side. What is not in file order already is
sorted on the local disk.
"""

from __future__ import annotations

import math
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.checkpoint.commit import NewVersion, publish_delta
from statestore.checkpoint.key_group_rows import NUM_CLASSES, count_classes
from statestore.codec.joined_trailers import add_counts, join_families
from statestore.codec.merge import append_runs, merge_runs
from statestore.codec.rows import (
    MAX_BLOCK_BYTES,
    SCHEMA,
    from_numpy,
    split_for_blocks,
    to_numpy,
    write_options,
)
from statestore.codec.sorting import gather, join_batches
from statestore.codec.trailer import RowCounts
from statestore.core.errors import InternalError
from statestore.io.local import named_errors
from statestore.operations.processes import num_cores
from statestore.operations.rows_by_partition import RowsByPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from statestore.backends.form import Work
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.trailer import Trailer


_STATES_AT_ONCE = range(4, 9)
"""Few where cores are few; but fewer would wait for the storage."""

MAX_OPEN_STATES = 64
"""State partitions that rows are dealt out to as they are read: each has a file and rows held."""


def states_at_once() -> int:
    """Return how many stores are read and written side by side.

    Arrow and RocksDB work outside of Python's lock.
    """
    return min(max(num_cores(), _STATES_AT_ONCE[0]), _STATES_AT_ONCE[-1])


def deal_out(num_before: int, num_after: int) -> list[tuple[range, range]]:
    """Return which state partitions give rows to which, when their number changes.

    Each state partition of either side is in exactly one pair: of (givers, takers) that have no
    key group in common with any other.
    """
    step = math.gcd(num_before, num_after)
    return [(range(r, num_before, step), range(r, num_after, step)) for r in range(step)]


class StateWriter:
    """Writes the full state of one store at one version, row batches as `sorted_rows` of its form.

    Args:
        location: Where to.
        new: The version; its row counts are taken from the rows.
        work: Means for all steps.
    """

    def __init__(self, location: StoreLocation, new: NewVersion, work: Work) -> None:
        self._location = location
        self._new = new
        self._work = work
        self._path = f"{work.scratch_directory}/new-{new.checkpoint_id}"
        self._form = work.form(location.body)
        compression = self._form.stream_compression(work.options)
        with named_errors("write to the scratch directory", self._path):
            self._file = pa.OSFile(self._path, "wb")
            self._stream = ipc.new_stream(self._file, SCHEMA, options=write_options(compression))
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._num_rows = 0
        self._num_internal = 0
        self._key_group_rows = np.zeros(NUM_CLASSES, np.int64)
        self._internal = [family.id for family in new.column_families if family.internal]
        self._fits = True

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows, which come after those added before."""
        if batch.num_rows == 0:
            return
        groups = to_numpy(batch.column(0), np.uint16)
        partition = self._location.store.partition
        self._fits &= bool((groups % self._new.num_partitions == partition).all())
        self._key_group_rows += count_classes(groups, self._new.num_partitions)
        if self._internal:
            families = to_numpy(batch.column(1), np.uint16)
            self._num_internal += int(np.isin(families, self._internal).sum())
        self._num_rows += batch.num_rows
        self._held.append(batch)
        self._held_bytes += int(batch.nbytes)
        if self._held_bytes >= MAX_BLOCK_BYTES:
            with named_errors("write to the scratch directory", self._path):
                self._flush()

    def finish(self) -> PublishedFile:
        """Publish the version; durable on return. Errors as `publish_delta`."""
        with named_errors("write to the scratch directory", self._path):
            self._flush()
            self._stream.close()
            self._file.close()
        new = replace(
            self._new,
            rows=RowCounts(put=self._num_rows),
            num_keys=self._num_rows,
            num_internal_keys=self._num_internal,
            key_group_growth=tuple(self._key_group_rows.tolist()),
            rescalable=self._new.rescalable and self._fits,
        )
        published = publish_delta(
            self._location,
            new,
            None,
            (),
            self._form.full_body(new, self._path, self._work),
            sync=self._work.options.fsync_enabled,
            clock=self._work.clock,
        )
        Path(self._path).unlink(missing_ok=True)
        return published

    def _flush(self) -> None:
        if not self._held:
            return
        for block in split_for_blocks(join_batches(self._held)):
            self._stream.write_batch(block)
        self._held, self._held_bytes = [], 0


def write_full_state(
    location: StoreLocation, new: NewVersion, batches: Iterable[pa.RecordBatch], work: Work
) -> PublishedFile:
    """Write the full state of one store at one version, rows in any order.

    Args:
        location: Where to.
        new: The version; its row counts are taken from the rows.
        batches: Record batches of SCHEMA, puts only, each key once.
        work: Means for all steps.

    Guarantee: as `publish_delta`.

    Raises:
        InternalError: A key group is out of range.
        StorageError: The storage or the local disk failed.
    """
    with _own_scratch(work) as own:
        writer = StateWriter(location, new, own)
        rows = own.form(location.body).sorted_rows(iter(batches), new.max_parallelism, own)
        for batch in rows:
            writer.add(batch)
        return writer.finish()


@contextmanager
def _own_scratch(work: Work) -> Iterator[Work]:
    """Yield work with a scratch directory that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="full-", dir=work.scratch_directory) as directory:
        yield replace(work, scratch_directory=directory)


def dealt_anew(
    trailers: Sequence[Trailer], num_partitions: int, max_parallelism: int
) -> NewVersion:
    """Return a version of a store whose rows are dealt out anew, but for its ID and row counts.

    Args:
        trailers: The version in the state partitions whose rows come together.
        num_partitions: State partitions of the new layout, 1 to 32768.
        max_parallelism: Its key groups.

    Raises:
        IncompatibleError: As `join_families`.
    """
    first = trailers[0]
    return NewVersion(
        version=first.version,
        parent=None,
        checkpoint_id="",
        checkpoint_format=first.checkpoint_format,
        rows=RowCounts(),
        num_keys=0,
        max_parallelism=max_parallelism,
        num_partitions=num_partitions,
        rescalable=all(trailer.rescalable for trailer in trailers),
        column_families=join_families(trailers),
        backend=first.backend,
    )


def write_states(
    givers: Sequence[tuple[StoreLocation, PublishedFile]],
    takers: Mapping[StoreLocation, str],
    num_partitions: int,
    backend: str,
    work: Work,
) -> dict[StoreLocation, PublishedFile]:
    """Write the rows of some state partitions of a store into those that take them.

    Args:
        givers: State partitions that have the rows, and the delta of the version of each.
        takers: State partitions that get them and the checkpoint ID of each; a single one takes
            every row, of several each its key groups.
        num_partitions: Number of state partitions of the taking side.
        backend: State backend of the taking side.
        work: Means for all steps.

    Returns:
        What was published for each taker.

    Guarantee: what is returned is durable; after a raise some of it may be published.

    Raises:
        NotFoundError, CorruptionError, FencedError, StorageError: As `load_files` and
            `publish_delta`.
        IncompatibleError: The givers' column families contradict each other.
    """
    trailers = [head.trailer for _, head in givers]
    new = dealt_anew(trailers, num_partitions, trailers[0].max_parallelism)
    new = replace(new, backend=backend)
    with _own_scratch(work) as own:
        runs = [
            run
            for location, head in givers
            for run in own.form(location.body).runs(location, head, own)
        ]
        # State partitions have no key group in common, so the runs of one begin where they like.
        is_by_key = all(own.form(location.body).is_by_key for location, _ in givers)
        join = append_runs if is_by_key else merge_runs
        rows = _counted(join(runs, new.max_parallelism), trailers)
        if len(takers) > MAX_OPEN_STATES:
            return _write_one_by_one(rows, new, takers, own)
        writers = {
            location: StateWriter(location, replace(new, checkpoint_id=checkpoint_id), own)
            for location, checkpoint_id in takers.items()
        }
        for batch in rows:
            for location, dealt in _dealt(batch, list(writers), num_partitions):
                writers[location].add(dealt)
        return {location: writer.finish() for location, writer in writers.items()}


def _write_one_by_one(
    rows: Iterable[pa.RecordBatch], new: NewVersion, takers: Mapping[StoreLocation, str], work: Work
) -> dict[StoreLocation, PublishedFile]:
    """Write each taker by itself, of rows that are laid by before: one file is open at a time."""
    laid_by = RowsByPartition(work.scratch_directory, new.num_partitions)
    for piece in gather(rows):
        laid_by.lay_by(piece)
    made = {}
    for location, checkpoint_id in takers.items():
        writer = StateWriter(location, replace(new, checkpoint_id=checkpoint_id), work)
        for batch in laid_by.batches(location.store.partition):
            writer.add(batch)
        made[location] = writer.finish()
    return made


def _dealt(
    batch: pa.RecordBatch, takers: list[StoreLocation], num_partitions: int
) -> Iterator[tuple[StoreLocation, pa.RecordBatch]]:
    if len(takers) == 1:
        yield takers[0], batch
        return
    partitions: npt.NDArray[np.uint16] = to_numpy(batch.column(0), np.uint16) % num_partitions
    for location in takers:
        own = np.flatnonzero(partitions == location.store.partition)
        yield location, batch.take(from_numpy(own, pa.int64()))


def _counted(
    batches: Iterable[pa.RecordBatch], trailers: Sequence[Trailer]
) -> Iterator[pa.RecordBatch]:
    """Yield rows; check behind the last that they are as many as the trailers say."""
    num_rows = 0
    for batch in batches:
        num_rows += batch.num_rows
        yield batch
    expected = add_counts(trailer.num_keys for trailer in trailers)
    # A version that a rescale made of others' files does not know its number of rows.
    if expected in (None, num_rows):
        return
    raise InternalError(
        "the rows of a version are not as many as its trailers say",
        store=str(trailers[0].store),
        version=trailers[0].version,
        expected=expected,
        found=num_rows,
        to_fix="report it with the query's stateful operators; nothing was made whole",
    )
