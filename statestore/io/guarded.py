"""Guard: storage that asks a caller before it changes a file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterator, Sequence

    from statestore.io.file_io import FileInfo, FileIO


class Guard:
    """The question before each write or delete of a checkpoint's file; none at first."""

    def __init__(self) -> None:
        self._ask: Callable[[], None] | None = None
        self._guarded: dict[int, GuardedFileIO] = {}

    @contextmanager
    def asking(self, ask: Callable[[], None]) -> Iterator[None]:
        """Ask before every change while a block runs; a raise of `ask` prevents the change."""
        self._ask = ask
        try:
            yield
        finally:
            self._ask = None
            self._guarded.clear()

    def over(self, io: FileIO) -> FileIO:
        """Return a storage that asks; the same one for the same storage."""
        if self._ask is None:
            return io
        return self._guarded.setdefault(id(io), GuardedFileIO(io, self._ask))


class GuardedFileIO:
    """A FileIO over another one, which asks before every change.

    Args:
        io: The storage.
        ask: Called before a change; a raise prevents it.
    """

    def __init__(self, io: FileIO, ask: Callable[[], None]) -> None:
        self._io = io
        self._ask = ask

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """Ask; then see FileIO."""
        self._ask()
        return self._io.publish(local_path, path, sync=sync, overwrite=overwrite)

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """Ask; then see FileIO."""
        self._ask()
        self._io.write(path, data, sync=sync, overwrite=overwrite)

    def delete(self, path: str) -> None:
        """Ask; then see FileIO."""
        self._ask()
        self._io.delete(path)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """Ask; then see FileIO."""
        self._ask()
        self._io.delete_files(directory, names)

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

    def list(self, directory: str) -> builtins.list[FileInfo]:
        """See FileIO."""
        return self._io.list(directory)

    def make_directory(self, directory: str) -> None:
        """See FileIO."""
        self._io.make_directory(directory)
