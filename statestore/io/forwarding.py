"""ForwardingFileIO: a storage over another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import builtins
    from collections.abc import Sequence

    from statestore.io.file_io import FileInfo, FileIO


class ForwardingFileIO:
    """A FileIO over another one, which everything goes to; subclasses say what is otherwise.

    Args:
        io: The storage.
    """

    def __init__(self, io: FileIO) -> None:
        self._io = io

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
        """See FileIO."""
        self._io.delete(path)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """See FileIO."""
        self._io.delete_files(directory, names)

    def list(self, directory: str) -> builtins.list[FileInfo]:
        """See FileIO."""
        return self._io.list(directory)

    def make_directory(self, directory: str) -> None:
        """See FileIO."""
        self._io.make_directory(directory)
