"""Local copies of files of a remote storage: the least recently used ones go, never one in use."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from statestore.core.digest import digest_of
from statestore.core.errors import CorruptionError
from statestore.io.local import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


Opened = TypeVar("Opened")


class FetchedPath(str):
    """Path of a local copy, which stays for as long as this object is held."""


def open_fetched(fetch: Callable[[], str], verified: Callable[[str], Opened]) -> Opened:
    """Return a fetched file, opened and verified.

    Where it is damaged it is fetched once more: the copy may have been damaged on the local disk.

    Args:
        fetch: Fetches it.
        verified: Opens its local path.

    Raises:
        CorruptionError: The file itself is damaged.
        Whatever else the two raise.
    """
    local_path = fetch()
    if not isinstance(local_path, FetchedPath):
        return verified(local_path)
    copy = _inode(local_path)
    try:
        return verified(local_path)
    except CorruptionError:
        # Another thread may have fetched it anew already, for a caller that reads it now.
        if copy == _inode(local_path):
            Path(local_path).unlink(missing_ok=True)
        return verified(fetch())


def _inode(path: str) -> int | None:
    with suppress(FileNotFoundError):
        return os.stat(path).st_ino
    return None


class FetchCache:
    """Local copies in one directory, of files of one storage or of several. Thread-safe.

    Copies beyond max_bytes that are not held are deleted, so the directory may be larger while they
    are held, and during `keep`.

    Args:
        directory: Local directory, owned by the caller; all its files are this object's, also
            copies that another object left there.
        max_bytes: Bytes that copies may take before the least recently used go.

    Attributes:
        directory: The directory, in which files may be made whose names begin with
            TEMPORARY_PREFIX.
    """

    def __init__(self, directory: str, max_bytes: int) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._num_keeping = 0
        self._sizes = _copies_in(directory)  # the least recently used first
        self._num_bytes = sum(self._sizes.values())
        self._held: weakref.WeakValueDictionary[str, FetchedPath] = weakref.WeakValueDictionary()

    def allow(self, max_bytes: int) -> None:
        """Raise the limit to so many bytes, if it is lower."""
        with self._lock:
            self._max_bytes = max(self._max_bytes, max_bytes)

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Delete no copy meanwhile, not even one that an earlier engine fetched for the load."""
        with self._lock:
            self._num_keeping += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_keeping -= 1
                self._delete_excess()

    def get(self, name: str, size: int, write: Callable[[str], None]) -> str:
        """Return the local copy of a file, made when there is none.

        Args:
            name: File name that no other content ever has.
            size: Bytes of the file.
            write: Writes its bytes to a local path; called without a lock, by two threads at worst.

        Returns:
            A FetchedPath: hold it until the file is open.

        Raises:
            OSError: The local disk failed; whatever `write` raises.
        """
        known = self.find(name)
        if known is not None:
            return known
        # Something else may clean up there, and take the directory as well.
        os.makedirs(self.directory, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=self.directory)
        try:
            os.close(descriptor)
            write(temporary)
            return self._add(name, size, temporary)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def find(self, name: str) -> str | None:
        """Return the local copy of a file as `get` does, None when there is none."""
        with self._lock:
            if name not in self._sizes:
                return None
            if not os.path.exists(f"{self.directory}/{name}"):  # something else cleans up there
                self._num_bytes -= self._sizes.pop(name)
                return None
            self._sizes.move_to_end(name)
            return self._hold(name)

    def _add(self, name: str, size: int, temporary: str) -> str:
        with self._lock:
            os.rename(temporary, f"{self.directory}/{name}")
            self._num_bytes += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
            held = self._hold(name)
            self._delete_excess()
            return held

    def _delete_excess(self) -> None:
        excess = self._num_bytes - self._max_bytes
        if self._num_keeping or excess <= 0:
            return
        gone: list[str] = []
        for name, size in self._sizes.items():
            if excess <= 0:
                break
            if name not in self._held:
                gone.append(name)
                excess -= size
        for name in gone:
            Path(f"{self.directory}/{name}").unlink(missing_ok=True)
            self._num_bytes -= self._sizes.pop(name)

    def _hold(self, name: str) -> FetchedPath:
        held = self._held.get(name)
        if held is None:
            held = self._held[name] = FetchedPath(f"{self.directory}/{name}")
        return held


def _copies_in(directory: str) -> OrderedDict[str, int]:
    """Return the copies in a directory and the bytes of disk that each takes, the oldest first."""
    if not os.path.isdir(directory):
        return OrderedDict()
    with os.scandir(directory) as entries:
        found = [
            (entry.stat(), entry.name)
            for entry in entries
            if entry.is_file() and not entry.name.startswith(TEMPORARY_PREFIX)
        ]
    found.sort(key=lambda copy: copy[0].st_mtime_ns)
    return OrderedDict((name, status.st_blocks * 512) for status, name in found)


def sliced_name(name: str, slices: Sequence[tuple[int, int]]) -> str:
    """Return the name of a copy with only slices of a file, by the name of a whole one."""
    return f"{digest_of(str(list(slices)).encode(), 8)}-{name}"


def slices_size(slices: Sequence[tuple[int, int]]) -> int:
    """Return the sum of the slices' bytes."""
    return sum(length for _, length in slices)
