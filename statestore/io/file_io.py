"""The storage protocol: few calls, with guarantees that an object store can give too.

Paths are absolute and use `/`. Every implementation is thread-safe.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from statestore.core.errors import FencedError, NotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

MOST_DELETED_AT_ONCE = 1000
"""Most files of one `delete_files`, as S3 takes in one request."""
LOST_AND_FOUND = "lost+found"
"""A directory at the top of a disk, or of HDFS, for what its check finds; nobody's."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of a listing.

    Attributes:
        name: Last part of the path.
        size: Bytes.
        modified_ms: When its bytes were last written, milliseconds since the Unix epoch.
        num_names: Names that the bytes have: more than 1 where a file is shared by hard links.
    """

    name: str
    size: int
    modified_ms: int
    num_names: int = 1


def unasked() -> None:
    """Ask nothing before files are deleted."""


class FileIO(Protocol):
    """Storage of durable files."""

    def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
        """Make a complete local file appear under a path, all of it at once.

        Args:
            local_path: File of the local disk, owned by this call: moved or deleted on success.
            path: Where it shall appear.
            sync: Whether to wait until bytes and name have reached the disk.
            overwrite: Whether a file already there is replaced.

        Returns:
            Milliseconds spent waiting for the disk.

        Guarantee: on return every reader sees the whole file, and with sync a power failure does
        not take it away. After a raise the path holds either what it held before or the whole new
        file; in the first case local_path is still there. Some of Hadoop's file systems replace a
        file in two steps (docs/storage.md): between them, and after a raise or kill there, the path
        holds nothing.

        Raises:
            FencedError: overwrite is False and a file is there (kind file-exists).
            StorageError: Disk full, no permission, directory gone, or the storage failed.
        """
        ...

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """Make bytes appear under a path; guarantee and errors as `publish`."""
        ...

    def sync(self, path: str) -> None:
        """Wait until a published file has reached the disk.

        Nothing to do on storage that keeps what it has accepted. Errors as `read_tail`.
        """
        ...

    def read_tail(self, path: str, num_bytes: int) -> tuple[bytes, int]:
        """Return the last bytes of a file, at most num_bytes of them, and its size in bytes.

        Raises:
            NotFoundError: No file is there (kind file-not-found).
            StorageError: The storage failed.
        """
        ...

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return length bytes from an offset, fewer at the end; errors as `read_tail`."""
        ...

    def fetch(self, path: str) -> str:
        """Return a local path from which the file can be read and mapped; errors as `read_tail`.

        Guarantee: the bytes do not change once the returned path is open; the name may be replaced
        or deleted.
        """
        ...

    def fetch_slices(self, path: str, size: int, slices: Sequence[tuple[int, int]]) -> str:
        """Return a local path as `fetch` does, with only some bytes of the file for sure.

        Args:
            path: The file.
            size: Bytes of the whole file, and of the local one.
            slices: Offset and length of the wanted bytes, ascending; all others may be zero.
        """
        ...

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is no error.

        Raises:
            StorageError: The storage failed.
        """
        ...

    def delete_files(self, directory: str, names: Sequence[str]) -> None:
        """Delete files of a directory, in one request where the storage can.

        Args:
            directory: The directory.
            names: Paths of the files from there, 1 to MOST_DELETED_AT_ONCE of them; one that is not
                there is no error.

        Guarantee: on return none of them is there; after a raise some may be.

        Raises:
            StorageError: The storage failed, or refused to delete one of them.
        """
        ...

    def list(self, directory: str) -> list[FileInfo]:
        """Return the files directly in a directory, in no order; for maintenance only.

        A directory that does not exist has no files.

        Raises:
            StorageError: The storage failed.
        """
        ...

    def make_directory(self, directory: str) -> None:
        """Make a directory and its parents, unless it exists; nothing to do on an object store.

        Raises:
            StorageError: The storage failed.
        """
        ...


class TreeFileIO(FileIO, Protocol):
    """Storage that also works on whole directories, for operations on checkpoints."""

    def list_tree(self, directory: str) -> builtins.list[FileInfo]:
        """Return every file below a directory, in no order, named by its path from there.

        Raises:
            StorageError: The storage failed.
        """
        ...

    def list_directories(self, directory: str) -> builtins.list[str]:
        """Return the names of the directories directly in a directory, in no order.

        A directory that does not exist has none.

        Raises:
            StorageError: The storage failed.
        """
        ...

    def delete_tree(self, directory: str, ask: Callable[[], None] = unasked) -> None:
        """Delete a directory and every file below it; one that is not there is no error.

        Args:
            directory: The directory.
            ask: Called directly before each request that deletes; a raise prevents it.

        Guarantee: on return nothing is left, but for `lost+found` at its top; after a raise some
        files may be.

        Raises:
            StorageError: The storage failed.
        """
        ...

    def shares(self, other: FileIO, path: str, new_path: str) -> bool:
        """Return whether a file of another storage can be linked as one of this.

        Args:
            other: The other storage.
            path: The file there, or a directory above it.
            new_path: Where it shall appear here, or a directory above it; it need not be there.
        """
        ...

    def link(self, path: str, new_path: str, *, sync: bool) -> None:
        """Make a file appear under a second path of the same storage; it outlives the first.

        The bytes are shared where the storage can (a hard link), else copied, if possible by the
        storage, so neither path may be written in place. The directory of the new path must exist.

        Args:
            path: The file.
            new_path: Where it shall appear.
            sync: Whether to wait until the new name has reached the disk.

        Raises:
            FencedError: A file is at the new path (kind file-exists).
            NotFoundError: No file is there (kind file-not-found).
            StorageError: The storage failed.
        """
        ...


def delete_batches(files: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield files in runs that one `delete_files` takes."""
    for start in range(0, len(files), MOST_DELETED_AT_ONCE):
        yield files[start : start + MOST_DELETED_AT_ONCE]


def missing_file(path: str, action: str = "read a file") -> NotFoundError:
    """Return the error for a file that is not there."""
    return NotFoundError(
        f"cannot {action}: it is not there",
        kind="file-not-found",
        file=path,
        to_fix="check that nothing but statestore deletes files of the checkpoint",
    )


def existing_file(path: str) -> FencedError:
    """Return the error for a present file that must not be replaced."""
    return FencedError(
        "a file that must not be replaced exists",
        kind="file-exists",
        file=path,
        to_fix="read the file that is there",
    )


def replaced_file(path: str) -> StorageError:
    """Return the error for a file that another attempt replaced while it was read."""
    return StorageError(
        "a file was replaced while it was read", file=path, to_fix="let the batch run again"
    )


def missing_directory(path: str, action: str, **fields: object) -> StorageError:
    """Return the error for a file whose directory is gone, with more `fields`."""
    return StorageError(
        f"cannot {action}: its directory is gone",
        kind="directory-gone",
        file=path,
        **fields,
        to_fix="put the checkpoint directory back, or start the query with a new one; "
        "nothing may delete it while the query runs",
    )
