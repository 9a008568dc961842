"""Storage on the local disk, or any mounted file system with atomic rename."""

from __future__ import annotations

import builtins
import errno
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote

from statestore.core.clock import Clock, SystemClock
from statestore.core.errors import InvalidArgumentError, StateStoreError, StorageError
from statestore.core.ids import RandomIds
from statestore.core.liveness import STEP_BYTES, step
from statestore.io.file_io import (
    LOST_AND_FOUND,
    FileInfo,
    FileIO,
    existing_file,
    missing_directory,
    missing_file,
    unasked,
)
from statestore.io.scratch import LOCK_NAME, ScratchDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_log = logging.getLogger(__name__)

TEMPORARY_PREFIX = ".tmp-"
MORE_OPEN_FILES = (
    "raise the limit of open files (ulimit -n, LimitNOFILE; fs.file-max where the system has too "
    "many), on the executors where a query told it, or give each of them fewer state partitions"
)
"""The fix where a process may open no more files."""
_SCHEME = re.compile(r"(s3a?|hdfs|file)(?=:)|[A-Za-z][A-Za-z0-9+.-]*(?=:(/|$))")
_OPERATION_PREFIX = "statestore-operation-"
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_TRIES_OF_TREE = 5
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


def written_scheme(uri: str) -> str:
    """Return the scheme that a URI begins with, empty for a path.

    A name may have a colon: without a slash behind it, `backup-12:30` is a path. `s3:bucket` is
    none, so that a slip makes no directory of that name.
    """
    match = _SCHEME.match(uri)
    return match[0] if match else ""


def resolve_local_path(uri: str, *, is_encoded: bool = True) -> str:
    """Return the absolute local path of a `file:` URI or of a plain path.

    Args:
        uri: `file:/x`, `file:///x`, `file://localhost/x` or `/x`.
        is_encoded: Whether a `file:` URI is percent-encoded, as a user's; that of Hadoop's
            Path.toString is not.

    Raises:
        InvalidArgumentError: The URI is of another scheme, or the path is not absolute.
    """
    scheme = written_scheme(uri)
    if scheme not in ("", "file"):
        raise InvalidArgumentError(
            "storage of this scheme cannot be opened here",
            kind="unsupported-scheme",
            uri=uri,
            scheme=scheme,
            to_fix="give an absolute path or a file: URI",
        )
    path = uri
    if scheme:
        # Not urlsplit: "?" and "#" are legal in file names and Hadoop does not escape them.
        path = uri.removeprefix("file:")
        if path.startswith("//"):
            host, _, rest = path[2:].partition("/")
            path = f"/{rest}" if host in ("", "localhost") else ""
        path = unquote(path) if is_encoded else path
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgumentError(
            "storage path is not an absolute local path",
            kind="unsupported-scheme",
            uri=uri,
            to_fix="give an absolute path or a file: URI",
        )
    return os.path.normpath(path)


class LocalFileIO:
    """FileIO on the local disk.

    `publish` renames the local file when it lies on the same file system as the destination, else
    copies it to `.tmp-<id>` beside the destination first.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._ids = RandomIds()
        self._clock = clock or SystemClock()

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """See FileIO."""
        with named_errors("publish a file", path, creates=True):
            waited_ms = self._sync_file(local_path) if sync else 0.0
            try:
                _move(local_path, path, overwrite=overwrite)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                waited_ms += self._copy_and_move(local_path, path, sync=sync, overwrite=overwrite)
                os.unlink(local_path)
            if sync:
                waited_ms += self._sync_directory(path)
        return waited_ms

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """See FileIO."""
        temporary = self._temporary_beside(path)
        with named_errors("write a file", path, creates=True):
            try:
                Path(temporary).write_bytes(data)
                if sync:
                    self._sync_file(temporary)
                _move(temporary, path, overwrite=overwrite)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
            if sync:
                self._sync_directory(path)

    def sync(self, path: str) -> None:
        """See FileIO."""
        with named_errors("sync a file", path):
            self._sync_file(path)
            self._sync_directory(path)

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """See FileIO."""
        with named_errors("read a file", path), open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(size - num_bytes, 0)
            return os.pread(file.fileno(), size - start, start), size

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """See FileIO."""
        with named_errors("read a file", path), open(path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, offset)

    def fetch(self, path: str) -> str:
        """See FileIO; the file itself, which is never written in place."""
        with named_errors("read a file", path):
            os.stat(path)
        return path

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:  # noqa: ARG002
        """See FileIO; the file itself."""
        return self.fetch(path)

    def delete(self, path: str) -> None:
        """See FileIO."""
        with named_errors("delete a file", path):
            Path(path).unlink(missing_ok=True)

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """See FileIO; one after the other."""
        for name in names:
            self.delete(f"{directory}/{name}")

    def list(self, directory: str) -> list[FileInfo]:
        """See FileIO; a link to a file is one, with its size and time."""
        files: list[FileInfo] = []
        with named_errors("list a directory", directory):
            try:
                entries = os.scandir(directory)
            except (FileNotFoundError, NotADirectoryError):
                return files
            with entries:
                for entry in entries:
                    try:
                        status = entry.stat()
                    except OSError as error:
                        if error.errno not in (errno.ENOENT, errno.ELOOP):
                            raise
                        continue  # it is gone, or a link that leads nowhere
                    if entry.is_file():
                        modified_ms = status.st_mtime_ns // 1_000_000
                        num_names = status.st_nlink
                        files.append(FileInfo(entry.name, status.st_size, modified_ms, num_names))
        return files

    def make_directory(self, directory: str) -> None:
        """See FileIO."""
        with named_errors("make a directory", directory):
            try:
                os.makedirs(directory, exist_ok=True)
            except FileExistsError:
                # It was there, and another process deleted it before the look at what it is.
                if os.path.lexists(directory):
                    raise
                os.makedirs(directory, exist_ok=True)

    def list_tree(self, directory: str) -> builtins.list[FileInfo]:
        """See TreeFileIO; a link to a directory is one, but for a link to where it is itself.

        Of links to one directory the first is followed: there may be as many ways through them as
        somebody likes.
        """
        return self._list_below(directory, set())

    def _list_below(self, directory: str, followed: set[str]) -> builtins.list[FileInfo]:
        found = self.list(directory)
        with named_errors("list a directory", directory):
            here = os.path.realpath(directory)
            for name in self.list_directories(directory):
                path = f"{directory}/{name}"
                if os.path.islink(path):
                    there = os.path.realpath(path)
                    if there in followed or Path(here).is_relative_to(there):
                        continue
                    followed.add(there)
                below = self._list_below(path, followed)
                found += [replace(info, name=f"{name}/{info.name}") for info in below]
        return found

    def list_directories(self, directory: str) -> builtins.list[str]:
        """See TreeFileIO."""
        with named_errors("list a directory", directory):
            try:
                entries = os.scandir(directory)
            except (FileNotFoundError, NotADirectoryError):
                return []
            with entries:
                return [
                    entry.name
                    for entry in entries
                    if _is_directory(entry) and entry.name != LOST_AND_FOUND
                ]

    def delete_tree(self, directory: str, ask: Callable[[], None] = unasked) -> None:
        """See TreeFileIO; a file, or an empty directory, a request."""
        with named_errors("delete a directory", directory):
            is_top = os.path.isdir(f"{directory}/{LOST_AND_FOUND}")
            if is_top or os.path.islink(directory):  # it, or what it leads to, stays, and is empty
                self._delete_below(directory, ask, LOST_AND_FOUND)
            elif os.path.isdir(directory):
                self._delete_whole_tree(directory, ask)

    def _delete_below(self, directory: str, ask: Callable[[], None], kept: str = "") -> None:
        with os.scandir(directory) as entries:
            found = [entry for entry in entries if entry.name != kept]
        for entry in found:
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_directory:
                self._delete_below(entry.path, ask)
            ask()
            with suppress(FileNotFoundError):  # somebody deletes it too
                (os.rmdir if is_directory else os.unlink)(entry.path)

    def _delete_whole_tree(self, directory: str, ask: Callable[[], None]) -> None:
        for tries_left in reversed(range(_TRIES_OF_TREE)):
            try:
                self._delete_below(directory, ask)
                ask()
                os.rmdir(directory)
                return
            except OSError as error:  # somebody deletes it too, and marks it before
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not tries_left:
                    raise
                if not os.path.isdir(directory):
                    return

    def shares(self, other: FileIO, path: str, new_path: str) -> bool:
        """See TreeFileIO; where both are on one file system, and the file is this user's own.

        A file that has two names has one owner: who gives the new directory to its user, by
        `chown -R`, would take a file of somebody else's away from where it was.
        """
        if not isinstance(other, LocalFileIO):
            return False
        there, here = _status(path), _status(new_path)
        return there.st_dev == here.st_dev and there.st_uid == os.geteuid()

    def link(self, path: str, new_path: str, *, sync: bool) -> None:
        """See TreeFileIO; a hard link, or a copy where the file system has none."""
        with named_errors("link a file", new_path, creates=os.path.exists(path)):
            try:
                os.link(os.path.realpath(path), new_path)
            except OSError as error:
                if error.errno not in (*_NO_LINKS, errno.EXDEV, errno.EMLINK):
                    raise
                self._copy_and_move(path, new_path, sync=sync, overwrite=False)
            if sync:
                self._sync_directory(new_path)

    def _copy_and_move(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        temporary = self._temporary_beside(path)
        try:
            with open(local_path, "rb") as source, open(temporary, "wb") as copy:
                while data := source.read(STEP_BYTES):
                    copy.write(data)
                    step()
            waited_ms = self._sync_file(temporary) if sync else 0.0
            _move(temporary, path, overwrite=overwrite)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        return waited_ms

    def _temporary_beside(self, path: str) -> str:
        return f"{os.path.dirname(path)}/{TEMPORARY_PREFIX}{self._ids.new_id()}"

    def _sync_file(self, path: str) -> float:
        return self._sync(os.open(path, os.O_RDONLY))

    def _sync_directory(self, path: str) -> float:
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            return self._sync(descriptor)
        except OSError as error:
            # So a file system says that it syncs no directories, as folders of VirtualBox do.
            if error.errno != errno.EINVAL:
                raise
            _warn_of_names(os.path.dirname(path))
            return 0.0

    def _sync(self, descriptor: int) -> float:
        start_ms = self._clock.elapsed_ms()
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return self._clock.elapsed_ms() - start_ms


def _status(path: str) -> os.stat_result:
    """Return the status of a path, or of the directory above that is there."""
    while True:
        try:
            return os.stat(path)
        except OSError:
            if path in ("", "/"):
                raise
            path = os.path.dirname(path)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False  # a link that leads nowhere


def _move(source: str, path: str, *, overwrite: bool) -> None:
    if overwrite:
        os.rename(source, path)
        return
    try:
        # A hard link fails when the name exists, which a rename would silently replace.
        os.link(source, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links; two snapshots at the same moment are equal anyway.
        if Path(path).exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.rename(source, path)
    else:
        os.unlink(source)


@contextmanager
def written_beside(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a path to write a local file to, for a block.

    Guarantee: the file appears, or is replaced, at the end of the block; after a raise it is as it
    was. It has the permissions of the one there, and its owner where this process may give it.
    Where it is a link, what that points to is written. What is no regular file, such as a pipe, is
    written where it is.

    Raises:
        OSError: The disk failed, or does not let a file be written in the directory.
    """
    there = Path(path)
    if there.exists() and not there.is_file():
        yield str(there)
        return
    target = there.resolve()
    temporary = target.parent / f"{TEMPORARY_PREFIX}{RandomIds().new_id()}"
    try:
        if target.exists():
            temporary.touch(mode=0o600)
            of = target.stat()
            with suppress(PermissionError):
                os.chown(temporary, of.st_uid, of.st_gid)
            temporary.chmod(stat.S_IMODE(of.st_mode))
        yield str(temporary)
        temporary.replace(target)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def temporary_directory(below: str | None = None) -> Iterator[str]:
    """Yield a directory of the local disk for temporary files, which is gone after the block.

    What a process that was killed left beside it is removed as well.

    Args:
        below: Where it is made; where the machine has temporary files when None.

    Raises:
        StorageError: None can be made.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=_OPERATION_PREFIX, dir=below)
        files = f"{made.name}/files"
        os.mkdir(files)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(
            "cannot make a directory for temporary files",
            **({"kind": "storage-full"} if is_full else {}),
            below=below or os.environ.get("TMPDIR", "the default"),
            reason=error.strerror or str(error),
            to_fix="free space there, or set TMPDIR to a directory that can be written",
        ) from error
    with _locked(made.name), made:
        try:
            yield files
        finally:
            # Before the lock: without one, nobody would remove what a kill leaves.
            shutil.rmtree(files, ignore_errors=True)


@contextmanager
def _locked(directory: str) -> Iterator[None]:
    try:
        scratch = ScratchDirectory(directory)
    except OSError:
        # A file system without locks: nobody removes what has no lock file.
        Path(directory, LOCK_NAME).unlink(missing_ok=True)
        yield
        return
    try:
        scratch.sweep_beside(f"{_OPERATION_PREFIX}*", SystemClock())
        yield
    finally:
        scratch.release()


@contextmanager
def named_errors(action: str, path: str, *, creates: bool = False) -> Iterator[None]:
    """Turn any OSError of a block into an error of this package.

    Args:
        action: The work of the block, for "cannot <action>".
        path: Its file or directory.
        creates: Whether the block makes the file, so that a present file or a missing directory is
            the reason.

    Raises:
        FencedError, NotFoundError, StorageError: By the reason.
    """
    try:
        yield
    except OSError as error:
        _raise_named(error, action, path, creates=creates)


@contextmanager
def named_disk_errors(*directories: str) -> Iterator[None]:
    """Turn errors of the local disk in a block into an error of this package.

    For a block in which libraries write files and raise errors of their own. An error for another
    reason may come from a caller's function, and passes.

    Args:
        directories: Where the block writes. If an error names no file, the directory with the least
            space left is named.

    Raises:
        StorageError: The disk is full or broken, or denies the write.
    """
    try:
        yield
    except StateStoreError:
        raise
    except Exception as error:
        of_system = error if isinstance(error, OSError) else OSError(errno.ENOSPC, str(error))
        if of_system.errno not in _OF_THE_DISK or not (of_system is error or is_disk_full(error)):
            raise
        path = of_system.filename
        path = path if isinstance(path, str) else min(directories, key=_free)
        _raise_named(of_system, "write a file", path, creates=False)


def _free(directory: str) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


_warned = threading.Event()


def _warn_of_names(directory: str) -> None:
    """Say, once, that names of files are not on the disk when a write returns."""
    if not _warned.is_set():
        _warned.set()
        _log.warning(
            "a file system syncs no directories: the newest files may be gone after a power "
            "failure: directory=%s",
            directory,
        )


def is_disk_full(error: Exception) -> bool:
    """Return whether an error, perhaps by its text alone, says that a disk is full."""
    return any(reason in str(error) for reason in ("No space left", "Disk quota"))


def is_out_of_files(error: Exception) -> bool:
    """Return whether an error, perhaps by its text alone, says that no more files may be open."""
    return any(reason in str(error) for reason in ("Too many open files", "Too many files open"))


def _raise_named(error: OSError, action: str, path: str, *, creates: bool) -> NoReturn:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if isinstance(error, FileExistsError) and creates:
        raise existing_file(path) from error
    if (
        isinstance(error, FileNotFoundError)
        and creates
        and not os.path.isdir(os.path.dirname(path))
    ):
        raise missing_directory(path, action, missing=os.path.dirname(path)) from error
    # A directory of that name is no file either, and on object stores has nothing to say.
    is_other = isinstance(error, IsADirectoryError) and not creates
    if is_other or isinstance(error, FileNotFoundError | NotADirectoryError):
        missing = error.filename if isinstance(error.filename, str) else path
        raise missing_file(missing, action) from error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise StorageError(
            f"cannot {action}: no space left",
            kind="storage-full",
            file=path,
            reason=reason,
            to_fix="free space on the file system of this path; then start the query, or do the "
            "command, again",
        ) from error
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        raise StorageError(
            f"cannot {action}: no permission",
            kind="permission-denied",
            file=path,
            reason=reason,
            to_fix="let the user of this process, an executor's or a command's, read and write "
            "this path",
        ) from error
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise StorageError(
            f"cannot {action}", file=path, reason=reason, to_fix=MORE_OPEN_FILES
        ) from error
    raise StorageError(
        f"cannot {action}",
        file=path,
        reason=reason,
        to_fix="check the file system of this path, and try again",
    ) from error
