"""The versions of one store: load, commit, snapshot, clean up; for engine and Python store.

Remembers the trailers of the two newest versions and the newest snapshot, which is all that a
commit needs; everything else is on storage.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from statestore.checkpoint.commit import (
    Body,
    CommitTimes,
    NewVersion,
    describe_delta,
    publish_delta,
)
from statestore.checkpoint.lineage import files_for_child
from statestore.checkpoint.recent import RecentVersions
from statestore.checkpoint.rescale_refs import Cleanup, release
from statestore.checkpoint.restore import (
    RestoredVersion,
    check_settings,
    deltas_since,
    open_ref,
    restore_from_snapshot,
    restore_version,
)
from statestore.checkpoint.retention import plan_cleanup
from statestore.checkpoint.snapshot import SnapshotStatus, SnapshotWriter, is_snapshot_due
from statestore.checkpoint.trailers import (
    PublishedFile,
    other_provider_error,
    read_delta_trailer,
    read_trailer,
)
from statestore.codec.state_file import StateFile
from statestore.codec.trailer import compute_lineage
from statestore.core.errors import NotFoundError, StorageError
from statestore.core.key_groups import resolve_max_parallelism

if TYPE_CHECKING:
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.trailer import FileRef, VersionRef
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions

logger = logging.getLogger(__name__)

BACKEND = "filesystem"


class StoreVersions:
    """The versions of one store. Thread-safe: only memory is locked, never a storage call.

    Commits and loads of one store must be ordered by the caller; snapshots and cleanups may run
    beside them.
    """

    def __init__(self, location: StoreLocation, clock: Clock, backend: str = BACKEND) -> None:
        self.location = location
        self._backend = backend
        self._clock = clock
        self._lock = threading.Lock()
        self._recent = RecentVersions(location)
        self._snapshot: tuple[FileRef, VersionRef] | None = None
        self._status = SnapshotStatus()
        self._pinned: frozenset[str] = frozenset()
        """Paths of the files a caller was told to read; they are not deleted."""
        self._held: tuple[str, ...] = ()
        """Local paths of the same files; holding them keeps the copies."""

    @property
    def snapshot_status(self) -> SnapshotStatus:
        """The newest published snapshot known."""
        with self._lock:
            return self._status

    def load_empty(self, num_partitions: int, options: StateStoreOptions) -> int:
        """Open version 0, the empty store, and return the number of key groups it will have.

        Raises:
            IncompatibleError: The store directory holds another provider's files.
            InvalidArgumentError: The option maxParallelism does not fit num_partitions.
        """
        names = [info.name for info in self.location.io.list(self.location.directory)]
        refusal = other_provider_error(self.location, names)
        if refusal is not None:
            raise refusal
        return resolve_max_parallelism(options.max_parallelism, num_partitions)

    def load(
        self,
        version: int,
        checkpoint_id: str | None,
        num_partitions: int | None,
        options: StateStoreOptions,
        from_snapshot: int | None = None,
    ) -> RestoredVersion:
        """Restore a version; its files stay until the next load or commit, or `forget_heads`.

        Args:
            version: At least 1.
            checkpoint_id: The attempt in checkpoint format v2, None in v1.
            num_partitions: The query's, None to take the checkpoint's.
            options: max_parallelism is checked against the checkpoint.
            from_snapshot: Version of the snapshot to start at, None for the best.

        Raises:
            NotFoundError, IncompatibleError, FencedError, CorruptionError, StorageError: As
                `restore_version` and `check_settings`.
        """
        if from_snapshot is None:
            restored = restore_version(self.location, version, checkpoint_id)
        else:
            restored = restore_from_snapshot(self.location, version, checkpoint_id, from_snapshot)
        check_settings(
            restored.head.trailer,
            backend=self._backend,
            num_partitions=num_partitions,
            max_parallelism=options.max_parallelism,
        )
        self._recent.remember(restored.head)
        # A newer one may be known: taken since this version was committed, and not named by it.
        if restored.snapshot_version > self.snapshot_status.version:
            first = restored.files[0].trailer
            self._adopt(PublishedFile(restored.refs[0], first), duration_ms=0.0, taken=0)
        with self._lock:
            self._pinned = frozenset(self.location.path(ref.path) for ref in restored.refs)
            self._held = tuple(file.path for file in restored.files)
        return restored

    def commit(
        self, new: NewVersion, local_path: str, arrow_length: int, options: StateStoreOptions
    ) -> tuple[PublishedFile, CommitTimes]:
        """Make a version durable; repeating it with the same checkpoint ID answers the same.

        Args:
            new: What the version is.
            local_path: A complete Arrow stream; moved or deleted on success.
            arrow_length: Bytes of the stream.
            options: fsync_enabled says whether to wait for the disk.

        Guarantee: as `publish_delta`.

        Raises:
            FencedError: The parent was replaced by another attempt.
            StorageError: The storage failed, or stream and version are both gone.
            IncompatibleError: The version does not fit its parent's settings.
            InvalidArgumentError, InternalError: The stream is not what `new` says.
        """
        done = self._recent.find_done(new, local_path)
        if done is not None:
            self._recent.remember(done)
            return done, CommitTimes()
        parent = self._recent.parent_of(new)
        with self._lock:
            snapshot = self._snapshot
        start_ms = self._clock.elapsed_ms()
        files: tuple[FileRef, ...] = ()
        if parent is not None:
            files = files_for_child(parent.trailer, parent.ref, *(snapshot or (None, None)))
        blocks = describe_delta(new, local_path, arrow_length)
        body = Body(local_path, blocks, new.rows, compute_lineage(new.parent, blocks))
        described_ms = self._clock.elapsed_ms() - start_ms
        try:
            published, times = publish_delta(
                self.location,
                new,
                parent,
                files,
                body,
                sync=options.fsync_enabled,
                clock=self._clock,
            )
        except StorageError:
            # The file may be there and only the reply lost: look before the next attempt writes.
            self._recent.forget()
            raise
        self._recent.remember(published)
        with self._lock:
            # Whoever commits on a version has read its files.
            self._pinned, self._held = frozenset(), ()
        return published, replace(times, checksum_ms=times.checksum_ms + described_ms)

    def view(
        self, _version: VersionRef, _checkpoint_format: int, _options: StateStoreOptions
    ) -> None:
        """Return None: rows of this backend reach the shim in files."""

    def head(self, version: int, checkpoint_id: str | None) -> PublishedFile:
        """Return the delta of a version, from memory when it is one of the newest.

        Raises:
            NotFoundError, CorruptionError, FencedError, StorageError: As `read_delta_trailer`.
        """
        return self._recent.read(version, checkpoint_id)

    def forget_heads(self) -> None:
        """Forget the newest versions and unpin the loaded one; the newest snapshot stays known."""
        self._recent.forget()
        with self._lock:
            self._pinned, self._held = frozenset(), ()

    def forget_local(self) -> None:
        """Let go of what `forget_heads` leaves on the local disk: nothing, for this backend."""

    def is_snapshot_due(self, head: PublishedFile, options: StateStoreOptions) -> bool:
        """Return whether a version's restore costs so much that a snapshot should be taken."""
        with self._lock:
            snapshot = self._snapshot
        refs = files_for_child(head.trailer, head.ref, *(snapshot or (None, None)))
        return is_snapshot_due(refs, head.trailer.num_keys, options)

    def has_snapshot_of(self, head: PublishedFile) -> bool:
        """Return whether the newest known snapshot is the one of this version."""
        with self._lock:
            return self._snapshot is not None and self._snapshot[1] == head.trailer.version_ref

    def take_snapshot(
        self, head: PublishedFile, scratch_directory: str, options: StateStoreOptions
    ) -> PublishedFile:
        """Write and publish the snapshot of a version; later commits name it.

        Guarantee and errors as `SnapshotWriter.write`.
        """
        start_ms = self._clock.elapsed_ms()
        trailer = head.trailer
        checkpoint_id = trailer.checkpoint_id if trailer.checkpoint_format >= 2 else None
        restored = restore_version(self.location, trailer.version, checkpoint_id)
        published = SnapshotWriter(self.location, scratch_directory, options).write(restored)
        self._adopt(published, duration_ms=self._clock.elapsed_ms() - start_ms, taken=1)
        return published

    def clean_up(self, head: PublishedFile, options: StateStoreOptions) -> Cleanup:
        """Delete what retention allows, and learn of snapshots that other processes took.

        Guarantee: every retained version can still be loaded, also when this raises half way.

        Raises:
            CorruptionError, IncompatibleError, StorageError: As `plan_cleanup`.
        """
        files = self.location.io.list(self.location.directory)
        plan = plan_cleanup(self.location, head, files, options, self._clock.now_ms())
        cleaned = release(self.location, plan.release, head.trailer.num_partitions)
        for info in plan.delete:
            path = self.location.path(info.name)
            with self._lock:
                is_pinned = path in self._pinned
            if not is_pinned:
                self.location.io.delete(path)
                cleaned += Cleanup(1, info.size)
        if plan.snapshots:
            self._learn_snapshot(plan.snapshots[-1])
        return cleaned

    def changes(
        self, start_version: int, end_version: int, checkpoint_id: str | None
    ) -> tuple[PublishedFile, list[tuple[int, StateFile]]]:
        """Return the deltas of a range of versions, opened and verified, and the last trailer.

        Args:
            start_version: First version, at least 1.
            end_version: Last version, inclusive.
            checkpoint_id: The attempt of end_version in checkpoint format v2, None in v1.

        Raises:
            NotFoundError: One of the versions was expired.
            CorruptionError, FencedError, StorageError: As `restore_version`.
        """
        head = read_delta_trailer(self.location, end_version, checkpoint_id)
        refs = deltas_since(self.location, head, start_version)
        if not refs or refs[0].version != start_version:
            raise NotFoundError(
                "the first version of the change feed is not there",
                kind="version-not-found",
                directory=self.location.directory,
                start_version=start_version,
                oldest_version=refs[0].version if refs else None,
                to_fix="start the change feed at a later batch",
            )
        files = [(ref.version, open_ref(self.location, ref)) for ref in refs]
        with self._lock:
            self._pinned |= {self.location.path(ref.path) for ref in refs}
            self._held += tuple(file.path for _, file in files)
        return head, files

    def _adopt(self, snapshot: PublishedFile, *, duration_ms: float, taken: int) -> None:
        """Let later commits start from a snapshot when it lies on their lineage."""
        with self._lock:
            num_taken = self._status.num_taken + taken
            self._snapshot = (snapshot.ref, snapshot.trailer.version_ref)
            self._status = SnapshotStatus(
                snapshot.ref.version, snapshot.ref.size, duration_ms, num_taken
            )

    def _learn_snapshot(self, name: str) -> None:
        with self._lock:
            known = self._snapshot
        try:
            found = read_trailer(self.location, name)
        except NotFoundError:
            return
        if known is None or found.ref.version > known[0].version:
            self._adopt(found, duration_ms=0.0, taken=0)
