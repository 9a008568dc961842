"""Checkpoint: a query's checkpoint opened from outside, which batches it has and where state is."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import FileBody, StoreLocation
from statestore.checkpoint.placement import read_placement
from statestore.checkpoint.query_log import (
    NUM_PARTITIONS_KEY,
    PROVIDER_KEY,
    CommitEntry,
    OffsetsEntry,
    OperatorInfo,
    QueryLog,
    operator_metadata_path,
    read_operators,
)
from statestore.checkpoint.trailers import PublishedFile, read_delta_trailer
from statestore.codec.partition_key import is_single
from statestore.codec.trailer import StoreName
from statestore.core.clock import SystemClock
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.core.options import StateStoreOptions
from statestore.core.providers import PROVIDERS, SPARK_PROVIDERS
from statestore.io.s3_settings import S3Settings
from statestore.io.storage import open_storage
from statestore.operations.new_directory import (
    check_finished,
    check_of_query,
    read_metadata,
)
from statestore.operations.operator_map import JOIN_STORES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statestore.core.clock import Clock
    from statestore.io.file_io import FileIO, TreeFileIO

MAX_REQUESTS_AT_ONCE = 32


@contextmanager
def open_checkpoint(
    uri: str,
    *,
    options: StateStoreOptions | None = None,
    io: TreeFileIO | None = None,
    memory: FileIO | None = None,
    clock: Clock | None = None,
) -> Iterator[Checkpoint]:
    """Open the checkpoint of a query; nothing is written.

    Args:
        uri: Checkpoint directory: a path, or a URI of any scheme.
        options: Options of the query, for its storage (`s3.*`); defaults when None.
        io: Storage of `uri`, which is then a path of it; what the URI names when None.
        memory: The driver's memory, where the checkpoints of the heap backend are; None where it
            cannot be reached.
        clock: Source of time, the machine's when None.

    Yields:
        The checkpoint; files it fetched are deleted afterwards.

    Raises:
        NotFoundError: There is no checkpoint (kind checkpoint-not-found), or one that was begun
            and not finished (kind unfinished-operation).
        InvalidArgumentError: No storage of that URI (kind unsupported-scheme).
        CorruptionError, IncompatibleError, StorageError: As `read_placement`.
    """
    options = options or StateStoreOptions()
    clock = clock or SystemClock()
    with tempfile.TemporaryDirectory(prefix="statestore-operation-") as scratch_directory:
        s3 = S3Settings.from_options(options)
        path = uri
        fetched = f"{scratch_directory}/fetched"
        fetched_state = f"{scratch_directory}/fetched-state"
        for directory in (fetched, fetched_state):
            Path(directory).mkdir()
        if io is None:
            io, path = open_storage(uri, fetched, s3, clock)
        path = path.rstrip("/")
        check_finished(read_metadata(io, path)[1], uri)
        state_io, state_root = io, f"{path}/state"
        placement = read_placement(io, state_root)
        if placement is not None:
            state_io, storage = open_storage(placement.storage, fetched_state, s3, clock)
            state_root = f"{storage}/{placement.id}"
        checkpoint = Checkpoint(
            uri, io, path, state_io, state_root, memory, options, clock, scratch_directory
        )
        if checkpoint.newest_planned is None:
            raise NotFoundError(
                "there is no checkpoint of a streaming query",
                kind="checkpoint-not-found",
                checkpoint=uri,
                missing=checkpoint.offsets.directory,
                to_fix="name the directory that the query has as its checkpointLocation",
            )
        yield checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """A query's checkpoint, as it was when it was first asked; open another to see changes.

    Attributes:
        uri: As the caller named it.
        io: Storage of the checkpoint directory.
        path: The checkpoint directory there.
        state_io, state_root: Storage and directory of the operators' state: elsewhere where the
            checkpoint has a placement.
        memory: The driver's memory for the heap backend, None where it cannot be reached.
        options: Options of the query.
        clock: Source of time.
        scratch_directory: Local directory for work, deleted with the checkpoint's context.
    """

    uri: str
    io: TreeFileIO
    path: str
    state_io: TreeFileIO
    state_root: str
    memory: FileIO | None
    options: StateStoreOptions
    clock: Clock
    scratch_directory: str

    @property
    def offsets(self) -> QueryLog:
        """The offset log."""
        return QueryLog(self.io, self.path, "offsets")

    @property
    def commits(self) -> QueryLog:
        """The commit log."""
        return QueryLog(self.io, self.path, "commits")

    @property
    def state_directory(self) -> str:
        """Spark's `state` directory on `io`, with operator metadata and state schemas."""
        return f"{self.path}/state"

    @cached_property
    def planned_batches(self) -> tuple[int, ...]:
        """Batches of the offset log, ascending."""
        return tuple(self.offsets.batches())

    @cached_property
    def committed_batches(self) -> tuple[int, ...]:
        """Batches of the commit log, ascending."""
        return tuple(self.commits.batches())

    @property
    def newest_planned(self) -> int | None:
        """Newest batch of the offset log."""
        return self.planned_batches[-1] if self.planned_batches else None

    @property
    def newest_committed(self) -> int | None:
        """Newest batch of the commit log."""
        return self.committed_batches[-1] if self.committed_batches else None

    @property
    def newest_version(self) -> int:
        """State version of the newest committed batch, 0 when none is committed."""
        return 0 if self.newest_committed is None else self.newest_committed + 1

    @property
    def is_between_batches(self) -> bool:
        """Whether every planned batch is committed, so that the next one starts from all state."""
        return self.newest_planned == self.newest_committed

    def check_of_query(self) -> None:
        """Check that this is a query's, to be changed or gone on from: no savepoint.

        Raises:
            InvalidArgumentError, NotFoundError, StorageError: As `new_directory.check_of_query`.
        """
        check_of_query(self.io, self.path, self.uri)

    def offsets_entry(self, batch: int) -> OffsetsEntry:
        """Return an entry of the offset log.

        Raises:
            NotFoundError, CorruptionError, StorageError: It is not there or cannot be read.
        """
        return OffsetsEntry.parse(self.offsets.read(batch), self.offsets.path(batch))

    def commit_entry(self, batch: int) -> CommitEntry:
        """Return an entry of the commit log; errors as `offsets_entry`."""
        return CommitEntry.parse(self.commits.read(batch), self.commits.path(batch))

    @cached_property
    def conf(self) -> dict[str, str]:
        """Configuration pinned by the newest committed batch, by the first one where none is."""
        batch = self.planned_batches[0] if self.newest_committed is None else self.newest_committed
        return dict(self.offsets_entry(batch).conf)

    @cached_property
    def num_partitions(self) -> int:
        """Number of state partitions of the newest committed batch."""
        return int(self.conf[NUM_PARTITIONS_KEY])

    @cached_property
    def provider(self) -> str:
        """Provider class of the newest committed batch."""
        return self.conf.get(PROVIDER_KEY, SPARK_PROVIDERS["spark-hdfs"])

    @property
    def backend(self) -> str:
        """State backend of the checkpoint.

        Raises:
            IncompatibleError: Another provider than this package's wrote it.
        """
        for name, provider in PROVIDERS.items():
            if provider == self.provider:
                return name
        raise IncompatibleError(
            "the checkpoint was written by another state store provider",
            kind="other-provider",
            checkpoint=self.uri,
            found=self.provider,
            expected=", ".join(PROVIDERS.values()),
            to_fix="bring it over with `statestore convert`",
        )

    @property
    def body(self) -> FileBody:
        """How the state files keep rows."""
        return "sst" if self.backend == "rocksdb" else "arrows"

    @cached_property
    def operators(self) -> tuple[OperatorInfo, ...]:
        """The stateful operators of the query, from Spark's metadata."""
        return read_operators(self.io, self.state_directory)

    def operator(self, operator: int) -> OperatorInfo:
        """Return one stateful operator.

        Raises:
            InvalidArgumentError: There is no such operator; names those there are.
        """
        for info in self.operators:
            if info.id == operator:
                return info
        raise InvalidArgumentError(
            "the query has no such stateful operator",
            operator=operator,
            known=", ".join(f"{info.id} ({info.name})" for info in self.operators),
            to_fix="use one of these",
        )

    def require_metadata(self, version: int) -> None:
        """Check that no operator has state and no metadata, without which nobody knows of it.

        Args:
            version: A committed version.

        Raises:
            NotFoundError: One has.
            CorruptionError, StorageError: As `operators` and `commit_entry`.
        """
        after = len(self.operators)
        has_ids = any(int(operator) >= after for operator in self._ids_of(version))
        if has_ids or self._has_other_state:
            raise NotFoundError(
                "an operator has state and no metadata",
                checkpoint=self.uri,
                file=operator_metadata_path(self.state_directory, after),
                to_fix="put the file back where the checkpoint was copied without it; else run a "
                "batch of the query with Spark 3.5 or later, which writes it",
            )

    @cached_property
    def _has_other_state(self) -> bool:
        """Whether there are files of an operator after those that have metadata."""
        places = [(self.state_io, self.state_root)]
        if self.state_root != self.state_directory:
            places.append((self.io, self.state_directory))
        return any(
            io.list(f"{root}/{len(self.operators)}/0{name}")
            for io, root in places
            for name in ("", *(f"/{store}" for store in JOIN_STORES))
        )

    def location(self, store: StoreName) -> StoreLocation:
        """Return where the files of a store are.

        Raises:
            NotFoundError: They are in the driver's memory, which cannot be reached from here (kind
                driver-lost).
        """
        if self.backend != "heap":
            return StoreLocation(self.state_io, self.state_root, store, self.body)
        if self.memory is None:
            raise NotFoundError(
                "the checkpoint's state is in the memory of the query's driver",
                kind="driver-lost",
                checkpoint=self.uri,
                to_fix="call the library in the driver's own Python program while it runs; state "
                "of the heap backend cannot be reached from other processes",
            )
        return StoreLocation(self.memory, self.state_directory, store)

    def home(self, store: StoreName) -> StoreLocation:
        """Return the place of a store in the checkpoint directory, wherever its files are."""
        return StoreLocation(self.io, self.state_directory, store)

    def checkpoint_id(self, store: StoreName, version: int) -> str | None:
        """Return the checkpoint ID of a store's committed version, None in checkpoint format v1.

        Raises:
            NotFoundError, CorruptionError, StorageError: The commit log has no such entry, or it
                cannot be read.
        """
        partitions = self._ids_of(version).get(str(store.operator))
        if partitions is None or store.partition >= len(partitions):
            return None
        names = [info.name for info in self.operator(store.operator).stores]
        ids = partitions[store.partition]
        return ids[names.index(store.name)] if len(ids) == len(names) else ids[0]

    def head(self, store: StoreName, version: int) -> PublishedFile:
        """Return the delta that makes a committed version of a store.

        Raises:
            NotFoundError, IncompatibleError, CorruptionError, FencedError, StorageError: As
                `read_delta_trailer`.
        """
        return read_delta_trailer(self.location(store), version, self.checkpoint_id(store, version))

    def heads(
        self, version: int, *, operator: int | None = None, name: str | None = None
    ) -> dict[StoreName, PublishedFile]:
        """Return the delta of every store that has state at a version, read in parallel.

        A store of an operator that has one state partition only (a global aggregation, a global
        limit) is there in partition 0.

        Args:
            version: A committed version.
            operator: Only stores of this operator, None for all.
            name: Only stores of this name, None for all.

        Raises:
            NotFoundError: A store lacks the version in a state partition; or, where all operators
                are asked for, one has no metadata.
            IncompatibleError, CorruptionError, FencedError, StorageError: As `head`.
        """
        if operator is None:
            self.require_metadata(version)
        num_partitions = self.num_partitions_at(version)
        stores = [
            StoreName(found.id, partition, info.name)
            for found in self.operators
            for info in found.stores
            if operator in (None, found.id) and name in (None, info.name)
            for partition in range(num_partitions)
        ]
        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            found = list(pool.map(lambda store: self._head_or_error(store, version), stores))
        heads = {
            store: head
            for store, head in zip(stores, found, strict=True)
            if isinstance(head, PublishedFile)
        }
        for store, head in zip(stores, found, strict=True):
            if isinstance(head, NotFoundError) and not self._is_single(store, heads, version):
                raise head
        return heads

    def _is_single(
        self, store: StoreName, heads: Mapping[StoreName, PublishedFile], version: int
    ) -> bool:
        """Return whether an operator has state in state partition 0 only, and has it there."""
        of = {
            found.partition: head.trailer
            for found, head in heads.items()
            if (found.operator, found.name) == (store.operator, store.name)
        }
        ids = self._ids_of(version).get(str(store.operator))
        if ids is not None:
            return of.keys() == {0} and len(ids) == 1
        return bool(of) and is_single(store.name, of[min(of)].column_families, of)

    def num_partitions_at(self, version: int) -> int:
        """Return the number of state partitions of a committed version.

        Raises:
            NotFoundError, CorruptionError, StorageError: Its batch has no entry in the offset log.
        """
        if version == self.newest_version:
            return self.num_partitions
        return int(self.offsets_entry(version - 1).conf[NUM_PARTITIONS_KEY])

    def _head_or_error(self, store: StoreName, version: int) -> PublishedFile | NotFoundError:
        try:
            return self.head(store, version)
        except NotFoundError as error:
            if error.kind == "driver-lost":
                raise
            return error

    def _ids_of(self, version: int) -> dict[str, list[list[str]]]:
        if version not in self._ids:
            self._ids[version] = dict(self.commit_entry(version - 1).checkpoint_ids)
        return self._ids[version]

    @cached_property
    def _ids(self) -> dict[int, dict[str, list[list[str]]]]:
        return {}
