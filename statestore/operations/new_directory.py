"""A new checkpoint or savepoint while it is written: nobody takes it for whole before it is.

Spark keeps the query's ID in the file `metadata` and refuses to start where that has none. So it is
written first, saying what is under way, and last, with what makes the directory whole. A directory
that was begun and not finished is cleared by whoever begins it again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.query_log import read_text, write_text
from statestore.core.clock import SystemClock
from statestore.core.errors import FencedError, InvalidArgumentError, NotFoundError
from statestore.core.ids import RandomIds
from statestore.core.options import StateStoreOptions
from statestore.core.version import __version__
from statestore.io.local import TEMPORARY_PREFIX, LocalFileIO
from statestore.io.s3_settings import S3Settings
from statestore.io.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.core.clock import Clock
    from statestore.core.ids import IdSource
    from statestore.io.file_io import FileIO, TreeFileIO

METADATA_NAME = "metadata"
_KEY = "statestore"
_UNFINISHED = "unfinished"


def unfinished_metadata(operation: str, **fields: object) -> str:
    """Return what `metadata` says while an operation makes the directory: no query starts."""
    return metadata_fields(**{_UNFINISHED: operation} | fields)


def metadata_fields(**fields: object) -> str:
    """Return the text of a `metadata` file that is ours; Spark finds no query ID in it."""
    head: dict[str, object] = {"writer": f"statestore {__version__}"}
    return json.dumps({_KEY: head | fields}, indent=2)


def read_metadata(io: FileIO, directory: str) -> tuple[str | None, dict[str, Any] | None]:
    """Return the query ID in a directory's `metadata`, and what is there of ours, None for neither.

    Raises:
        StorageError: The storage failed.
    """
    try:
        fields = json.loads(read_text(io, f"{directory}/{METADATA_NAME}"))
    except (NotFoundError, ValueError):
        return None, None
    if not isinstance(fields, dict):
        return None, None
    return fields.get("id"), fields.get(_KEY)


def check_finished(fields: dict[str, Any] | None, uri: str) -> None:
    """Check that a directory is not one that was begun and not finished.

    Raises:
        NotFoundError: It is (kind unfinished-operation).
    """
    if fields and _UNFINISHED in fields:
        raise NotFoundError(
            "the directory was begun and not finished",
            kind="unfinished-operation",
            directory=uri,
            operation=fields[_UNFINISHED],
            to_fix="wait for that command, or repeat it when it was killed: it begins anew",
        )


@dataclass(frozen=True)
class NewDirectory:
    """A directory that only its maker writes.

    Attributes:
        uri: As the caller named it.
        io: Its storage.
        path: The directory there.
        scratch_directory: Local directory for work, on the same file system if that is local.
        clock: Source of time.
        ids: Source of IDs.
        mark: What `metadata` says until the directory is whole.
    """

    uri: str
    io: TreeFileIO
    path: str
    scratch_directory: str
    clock: Clock
    ids: IdSource
    mark: str

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
def begin_directory(
    uri: str,
    operation: str,
    *,
    options: StateStoreOptions | None = None,
    io: TreeFileIO | None = None,
    ids: IdSource | None = None,
    clock: Clock | None = None,
) -> Iterator[NewDirectory]:
    """Begin a new checkpoint or savepoint, or begin one anew that was never finished.

    Args:
        uri: The directory: a path, or a `file:`, `s3:` or `s3a:` URI.
        operation: The command that writes it.
        options: How to reach its storage (`s3.*`); defaults when None.
        io: Storage of `uri`, which is then a path of it; what the URI names when None.
        ids: Source of IDs, random when None.
        clock: Source of time, the machine's when None.

    Guarantee: until `NewDirectory.finish` returns, no query starts from the directory and nothing
    takes it for a savepoint.

    Raises:
        InvalidArgumentError: It is there already (kind checkpoint-exists), or a storage that only
            Spark opens.
        StorageError: The storage failed.
    """
    ids = ids or RandomIds()
    clock = clock or SystemClock()
    with tempfile.TemporaryDirectory(prefix="statestore-operation-") as work:
        path = uri
        if io is None:
            settings = S3Settings.from_options(options or StateStoreOptions())
            io, path = open_storage(uri, work, settings, clock)
        path = path.rstrip("/")
        was_begun = _check_new(io, path, uri)
        mark = unfinished_metadata(operation, attempt=ids.new_id())
        io.make_directory(path)
        try:
            write_text(io, f"{path}/{METADATA_NAME}", mark, overwrite=was_begun)
        except FencedError as error:
            raise not_new(uri, METADATA_NAME) from error
        for info in io.list_tree(path):
            if info.name != METADATA_NAME:
                io.delete(f"{path}/{info.name}")
        scratch = work
        if isinstance(io, LocalFileIO):
            # Beside its destination, a file is published by a rename.
            scratch = f"{path}/{TEMPORARY_PREFIX}{ids.new_id()}"
            Path(scratch).mkdir()
        try:
            yield NewDirectory(uri, io, path, scratch, clock, ids, mark)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def check_target(
    uri: str, options: StateStoreOptions, clock: Clock, io: TreeFileIO | None = None
) -> None:
    """Check that a directory may be begun, without writing anything.

    Raises:
        InvalidArgumentError: There are files in it (kind checkpoint-exists).
        StorageError: The storage failed.
    """
    path = uri
    with tempfile.TemporaryDirectory(prefix="statestore-operation-") as work:
        if io is None:
            io, path = open_storage(uri, work, S3Settings.from_options(options), clock)
        _check_new(io, path.rstrip("/"), uri)


def _check_new(io: TreeFileIO, path: str, uri: str) -> bool:
    """Check that a directory may be begun; return whether it was begun before and not finished."""
    if is_unfinished(io, path):
        return True
    for info in io.list_tree(path):
        raise not_new(uri, info.name)
    return False


def is_unfinished(io: FileIO, directory: str) -> bool:
    """Return whether a directory was begun by an operation and not finished.

    Raises:
        StorageError: The storage failed.
    """
    _, fields = read_metadata(io, directory)
    return fields is not None and _UNFINISHED in fields


def not_new(uri: str, file: str) -> InvalidArgumentError:
    """Return the error for a directory that is to be made and has a file."""
    return InvalidArgumentError(
        "a directory that is to be new has files",
        kind="checkpoint-exists",
        directory=uri,
        file=file,
        to_fix="name another directory, or delete this one if nobody needs it",
    )
