"""Commit: seal a finished body as the delta of a version and publish it.

Publishing the delta *is* the commit. Repeated with the same checkpoint ID, a commit returns what
the first one did, whatever happened in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.key_group_rows import grown
from statestore.checkpoint.lineage import check_parent, make_ref
from statestore.checkpoint.trailers import PublishedFile, read_delta_trailer, read_trailer
from statestore.codec.commit_times import UNKNOWN_MEMORY, CommitTimes, MemoryUse
from statestore.codec.sealed_file import append_trailer
from statestore.codec.state_file import describe_own_stream, describe_stream
from statestore.codec.trailer import Trailer
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.version import WRITER
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.references import FileRef, StoreName, VersionRef
    from statestore.codec.trailer import Block, RowCounts
    from statestore.core.clock import Clock


@dataclass(frozen=True, slots=True)
class SstRows:
    """Rows of a commit that come as an SST, which shows no deletes.

    Attributes:
        length, checksum: Bytes and CRC32C of the rows themselves; equal for equal rows.
        deletes_path: An Arrow stream of the deletes, None without any.
        deletes_length: Bytes of that stream.
    """

    length: int
    checksum: int
    deletes_path: str | None = None
    deletes_length: int = 0


@dataclass(frozen=True, slots=True)
class NewVersion:
    """The version that a commit makes.

    Attributes:
        version: At least 1.
        parent: The version it is built on; None where the delta is the full state of its version,
            as in version 1.
        checkpoint_id: 32 hex digits, unique per attempt, the same when the attempt is repeated.
        checkpoint_format: 1 or 2, Spark's checkpointFormatVersion.
        rows: Row counts of the delta.
        num_keys: Rows in the store at this version; None where they must be read to be counted.
        num_internal_keys: Those of them in internal column families; None as well.
        max_parallelism, num_partitions: Key groups G, state partitions N.
        rescalable: Whether every row's key group satisfied key_group mod N = partition.
        column_families: Every column family of the store at this version.
        backend: Name of the state backend.
        key_group_growth: Rows more than in the parent by key-group class, as `key_group_rows.grown`
            takes them; None where unknown.
        sst: Where the delta is an SST; None where it is an Arrow stream.
        state_bytes: Key and value bytes of the rows at this version; 0 where they have no limit.
        write_ms: Milliseconds to sort and write the delta; 0 where unknown.
        memory: Memory of the engine meanwhile.
    """

    version: int
    parent: VersionRef | None
    checkpoint_id: str
    checkpoint_format: int
    rows: RowCounts
    num_keys: int | None
    max_parallelism: int
    num_partitions: int
    rescalable: bool
    column_families: tuple[ColumnFamily, ...]
    backend: str
    num_internal_keys: int | None = 0
    state_bytes: int = 0
    key_group_growth: tuple[int, ...] | None = None
    sst: SstRows | None = None
    write_ms: float = 0.0
    memory: MemoryUse = UNKNOWN_MEMORY

    def __post_init__(self) -> None:
        if self.parent is not None and self.version != self.parent.version + 1:
            raise InvalidArgumentError(
                "a version must follow its parent",
                version=self.version,
                parent_version=self.parent.version,
                to_fix="commit the parent's version + 1",
            )

    def file_name(self, location: StoreLocation) -> str:
        """Return the name of the delta that makes this version."""
        return location.delta_name(
            self.version, self.checkpoint_id if self.checkpoint_format >= 2 else None
        )


@dataclass(frozen=True, slots=True)
class Body:
    """The complete body of a file to publish.

    Attributes:
        local_path: File that begins with it.
        blocks: Its blocks.
        rows: Its rows.
        lineage: Lineage of the version it makes or leads to.
    """

    local_path: str
    blocks: tuple[Block, ...]
    rows: RowCounts
    lineage: str


def find_committed(location: StoreLocation, new: NewVersion) -> PublishedFile | None:
    """Return the version's file if this attempt published it before, else None.

    A damaged file counts as none: the commit replaces it, unless its batch is committed.

    Raises:
        StorageError: The storage failed.
    """
    try:
        found = read_trailer(location, new.file_name(location))
    except (NotFoundError, CorruptionError):
        return None
    return found if found.trailer.checkpoint_id == new.checkpoint_id else None


def read_parent(
    location: StoreLocation, new: NewVersion, cached: PublishedFile | None
) -> PublishedFile | None:
    """Return the parent's delta, checked to have the rows this commit is built on.

    In checkpoint format v1 another attempt may have replaced the parent, so its trailer is read
    anew, and parsed unless its bytes equal the cached one's. In v2 names are unique and a cached
    trailer will do.

    Raises:
        FencedError: The parent was replaced (kind lineage-broken).
        InvalidArgumentError: The parent is of checkpoint format v2 and the query of v1.
        StorageError: The parent is gone (kind directory-gone), or the storage failed.
    """
    if new.parent is None:
        return None
    if cached is not None and new.checkpoint_format >= 2:
        check_parent(cached.trailer, new.parent, cached.ref.path)
        return cached
    checkpoint_id = new.parent.checkpoint_id if new.checkpoint_format >= 2 else None
    try:
        found = read_delta_trailer(location, new.parent.version, checkpoint_id, cached)
    except NotFoundError as error:
        if new.checkpoint_format < 2 and _is_of_later_format(location, new.parent):
            raise InvalidArgumentError(
                "the checkpoint was written in a later checkpoint format",
                kind="invalid-option",
                key="spark.sql.streaming.stateStore.checkpointFormatVersion",
                value=new.checkpoint_format,
                directory=location.directory,
                parent_version=new.parent.version,
                to_fix="set it to 2, which the checkpoint was begun in",
            ) from error
        raise StorageError(
            "the version this commit is built on is gone from the store directory",
            kind="directory-gone",
            directory=location.directory,
            parent_version=new.parent.version,
            newest_version=error.fields.get("newest_version"),
            to_fix="put the checkpoint directory back, or start the query with a new one; nothing "
            "may delete it while the query runs",
        ) from error
    check_parent(found.trailer, new.parent, location.path(found.ref.path))
    if cached is not None and cached.trailer.checkpoint_id == found.trailer.checkpoint_id:
        return replace(found, commit=cached.commit)
    return found


def _is_of_later_format(location: StoreLocation, version: VersionRef) -> bool:
    """Return whether a version is there by its name in checkpoint format v2."""
    try:
        read_delta_trailer(location, version.version, version.checkpoint_id)
    except NotFoundError:
        return False
    return True


def describe_delta(
    new: NewVersion, local_path: str, arrow_length: int | None = None
) -> tuple[Block, ...]:
    """Check the Arrow stream of a version, and return its blocks.

    Args:
        new: The version.
        local_path: Local file that begins with the stream.
        arrow_length: Bytes of the stream, as it was announced; None for a file that this process
            wrote, as `describe_own_stream` takes it.

    Raises:
        InvalidArgumentError, InternalError: The stream is not what `new` says.
        NotFoundError, StorageError: It cannot be read.
    """
    with named_errors("read the delta to commit", local_path):
        if arrow_length is None:
            blocks = describe_own_stream(local_path, new.max_parallelism)
        else:
            blocks = describe_stream(local_path, arrow_length, new.max_parallelism)
    check_rows(new, sum(block.rows for block in blocks), local_path)
    return blocks


def check_rows(new: NewVersion, num_rows: int, local_path: str) -> None:
    """Check that a stream holds as many rows as `new` says.

    Raises:
        InternalError: It does not.
    """
    if num_rows != new.rows.total:
        raise InternalError(
            "the delta has another number of rows than announced",
            file=local_path,
            expected=new.rows.total,
            found=num_rows,
            to_fix="report it; nothing was published",
        )


def check_length(local_path: str, length: int) -> None:
    """Check that a file has the length it was announced with.

    Raises:
        InternalError: It is not.
        OSError: It cannot be read.
    """
    found = Path(local_path).stat().st_size
    if found != length:
        raise InternalError(
            "the delta to commit is not as long as it was announced",
            file=local_path,
            expected=length,
            found=found,
            to_fix="report it; nothing was published",
        )


def publish_delta(
    location: StoreLocation,
    new: NewVersion,
    parent: PublishedFile | None,
    files: tuple[FileRef, ...],
    body: Body,
    *,
    sync: bool,
    clock: Clock,
    start_ms: float | None = None,
) -> PublishedFile:
    """Seal a complete body and publish it as the delta of a version.

    Args:
        location: The store.
        new: The version.
        parent: The parent's delta, from `read_parent`.
        files: To be applied before the delta.
        body: The delta; its file is moved or deleted on success.
        sync: Whether to wait for the disk.
        clock: For the times.
        start_ms: When the work on the body began, of the clock's elapsed_ms; None for now.

    Guarantee: on return the version is durable. After a raise it is either missing, and the local
    file is left, or whole: `find_committed` tells. A version whose batch the query has committed
    keeps its rows.

    Raises:
        FencedError: The version is there with other rows, and its batch is committed.
        StorageError: The storage failed; names the reason.
    """
    if start_ms is None:
        start_ms = clock.elapsed_ms()
    name = new.file_name(location)
    trailer = delta_trailer(location.store, new, parent, files, body)
    with named_errors("seal the delta to commit", body.local_path):
        encoded = append_trailer(body.local_path, trailer)
    sealed_ms = clock.elapsed_ms()
    if parent is None:
        location.io.make_directory(location.directory)
    sync_ms = _publish(location, new, body, sync=sync)
    times = CommitTimes(
        write_ms=new.write_ms,
        checksum_ms=sealed_ms - start_ms,
        publish_ms=clock.elapsed_ms() - sealed_ms,
        sync_ms=sync_ms,
        committed_ms=clock.now_ms(),
        memory=new.memory,
    )
    size = trailer.body_length + len(encoded)
    return PublishedFile(make_ref(name, trailer, size), trailer, times, encoded)


def _publish(location: StoreLocation, new: NewVersion, body: Body, *, sync: bool) -> float:
    """Publish a sealed delta; in checkpoint format v1 another attempt's file may have the name."""
    name = new.file_name(location)
    path = location.path(name)
    if location.commits is not None and new.checkpoint_format < 2:
        try:
            return location.io.publish(body.local_path, path, sync=sync, overwrite=False)
        except FencedError:
            # Its batch failed, and runs again; or this attempt comes too late.
            if location.commits.newest() >= new.version - 1:
                _require_same_rows(location, name, new.version, body.lineage)
    return location.io.publish(body.local_path, path, sync=sync, overwrite=True)


def _require_same_rows(location: StoreLocation, name: str, version: int, lineage: str) -> None:
    found = read_trailer(location, name).trailer
    if found.lineage != lineage:
        raise FencedError(
            "a version whose batch is committed would be replaced by other rows",
            file=location.path(name),
            version=version,
            committed_batch=version - 1,
            expected=found.lineage,
            found=lineage,
            to_fix="nothing, if the query runs on: this attempt came too late, and its rows count "
            "nowhere; else let one application alone run the query, and restart it",
        )


def delta_trailer(
    store: StoreName,
    new: NewVersion,
    parent: PublishedFile | None,
    files: tuple[FileRef, ...],
    body: Body,
) -> Trailer:
    """Return the trailer of the delta of a version; arguments as of `publish_delta`."""
    before = () if parent is None else parent.trailer.key_group_rows
    return Trailer(
        kind="delta",
        writer=WRITER,
        store=store,
        backend=new.backend,
        version=new.version,
        checkpoint_id=new.checkpoint_id,
        checkpoint_format=new.checkpoint_format,
        parent=parent.trailer.version_ref if parent else None,
        lineage=body.lineage,
        files=files,
        blocks=body.blocks,
        rows=body.rows,
        num_keys=new.num_keys,
        num_internal_keys=new.num_internal_keys,
        key_group_rows=grown(before, new.key_group_growth) if new.rescalable else None,
        max_parallelism=new.max_parallelism,
        num_partitions=new.num_partitions,
        rescalable=new.rescalable,
        column_families=new.column_families,
        parent_commit=parent.commit if parent else None,
    )


def require_stream(local_path: str) -> None:
    """Check that the stream of a commit is still there.

    Raises:
        StorageError: It is not, and the version was not published: the attempt cannot be repeated.
    """
    if not Path(local_path).exists():
        raise StorageError(
            "the delta to commit is gone and its version was not published",
            file=local_path,
            to_fix="let the batch run again; the scratch directory of the executor was removed",
        )
