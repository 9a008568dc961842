"""A new checkpoint or savepoint while it is written: nobody takes it for whole before it is.

Spark keeps the query's ID in the file `metadata` and refuses to start where that has none. So it is
written first, saying what is under way, and last, with what makes the directory whole. A directory
that was begun and not finished is cleared by the same operation when it is done again, and by no
other.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import shutil
import tempfile
import uuid
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.layout import lease_directory
from statestore.checkpoint.query_log import read_text, write_text
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.core.json_fields import MalformedError, parse_fields
from statestore.core.version import WRITER
from statestore.io.local import (
    TEMPORARY_PREFIX,
    LocalFileIO,
    named_disk_errors,
    named_errors,
)
from statestore.io.storage import absolute_uri, is_within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.core.clock import Clock
    from statestore.core.ids import IdSource
    from statestore.io.file_io import FileInfo, FileIO, TreeFileIO
    from statestore.io.place import Place

METADATA_NAME = "metadata"
QUERY_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A UUID, as Spark writes it."""
_KEY = "statestore"
_UNFINISHED = "unfinished"
_DELETE = "delete"
"""What is under way in a savepoint that goes."""
_BRANCH_OF = "branch_of"
_SHOWN_BYTES = 64
_MAX_BYTES = 64 * 1024
_CLEARINGS = 10
_BETWEEN_CLEARINGS_MS = 100


def metadata_fields(**fields: object) -> str:
    """Return the text of a `metadata` file that is ours; Spark finds no query ID in it."""
    head: dict[str, object] = {"writer": WRITER}
    return json.dumps({_KEY: head | fields}, indent=2)


@dataclass(frozen=True, slots=True)
class BranchOrigin:
    """What a branch was made of, as its `metadata` tells beside the query ID that Spark reads.

    Attributes:
        checkpoint: Where that was, a URI.
        query_id: Its query's ID; empty where it had none.
        version: The version that the branch began with.
    """

    checkpoint: str
    query_id: str
    version: int


def query_metadata(query_id: str, branch_of: BranchOrigin | None = None) -> str:
    """Return the text of Spark's `metadata`, which reads nothing but the ID."""
    fields: dict[str, object] = {"id": query_id}
    if branch_of is not None:
        fields[_BRANCH_OF] = asdict(branch_of)
    return json.dumps(fields, separators=(",", ":"))


def read_branch_origin(io: FileIO, directory: str) -> BranchOrigin | None:
    """Return what a checkpoint is a branch of; None where it is none, or does not tell.

    Raises:
        StorageError: The storage failed.
    """
    try:
        data, _ = io.read_tail(f"{directory}/{METADATA_NAME}", _MAX_BYTES)
        found = parse_fields(data)
        if not found.has(_BRANCH_OF):
            return None
        fields = found.object(_BRANCH_OF)
        return BranchOrigin(
            fields.text("checkpoint"), fields.text("query_id"), fields.integer("version", 1)
        )
    except (NotFoundError, MalformedError):
        return None


def new_query_id(ids: IdSource) -> str:
    """Return an ID that no query has had."""
    return str(uuid.UUID(hex=ids.new_id()))


def read_metadata(io: FileIO, directory: str) -> tuple[str | None, dict[str, Any] | None]:
    """Return the query ID in a directory's `metadata`, or what is there of ours.

    Raises:
        NotFoundError: There is no `metadata`: Spark starts the query under a new ID.
        CorruptionError: It has neither, or no ID that Spark takes.
        StorageError: The storage failed.
    """
    path = f"{directory}/{METADATA_NAME}"
    data, _ = io.read_tail(path, _MAX_BYTES)
    try:
        fields = parse_fields(data)
        if fields.has(_KEY):
            return None, fields.object(_KEY).all
        return fields.text("id", QUERY_ID), None
    except MalformedError as error:
        raise CorruptionError(
            "the file with the ID of the query, or that describes a savepoint, is damaged",
            file=path,
            offset=0,
            expected='{"id":"<UUID>"}, or the descriptor of a savepoint',
            found=data[:_SHOWN_BYTES],
            to_fix="put the file back from a copy; of a query it can also be deleted: it then "
            "starts under a new ID, as another query to its sinks",
        ) from error


def try_read_metadata(io: FileIO, directory: str) -> tuple[str | None, dict[str, Any] | None]:
    """Return what `read_metadata` does; None for both where the file is missing or damaged.

    Raises:
        StorageError: The storage failed.
    """
    with suppress(NotFoundError, CorruptionError):
        return read_metadata(io, directory)
    return None, None


def check_finished(fields: dict[str, Any] | None, uri: str) -> None:
    """Check that a directory is not one that was begun and not finished.

    Raises:
        NotFoundError: It is (kind unfinished-operation).
    """
    if fields and _UNFINISHED in fields:
        operation = fields[_UNFINISHED]
        raise NotFoundError(
            "the directory was begun and not finished",
            kind="unfinished-operation",
            directory=uri,
            operation=operation,
            to_fix="delete the rest of it, unless somebody is deleting it now"
            if operation == _DELETE
            else "wait for that command, or repeat it when it was killed: it begins anew",
        )


def unfinished_operation(io: FileIO, directory: str) -> str | None:
    """Return the operation that began a directory and did not finish it, None for no such one.

    Raises:
        StorageError: The storage failed.
    """
    _, fields = try_read_metadata(io, directory)
    return None if fields is None else fields.get(_UNFINISHED)


def mark_unfinished(io: TreeFileIO, directory: str, operation: str) -> None:
    """Have a whole directory say that an operation began it: it is that operation's to clear.

    Guarantee: on return no query starts from it, and it is no savepoint, durably.

    Raises:
        StorageError: The storage failed.
    """
    mark = metadata_fields(**{_UNFINISHED: operation})
    write_text(io, f"{directory}/{METADATA_NAME}", mark, overwrite=True)


def delete_directory(io: TreeFileIO, directory: str) -> None:
    """Delete a savepoint.

    Guarantee: on return nothing is left. After a raise, or a kill, it is whole, or is no savepoint
    any more and says that it is being deleted, until nothing of it is there.

    Raises:
        StorageError: The storage failed.
    """
    mark_unfinished(io, directory, _DELETE)
    _clear_once(io, directory)
    io.delete_tree(directory)


def check_of_query(io: FileIO, directory: str, uri: str) -> None:
    """Check that a directory is a query's checkpoint: neither a savepoint nor unfinished.

    A savepoint is the user's, and as it was taken: operations on a checkpoint do not change it, nor
    does a query start from what they make of it.

    Raises:
        InvalidArgumentError: It is a savepoint.
        NotFoundError: As `check_finished`.
        CorruptionError: `metadata` is damaged, so nothing tells which it is.
        StorageError: The storage failed.
    """
    fields = None
    with suppress(NotFoundError):
        _, fields = read_metadata(io, directory)
    check_finished(fields, uri)
    if fields is not None:
        raise InvalidArgumentError(
            "the directory is a savepoint, not the checkpoint of a query",
            directory=uri,
            to_fix=f"restore it first, with `statestore restore {shlex.quote(uri)} CHECKPOINT`, "
            "and name that checkpoint",
        )


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
    """

    uri: str
    io: TreeFileIO
    path: str
    mark: str
    scratch_directory: str
    clock: Clock
    ids: IdSource

    def check_mine(self) -> None:
        """Check that nobody has begun the directory anew.

        Raises:
            FencedError: Somebody has; what is there now is theirs.
            StorageError: The storage failed.
        """
        if read_text(self.io, f"{self.path}/{METADATA_NAME}") != self.mark:
            raise FencedError(
                "the directory was begun anew by another process",
                directory=self.uri,
                to_fix="run one command at a time for a directory, and repeat it for another one",
            )

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
        self.check_mine()
        write_text(self.io, f"{self.path}/{METADATA_NAME}", metadata, overwrite=True)


@contextmanager
def begin_directory(place: Place, operation: str, source: str) -> Iterator[NewDirectory]:
    """Begin a new checkpoint or savepoint, or begin one anew that was never finished.

    Args:
        place: The directory.
        operation: The command that writes it.
        source: The checkpoint or savepoint that it is made of: a path or a URI.

    Guarantee: until `NewDirectory.finish` returns, no query starts from the directory and nothing
    takes it for a savepoint. Only a directory that says, directly before, that this very operation
    did not finish it is cleared.

    Raises:
        InvalidArgumentError: As `check_new`.
        StorageError: The storage failed.
    """
    uri, ids, clock = place.uri, place.ids, place.clock
    with tempfile.TemporaryDirectory(prefix="statestore-operation-") as work:
        Path(f"{work}/fetched").mkdir()
        io, path = place.open(f"{work}/fetched")
        was_begun = check_new(io, path, uri, operation, source)
        mark = metadata_fields(**{_UNFINISHED: operation, "attempt": ids.new_id()})
        io.make_directory(path)
        try:
            write_text(io, f"{path}/{METADATA_NAME}", mark, overwrite=was_begun)
        except FencedError as error:
            raise _not_new(uri, METADATA_NAME) from error
        if was_begun:
            _clear(io, path, clock)
        scratch = f"{work}/scratch"
        if isinstance(io, LocalFileIO):
            # Beside its destination, a file is published by a rename.
            scratch = f"{path}/{TEMPORARY_PREFIX}{ids.new_id()}"
        Path(scratch).mkdir()
        begun = NewDirectory(uri, io, path, mark, scratch, clock, ids)
        try:
            with named_disk_errors(scratch, work):
                yield begun
        except Exception as error:
            begun.raise_if_lost(error)
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _clear(io: TreeFileIO, path: str, clock: Clock) -> None:
    """Delete everything in a directory but `metadata`, though its last writer may not know yet."""
    for _ in range(_CLEARINGS - 1):
        with suppress(StorageError):
            _clear_once(io, path)
            return
        clock.sleep_ms(_BETWEEN_CLEARINGS_MS)
    _clear_once(io, path)


def _clear_once(io: TreeFileIO, path: str) -> None:
    """Delete everything but `metadata` and leases: of a checkpoint that is replaced one is held."""
    leases = lease_directory(f"{path}/state")
    for name in io.list_directories(path):
        if f"{path}/{name}" != leases:
            io.delete_tree(f"{path}/{name}")
    for info in io.list(path):
        if info.name != METADATA_NAME:
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
    with tempfile.TemporaryDirectory(prefix="statestore-operation-") as work:
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
    _, fields = try_read_metadata(io, path)
    if fields is not None and _UNFINISHED in fields:
        if fields[_UNFINISHED] == operation:
            check_apart(uri, source)
            return True
        raise InvalidArgumentError(
            "another operation began the directory and did not finish it",
            kind="unfinished-operation",
            directory=uri,
            begun=fields[_UNFINISHED],
            asked=operation,
            to_fix=f"let the {fields[_UNFINISHED]} end, or delete the directory when it was killed "
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
    """Yield the files of a directory; those below others are looked for last."""
    yield from io.list(path)
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
        "a directory that is to be new is not apart from another checkpoint or savepoint",
        directory=uri,
        other=source,
        to_fix="name a directory that is not in the other one, nor around it",
    )


def _not_new(uri: str, file: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a directory that is to be new has files",
        kind="checkpoint-exists",
        directory=uri,
        file=file,
        to_fix="name another directory, or delete this one if nobody needs it",
    )
