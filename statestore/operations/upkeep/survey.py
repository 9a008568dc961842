"""Survey: which versions a checkpoint has, what each is made of and what it cost.

From Spark's logs, the trailers and one listing a store directory; no row is read.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from statestore.checkpoint.layout import parse_pin_name, parse_state_file_name
from statestore.checkpoint.pins import is_held
from statestore.codec.commit_times import CommitTimes
from statestore.codec.joined_trailers import add_counts
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    NotFoundError,
    StateStoreError,
)
from statestore.core.providers import IN_DRIVER_MEMORY
from statestore.core.text import format_bytes
from statestore.operations.batches import read_own_batch
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE, OpenCheckpoint
from statestore.operations.in_use import find_users
from statestore.operations.metadata_file import BranchOrigin, read_branch_origin
from statestore.operations.savepoint.savepoint import SavepointInfo, savepoint_in
from statestore.operations.states import find_states
from statestore.operations.store_state import VersionKind
from statestore.operations.upkeep.query_info import InputPosition, find_lag_ms, find_position
from statestore.operations.upkeep.what_expired import is_damage, is_expiry, is_let_go
from statestore.spark_files import files as spark_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from statestore.checkpoint.operator_metadata import OperatorInfo
    from statestore.codec.references import StoreName
    from statestore.operations.store_state import States, StoreState


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A state version of all stores of a query.

    Attributes:
        version, batch: The version and the batch that made it.
        kind: How it is kept; expired where retention took it, or a savepoint or restore never took
            it along; damaged where its files are wrong or lost; unreadable where they cannot be
            reached.
        made_by: The operation that made it: rescale, edit or forget; None where the query did, or
            its batch has left the offset log.
        num_partitions: State partitions; None where its batch has left the offset log.
        num_stores: Stores that have it, each of one state partition.
        num_rows: Rows in all of them; None where only reading them tells.
        incremental_bytes: Bytes that it added: the files of its own.
        full_bytes: Bytes that a restore reads: its own files and those it is built on. A file that
            a rescale took over counts whole in each state partition that reads some of its rows.
        num_snapshots, snapshot_bytes: Snapshots of it; a restore may start from them.
        committed_ms: When its batch was committed, milliseconds since the Unix epoch; None where
            its entry of the commit log was lost.
        commit: What the commit of its slowest store took; None where the version after it does not
            tell: it is the newest, or another engine made that one.
        problem: Why it cannot be loaded; None where its trailers say that it can, and where it was
            expired.
    """

    version: int
    batch: int
    kind: VersionKind | Literal["expired", "damaged", "unreadable"]
    made_by: Literal["rescale", "edit", "forget"] | None
    num_partitions: int | None
    num_stores: int
    num_rows: int | None
    incremental_bytes: int
    full_bytes: int
    num_snapshots: int
    snapshot_bytes: int
    committed_ms: int | None
    commit: CommitTimes | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a version is not there to be loaded."""

    kind: Literal["expired", "damaged", "unreadable"]
    problem: str


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of a checkpoint, newest first.

    Attributes:
        infos: Of each.
        newest: Every store of the newest; none where it is unreadable.
        commits: What the commits of each store took, as far as these versions tell.
    """

    infos: tuple[VersionInfo, ...]
    newest: States
    commits: Mapping[StoreName, Sequence[CommitTimes]]


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint at a glance.

    Attributes:
        uri: Where it is.
        backend: State backend; or one of Spark's own providers, by the name that `convert` takes.
        num_partitions: State partitions of the newest version.
        checkpoint_format: 1 or 2, in which it goes on; None before the first batch is committed,
            and where its commit cannot be read.
        operators: The stateful operators.
        newest_version: Newest committed version, 0 when there is none.
        uncommitted_batch: Batch that was planned and not committed: of a query that runs the one it
            is at, else it runs again first.
        stored_bytes: Bytes of all state files there are, whoever needs them; 0 where they are in
            the memory of a driver and it cannot be reached.
        pinned_versions: Versions that a reader holds back from retention now, oldest first.
        branch_of: What it is a branch of; None where it is none.
        is_running: Whether a query holds a lease on it; None where nobody knows: Spark's own
            providers have none.
        query_id: ID of the query; None of a savepoint, and where it was lost.
        query_name: Its name, which only its driver knows: None where none runs, or it has none.
        position: How far the query has read; None before its first batch is committed.
        lag_ms: How far its watermark is behind the clock, as `QueryInfo.lag_ms`.
        savepoint: What a savepoint says of itself; None of a checkpoint.
    """

    uri: str
    backend: str
    num_partitions: int
    checkpoint_format: int | None
    operators: tuple[OperatorInfo, ...]
    newest_version: int
    uncommitted_batch: int | None
    stored_bytes: int
    pinned_versions: tuple[int, ...]
    branch_of: BranchOrigin | None = None
    is_running: bool | None = None
    query_id: str | None = None
    query_name: str | None = None
    position: InputPosition | None = None
    lag_ms: int | None = None
    savepoint: SavepointInfo | None = None

    @property
    def kept_as(self) -> str:
        """The backend in words; of a savepoint its form, and the backend it was taken of."""
        if self.savepoint is None:
            return f"{self.backend} backend"
        return f"{self.savepoint.form} savepoint of the {self.savepoint.backend} backend"

    def __repr__(self) -> str:
        return (
            f"<CheckpointInfo {self.uri}: {self.kept_as}, {self.num_partitions} state "
            f"partitions, newest version {self.newest_version}, "
            f"{format_bytes(self.stored_bytes)} of state files>"
        )

    def fields_for_people(self) -> list[tuple[str, object]]:
        """Return its attributes in words."""
        return [
            ("backend", self.backend),
            ("state partitions", self.num_partitions),
            ("checkpoint format", self.checkpoint_format),
            ("operators", "; ".join(f"{one.id} {one.name}" for one in self.operators)),
            ("newest version", self.newest_version),
            ("state files", format_bytes(self.stored_bytes)),
        ]


def describe(checkpoint: OpenCheckpoint) -> CheckpointInfo:
    """Describe a checkpoint or savepoint; errors as of `Directory`."""
    return _describe_files(checkpoint, _list_files(checkpoint))


def _describe_files(
    checkpoint: OpenCheckpoint, names: Sequence[tuple[str, str, int]]
) -> CheckpointInfo:
    users = find_users(checkpoint)
    is_running = None if checkpoint.is_of_spark else users.is_query_running
    position = find_position(checkpoint)
    pins = {version for _, name, _ in names if (version := parse_pin_name(name)) is not None}
    return CheckpointInfo(
        uri=checkpoint.uri,
        backend=checkpoint.kept_by,
        num_partitions=checkpoint.num_partitions,
        checkpoint_format=_checkpoint_format(checkpoint),
        operators=checkpoint.operators,
        newest_version=checkpoint.newest_version,
        uncommitted_batch=None if checkpoint.is_between_batches else checkpoint.newest_planned,
        stored_bytes=sum(size for _, size in _state_files(checkpoint, names)),
        pinned_versions=tuple(sorted(pins)),
        branch_of=read_branch_origin(checkpoint.io, checkpoint.path),
        is_running=is_running,
        query_id=checkpoint.query_id,
        query_name=users.progress.name if users.progress else None,
        position=position,
        lag_ms=find_lag_ms(
            checkpoint,
            position.watermark_ms if position is not None else None,
            is_running=is_running,
        ),
        savepoint=_savepoint(checkpoint),
    )


def _checkpoint_format(checkpoint: OpenCheckpoint) -> int | None:
    with suppress(CorruptionError, NotFoundError):
        return checkpoint.commit_entry(checkpoint.newest_version - 1).checkpoint_format
    return None


def _savepoint(checkpoint: OpenCheckpoint) -> SavepointInfo | None:
    """Return what a savepoint says of itself; None also where that cannot be read."""
    with suppress(CorruptionError, IncompatibleError):
        return savepoint_in(checkpoint)
    return None


def list_versions(
    checkpoint: OpenCheckpoint, *, limit: int | None = None
) -> tuple[VersionInfo, ...]:
    """List the versions of a checkpoint or savepoint, newest first; all as `Directory.versions`."""
    return _versions(checkpoint, _list_files(checkpoint), limit).infos


def survey(checkpoint: OpenCheckpoint, limit: int | None = None) -> tuple[CheckpointInfo, Versions]:
    """Describe a checkpoint, and its versions as `list_versions`."""
    names = _list_files(checkpoint)
    return _describe_files(checkpoint, names), _versions(checkpoint, names, limit)


def _versions(
    checkpoint: OpenCheckpoint, names: Sequence[tuple[str, str, int]], limit: int | None
) -> Versions:
    batches = checkpoint.done_batches[::-1][:limit]
    by_directory: dict[str, set[str]] = defaultdict(set)
    for directory, name, _ in names:
        by_directory[directory].add(name)
    snapshots: dict[int, list[int]] = defaultdict(list)
    for name, size in _state_files(checkpoint, names):
        if (version := _snapshot_version(name)) is not None:
            snapshots[version].append(size)
    committed = {
        info.name: info.modified_ms for info in checkpoint.io.list(checkpoint.commits.directory)
    }
    versions: list[VersionInfo] = []
    newest: States = {}
    times: dict[StoreName, list[CommitTimes]] = defaultdict(list)
    commits: dict[int, CommitTimes] = {}

    # A trailer is kept for each store: of a version, and of the one before it.
    @lru_cache(2)
    def look(version: int) -> tuple[States, _Failure | None]:
        return _try_states(checkpoint, version, by_directory) if version else ({}, None)

    for batch in batches:  # newest first: a version tells of the one before
        states, failure = look(batch + 1)
        newest = newest if versions else states
        commits |= _slowest_before(batch + 1, states)
        for store, state in states.items():
            if state.parent_commit is not None:
                times[store].append(state.parent_commit)
        is_compared = any(state.files is not None for state in states.values())
        before = look(batch)[0] if is_compared else {}
        info = _describe(
            checkpoint, batch, states, before, snapshots[batch + 1], committed, failure
        )
        versions.append(replace(info, commit=commits.get(batch + 1)))
    return Versions(tuple(versions), newest, times)


def _try_states(
    checkpoint: OpenCheckpoint, version: int, by_directory: Mapping[str, set[str]]
) -> tuple[States, _Failure | None]:
    """Return a version of every store, or none of them and why."""
    is_newest = version == checkpoint.newest_version
    try:
        states = find_states(checkpoint, version)
        failure = _missing_delta(checkpoint, states, by_directory, is_newest=is_newest)
    except StateStoreError as error:
        if is_damage(error):
            is_expired = is_expiry(error, version) and not is_newest
            return {}, _Failure("expired" if is_expired else "damaged", str(error))
        return {}, _Failure("unreadable", str(error))
    return ({} if failure else states), failure


def _missing_delta(
    checkpoint: OpenCheckpoint,
    states: States,
    by_directory: Mapping[str, set[str]],
    *,
    is_newest: bool,
) -> _Failure | None:
    """Return the failure of a version where a delta that it is made of is not listed.

    Raises:
        CorruptionError: A reference leads elsewhere.
    """
    found: _Failure | None = None
    for store, state in states.items():
        for ref in state.deltas:
            path = checkpoint.location(store).path(ref.path)
            names = by_directory[posixpath.dirname(path)]
            if posixpath.basename(path) in names:
                continue
            if not is_newest and is_let_go(ref, names):
                return _Failure("expired", path)
            error = NotFoundError(
                "a file that the version is made of is not there",
                kind="file-not-found",
                file=path,
                to_fix="see what `statestore verify` finds, and go back to an older version with "
                "`statestore repair`",
            )
            found = found or _Failure("damaged", str(error))
    return found


def _slowest_before(version: int, states: States) -> dict[int, CommitTimes]:
    """Return the times of the slowest store's commit of the version before, where known."""
    known = [state.parent_commit for state in states.values() if state.parent_commit is not None]
    if len(known) < len(states) or not known:
        return {}
    return {version - 1: max(known, key=lambda commit: commit.total_ms)}


def _describe(
    checkpoint: OpenCheckpoint,
    batch: int,
    states: States,
    before: States,
    snapshots: list[int],
    committed: Mapping[str, int],
    failure: _Failure | None,
) -> VersionInfo:
    num_partitions = None
    try:
        num_partitions = checkpoint.num_partitions_at(batch + 1)
    except StateStoreError as error:
        failure = failure or _Failure("damaged" if is_damage(error) else "unreadable", str(error))
    return VersionInfo(
        version=batch + 1,
        batch=batch,
        kind=failure.kind if failure else _kind(states),
        made_by=_maker(checkpoint, batch),
        num_partitions=num_partitions,
        num_stores=len(states),
        num_rows=None if failure else add_counts(state.num_keys for state in states.values()),
        incremental_bytes=sum(
            _added_bytes(state, before.get(store)) for store, state in states.items()
        ),
        full_bytes=sum(state.full_bytes for state in states.values()),
        num_snapshots=len(snapshots),
        snapshot_bytes=sum(snapshots),
        committed_ms=committed.get(str(batch)),
        commit=None,
        problem=failure.problem if failure and failure.kind != "expired" else None,
    )


def _maker(checkpoint: OpenCheckpoint, batch: int) -> Literal["rescale", "edit", "forget"] | None:
    """Return the operation whose batch it is, None where it is the query's or nobody knows."""
    with suppress(StateStoreError):
        found = read_own_batch(checkpoint, batch)
        if found is not None:
            return "forget" if found.kind == "forgotten" else found.kind
    return None


def _added_bytes(state: StoreState, before: StoreState | None) -> int:
    """Return the bytes of the files that a version of a store added to the one before it."""
    if state.files is None:
        return state.own_bytes
    known = (before and before.files) or {}
    return sum(size for path, size in state.files.items() if path not in known)


def _kind(states: States) -> VersionKind:
    """Return how a version is kept: whole or as references only where every store's is."""
    kinds = {state.kind for state in states.values()}
    if "incremental" in kinds:
        return "incremental"
    return "rescaled" if "rescaled" in kinds else "full"


def _list_files(checkpoint: OpenCheckpoint) -> list[tuple[str, str, int]]:
    """Return directory, name and size of all files, also of state partitions there were before.

    Pins that have expired are left out. Of checkpoint memory that cannot be reached there is none.
    """
    if checkpoint.kept_by in IN_DRIVER_MEMORY:
        if checkpoint.memory is None:
            return []
        locations = [checkpoint.location(store) for store in checkpoint.stores(_most(checkpoint))]
        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            listings = pool.map(lambda location: location.io.list(location.directory), locations)
            found = [
                (f"{location.directory}/{info.name}", info)
                for location, files in zip(locations, listings, strict=True)
                for info in files
            ]
    else:
        infos = checkpoint.state_io.list_tree(checkpoint.state_root)
        found = [(f"{checkpoint.state_root}/{info.name}", info) for info in infos]
    now_ms = checkpoint.clock.now_ms()
    files = [(*posixpath.split(path), info) for path, info in found]
    return [
        (directory, name, info.size)
        for directory, name, info in files
        if parse_pin_name(name) is None or is_held(info, now_ms)
    ]


def _most(checkpoint: OpenCheckpoint) -> int:
    """Return the most state partitions of a version that the offset log tells of."""
    found = [checkpoint.num_partitions]
    for batch in checkpoint.done_batches:
        with suppress(CorruptionError, NotFoundError):  # told of by its version
            found.append(checkpoint.num_partitions_at(batch + 1))
    return max(found)


def _state_files(
    checkpoint: OpenCheckpoint, files: Sequence[tuple[str, str, int]]
) -> list[tuple[str, int]]:
    is_state = spark_files.is_state_file if checkpoint.is_of_spark else parse_state_file_name
    return [(name, size) for _, name, size in files if is_state(name)]


def _snapshot_version(name: str) -> int | None:
    parsed = parse_state_file_name(name)
    if parsed is None:
        return spark_files.snapshot_version(name)
    return parsed.version if parsed.kind == "snapshot" else None
