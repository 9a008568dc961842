"""State stores without Spark: open a store of a checkpoint, read it, apply a batch, commit.

with statestore.Checkpoint("/data/checkpoint").open_store(operator=0, partition=3) as store:
    store.get(key)
    batch = store.begin()
    batch.put(key, value)
    batch.commit()
"""

from __future__ import annotations

import posixpath
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import pyarrow.ipc as ipc

from statestore.backends.forms import work_in
from statestore.checkpoint.cleanup import Cleanup
from statestore.checkpoint.commit import NewVersion
from statestore.checkpoint.key_group_rows import NUM_CLASSES, class_of
from statestore.checkpoint.layout import (
    BODIES,
    HEAP_MARKER,
    StateFileName,
    StoreLocation,
    parse_state_file_name,
)
from statestore.checkpoint.lease import Leases
from statestore.checkpoint.lease_watch import await_end
from statestore.checkpoint.load import check_settings
from statestore.checkpoint.placement import read_placement, require_own_state
from statestore.checkpoint.query_log import QueryLog
from statestore.codec.column_family import ColumnFamily
from statestore.codec.references import STORE_NAME, StoreName
from statestore.codec.rows import (
    DELETE,
    MERGE,
    PUT,
    SCHEMA,
    batches_from_rows,
    split_for_blocks,
    write_options,
)
from statestore.codec.trailer import RowCounts
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StoreClosedError,
    require_whole,
)
from statestore.core.text import Shown
from statestore.io.local import named_errors, temporary_directory
from statestore.io.storage import is_same_directory
from statestore.store.batch import Batch, family_id
from statestore.store.table import MAX_RUNS, ArrowRun, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.checkpoint.placement import Placement
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.checkpoint.versions import VersionsBase
    from statestore.codec.rows import Row
    from statestore.core.clock import Clock
    from statestore.core.ids import IdSource
    from statestore.core.options import StateStoreOptions
    from statestore.io.file_io import FileIO
    from statestore.io.place import Place

Backend = Literal["filesystem", "rocksdb"]
_BACKENDS: tuple[Backend, ...] = get_args(Backend)

_DEFAULT_FAMILY = ColumnFamily(0, "default")
_CHECKED = {"num-partitions-changed": "num_partitions", "backend-changed": "backend"}
"""Arguments that are checked against the checkpoint, by the kind of the refusal."""


def open_store(
    place: Place,
    operator: int = 0,
    partition: int = 0,
    store: str = "default",
    *,
    version: int | None = None,
    checkpoint_id: str | None = None,
    num_partitions: int | None = None,
    checkpoint_format: int = 1,
    backend: Backend | None = None,
) -> Store:
    """Open one state store of the checkpoint at a place, also where its placement keeps the state.

    Arguments, result and errors as `Checkpoint.open_store`.
    """
    clock, options = place.clock, place.options
    operator, partition = require_whole("operator", operator), require_whole("partition", partition)
    if version is not None:
        version = require_whole("version", version)
    if num_partitions is not None:
        num_partitions = require_whole("num_partitions", num_partitions)
    store_name = StoreName(operator, partition, store)
    _check(store_name, partition + 1)
    if backend not in (None, *_BACKENDS):
        raise InvalidArgumentError(
            "no state backend of a store without Spark",
            backend=backend,
            to_fix=f"use one of {', '.join(_BACKENDS)}",
        )
    scratch = ExitStack()
    scratch_directory = scratch.enter_context(temporary_directory())
    try:
        io, path = place.open(scratch_directory)
        root = f"{path}/state"
        offsets, commits = QueryLog(io, path, "offsets"), QueryLog(io, path, "commits")
        planned = offsets.newest()
        # A batch is planned when the one before it is committed, also where its entry was lost.
        done = max(commits.newest(), planned - 1)
        is_of_query = max(done, planned) >= 0
        if version is None and is_of_query:
            version = done + 1
        home = _Home(Leases(io, root), place.state_uri) if is_of_query else None
        placement = read_placement(io, root)
        if placement is not None:
            io, path = place.open_other(placement.storage, scratch_directory)
            root = placement.directory(path)
            if home is not None:
                home = replace(home, elsewhere=(placement, io, root))
        location = StoreLocation(io, root, store_name, commits=commits)
        deltas = _deltas(location)
        if deltas:
            checkpoint_format = 1 if all(one.checkpoint_id is None for one in deltas) else 2
        if version is None:
            version = max((delta.version for delta in deltas), default=0)
        bodies = {delta.body for delta in deltas}
        written: list[Backend] = [name for name in _BACKENDS if BODIES[name] in bodies]
        kept_by = backend or [*written, _BACKENDS[0]][0]
        opened = Store(
            kept_by,
            _open_versions(kept_by, location, clock, options, scratch_directory),
            options,
            place.ids,
            num_partitions,
            checkpoint_format,
            scratch,
            scratch_directory,
            home,
            clock,
        )
        opened.load(version, checkpoint_id or _attempt_of(deltas, version))
        _check(store_name, opened.num_partitions)
    except BaseException:
        scratch.close()
        raise
    return opened


def _check(store: StoreName, num_partitions: int) -> None:
    is_number = store.operator >= 0 and 0 <= store.partition < num_partitions
    if not is_number or STORE_NAME.fullmatch(store.name) is None:
        raise InvalidArgumentError(
            "there is no such state store",
            store=str(store),
            num_partitions=num_partitions,
            to_fix="number operators and state partitions from 0, and give a new checkpoint's "
            "num_partitions; a name has no slash",
        )


def _open_versions(
    backend: Backend,
    location: StoreLocation,
    clock: Clock,
    options: StateStoreOptions,
    scratch_directory: str,
) -> VersionsBase:
    body = BODIES[backend]
    form = work_in(scratch_directory, options, clock).form(body)
    return form.versions(replace(location, body=body), clock, backend, scratch_directory)


def _deltas(location: StoreLocation) -> list[StateFileName]:
    """Return the names of a store's deltas.

    Raises:
        NotFoundError: The store is in the memory of a query's driver (kind driver-lost).
    """
    names = [info.name for info in location.io.list(location.directory)]
    if HEAP_MARKER in names:
        raise NotFoundError(
            "the store is in the memory of the query's driver, where only Spark writes",
            kind="driver-lost",
            store=str(location.store),
            file=location.path(HEAP_MARKER),
            to_fix="read its rows with Checkpoint(…, spark=session).rows() in the driver's own "
            "Python program while it runs",
        )
    files = map(parse_state_file_name, names)
    return [file for file in files if file is not None and file.kind == "delta"]


def _attempt_of(deltas: list[StateFileName], version: int) -> str | None:
    """Return the checkpoint ID of a version that one attempt has made; None in format 1."""
    attempts = {name.checkpoint_id for name in deltas if name.version == version}
    if version and len(attempts) > 1:
        raise InvalidArgumentError(
            "several attempts made this version",
            version=version,
            checkpoint_ids=", ".join(sorted(str(attempt) for attempt in attempts)),
            to_fix="pass the checkpoint_id that the query's commit log names; without a query the "
            "one that Store.checkpoint_id was after the commit, or open each and compare the rows",
        )
    return next(iter(attempts), None)


@dataclass(frozen=True)
class _Home:
    """The checkpoint of a query whose store is open.

    Attributes:
        leases: Its leases.
        uri: URI of its `state` directory.
        elsewhere: Placement, storage and directory of the state, where that is not there.
    """

    leases: Leases
    uri: str
    elsewhere: tuple[Placement, FileIO, str] | None = None

    def require_no_query(self, clock: Clock) -> None:
        """Check that nobody else writes, and that the state is that of the checkpoint.

        Raises:
            InUseError: Somebody does.
            IncompatibleError, CorruptionError, StorageError: As `require_own_state`.
        """
        root = posixpath.dirname(self.leases.directory)
        for name in await_end(self.leases, self.leases.list(), 0, root, clock):
            self.leases.delete(name)
        if self.elsewhere is not None:
            is_here = partial(is_same_directory, self.uri)
            require_own_state(self.uri, *self.elsewhere, is_here)


class Store(Shown):
    """One state store, open at one version. Not thread-safe."""

    def __init__(
        self,
        backend: Backend,
        versions: VersionsBase,
        options: StateStoreOptions,
        ids: IdSource,
        num_partitions: int | None,
        checkpoint_format: int,
        scratch: ExitStack,
        scratch_directory: str,
        home: _Home | None,
        clock: Clock,
    ) -> None:
        """Use `Checkpoint.open_store` instead."""
        self._home = home
        self._clock = clock
        self._backend = backend
        self._versions = versions
        self._options = options
        self._ids = ids
        self._num_partitions = num_partitions
        self._num_partitions_at_0 = num_partitions or 1
        self._checkpoint_format = checkpoint_format
        self._head: PublishedFile | None = None
        self._families: tuple[ColumnFamily, ...] = (_DEFAULT_FAMILY,)
        self._is_closed = False
        self._scratch = scratch
        self._scratch_directory = scratch_directory
        self.table = Table((), 1, 0)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.table.num_keys

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<Store {self._versions.location.store}: closed>"
        return (
            f"<Store {self._versions.location.store}: version {self.version}, {len(self):,} rows>"
        )

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
    def partition(self) -> int:
        """State partition of the store."""
        return self._versions.location.store.partition

    @property
    def num_partitions(self) -> int:
        """Number of state partitions of the checkpoint."""
        return self._head.trailer.num_partitions if self._head else self._num_partitions_at_0

    @property
    def max_parallelism(self) -> int:
        """Number of key groups, fixed until a rescale hashes every row anew."""
        return self.table.max_parallelism

    def load(self, version: int, checkpoint_id: str | None = None) -> None:
        """Go to another version; rows already read stay valid.

        Args:
            version: The version.
            checkpoint_id: Of the attempt that made it, where several did.

        Raises:
            InvalidArgumentError: Several attempts made it.
            NotFoundError, IncompatibleError, FencedError, CorruptionError, StorageError: As
                `VersionsBase.load`; the store stays at its version.
        """
        self.check_open()
        try:
            if version == 0:
                self._load_empty()
            else:
                self._load(version, checkpoint_id)
        except IncompatibleError as error:
            argument = _CHECKED.get(error.kind)
            if argument is not None:
                error.to_fix = f"leave {argument} out, or give {error.fields['checkpoint']}"
            raise

    def _load_empty(self) -> None:
        """Go to version 0, with the settings of the newest version that is there."""
        num_partitions, options = self._num_partitions or 1, self._options
        deltas = sorted(_deltas(self._versions.location), key=lambda delta: -delta.version)
        damage = None
        for delta in deltas:
            try:
                trailer = self._versions.head(delta.version, delta.checkpoint_id).trailer
            except (CorruptionError, NotFoundError) as error:
                damage = damage or error
                continue  # left by a batch that did not end
            check_settings(
                trailer,
                backend=self._backend,
                num_partitions=self._num_partitions,
                max_parallelism=options.max_parallelism,
            )
            num_partitions = trailer.num_partitions
            options = replace(options, max_parallelism=trailer.max_parallelism)
            break
        else:
            if damage is not None and self._num_partitions is None:
                damage.to_fix += "; where no version was ever committed, give num_partitions"
                raise damage
        max_parallelism = self._versions.load_empty(num_partitions, options)
        self._num_partitions_at_0 = num_partitions
        self._head, self._families = None, (_DEFAULT_FAMILY,)
        self.table = Table((), max_parallelism, 0)

    def _load(self, version: int, checkpoint_id: str | None) -> None:
        if checkpoint_id is None and self._checkpoint_format >= 2:
            checkpoint_id = _attempt_of(_deltas(self._versions.location), version)
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
        self.check_open()
        return self.table.get(family_id(self._families, column_family), key)

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
        self.check_open()
        return self.table.scan(family_id(self._families, column_family), prefix, key_group)

    def begin(self) -> Batch:
        """Begin a batch of writes on this version; reads of the store do not see it."""
        self.check_open()
        return Batch(self, self._ids.new_id())

    def snapshot(self) -> None:
        """Write a summary of this version, so that restoring it reads fewer files.

        On filesystem it is a snapshot, one file of all rows. On rocksdb the files that a merge is
        due for become one, or all where it is due for none.

        Guarantee: on return the snapshot is durable; after a raise the store is as it was.

        Raises:
            InvalidArgumentError: The store is at version 0.
            CorruptionError, StorageError: As `VersionsBase.take_snapshot`.
        """
        self.check_open()
        if self._head is None:
            raise InvalidArgumentError(
                "the empty store has no snapshot", version=0, to_fix="commit a batch first"
            )
        self._versions.take_snapshot(self._head, self._scratch_directory, self._options)

    def clean_up(self) -> Cleanup:
        """Delete the files that retention allows, counted from this version.

        Guarantee: the newest `min_versions_to_retain` versions can still be loaded.

        Raises:
            InUseError: A running query writes the checkpoint; nothing was deleted.
            CorruptionError, StorageError: As `plan_cleanup`.
        """
        self.check_open()
        self._require_no_query()
        return (
            Cleanup() if self._head is None else self._versions.clean_up(self._head, self._options)
        )

    def close(self) -> None:
        """Close the store; batches that were not committed are lost. Closing twice is harmless."""
        self._is_closed = True
        # A database that is open would go on to compact itself.
        self.table = Table((), self.table.max_parallelism, self.table.num_keys)
        self._versions.forget_heads()
        self._scratch.close()

    def check_open(self) -> None:
        """Check that the store is open.

        Raises:
            StoreClosedError: It was closed.
        """
        if self._is_closed:
            raise StoreClosedError(
                "the store was closed",
                store=str(self._versions.location.store),
                to_fix="open it again",
            )

    def _require_no_query(self) -> None:
        if self._home is not None:
            self._home.require_no_query(self._clock)

    def commit(self, batch: Batch) -> int:
        """Make a batch durable; see `Batch.commit`, which is what to call."""
        self._require_no_query()
        rows = batch.rows
        new, num_keys = self._new_version(batch, rows)
        batches = batches_from_rows(rows.values(), self.max_parallelism)
        # Made before the commit, so that version and rows change together after it.
        table = self.table.apply(ArrowRun(batches), num_keys)
        # Rows that have a local database go there, by the load below.
        if len(table.runs) > MAX_RUNS and not self._versions.local_directory:
            table = table.merged()
        local_path = f"{self._scratch_directory}/{new.checkpoint_id}.arrows"
        stream_options = write_options(self._options.file_compression)
        try:
            with (
                named_errors("write the delta to commit", local_path),
                ipc.new_stream(local_path, SCHEMA, options=stream_options) as stream,
            ):
                for arrow in batches:
                    for block in split_for_blocks(arrow):
                        stream.write_batch(block)
            length = Path(local_path).stat().st_size
            published = self._versions.commit(new, local_path, length, self._options)
        finally:
            Path(local_path).unlink(missing_ok=True)
        self._head, self._families, self.table = published, batch.column_families, table
        if len(table.runs) > MAX_RUNS:
            # The batch is durable, whether its rows are read from a new view or from these runs.
            with suppress(StateStoreError):
                self.load(self.version, self.checkpoint_id)
        return self.version

    def _new_version(
        self, batch: Batch, rows: dict[tuple[int, bytes], Row]
    ) -> tuple[NewVersion, int]:
        head = self._head.trailer if self._head else None
        growth = [0] * NUM_CLASSES
        internal = {family.id for family in batch.column_families if family.internal}
        num_internal_keys = head.num_internal_keys if head else 0
        for (family, key), row in rows.items():
            had = self.table.get(family, key) is not None
            grown_by = (row.op != DELETE) - had
            growth[class_of(row.key_group, self.num_partitions)] += grown_by
            if family in internal and num_internal_keys is not None:
                num_internal_keys += grown_by
        num_keys = len(self) + sum(growth)
        ops = [row.op for row in rows.values()]
        new = NewVersion(
            version=self.version + 1,
            parent=head.version_ref if head else None,
            checkpoint_id=batch.checkpoint_id,
            checkpoint_format=self._checkpoint_format,
            rows=RowCounts(ops.count(PUT), ops.count(DELETE), ops.count(MERGE)),
            num_keys=num_keys,
            num_internal_keys=num_internal_keys,
            max_parallelism=self.max_parallelism,
            num_partitions=self.num_partitions,
            rescalable=batch.is_rescalable and (head is None or head.rescalable),
            column_families=batch.column_families,
            backend=self._backend,
            key_group_growth=tuple(growth),
        )
        return new, num_keys
