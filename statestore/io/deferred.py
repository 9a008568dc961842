"""DeferredDeletes: a storage that notes deletes, and need not do them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.io.forwarding import ForwardingFileIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore.io.file_io import FileInfo, FileIO


class DeferredDeletes(ForwardingFileIO):
    """A FileIO over another one; everything but deletes goes through, and one listing.

    Args:
        io: The storage.
        directory: Listed once: later listings of it are the first without what was deleted.
        gone: Paths deleted, or to be deleted, by all objects that share it; no listing has them.
        is_deferred: Whether deletes are only noted.

    Attributes:
        deleted: Paths that this object added to those.
    """

    def __init__(self, io: FileIO, directory: str, gone: set[str], *, is_deferred: bool) -> None:
        super().__init__(io)
        self._directory = directory
        self._listed: list[FileInfo] | None = None
        self._gone = gone
        self._is_deferred = is_deferred
        self.deleted: set[str] = set()

    def delete(self, path: str) -> None:
        """Note a path, and delete the file unless deletes are deferred."""
        self._note({path})
        if not self._is_deferred:
            self._io.delete(path)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """Note their paths, and delete the files unless deletes are deferred."""
        self._note({f"{directory}/{name}" for name in names})
        if not self._is_deferred:
            self._io.delete_files(directory, names)

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO; without what was deleted."""
        found = self._listed if directory == self._directory else self._io.list(directory)
        if found is None:
            found = self._listed = self._io.list(directory)
        return [info for info in found if f"{directory}/{info.name}" not in self._gone]

    def _note(self, paths: set[str]) -> None:
        self.deleted |= paths - self._gone
        self._gone |= paths
