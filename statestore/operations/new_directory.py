"""A new checkpoint or savepoint while it is written: nobody takes it for whole before it is.

Its `metadata` is written first, saying which operation is under way, and last, with the text that
makes the directory whole. A directory that was begun and not finished is cleared by the same
operation when it is done again, and by no other.
"""

from __future__ import annotations

import posixpath
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import is_temporary, lease_directory
from statestore.checkpoint.text_files import read_text, try_read_bytes, write_text
from statestore.core.errors import (
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.io.file_io import unasked
from statestore.io.guarded import GuardedFileIO
from statestore.io.local import (
    TEMPORARY_PREFIX,
    LocalFileIO,
    named_disk_errors,
    named_errors,
    temporary_directory,
)
from statestore.io.storage import absolute_uri, is_within
from statestore.operations.metadata_file import (
    DELETE,
    METADATA_NAME,
    mark_unfinished,
    try_read_metadata,
    unfinished_metadata,
    unfinished_operation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Set

    from statestore.core.clock import Clock
    from statestore.core.ids import IdSource
    from statestore.io.file_io import FileInfo, TreeFileIO
    from statestore.io.place import Place

_CLEARINGS = 10
_BETWEEN_CLEARINGS_MS = 100


def delete_directory(io: TreeFileIO, directory: str) -> None:
    """Delete a savepoint, or what was begun of one.

    Guarantee: on return nothing is left. After a raise, or a kill, it is whole, or is no savepoint
    and says that it is being deleted, or was not finished, until nothing of it is there.

    Raises:
        FencedError: It was deleted meanwhile, and another one begun in its place, which stays.
        StorageError: The storage failed.
    """
    path = f"{directory}/{METADATA_NAME}"
    mark: bytes | None = unfinished_metadata(DELETE).encode()
    try:
        mark_unfinished(io, directory, DELETE)
    except StorageError as error:
        mark = try_read_bytes(io, path)
        is_whole = mark is not None and unfinished_operation(io, directory) is None
        # What fills a disk must go from there without another byte.
        if error.kind != "storage-full" or is_whole:
            raise

    def ask() -> None:
        if try_read_bytes(io, path) not in (mark, None):  # None: another process deletes it, too
            raise _begun_anew(directory)

    _clear_once(io, directory, ask, follows=())
    io.delete_tree(directory, ask)


@dataclass(frozen=True)
class NewDirectory:
    """A checkpoint or savepoint that was begun, with what is needed to write it.

    Attributes:
        uri: As the caller named it.
        io: Its storage.
        path: The directory there.
        mark: What `metadata` says until the directory is whole; of this attempt alone.
        scratch_directory: Local directory for work, on the same file system if that is local.
        clock: Source of time.
        ids: Source of IDs.
        ask: As `begin_directory` was given it.
    """

    uri: str
    io: TreeFileIO
    path: str
    mark: str
    scratch_directory: str
    clock: Clock
    ids: IdSource
    ask: Callable[[], None]

    def check_mine(self) -> None:
        """Check that nobody has begun the directory anew, nor is it denied by `ask`.

        Raises:
            FencedError: Somebody has; what is there now is theirs.
            StorageError: The storage failed.
        """
        self.ask()
        if read_text(self.io, f"{self.path}/{METADATA_NAME}") != self.mark:
            raise _begun_anew(self.uri)

    def files(self) -> set[str]:
        """Return the path of every file below it, but for temporary ones.

        Raises:
            StorageError: The storage failed.
        """
        names = (info.name for info in self.io.list_tree(self.path))
        return {name for name in names if f"/{TEMPORARY_PREFIX}" not in f"/{name}"}

    def check_whole(self, metadata: str, files: Set[str]) -> None:
        """Check that nobody has begun the directory anew while its last write stood still.

        Args:
            metadata: The text that made it whole.
            files: All that was there before.

        Raises:
            FencedError, StorageError: As `check_mine`.
        """
        found = read_text(self.io, f"{self.path}/{METADATA_NAME}")
        if found != metadata or not files <= self.files():
            raise _begun_anew(self.uri)

    def raise_if_lost(self, error: Exception) -> None:
        """Raise a FencedError in place of an error of a process whose files another one cleared."""
        try:
            self.check_mine()
        except FencedError as lost:
            raise lost from error
        except StateStoreError:
            return

    def finish(self, metadata: str) -> None:
        """Make the directory whole.

        Guarantee: on return it is durable; after a raise it is whole or still unfinished.

        Raises:
            FencedError, StorageError: As `check_mine`.
        """
        shutil.rmtree(self.scratch_directory, ignore_errors=True)
        io = GuardedFileIO(self.io, self.check_mine)
        write_text(io, f"{self.path}/{METADATA_NAME}", metadata, overwrite=True)


def _begun_anew(uri: str) -> FencedError:
    return FencedError(
        "the directory was begun anew by another process",
        directory=uri,
        to_fix="run one command at a time for a directory, and repeat it for another one",
    )


@contextmanager
def begin_directory(
    place: Place,
    operation: str,
    source: str,
    ask: Callable[[], None] = unasked,
    says: Mapping[str, str] | None = None,
    keeps: Collection[str] = (),
) -> Iterator[NewDirectory]:
    """Begin a new checkpoint or savepoint, or begin one anew that was never finished.

    Args:
        place: The directory.
        operation: The command that writes it.
        source: The checkpoint or savepoint that it is made of: a path or a URI.
        ask: Called before what cannot be undone, such as each request that clears; a raise
            prevents it.
        says: What `metadata` says beside, until the directory is whole.
        keeps: Directories in it that stay when it is cleared.

    Guarantee: until `NewDirectory.finish` returns, no query starts from the directory and nothing
    takes it for a savepoint. Only a directory that says, directly before, that this very operation
    did not finish it is cleared.

    Raises:
        InvalidArgumentError: As `check_new`.
        FencedError: Another process began it at the same time, or finished it.
        StorageError: The storage failed.
    """
    uri, ids, clock = place.uri, place.ids, place.clock
    with temporary_directory() as work:
        with named_errors("make a directory", work):
            Path(f"{work}/fetched").mkdir()
        io, path = place.open(f"{work}/fetched")
        before = try_read_bytes(io, f"{path}/{METADATA_NAME}")
        was_begun = check_new(io, path, uri, operation, source)
        mark = unfinished_metadata(operation, attempt=ids.new_id(), **(says or {}))
        io.make_directory(path)

        def ask_first() -> None:
            ask()
            # Another process was quicker.
            if try_read_bytes(io, f"{path}/{METADATA_NAME}") != before:
                raise _begun_anew(uri)

        guarded = GuardedFileIO(io, ask_first)
        try:
            write_text(guarded, f"{path}/{METADATA_NAME}", mark, overwrite=was_begun)
        except FencedError as error:
            raise (_begun_anew(uri) if was_begun else _not_new(uri, METADATA_NAME)) from error
        scratch = f"{work}/scratch"
        if isinstance(io, LocalFileIO):
            # Beside its destination, a file is published by a rename.
            scratch = f"{path}/{TEMPORARY_PREFIX}{ids.new_id()}"
        begun = NewDirectory(uri, io, path, mark, scratch, clock, ids, ask)
        if was_begun:
            _clear(begun, keeps)
        Path(scratch).mkdir()
        try:
            with named_disk_errors(scratch, work):
                yield begun
        except Exception as error:
            begun.raise_if_lost(error)
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _clear(begun: NewDirectory, keeps: Collection[str]) -> None:
    """Delete what `_clear_once` does, though the directory's last writer may not know yet.

    Raises:
        FencedError: As `check_mine`: such as of a last writer that stood still, and then finished.
        StorageError: The storage failed.
    """
    for _ in range(_CLEARINGS - 1):
        with suppress(StorageError):
            _clear_once(begun.io, begun.path, begun.check_mine, keeps)
            return
        begun.clock.sleep_ms(_BETWEEN_CLEARINGS_MS)
    _clear_once(begun.io, begun.path, begun.check_mine, keeps)


def _clear_once(
    io: TreeFileIO,
    path: str,
    ask: Callable[[], None],
    keeps: Collection[str] = (),
    follows: Collection[str] = ("state",),
) -> None:
    """Delete everything but `metadata` and leases: of a checkpoint that is replaced one is held.

    What a link leads to is somebody else's, and stays.

    Args:
        io: Storage of the directory.
        path: The directory there.
        ask: Called directly before each request that deletes; a raise prevents it.
        keeps: Names of directories that stay, too.
        follows: Names of directories that are deleted behind a link; the link stays.
    """
    leases = lease_directory(f"{path}/state")
    for name in io.list_directories(path):
        below = f"{path}/{name}"
        if below == leases or name in keeps:
            continue
        if isinstance(io, LocalFileIO) and name not in follows and Path(below).is_symlink():
            ask()
            io.delete(below)
        else:
            io.delete_tree(below, ask)
    for info in io.list(path):
        if info.name != METADATA_NAME:
            ask()
            io.delete(f"{path}/{info.name}")


def check_target(place: Place, operation: str, source: str) -> bool:
    """Check that a directory may be begun, without writing anything.

    Args:
        place: The directory.
        operation: The command that is to write it.
        source: As the caller named what it is made of.

    Returns:
        Whether the operation began it before and did not finish it.

    Raises:
        InvalidArgumentError, StorageError: As `check_new`.
    """
    with temporary_directory() as work:
        io, path = place.open(work)
        return check_new(io, path, place.uri, operation, source)


def check_new(io: TreeFileIO, path: str, uri: str, operation: str, source: str) -> bool:
    """Check that an operation may begin a directory.

    Args:
        io: Its storage.
        path: The directory there.
        uri: As the caller named it.
        operation: The command that is to write it.
        source: As the caller named what it is made of.

    Returns:
        Whether the operation began it before and did not finish it.

    Raises:
        InvalidArgumentError: There are files in it (kind checkpoint-exists); another operation
            began it and did not finish it (kind unfinished-operation); it is not apart from its
            source, or in another checkpoint; or no directory can be made there.
        StorageError: The storage failed.
    """
    begun = unfinished_operation(io, path)
    if begun == operation:
        check_apart(uri, source)
        return True
    if begun is not None:
        raise InvalidArgumentError(
            "another operation began the directory and did not finish it",
            kind="unfinished-operation",
            directory=uri,
            begun=begun,
            asked=operation,
            to_fix=f"let the {begun} end, or repeat it; `statestore drop TRIAL --yes` puts the old "
            "checkpoint back. Name another directory"
            if begun in ("promote", "drop")
            else f"let the {begun} end, or delete the directory when it was killed "
            "and is not to be done again",
        )
    for info in _files(io, path):
        raise _not_new(uri, info.name)
    check_apart(uri, source)
    _check_outside(io, path, uri)
    if isinstance(io, LocalFileIO):
        _check_place(path, uri)
    return False


def _files(io: TreeFileIO, path: str) -> Iterator[FileInfo]:
    """Yield the files of a directory; those below others are looked for last.

    Temporary ones at its top are left out: so ends who is killed in its first write.
    """
    yield from (info for info in io.list(path) if not is_temporary(info.name))
    for name in io.list_directories(path):
        for info in io.list_tree(f"{path}/{name}"):
            yield replace(info, name=f"{name}/{info.name}")


def check_beside(io: TreeFileIO, path: str, uri: str, source: str) -> None:
    """Check that a directory for savepoints is in no checkpoint or savepoint, nor around one.

    Args:
        io: Its storage.
        path: The directory there.
        uri: As the caller named it.
        source: The checkpoint that they are made of.

    Raises:
        InvalidArgumentError: It is one, or not apart from one.
        StorageError: The storage failed.
    """
    check_apart(uri, source)
    _check_outside(io, f"{path}/any", uri)


def check_apart(uri: str, source: str) -> None:
    """Check that a directory and another one are not within each other.

    Raises:
        InvalidArgumentError: They are.
    """
    new, of = absolute_uri(uri), absolute_uri(source)
    if is_within(new, of) or is_within(of, new):
        raise not_apart(uri, source)


def _check_outside(io: TreeFileIO, path: str, uri: str) -> None:
    """Check that a directory is in no checkpoint, and in no savepoint, of whatever query."""
    above = posixpath.dirname(path)
    while above.strip("/"):
        # Who may write a directory need not be able to read those above it.
        with suppress(StorageError):
            if try_read_metadata(io, above) != (None, None):
                raise not_apart(uri, above)
        above = posixpath.dirname(above)


def _check_place(path: str, uri: str) -> None:
    """Check that a directory can be made on the local disk, by making one that is gone at once."""
    above = Path(path)
    with named_errors("look for a directory", path):
        while not above.exists():
            above = above.parent
    try:
        with named_errors("make a directory", path):
            tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=above).cleanup()
    except NotFoundError as error:
        raise InvalidArgumentError(
            "no directory can be made at this place",
            directory=uri,
            existing=str(above),
            to_fix="name one whose parents are directories that can be written, not files",
        ) from error


def not_apart(uri: str, source: str) -> InvalidArgumentError:
    """Return the error for a new directory that is in another one, or around it."""
    return InvalidArgumentError(
        "the new directory is inside another checkpoint or savepoint, or contains one",
        directory=uri,
        other=source,
        to_fix="name a directory outside of the other one, which does not contain it either",
    )


def _not_new(uri: str, file: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the new directory has files already",
        kind="checkpoint-exists",
        directory=uri,
        file=file,
        to_fix="name another directory, or delete this one if nobody needs it",
    )
