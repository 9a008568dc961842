"""The versions of one store in its local database, brought there from durable files.

The database takes in the missing files, and is built anew if it cannot be brought to a version.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.backends.rocksdb.database import LocalDatabase, LocalView
from statestore.backends.rocksdb.merging import LaidOut, lay_out, open_sst
from statestore.checkpoint.load import PARALLEL_FETCHES, LoadedVersion
from statestore.checkpoint.trailers import PublishedFile, read_trailer
from statestore.codec.references import VersionRef
from statestore.core.errors import StorageError
from statestore.core.key_groups import KeyGroupSet
from statestore.core.liveness import CallPool
from statestore.core.options import StateStoreOptions
from statestore.io.local import is_out_of_files

if TYPE_CHECKING:
    from statestore.backends.rocksdb.database_memory import DatabaseMemory
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.references import FileRef
    from statestore.codec.sealed_file import SealedFile

logger = logging.getLogger(__name__)


class LocalVersions:
    """The local database of one store, and the way to any version. Not thread-safe.

    Args:
        location: The store.
        directory: For the database; owned by this object.
        memory: Shared by all databases of the engine.
    """

    def __init__(self, location: StoreLocation, directory: str, memory: DatabaseMemory) -> None:
        self._location = location
        self._directory = directory
        self._memory = memory
        self._database: LocalDatabase | None = None

    def stand_at(self, parent: PublishedFile | None, options: StateStoreOptions) -> LocalDatabase:
        """Return the local database, brought to the version that a commit is built on."""
        database = self._open(options)
        if parent is None:
            database.go_to(None)
        elif database.at != parent.trailer.version_ref:
            self._advance(database, parent, parent.chain)
        return database

    def bring_to(
        self, head: PublishedFile, chain: tuple[FileRef, ...], options: StateStoreOptions
    ) -> LoadedVersion:
        """Make a view of a version, from the nearest state that is there.

        Args:
            head: The delta of the version.
            chain: The files that make it.
            options: Of the database.
        """
        database = self._open(options)
        view = database.view(head.trailer.version_ref)
        if view is not None:
            return self._version(head, view, ())
        return self._advance(database, head, chain)

    def is_near(self, version: VersionRef) -> bool:
        """Return whether the database is at a version, or has a view of it."""
        database = self._database
        return database is not None and (database.at == version or database.has_view(version))

    def shrink(self, num_views: int = 1) -> None:
        """Release memory; the newest views stay on disk for a later load."""
        if self._database is not None:
            self._database.shrink(num_views)

    def forget(self) -> None:
        """Release memory and remove everything on the local disk."""
        if self._database is not None:
            self._database.forget()
            self._database = None
        # Of an engine that died, too.
        shutil.rmtree(self._directory, ignore_errors=True)

    def _open(self, options: StateStoreOptions) -> LocalDatabase:
        if self._database is not None and not Path(self._directory).is_dir():
            self.forget()  # something else cleaned up there
        if self._database is None:
            self._database = LocalDatabase(
                self._directory, self._memory.options(options, is_kept=True)
            )
        return self._database

    def _advance(
        self, database: LocalDatabase, head: PublishedFile, chain: tuple[FileRef, ...]
    ) -> LoadedVersion:
        """Bring the database itself to a version, from the nearest state that is there."""
        target = head.trailer.version_ref
        owned = head.trailer.key_groups
        near, start = self._find_near(database, chain)
        # Before anything changes: that the storage fails is no reason to doubt the local disk.
        files = self._open_files(chain[start:])
        try:
            database.go_to(near)
            view = self._ingest(database, files, target, owned)
        except StorageError as error:
            if is_out_of_files(error) or (near is not None and error.kind == "storage-full"):
                raise  # what is there is in order, and to fetch all of it takes more
            logger.warning(
                "local database is built anew: store=%s, error=%s", self._location.store, error
            )
            files = [*self._open_files(chain[:start]), *files]
            database.forget()
            database.go_to(None)
            view = self._ingest(database, files, target, owned)
        return self._version(head, view, tuple(ref for ref, _ in files))

    def _version(
        self, head: PublishedFile, view: LocalView, read: tuple[FileRef, ...]
    ) -> LoadedVersion:
        owned = head.trailer.key_groups if view.is_mixed else None
        num_bytes = sum(ref.size for ref in read)
        return LoadedVersion(head, read, num_bytes, view=view.path, owned=owned)

    def _find_near(
        self, database: LocalDatabase, refs: tuple[FileRef, ...]
    ) -> tuple[VersionRef | None, int]:
        """Find the newest version on a chain that the database holds.

        Files that a rescale took over make other versions, even files of this partition.

        Returns:
            The version, None for the empty state, and the index of the next file of the chain.
        """
        held = set(database.versions)
        for index in range(len(refs) - 1, -1, -1):
            ref = refs[index]
            if ref.is_foreign:
                break
            version = VersionRef(ref.version, ref.checkpoint_id, ref.lineage)
            if ref.kind != "delta":
                if ref.version not in {at.version for at in held}:
                    continue
                version = read_trailer(self._location, ref.path).trailer.version_ref
            if version in held:
                return version, index + 1
        return None, 0

    def _open_files(self, refs: tuple[FileRef, ...]) -> list[tuple[FileRef, SealedFile]]:
        """Fetch and verify files, side by side."""
        with CallPool(PARALLEL_FETCHES, "fetch") as pool:
            opened = pool.map(lambda ref: open_sst(self._location, ref), refs)
            return list(zip(refs, opened, strict=True))

    def _ingest(
        self,
        database: LocalDatabase,
        files: list[tuple[FileRef, SealedFile]],
        target: VersionRef,
        owned: KeyGroupSet,
    ) -> LocalView:
        """Bring the database to a version by the files that lead there, some without an SST."""
        options = self._memory.options(StateStoreOptions())

        def copy(numbered: tuple[int, tuple[FileRef, SealedFile]]) -> LaidOut:
            number, (ref, file) = numbered
            return lay_out(file, ref, owned, f"{database.directory}/.tmp-{number}.sst", options)

        try:
            with CallPool(PARALLEL_FETCHES, "lay-out") as pool:
                copies = list(pool.map(copy, enumerate(files)))
            paths = [copy.path for copy in copies if copy.path is not None]
            is_mixed = any(copy.is_mixed for copy in copies)
            return database.ingest(paths, target, is_mixed=is_mixed)
        except BaseException:
            for left in Path(database.directory).glob(".tmp-*.sst"):
                left.unlink(missing_ok=True)
            raise
