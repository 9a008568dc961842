"""Savepoints and branches of a query: those that lie directly in a directory."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    NotFoundError,
    StorageError,
)
from statestore.operations.metadata_file import read_branch_origin
from statestore.operations.savepoint.savepoint import SavepointInfo, read_savepoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.io.file_io import FileIO
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundSavepoint:
    """A savepoint of a query.

    Attributes:
        uri: Where it is.
        savepoint: What it says about itself.
    """

    uri: str
    savepoint: SavepointInfo


def find_savepoints(checkpoint: OpenCheckpoint, directory: Place) -> tuple[FoundSavepoint, ...]:
    """Return the query's savepoints that lie directly in a directory.

    Order and errors as `Checkpoint.savepoints`.
    """
    found: list[FoundSavepoint] = []
    for io, path, uri in _directories_in(checkpoint, directory):
        with _passing_over(uri), suppress(NotFoundError, CorruptionError, IncompatibleError):
            savepoint = read_savepoint(io, path, uri)
            if savepoint.query_id == (checkpoint.query_id or ""):
                found.append(FoundSavepoint(uri, savepoint))
    return tuple(sorted(found, key=lambda one: one.savepoint.version))


@dataclass(frozen=True, slots=True)
class FoundBranch:
    """A branch of a checkpoint.

    Attributes:
        uri: Where it is.
        version: The version that it began with.
    """

    uri: str
    version: int


def find_branches(checkpoint: OpenCheckpoint, directory: Place) -> tuple[FoundBranch, ...]:
    """Return the branches of a checkpoint that lie directly in a directory, oldest version first.

    Arguments and errors as `find_savepoints`.
    """
    if checkpoint.query_id is None:
        return ()
    found: list[FoundBranch] = []
    for io, path, uri in _directories_in(checkpoint, directory):
        with _passing_over(uri):
            origin = read_branch_origin(io, path)
            if origin is not None and origin.query_id == checkpoint.query_id:
                found.append(FoundBranch(uri, origin.version))
    return tuple(sorted(found, key=lambda one: one.version))


@contextmanager
def _passing_over(uri: str) -> Iterator[None]:
    """Pass over a directory that may not be read, with a warning."""
    try:
        yield
    except StorageError as error:
        if error.kind != "permission-denied":
            raise
        logger.warning("a directory is passed over, which may not be read: %s", uri)


def _directories_in(
    checkpoint: OpenCheckpoint, directory: Place
) -> Iterator[tuple[FileIO, str, str]]:
    """Yield storage, path and URI of what lies directly in a directory."""
    io, path = directory.open(checkpoint.scratch_directory)
    for child in sorted(io.list_directories(path or "/")):
        yield io, f"{path}/{child}", f"{directory.uri.rstrip('/')}/{child}"
