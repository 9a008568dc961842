"""Tries on a storage what an engine asks of it, in a directory of its own that it removes."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.core.errors import (
    CorruptionError,
    FencedError,
    IncompatibleError,
    StateStoreError,
    StorageError,
)
from statestore.core.ids import RandomIds
from statestore.io.local import named_errors
from statestore.io.s3_settings import S3Settings
from statestore.io.storage import is_hadoop, open_storage, scheme_of

if TYPE_CHECKING:
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions
    from statestore.io.file_io import TreeFileIO

_NAME = "probe"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to try.

    Attributes:
        name: What is tried.
        run: Tries it and returns what was found; raises StateStoreError where it fails.
        needs: Checks that must have succeeded.
    """

    name: str
    run: Callable[[], str]
    needs: tuple[str, ...]


class StorageProbe:
    """Writes one small file and does with it what an engine would. Use as a context manager.

    Args:
        uri: Directory on the storage; made, and removed again, where it does not exist.
        options: How the storage is reached.
        clock: Source of time.
        cache_directory: Local directory for what is read from the storage; owned by the caller.

    Guarantee: at the end of the context nothing of it is left on the storage, unless that refuses
    to delete.
    """

    def __init__(
        self, uri: str, options: StateStoreOptions, clock: Clock, cache_directory: str
    ) -> None:
        self._uri = uri
        self._options = options
        self._clock = clock
        self._cache_directory = cache_directory
        self._io: TreeFileIO | None = None
        self._directory = ""
        self._existing = ""
        self._data = RandomIds().new_id().encode()

    def __enter__(self) -> StorageProbe:
        return self

    def __exit__(self, *_: object) -> None:
        if self._io is not None:
            with suppress(StateStoreError):
                self._io.delete_tree(self._directory)
            self._remove_directories(self._io)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Everything to try, in order."""
        written = ("storage write",)
        # On S3 the last request of several has the condition: some servers know it of one alone.
        in_parts = Step("conditional write in parts", self._timed(self._publish_again), written)
        return (
            Step("write", self._timed(self._write), ()),
            Step("read", self._timed(self._read), written),
            Step("conditional write", self._timed(self._write_again), written),
            *([in_parts] if scheme_of(self._uri) == "s3" else []),
            Step("list", self._timed(self._list), written),
            Step("delete", self._timed(self._delete), written),
        )

    @property
    def _path(self) -> str:
        return f"{self._directory}/{_NAME}"

    @property
    def _opened(self) -> TreeFileIO:
        if self._io is None:
            settings = S3Settings.from_options(self._options)
            self._io, root = open_storage(self._uri, self._cache_directory, settings, self._clock)
            self._directory = f"{root.rstrip('/')}/statestore-doctor-{RandomIds().new_id()}"
            self._existing = root.rstrip("/")
            while not self._exists(self._io, self._existing):
                self._existing = posixpath.dirname(self._existing).rstrip("/")
        return self._io

    def _exists(self, io: TreeFileIO, directory: str) -> bool:
        """Return whether a directory is there; one of an object store need not be made."""
        if is_hadoop(self._uri) and directory:
            parent, name = posixpath.split(directory)
            return name in io.list_directories(parent)
        if scheme_of(self._uri) != "file":
            return True
        with named_errors("look for a directory", directory):
            return Path(directory or "/").exists()

    def _timed(self, step: Callable[[], str]) -> Callable[[], str]:
        def run() -> str:
            started = self._clock.elapsed_ms()
            found = step()
            return f"{found}, {self._clock.elapsed_ms() - started:.0f} ms"

        return run

    def _write(self) -> str:
        io = self._opened
        io.make_directory(self._directory)
        io.write(self._path, self._data, sync=True, overwrite=False)
        return f"{len(self._data)} bytes below {self._uri}"

    def _read(self) -> str:
        data, size = self._opened.read_tail(self._path, 2 * len(self._data))
        if (data, size) != (self._data, len(self._data)):
            raise CorruptionError(
                "the storage returned other bytes than were written",
                path=self._path,
                expected=len(self._data),
                found=size,
                to_fix="keep state on a storage that reads what was written last",
            )
        return "the same bytes"

    def _write_again(self) -> str:
        return self._refused(
            lambda: self._opened.write(self._path, b"other", sync=False, overwrite=False)
        )

    def _publish_again(self) -> str:
        from statestore.io.s3 import PART_BYTES  # not above: boto3 is an extra

        local_path = Path(self._cache_directory, "large")
        local_path.write_bytes(bytes(2 * PART_BYTES + 1))
        return self._refused(
            lambda: self._opened.publish(str(local_path), self._path, sync=False, overwrite=False)
        )

    def _refused(self, replace: Callable[[], object]) -> str:
        try:
            replace()
        except FencedError:
            return "a file that exists was not replaced"
        raise IncompatibleError(
            "the storage replaced a file that was not to be replaced",
            path=self._path,
            to_fix="keep state on a storage that knows conditional writes, on S3 "
            "`If-None-Match: *`",
        )

    def _list(self) -> str:
        self._expect([_NAME])
        return "one file"

    def _delete(self) -> str:
        # As cleanups do: some servers of S3's protocol lack the request for many files.
        self._opened.delete_files(self._directory, [_NAME])
        self._expect([])
        return "gone"

    def _expect(self, names: list[str]) -> None:
        found = sorted(info.name for info in self._opened.list(self._directory))
        if found != names:
            raise StorageError(
                "the storage lists other files than there are",
                path=self._directory,
                expected=", ".join(names),
                found=", ".join(found),
                to_fix="keep state on a storage whose listings are up to date",
            )

    def _remove_directories(self, io: TreeFileIO) -> None:
        """Remove the directories that were made for it, as far as they are empty."""
        directory = posixpath.dirname(self._directory)
        with suppress(OSError, StateStoreError):
            while directory != self._existing:
                if is_hadoop(self._uri):
                    io.delete(directory)  # not with what is in it
                else:
                    Path(directory).rmdir()
                directory = posixpath.dirname(directory).rstrip("/")
