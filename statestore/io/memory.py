"""Storage in memory: behaves like an object store, for tests and trials."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from statestore.core.clock import Clock, SystemClock
from statestore.core.errors import FencedError, NotFoundError
from statestore.io.file_io import FileInfo


class MemoryFileIO:
    """FileIO whose files are bytes in a dict.

    Args:
        cache_directory: Local directory into which `fetch` writes; owned by the caller.
        clock: Source of modification times.
    """

    def __init__(self, cache_directory: str, clock: Clock | None = None) -> None:
        self._cache_directory = cache_directory
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._files: dict[str, tuple[bytes, int, int]] = {}
        self._num_writes = 0

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """See FileIO."""
        self.write(path, Path(local_path).read_bytes(), sync=sync, overwrite=overwrite)
        os.unlink(local_path)
        return 0.0

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:  # noqa: ARG002
        """See FileIO; memory has no disk to wait for."""
        with self._lock:
            if not overwrite and path in self._files:
                raise FencedError(
                    "a file that must not be replaced exists",
                    kind="file-exists",
                    file=path,
                    to_fix="read the file that is there",
                )
            self._num_writes += 1
            self._files[path] = (bytes(data), self._clock.now_ms(), self._num_writes)

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        data, _, _ = self._get(path)
        return data[max(len(data) - num_bytes, 0) :], len(data)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        return self._get(path)[0][offset : offset + length]

    def fetch(self, path: str) -> str:
        """See FileIO; one local file for each time the path was written."""
        data, _, number = self._get(path)
        local_path = f"{self._cache_directory}/{number}-{os.path.basename(path)}"
        if not os.path.exists(local_path):
            Path(local_path).write_bytes(data)
        return local_path

    def delete(self, path: str) -> None:
        """See FileIO."""
        with self._lock:
            self._files.pop(path, None)

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO."""
        with self._lock:
            return [
                FileInfo(os.path.basename(path), len(data), modified_ms)
                for path, (data, modified_ms, _) in self._files.items()
                if os.path.dirname(path) == directory
            ]

    def make_directory(self, directory: str) -> None:
        """See FileIO; directories exist by being named."""

    def paths(self) -> tuple[str, ...]:
        """Return the path of every file."""
        with self._lock:
            return tuple(self._files)

    def _get(self, path: str) -> tuple[bytes, int, int]:
        with self._lock:
            if path not in self._files:
                raise NotFoundError(
                    "cannot read a file: it is not there",
                    kind="file-not-found",
                    file=path,
                    to_fix="check that nothing but statestore deletes files of the checkpoint",
                )
            return self._files[path]
