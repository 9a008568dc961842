"""Load: find the verified local files of a version, without listing a directory.

The delta of version V names every file before it. A damaged or missing snapshot is replaced by the
files its own version's delta names, a longer chain; a damaged delta has no replacement.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import parse_state_file_name, store_of_path
from statestore.checkpoint.lineage import (
    check_ref,
    check_store,
    check_version,
    rescaled_id,
    taken_over,
)
from statestore.checkpoint.trailers import PublishedFile, read_delta_trailer, read_trailer
from statestore.codec.state_file import StateFile, slices_of
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    StateStoreError,
)
from statestore.core.liveness import CallPool
from statestore.io.fetch_cache import open_fetched
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.references import FileRef
    from statestore.codec.trailer import Trailer
    from statestore.core.key_groups import KeyGroupSet

logger = logging.getLogger(__name__)

PARALLEL_FETCHES = 4
PARTIAL_FETCH_BYTES = 4 * 1024 * 1024
"""Files smaller than this are fetched whole: one request instead of three or more."""
PARTIAL_FETCH_RATIO = 0.75
"""A file of which more than this is wanted is fetched whole: other partitions can share it."""


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A version on the local disk: its rows are in files, or in a view, a database of their own.

    Attributes:
        head: The delta of the version.
        refs: Of what was fetched.
        bytes_read: Bytes of it.
        files: One for each of `refs`, opened and verified, to be applied in order; none where there
            is a view.
        view: Directory of a RocksDB with the rows, to be opened at once and read-only: it may go
            when three others of the store were made. Empty where the rows are in the files.
        owned: Key groups whose rows count, where the view has others too; None where all count, as
            in files.
    """

    head: PublishedFile
    refs: tuple[FileRef, ...]
    bytes_read: int
    files: tuple[StateFile, ...] = ()
    view: str = ""
    owned: KeyGroupSet | None = None


def load_files(
    location: StoreLocation, head: PublishedFile, refs: tuple[FileRef, ...]
) -> LoadedVersion:
    """Open and verify the files of a version.

    Args:
        location: The store.
        head: The delta of the version.
        refs: The files that make it, in order.

    Guarantee: every byte of every returned file was checked, and every file is the one the version
    was built on.

    Raises:
        NotFoundError: A delta that the version needs is not there.
        CorruptionError: A delta is damaged, or a snapshot is and the files that it summarises are
            gone.
        FencedError: A file was replaced by another attempt with other rows.
        IncompatibleError: Files of another provider, another store or a newer format.
        StorageError: The storage failed.
    """
    opened = open_all(location, refs)
    files: list[StateFile] = []
    while len(files) < len(refs):
        index = len(files)
        try:
            files.append(next(opened))
        except (CorruptionError, NotFoundError, FencedError) as error:
            if refs[index].kind != "snapshot":
                raise
            logger.warning(
                "snapshot cannot be used, falling back to the files before it: store=%s, "
                "snapshot_version=%d, error=%s",
                location.store, refs[index].version, error,
            )  # fmt: skip
            before = files_before_summary(location, refs, index, error)
            refs = (*refs[:index], *before, *refs[index + 1 :])
            opened = open_all(location, refs[index:])
    # Now, and not when the last that knows of a damaged snapshot's error forgets it.
    opened.close()
    bytes_read = sum(length for file in files for _, length in file.slices)
    return LoadedVersion(head, refs, bytes_read, tuple(files))


def open_all(location: StoreLocation, refs: Sequence[FileRef]) -> Generator[StateFile, None, None]:
    """Yield referenced files, opened and verified, several at a time; errors as `open_ref`."""
    if len(refs) == 1:
        yield open_ref(location, refs[0])
        return
    with CallPool(min(PARALLEL_FETCHES, len(refs)), "fetch") as pool:
        yield from pool.map(lambda ref: open_ref(location, ref), refs)


def open_ref(location: StoreLocation, ref: FileRef) -> StateFile:
    """Fetch, open and verify one referenced file, or the blocks of its clip, as `open_fetched`.

    Raises:
        NotFoundError, CorruptionError, FencedError, IncompatibleError, StorageError:
            As `load_files`.
    """
    path = location.path(ref.path)

    def verified(local_path: str) -> StateFile:
        with named_errors("open a file", local_path):
            file = StateFile(local_path, ref.clip, path)
        check_store(file.trailer, store_of_path(location.store, ref.path), path)
        check_ref(file.trailer, ref, path)
        file.verify()
        return file

    return open_fetched(lambda: _fetch(location, ref), verified)


def _fetch(location: StoreLocation, ref: FileRef) -> str:
    """Fetch a file; of a large one only the blocks of its clip, if they are much less."""
    path = location.path(ref.path)
    if ref.clip is None or ref.size < PARTIAL_FETCH_BYTES:
        return location.io.fetch(path)
    found = read_trailer(location, ref.path)
    size, body_length = found.ref.size, found.trailer.body_length
    slices = slices_of(found.trailer, ref.clip)
    if sum(length for _, length in slices) > PARTIAL_FETCH_RATIO * size:
        return location.io.fetch(path)
    return location.io.fetch_slices(path, size, (*slices, (body_length, size - body_length)))


def files_before_summary(
    location: StoreLocation, refs: tuple[FileRef, ...], index: int, cause: StateStoreError | None
) -> tuple[FileRef, ...]:
    """Return the files that replace a summary and all before it: its version's delta and files.

    Args:
        location: The store.
        refs: Files of a version.
        index: Index of the summary. For one that a rescale took over, the files that replace it
            alone are returned.
        cause: Why the summary cannot be used, raised when no file replaces it.

    Raises:
        The cause, or NotFoundError without one: The delta was expired or does not lead to the same
            rows.
    """
    summary = refs[index]
    source = location.sibling(store_of_path(location.store, summary.path).partition)
    try:
        delta = read_delta_trailer(source, summary.version, summary.checkpoint_id)
        follower = refs[index + 1] if index + 1 < len(refs) else None
        if summary.is_foreign:
            # No file after it leads to it, but the attempt it summarises gave it its ID.
            check_version(
                delta.trailer, summary.version, summary.checkpoint_id, source.path(delta.ref.path)
            )
        elif follower is not None:
            _check_follower(location, follower, delta)
    except (NotFoundError, FencedError, CorruptionError) as error:
        if cause is not None and cause.kind == "storage":
            raise cause from None  # worth a restart, which the other one is not
        raise (cause or error) from error
    files = delta.chain
    if not summary.is_foreign:
        return files
    written_by = delta.trailer.key_groups
    taken = (taken_over(source.store, ref, written_by, summary.clip) for ref in files)
    return tuple(ref for ref in taken if ref is not None)


def _check_follower(location: StoreLocation, follower: FileRef, delta: PublishedFile) -> None:
    parent = read_trailer(location, follower.path).trailer.parent
    if parent is None or parent.lineage != delta.trailer.lineage:
        raise NotFoundError(
            "the delta of a summary's version was replaced",
            kind="version-not-found",
            version=delta.trailer.version,
            to_fix="load a newer version",
        )


def chain_from_snapshot(
    location: StoreLocation,
    head: PublishedFile,
    snapshot_version: int,
    checkpoint_id: str | None = None,
) -> tuple[FileRef, ...]:
    """Return the files that make a version: exactly one snapshot and every delta after it.

    Args:
        location: The store.
        head: The delta of the version to end at.
        snapshot_version: Version of the snapshot, at least 1 and at most the head's.
        checkpoint_id: The attempt that it is of in checkpoint format v2, None in v1.

    Raises:
        NotFoundError: That snapshot (kind snapshot-not-found), or a delta after it, is not there;
            or the version is built on another attempt than the snapshot (the same kind).
        CorruptionError, FencedError, IncompatibleError, StorageError: A trailer cannot be read.
    """
    deltas = deltas_since(location, head, snapshot_version)
    start = next((ref for ref in deltas if ref.version == snapshot_version), None)
    if start is None:
        raise NotFoundError(
            "no such version before the one to end at",
            kind="version-not-found",
            directory=location.directory,
            version=head.trailer.version,
            snapshot_version=snapshot_version,
            to_fix="start at a version that has a snapshot and is not newer than the end",
        )
    asked = checkpoint_id or start.checkpoint_id
    name = location.summary_name("snapshot", start.version, asked)
    snapshot = None
    if asked == start.checkpoint_id:  # no other attempt leads to the version
        with suppress(NotFoundError):
            snapshot = read_trailer(location, name).ref
    if snapshot is None:
        raise NotFoundError(
            "no snapshot of that version",
            kind="snapshot-not-found",
            file=location.path(name),
            snapshot_version=snapshot_version,
            to_fix="start at a version that has a snapshot; `statestore list` shows them",
        )
    return (snapshot, *(ref for ref in deltas if ref.version > snapshot_version))


def deltas_since(location: StoreLocation, head: PublishedFile, oldest: int) -> tuple[FileRef, ...]:
    """Return the store's own deltas of versions oldest to the head's, one a version, in order.

    They begin later where a rescale, or a full state, made a later version.

    Raises:
        NotFoundError: One of them was expired.
        CorruptionError, StorageError: A trailer on the way cannot be read.
    """
    return own_deltas(reach_back(location, head.chain, oldest), oldest)


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """What one version changed, in verified local files for the shim.

    Attributes:
        trailer: Of the delta.
        path: An Arrow stream of rows of SCHEMA, each (column family, key) once.
        sst_path: The puts, as an SST without trailer, where the stream has the deletes alone; else
            None.
    """

    trailer: Trailer
    path: str
    sst_path: str | None = None


def check_first_change(
    location: StoreLocation, deltas: tuple[FileRef, ...], start_version: int
) -> None:
    """Check that a change feed begins where it was asked to, with changes.

    Raises:
        NotFoundError: It begins later, since older versions were expired.
        IncompatibleError: It begins with a version that was written whole, after the first one.
        CorruptionError, StorageError: A trailer cannot be read.
    """
    if deltas and deltas[0].version > 1:
        trailer = read_trailer(location, deltas[0].path).trailer
        # A rescale by reference leaves a state partition without files where it gets no row.
        of_rescale = rescaled_id(trailer.store, trailer.version, trailer.num_partitions, ())
        if not trailer.files and trailer.checkpoint_id != of_rescale:
            raise IncompatibleError(
                "a version was written whole: its changes are not known",
                store=str(location.store),
                version=trailer.version,
                to_fix="start the change feed at a later batch. A forget, a rescale that hashes "
                "rows anew and a restore write one such version; "
                "spark.sql.streaming.stateStore.rocksdb.incremental=false writes each so",
            )
    oldest = deltas[0].version if deltas else None
    if oldest != start_version:
        raise NotFoundError(
            "the first version of the change feed is not there",
            kind="version-not-found",
            directory=location.directory,
            start_version=start_version,
            oldest_version=oldest,
            to_fix="start the change feed at a later batch",
        )


def reach_back(
    location: StoreLocation,
    refs: tuple[FileRef, ...],
    oldest: int,
    files_before: Callable[[tuple[FileRef, ...], int], tuple[FileRef, ...]] | None = None,
) -> tuple[FileRef, ...]:
    """Return the files of a version without its own summaries, but for older ones.

    Args:
        location: The store.
        refs: Files that make the version.
        oldest: Summaries of this version and later ones are replaced by the files before them.
        files_before: In place of `files_before_summary`; None for that.

    Raises:
        NotFoundError, CorruptionError, StorageError: As `deltas_since`.
    """
    behind: list[FileRef] = []  # from the last on
    while True:
        summaries = (
            index
            for index, ref in enumerate(refs)
            if ref.kind != "delta" and not ref.is_foreign and ref.version >= oldest
        )
        index = max(summaries, default=None)
        if index is None:
            return (*refs, *reversed(behind))
        behind += reversed(refs[index + 1 :])
        # The last of them is a delta, so a summary among them has its follower there.
        if files_before is None:
            refs = files_before_summary(location, refs, index, None)
        else:
            refs = files_before(refs, index)


def own_deltas(refs: tuple[FileRef, ...], oldest: int) -> tuple[FileRef, ...]:
    """Return the store's own deltas among the files of a version, from version `oldest` on."""
    own = (ref for ref in refs if ref.kind == "delta" and not ref.is_foreign)
    return tuple(ref for ref in own if ref.version >= oldest)


def check_settings(
    trailer: Trailer, *, backend: str, num_partitions: int | None, max_parallelism: int
) -> None:
    """Check that a checkpoint fits the query.

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
            to_fix="put the entry of the newest batch in offsets back from a copy: it names the "
            "provider, and the session's key does not count; another backend is had by "
            "statestore restore CHECKPOINT NEW --backend BACKEND",
        )
    if num_partitions is not None and trailer.num_partitions != num_partitions:
        raise _num_partitions_changed(trailer, num_partitions)
    if max_parallelism not in (0, trailer.max_parallelism):
        raise IncompatibleError(
            "the checkpoint has another number of key groups than the query",
            kind="max-parallelism-changed",
            store=str(trailer.store),
            checkpoint=trailer.max_parallelism,
            query=max_parallelism,
            to_fix="leave out spark.sql.streaming.stateStore.maxParallelism, or set it to "
            f"{trailer.max_parallelism}; only a rescale that hashes every row anew changes it",
        )


def check_partition_exists(location: StoreLocation, version: int, num_partitions: int) -> None:
    """Check that a missing version is not of a state partition the checkpoint never had.

    Args:
        location: The store that has no such version.
        version: At least 1.
        num_partitions: Number of state partitions of the query.

    Raises:
        IncompatibleError: State partition 0 has the version, with another number of partitions.
            That partition gets the same error: any task may be the first to fail.
        CorruptionError, StorageError: As `read_trailer`.
    """
    if location.store.partition == 0:
        return
    first = location.sibling(0)
    for info in first.io.list(first.directory):
        name = parse_state_file_name(info.name)
        if name and (name.kind, name.version, name.body) == ("delta", version, location.body):
            trailer = read_trailer(first, info.name).trailer
            if trailer.num_partitions != num_partitions:
                raise _num_partitions_changed(trailer, num_partitions)


def _num_partitions_changed(trailer: Trailer, num_partitions: int) -> IncompatibleError:
    return IncompatibleError(
        "the checkpoint has another number of state partitions than the query",
        kind="num-partitions-changed",
        store=str(trailer.store),
        checkpoint=trailer.num_partitions,
        query=num_partitions,
        to_fix="stop the query and end the rescale that was begun: statestore rescale CHECKPOINT "
        f"--num-partitions {num_partitions} --yes; or take it back, with --undo --yes; the "
        "session's spark.sql.shuffle.partitions does not count, the offset log has the query's",
    )
