"""The versions of one store of the rocksdb backend: load, commit, merge, clean up.

Durable are one file a version, an SST with a trailer that names every file of the version, and
merged files. The local database follows.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.chain import (
    Merge,
    files_to_delete,
    files_to_merge,
    merges_left,
    newest_summary,
    with_merges,
)
from statestore.backends.rocksdb.change_feed import write_changes
from statestore.backends.rocksdb.database import LocalDatabase, local_errors
from statestore.backends.rocksdb.lineage import Lineage
from statestore.backends.rocksdb.local_versions import LocalVersion, LocalVersions
from statestore.backends.rocksdb.merging import merge_files
from statestore.checkpoint.commit import (
    Body,
    CommitTimes,
    NewVersion,
    SstRows,
    check_length,
    check_rows,
    publish_delta,
)
from statestore.checkpoint.lineage import check_parent
from statestore.checkpoint.pins import oldest_to_retain
from statestore.checkpoint.recent import RecentVersions
from statestore.checkpoint.rescale_refs import Cleanup, find_refs, plan_release, release
from statestore.checkpoint.restore import check_settings
from statestore.checkpoint.snapshot import SnapshotStatus
from statestore.checkpoint.trailers import (
    PublishedFile,
    other_provider_error,
    read_delta_trailer,
)
from statestore.codec.trailer import Block, VersionRef, compute_lineage
from statestore.core.errors import FencedError, NotFoundError, StorageError
from statestore.core.key_groups import KeyGroupSet, resolve_max_parallelism
from statestore.core.options import StateStoreOptions

if TYPE_CHECKING:
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.state_file import StateFile
    from statestore.codec.trailer import FileRef
    from statestore.core.clock import Clock

logger = logging.getLogger(__name__)

BACKEND = "rocksdb"


@dataclass(frozen=True, slots=True)
class _Written:
    """The rows of a commit as an SST, the body to publish, and what its lineage is over."""

    delta: sst.SstBody
    body: sst.SstBody
    rows_length: int
    rows_checksum: int


class RocksDBVersions:
    """The versions of one store. Thread-safe for what Session runs side by side.

    Commits and loads take turns, which the caller sees to; a merge, called a snapshot there, and a
    cleanup run beside them. Same calls as `StoreVersions` of the filesystem backend.

    Args:
        location: The store; its body is sst.
        clock: Source of time.
        local_directory: For the local database; owned by this object.
        memory: Shared by all databases of the engine.
    """

    def __init__(
        self, location: StoreLocation, clock: Clock, local_directory: str, memory: sst.Memory
    ) -> None:
        self.location = location
        self._clock = clock
        self._local_directory = local_directory
        self._memory = memory
        self._local = LocalVersions(location, local_directory, memory)
        self._lock = threading.Lock()
        self._cleanup_turn = threading.Lock()
        self._recent = RecentVersions(location)
        self._lineage = Lineage(location)
        self._merges: tuple[Merge, ...] = ()
        self._num_loads = 0
        self._announced: frozenset[str] = frozenset()
        """Names that a merge under way may publish."""
        self._status = SnapshotStatus()

    @property
    def snapshot_status(self) -> SnapshotStatus:
        """The newest merged file known; a version that is one file is its own."""
        with self._lock:
            return self._status

    def load_empty(self, num_partitions: int, options: StateStoreOptions) -> int:
        """Open version 0; as StoreVersions.load_empty."""
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
    ) -> LocalVersion:
        """Bring a version into the local database, fetching what it does not hold.

        Args:
            version: At least 1.
            checkpoint_id: The attempt in checkpoint format v2, None in v1.
            num_partitions: The query's, None to take the checkpoint's.
            options: max_parallelism is checked against the checkpoint.
            from_snapshot: A version on the lineage that must be there; the rows are the same.

        Raises:
            NotFoundError, IncompatibleError, FencedError, CorruptionError, StorageError: As
                `restore_version` and `check_settings`; the local disk failed.
        """
        head = read_delta_trailer(self.location, version, checkpoint_id)
        check_settings(
            head.trailer,
            backend=BACKEND,
            num_partitions=num_partitions,
            max_parallelism=options.max_parallelism,
        )
        if from_snapshot is not None:
            for _ in self._lineage.walk(head, from_snapshot):
                pass
        loaded = self._local.bring_to(head, options)
        self._remember(head)
        with self._lock:
            # Whoever had the store in between may have deleted what was merged here, or is now.
            self._merges = ()
            self._num_loads += 1
        return loaded

    def commit(
        self, new: NewVersion, local_path: str, arrow_length: int, options: StateStoreOptions
    ) -> tuple[PublishedFile, CommitTimes]:
        """Make a version durable; the local database follows when somebody reads it.

        Args:
            new: What the version is.
            local_path: A complete Arrow stream of the rows, in any order, or an SST of them where
                `new` says so; deleted on success.
            arrow_length: Bytes of the stream or SST.
            options: rocksdb_incremental says whether the durable file is the rows or all the state.

        Guarantee: as `publish_delta`; repeating it with the same checkpoint ID answers the same.

        Raises:
            FencedError: The parent was replaced by another attempt.
            StorageError: The storage or the local disk failed, or stream and version are both gone.
            IncompatibleError: The version does not fit its parent's settings.
            InvalidArgumentError, InternalError: The stream is not what `new` says.
        """
        done = self._recent.find_done(new, local_path)
        if done is not None:
            self._remember(done)
            return done, CommitTimes()
        parent = self._recent.parent_of(new)
        # In the local database's directory, which the next engine clears of all but views.
        scratch = f"{self._local_directory}/.tmp-body"
        try:
            return self._commit(new, parent, local_path, arrow_length, scratch, options)
        except StorageError:
            # The file may be there and only the reply lost: look before the next attempt writes.
            self._recent.forget()
            raise
        finally:
            for path in (scratch, f"{scratch}.sst", f"{scratch}.full", f"{scratch}.full.sst"):
                Path(path).unlink(missing_ok=True)

    def _commit(
        self,
        new: NewVersion,
        parent: PublishedFile | None,
        local_path: str,
        arrow_length: int,
        scratch: str,
        options: StateStoreOptions,
    ) -> tuple[PublishedFile, CommitTimes]:
        start_ms = self._clock.elapsed_ms()
        database = self._local.stand_at(parent, options)
        if new.sst is None:
            written = self._write(new, database, local_path, arrow_length, scratch, options)
        else:
            written = self._take(new, new.sst, local_path, arrow_length, scratch)
        delta, body = written.delta, written.body
        # Of the rows, not of the file: an SST tells when and where it was written.
        rows = Block(0, written.rows_length, 0, written.rows_checksum, -1, -1)
        lineage = compute_lineage(new.parent, (rows,))
        files: tuple[FileRef, ...] = ()
        if parent is not None and options.rocksdb_incremental:
            with self._lock:
                files = with_merges((*parent.trailer.files, parent.ref), self._merges)
        encoded_ms = self._clock.elapsed_ms() - start_ms
        published, times = publish_delta(
            self.location,
            new,
            parent,
            files,
            Body(body.path, body.blocks, body.rows, lineage),
            sync=options.fsync_enabled,
            clock=self._clock,
        )
        try:
            database.follow(
                delta.sst_path,
                parent.trailer.version_ref if parent else None,
                published.trailer.version_ref,
            )
            if options.rocksdb_compact_on_commit:
                database.compact()
        except StorageError as error:
            # The version is durable. The local database is a cache: whoever needs it next has it
            # fetch what it lacks.
            logger.warning(
                "local database did not follow: store=%s, error=%s", self.location.store, error
            )
            database.close()
        Path(local_path).unlink(missing_ok=True)
        self._remember(published)
        with self._lock:
            self._merges = merges_left((*files, published.ref), self._merges)
        return published, replace(times, checksum_ms=times.checksum_ms + encoded_ms)

    def _write(
        self,
        new: NewVersion,
        database: LocalDatabase,
        local_path: str,
        arrow_length: int,
        scratch: str,
        options: StateStoreOptions,
    ) -> _Written:
        """Write the rows of an Arrow stream as an SST."""
        given = sst.read_delta(local_path, arrow_length)
        check_rows(new, len(given.keys), local_path)
        if given.merges:
            resolved = sst.resolve_merges(given.rows, given.merges, database.get)
            given = replace(given, values=[value for _, value in resolved])
        with local_errors("write an SST", scratch):
            delta = sst.write_body(given.rows, scratch, self._memory.options(options))
            body = delta
            if not options.rocksdb_incremental:
                owned = KeyGroupSet(new.num_partitions, self.location.store.partition)
                base = sst.rows_in(database.items(), owned if database.is_at_mixed else None)
                whole = sst.apply_rows(base, given.rows)
                body = sst.write_body(whole, f"{scratch}.full", self._memory.options(options))
        return _Written(delta, body, arrow_length, given.checksum)

    def _take(
        self, new: NewVersion, rows: SstRows, local_path: str, length: int, scratch: str
    ) -> _Written:
        """Take over an SST of puts and deletes that is written already; it stays."""
        deletes: list[bytes] = []
        if rows.deletes_path is not None:
            deletes = sst.read_delta(rows.deletes_path, rows.deletes_length).keys
        check_rows(new, new.rows.put + len(deletes), local_path)
        with local_errors("write an SST", scratch):
            check_length(local_path, length)
            body = sst.write_body_of(local_path, new.rows.put, deletes, scratch)
        return _Written(body, body, rows.length, rows.checksum)

    def view(
        self, version: VersionRef, checkpoint_format: int, options: StateStoreOptions
    ) -> LocalVersion:
        """Return a version as `load` does, for whoever committed it; rows are not counted.

        Raises:
            FencedError: It was replaced by another attempt.
            NotFoundError, IncompatibleError, CorruptionError, StorageError: As `load`.
        """
        head = self._recent.recall(version)
        if head is None:
            checkpoint_id = version.checkpoint_id if checkpoint_format >= 2 else None
            head = read_delta_trailer(self.location, version.version, checkpoint_id)
        check_parent(head.trailer, version, self.location.path(head.ref.path))
        return self._local.bring_to(head, options)

    def head(self, version: int, checkpoint_id: str | None) -> PublishedFile:
        """Return the delta of a version, from memory when it is one of the newest.

        Raises:
            NotFoundError, CorruptionError, FencedError, StorageError: As `read_delta_trailer`.
        """
        return self._recent.read(version, checkpoint_id)

    def forget_heads(self) -> None:
        """Let go of memory; the newest view stays on disk for a later load."""
        self._recent.forget()
        self._local.shrink()

    def forget_local(self) -> None:
        """Let go of what `forget_heads` leaves: the view, and what cleanups know of versions."""
        self._local.forget()
        # A cleanup under way goes by what it finds there.
        if self._cleanup_turn.acquire(blocking=False):
            self._lineage.forget()
            self._cleanup_turn.release()

    def is_snapshot_due(self, head: PublishedFile, options: StateStoreOptions) -> bool:
        """Return whether files of a version should be merged."""
        return bool(files_to_merge(self._chain(head), options.rocksdb_merge_min_files))

    def has_snapshot_of(self, head: PublishedFile) -> bool:
        """Return whether the version is a single file already, with nothing to merge."""
        return len(self._chain(head)) == 1

    def take_snapshot(
        self, head: PublishedFile, scratch_directory: str, options: StateStoreOptions
    ) -> PublishedFile:
        """Merge files of a version, all of them where no merge is due; later commits name it.

        Guarantee: on return the merged file is durable. After a raise nothing of the store changed;
        at worst an orphan is left that maintenance deletes.

        Raises:
            NotFoundError, CorruptionError: A file of the version cannot be read.
            InternalError: The merged rows are not as many as the version says.
            FencedError: Another engine merged the same version; its file is left alone.
            StorageError: The storage or the local disk failed.
        """
        start_ms = self._clock.elapsed_ms()
        chain = self._chain(head)
        sources = files_to_merge(chain, options.rocksdb_merge_min_files) or chain
        at = head.trailer.version_ref
        with self._lock:
            num_loads = self._num_loads
            self._announced = frozenset(
                self.location.summary_name(kind, at.version, at.checkpoint_id)
                for kind in ("snapshot", "merged")
            )
        merged = merge_files(
            self.location,
            head,
            sources,
            is_whole=len(sources) == len(chain),
            scratch_directory=scratch_directory,
            sst_options=self._memory.options(options),
            sync=options.fsync_enabled,
        )
        with self._lock:
            if num_loads == self._num_loads:
                self._merges = (*self._merges, Merge(sources, merged.ref))
            self._status = SnapshotStatus(
                merged.ref.version,
                merged.ref.size,
                self._clock.elapsed_ms() - start_ms,
                self._status.num_taken + 1,
            )
        return merged

    def clean_up(self, head: PublishedFile, options: StateStoreOptions) -> Cleanup:
        """Delete what retention allows.

        Guarantee: every retained version can still be loaded, also when this raises half way.

        Raises:
            CorruptionError, IncompatibleError, StorageError: A trailer on the lineage cannot be
                read; nothing is deleted then.
        """
        with self._cleanup_turn:
            return self._clean_up(head, options)

    def _clean_up(self, head: PublishedFile, options: StateStoreOptions) -> Cleanup:
        files = self.location.io.list(self.location.directory)
        now_ms = self._clock.now_ms()
        num_retained = options.min_versions_to_retain
        oldest, expired_pins = oldest_to_retain(head.trailer.version, num_retained, files, now_ms)
        needed: dict[int, frozenset[str]] = {}
        has_hole = False
        try:
            for ref, entry in self._lineage.walk(head, oldest):
                needed[ref.version] = entry.paths
        except (NotFoundError, FencedError) as error:
            # Expired before, or replaced in format v1. What lies behind may be retained.
            logger.info("lineage ends early: store=%s, error=%s", self.location.store, error)
            has_hole = True
        self._lineage.forget_below(oldest)
        # A file of the listing is in one of these: a merge becomes one that a commit may take in,
        # and then a file of the version that did.
        with self._lock:
            pending = self._announced.union(merge.result.path for merge in self._merges)
        pending |= self._lineage.paths_above(head.trailer.version)
        is_foreign = any("/" in path for paths in needed.values() for path in paths)
        done, held_below = plan_release(
            find_refs(files),
            self.location.store.partition,
            head.trailer.num_partitions,
            0 if is_foreign or has_hole else min(needed),
        )
        cleaned = release(self.location, done, head.trailer.num_partitions)
        if has_hole:
            held_below = max(held_below, min(needed))
        unneeded = files_to_delete(files, needed, pending, held_below, options, now_ms)
        for info in (*expired_pins, *unneeded):
            self.location.io.delete(self.location.path(info.name))
            cleaned += Cleanup(1, info.size)
        return cleaned

    def changes(
        self, start_version: int, end_version: int, checkpoint_id: str | None, directory: str
    ) -> tuple[PublishedFile, list[tuple[int, StateFile]]]:
        """Return the deltas of a range of versions as Arrow files, and the last trailer.

        Args:
            start_version: First version, at least 1.
            end_version: Last version, inclusive.
            checkpoint_id: The attempt of end_version in checkpoint format v2, None in v1.
            directory: Where the files go, made unless it is there; the caller removes it, also
                after a raise.

        Raises:
            NotFoundError: One of the versions was expired.
            CorruptionError, FencedError, StorageError: As `load`.
        """
        head = read_delta_trailer(self.location, end_version, checkpoint_id)
        return head, write_changes(
            self.location, self._lineage, head, start_version, directory, self._memory
        )

    def _chain(self, head: PublishedFile) -> tuple[FileRef, ...]:
        with self._lock:
            return with_merges((*head.trailer.files, head.ref), self._merges)

    def _remember(self, head: PublishedFile) -> None:
        summary = newest_summary((*head.trailer.files, head.ref))
        with self._lock:
            if summary is not None and summary.version > self._status.version:
                num_taken = self._status.num_taken
                self._status = SnapshotStatus(summary.version, summary.size, 0.0, num_taken)
        self._lineage.add(head)
        self._recent.remember(head)
