"""Requests to storage, counted by kind: for metrics, and for tests of exact numbers."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from statestore.io.forwarding import ForwardingFileIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from statestore.io.file_io import FileInfo, FileIO

KINDS = ("put", "get", "head", "list", "delete")


class RequestCounts:
    """Requests by kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def add(self, kind: str) -> None:
        """Count one request, of a kind of KINDS."""
        with self._lock:
            self._total[kind] += 1

    def total(self) -> dict[str, int]:
        """Return all requests so far, every kind named."""
        with self._lock:
            return {kind: self._total[kind] for kind in KINDS}

    def take(self) -> dict[str, int]:
        """Return the requests since the last `take`, every kind named."""
        with self._lock:
            new = {kind: self._total[kind] - self._taken[kind] for kind in KINDS}
            self._taken = Counter(self._total)
        return new


_of_this_call: ContextVar[tuple[RequestCounts, ...]] = ContextVar("statestore_requests", default=())


def count_request(kind: str) -> None:
    """Count a request for the running call, for storages that count their own.

    A thread that works for a call must run in a copy of its context.
    """
    for counts in _of_this_call.get():
        counts.add(kind)


class CountingFileIO(ForwardingFileIO):
    """FileIO that counts what each call asks of the storage behind it, but syncs and directories.

    Two of the same storage are equal, whatever they counted.

    Args:
        inner: The storage.
        counts: Counts the requests made through this object.
        total: Counts them as well.
        is_counted_inside: Whether the storage calls `count_request` itself, since one of its calls
            may be several requests; else a call counts as one.
        write_gate: Entered around each call that changes a file; it may refuse by raising.
    """

    def __init__(
        self,
        inner: FileIO,
        counts: RequestCounts,
        total: RequestCounts,
        *,
        is_counted_inside: bool,
        write_gate: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(inner)
        self._write_gate = write_gate
        self._is_counted_inside = is_counted_inside
        self.counts = counts
        self._counts = (counts, total)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountingFileIO) and self._io == other._io

    def __hash__(self) -> int:
        return hash(self._io)

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """See FileIO."""
        with self._write_gate(), self._counted("put"):
            return self._io.publish(local_path, path, sync=sync, overwrite=overwrite)

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """See FileIO."""
        with self._write_gate(), self._counted("put"):
            self._io.write(path, data, sync=sync, overwrite=overwrite)

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        with self._counted("get"):
            return self._io.read_tail(path, num_bytes)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        with self._counted("get"):
            return self._io.read_range(path, offset, length)

    def fetch(self, path: str) -> str:
        """See FileIO."""
        with self._counted("get"):
            return self._io.fetch(path)

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:
        """See FileIO."""
        with self._counted("get"):
            return self._io.fetch_slices(path, size, slices)

    def delete(self, path: str) -> None:
        """See FileIO."""
        with self._write_gate(), self._counted("delete"):
            self._io.delete(path)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """See FileIO."""
        with self._write_gate(), self._counted("delete"):
            self._io.delete_files(directory, names)

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO."""
        with self._counted("list"):
            return self._io.list(directory)

    @contextmanager
    def _counted(self, kind: str) -> Iterator[None]:
        token = _of_this_call.set(self._counts)
        try:
            if not self._is_counted_inside:
                count_request(kind)
            yield
        finally:
            _of_this_call.reset(token)
