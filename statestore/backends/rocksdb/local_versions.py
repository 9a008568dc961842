"""The versions of one store in its local database, brought there from durable files.

The database takes in what it does not hold yet, and is built anew when it cannot be brought to a
version.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import LocalDatabase, local_errors
from statestore.backends.rocksdb.merging import LaidOut, lay_out, open_sst
from statestore.backends.rocksdb.view import View
from statestore.checkpoint.restore import PARALLEL_FETCHES
from statestore.checkpoint.trailers import PublishedFile, read_trailer
from statestore.codec.state_file import StateFile
from statestore.codec.trailer import VersionRef
from statestore.core.errors import StorageError
from statestore.core.key_groups import KeyGroupSet
from statestore.core.options import StateStoreOptions

if TYPE_CHECKING:
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.trailer import FileRef

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalVersion:
    """A version in the local database.

    Attributes:
        head: The delta of the version.
        view: Directory of its view, None for a store that never had rows.
        refs: The files that make it.
        files_read, bytes_read: What had to be fetched.
        has_foreign_rows: Whether the view has rows of other state partitions, to be passed over.
        num_keys, num_internal_keys: Rows of the version, None where they are not counted yet.
    """

    head: PublishedFile
    view: str | None
    refs: tuple[FileRef, ...]
    files_read: int
    bytes_read: int
    has_foreign_rows: bool
    num_keys: int | None
    num_internal_keys: int | None
    files: tuple[StateFile, ...] = ()

    @property
    def snapshot_version(self) -> int:
        """Version of the newest merged file or snapshot among the files, -1 without one."""
        return max((ref.version for ref in self.refs if ref.kind != "delta"), default=-1)


class LocalVersions:
    """The local database of one store, and the way to any version. Not thread-safe.

    Args:
        location: The store.
        directory: For the database; owned by this object.
        memory: Shared by all databases of the engine.
    """

    def __init__(self, location: StoreLocation, directory: str, memory: sst.Memory) -> None:
        self._location = location
        self._directory = directory
        self._memory = memory
        self._database: LocalDatabase | None = None

    def stand_at(self, parent: PublishedFile | None, options: StateStoreOptions) -> LocalDatabase:
        """Return the local database at the version that a commit is built on."""
        database = self._open(options)
        if parent is None:
            database.begin_empty()
        elif database.at != parent.trailer.version_ref:
            self._advance(database, parent)
        return database

    def bring_to(self, head: PublishedFile, options: StateStoreOptions) -> LocalVersion:
        """Make a view of a version, from the nearest state that is there."""
        database = self._open(options)
        view = database.view(head.trailer.version_ref)
        if view is not None:
            return self._version(database, head, view, ())
        return self._advance(database, head)

    def counted(self, local: LocalVersion) -> LocalVersion:
        """Return a version with its rows counted, which after a rescale only reading them does."""
        if local.num_keys is not None and local.num_internal_keys is not None:
            return local
        with local_errors("read the local database", str(local.view)):
            view = View.of(local)
            try:
                num_keys, num_internal_keys = view.count(local.head.trailer.column_families)
            finally:
                view.close()
        return replace(local, num_keys=num_keys, num_internal_keys=num_internal_keys)

    def shrink(self) -> None:
        """Let go of memory; the newest view stays on disk for a later load."""
        if self._database is not None:
            self._database.shrink()

    def _open(self, options: StateStoreOptions) -> LocalDatabase:
        if self._database is None:
            self._database = LocalDatabase(self._directory, self._memory.options(options))
        return self._database

    def _advance(self, database: LocalDatabase, head: PublishedFile) -> LocalVersion:
        """Bring the database itself to a version, from the nearest state that is there."""
        target = head.trailer.version_ref
        refs = (*head.trailer.files, head.ref)
        try:
            start = self._go_near(database, refs)
        except StorageError as error:
            start = self._begin_anew(database, error)
        owned = head.trailer.key_groups
        try:
            view = self._ingest(database, refs[start:], target, owned)
        except StorageError as error:
            if start == 0:
                raise
            start = self._begin_anew(database, error)
            view = self._ingest(database, refs, target, owned)
        return self._version(database, head, view, refs[start:])

    def _version(
        self, database: LocalDatabase, head: PublishedFile, view: str, read: tuple[FileRef, ...]
    ) -> LocalVersion:
        trailer = head.trailer
        return LocalVersion(
            head,
            view,
            (*trailer.files, head.ref),
            files_read=len(read),
            bytes_read=sum(ref.size for ref in read),
            has_foreign_rows=database.is_mixed(trailer.version_ref),
            num_keys=trailer.num_keys,
            num_internal_keys=trailer.num_internal_keys,
        )

    def _ingest(
        self,
        database: LocalDatabase,
        refs: tuple[FileRef, ...],
        target: VersionRef,
        owned: KeyGroupSet,
    ) -> str:
        copies = self._fetch_all(database, refs, owned)
        paths = [copy.path for copy in copies if copy.path is not None]
        return database.ingest(paths, target, is_mixed=any(copy.is_mixed for copy in copies))

    def _begin_anew(self, database: LocalDatabase, error: StorageError) -> int:
        logger.warning(
            "local database is built anew: store=%s, error=%s", self._location.store, error
        )
        database.forget()
        database.begin_empty()
        return 0

    def _go_near(self, database: LocalDatabase, refs: tuple[FileRef, ...]) -> int:
        """Bring the database to the newest version on a chain that it holds.

        What a rescale took over are other versions, be it of this very partition.

        Returns:
            Which file of the chain is to be applied first.
        """
        held = {*database.versions, database.at}
        for index in range(len(refs) - 1, -1, -1):
            ref = refs[index]
            if ref.is_foreign:
                break
            version = VersionRef(ref.version, ref.checkpoint_id, ref.lineage)
            if ref.kind != "delta":
                if not any(at is not None and at.version == ref.version for at in held):
                    continue
                version = read_trailer(self._location, ref.path).trailer.version_ref
            if version == database.at:
                return index + 1
            if version in held:
                database.rewind(version)
                return index + 1
        database.begin_empty()
        return 0

    def _fetch_all(
        self, database: LocalDatabase, refs: tuple[FileRef, ...], owned: KeyGroupSet
    ) -> list[LaidOut]:
        """Fetch, verify and lay out the SSTs of files, side by side; a file may have none."""
        directory = database.directory
        with ThreadPoolExecutor(PARALLEL_FETCHES, "fetch") as pool:
            return list(
                pool.map(
                    lambda numbered: self._fetch(
                        numbered[1], owned, f"{directory}/.tmp-{numbered[0]}.sst"
                    ),
                    enumerate(refs),
                )
            )

    def _fetch(self, ref: FileRef, owned: KeyGroupSet, path: str) -> LaidOut:
        file = open_sst(self._location, ref)
        return lay_out(file, ref, owned, path, self._memory.options(StateStoreOptions()))
