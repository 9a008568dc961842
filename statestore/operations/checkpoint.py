"""A query's checkpoint opened from outside: which stores it has, and where they are."""

from __future__ import annotations

import posixpath
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.backends.forms import work_in
from statestore.backends.heap.versions import lost_with_driver
from statestore.checkpoint.history import newest_line
from statestore.checkpoint.layout import HEAP_MARKER, StoreLocation, placement_path
from statestore.checkpoint.operator_metadata import (
    OperatorInfo,
    operator_metadata_path,
    operators_of,
    read_operator_files,
    schema_uris_of,
)
from statestore.checkpoint.placement import read_placement
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY
from statestore.checkpoint.text_files import read_bytes, to_fix_file
from statestore.checkpoint.trailers import PublishedFile, read_attempt
from statestore.codec.partition_key import is_single
from statestore.codec.references import StoreName
from statestore.core.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.core.providers import IN_DRIVER_MEMORY, PROVIDERS
from statestore.io.guarded import Guard
from statestore.io.local import named_disk_errors, named_errors, temporary_directory
from statestore.io.storage import absolute_uri
from statestore.operations.metadata_file import check_finished, check_of_query, try_read_metadata
from statestore.operations.query_logs import QueryLogs
from statestore.spark_files.schemas import read_schemas
from statestore.spark_files.snapshot import SparkFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statestore.backends.form import Work
    from statestore.checkpoint.operator_metadata import OperatorFiles
    from statestore.checkpoint.placement import Placement
    from statestore.checkpoint.query_log import CommitEntry
    from statestore.codec.column_family import ColumnFamily
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions
    from statestore.io.file_io import FileIO, TreeFileIO
    from statestore.io.place import Place

MAX_REQUESTS_AT_ONCE = 32
_MOST_FOR_A_MESSAGE = 200
"""Directories listed where a checkpoint was named that is none."""
_MOST_NAMED = 10
_DEEPEST = 6
_OFFSETS = "offsets"


@contextmanager
def open_checkpoint(place: Place, below: str | None = None) -> Iterator[OpenCheckpoint]:
    """Open the checkpoint of a query, or a savepoint, which is laid out as one; nothing is written.

    Args:
        place: Where it is.
        below: Local directory for what it fetches; one for temporary files when None.

    Yields:
        The checkpoint; files it fetched are deleted afterwards.

    Raises:
        NotFoundError: There is no checkpoint (kind checkpoint-not-found), or one that was begun
            and not finished (kind unfinished-operation).
        InvalidArgumentError: No storage of that URI (kind unsupported-scheme).
        CorruptionError: It is a savepoint with a placement, or as `read_placement`.
        IncompatibleError, StorageError: As `read_placement`; or the local disk failed in the block.
    """
    with temporary_directory(below) as scratch_directory:
        fetched = f"{scratch_directory}/fetched"
        fetched_state = f"{scratch_directory}/fetched-state"
        for directory in (fetched, fetched_state):
            with named_errors("make a directory", directory):
                Path(directory).mkdir()
        uri = place.uri if place.io else absolute_uri(place.uri)
        io, path = place.open(fetched)
        query_id, of_ours = try_read_metadata(io, path)
        check_finished(of_ours, uri)
        state_io, state_root = io, f"{path}/state"
        placement = read_placement(io, state_root)
        if placement is not None and of_ours is not None:
            raise CorruptionError(
                "a savepoint says that its state is elsewhere",
                file=placement_path(state_root),
                storage=placement.storage,
                expected="no such file: a savepoint holds all that it is made of",
                to_fix="take the savepoint from where it was taken to, with nothing added",
            )
        if placement is not None:
            state_io, storage = place.open_other(placement.storage, fetched_state)
            state_root = placement.directory(storage)
        checkpoint = OpenCheckpoint(
            uri,
            io,
            path,
            place,
            state_io,
            state_root,
            scratch_directory,
            placement=placement,
            query_id=query_id,
        )
        if checkpoint.newest_planned is None:
            raise _no_checkpoint(checkpoint)
        with named_disk_errors(scratch_directory):
            yield checkpoint


def _no_checkpoint(checkpoint: OpenCheckpoint) -> NotFoundError:
    """Return the error for a directory in which no batch was planned."""
    found = _named_below(checkpoint.io, checkpoint.path)
    is_new = checkpoint.query_id is not None and not found and checkpoint.newest_committed is None
    if is_new:
        return NotFoundError(
            "the query has not begun its first batch yet",
            kind="checkpoint-not-found",
            checkpoint=checkpoint.uri,
            missing=checkpoint.offsets.path(0),
            to_fix="wait for it: it begins when a source of the query has input",
        )
    return NotFoundError(
        "there is no checkpoint of a streaming query",
        kind="checkpoint-not-found",
        checkpoint=checkpoint.uri,
        missing=checkpoint.offsets.directory,
        to_fix="name one of the checkpoints below it"
        if found
        else "name the directory that the query has as its checkpointLocation",
        **({"below": found} if found else {}),
    )


def find_checkpoints(
    io: TreeFileIO, path: str, most: int, *, with_closed: bool = True
) -> list[str]:
    """Return the checkpoints at or below a directory: their paths from it, "" for itself, sorted.

    A directory is one when it has a directory `offsets`. One below that may not be listed counts
    as one too, so that whoever opens it says why it cannot be read. They are looked for no deeper
    than declarative pipelines keep them: `_checkpoints/<catalog>/<database>/<table>/<flow>/<n>`.

    Args:
        io: The storage.
        path: The directory.
        most: At most so many directories are listed.
        with_closed: Whether those are among them that may not be listed.

    Raises:
        InvalidArgumentError: There are more of them.
        StorageError: The storage failed.
    """
    found: list[str] = []
    level, num_listed = [""], 0

    def below(at: str) -> list[str]:
        try:
            return io.list_directories(f"{path}/{at}".rstrip("/"))
        except StorageError as error:
            if not at or error.kind != "permission-denied":
                raise
            return [_OFFSETS] if with_closed else []

    with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
        for _ in range(_DEEPEST + 1):
            num_listed += len(level)
            if num_listed > most:
                raise InvalidArgumentError(
                    "too many directories to look for checkpoints in",
                    directory=path,
                    limit=most,
                    to_fix="name a directory that holds checkpoints and little else",
                )
            listed = list(zip(level, pool.map(below, level), strict=True))
            found += [at for at, names in listed if _OFFSETS in names]
            level = [
                f"{at}/{name}".lstrip("/")
                for at, names in listed
                if _OFFSETS not in names
                for name in names
            ]
    return sorted(found)


def _named_below(io: TreeFileIO, path: str) -> str:
    """Return the first checkpoints below a directory, for the message that it is none itself."""
    try:
        found = find_checkpoints(io, path, _MOST_FOR_A_MESSAGE, with_closed=False)
    except StateStoreError:
        return ""
    return ", ".join(found[:_MOST_NAMED])


@dataclass(frozen=True)
class OpenCheckpoint(QueryLogs):
    """A query's checkpoint: its logs, and where the state is that they speak of.

    Attributes:
        place: Where it was opened.
        state_io, state_root: Storage and directory of the operators' state: elsewhere with a
            placement.
        scratch_directory: Local directory for work, deleted with the checkpoint's context.
        placement: The checkpoint's placement; None where its state is in its own directory.
        query_id: ID of the query; None of a savepoint, and where it was lost.
        guard: Who is asked before a file is written or deleted: the operation that changes it.
        decided_after: The last line of the history when `decide_from_here` was called.
    """

    place: Place
    state_io: TreeFileIO
    state_root: str
    scratch_directory: str
    placement: Placement | None = None
    query_id: str | None = None
    guard: Guard = field(default_factory=Guard, compare=False)
    decided_after: list[bytes] = field(default_factory=list, compare=False)

    def decide_from_here(self) -> None:
        """Take what is decided from here on for true only while no operation writes the history.

        `exclusive_use` refuses where one has: a promote may keep the batches of the logs.

        Raises:
            CorruptionError, StorageError: The history cannot be read.
        """
        if not self.decided_after:
            self.decided_after.append(newest_line(self.io, self.path))

    @property
    def files(self) -> FileIO:
        """Storage of the checkpoint directory, which asks before every change."""
        return self.guard.over(self.io)

    @property
    def options(self) -> StateStoreOptions:
        """Options of the query."""
        return self.place.options

    @property
    def clock(self) -> Clock:
        """Source of time."""
        return self.place.clock

    @cached_property
    def work(self) -> Work:
        """Scratch directory, options and clock for reading and writing its state."""
        return work_in(self.scratch_directory, self.options, self.clock)

    def synced_work(self) -> Work:
        """Return means to write its state; files are synced whatever its options say.

        Raises:
            InvalidArgumentError: The package that its state backend needs is not installed.
        """
        self.work.form(self.body)  # raises here, before anything is written
        return replace(self.work, options=replace(self.options, fsync_enabled=True))

    @cached_property
    def memory(self) -> FileIO | None:
        """Checkpoint memory for the heap backend, None where it cannot be reached."""
        return None if self.place.memory is None else self.place.memory()

    @property
    def state_directory(self) -> str:
        """Spark's `state` directory on `io`, with operator metadata and state schemas."""
        return f"{self.path}/state"

    def check_of_query(self) -> None:
        """Check that this is a query's, to be changed or gone on from: no savepoint.

        Raises:
            InvalidArgumentError, NotFoundError, CorruptionError, StorageError: As
                `metadata_file.check_of_query`.
        """
        check_of_query(self.io, self.path, self.uri)

    @cached_property
    def spark_files(self) -> SparkFiles:
        """The state files of one of Spark's own providers."""
        return SparkFiles(self.state_io, self.state_root)

    @cached_property
    def operators(self) -> tuple[OperatorInfo, ...]:
        """The stateful operators of the query, from Spark's metadata."""
        return operators_of(self._operator_files)

    def operators_at(self, version: int) -> tuple[OperatorInfo, ...]:
        """Return the stateful operators of the code that made a version.

        Which variables are lists, for one, later code may say otherwise.
        """
        return operators_of(self._operator_files, version - 1)

    @property
    def schema_uris(self) -> tuple[str, ...]:
        """URIs by which Spark finds state schemas: of another place, once the checkpoint moved."""
        return schema_uris_of(self._operator_files)

    @cached_property
    def _operator_files(self) -> OperatorFiles:
        return read_operator_files(self.io, self.state_directory)

    def operator(self, operator: int) -> OperatorInfo:
        """Return one stateful operator.

        Raises:
            InvalidArgumentError: There is no such operator; names those there are.
        """
        for info in self.operators:
            if info.id == operator:
                return info
        if self.newest_version:
            self.require_metadata(self.newest_version)
        raise InvalidArgumentError(
            "the query has no such stateful operator",
            operator=operator,
            known=", ".join(f"{info.id} ({info.name})" for info in self.operators),
            to_fix="use one of these",
        )

    def schemas(self, operator: int, file: str) -> tuple[ColumnFamily, ...]:
        """Return the column families that one of Spark's files of state schemas describes.

        Args:
            operator: Operator ID.
            file: Below the operator's directory, as `StoreInfo.schema_paths` has it.

        Raises:
            NotFoundError: There is none (kind file-not-found).
            CorruptionError, IncompatibleError: As `read_schemas`.
            StorageError: It cannot be read.
        """
        path = f"{self.state_directory}/{operator}/{file}"
        try:
            return read_schemas(read_bytes(self.io, path), path)
        except NotFoundError as error:
            raise NotFoundError(
                "an operator lacks a file of its state schemas",
                kind="file-not-found",
                checkpoint=self.uri,
                file=path,
                to_fix="put the file back where the checkpoint was copied without it; else run a "
                "batch of the query, which writes it where "
                "spark.sql.streaming.stateStore.stateSchemaCheck is not false",
            ) from error

    def require_metadata(self, version: int) -> None:
        """Check that every operator that has state has metadata, without which nobody knows of it.

        So has every store of such an operator that has a directory in a state partition.
        Operators are numbered without a gap. In checkpoint format v2 the commit log says which
        there are. In v1 only their directories tell: the last of several is not missed when all of
        it is lost.

        Args:
            version: A committed version.

        Raises:
            NotFoundError: One has none, or lacks a file of its state schemas; or nothing tells that
                the query has no state.
            CorruptionError: Metadata does not name a store; or as `operators` and `commit_entry`.
            StorageError: As those.
        """
        entry = self.commit_entry(version - 1)
        self._require_operators(version, entry)
        self._require_schemas()
        self._require_some(entry)
        self._require_stores()

    def require_operators(self, version: int) -> None:
        """Check that every operator is known, which is enough to tell where rows are.

        Arguments and errors as `require_metadata`, but that nothing is asked of state schemas.
        """
        entry = self.commit_entry(version - 1)
        self._require_operators(version, entry)
        self._require_some(entry)

    def _require_operators(self, version: int, entry: CommitEntry) -> None:
        """Check that every operator that has state has metadata."""
        named = {int(operator) for operator in entry.checkpoint_ids} | self._operator_directories
        unknown = [operator for operator in named if operator >= len(self.operators)]
        if unknown:
            directory = f"{self.state_directory}/{min(unknown)}"
            is_there = min(unknown) in self._operator_directories
            raise NotFoundError(
                "an operator has state and no metadata",
                checkpoint=self.uri,
                file=operator_metadata_path(self.state_directory, len(self.operators)),
                named_by=directory if is_there else self.commits.path(version - 1),
                to_fix="put the file back where the checkpoint was copied without it; else run a "
                "batch of the query with Spark 4.0 or later, which writes it",
            )

    def _require_schemas(self) -> None:
        """Check that no operator lacks a file of its state schemas."""
        for file in self._missing_schemas:
            raise NotFoundError(
                "an operator lacks a file of its state schemas, and Spark does not start the query",
                checkpoint=self.uri,
                file=file,
                to_fix="put the file back where the checkpoint was copied without it",
            )

    def _require_some(self, entry: CommitEntry) -> None:
        """Check that there are operators, or that the commit log says that there are none."""
        if not self.operators and not entry.names_operators:
            raise NotFoundError(
                "no stateful operator is in the checkpoint",
                checkpoint=self.uri,
                missing=operator_metadata_path(self.state_directory, 0),
                to_fix="put the directory state back where the checkpoint was copied without it; a "
                "query without stateful operators has no state to look after",
            )

    def _require_stores(self) -> None:
        """Check that metadata names every store that has a directory."""
        for operator in self.operators:
            unnamed = self._store_directories[operator.id] - {info.name for info in operator.stores}
            if unnamed:
                path = operator_metadata_path(self.state_directory, operator.id)
                raise CorruptionError(
                    "the metadata of an operator does not name all of its stores",
                    file=path,
                    offset=0,
                    expected=", ".join(sorted(unnamed)),
                    found=", ".join(info.name for info in operator.stores),
                    to_fix=to_fix_file(path),
                )

    @cached_property
    def _store_directories(self) -> dict[int, set[str]]:
        """Directories of stores in state partition 0, by operator; Spark's begin with _."""
        found: dict[int, set[str]] = {operator.id: set() for operator in self.operators}
        # Spark's own providers have other directories there as well.
        for operator in found if self.provider in PROVIDERS.values() else ():
            names = self.io.list_directories(f"{self.state_directory}/{operator}/0")
            found[operator] = {name for name in names if not name.startswith(("_", "."))}
        return found

    @cached_property
    def _missing_schemas(self) -> tuple[str, ...]:
        named = {
            f"{self.state_directory}/{operator.id}/{file}"
            for operator in self.operators
            for store in operator.stores
            for file in store.schema_files
        }
        found = {
            f"{directory}/{info.name}"
            for directory in set(map(posixpath.dirname, named))
            for info in self.io.list(directory)
        }
        return tuple(sorted(named - found))

    @cached_property
    def _operator_directories(self) -> set[int]:
        names = self.io.list_directories(self.state_directory)
        if self.state_root != self.state_directory:
            names += self.state_io.list_directories(self.state_root)
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    def location(self, store: StoreName) -> StoreLocation:
        """Return where the files of a store are.

        Raises:
            NotFoundError: They are in checkpoint memory, which cannot be reached from here (kind
                driver-lost).
        """
        if self.backend not in IN_DRIVER_MEMORY:
            io = self.guard.over(self.state_io)
            return StoreLocation(io, self.state_root, store, self.body, self.commits)
        if self.memory is None:
            raise NotFoundError(
                "the checkpoint's state is in the memory of the query's driver",
                kind="driver-lost",
                checkpoint=self.uri,
                to_fix="use Checkpoint(…, spark=session) in the driver's own Python program while "
                "it runs; state of the heap backend cannot be reached from other processes",
            )
        return StoreLocation(self.guard.over(self.memory), self.place.memory_root, store)

    def home(self, store: StoreName) -> StoreLocation:
        """Return the place of a store in the checkpoint directory, wherever its files are."""
        return StoreLocation(self.io, self.state_directory, store)

    def checkpoint_id(self, store: StoreName, version: int) -> str | None:
        """Return the checkpoint ID of a store's committed version, None in checkpoint format v1.

        Raises:
            NotFoundError, CorruptionError, StorageError: The commit log has no such entry, or it
                cannot be read.
        """
        partitions = self.commit_entry(version - 1).checkpoint_ids.get(str(store.operator))
        if partitions is None or store.partition >= len(partitions):
            return None
        names = [info.name for info in self.operator(store.operator).stores]
        ids = partitions[store.partition]
        return ids[names.index(store.name)] if len(ids) == len(names) else ids[0]

    def head(self, store: StoreName, version: int) -> PublishedFile:
        """Return the delta that makes a committed version of a store.

        Raises:
            NotFoundError, IncompatibleError, CorruptionError, FencedError, StorageError: As
                `read_attempt`.
        """
        checkpoint_id = self.checkpoint_id(store, version)
        try:
            return read_attempt(self.location(store), version, checkpoint_id)
        except NotFoundError as error:
            if self._is_lost(store, error):
                raise lost_with_driver(NotFoundError, self.home(store), version) from error
            metadata = operator_metadata_path(self.state_directory, store.operator)
            error.fields["named_by"] = f"{self.commits.path(version - 1)}, {metadata}"
            raise

    def _is_lost(self, store: StoreName, error: NotFoundError) -> bool:
        """Return whether a store that had state in checkpoint memory has no version there."""
        if self.backend not in IN_DRIVER_MEMORY or error.kind != "version-not-found":
            return False
        home = self.home(store)
        had_state = any(info.name == HEAP_MARKER for info in home.io.list(home.directory))
        return had_state and error.fields["oldest_version"] is None

    def stores(
        self, num_partitions: int, *, operator: int | None = None, name: str | None = None
    ) -> list[StoreName]:
        """Return every store in so many state partitions, those of one after the other.

        Args:
            num_partitions: State partitions of each.
            operator: Only stores of this operator, None for all.
            name: Only stores of this name, None for all.

        Raises:
            CorruptionError, StorageError: As `read_operators`.
        """
        return [
            StoreName(found.id, partition, info.name)
            for found in self.operators
            for info in found.stores
            if operator in (None, found.id) and name in (None, info.name)
            for partition in range(num_partitions)
        ]

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
            CorruptionError: A store was written under another number of state partitions than the
                offset log says; or as `head`.
            IncompatibleError, FencedError, StorageError: As `backend` and `head`.
        """
        num_partitions = self.num_own_partitions(version)
        if operator is None:
            self.require_metadata(version)
        stores = self.stores(num_partitions, operator=operator, name=name)
        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            found = list(pool.map(lambda store: self._head_or_error(store, version), stores))
        heads = {
            store: head
            for store, head in zip(stores, found, strict=True)
            if isinstance(head, PublishedFile)
        }
        # There may be as many stores without state as state partitions.
        has_one = cache(lambda operator, name: self._is_single(operator, name, heads, version))
        for store, head in zip(stores, found, strict=True):
            if isinstance(head, NotFoundError) and not has_one(store.operator, store.name):
                raise head
            if isinstance(head, PublishedFile) and head.trailer.num_partitions != num_partitions:
                raise self.not_pinned(version, NUM_PARTITIONS_KEY, head.trailer.num_partitions)
        return heads

    def _is_single(
        self, operator: int, name: str, heads: Mapping[StoreName, PublishedFile], version: int
    ) -> bool:
        """Return whether an operator has state in state partition 0 only, and has it there."""
        of = {
            found.partition: head.trailer
            for found, head in heads.items()
            if (found.operator, found.name) == (operator, name)
        }
        ids = self.commit_entry(version - 1).checkpoint_ids.get(str(operator))
        if ids is not None:
            return of.keys() == {0} and len(ids) == 1
        return bool(of) and is_single(name, of[min(of)].column_families, of)

    def _head_or_error(self, store: StoreName, version: int) -> PublishedFile | NotFoundError:
        try:
            return self.head(store, version)
        except NotFoundError as error:
            if error.kind == "driver-lost":
                raise
            return error
