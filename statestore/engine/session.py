"""Session: one store that this engine serves, with its lock and its snapshot in flight.

A session is only a memory of what storage says. An engine that knows nothing of a store answers
every call the same, just slower; hence no call needs an earlier one.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeAlias

from statestore.checkpoint.rescale_refs import Cleanup
from statestore.checkpoint.restore import check_partition_exists
from statestore.core.errors import NotFoundError

if TYPE_CHECKING:
    from statestore.backends.filesystem.versions import StoreVersions
    from statestore.backends.rocksdb.local_versions import LocalVersion
    from statestore.backends.rocksdb.versions import RocksDBVersions
    from statestore.checkpoint.commit import CommitTimes, NewVersion
    from statestore.checkpoint.restore import RestoredVersion
    from statestore.checkpoint.snapshot import SnapshotStatus
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.trailer import VersionRef
    from statestore.core.options import StateStoreOptions

logger = logging.getLogger(__name__)

_SNAPSHOT_NICENESS = 10

Versions: TypeAlias = "StoreVersions | RocksDBVersions"


def snapshot_pool() -> ThreadPoolExecutor:
    """Return the engine's snapshot threads: one, of lower priority than the threads that commit."""
    return ThreadPoolExecutor(1, "snapshot", initializer=_lower_priority)


def _lower_priority() -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _SNAPSHOT_NICENESS)
    except OSError as error:
        logger.info("snapshot thread keeps its priority: error=%s", error)


class Session:
    """One open store.

    Loads and commits take turns under the session's lock; a
    snapshot runs in a thread of the pool and takes no lock that a commit waits for; at most one is
    in flight.
    """

    def __init__(
        self,
        versions: Versions,
        pool: ThreadPoolExecutor,
        scratch_directory: str,
    ) -> None:
        self.versions = versions
        self._pool = pool
        self._scratch_directory = scratch_directory
        self._turn = threading.Lock()
        self.is_open = False
        """Whether the store was used since it was closed."""
        self.closed_ms = 0.0
        """When it was closed last, by a clock that never goes back."""
        self._flight_lock = threading.Lock()
        self._flight: Future[PublishedFile] | None = None

    @property
    def is_snapshot_in_flight(self) -> bool:
        """Whether a snapshot is being written."""
        with self._flight_lock:
            return self._flight is not None and not self._flight.done()

    def load_empty(self, num_partitions: int, options: StateStoreOptions) -> int:
        """Open version 0; see StoreVersions.load_empty."""
        with self._turn:
            self.is_open = True
            return self.versions.load_empty(num_partitions, options)

    def load(
        self,
        version: int,
        checkpoint_id: str | None,
        num_partitions: int | None,
        options: StateStoreOptions,
        from_snapshot: int | None,
    ) -> RestoredVersion | LocalVersion:
        """Restore a version; see StoreVersions.load.

        Raises:
            IncompatibleError: Also where the checkpoint never had the state partition.
        """
        with self._turn:
            self.is_open = True
            try:
                return self.versions.load(
                    version, checkpoint_id, num_partitions, options, from_snapshot
                )
            except NotFoundError:
                check_partition_exists(self.versions.location, version, num_partitions)
                raise

    def commit(
        self,
        new: NewVersion,
        local_path: str,
        arrow_length: int,
        options: StateStoreOptions,
        *,
        force_snapshot: bool,
    ) -> tuple[PublishedFile, CommitTimes, SnapshotStatus]:
        """Make a version durable, start a snapshot when it is due; see StoreVersions.commit."""
        with self._turn:
            self.is_open = True
            published, times = self.versions.commit(new, local_path, arrow_length, options)
        if force_snapshot or self.versions.is_snapshot_due(published, options):
            flight = self._start_snapshot(published, options)
            if flight is not None:
                flight.add_done_callback(_log_failure)
        return published, times, self.versions.snapshot_status

    def view(
        self, version: VersionRef, checkpoint_format: int, options: StateStoreOptions
    ) -> LocalVersion | None:
        """Bring a version into the local database, if there is one; see RocksDBVersions.view."""
        with self._turn:
            self.is_open = True
            return self.versions.view(version, checkpoint_format, options)

    def maintain(
        self,
        version: int,
        checkpoint_id: str | None,
        options: StateStoreOptions,
        *,
        snapshot: bool,
        cleanup: bool,
        wait_s: float | None = None,
    ) -> Cleanup:
        """Take a snapshot when it is due and wait for it; delete what retention allows.

        Args:
            version: The newest version that the caller knows.
            checkpoint_id: The attempt in checkpoint format v2, None in v1.
            options: Say what is due, and what is retained.
            snapshot: Whether to take a snapshot.
            cleanup: Whether to delete.
            wait_s: Longest to wait for the snapshot, which goes on after that; snapshots of all
                stores take turns. None waits until it is there.

        Raises:
            NotFoundError, CorruptionError, IncompatibleError, StorageError: The version cannot be
                read, or the snapshot or the cleanup failed; the store is as loadable as before.
        """
        head = self.versions.head(version, checkpoint_id)
        if snapshot and self.versions.is_snapshot_due(head, options):
            flight = self._start_snapshot(head, options)
            if flight is not None:
                if wait([flight], wait_s).done:
                    flight.result()
                else:
                    flight.add_done_callback(_log_failure)
        return self.versions.clean_up(head, options) if cleanup else Cleanup()

    def close(self, now_ms: float) -> None:
        """Let go of what takes memory; a later call opens the store again.

        Waits for a call that is under way, which another provider instance of the store may have
        made; a snapshot goes on. The newest snapshot stays known, for the next commit to name.
        """
        with self._turn:
            self.versions.forget_heads()
            self.is_open, self.closed_ms = False, now_ms

    def forget_local(self) -> None:
        """Remove what a closed store has on the local disk; one that is in use again keeps it."""
        if self._turn.acquire(blocking=False):
            try:
                if not self.is_open:
                    self.versions.forget_local()
            finally:
                self._turn.release()

    def _start_snapshot(
        self, head: PublishedFile, options: StateStoreOptions
    ) -> Future[PublishedFile] | None:
        with self._flight_lock:
            is_busy = self._flight is not None and not self._flight.done()
            if is_busy or self.versions.has_snapshot_of(head):
                return None
            self._flight = self._pool.submit(
                self.versions.take_snapshot, head, self._scratch_directory, options
            )
            return self._flight


def _log_failure(flight: Future[PublishedFile]) -> None:
    error = flight.exception()
    if error is not None:
        logger.warning("snapshot failed, the next commit tries again: error=%s", error)
