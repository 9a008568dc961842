"""The versions of one store of the rocksdb backend: load, commit, merge, clean up.

Each version has a durable file, an SST with a trailer that names every file of the version; merged
files replace some of them. The local database follows.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.chain import files_to_merge, newest_summary
from statestore.backends.rocksdb.change_feed import write_change_feed
from statestore.backends.rocksdb.database import NUM_VIEWS, LocalDatabase, local_errors
from statestore.backends.rocksdb.local_versions import LocalVersions
from statestore.backends.rocksdb.merging import merge_files
from statestore.checkpoint.commit import (
    Body,
    NewVersion,
    SstRows,
    check_length,
    check_rows,
    publish_delta,
)
from statestore.checkpoint.lineage import check_parent
from statestore.checkpoint.load import chain_from_snapshot, deltas_since
from statestore.checkpoint.trailers import PublishedFile, read_attempt, read_delta_trailer
from statestore.checkpoint.versions import VersionsBase
from statestore.codec.references import VersionRef
from statestore.codec.trailer import Block, compute_lineage
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.key_groups import KeyGroupSet
from statestore.core.liveness import Turn
from statestore.core.options import StateStoreOptions

if TYPE_CHECKING:
    from statestore.backends.rocksdb.database_memory import DatabaseMemory
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.load import ChangeFile, LoadedVersion
    from statestore.codec.references import FileRef
    from statestore.core.clock import Clock

logger = logging.getLogger(__name__)

BACKEND = "rocksdb"

_NUM_REPLAYS = 2
"""Each is a whole copy of the state on the local disk."""
_WAIT_FOR_TURN_S = 1.0
"""Longest that a reader waits for a commit, to spare itself a copy of the state."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The rows of a commit as an SST, the body to publish, and the input of its lineage."""

    delta: sst.SstBody
    body: sst.SstBody
    rows_length: int
    rows_checksum: int


class RocksDBVersions(VersionsBase):
    """The versions of one store whose rows are in a local database; see VersionsBase.

    Args:
        location: The store; its body is sst.
        clock: Source of time.
        local_directory: For the local database; owned by this object.
        memory: Shared by all databases of the engine.
    """

    def __init__(
        self,
        location: StoreLocation,
        clock: Clock,
        local_directory: str,
        memory: DatabaseMemory,
    ) -> None:
        super().__init__(location, clock, BACKEND)
        self.local_directory = local_directory
        self._memory = memory
        self._local = LocalVersions(location, local_directory, memory)
        self._reading = Turn()
        """Of those that read beside the query, from a database of their own."""
        self._read_directory = f"{local_directory}-read"
        self._read = LocalVersions(location, self._read_directory, memory)
        self._replays: deque[LocalVersions] = deque()
        """The newest last; guarded by the turn of those that read."""
        self._replay_numbers = itertools.count()

    def load(
        self,
        version: int,
        checkpoint_id: str | None,
        num_partitions: int | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None = None,
    ) -> LoadedVersion:
        """See VersionsBase; the rows are in a view, as those of `read` and `view`."""
        head = self._head_to_load(version, checkpoint_id, num_partitions, options)
        if from_snapshot is not None:
            with self._reading:
                return self._replay(head, from_snapshot, options)
        chain = self._chain_to_load(head, options)
        loaded = self._bring_to(self._local, head, chain, options)
        self._remember(head)
        return loaded

    def read(
        self,
        version: int,
        checkpoint_id: str | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None,
        turn: Turn,
    ) -> LoadedVersion:
        """See VersionsBase.

        A version that the query's database is at, or has a view of, is taken from there in its
        turn with loads and commits. Any other goes into a database for readers.
        """
        head = self._head_to_load(version, checkpoint_id, None, options)
        if from_snapshot is None and turn.try_acquire(_WAIT_FOR_TURN_S):
            try:
                if self._local.is_near(head.trailer.version_ref):
                    return self._bring_to(self._local, head, self._chain(head), options)
            finally:
                turn.release()
        with self._reading:
            if from_snapshot is not None:
                return self._replay(head, from_snapshot, options)
            read = self._bring_to(self._read, head, self._chain_to_read(head, options), options)
            # Other readers may not have opened the views yet that they were given.
            self._read.shrink(NUM_VIEWS)
            return read

    def end_reading(self) -> None:
        """See VersionsBase; open views stay readable. Waits for no reader."""
        if self._reading.try_acquire():
            try:
                self._read.forget()
                self._replays.clear()
                for directory in (self._read_directory, self._replay_directory):
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                self._reading.release()

    @property
    def _replay_directory(self) -> str:
        return f"{self.local_directory}-replay"

    def _bring_to(
        self,
        local: LocalVersions,
        head: PublishedFile,
        chain: tuple[FileRef, ...],
        options: StateStoreOptions,
    ) -> LoadedVersion:
        """Bring a version into a local database by a chain, or else by the one it names."""
        named = head.chain
        try:
            return local.bring_to(head, chain, options)
        except (NotFoundError, CorruptionError, FencedError) as error:
            if chain == named:
                raise
            logger.warning(
                "a merged file cannot be used: store=%s, error=%s", self.location.store, error
            )
            self._summaries.reject(set(chain).difference(named))
            return local.bring_to(head, named, options)

    def _replay(
        self, head: PublishedFile, snapshot: tuple[int, str | None], options: StateStoreOptions
    ) -> LoadedVersion:
        """Make a view of a version by exactly one snapshot, in a database of its own.

        The store's may have the version by another way. Open views of an earlier replay stay
        readable, and the one before stays for a reader that may not have opened it yet.
        """
        chain = chain_from_snapshot(self.location, head, *snapshot)
        if not self._replays:  # there may be some of an engine that died
            shutil.rmtree(self._replay_directory, ignore_errors=True)
        directory = f"{self._replay_directory}/{next(self._replay_numbers)}"
        local = LocalVersions(self.location, directory, self._memory)
        self._replays.append(local)
        if len(self._replays) > _NUM_REPLAYS:
            self._replays.popleft().forget()
        try:
            loaded = local.bring_to(head, chain, options)
        except Exception:
            self._replays.pop().forget()
            raise
        local.shrink()
        return loaded

    def commit(
        self, new: NewVersion, local_path: str, arrow_length: int, options: StateStoreOptions
    ) -> PublishedFile:
        """See VersionsBase; the local database follows for the next reader.

        The stream may be in any order, or is an SST where `new` says so. With rocksdb_incremental
        off, the durable file is all the state.
        """
        done = self._recent.find_done(new, local_path, sync=options.fsync_enabled)
        if done is not None:
            self._remember(done)
            return done
        parent = self._recent.parent_of(new)
        # In the local database's directory, which the next engine clears of all but views.
        scratch = f"{self.local_directory}/.tmp-body"
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
    ) -> PublishedFile:
        start_ms = self._clock.elapsed_ms()
        database = self._local.stand_at(parent, options)
        if database.is_at_mixed and not new.rescalable:
            raise InvalidArgumentError(
                "a row is outside of the key groups of its state partition, where a rescaled store "
                "would not show it",
                store=str(self.location.store),
                version=new.version,
                num_partitions=new.num_partitions,
                to_fix="put each row into the state partition that is its key group modulo the "
                "number of state partitions; go back from the rescale of a query by `statestore "
                "rescale CHECKPOINT --undo --yes`, as long as no batch has run since",
            )
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
            files = self._chain(parent)
        published = publish_delta(
            self.location,
            new,
            parent,
            files,
            Body(body.path, body.blocks, body.rows, lineage),
            sync=options.fsync_enabled,
            clock=self._clock,
            start_ms=start_ms,
        )
        try:
            database.follow(delta.sst_path, published.trailer.version_ref)
            if options.rocksdb_compact_on_commit:
                database.compact()
        except StorageError as error:
            # The version is durable. The local database is a cache: its next use fetches the
            # missing files.
            logger.warning(
                "local database did not follow: store=%s, error=%s", self.location.store, error
            )
            database.close()
        Path(local_path).unlink(missing_ok=True)
        self._remember(published)
        return published

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
        deletes = sst.NO_KEYS
        if rows.deletes_path is not None:
            deletes = sst.read_keys(rows.deletes_path, rows.deletes_length)
        check_rows(new, new.rows.put + len(deletes), local_path)
        with local_errors("write an SST", scratch):
            check_length(local_path, length)
            body = sst.write_body_of(local_path, new.rows.put, deletes, scratch)
        return _Written(body, body, rows.length, rows.checksum)

    def view(
        self, version: VersionRef, checkpoint_format: int, options: StateStoreOptions
    ) -> LoadedVersion:
        """See VersionsBase."""
        head = self._recent.recall(version)
        if head is None:
            checkpoint_id = version.checkpoint_id if checkpoint_format >= 2 else None
            head = read_delta_trailer(self.location, version.version, checkpoint_id)
        check_parent(head.trailer, version, self.location.path(head.ref.path))
        return self._bring_to(self._local, head, self._chain(head), options)

    def forget_heads(self) -> None:
        """Release memory; the newest view stays on disk for a later load."""
        self._recent.forget()
        self._local.shrink()

    def forget_local(self) -> None:
        """See VersionsBase."""
        self._local.forget()
        self.end_reading()

    def has_snapshot_of(self, head: PublishedFile) -> bool:
        """Return whether the version is a single file already, with nothing to merge."""
        return len(self._chain(head)) == 1

    def take_snapshot(
        self, head: PublishedFile, scratch_directory: str, options: StateStoreOptions
    ) -> PublishedFile:
        """See VersionsBase; it is made of the files that a merge is due for, else of all."""
        start_ms = self._clock.elapsed_ms()
        chain = self._chain(head)
        sources = files_to_merge(chain, options.rocksdb_merge_min_files) or chain
        merged = merge_files(
            self.location,
            head,
            sources,
            is_whole=len(sources) == len(chain),
            scratch_directory=scratch_directory,
            sst_options=self._memory.options(options),
            sync=options.fsync_enabled,
        )
        self._announce(merged, start_ms)
        return merged

    def _is_due(
        self,
        chain: tuple[FileRef, ...],
        _head: PublishedFile,
        options: StateStoreOptions,
        times: int = 1,
    ) -> bool:
        return bool(files_to_merge(chain, times * options.rocksdb_merge_min_files))

    def changes(
        self, start_version: int, end_version: int, checkpoint_id: str | None, directory: str
    ) -> tuple[PublishedFile, list[ChangeFile]]:
        """See VersionsBase; the files are in `directory`, as `write_change_feed` makes them."""
        head = read_attempt(self.location, end_version, checkpoint_id)
        deltas = deltas_since(self.location, head, start_version)
        return head, write_change_feed(
            self.location, deltas, start_version, directory, self._memory
        )

    def _remember(self, head: PublishedFile) -> None:
        self._notice(newest_summary(head.chain))
        self._recent.remember(head)
