"""Storage that fails on purpose, before or after a call took effect."""

from __future__ import annotations

import builtins
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from statestore.core.errors import StateStoreError, StorageError
from statestore.io.file_io import unasked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from statestore.io.file_io import FileInfo, FileIO, TreeFileIO

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """Which call fails.

    Attributes:
        index: Number of the call, from 0, among those that count.
        happens: True when the call takes effect and only its reply is lost.
        calls: Names of the calls that count; empty for all.
        error: What is raised; a StorageError when None.
    """

    index: int
    happens: bool = False
    calls: tuple[str, ...] = ()
    error: Exception | None = None


class FaultFileIO:
    """FileIO that passes calls on, fails the one a fault names, and can hold calls up.

    Attributes:
        inner: The storage that calls are passed on to.
        fault: What fails next; None for nothing.
        trace: Every call since the last `arm`, as "name file".
        gate: Calls of `held_calls` wait while it is cleared.
    """

    def __init__(self, inner: TreeFileIO) -> None:
        self.inner = inner
        self._num_calls = 0
        self.fault: Fault | None = None
        self.trace: list[str] = []
        self.held_calls: tuple[str, ...] = ()
        self.gate = threading.Event()
        self.gate.set()
        self.num_held = 0

    def arm(self, fault: Fault | None) -> None:
        """Set what fails and start counting from 0."""
        self.fault, self._num_calls, self.trace = fault, 0, []

    @property
    def has_failed(self) -> bool:
        """Whether the armed fault was reached."""
        return self.fault is not None and self._num_calls > self.fault.index

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """See FileIO."""
        return self._run(
            "publish",
            path,
            lambda: self.inner.publish(local_path, path, sync=sync, overwrite=overwrite),
        )

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """See FileIO."""
        self._run(
            "write", path, lambda: self.inner.write(path, data, sync=sync, overwrite=overwrite)
        )

    def sync(self, path: str) -> None:
        """See FileIO."""
        self._run("sync", path, lambda: self.inner.sync(path))

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        return self._run("read_tail", path, lambda: self.inner.read_tail(path, num_bytes))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        return self._run("read_range", path, lambda: self.inner.read_range(path, offset, length))

    def fetch(self, path: str) -> str:
        """See FileIO."""
        return self._run("fetch", path, lambda: self.inner.fetch(path))

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:
        """See FileIO."""
        return self._run("fetch_slices", path, lambda: self.inner.fetch_slices(path, size, slices))

    def delete(self, path: str) -> None:
        """See FileIO."""
        self._run("delete", path, lambda: self.inner.delete(path))

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """See FileIO; each file is a call `delete`, so that a fault leaves some of them."""
        for name in names:
            self._run("delete", name, partial(self.inner.delete_files, directory, [name]))

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO."""
        return self._run("list", directory, lambda: self.inner.list(directory))

    def make_directory(self, directory: str) -> None:
        """See FileIO."""
        self._run("make_directory", directory, lambda: self.inner.make_directory(directory))

    def list_tree(self, directory: str) -> builtins.list[FileInfo]:
        """See TreeFileIO."""
        return self._run("list_tree", directory, lambda: self.inner.list_tree(directory))

    def list_directories(self, directory: str) -> builtins.list[str]:
        """See TreeFileIO."""
        return self._run(
            "list_directories", directory, lambda: self.inner.list_directories(directory)
        )

    def delete_tree(self, directory: str, ask: Callable[[], None] = unasked) -> None:
        """See TreeFileIO."""
        self._run("delete_tree", directory, lambda: self.inner.delete_tree(directory, ask))

    def shares(self, other: FileIO, path: str, new_path: str) -> bool:
        """See TreeFileIO."""
        return self.inner.shares(self.inner if other is self else other, path, new_path)

    def link(self, path: str, new_path: str, *, sync: bool) -> None:
        """See TreeFileIO."""
        self._run("link", new_path, lambda: self.inner.link(path, new_path, sync=sync))

    def _run(self, call: str, path: str, action: Callable[[], T]) -> T:
        name = path.rsplit("/", 1)[-1]
        if any(held in f"{call} {name}" for held in self.held_calls):
            self.num_held += 1
            self.gate.wait()
        self.trace.append(f"{call} {name}")
        fault = self.fault
        if fault is None or (fault.calls and call not in fault.calls):
            return action()
        number, self._num_calls = self._num_calls, self._num_calls + 1
        if number != fault.index:
            return action()
        if fault.happens:
            with suppress(StateStoreError):
                action()
        raise fault.error or StorageError(
            "injected fault",
            call=call,
            file=path,
            happened=fault.happens,
            to_fix="nothing; a test asked for it",
        )
