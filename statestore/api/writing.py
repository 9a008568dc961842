"""Savepoints of rows that are given: like a checkpoint, or like a query that has never run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from statestore.api.checkpoint import Checkpoint, Directory, Savepoint
from statestore.core.errors import InvalidArgumentError
from statestore.operations.writing.captured import CapturedBatch
from statestore.operations.writing.decide import decide_bootstrap, decide_rows
from statestore.spark.capture import CapturedQuery

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from statestore.api.checkpoint import DirectoryLike
    from statestore.operations.copy_result import CopyResult
    from statestore.operations.copying import Copy
    from statestore.operations.result import Progress


def write_savepoint(
    destination: DirectoryLike,
    *,
    like: Checkpoint | Savepoint | CapturedQuery,
    rows: Mapping[Any, Any],
    version: int | None = None,
    change_schema: bool = False,
    offsets: Sequence[str] | None = None,
    watermark_ms: int = 0,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> CopyResult[Savepoint]:
    """Write a savepoint of rows, from which `Savepoint.restore` makes a checkpoint.

    Args:
        destination: Directory of the savepoint, which must not be there; of any storage, which is
            reached as that of `like`, or by the options of the object given.
        like: A checkpoint or savepoint of the query, whose operators, state partitions and offsets
            it gets; or of a query that has never run what `capture_query` returned, whose directory
            is reached as the destination.
        rows: By address, as `Checkpoint.rows` takes it, the rows: Arrow data as
            `Checkpoint.transform` says. What is not named keeps its rows, and has none in a query
            that has never run.
        version: State version of `like`, None for the newest committed one.
        change_schema: Whether names and types of the columns given are the schemas of keys and
            values from now on; else they must be those there are.
        offsets: Of a captured query: where each source goes on, as Spark's JSON of it; where the
            sources ended when it was captured, if None.
        watermark_ms: Of a captured query: its watermark, milliseconds since the Unix epoch. With a
            join of state format 4 its first batch takes rows that are late by it.
        dry_run: Whether to return what it would do, and change nothing. Files are read, streams are
            not.
        progress: Called with bytes of state done and the total.

    Rows pass by in bounded memory: they are sorted on the local disk, which needs room for them
    three times.

    Guarantee and errors: as `Checkpoint.transform`.
    """
    with _deciding_rows(
        destination,
        like=like,
        rows=rows,
        version=version,
        change_schema=change_schema,
        offsets=offsets,
        watermark_ms=watermark_ms,
    ) as decided:
        of = _directory(like, destination)
        return decided.make(of._savepoint(destination), dry_run=dry_run, progress=progress)


def _directory(
    like: Checkpoint | Savepoint | CapturedQuery, destination: DirectoryLike
) -> Checkpoint | Savepoint:
    """Return where a query is that rows are written for; a captured one is found by its means."""
    if not isinstance(like, Checkpoint | Savepoint | CapturedQuery):
        raise InvalidArgumentError(
            "`like` is not a Checkpoint, a Savepoint or a CapturedQuery",
            to_fix="give one of them, such as Checkpoint(directory)",
            like=like,
        )
    if not isinstance(like, CapturedQuery):
        return like
    if isinstance(destination, Directory):
        return Checkpoint._at(destination._reach.beside(like.directory))
    return Checkpoint(like.directory)


@contextmanager
def _deciding_rows(
    destination: DirectoryLike,
    *,
    like: Checkpoint | Savepoint | CapturedQuery,
    rows: Mapping[Any, Any],
    version: int | None,
    change_schema: bool,
    offsets: Sequence[str] | None,
    watermark_ms: int,
) -> Iterator[Copy]:
    of = _directory(like, destination)
    reach, to = of._reach.with_new(destination)
    if not isinstance(like, CapturedQuery):
        if offsets is not None or watermark_ms:
            raise InvalidArgumentError(
                "a query that has run goes on where it was",
                like=of.uri,
                to_fix="leave offsets and watermark_ms out",
            )
        with reach.checkpoint() as checkpoint:
            yield decide_rows(
                "write",
                checkpoint,
                to.place,
                rows,
                version=version,
                change_schema=change_schema,
                makes=False,
            )
        return
    if version is not None or change_schema:
        raise InvalidArgumentError(
            "a query that has never run has no version, and its own schemas",
            like=of.uri,
            to_fix="leave version and change_schema out",
        )
    batch = CapturedBatch(like.checkpoint_format, offsets, watermark_ms)
    with reach.checkpoint() as checkpoint:
        yield decide_bootstrap(checkpoint, batch, to.place, rows)
