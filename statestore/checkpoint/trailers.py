"""Reading trailers through the storage, without fetching the files they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import (
    other_provider,
    parse_state_file_name,
    store_of_path,
)
from statestore.checkpoint.lineage import check_store, check_version, make_ref
from statestore.checkpoint.placement import lost_placement
from statestore.codec.commit_times import CommitTimes
from statestore.codec.trailer import (
    END_LENGTH,
    TAIL_BYTES,
    Trailer,
    decode_trailer,
    trailer_length,
)
from statestore.core.errors import IncompatibleError, NotFoundError
from statestore.core.providers import PROVIDERS

if TYPE_CHECKING:
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.references import FileRef
    from statestore.io.file_io import FileIO

_BACKENDS = {"sst": "rocksdb", "arrows": "filesystem"}
"""State backend whose files have such a body."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A state file of the store: the reference that names it, and its trailer.

    `commit` has the times of its commit, `encoded` the bytes of its trailer, both only where this
    process wrote the file.
    """

    ref: FileRef
    trailer: Trailer
    commit: CommitTimes | None = field(default=None, compare=False)
    encoded: bytes = field(default=b"", compare=False, repr=False)

    @property
    def chain(self) -> tuple[FileRef, ...]:
        """The files that the trailer names and the file itself, oldest first."""
        return (*self.trailer.files, self.ref)

    @property
    def lean(self) -> PublishedFile:
        """The file without what its rows alone are read by, most of the memory of a trailer."""
        trailer = replace(self.trailer, key_group_rows=None, column_families=())
        return PublishedFile(self.ref, trailer)


def read_trailer(
    location: StoreLocation, name: str, known: PublishedFile | None = None
) -> PublishedFile:
    """Read and check the trailer of a file: one request, rarely two.

    Args:
        location: The store.
        name: Name of a file of its directory, or the path of a reference.
        known: The likely file; returned if its trailer has the same bytes.

    Raises:
        NotFoundError: No file of that name.
        CorruptionError, IncompatibleError: The trailer is damaged, too new or another store's.
        StorageError: The storage failed.
    """
    path = location.path(name)
    tail, size = location.io.read_tail(path, TAIL_BYTES)
    if known is not None and _is_same(known, name, tail, size):
        return known
    trailer, size = trailer_of(location.io, path, (tail, size))
    check_store(trailer, store_of_path(location.store, name), path)
    for ref in trailer.files:
        store_of_path(location.store, ref.path)
    return PublishedFile(make_ref(name, trailer, size), trailer)


def trailer_of(io: FileIO, path: str, end: tuple[bytes, int] | None = None) -> tuple[Trailer, int]:
    """Return the trailer of a file, and its size in bytes; errors as `read_trailer`.

    Args:
        io: Its storage.
        path: The file there.
        end: Its last bytes and its size, where they were read.
    """
    tail, size = end or io.read_tail(path, TAIL_BYTES)
    # More than twice only where another attempt of format v1 replaces the file in between.
    while (needed := trailer_length(tail, size, path) + END_LENGTH) > len(tail):
        tail, size = io.read_tail(path, needed)
    return decode_trailer(tail, size, path), size


def _is_same(known: PublishedFile, name: str, tail: bytes, size: int) -> bool:
    is_likely = (known.ref.path, known.ref.size) == (name, size)
    return is_likely and known.encoded != b"" and tail.endswith(known.encoded)


def read_delta_trailer(
    location: StoreLocation,
    version: int,
    checkpoint_id: str | None,
    known: PublishedFile | None = None,
) -> PublishedFile:
    """Read the trailer of the delta that makes a version.

    A file of checkpoint format v1 may be of another attempt than the one asked for, whose equal
    rows are as good: the caller compares lineages.

    Args:
        location: The store.
        version: At least 1.
        checkpoint_id: The attempt in checkpoint format v2, None in v1.
        known: As of `read_trailer`.

    Raises:
        NotFoundError: The version is not there; names the oldest and newest that are.
        IncompatibleError: The directory holds another provider's files; the state is elsewhere, and
            the checkpoint has lost its placement (kind storage-changed); or as `read_trailer`.
        FencedError: The file was written by another attempt than the one asked for.
        CorruptionError: It makes another version, or as `read_trailer`.
    """
    for name in location.delta_names(version, checkpoint_id):
        try:
            found = read_trailer(location, name, known)
        except NotFoundError:
            continue
        asked = checkpoint_id if name == location.delta_name(version, checkpoint_id) else None
        check_version(found.trailer, version, asked, location.path(name))
        return found
    raise missing_version(location, version, checkpoint_id)


def read_attempt(location: StoreLocation, version: int, checkpoint_id: str | None) -> PublishedFile:
    """Read the trailer of the delta that makes a version by the attempt asked for, and no other.

    Arguments and errors as `read_delta_trailer`.
    """
    found = read_delta_trailer(location, version, checkpoint_id)
    if checkpoint_id not in (None, found.trailer.checkpoint_id):
        # One of format v1, which a repair took back before the query changed to v2.
        raise missing_version(location, version, checkpoint_id)
    return found


def missing_version(
    location: StoreLocation, version: int, checkpoint_id: str | None
) -> NotFoundError | IncompatibleError:
    """Return the error for a missing version, with the versions that are there."""
    names = [info.name for info in location.io.list(location.directory)]
    parsed = [name for name in map(parse_state_file_name, names) if name and name.kind == "delta"]
    others = [name for name in parsed if name.body != location.body]
    if others and len(others) == len(parsed):
        return IncompatibleError(
            "the checkpoint was made by another state backend",
            kind="backend-changed",
            directory=location.directory,
            checkpoint=_BACKENDS[others[0].body],
            query=_BACKENDS[location.body],
            to_fix="put the entry of the newest batch in offsets back from a copy: it names the "
            "provider, and the session's key does not count; another backend is had by "
            "statestore restore CHECKPOINT NEW --backend BACKEND",
        )
    if not parsed:
        refusal = other_provider_error(location, names) or lost_placement(location)
        if refusal is not None:
            return refusal
    versions = [name.version for name in parsed]
    return NotFoundError(
        "the version is not in the store directory",
        kind="version-not-found",
        directory=location.directory,
        file=location.path(location.delta_name(version, checkpoint_id)),
        version=version,
        checkpoint_id=checkpoint_id,
        oldest_version=min(versions, default=None),
        newest_version=max(versions, default=None),
        to_fix="raise spark.sql.streaming.minBatchesToRetain when the version was expired; when no "
        "version is there, the checkpoint was copied without this directory",
    )


def other_provider_error(
    location: StoreLocation, names: list[str], expected: str = PROVIDERS["filesystem"]
) -> IncompatibleError | None:
    """Return the refusal of a directory that holds another provider's files, or None."""
    found = other_provider(names)
    if found is None:
        return None
    return IncompatibleError(
        "the store directory holds files of another state store provider",
        kind="other-provider",
        directory=location.directory,
        file=found[0],
        expected=expected,
        found=found[1],
        to_fix="put the entry of the newest batch in offsets back from a copy: it names the "
        "provider, and the session's key does not count; where there is no copy, start the query "
        "with a new checkpoint directory",
    )
