"""State stores without Spark: open a store of a checkpoint, read it, apply a batch, commit.

with statestore.open_store("/data/checkpoint", operator=0, partition=3) as store:
    store.get(key)
    batch = store.begin()
    batch.put(key, value)
    batch.commit()
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow.ipc as ipc

from statestore.backends.filesystem.table import Run, Table
from statestore.backends.filesystem.versions import BACKEND, Cleanup, StoreVersions
from statestore.checkpoint.commit import NewVersion
from statestore.checkpoint.layout import StoreLocation, parse_state_file_name
from statestore.codec.rows import (
    DELETE,
    MERGE,
    PUT,
    SCHEMA,
    Row,
    batch_from_rows,
    split_for_blocks,
    write_options,
)
from statestore.codec.trailer import ColumnFamily, RowCounts, StoreName
from statestore.core.clock import Clock, SystemClock
from statestore.core.errors import InvalidArgumentError, StoreClosedError
from statestore.core.ids import IdSource, RandomIds
from statestore.core.options import StateStoreOptions
from statestore.io.local import LocalFileIO, resolve_local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.io.file_io import FileIO

_DEFAULT_FAMILY = ColumnFamily(0, "default")


def open_store(
    checkpoint: str,
    operator: int = 0,
    partition: int = 0,
    name: str = "default",
    *,
    version: int | None = None,
    checkpoint_id: str | None = None,
    num_partitions: int | None = None,
    checkpoint_format: int = 1,
    options: StateStoreOptions | None = None,
    io: FileIO | None = None,
    ids: IdSource | None = None,
    clock: Clock | None = None,
) -> Store:
    """Open one state store of a checkpoint at a version.

    Args:
        checkpoint: Checkpoint directory of the query, a path or `file:` URI.
        operator, partition, name: Which store.
        version: Version to open, 0 for the empty store, None for the newest.
        checkpoint_id: The attempt in checkpoint format v2; None takes the only one there is.
        num_partitions: Checked against the checkpoint; None takes the checkpoint's, or 1 in a new one.
        checkpoint_format: 1 or 2, for a new store; an existing one keeps its own.
        options: Defaults when None.
        io, ids, clock: Components, the local disk and the machine's when None.

    Returns:
        An open store, owned by the caller; close it or use it as a context manager.

    Raises:
        NotFoundError: The version is not there.
        InvalidArgumentError: Several attempts made the version and none was named.
        IncompatibleError, FencedError, CorruptionError, StorageError: As StoreVersions.load.
    """
    clock = clock or SystemClock()
    root = f"{resolve_local_path(checkpoint)}/state"
    location = StoreLocation(
        io or LocalFileIO(clock=clock), root, StoreName(operator, partition, name)
    )
    found = _find_version(location, version, checkpoint_id)
    store = Store(
        StoreVersions(location, clock),
        options or StateStoreOptions(),
        ids or RandomIds(),
        num_partitions,
        checkpoint_format,
    )
    store.load(*found)
    return store


def _find_version(
    location: StoreLocation, version: int | None, checkpoint_id: str | None
) -> tuple[int, str | None]:
    if version is not None and (version == 0 or checkpoint_id is not None):
        return version, checkpoint_id
    names = [parse_state_file_name(info.name) for info in location.io.list(location.directory)]
    deltas = [name for name in names if name is not None and name.kind == "delta"]
    if version is None:
        version = max((name.version for name in deltas), default=0)
    attempts = {name.checkpoint_id for name in deltas if name.version == version}
    if checkpoint_id is None and len(attempts) > 1:
        raise InvalidArgumentError(
            "several attempts made this version",
            version=version,
            checkpoint_ids=", ".join(sorted(str(attempt) for attempt in attempts)),
            to_fix="pass the checkpoint_id that the query's commit log names",
        )
    return version, checkpoint_id or next(iter(attempts), None)


class Store:
    """One state store, open at one version. Not thread-safe."""

    def __init__(
        self,
        versions: StoreVersions,
        options: StateStoreOptions,
        ids: IdSource,
        num_partitions: int | None,
        checkpoint_format: int,
    ) -> None:
        """Use `open_store` instead."""
        self._versions = versions
        self._options = options
        self._ids = ids
        self._num_partitions = num_partitions
        self._checkpoint_format = checkpoint_format
        self._head: PublishedFile | None = None
        self._families: tuple[ColumnFamily, ...] = (_DEFAULT_FAMILY,)
        self._is_closed = False
        self._scratch_directory = tempfile.mkdtemp(prefix="statestore-store-")
        self.table = Table((), 1, 0)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.table.num_keys

    @property
    def version(self) -> int:
        """Version the store is open at; 0 is the empty store."""
        return self._head.trailer.version if self._head else 0

    @property
    def checkpoint_id(self) -> str | None:
        """ID of the attempt that made the version; None at version 0."""
        return self._head.trailer.checkpoint_id if self._head else None

    @property
    def column_families(self) -> tuple[ColumnFamily, ...]:
        """Every column family of the version."""
        return self._families

    @property
    def max_parallelism(self) -> int:
        """Number of key groups, fixed for the checkpoint's life."""
        return self.table.max_parallelism

    def load(self, version: int, checkpoint_id: str | None = None) -> None:
        """Go to another version; rows already read stay valid.

        Raises:
            NotFoundError, IncompatibleError, FencedError, CorruptionError, StorageError: As
                StoreVersions.load; the store stays at its version.
        """
        self._check_open()
        if version == 0:
            num_partitions = self._num_partitions or 1
            max_parallelism = self._versions.load_empty(num_partitions, self._options)
            self._head, self._families = None, (_DEFAULT_FAMILY,)
            self.table = Table((), max_parallelism, 0)
            return
        restored = self._versions.load(version, checkpoint_id, self._num_partitions, self._options)
        self.table = Table.from_restored(restored)
        self._head = restored.head
        self._families = restored.head.trailer.column_families

    def get(self, key: bytes, column_family: str = "default") -> bytes | None:
        """Return the value of a key, or None when it is not there.

        Raises:
            InvalidArgumentError: No such column family.
            StoreClosedError: The store was closed.
        """
        self._check_open()
        return self.table.get(_family_id(self._families, column_family), key)

    def scan(
        self, prefix: bytes = b"", *, key_group: int | None = None, column_family: str = "default"
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) in key order; needs memory for all rows that match.

        Args:
            prefix: First bytes of the keys, empty for all.
            key_group: Only rows of this key group, None for all.
            column_family: Name of the column family.

        Raises:
            InvalidArgumentError: No such column family.
            StoreClosedError: The store was closed.
        """
        self._check_open()
        return self.table.scan(_family_id(self._families, column_family), prefix, key_group)

    def begin(self) -> Batch:
        """Begin a batch of writes on this version; reads of the store do not see it."""
        self._check_open()
        return Batch(self)

    def snapshot(self) -> None:
        """Write the snapshot of this version, so that restoring it reads one file.

        Guarantee: on return the snapshot is durable; after a raise the store is as it was.

        Raises:
            InvalidArgumentError: The store is at version 0.
            CorruptionError, StorageError: As SnapshotWriter.write.
        """
        self._check_open()
        if self._head is None:
            raise InvalidArgumentError(
                "the empty store has no snapshot", version=0, to_fix="commit a batch first"
            )
        self._versions.take_snapshot(self._head, self._scratch_directory, self._options)

    def clean_up(self) -> Cleanup:
        """Delete the files that retention allows, counted from this version.

        Guarantee: the newest `min_versions_to_retain` versions can still be loaded.

        Raises:
            CorruptionError, StorageError: As `plan_cleanup`.
        """
        self._check_open()
        return (
            Cleanup() if self._head is None else self._versions.clean_up(self._head, self._options)
        )

    def close(self) -> None:
        """Close the store; batches that were not committed are lost. Closing twice is harmless."""
        self._is_closed = True
        shutil.rmtree(self._scratch_directory, ignore_errors=True)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError(
                "the store was closed",
                store=str(self._versions.location.store),
                to_fix="open it again",
            )

    def _commit(self, batch: Batch, rows: dict[tuple[int, bytes], Row]) -> int:
        new, num_keys = self._new_version(batch, rows)
        arrow = batch_from_rows(rows.values(), self.max_parallelism)
        local_path = f"{self._scratch_directory}/{new.checkpoint_id}.arrows"
        with ipc.new_stream(
            local_path, SCHEMA, options=write_options(self._options.file_compression)
        ) as stream:
            for block in split_for_blocks(arrow):
                stream.write_batch(block)
        try:
            length = os.path.getsize(local_path)
            published, _ = self._versions.commit(new, local_path, length, self._options)
        finally:
            Path(local_path).unlink(missing_ok=True)
        self._head, self._families = published, batch.column_families
        self.table = self.table.apply(Run([arrow]), num_keys)
        return self.version

    def _new_version(
        self, batch: Batch, rows: dict[tuple[int, bytes], Row]
    ) -> tuple[NewVersion, int]:
        head = self._head.trailer if self._head else None
        num_keys = len(self)
        for (family, key), row in rows.items():
            num_keys += (row.op != DELETE) - (self.table.get(family, key) is not None)
        ops = [row.op for row in rows.values()]
        new = NewVersion(
            version=self.version + 1,
            parent=head.version_ref if head else None,
            checkpoint_id=batch.checkpoint_id,
            checkpoint_format=head.checkpoint_format if head else self._checkpoint_format,
            rows=RowCounts(ops.count(PUT), ops.count(DELETE), ops.count(MERGE)),
            num_keys=num_keys,
            max_parallelism=self.max_parallelism,
            num_partitions=head.num_partitions if head else self._num_partitions or 1,
            rescalable=batch.is_rescalable and (head is None or head.rescalable),
            column_families=batch.column_families,
            backend=BACKEND,
        )
        return new, num_keys


class Batch:
    """Writes on top of one version, all or nothing. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        """Use `Store.begin` instead."""
        self._store = store
        self._base = store.table
        self._version = store.version
        self._rows: dict[tuple[int, bytes], Row] = {}
        self._is_done = False
        self.column_families = store.column_families
        self.checkpoint_id = store._ids.new_id()
        self.is_rescalable = True
        """Whether every key group was given and belongs to the store's state partition."""

    def get(self, key: bytes, column_family: str = "default") -> bytes | None:
        """Return the value of a key as this batch would leave it; errors as `Store.get`."""
        self._check_open()
        family = _family_id(self.column_families, column_family)
        row = self._rows.get((family, key))
        if row is None:
            return self._base.get(family, key)
        if row.op == MERGE:
            return (self._base.get(family, key) or b"") + (row.value or b"")
        return row.value

    def scan(
        self, prefix: bytes = b"", *, key_group: int | None = None, column_family: str = "default"
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) in key order as this batch would leave them; errors as `Store.scan`."""
        self._check_open()
        run = Run([batch_from_rows(self._rows.values(), self._base.max_parallelism)])
        table = self._base.apply(run, 0)
        return table.scan(_family_id(self.column_families, column_family), prefix, key_group)

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        key_group: int | None = None,
        column_family: str = "default",
    ) -> None:
        """Set the value of a key.

        Args:
            key, value: Bytes, kept by reference.
            key_group: In [0, max_parallelism); None takes the one the key has, or for a new key
                CRC32C(key) mod max_parallelism, which makes the store not rescalable by key groups.
            column_family: Name of the column family.

        Raises:
            InvalidArgumentError: No such column family, or the key group is out of range or not the
                one under which the key was written before.
            StoreClosedError: The batch was committed or aborted.
        """
        self._stage(PUT, key, value, key_group, column_family)

    def delete(
        self, key: bytes, *, key_group: int | None = None, column_family: str = "default"
    ) -> None:
        """Delete a key; one that is not there is no error. Arguments and errors as `put`."""
        self._stage(DELETE, key, None, key_group, column_family)

    def merge(
        self,
        key: bytes,
        value: bytes,
        *,
        key_group: int | None = None,
        column_family: str = "default",
    ) -> None:
        """Append bytes to the value of a key, or set it when there is none; errors as `put`."""
        self._stage(MERGE, key, value, key_group, column_family)

    def create_column_family(self, name: str, *, multi_values: bool = False) -> None:
        """Add a column family unless it exists; it exists for good once the batch is committed.

        Raises:
            StoreClosedError: The batch was committed or aborted.
        """
        self._check_open()
        if any(family.name == name for family in self.column_families):
            return
        number = max(family.id for family in self.column_families) + 1
        added = ColumnFamily(number, name, multi_values=multi_values)
        self.column_families = (*self.column_families, added)

    def commit(self) -> int:
        """Make every write of the batch durable as the next version and return its number.

        Guarantee: on return a crash at any later point can open the version, and the store is at it.
        After a raise the store is where it was and the batch can be committed again: the same attempt,
        which succeeds without writing anew when the first one did reach the storage.

        Raises:
            FencedError: The store's version was replaced by another attempt. Open the store anew.
            StorageError: The storage failed.
            StoreClosedError: The batch was committed or aborted, or the store has moved on.
        """
        self._check_open()
        if self._store.version != self._version:
            raise StoreClosedError(
                "the store has moved on since the batch began",
                batch_version=self._version,
                store_version=self._store.version,
                to_fix="begin a new batch",
            )
        version = self._store._commit(self, self._rows)
        self._is_done = True
        return version

    def abort(self) -> None:
        """Drop every write of the batch. Aborting a finished batch is harmless."""
        self._is_done = True
        self._rows.clear()

    def _stage(
        self, op: int, key: bytes, value: bytes | None, key_group: int | None, column_family: str
    ) -> None:
        self._check_open()
        family = _family_id(self.column_families, column_family)
        staged = self._rows.get((family, key))
        group = self._resolve_key_group(family, key, key_group, staged)
        row = Row(group, family, op, key, value)
        if op == MERGE and staged is not None:
            is_appended = staged.op in (PUT, MERGE)
            joined = (staged.value or b"") + (value or b"")
            row = replace(row, op=staged.op if is_appended else PUT, value=joined)
        self._rows[family, key] = row

    def _resolve_key_group(
        self, family: int, key: bytes, asked: int | None, staged: Row | None
    ) -> int:
        known = staged.key_group if staged else self._base.key_group_of(family, key)
        group = asked if asked is not None else known
        if group is None:
            self.is_rescalable = False
            return int(google_crc32c.value(key) % self._base.max_parallelism)
        if not 0 <= group < self._base.max_parallelism or (known is not None and group != known):
            raise InvalidArgumentError(
                "key group of a key is out of range or not the one it was written under",
                key=key[:16].hex(),
                key_group=group,
                known=known,
                max_parallelism=self._base.max_parallelism,
                to_fix="compute it the same way every time, or leave it out for keys that are there",
            )
        store = self._store
        num_partitions = (
            store._head.trailer.num_partitions if store._head else store._num_partitions or 1
        )
        if group % num_partitions != store._versions.location.store.partition:
            self.is_rescalable = False
        return group

    def _check_open(self) -> None:
        self._store._check_open()
        if self._is_done:
            raise StoreClosedError("the batch was committed or aborted", to_fix="begin a new batch")


def _family_id(families: tuple[ColumnFamily, ...], name: str) -> int:
    for family in families:
        if family.name == name:
            return family.id
    raise InvalidArgumentError(
        "no such column family",
        column_family=name,
        known=", ".join(family.name for family in families),
        to_fix="create it in the batch first",
    )
