"""DeferredDeletes: a storage that notes deletes, and need not do them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore.io.file_io import FileInfo, FileIO


class DeferredDeletes:
    """A FileIO over another one; everything but deletes goes through.

    Args:
        io: The storage.
        is_deferred: Whether deletes are only noted.

    Attributes:
        deleted: Paths deleted, or to be deleted.
    """

    def __init__(self, io: FileIO, *, is_deferred: bool) -> None:
        self._io = io
        self._is_deferred = is_deferred
        self.deleted: set[str] = set()

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """See FileIO."""
        return self._io.publish(local_path, path, sync=sync, overwrite=overwrite)

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """See FileIO."""
        self._io.write(path, data, sync=sync, overwrite=overwrite)

    def sync(self, path: str) -> None:
        """See FileIO."""
        self._io.sync(path)

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        return self._io.read_tail(path, num_bytes)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        return self._io.read_range(path, offset, length)

    def fetch(self, path: str) -> str:
        """See FileIO."""
        return self._io.fetch(path)

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:
        """See FileIO."""
        return self._io.fetch_slices(path, size, slices)

    def delete(self, path: str) -> None:
        """Note a path, and delete the file unless deletes are deferred."""
        self.deleted.add(path)
        if not self._is_deferred:
            self._io.delete(path)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """Note their paths, and delete the files unless deletes are deferred."""
        self.deleted.update(f"{directory}/{name}" for name in names)
        if not self._is_deferred:
            self._io.delete_files(directory, names)

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO; without what was deleted."""
        found = self._io.list(directory)
        return [info for info in found if f"{directory}/{info.name}" not in self.deleted]

    def make_directory(self, directory: str) -> None:
        """See FileIO."""
        self._io.make_directory(directory)
