"""The versions of one store in the driver's memory.

The files of the filesystem backend, on storage that ends with the driver. Two things differ: a
missing version may be lost, and a state has a limit. The store's directory in the checkpoint, its
home, holds only a marker: by it no provider takes the store for a new one, and Spark's state reader
finds the state partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from statestore.backends.filesystem.versions import FilesystemVersions
from statestore.checkpoint.layout import HEAP_MARKER, parse_state_file_name
from statestore.checkpoint.load import check_settings
from statestore.checkpoint.placement import mark_home
from statestore.checkpoint.trailers import other_provider_error, read_trailer
from statestore.core.errors import NotFoundError, StorageError
from statestore.core.providers import PROVIDERS
from statestore.io.checkpoint_memory import TO_FIX_LOSS

if TYPE_CHECKING:
    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.load import ChangeFile, LoadedVersion
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.core.clock import Clock
    from statestore.core.liveness import Turn
    from statestore.core.options import StateStoreOptions

BACKEND = "heap"


def lost_with_driver(
    error_class: type[NotFoundError] | type[StorageError], home: StoreLocation, version: int
) -> NotFoundError | StorageError:
    """Return the error for a version that this memory never had.

    Args:
        error_class: Class of the error.
        home: The store in the checkpoint directory.
        version: The version.
    """
    return error_class(
        "the memory of this application's driver does not hold the state: the heap backend's "
        "checkpoints were lost with the driver, or with the process beside it",
        kind="driver-lost",
        store=str(home.store),
        checkpoint=home.root,
        version=version,
        to_fix=TO_FIX_LOSS,
    )


class HeapVersions(FilesystemVersions):
    """FilesystemVersions whose storage is the driver's memory.

    Args:
        location: The store in the driver's memory.
        home: The store in the checkpoint directory.
        clock: Source of time.
    """

    def __init__(self, location: StoreLocation, home: StoreLocation, clock: Clock) -> None:
        super().__init__(location, clock, BACKEND)
        self._home = home

    def load(
        self,
        version: int,
        checkpoint_id: str | None,
        num_partitions: int | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None = None,
    ) -> LoadedVersion:
        """See VersionsBase.

        Raises:
            NotFoundError: Also when the driver that held the state is gone (kind driver-lost).
        """
        with self._loss_named(version):
            return super().load(version, checkpoint_id, num_partitions, options, from_snapshot)

    def read(
        self,
        version: int,
        checkpoint_id: str | None,
        options: StateStoreOptions,
        from_snapshot: tuple[int, str | None] | None,
        turn: Turn,
    ) -> LoadedVersion:
        """See VersionsBase; raises as `load` when the state is lost."""
        with self._loss_named(version):
            return super().read(version, checkpoint_id, options, from_snapshot, turn)

    def changes(
        self, start_version: int, end_version: int, checkpoint_id: str | None, directory: str
    ) -> tuple[PublishedFile, list[ChangeFile]]:
        """See VersionsBase; raises as `load` when the state is lost."""
        with self._loss_named(end_version):
            return super().changes(start_version, end_version, checkpoint_id, directory)

    def head(self, version: int, checkpoint_id: str | None) -> PublishedFile:
        """See VersionsBase; raises as `load` when the state is lost."""
        with self._loss_named(version):
            return super().head(version, checkpoint_id)

    def commit(
        self, new: NewVersion, local_path: str, arrow_length: int, options: StateStoreOptions
    ) -> PublishedFile:
        """See VersionsBase; durable until the driver ends.

        Raises:
            StorageError: Also when the state is larger than allowed (kind state-too-large), or
                the driver that held the version before is gone (kind driver-lost).
        """
        if new.state_bytes > options.heap_max_state_bytes:
            raise StorageError(
                "the state of a store is larger than the heap backend may keep",
                kind="state-too-large",
                store=str(self.location.store),
                version=new.version,
                state_bytes=new.state_bytes,
                max_state_bytes=options.heap_max_state_bytes,
                to_fix="raise spark.sql.streaming.stateStore.heap.maxStateBytes, with memory for "
                "it on the driver's machine; or, in the driver's program, make a new checkpoint: "
                'Checkpoint(CHECKPOINT, spark=spark).restore(NEW, backend="filesystem"), or with '
                "a larger num_partitions",
            )
        if new.parent is None:
            mark_home(self.location, self._home, BACKEND)
        try:
            return super().commit(new, local_path, arrow_length, options)
        except StorageError as error:
            if error.kind == "directory-gone" and new.parent is not None:
                raise lost_with_driver(StorageError, self._home, new.parent.version) from error
            raise

    @contextmanager
    def _loss_named(self, version: int) -> Iterator[None]:
        try:
            yield
        except NotFoundError as error:
            self._check_provider()
            if error.kind == "version-not-found" and self._is_lost(version):
                raise lost_with_driver(NotFoundError, self._home, version) from error
            raise

    def _is_lost(self, version: int) -> bool:
        """Return whether a version was never in this memory, rather than expired from it."""
        files = self.location.io.list(self.location.directory)
        parsed = ((parse_state_file_name(info.name), info.name) for info in files)
        deltas = [(name.version, text) for name, text in parsed if name and name.kind == "delta"]
        oldest, file_name = min(deltas, default=(0, ""))
        if not deltas or oldest <= version:
            return not deltas
        # The oldest version is a full state exactly where this memory began after a loss.
        trailer = read_trailer(self.location, file_name).trailer
        return trailer.parent is None and not trailer.files

    def _check_provider(self) -> None:
        """Check that home, in the checkpoint directory, holds no files of others.

        Raises:
            IncompatibleError: It holds some of another provider (kind other-provider) or backend
                (kind backend-changed).
        """
        names = [info.name for info in self._home.io.list(self._home.directory)]
        others = [name for name in names if name != HEAP_MARKER]
        refusal = other_provider_error(self._home, others, expected=PROVIDERS["heap"])
        if refusal is not None:
            raise refusal
        for name in others:
            if parse_state_file_name(name) is not None:
                trailer = read_trailer(self._home, name).trailer
                check_settings(trailer, backend=BACKEND, num_partitions=None, max_parallelism=0)
