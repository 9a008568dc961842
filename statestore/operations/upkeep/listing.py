"""Listing: which versions a checkpoint has, what each is made of and what it cost.

From Spark's logs, the trailers and one listing a store directory; no row is read.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from statestore.backends.spark import files as spark_files
from statestore.checkpoint.layout import parse_state_file_name
from statestore.codec.joined_trailers import add_counts
from statestore.codec.trailer import StoreName
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    NotFoundError,
    StateStoreError,
)
from statestore.core.providers import SPARK_PROVIDERS
from statestore.io.s3_settings import S3Settings
from statestore.io.storage import absolute_uri, open_storage
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE, Checkpoint
from statestore.operations.new_directory import try_read_metadata
from statestore.operations.rows import find_states, opened
from statestore.operations.savepoint.savepoint import Savepoint, read_savepoint
from statestore.operations.store_state import VersionKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.operator_metadata import OperatorInfo
    from statestore.core.options import StateStoreOptions
    from statestore.operations.store_state import States


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A state version of all stores of a query.

    Attributes:
        version, batch: The version and the batch that made it.
        kind: How it is kept; unreadable where its trailers cannot be read.
        num_partitions: State partitions; None where its batch has left the offset log.
        num_stores: Stores that have it, each of one state partition.
        num_rows: Rows in all of them; None where only reading them tells.
        incremental_bytes: Bytes that it added: the files of its own.
        full_bytes: Bytes that a restore reads: its own files and those it is built on.
        num_snapshots, snapshot_bytes: Snapshots of it; a restore may start from them.
        committed_ms: When its batch was committed, milliseconds since the Unix epoch; None where
            its entry of the commit log was lost.
        duration_ms: From the planning of its batch to its commit, milliseconds.
        problem: Why it cannot be loaded, None where its trailers say that it can.
    """

    version: int
    batch: int
    kind: VersionKind | Literal["unreadable"]
    num_partitions: int | None
    num_stores: int
    num_rows: int | None
    incremental_bytes: int
    full_bytes: int
    num_snapshots: int
    snapshot_bytes: int
    committed_ms: int | None
    duration_ms: int | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint at a glance.

    Attributes:
        uri: Where it is.
        backend: State backend; or one of Spark's own providers, by the name that `convert` takes.
        num_partitions: State partitions of the newest version.
        operators: The stateful operators.
        newest_version: Newest committed version, 0 when there is none.
        uncommitted_batch: Batch that was planned and not committed; it runs again first.
        stored_bytes: Bytes of all state files there are, whoever needs them; of the heap backend
            those in the directories of the newest version.
        versions: Newest first.
    """

    uri: str
    backend: str
    num_partitions: int
    operators: tuple[OperatorInfo, ...]
    newest_version: int
    uncommitted_batch: int | None
    stored_bytes: int
    versions: tuple[VersionInfo, ...]


def list_versions(
    checkpoint: str | Checkpoint,
    *,
    limit: int | None = None,
    options: StateStoreOptions | None = None,
) -> CheckpointInfo:
    """Describe a checkpoint and its newest versions.

    Args:
        checkpoint: Checkpoint directory of the query, a path or a URI of any scheme; or
            one that is open.
        limit: At most so many versions, None for all that the commit log has.
        options: How to reach the storage (`s3.*`); defaults when None.

    Raises:
        NotFoundError: There is no checkpoint.
        IncompatibleError: Neither this package's nor one of Spark's own providers wrote it.
        CorruptionError, StorageError: Spark's logs cannot be read, or the storage failed.
    """
    with opened(checkpoint, options) as source:
        batches = source.done_batches[::-1][:limit]
        files = _state_files(source)
        snapshots: dict[int, list[int]] = defaultdict(list)
        for name, size in files:
            if (version := _snapshot_version(name)) is not None:
                snapshots[version].append(size)
        planned = {info.name: info.modified_ms for info in source.io.list(source.offsets.directory)}
        committed = {
            info.name: info.modified_ms for info in source.io.list(source.commits.directory)
        }
        versions = tuple(
            _describe(source, batch, snapshots[batch + 1], planned, committed) for batch in batches
        )
        return CheckpointInfo(
            uri=source.uri,
            backend=source.kept_by,
            num_partitions=source.num_partitions,
            operators=source.operators,
            newest_version=source.newest_version,
            uncommitted_batch=None if source.is_between_batches else source.newest_planned,
            stored_bytes=sum(size for _, size in files),
            versions=versions,
        )


def _describe(
    checkpoint: Checkpoint,
    batch: int,
    snapshots: list[int],
    planned: Mapping[str, int],
    committed: Mapping[str, int],
) -> VersionInfo:
    version = batch + 1
    states: States = {}
    num_partitions = None
    problem = None
    try:
        num_partitions = checkpoint.num_partitions_at(version)
        states = find_states(checkpoint, version)
    except StateStoreError as error:
        problem = str(error)
    planned_ms, committed_ms = planned.get(str(batch)), committed.get(str(batch))
    return VersionInfo(
        version=version,
        batch=batch,
        kind="unreadable" if problem else _kind(states),
        num_partitions=num_partitions,
        num_stores=len(states),
        num_rows=add_counts(state.num_keys for state in states.values()),
        incremental_bytes=sum(state.own_bytes for state in states.values()),
        full_bytes=sum(state.full_bytes for state in states.values()),
        num_snapshots=len(snapshots),
        snapshot_bytes=sum(snapshots),
        committed_ms=committed_ms,
        duration_ms=None
        if planned_ms is None or committed_ms is None
        else committed_ms - planned_ms,
        problem=problem,
    )


def _kind(states: States) -> VersionKind:
    """Return how a version is kept: whole or as references only where every store's is."""
    kinds = {state.kind for state in states.values()}
    if "incremental" in kinds:
        return "incremental"
    return "rescaled" if "rescaled" in kinds else "full"


@dataclass(frozen=True, slots=True)
class FoundSavepoint:
    """A savepoint of a query.

    Attributes:
        uri: Where it is.
        savepoint: What it says about itself.
    """

    uri: str
    savepoint: Savepoint


def find_savepoints(
    checkpoint: str | Checkpoint, directory: str, *, options: StateStoreOptions | None = None
) -> tuple[FoundSavepoint, ...]:
    """Return the savepoints of a checkpoint's query that are retained in a directory.

    Args:
        checkpoint: As `list_versions`.
        directory: Where to look: savepoints lie directly in it. A path or URI as well.
        options: How to reach the storage (`s3.*`); defaults when None.

    Returns:
        Oldest version first. Nobody but the user knows where savepoints are, so nothing else is
        looked at; one that is not finished or cannot be read is left out.

    Raises:
        NotFoundError: There is no checkpoint.
        InvalidArgumentError: No storage of that URI (kind unsupported-scheme).
        StorageError: The storage failed.
    """
    with opened(checkpoint, options) as source:
        query_id, _ = try_read_metadata(source.io, source.path)
        s3 = S3Settings.from_options(source.options)
        directory = absolute_uri(directory)
        io, path = open_storage(directory, source.scratch_directory, s3, source.clock)
        found: list[FoundSavepoint] = []
        for child in sorted(io.list_directories(path.rstrip("/") or "/")):
            uri = f"{directory.rstrip('/')}/{child}"
            with suppress(NotFoundError, CorruptionError, IncompatibleError):
                savepoint = read_savepoint(io, f"{path.rstrip('/')}/{child}", uri)
                if savepoint.query_id == query_id:
                    found.append(FoundSavepoint(uri, savepoint))
        return tuple(sorted(found, key=lambda one: one.savepoint.version))


def store_locations(checkpoint: Checkpoint) -> list[StoreLocation]:
    """Return every store of the newest version, of every state partition it may have."""
    return [
        checkpoint.location(StoreName(operator.id, partition, store.name))
        for operator in checkpoint.operators
        for store in operator.stores
        for partition in range(checkpoint.num_partitions)
    ]


def _state_files(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    """Return name and size of all state files, also those of state partitions there were before."""
    is_spark = checkpoint.kept_by in SPARK_PROVIDERS
    if checkpoint.kept_by == "heap":
        locations = store_locations(checkpoint)
        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            listings = pool.map(lambda location: location.io.list(location.directory), locations)
            infos = [info for files in listings for info in files]
    else:
        infos = checkpoint.state_io.list_tree(checkpoint.state_root)
    found = [(posixpath.basename(info.name), info.size) for info in infos]
    return [
        (name, size)
        for name, size in found
        if (spark_files.is_state_file(name) if is_spark else parse_state_file_name(name))
    ]


def _snapshot_version(name: str) -> int | None:
    parsed = parse_state_file_name(name)
    if parsed is None:
        return spark_files.snapshot_version(name)
    return parsed.version if parsed.kind == "snapshot" else None
