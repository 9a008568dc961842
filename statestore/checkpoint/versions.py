"""The versions of a store: the contract of a state backend, and what all backends do alike."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from statestore.checkpoint.cleanup import Cleanup, Deadline, delete_files
from statestore.checkpoint.load import check_settings
from statestore.checkpoint.recent import RecentVersions
from statestore.checkpoint.rescale_refs import References, release
from statestore.checkpoint.retention import KnownDeltas, plan_cleanup
from statestore.checkpoint.snapshot import SnapshotStatus
from statestore.checkpoint.summaries import Summaries
from statestore.checkpoint.trailers import (
    other_provider_error,
    read_attempt,
    read_trailer,
)
from statestore.core.errors import CorruptionError, NotFoundError
from statestore.core.key_groups import resolve_max_parallelism

if TYPE_CHECKING:
    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.load import ChangeFile, LoadedVersion
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import FileRef, VersionRef
    from statestore.core.clock import Clock
    from statestore.core.liveness import Turn
    from statestore.core.options import StateStoreOptions
    from statestore.io.file_io import FileInfo

logger = logging.getLogger(__name__)


class VersionsBase(ABC):
    """The versions of one store, their summaries, and their cleanup.

    Thread-safe: only memory is locked, never a storage call. Loads, commits and views of one store
    must be ordered by the caller, and so must cleanups; a read, a change feed, a snapshot and a
    cleanup may run beside commits.

    Args:
        location: The store.
        clock: Source of time.
        backend: The state backend.

    Attributes:
        local_directory: For a local database, of this object alone; empty where there is none.
    """

    local_directory = ""

    def __init__(self, location: StoreLocation, clock: Clock, backend: str) -> None:
        self.location = location
        self._clock = clock
        self._backend = backend
        self._lock = threading.Lock()
        self._recent = RecentVersions(location)
        self._summaries = Summaries(location)
        self._references = References(location)
        self._known_deltas = KnownDeltas()
        self._status = SnapshotStatus()

    @property
    def snapshot_status(self) -> SnapshotStatus:
        """The newest published summary known: a snapshot or a merged file."""
        with self._lock:
            return self._status

    def load_empty(self, num_partitions: int, options: StateStoreOptions) -> int:
        """Open version 0, the empty store, and return the number of key groups it will have.

        Raises:
            IncompatibleError: The store directory holds another provider's files.
            InvalidArgumentError: The option maxParallelism does not fit num_partitions.
        """
        self._check_provider()
        # What is remembered may be of a checkpoint that is gone.
        self._summaries.forget()
        self._recent.forget()
        with self._lock:
            self._status = SnapshotStatus()
        return resolve_max_parallelism(options.max_parallelism, num_partitions)

    def _check_provider(self) -> None:
        """Check that the store directory holds no files of another provider, as `load_empty`."""
        names = [info.name for info in self.location.io.list(self.location.directory)]
        refusal = other_provider_error(self.location, names)
        if refusal is not None:
            raise refusal

    def head(self, version: int, checkpoint_id: str | None) -> PublishedFile:
        """Return the delta of a version, from memory when it is one of the newest.

        Raises:
            NotFoundError, CorruptionError, FencedError, StorageError: As `read_delta_trailer`.
        """
        return self._recent.read(version, checkpoint_id)

    def _head_to_load(
        self,
        version: int,
        checkpoint_id: str | None,
        num_partitions: int | None,
        options: StateStoreOptions,
    ) -> PublishedFile:
        """Read the delta of a version that fits the query; errors as the two calls."""
        head = read_attempt(self.location, version, checkpoint_id)
        check_settings(
            head.trailer,
            backend=self._backend,
            num_partitions=num_partitions,
            max_parallelism=options.max_parallelism,
        )
        return head

    def has_lineage(self, version: VersionRef) -> bool:
        """Return whether an attempt of a version has a lineage; if so, it is the newest version.

        Raises:
            NotFoundError, CorruptionError, FencedError, StorageError: As `head`.
        """
        head = self.head(version.version, version.checkpoint_id)
        if head.trailer.lineage != version.lineage:
            return False
        self._recent.remember(head)
        return True

    def files_of(self, head: PublishedFile) -> tuple[FileRef, ...]:
        """Return the files that make a version, with all summaries on storage.

        Raises:
            StorageError: The storage failed.
        """
        self._learn(head)
        return self._chain(head)

    def is_snapshot_due(self, head: PublishedFile, options: StateStoreOptions) -> bool:
        """Return whether files of a version should be summarised."""
        return self._is_due(self._chain(head), head, options)

    def is_behind(self, head: PublishedFile, options: StateStoreOptions) -> bool:
        """Return whether a version has twice the files at which they should be summarised."""
        return self._is_due(self._chain(head), head, options, times=2)

    @abstractmethod
    def load(
        self,
        version: int,
        checkpoint_id: str | None,
        num_partitions: int | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None = None,
    ) -> LoadedVersion:
        """Bring a version to the local disk, by the files that are not there yet.

        Args:
            version: At least 1.
            checkpoint_id: The attempt in checkpoint format v2, None in v1.
            num_partitions: The query's, None to take the checkpoint's.
            options: max_parallelism is checked against the checkpoint.
            from_snapshot: Version and attempt of the snapshot to start at, as of
                `chain_from_snapshot`; None for the best.

        Guarantee: as `load_files`; its files stay until the next load or commit, or `forget_heads`.

        Raises:
            NotFoundError, IncompatibleError, FencedError, CorruptionError: As `load_files` and
                `check_settings`.
            StorageError: The storage or the local disk failed.
        """

    @abstractmethod
    def read(
        self,
        version: int,
        checkpoint_id: str | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None,
        turn: Turn,
    ) -> LoadedVersion:
        """Bring a version to the local disk for a reader without a query.

        Args and errors as `load`. Its files stay until `end_reading`, or `forget_heads`; what
        the next commit is built on stays as it is. It may wait for `turn`, which loads and commits
        take and the caller does not hold.
        """

    @abstractmethod
    def view(
        self, version: VersionRef, checkpoint_format: int, options: StateStoreOptions
    ) -> LoadedVersion | None:
        """Return the view of a version that the caller committed; None where rows are in files.

        Raises:
            FencedError: It was replaced by another attempt.
            NotFoundError, IncompatibleError, CorruptionError, StorageError: As `load`.
        """

    @abstractmethod
    def commit(
        self, new: NewVersion, local_path: str, arrow_length: int, options: StateStoreOptions
    ) -> PublishedFile:
        """Make a version durable; repeated with the same checkpoint ID, it returns the same.

        Args:
            new: The version.
            local_path: A complete Arrow stream, or what `new` says; moved or deleted on success.
            arrow_length: Bytes of it.
            options: fsync_enabled says whether to wait for the disk.

        Guarantee: as `publish_delta`.

        Raises:
            FencedError: The parent was replaced by another attempt.
            StorageError: The storage or the local disk failed, or stream and version are both gone.
            IncompatibleError: The version does not fit its parent's settings.
            InvalidArgumentError, InternalError: The stream is not what `new` says.
        """

    @abstractmethod
    def changes(
        self, start_version: int, end_version: int, checkpoint_id: str | None, directory: str
    ) -> tuple[PublishedFile, list[ChangeFile]]:
        """Return the delta of the last of some versions, and what each of them changed, in order.

        Args:
            start_version: First version, at least 1.
            end_version: Last version, inclusive.
            checkpoint_id: The attempt of end_version in checkpoint format v2, None in v1.
            directory: For files that are not on the local disk as they are, made unless it is
                there; the caller removes it, also after a raise. The others stay as those of
                `read`.

        Raises:
            NotFoundError: One of the versions was expired.
            IncompatibleError: One was written whole.
            CorruptionError, FencedError, StorageError: As `load`.
        """

    def end_reading(self) -> None:  # noqa: B027 (a backend without local files has none)
        """Delete the local files of readers, of which there are none any more."""

    def forget_local(self) -> None:  # noqa: B027 (likewise)
        """Remove the local files that `forget_heads` leaves."""

    @abstractmethod
    def forget_heads(self) -> None:
        """Forget versions; release memory, and local files but those a later load begins with."""

    @abstractmethod
    def has_snapshot_of(self, head: PublishedFile) -> bool:
        """Return whether the version is made of one summary alone."""

    @abstractmethod
    def take_snapshot(
        self, head: PublishedFile, scratch_directory: str, options: StateStoreOptions
    ) -> PublishedFile:
        """Write and publish a summary of a version, which later commits name.

        Guarantee: on return it is durable. After a raise nothing of the store changed; at worst an
        orphan is left that maintenance deletes.

        Raises:
            NotFoundError, CorruptionError: A file of the version cannot be read.
            InternalError: Its rows are not as many as the version says.
            FencedError, IncompatibleError, StorageError: As `publish_summary`.
        """

    def clean_up(
        self, head: PublishedFile, options: StateStoreOptions, time_limit_s: float | None = None
    ) -> Cleanup:
        """Delete what retention allows, and learn of summaries that other processes made.

        Args:
            head: The newest version.
            options: The retention.
            time_limit_s: Seconds after which it stops, for the next one to go on; None for never.

        Guarantee: every retained version can still be loaded, even if this stops or raises half
        way. Nothing is deleted where the version itself is gone, or is another one: the files that
        are there are those of a checkpoint that has taken the place of this one.

        Raises:
            CorruptionError, IncompatibleError, StorageError: As `plan_cleanup`.
        """
        deadline = Deadline(self._clock, time_limit_s)
        files = self._learn(head)
        now_ms = self._clock.now_ms()
        plan = plan_cleanup(
            self.location,
            head,
            files,
            self._summaries,
            self._references,
            options,
            now_ms,
            self._known_deltas,
        )
        if (plan.delete or plan.release) and not self._is_there(head):
            logger.info("no cleanup, the version is gone: file=%s", head.ref.path)
            return Cleanup()
        cleaned = Cleanup()
        try:
            cleaned = release(
                self.location,
                plan.release,
                head.trailer.num_partitions,
                head.trailer.version,
                deadline,
            )
        except CorruptionError as error:
            logger.warning("references of a rescale stay: error=%s", error)
        unneeded = [info for info in plan.delete if not self._is_read(info.name)]
        self._summaries.leave_out(info.name for info in unneeded)
        return cleaned + delete_files(
            self.location, unneeded, deadline, may_go_on=lambda: self._is_there(head)
        )

    def _is_there(self, head: PublishedFile) -> bool:
        try:
            found = read_trailer(self.location, head.ref.path)
        except NotFoundError:
            return False
        return found.trailer.lineage == head.trailer.lineage

    @abstractmethod
    def _is_due(
        self,
        chain: tuple[FileRef, ...],
        head: PublishedFile,
        options: StateStoreOptions,
        times: int = 1,
    ) -> bool:
        """Return whether files of a version should be summarised.

        Args:
            chain: The files that make it.
            head: Its delta.
            options: The number of files at which they should.
            times: Factor on the number of files: 2 asks whether it is twice overdue.
        """

    def _is_read(self, _name: str) -> bool:
        """Return whether a reader was given a file, which then stays for a while."""
        return False

    def _chain(self, head: PublishedFile) -> tuple[FileRef, ...]:
        """Return the files that make a version, with all known summaries."""
        return self._summaries.shorten(head.chain)

    def _chain_to_load(
        self, head: PublishedFile, options: StateStoreOptions
    ) -> tuple[FileRef, ...]:
        """Return the files to load; if they are many, storage is asked for summaries first."""
        self._summaries.forget()
        chain = head.chain
        if self._is_due(chain, head, options):
            self._learn(head)
            chain = self._chain(head)
        return chain

    def _chain_to_read(
        self, head: PublishedFile, options: StateStoreOptions
    ) -> tuple[FileRef, ...]:
        """Return the files to read a version from, without a query: the known summaries stay."""
        chain = head.chain
        if self._is_due(chain, head, options):
            summaries = Summaries(self.location)
            names = [info.name for info in self.location.io.list(self.location.directory)]
            summaries.learn(names, chain)
            chain = summaries.shorten(chain)
        return chain

    def _learn(self, head: PublishedFile) -> list[FileInfo]:
        files = self.location.io.list(self.location.directory)
        chain = head.chain
        self._summaries.learn((info.name for info in files), chain)
        self._notice(self._summaries.newest)
        return files

    def _announce(self, summary: PublishedFile, start_ms: float) -> None:
        """Let later commits name a summary that was just published."""
        self._summaries.add(summary)
        with self._lock:
            self._status = SnapshotStatus(
                summary.ref.version,
                summary.ref.size,
                self._clock.elapsed_ms() - start_ms,
                self._status.num_taken + 1,
            )

    def _notice(self, summary: FileRef | None) -> None:
        """Take note of a summary that a version names."""
        with self._lock:
            if summary is not None and summary.version > self._status.version:
                num_taken = self._status.num_taken
                self._status = SnapshotStatus(summary.version, summary.size, 0.0, num_taken)
