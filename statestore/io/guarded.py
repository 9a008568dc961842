"""Guard: storage that asks a caller before it changes a file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from statestore.io.forwarding import ForwardingFileIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from statestore.io.file_io import FileIO


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


class GuardedFileIO(ForwardingFileIO):
    """A FileIO over another one, which asks before every change.

    Args:
        io: The storage.
        ask: Called before a change; a raise prevents it.
    """

    def __init__(self, io: FileIO, ask: Callable[[], None]) -> None:
        super().__init__(io)
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
