"""Storage that counts its requests, for the engine's status and for tests of exact numbers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statestore.io.file_io import FileInfo, FileIO


class CountingFileIO:
    """FileIO that passes every call on and counts it under read, publish, delete or list."""

    def __init__(self, inner: FileIO, requests: Counter[str]) -> None:
        self._inner = inner
        self._requests = requests

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """See FileIO."""
        self._requests["publish"] += 1
        return self._inner.publish(local_path, path, sync=sync, overwrite=overwrite)

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """See FileIO."""
        self._requests["publish"] += 1
        self._inner.write(path, data, sync=sync, overwrite=overwrite)

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        self._requests["read"] += 1
        return self._inner.read_tail(path, num_bytes)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        self._requests["read"] += 1
        return self._inner.read_range(path, offset, length)

    def fetch(self, path: str) -> str:
        """See FileIO."""
        self._requests["read"] += 1
        return self._inner.fetch(path)

    def delete(self, path: str) -> None:
        """See FileIO."""
        self._requests["delete"] += 1
        self._inner.delete(path)

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO."""
        self._requests["list"] += 1
        return self._inner.list(directory)

    def make_directory(self, directory: str) -> None:
        """See FileIO."""
        self._inner.make_directory(directory)
