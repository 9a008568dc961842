"""Restore: from a version to the verified local files that make it, without listing a directory.

The delta of version V names every file before it. A damaged or missing snapshot is replaced by the
files its own version's delta names, a longer chain; a damaged delta has no replacement.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import store_of_ref
from statestore.checkpoint.lineage import check_ref, check_store
from statestore.checkpoint.trailers import PublishedFile, read_delta_trailer, read_trailer
from statestore.codec.state_file import StateFile
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    StateStoreError,
)
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.trailer import FileRef, Trailer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoredVersion:
    """A version and the files that make it.

    Attributes:
        head: The delta of the version.
        files: Opened and verified, to be applied in order; the last is the head's.
        refs: Their references, same length.
        view: None: the rows are in the files.
    """

    head: PublishedFile
    files: tuple[StateFile, ...]
    refs: tuple[FileRef, ...]
    view: None = None

    @property
    def files_read(self) -> int:
        """Number of files fetched."""
        return len(self.files)

    @property
    def bytes_read(self) -> int:
        """Bytes of the files fetched."""
        return sum(file.size for file in self.files)

    @property
    def has_foreign_files(self) -> bool:
        """Whether files may hold key groups of other state partitions."""
        return any(ref.is_foreign for ref in self.refs)

    @property
    def snapshot_version(self) -> int:
        """Version of the snapshot the files start with, -1 when they start with a delta."""
        return self.refs[0].version if self.refs[0].kind == "snapshot" else -1


def restore_version(
    location: StoreLocation, version: int, checkpoint_id: str | None
) -> RestoredVersion:
    """Find, open and verify the files of a version.

    Args:
        location: The store.
        version: At least 1.
        checkpoint_id: The attempt in checkpoint format v2, None in v1.

    Guarantee: every byte of every returned file was checked, and every file is the one the version
    was built on.

    Raises:
        NotFoundError: The version, or a delta it needs, is not there.
        CorruptionError: A delta is damaged, or a snapshot is and what it summarises is gone.
        FencedError: A file was replaced by another attempt with other rows.
        IncompatibleError: Files of another provider, another store or a newer format.
        StorageError: The storage failed.
    """
    head = read_delta_trailer(location, version, checkpoint_id)
    refs = (*head.trailer.files, head.ref)
    files: list[StateFile] = []
    while len(files) < len(refs):
        index = len(files)
        try:
            files.append(open_ref(location, refs[index]))
        except (CorruptionError, NotFoundError, FencedError) as error:
            if refs[index].kind != "snapshot":
                raise
            logger.warning(
                "snapshot cannot be used, falling back to the files before it: store=%s, "
                "snapshot_version=%d, error=%s",
                location.store, refs[index].version, error,
            )  # fmt: skip
            # Only the first file of a chain is a snapshot, so nothing opened so far is lost.
            refs = (*files_before_snapshot(location, refs, index, error), *refs[index + 1 :])
    return RestoredVersion(head, tuple(files), refs)


def open_ref(location: StoreLocation, ref: FileRef) -> StateFile:
    """Fetch, open and verify one referenced file.

    Raises:
        NotFoundError, CorruptionError, FencedError, IncompatibleError, StorageError:
            As `restore_version`.
    """
    path = location.path(ref.path)
    local_path = location.io.fetch(path)
    with named_errors("open a file", local_path):
        file = StateFile(local_path)
    check_store(file.trailer, store_of_ref(location.store, ref), path)
    check_ref(file.trailer, file.size, ref, path)
    file.verify()
    return file


def files_before_snapshot(
    location: StoreLocation, refs: tuple[FileRef, ...], index: int, cause: StateStoreError | None
) -> tuple[FileRef, ...]:
    """Return what stands for a snapshot: the files of its version's delta, and that delta.

    Args:
        location: The store.
        refs: Files of a version.
        index: Which of them is the snapshot.
        cause: Why the snapshot cannot be used, raised when nothing stands for it.

    Raises:
        The cause, or NotFoundError without one: The delta was expired or does not lead to the same
            rows.
    """
    snapshot = refs[index]
    try:
        delta = read_delta_trailer(location, snapshot.version, snapshot.checkpoint_id)
        follower = refs[index + 1] if index + 1 < len(refs) else None
        if follower is not None and not follower.is_foreign:
            _check_follower(location, follower, delta)
    except (NotFoundError, FencedError, CorruptionError) as error:
        raise (cause or error) from error
    return (*delta.trailer.files, delta.ref)


def _check_follower(location: StoreLocation, follower: FileRef, delta: PublishedFile) -> None:
    parent = read_trailer(location, follower.path).trailer.parent
    if parent is None or parent.lineage != delta.trailer.lineage:
        raise NotFoundError(
            "the delta of a snapshot's version was replaced",
            kind="version-not-found",
            version=delta.trailer.version,
            to_fix="load a newer version",
        )


def restore_from_snapshot(
    location: StoreLocation, version: int, checkpoint_id: str | None, snapshot_version: int
) -> RestoredVersion:
    """Restore a version by starting at exactly one snapshot and applying every delta after it.

    Args:
        location: The store.
        version: Version to end at.
        checkpoint_id: Its attempt in checkpoint format v2, None in v1.
        snapshot_version: Version of the snapshot, at least 1 and at most version.

    Raises:
        NotFoundError: That snapshot, or a delta after it, is not there.
        CorruptionError, FencedError, IncompatibleError, StorageError: As `restore_version`.
    """
    head = read_delta_trailer(location, version, checkpoint_id)
    chain = deltas_since(location, head, snapshot_version)
    start = next((ref for ref in chain if ref.version == snapshot_version), None)
    if start is None:
        raise NotFoundError(
            "no such version before the one to end at",
            kind="version-not-found",
            directory=location.directory,
            version=version,
            snapshot_version=snapshot_version,
            to_fix="start at a version that has a snapshot and is not newer than the end",
        )
    try:
        name = location.summary_name("snapshot", start.version, start.checkpoint_id)
        snapshot = read_trailer(location, name).ref
    except NotFoundError as error:
        raise NotFoundError(
            "no snapshot of that version",
            kind="version-not-found",
            directory=location.directory,
            snapshot_version=snapshot_version,
            to_fix="start at a version that has a snapshot; `statestore list` shows them",
        ) from error
    refs = (snapshot, *(ref for ref in chain if ref.version > snapshot_version))
    return RestoredVersion(head, tuple(open_ref(location, ref) for ref in refs), refs)


def deltas_since(location: StoreLocation, head: PublishedFile, oldest: int) -> tuple[FileRef, ...]:
    """Return the deltas of versions oldest to the head's, one a version, in order.

    Raises:
        NotFoundError: One of them was expired.
        CorruptionError, StorageError: A trailer on the way cannot be read.
    """
    refs = (*head.trailer.files, head.ref)
    while refs[0].kind == "snapshot" and refs[0].version >= oldest:
        refs = (*files_before_snapshot(location, refs, 0, None), *refs[1:])
    return tuple(ref for ref in refs if ref.kind == "delta" and ref.version >= oldest)


def check_settings(
    trailer: Trailer, *, backend: str, num_partitions: int | None, max_parallelism: int
) -> None:
    """Check that a checkpoint fits what the query asks for.

    Args:
        trailer: Trailer of the version to load.
        backend: State backend asked for.
        num_partitions: Number of state partitions of the query, None to take the checkpoint's.
        max_parallelism: The option maxParallelism, 0 to take the checkpoint's.

    Raises:
        IncompatibleError: One of them differs; names both values.
    """
    if trailer.backend != backend:
        raise IncompatibleError(
            "the checkpoint was made by another state backend",
            kind="backend-changed",
            store=str(trailer.store),
            checkpoint=trailer.backend,
            query=backend,
            to_fix="set spark.sql.streaming.stateStore.providerClass back to that backend's "
            "provider",
        )
    if num_partitions is not None and trailer.num_partitions != num_partitions:
        raise IncompatibleError(
            "the checkpoint has another number of state partitions than the query",
            kind="num-partitions-changed",
            store=str(trailer.store),
            checkpoint=trailer.num_partitions,
            query=num_partitions,
            to_fix=f"set spark.sql.shuffle.partitions back to {trailer.num_partitions}, or change "
            "the number of state partitions by rescaling the checkpoint (statestore rescale)",
        )
    if max_parallelism not in (0, trailer.max_parallelism):
        raise IncompatibleError(
            "the checkpoint has another number of key groups than the query",
            kind="max-parallelism-changed",
            store=str(trailer.store),
            checkpoint=trailer.max_parallelism,
            query=max_parallelism,
            to_fix="leave out spark.sql.streaming.stateStore.maxParallelism, or set it to "
            f"{trailer.max_parallelism}; it is fixed for a checkpoint's life",
        )
