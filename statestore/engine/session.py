"""Session: one store that this engine serves, with its lock and its snapshot in flight.

A session is only a cache of storage. An engine that knows nothing of a store gives the same
answers, just slower; so no call needs an earlier one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.cleanup import Cleanup
from statestore.checkpoint.load import check_partition_exists
from statestore.core.errors import NotFoundError, StateStoreError
from statestore.core.liveness import Turn, wait_with_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.load import LoadedVersion
    from statestore.checkpoint.snapshot import SnapshotStatus
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.checkpoint.versions import VersionsBase
    from statestore.codec.references import VersionRef
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions

logger = logging.getLogger(__name__)

_SNAPSHOT_NICENESS = 10

CATCH_UP_S = 60.0
"""Longest that the commits of a query run wait for snapshots of stores that outran theirs."""
_MOST_RUNS = 100


class CatchUp:
    """How long commits may yet wait for snapshots: in an engine all stores of a query run together.

    Args:
        clock: Source of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until_ms: dict[str, float] = {}

    def rest_s(self, run: str) -> float:
        """Return the seconds that are left of CATCH_UP_S, which begin with the first call."""
        now_ms = self._clock.elapsed_ms()
        with self._lock:
            until_ms = self._until_ms.setdefault(run, now_ms + CATCH_UP_S * 1000)
            if len(self._until_ms) > _MOST_RUNS:
                del self._until_ms[next(iter(self._until_ms))]
        return max(0.0, (until_ms - now_ms) / 1000)


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

    Loads and commits take turns under the session's lock; a snapshot runs in a thread of the pool
    and takes no lock that a commit waits for; at most one is in flight.
    """

    def __init__(
        self,
        versions: VersionsBase,
        pool: ThreadPoolExecutor,
        scratch_directory: str,
        catch_up: CatchUp,
    ) -> None:
        self.versions = versions
        self._catch_up = catch_up
        self._pool = pool
        self._scratch_directory = scratch_directory
        self._turn = Turn()
        self.providers: set[str] = set()
        """The provider instances that use the store; who keeps the session guards it."""
        self.readers: set[str] = set()
        """Those of them for which no query runs; likewise."""
        self._flight_lock = threading.Lock()
        self._flight: Future[None] | None = None
        self._cleanup_turn = threading.Lock()
        self._catching_up: Future[None] | None = None
        """A snapshot that the next commit waits for."""

    @property
    def is_snapshot_in_flight(self) -> bool:
        """Whether a snapshot is being written."""
        with self._flight_lock:
            return self._flight is not None and not self._flight.done()

    def load_empty(self, num_partitions: int, options: StateStoreOptions) -> int:
        """Open version 0; see VersionsBase.load_empty."""
        with self._turn:
            return self.versions.load_empty(num_partitions, options)

    def load(
        self,
        version: int,
        checkpoint_id: str | None,
        num_partitions: int,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None,
    ) -> LoadedVersion:
        """Restore a version for a query; see VersionsBase.load.

        Raises:
            IncompatibleError: Also where the checkpoint never had the state partition.
        """
        with self._turn:
            if from_snapshot is None and not self.readers:
                self.versions.end_reading()
            try:
                loaded = self.versions.load(
                    version, checkpoint_id, num_partitions, options, from_snapshot
                )
            except NotFoundError:
                check_partition_exists(self.versions.location, version, num_partitions)
                raise
            if from_snapshot is None:
                # A job that is started anew for each batch has no other time for it.
                is_behind = self.versions.is_behind(loaded.head, options)
                flight = self._tend(loaded.head, options, is_loaded=True)
                self._catching_up = flight if is_behind else None
            return loaded

    def read(
        self,
        version: int,
        checkpoint_id: str | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None,
    ) -> LoadedVersion:
        """Restore a version for a reader without a query, beside loads and commits.

        See VersionsBase.read.
        """
        return self.versions.read(version, checkpoint_id, options, from_snapshot, self._turn)

    def commit(
        self,
        new: NewVersion,
        local_path: str,
        arrow_length: int,
        options: StateStoreOptions,
        *,
        force_snapshot: bool,
        run: str = "",
    ) -> tuple[PublishedFile, SnapshotStatus]:
        """Make a version durable, start a snapshot if one is due; see VersionsBase.commit.

        The first commit after a load waits for a snapshot if one is twice overdue: else a job that
        ends with each batch would never get one. With many stores some get theirs in each run.
        """
        with self._turn:
            behind, self._catching_up = self._catching_up, None
            if behind is not None:
                wait_with_steps(behind, self._catch_up.rest_s(run))
            published = self.versions.commit(new, local_path, arrow_length, options)
            self._rest()
        self._tend(published, options, is_forced=force_snapshot)
        return published, self.versions.snapshot_status

    def view(
        self, version: VersionRef, checkpoint_format: int, options: StateStoreOptions
    ) -> LoadedVersion | None:
        """Bring a version into the local database, if there is one; see VersionsBase.view."""
        with self._turn:
            viewed = self.versions.view(version, checkpoint_format, options)
            self._rest()
            return viewed

    def has_lineage(self, version: VersionRef) -> bool:
        """Return whether an attempt of a version has a lineage; see `VersionsBase`."""
        with self._turn:
            return self.versions.has_lineage(version)

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
            options: Policy of snapshots and retention.
            snapshot: Whether to take a snapshot.
            cleanup: Whether to delete.
            wait_s: Longest to wait for the snapshot, which then goes on; snapshots of all stores
                take turns. Also the longest that a cleanup takes; the next one does the rest. None
                waits for the snapshot, and cleans up all.

        Raises:
            NotFoundError, CorruptionError, IncompatibleError, StorageError: The version cannot be
                read, or the snapshot or the cleanup failed; the store is as loadable as before.
        """
        head = self.versions.head(version, checkpoint_id)
        if snapshot and self.versions.is_snapshot_due(head, options):
            flight = self._start(head, options, has_cleanup=False)
            if flight is not None:
                if not wait([flight], wait_s).done:
                    flight.add_done_callback(_log_failure)
                elif not flight.cancelled():
                    flight.result()
        return self._clean_up(head, options, wait_s) if cleanup else Cleanup()

    def distrust(self) -> None:
        """Remove what the local disk has of the store; the next call builds it anew."""
        with self._turn:
            self.versions.forget_local()

    def close(self) -> None:
        """Release memory; a later call opens the store again.

        Waits for a running call; a snapshot that was begun goes on. The newest snapshot stays
        known, for the next commit to name, until `forget_local`.
        """
        with self._turn:
            self._rest()

    def end_reading(self, provider: str) -> None:
        """Release files and databases of readers, when the last of them is gone.

        If no query has the store open they stay for the next reader, as with any closed store, or
        until a query loads it.
        """
        if provider in self.readers:
            self.readers.discard(provider)
            if not self.readers and self.providers:
                self.versions.end_reading()

    def _rest(self) -> None:
        # A call that opens it again adds its provider first, and then waits for its turn.
        if not self.providers:
            self.versions.forget_heads()

    def forget_local(self) -> bool:
        """Remove a closed store's files from the local disk; False if it is in use."""
        if not self._turn.try_acquire():
            return False
        try:
            if not self.providers:
                # One that waits would stay behind: whoever opens the store next makes its own.
                with self._flight_lock:
                    if self._flight is not None:
                        self._flight.cancel()
                self.versions.forget_local()
            return not self.providers
        finally:
            self._turn.release()

    def _tend(
        self,
        head: PublishedFile,
        options: StateStoreOptions,
        *,
        is_loaded: bool = False,
        is_forced: bool = False,
    ) -> Future[None] | None:
        """Start a due snapshot of a version beside the calls, and a cleanup with it."""
        has_cleanup = head.trailer.version > options.min_versions_to_retain
        is_due = is_forced or self.versions.is_snapshot_due(head, options)
        if not is_due and not (is_loaded and has_cleanup):
            return None
        flight = self._start(head, options, has_cleanup=has_cleanup, is_forced=is_forced)
        if flight is not None:
            flight.add_done_callback(_log_failure)
        return flight

    def _start(
        self,
        head: PublishedFile,
        options: StateStoreOptions,
        *,
        has_cleanup: bool,
        is_forced: bool = False,
    ) -> Future[None] | None:
        with self._flight_lock:
            if self._flight is not None and not self._flight.done():
                return None
            todo = [(head, options, has_cleanup, is_forced)]
            try:
                self._flight = self._pool.submit(self._fly, todo)
            except RuntimeError as error:  # no thread can be started, and the version is durable
                todo.clear()  # the pool keeps what it has no thread for
                logger.warning("no snapshot, the next commit tries again: error=%s", error)
                return None
            return self._flight

    def _fly(self, todo: Sequence[tuple[PublishedFile, StateStoreOptions, bool, bool]]) -> None:
        """Do what is still to do: nothing where its thread came too late."""
        for head, options, has_cleanup, is_forced in todo:
            if has_cleanup:
                try:
                    self._clean_up(head, options)
                except StateStoreError as error:
                    logger.warning("cleanup failed, maintenance tries again: error=%s", error)
            # Another engine may have been first, as the cleanup tells.
            is_due = is_forced or self.versions.is_snapshot_due(head, options)
            if is_due and not self.versions.has_snapshot_of(head):
                # Something else may clean up there.
                scratch = Path(self._scratch_directory)
                for directory in (scratch.parent, scratch):
                    directory.mkdir(mode=0o700, exist_ok=True)
                self.versions.take_snapshot(head, self._scratch_directory, options)

    def _clean_up(
        self, head: PublishedFile, options: StateStoreOptions, time_limit_s: float | None = None
    ) -> Cleanup:
        began = time.monotonic()
        if not self._cleanup_turn.acquire(timeout=-1 if time_limit_s is None else time_limit_s):
            return Cleanup(num_left=1)  # that of the turn goes on
        try:
            if time_limit_s is not None:
                time_limit_s = max(0.0, time_limit_s - (time.monotonic() - began))
            return self.versions.clean_up(head, options, time_limit_s)
        finally:
            self._cleanup_turn.release()


def _log_failure(flight: Future[None]) -> None:
    error = None if flight.cancelled() else flight.exception()
    if error is not None:
        logger.warning("snapshot failed, the next commit tries again: error=%s", error)
