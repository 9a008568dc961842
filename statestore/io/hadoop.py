"""Storage on the file systems of Hadoop, through the shim: HDFS, ABFS, GS and their like.

Requests are small and go to the JVM; bytes travel in local files, which the JVM reads or writes.
"""

from __future__ import annotations

import builtins
import errno
import os
import posixpath
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from statestore.core.digest import digest_of
from statestore.core.errors import (
    InvalidArgumentError,
    StorageError,
)
from statestore.core.liveness import step
from statestore.io.fetch_cache import sliced_name, slices_size
from statestore.io.file_io import (
    LOST_AND_FOUND,
    FileInfo,
    existing_file,
    missing_directory,
    missing_file,
    replaced_file,
    unasked,
)
from statestore.io.local import TEMPORARY_PREFIX, named_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from statestore.io.fetch_cache import FetchCache
    from statestore.io.file_io import FileIO

PART_BYTES = 64 << 20
"""Bytes that one request reads of a file."""


_DELETED_AT_ONCE = 100
"""Files that one request deletes: each is one to the storage, and the whole a sign of life."""


class HadoopRefusalError(Exception):
    """The JVM refused a request; `kind` is a kind of error of this package."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class HadoopSilenceError(HadoopRefusalError):
    """The JVM did not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__("storage", f"the JVM does not answer: {reason}")


class HadoopFiles(Protocol):
    """The JVM's side: the operations of docs/protocol.md. Thread-safe."""

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Carry out an operation and return its answer.

        Raises:
            HadoopRefusalError: It failed.
        """
        ...


_READ_ONLY_SCHEMES = ("http", "https")


def split_hadoop_uri(uri: str) -> tuple[str, str]:
    """Return a URI's file system (`scheme://authority`, `scheme:` without one) and its path.

    Raises:
        InvalidArgumentError: It is a web address, which Hadoop can at most read (kind
            unsupported-scheme).
    """
    scheme, _, rest = uri.partition(":")
    if scheme in _READ_ONLY_SCHEMES:
        raise InvalidArgumentError(
            "storage of this scheme cannot be written",
            kind="unsupported-scheme",
            uri=uri,
            to_fix="give a path, or the URI of a file system: file:, s3:, hdfs: ...",
        )
    authority = ""
    if rest.startswith("//"):
        authority, _, rest = rest[2:].partition("/")
        authority = f"//{authority}"
    return f"{scheme}:{authority}", "/" + rest.strip("/")


def resolve_hadoop_uri(files: HadoopFiles, uri: str) -> tuple[str, str]:
    """Return the place of a URI, behind mounts, links and other names of a host.

    Args:
        files: The JVM's side, with one configuration for all.
        uri: Of a file or directory, which need not exist.

    Returns:
        The file system, `file:///` for the local disk, and the path there.

    Raises:
        InvalidArgumentError, StorageError: The file system is unknown, or does not answer.
    """
    file_system, path = split_hadoop_uri(uri)
    try:
        found = files.ask("resolve", checkpoint="", path=f"{file_system}{path}")
    except HadoopRefusalError as error:
        _raise_named(error, "find a directory", uri)
    return found["storage"], posixpath.normpath(found["path"])


class HadoopFileIO:
    """TreeFileIO whose paths are those of one Hadoop file system.

    Args:
        files: The JVM's side.
        file_system: As `split_hadoop_uri` returns it.
        checkpoint: Whose query's Hadoop configuration is used: the checkpoint's `state` directory;
            empty where the JVM has one configuration for all.
        cache: Local copies of fetched files; its directory also has unfinished files.
    """

    def __init__(
        self, files: HadoopFiles, file_system: str, checkpoint: str, cache: FetchCache
    ) -> None:
        self._files = files
        self._file_system = file_system
        self._checkpoint = checkpoint
        self._cache = cache

    @property
    def identity(self) -> tuple[HadoopFiles, str]:
        """The JVM's side and the file system: equal where two storages are one."""
        return self._files, self._file_system

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:  # noqa: ARG002
        """See FileIO; a file that was closed is as durable as its file system makes it."""
        self._ask("publish a file", "publish", path, local_path=local_path, overwrite=overwrite)
        with named_errors("remove a local file", local_path):
            os.unlink(local_path)
        return 0.0

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """See FileIO."""
        with self._local_file() as local_path:
            with named_errors("write a local file", local_path):
                Path(local_path).write_bytes(data)
            self.publish(local_path, path, sync=sync, overwrite=overwrite)

    def sync(self, path: str) -> None:
        """See FileIO; nothing to wait for."""

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        return self._read(path, -num_bytes, num_bytes)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        return self._read(path, offset, length)[0]

    def fetch(self, path: str) -> str:
        """See FileIO; one local file for each size and time of modification."""
        size, name = self._identify(path)

        def write(local_path: str) -> None:
            self._read_in_place(path, local_path, 0, size)
            if size > PART_BYTES and self._identify(path)[1] != name:
                raise replaced_file(self._uri(path))

        with named_errors("keep a fetched file", self._cache.directory):
            return self._cache.get(name, size, write)

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:
        """See FileIO; one local file for each size, time of modification, and slices."""

        def write(local_path: str) -> None:
            os.truncate(local_path, size)
            for offset, length in slices:
                self._read_in_place(path, local_path, offset, length)

        _, name = self._identify(path)
        with named_errors("keep a fetched file", self._cache.directory):
            return self._cache.get(sliced_name(name, slices), slices_size(slices), write)

    def _read_in_place(self, path: str, local_path: str, offset: int, length: int) -> None:
        """Read bytes to the same place of a local file, in parts: each is a sign of life."""
        for start in range(offset, offset + length, PART_BYTES):
            self._ask(
                "read a file", "read", path,
                offset=start, length=min(PART_BYTES, offset + length - start),
                local_path=local_path, in_place=True,
            )  # fmt: skip
            step()

    def _identify(self, path: str) -> tuple[int, str]:
        """Return the size of a file, and the name of its local copy."""
        found = self._ask("read a file", "stat", path)
        # The same URI may be another file for another checkpoint's configuration.
        of = f"{self._checkpoint} {self._file_system}{path}"
        identity = f"{of} {found['size']} {found['modified_ms']}".encode(errors="surrogateescape")
        return int(found["size"]), f"{digest_of(identity)}-{os.path.basename(path)}"

    def delete(self, path: str) -> None:
        """See FileIO."""
        self._ask("delete a file", "delete", path)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """See FileIO; requests to the JVM, which deletes one after the other, of some each."""
        for start in range(0, len(names), _DELETED_AT_ONCE):
            some = list(names[start : start + _DELETED_AT_ONCE])
            self._ask("delete files", "delete_files", directory, names=some)
            step()

    def list(self, directory: str) -> builtins.list[FileInfo]:
        """See FileIO."""
        return self._list(directory)[0]

    def make_directory(self, directory: str) -> None:
        """See FileIO."""
        self._ask("make a directory", "make_directory", directory)

    def list_tree(self, directory: str) -> builtins.list[FileInfo]:
        """See TreeFileIO; a request to the JVM for each directory: no reply has the whole tree."""
        found, below = self._list(directory)
        while below:
            prefix = below.pop()
            files, directories = self._list(f"{directory}/{prefix}")
            found += [replace(info, name=f"{prefix}/{info.name}") for info in files]
            below += [f"{prefix}/{name}" for name in directories]
            step()
        return found

    def list_directories(self, directory: str) -> builtins.list[str]:
        """See TreeFileIO."""
        return [name for name in self._list(directory)[1] if name != LOST_AND_FOUND]

    def delete_tree(self, directory: str, ask: Callable[[], None] = unasked) -> None:
        """See TreeFileIO; one request to the JVM."""
        ask()
        self._ask("delete a directory", "delete_tree", directory)

    def shares(self, other: FileIO, path: str, new_path: str) -> bool:  # noqa: ARG002
        """See TreeFileIO."""
        return isinstance(other, HadoopFileIO) and other.identity == self.identity

    def link(self, path: str, new_path: str, *, sync: bool) -> None:  # noqa: ARG002
        """See TreeFileIO; Hadoop has no links, and copies through the JVM."""
        source, target = self._uri(path), self._uri(new_path)
        try:
            self._files.ask("copy", checkpoint=self._checkpoint, path=source, new_path=target)
        except HadoopRefusalError as error:
            is_missing = error.kind == "file-not-found"
            _raise_named(error, "copy a file", source if is_missing else target)

    def _list(self, directory: str) -> tuple[builtins.list[FileInfo], builtins.list[str]]:
        """Return the files directly in a directory, and the names of the directories there."""
        found = self._ask("list a directory", "list", directory)
        files = [
            FileInfo(file["name"], file["size"], file["modified_ms"]) for file in found["files"]
        ]
        return files, list(found["directories"])

    def _read(self, path: str, offset: int, length: int) -> tuple[bytes, int]:
        with self._local_file() as local_path:
            found = self._ask(
                "read a file", "read", path, offset=offset, length=length, local_path=local_path
            )
            with named_errors("read a local file", local_path):
                return Path(local_path).read_bytes(), int(found["size"])

    @contextmanager
    def _local_file(self) -> Iterator[str]:
        directory = self._cache.directory
        with named_errors("make a local file", directory):
            os.makedirs(directory, exist_ok=True)  # something else may have deleted it
            descriptor, local_path = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=directory)
        os.close(descriptor)
        try:
            yield local_path
        finally:
            Path(local_path).unlink(missing_ok=True)

    def _ask(self, action: str, op: str, path: str, **arguments: Any) -> dict[str, Any]:
        uri = self._uri(path)
        try:
            return self._files.ask(op, checkpoint=self._checkpoint, path=uri, **arguments)
        except HadoopRefusalError as error:
            if op == "read" and error.kind == "storage-full":
                # What is full is not what is read.
                with named_errors("keep a fetched file", arguments["local_path"]):
                    raise OSError(errno.ENOSPC, error.reason) from error
            _raise_named(error, action, uri)

    def _uri(self, path: str) -> str:
        # The root without its slash is no path to Hadoop.
        return f"{self._file_system}{path or '/'}"


def _raise_named(error: HadoopRefusalError, action: str, uri: str) -> NoReturn:
    if error.kind == "file-exists":
        raise existing_file(uri) from error
    if error.kind == "directory-gone":
        raise missing_directory(uri, action, reason=error.reason) from error
    if error.kind == "file-not-found":
        raise missing_file(uri, action) from error
    if error.kind == "unsupported-scheme":
        raise InvalidArgumentError(
            "Hadoop has no file system of this scheme",
            kind="unsupported-scheme",
            uri=uri,
            reason=error.reason,
            to_fix="add its jar to spark.jars, for a command by --storage-option spark.jars=…, or "
            "correct the URI",
        ) from error
    fixes = {
        "permission-denied": "let the user that does this, an executor's or a command's, read and "
        "write this path",
        "storage-full": "free space on the file system, or raise its quota",
    }
    raise StorageError(
        f"cannot {action}",
        kind=error.kind if error.kind in fixes else "storage",
        file=uri,
        reason=error.reason,
        to_fix=fixes.get(error.kind, "check the file system, and try again"),
    ) from error
