"""Rehashing: every row of a store into the state partition that Spark's hash gives it.

For a number of state partitions that does not divide the number of key groups. Rows are read once
and laid by on the local disk by their new state partition; then each state partition is written as
a full state, which needs no file of before.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.checkpoint.commit import NewVersion
from statestore.checkpoint.placement import mark_home
from statestore.checkpoint.rescale_refs import write_refs
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.rows import SCHEMA, from_numpy, rows_by_family, to_numpy
from statestore.codec.sorting import gather
from statestore.core.digest import digest_of
from statestore.core.errors import IncompatibleError
from statestore.core.key_groups import default_max_parallelism
from statestore.operations.full_state import dealt_anew, write_full_state
from statestore.operations.rows_by_partition import RowsByPartition
from statestore.operations.states import most_rows, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from statestore.backends.form import Work
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import StoreName
    from statestore.codec.trailer import Trailer
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.store_state import StoreState


def rehash_store(
    checkpoint: OpenCheckpoint,
    heads: Mapping[int, PublishedFile],
    num_partitions: int,
    progress: Callable[[int], None],
) -> dict[StoreName, PublishedFile]:
    """Make the next version of a store in another number of state partitions, row by row.

    Needs memory and local disk as `write_rehashed` does.

    Args:
        checkpoint: The checkpoint.
        heads: The newest version of the store in every state partition until now.
        num_partitions: State partitions of the new layout, 1 to 32768.
        progress: As `write_rehashed` takes it.

    Returns:
        The version of each new state partition, a full state with as many key groups as a new
        checkpoint would have.

    Guarantee: on return the versions are durable. Repeating it, also after a kill, makes the same.

    Raises:
        IncompatibleError, NotFoundError, CorruptionError, FencedError, StorageError: As
            `write_rehashed`.
    """
    trailers = [head.trailer for head in heads.values()]
    lineages = (trailer.lineage for trailer in trailers)
    # The same for the same rows: a rescale that is repeated makes no second attempt.
    identity = digest_of(" ".join([str(num_partitions), *lineages]).encode())
    new = rehashed_version(trailers, num_partitions)
    new = replace(new, version=new.version + 1)
    of = heads[min(heads)].trailer.store
    stores = [replace(of, partition=partition) for partition in range(num_partitions)]
    takers = (
        (_prepare(checkpoint, store, new, len(heads)), digest_of(f"{store} {identity}".encode()))
        for store in stores
    )
    made = write_rehashed(
        checkpoint, list(heads.values()), new, takers, checkpoint.synced_work(), progress
    )
    return dict(zip(stores, made, strict=True))


def rehashed_version(trailers: Sequence[Trailer], num_partitions: int) -> NewVersion:
    """Return a version of a store in another number of state partitions, but for its ID and rows.

    Args:
        trailers: The version in every state partition until now.
        num_partitions: State partitions of the new layout, 1 to 32768.

    Raises:
        IncompatibleError: As `join_families`.
    """
    new = dealt_anew(trailers, num_partitions, default_max_parallelism(num_partitions))
    return replace(new, rescalable=True)  # every row that is found elsewhere is refused


def rehash(batch: pa.RecordBatch, of: Trailer | StoreState, max_parallelism: int) -> pa.RecordBatch:
    """Return rows of a store with the key groups they have of another number.

    Args:
        batch: Rows of the state file schema.
        of: The version that has them.
        max_parallelism: Number of key groups, 1 to 32768.

    Raises:
        IncompatibleError: Hashed with the former number, a key has another key group than its row
            says: Spark did not partition by what this package takes for the key.
    """
    groups = np.zeros(batch.num_rows, np.uint16)
    stored = to_numpy(batch.column(0), np.uint16)
    for family, of_family in rows_by_family(batch, of.column_families):
        keys = batch.column(3)
        if len(of_family) < batch.num_rows:
            keys = keys.take(from_numpy(of_family, pa.int64()))
        name = of.store.name
        before = compute_key_groups(keys, name, family, of.max_parallelism)
        if not of.rescalable or not np.array_equal(before, stored[of_family]):
            raise not_where_they_belong(of, family.name)
        groups[of_family] = compute_key_groups(keys, name, family, max_parallelism)
    hashed: pa.Array[Any] = from_numpy(groups, pa.uint16())
    columns: list[pa.Array[Any]] = [hashed, *batch.columns[1:]]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def not_where_they_belong(
    of: Trailer | StoreState, column_family: str | None = None
) -> IncompatibleError:
    """Return the error for rows that are in another state partition than their keys say."""
    return IncompatibleError(
        "rows of a store are not where their keys belong",
        kind="not-rescalable",
        store=str(of.store),
        column_family=column_family,
        to_fix="keep the number of state partitions; nothing was changed",
    )


def rehash_effort(heads: Iterable[PublishedFile]) -> int:
    """Return how many rows a re-hash reads and writes, for its progress; at least 2."""
    return 2 * sum(map(most_rows, heads))


def write_rehashed(
    checkpoint: OpenCheckpoint,
    heads: Sequence[PublishedFile],
    new: NewVersion,
    takers: Iterable[tuple[StoreLocation, str]],
    work: Work,
    progress: Callable[[int], None],
) -> list[PublishedFile]:
    """Write every row of a store as a full state of the state partition that Spark's hash gives it.

    Needs bounded memory, and local disk for the state three times.

    Args:
        checkpoint: Where the rows are.
        heads: Their version in every state partition until now.
        new: The version to write; its ID and row counts do not matter.
        takers: Every new state partition, in order, and the checkpoint ID of its version; the first
            one is asked for when all rows were read and found where they belong.
        work: Means for all steps.
        progress: Called with the rows read and written so far, of `rehash_effort`.

    Returns:
        What was published for each taker.

    Guarantee: what is returned is durable; after a raise some of it may be published.

    Raises:
        IncompatibleError: A row is not where its key belongs (kind not-rescalable), or a column of
            its key cannot be read.
        NotFoundError, CorruptionError, FencedError, StorageError: As the backend's load and commit.
    """
    with tempfile.TemporaryDirectory(prefix="rehash-", dir=work.scratch_directory) as directory:
        rows = RowsByPartition(directory, new.num_partitions)
        for piece in gather(_read_rehashed(checkpoint, heads, new.max_parallelism, progress)):
            rows.lay_by(piece)
        own = replace(work, scratch_directory=directory)
        num_read = rehash_effort(heads) // 2
        made: list[PublishedFile] = []
        for location, checkpoint_id in takers:
            batches = rows.batches(location.store.partition)
            version = replace(new, checkpoint_id=checkpoint_id)
            made.append(write_full_state(location, version, batches, own))
            progress(num_read + num_read * len(made) // new.num_partitions)
        return made


def _read_rehashed(
    checkpoint: OpenCheckpoint,
    heads: Iterable[PublishedFile],
    max_parallelism: int,
    progress: Callable[[int], None],
) -> Iterator[pa.RecordBatch]:
    before = 0
    for head in heads:
        num_rows, num_read = most_rows(head), 0
        for batch in read_rows(checkpoint, head):
            yield rehash(batch, head.trailer, max_parallelism)
            num_read += batch.num_rows
            progress(before + min(num_read, num_rows))
        before += num_rows
        progress(before)


def _prepare(
    checkpoint: OpenCheckpoint, store: StoreName, new: NewVersion, num_partitions_before: int
) -> StoreLocation:
    """Return where a new state partition goes, after the marks that an undo and Spark look for."""
    location = checkpoint.location(store)
    # A state partition that is gone has no maintenance: whoever lets go of the reference
    # deletes its files. A reference in one that stays tells an undo.
    abandoned = range(
        new.num_partitions + store.partition, num_partitions_before, new.num_partitions
    )
    sources = [store.partition % num_partitions_before, *abandoned]
    write_refs(location, new.version, sources, new.version)
    mark_home(location, checkpoint.home(store), new.backend)
    return location
