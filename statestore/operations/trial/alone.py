"""Who changes the record of a trial: one call at a time, each that knows what is in it.

A promote holds a lease on the branch from before it looks at the record until the checkpoint is
replaced. Every other call takes that lease for each of its own changes. So none of them writes over
what a promote has written, and a promote approves nothing that was not compared.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from statestore.core.errors import InUseError
from statestore.operations.in_use import exclusive_directory
from statestore.operations.trial.record import CHECKPOINT, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.core.clock import Clock
    from statestore.io.file_io import TreeFileIO
    from statestore.operations.trial.record import Record


@contextmanager
def alone_with(
    io: TreeFileIO, directory: str, known: Record | None, operation: str, clock: Clock
) -> Iterator[None]:
    """Keep promotes, and queries of the branch, away from a trial while a block changes its record.

    Args:
        io: Its storage.
        directory: The trial there.
        known: The record as the caller knows it, None where there was none.
        operation: What is done, in a word, for whoever is refused meanwhile.
        clock: Source of time.

    Raises:
        InUseError: A promote, another operation or a query is at the branch; or another call has
            changed the record.
        CorruptionError, StorageError: The record or a lease cannot be read; the storage failed.
    """
    if CHECKPOINT not in io.list_directories(directory):  # there is nothing to promote
        require_unchanged(io, directory, known)
        yield
        return
    with exclusive_directory(io, f"{directory}/{CHECKPOINT}", operation, clock=clock):
        require_unchanged(io, directory, known)
        yield


def require_unchanged(io: TreeFileIO, directory: str, known: Record | None) -> None:
    """Check that the record of a trial is what a caller knows.

    Raises:
        InUseError: Another call has changed it.
        CorruptionError, StorageError: It cannot be read.
    """
    found = read_record(io, directory)
    if found != known:
        raise InUseError(
            "another call has changed the trial meanwhile",
            kind="checkpoint-under-operation",
            trial=directory,
            state_then="none" if known is None else known.state.name.lower(),
            state_now="none" if found is None else found.state.name.lower(),
            to_fix="wait for the end of that call, and repeat this one",
        )
