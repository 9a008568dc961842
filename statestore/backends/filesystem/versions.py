"""The versions of one store on the filesystem backend: load, commit, snapshot.

For engine and Python store. Remembers the trailers of the two newest versions and the known
summaries, all that a commit needs; the rest is on storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.checkpoint.commit import (
    Body,
    NewVersion,
    describe_delta,
    publish_delta,
)
from statestore.checkpoint.load import (
    ChangeFile,
    LoadedVersion,
    chain_from_snapshot,
    check_first_change,
    deltas_since,
    load_files,
    open_ref,
)
from statestore.checkpoint.snapshot import is_snapshot_due, write_snapshot
from statestore.checkpoint.trailers import PublishedFile, read_attempt
from statestore.checkpoint.versions import VersionsBase
from statestore.codec.trailer import compute_lineage
from statestore.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.references import FileRef, VersionRef
    from statestore.core.clock import Clock
    from statestore.core.liveness import Turn
    from statestore.core.options import StateStoreOptions

BACKEND = "filesystem"


class FilesystemVersions(VersionsBase):
    """The versions of one store whose rows reach the shim in files; see VersionsBase."""

    def __init__(self, location: StoreLocation, clock: Clock, backend: str = BACKEND) -> None:
        super().__init__(location, clock, backend)
        self._pinned: frozenset[str] = frozenset()
        """Paths of the files a caller was told to read; they are not deleted."""
        self._held: tuple[str, ...] = ()
        """Local paths of the same files; holding them keeps the copies."""
        self._read_pinned: frozenset[str] = frozenset()
        self._read_held: tuple[str, ...] = ()
        """The same of readers without a query, who open files one by one, beside its commits."""

    def load(
        self,
        version: int,
        checkpoint_id: str | None,
        num_partitions: int | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None = None,
    ) -> LoadedVersion:
        """See VersionsBase; the rows are in files."""
        head = self._head_to_load(version, checkpoint_id, num_partitions, options)
        restored = self._restore(head, self._chain_to_load, options, from_snapshot)
        self._recent.remember(head)
        self._notice(next((ref for ref in restored.refs if _is_own_snapshot(ref)), None))
        with self._lock:
            self._pinned = frozenset(self.location.path(ref.path) for ref in restored.refs)
            self._held = tuple(file.path for file in restored.files)
        return restored

    def read(
        self,
        version: int,
        checkpoint_id: str | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None,
        _turn: Turn,
    ) -> LoadedVersion:
        """See VersionsBase."""
        head = self._head_to_load(version, checkpoint_id, None, options)
        restored = self._restore(head, self._chain_to_read, options, from_snapshot)
        self._keep_for_readers(restored.refs, [file.path for file in restored.files])
        return restored

    def end_reading(self) -> None:
        """See VersionsBase."""
        with self._lock:
            self._read_pinned, self._read_held = frozenset(), ()

    def _keep_for_readers(self, refs: Iterable[FileRef], paths: Iterable[str]) -> None:
        with self._lock:
            self._read_pinned |= {self.location.path(ref.path) for ref in refs}
            self._read_held += tuple(paths)

    def _restore(
        self,
        head: PublishedFile,
        chain_of: Callable[[PublishedFile, StateStoreOptions], tuple[FileRef, ...]],
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None,
    ) -> LoadedVersion:
        if from_snapshot is None:
            chain = chain_of(head, options)
        else:
            chain = chain_from_snapshot(self.location, head, *from_snapshot)
        return load_files(self.location, head, chain)

    def commit(
        self, new: NewVersion, local_path: str, arrow_length: int, options: StateStoreOptions
    ) -> PublishedFile:
        """See VersionsBase; the stream is in file order."""
        done = self._recent.find_done(new, local_path, sync=options.fsync_enabled)
        if done is not None:
            self._recent.remember(done)
            return done
        parent = self._recent.parent_of(new)
        start_ms = self._clock.elapsed_ms()
        files = () if parent is None else self._chain(parent)
        blocks = describe_delta(new, local_path, arrow_length)
        body = Body(local_path, blocks, new.rows, compute_lineage(new.parent, blocks))
        try:
            published = publish_delta(
                self.location,
                new,
                parent,
                files,
                body,
                sync=options.fsync_enabled,
                clock=self._clock,
                start_ms=start_ms,
            )
        except StorageError:
            # The file may be there and only the reply lost: look before the next attempt writes.
            self._recent.forget()
            raise
        self._recent.remember(published)
        with self._lock:
            # A commit on a version comes after its files were read.
            self._pinned, self._held = frozenset(), ()
        return published

    def view(
        self, _version: VersionRef, _checkpoint_format: int, _options: StateStoreOptions
    ) -> None:
        """Return None: rows of this backend reach the shim in files."""

    def forget_heads(self) -> None:
        """Forget the newest versions and unpin the loaded one; the newest snapshot stays known."""
        self._recent.forget()
        self.end_reading()
        with self._lock:
            self._pinned, self._held = frozenset(), ()

    def has_snapshot_of(self, head: PublishedFile) -> bool:
        """Return whether a version is known to have a snapshot of its own."""
        return len(self._chain(head)) == 1 and self._chain(head)[0].kind == "snapshot"

    def take_snapshot(
        self, head: PublishedFile, scratch_directory: str, options: StateStoreOptions
    ) -> PublishedFile:
        """See VersionsBase; the summary is a snapshot."""
        start_ms = self._clock.elapsed_ms()
        restored = load_files(self.location, head, self._chain(head))
        published = write_snapshot(self.location, restored, scratch_directory, options)
        self._announce(published, start_ms)
        return published

    def _is_due(
        self,
        chain: tuple[FileRef, ...],
        head: PublishedFile,
        options: StateStoreOptions,
        times: int = 1,
    ) -> bool:
        return is_snapshot_due(chain, head.trailer.num_keys, options, times)

    def _is_read(self, name: str) -> bool:
        with self._lock:
            return self.location.path(name) in self._pinned | self._read_pinned

    def changes(
        self, start_version: int, end_version: int, checkpoint_id: str | None, _directory: str
    ) -> tuple[PublishedFile, list[ChangeFile]]:
        """See VersionsBase; the files are the deltas."""
        head = read_attempt(self.location, end_version, checkpoint_id)
        refs = deltas_since(self.location, head, start_version)
        check_first_change(self.location, refs, start_version)
        files = [open_ref(self.location, ref) for ref in refs]
        self._keep_for_readers(refs, [file.path for file in files])
        return head, [ChangeFile(file.trailer, file.path) for file in files]


def _is_own_snapshot(ref: FileRef) -> bool:
    return ref.kind == "snapshot" and not ref.is_foreign
