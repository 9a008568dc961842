"""Re-hashing: every row of a store into the state partition that Spark's hash gives it.

For a number of state partitions that does not divide the number of key groups. Rows are read once,
sorted by their new key groups in runs of bounded size on the local disk, and each new state
partition's runs are merged into a full state, which needs no file of before.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from statestore.backends.filesystem.versions import StoreVersions
from statestore.backends.heap.versions import HeapVersions
from statestore.checkpoint.commit import NewVersion
from statestore.checkpoint.rescale_refs import write_refs
from statestore.checkpoint.rescaling import mark_home
from statestore.codec.merge import merge_runs
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.rows import (
    SCHEMA,
    from_numpy,
    sort_group,
    split_for_blocks,
    to_numpy,
    write_options,
)
from statestore.codec.sealed_file import append_trailer
from statestore.codec.state_file import StateFile, describe_stream
from statestore.codec.trailer import RowCounts, compute_lineage
from statestore.core.errors import IncompatibleError
from statestore.core.key_groups import default_max_parallelism
from statestore.io.local import named_errors
from statestore.operations.rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.backends.rocksdb.versions import RocksDBVersions
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.trailer import Block, StoreName, Trailer
    from statestore.core.options import StateStoreOptions
    from statestore.operations.checkpoint import Checkpoint

RUN_BYTES = 256 * 1024 * 1024
"""Bytes of rows held in memory before they are sorted and written as runs."""


def rehash_store(
    checkpoint: Checkpoint, heads: Mapping[int, PublishedFile], num_partitions: int
) -> dict[StoreName, PublishedFile]:
    """Make the next version of a store in another number of state partitions, row by row.

    Needs the memory of RUN_BYTES, and local disk for the whole state.

    Args:
        checkpoint: The checkpoint.
        heads: The newest version of the store in every state partition until now.
        num_partitions: State partitions of the new layout, 1 to 32768.

    Returns:
        The version of each new state partition, a full state with as many key groups as a new
        checkpoint would have.

    Guarantee: on return the versions are durable. Repeating it, also after a kill, makes the same.

    Raises:
        IncompatibleError: A row is not where its key belongs (kind not-rescalable), or a column of
            its key cannot be read.
        NotFoundError, CorruptionError, FencedError, StorageError: As the backend's load and commit.
    """
    max_parallelism = default_max_parallelism(num_partitions)
    options = replace(checkpoint.options, fsync_enabled=True)
    made: dict[StoreName, PublishedFile] = {}
    with tempfile.TemporaryDirectory(
        prefix="rehash-", dir=checkpoint.scratch_directory
    ) as directory:
        of = heads[min(heads)].trailer
        runs = _Runs(directory, of, max_parallelism, num_partitions)
        for head in heads.values():
            for batch in read_rows(checkpoint, head):
                runs.add(_hashed_anew(batch, head.trailer, max_parallelism))
        runs.end()
        new = _new_version(heads, num_partitions, max_parallelism)
        for partition in range(num_partitions):
            store = replace(of.store, partition=partition)
            location = checkpoint.location(store)
            # What is no state partition any more has no maintenance: whoever lets go of the
            # reference deletes its files. A reference in one that stays tells an undo.
            abandoned = range(num_partitions + partition, len(heads), num_partitions)
            sources = [partition % len(heads), *abandoned]
            write_refs(location, new.version, sources, sync=True)
            mark_home(location, checkpoint.home(store), new.backend)
            versions = open_versions(checkpoint, location, directory)
            made[store] = runs.publish(partition, versions, new, options)
    return made


def _new_version(
    heads: Mapping[int, PublishedFile], num_partitions: int, max_parallelism: int
) -> NewVersion:
    """Return what the version is in every state partition, but for its ID and rows."""
    trailers = [head.trailer for head in heads.values()]
    families = {family.id: family for trailer in trailers for family in trailer.column_families}
    # The same for the same rows, so that a rescale that is repeated finds what it made.
    identity = " ".join([str(num_partitions), *(trailer.lineage for trailer in trailers)])
    return NewVersion(
        version=trailers[0].version + 1,
        parent=None,
        checkpoint_id=hashlib.blake2b(identity.encode(), digest_size=16).hexdigest(),
        checkpoint_format=trailers[0].checkpoint_format,
        rows=RowCounts(),
        num_keys=0,
        max_parallelism=max_parallelism,
        num_partitions=num_partitions,
        rescalable=True,
        column_families=tuple(families[number] for number in sorted(families)),
        backend=trailers[0].backend,
    )


def open_versions(
    checkpoint: Checkpoint, location: StoreLocation, scratch_directory: str
) -> StoreVersions | RocksDBVersions:
    """Return the versions of a store, by the state backend of its checkpoint."""
    if checkpoint.backend == "heap":
        return HeapVersions(location, checkpoint.home(location.store), checkpoint.clock)
    if checkpoint.backend == "filesystem":
        return StoreVersions(location, checkpoint.clock)
    # Imported here because they need a package that is an extra.
    from statestore.backends.rocksdb.sst import Memory
    from statestore.backends.rocksdb.versions import RocksDBVersions

    directory = tempfile.mkdtemp(prefix="rocksdb-", dir=scratch_directory)
    memory = Memory(checkpoint.options.rocksdb_memory_bytes)
    return RocksDBVersions(location, checkpoint.clock, directory, memory)


def _hashed_anew(batch: pa.RecordBatch, trailer: Trailer, max_parallelism: int) -> pa.RecordBatch:
    """Return the rows with the key groups they have of another number.

    Raises:
        IncompatibleError: Hashed with the former number, a key has another key group than its row
            says: Spark did not partition by what this package takes for the key.
    """
    groups = np.zeros(batch.num_rows, np.uint16)
    families = to_numpy(batch.column(1), np.uint16)
    stored = to_numpy(batch.column(0), np.uint16)
    for family in trailer.column_families:
        of_family = np.flatnonzero(families == family.id)
        if len(of_family) == 0:
            continue
        keys = batch.column(3)
        if len(of_family) < batch.num_rows:
            keys = keys.take(from_numpy(of_family, pa.int64()))
        name = trailer.store.name
        before = compute_key_groups(keys, name, family, trailer.max_parallelism)
        if not trailer.rescalable or not np.array_equal(before, stored[of_family]):
            raise IncompatibleError(
                "rows of a store are not where their keys belong",
                kind="not-rescalable",
                store=str(trailer.store),
                column_family=family.name,
                version=trailer.version,
                to_fix="report it with the query's stateful operators; nothing was changed",
            )
        groups[of_family] = compute_key_groups(keys, name, family, max_parallelism)
    hashed: pa.Array[Any] = from_numpy(groups, pa.uint16())
    columns: list[pa.Array[Any]] = [hashed, *batch.columns[1:]]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass(slots=True)
class _Partition:
    """Rows of one new state partition: sorted runs on disk, and batches not yet written."""

    runs: list[StateFile]
    batches: list[pa.RecordBatch]


class _Runs:
    """Rows by their new state partition, as sorted runs on the local disk.

    Args:
        directory: Local directory, deleted by the caller.
        of: Any trailer of the store until now.
        max_parallelism: Number of key groups of the rows added.
        num_partitions: State partitions, a divisor of it.
    """

    def __init__(
        self, directory: str, of: Trailer, max_parallelism: int, num_partitions: int
    ) -> None:
        self._directory = directory
        self._of = of
        self._max_parallelism = max_parallelism
        self._num_partitions = num_partitions
        self._partitions = [_Partition([], []) for _ in range(num_partitions)]
        self._num_bytes = 0
        self._num_runs = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows with their new key groups, in any order."""
        owners = to_numpy(batch.column(0), np.uint16) % self._num_partitions
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=self._num_partitions))
        rows = batch.take(from_numpy(order, pa.int64()))
        start = 0
        for partition, end in zip(self._partitions, ends.tolist(), strict=True):
            if end > start:
                partition.batches.append(rows.slice(start, end - start))
            start = end
        self._num_bytes += int(batch.nbytes)
        if self._num_bytes >= RUN_BYTES:
            self.end()

    def end(self) -> None:
        """Write what is in memory."""
        for partition in self._partitions:
            if partition.batches:
                partition.runs.append(self._write_run(partition.batches))
                partition.batches = []
        self._num_bytes = 0

    def publish(
        self,
        partition: int,
        versions: StoreVersions | RocksDBVersions,
        new: NewVersion,
        options: StateStoreOptions,
    ) -> PublishedFile:
        """Commit the rows of a new state partition as its full state."""
        merged = merge_runs(self._partitions[partition].runs, self._max_parallelism)
        internal = [family.id for family in new.column_families if family.internal]
        path = f"{self._directory}/{partition}.arrows"
        num_rows, num_internal = _write_stream(path, merged, options, internal)
        identity = f"{versions.location.store} {new.checkpoint_id}"
        new = replace(
            new,
            checkpoint_id=hashlib.blake2b(identity.encode(), digest_size=16).hexdigest(),
            rows=RowCounts(put=num_rows),
            num_keys=num_rows,
            num_internal_keys=num_internal,
        )
        published, *_ = versions.commit(new, path, Path(path).stat().st_size, options)
        return published

    def _write_run(self, batches: list[pa.RecordBatch]) -> StateFile:
        rows = pa.Table.from_batches(batches)
        groups = np.concatenate([sort_group(batch, self._max_parallelism) for batch in batches])
        keys = pa.table([from_numpy(groups, pa.uint32()), rows.column(3)], names=["group", "key"])
        order = pc.sort_indices(keys, sort_keys=[("group", "ascending"), ("key", "ascending")])
        path = f"{self._directory}/run-{self._num_runs}"
        self._num_runs += 1
        with named_errors("write a sorted run to the scratch directory", path):
            with ipc.new_stream(path, SCHEMA) as stream:
                for batch in rows.take(order).combine_chunks().to_batches():
                    for block in split_for_blocks(batch):
                        stream.write_batch(block)
            length = Path(path).stat().st_size
            blocks = describe_stream(path, length, self._max_parallelism)
            append_trailer(path, self._run_trailer(blocks, rows.num_rows))
            return StateFile(path)

    def _run_trailer(self, blocks: tuple[Block, ...], num_rows: int) -> Trailer:
        return replace(
            self._of,
            files=(),
            parent=None,
            blocks=blocks,
            lineage=compute_lineage(None, blocks),
            rows=RowCounts(put=num_rows),
            num_keys=num_rows,
            max_parallelism=self._max_parallelism,
            num_partitions=self._num_partitions,
        )


def _write_stream(
    path: str, batches: Iterable[pa.RecordBatch], options: StateStoreOptions, internal: list[int]
) -> tuple[int, int]:
    """Write a stream; return its rows and those in internal column families."""
    num_rows = num_internal = 0
    with (
        named_errors("write a full state to the scratch directory", path),
        ipc.new_stream(path, SCHEMA, options=write_options(options.file_compression)) as stream,
    ):
        for batch in batches:
            for block in split_for_blocks(batch):
                stream.write_batch(block)
            num_rows += batch.num_rows
            if internal:
                num_internal += int(np.isin(to_numpy(batch.column(1), np.uint16), internal).sum())
    return num_rows, num_internal
