"""Storage in memory that behaves like an object store: for checkpoint memory, and tests."""

from __future__ import annotations

import builtins
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.core.clock import Clock, SystemClock
from statestore.io.file_io import (
    FileInfo,
    FileIO,
    delete_batches,
    existing_file,
    missing_file,
    unasked,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class _File:
    data: bytes
    modified_ms: int
    number: int


class MemoryFileIO:
    """FileIO whose files are bytes in a dict for each directory.

    Args:
        cache_directory: Local directory into which `fetch` writes; owned by the caller.
        clock: Source of modification times.
    """

    def __init__(self, cache_directory: str, clock: Clock | None = None) -> None:
        self._cache_directory = cache_directory
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._directories: dict[str, dict[str, _File]] = {}
        self._num_writes = 0

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """See FileIO."""
        self.write(path, Path(local_path).read_bytes(), sync=sync, overwrite=overwrite)
        os.unlink(local_path)
        return 0.0

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:  # noqa: ARG002
        """See FileIO; memory has no disk to wait for."""
        directory, name = os.path.split(path)
        with self._lock:
            files = self._directories.setdefault(directory, {})
            if not overwrite and name in files:
                raise existing_file(path)
            self._num_writes += 1
            files[name] = _File(bytes(data), self._clock.now_ms(), self._num_writes)

    def sync(self, path: str) -> None:
        """See FileIO; nothing to wait for."""

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        data = self._get(path).data
        return data[max(len(data) - num_bytes, 0) :], len(data)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        return self._get(path).data[offset : offset + length]

    def identify(self, path: str) -> tuple[int, int]:
        """Return the size of a file and a number of this content alone; errors as `read_tail`."""
        file = self._get(path)
        return len(file.data), file.number

    def read(self, path: str) -> bytes:
        """Return the whole file, without a copy; errors as `read_tail`."""
        return self._get(path).data

    def fetch(self, path: str) -> str:
        """See FileIO; one local file for each time the path was written."""
        file = self._get(path)
        local_path = f"{self._cache_directory}/{file.number}-{os.path.basename(path)}"
        if not os.path.exists(local_path):
            Path(local_path).write_bytes(file.data)
        return local_path

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:  # noqa: ARG002
        """See FileIO; the whole file."""
        return self.fetch(path)

    def delete(self, path: str) -> None:
        """See FileIO."""
        directory, name = os.path.split(path)
        with self._lock:
            files = self._directories.get(directory, {})
            files.pop(name, None)
            if not files:
                self._directories.pop(directory, None)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """See FileIO."""
        for name in names:
            self.delete(f"{directory}/{name}")

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO."""
        with self._lock:
            return [
                FileInfo(name, len(file.data), file.modified_ms)
                for name, file in self._directories.get(directory, {}).items()
            ]

    def make_directory(self, directory: str) -> None:
        """See FileIO; directories exist by being named."""

    def list_tree(self, directory: str) -> builtins.list[FileInfo]:
        """See TreeFileIO."""
        inside = f"{directory}/"
        with self._lock:
            return [
                FileInfo(path.removeprefix(inside), len(file.data), file.modified_ms)
                for parent, files in self._directories.items()
                for name, file in files.items()
                if (path := f"{parent}/{name}").startswith(inside)
            ]

    def list_directories(self, directory: str) -> builtins.list[str]:
        """See TreeFileIO."""
        paths = (info.name.partition("/") for info in self.list_tree(directory))
        return list({name for name, is_below, _ in paths if is_below})

    def delete_tree(self, directory: str, ask: Callable[[], None] = unasked) -> None:
        """See TreeFileIO."""
        for batch in delete_batches([info.name for info in self.list_tree(directory)]):
            ask()
            self.delete_files(directory, batch)

    def shares(self, other: FileIO, path: str, new_path: str) -> bool:  # noqa: ARG002
        """See TreeFileIO."""
        return other is self

    def link(self, path: str, new_path: str, *, sync: bool) -> None:
        """See TreeFileIO."""
        self.write(new_path, self._get(path).data, sync=sync, overwrite=False)

    def paths(self) -> tuple[str, ...]:
        """Return the path of every file."""
        with self._lock:
            return tuple(
                f"{directory}/{name}"
                for directory, files in self._directories.items()
                for name in files
            )

    def _get(self, path: str) -> _File:
        directory, name = os.path.split(path)
        with self._lock:
            file = self._directories.get(directory, {}).get(name)
        if file is None:
            raise missing_file(path)
        return file
