"""Compact: write the newest version whole, so that versions before it can be expired in time.

A version is the changes to the one before, so it is made of files of many versions, and those stay
as long as it does. A snapshot, or all of them merged into one file, stands for them: maintenance
takes one where it makes restores shorter, this takes one at once and from outside. A version names
the files that it is made of when it is committed, so what is let go of is let go of by later ones
of the query: an edit or a rescale names what the newest version names.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from statestore.core.text import format_bytes, format_count, format_table
from statestore.operations.result import Change, Result, no_progress
from statestore.operations.states import check_committed
from statestore.operations.step import step

if TYPE_CHECKING:
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.checkpoint.versions import VersionsBase
    from statestore.codec.references import StoreName
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.result import Progress

_MERGE_ALL = 1000
"""Files of similar size, the most that the option takes: what is merged is all of a version."""


@dataclass(frozen=True, slots=True)
class StoreCompact:
    """A store whose version is written whole.

    Attributes:
        store: The store.
        file: Path of the file that is written.
        num_files, num_bytes: Files that it stands for, which are read.
    """

    store: StoreName
    file: str
    num_files: int
    num_bytes: int


@dataclass(frozen=True, repr=False)
class Compact(Result):
    """What a compaction did, or would do.

    Attributes:
        checkpoint: URI of the checkpoint.
        version: The version that is written whole.
        stores: Those that have it in more files than one.
    """

    checkpoint: str
    version: int
    stores: tuple[StoreCompact, ...]

    @property
    def num_files(self) -> int:
        """Files that are read, of all stores."""
        return sum(store.num_files for store in self.stores)

    @property
    def num_bytes(self) -> int:
        """Their bytes."""
        return sum(store.num_bytes for store in self.stores)

    @property
    def size_bytes(self) -> int | None:
        """None: what is written is known when it is; it has the rows of what is read once each."""
        return None

    @property
    def changes(self) -> tuple[Change, ...]:
        """The files that are written."""
        return tuple(Change("write", store.file) for store in self.stores)

    def __str__(self) -> str:
        if not self.stores:
            return f"Nothing to do: version {self.version} is one file in every store."
        rows = [
            [str(store.store), store.num_files, format_bytes(store.num_bytes)]
            for store in self.stores
        ]
        table = format_table(["store", "files", "bytes"], rows)
        return (
            f"{table}\nVersion {self.version} is written as one file a store, which stands for "
            f"{format_count(self.num_files, 'file')}, {format_bytes(self.num_bytes)}. "
            "Versions that the query commits from its next maintenance on are made of it."
        )

    def fields(self) -> dict[str, Any]:
        """Return the attributes, and the sums of all stores."""
        return {"num_files": self.num_files, "num_bytes": self.num_bytes, **super().fields()}


def compact(
    checkpoint: OpenCheckpoint, *, dry_run: bool = False, progress: Progress = no_progress
) -> Compact:
    """Write the newest version whole: a snapshot, or all of its files merged into one.

    Arguments, guarantee and errors as `Checkpoint.compact`.
    """
    if dry_run:
        checkpoint.check_of_query()
        return _compact(checkpoint, progress, writes=False)
    with step(checkpoint, "compact") as one:
        done = _compact(checkpoint, progress, writes=True)
        one.result |= {"num_files": done.num_files, "num_bytes": done.num_bytes}
        return done


def _compact(checkpoint: OpenCheckpoint, progress: Progress, *, writes: bool) -> Compact:
    """Compact, or only say what would be done."""
    version = checkpoint.newest_version
    check_committed(checkpoint, version)
    stores: list[StoreCompact] = []
    with tempfile.TemporaryDirectory(dir=checkpoint.scratch_directory) as directory:
        heads = checkpoint.heads(version)
        for number, (store, head) in enumerate(heads.items(), 1):
            location = checkpoint.location(store)
            form = checkpoint.work.form(location.body)
            versions = form.versions(location, checkpoint.clock, checkpoint.backend, directory)
            try:
                found = _decide_store(versions, head)
                if found is not None:
                    stores.append(found)
                    if writes:
                        _write(checkpoint, versions, head, directory)
            finally:
                versions.forget_heads()
            progress(number, len(heads))
    return Compact(checkpoint.uri, version, tuple(stores), done=writes)


def _decide_store(versions: VersionsBase, head: PublishedFile) -> StoreCompact | None:
    files = versions.files_of(head)
    if len(files) == 1:
        return None
    trailer = head.trailer
    name = versions.location.summary_name("snapshot", trailer.version, trailer.checkpoint_id)
    num_bytes = sum(ref.size for ref in files)
    return StoreCompact(trailer.store, versions.location.path(name), len(files), num_bytes)


def _write(
    checkpoint: OpenCheckpoint,
    versions: VersionsBase,
    head: PublishedFile,
    directory: str,
) -> None:
    options = replace(checkpoint.options, rocksdb_merge_min_files=_MERGE_ALL)
    while not versions.has_snapshot_of(head):  # a thousand files are merged in several steps
        versions.take_snapshot(head, directory, options)
