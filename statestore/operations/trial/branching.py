"""The branch of a trial, and the batches that it repeats.

A batch is repeated when its entry of the offset log is in the branch and none of the commit log is:
Spark plans it anew from there, by the same offsets of its sources and at the same time.
"""

from __future__ import annotations

import posixpath
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from statestore.checkpoint.query_log import QueryLog
from statestore.checkpoint.text_files import read_bytes, write_bytes
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.core.providers import IN_DRIVER_MEMORY
from statestore.operations.batches import (
    find_begun_edit,
    raise_unfinished,
    read_own_batch,
    unmarked,
)
from statestore.operations.committed_version import require_own, spark_files_of
from statestore.operations.source_logs import has_input

if TYPE_CHECKING:
    from statestore.operations.checkpoint import OpenCheckpoint

_PLANNED, _COMMITTED = "batchWatermarkMs", "nextBatchWatermarkMs"


def check_triable(checkpoint: OpenCheckpoint) -> None:
    """Check that new code can be tried on a checkpoint.

    Raises:
        IncompatibleError: Another provider wrote it (kind other-provider); or its state is in the
            memory of a driver, or kept elsewhere than in it.
        InvalidArgumentError: It is a savepoint.
    """
    checkpoint.check_of_query()
    is_in_memory = checkpoint.backend in IN_DRIVER_MEMORY
    if is_in_memory or checkpoint.state_root != checkpoint.state_directory:
        raise IncompatibleError(
            "new code cannot be tried on a checkpoint whose state is kept elsewhere",
            checkpoint=checkpoint.uri,
            state="in checkpoint memory" if is_in_memory else checkpoint.state_root,
            to_fix="restore a savepoint of it to a checkpoint that has, and try the code on that",
        )


def first_version_of(checkpoint: OpenCheckpoint, num_batches: int) -> int:
    """Return the version that a trial begins with: so many batches before the newest, or fewer.

    Only batches of the query itself can be repeated, whose version before is there, and of which
    the offset log and the logs of file sources say what they read.

    Args:
        checkpoint: The checkpoint.
        num_batches: How many batches are to be repeated at most, at least 1.

    Raises:
        InvalidArgumentError: None can be.
        NotFoundError, CorruptionError, StorageError: The logs cannot be read.
    """
    newest = checkpoint.newest_version
    names = tuple(spark_files_of(checkpoint))
    first = newest
    for batch in range(newest - 1, max(newest - num_batches, 1) - 1, -1):
        if (
            batch not in checkpoint.planned_batches
            or batch - 1 not in checkpoint.copyable_batches
            or read_own_batch(checkpoint, batch) is not None
        ):
            break
        before, entry = (checkpoint.offsets_entry(each) for each in (batch - 1, batch))
        if not has_input(before, entry, names):
            break
        first = batch
    while first < newest and not _is_there(checkpoint, first):
        first += 1
    if first == newest:
        raise InvalidArgumentError(
            "no batch of the query can be repeated",
            checkpoint=checkpoint.uri,
            newest_version=newest,
            to_fix="let the query run two more batches, then try the code on the newest",
        )
    return first


def _is_there(checkpoint: OpenCheckpoint, version: int) -> bool:
    """Return whether the state of a version was not expired."""
    try:
        checkpoint.heads(version)
    except NotFoundError:
        return False
    return True


def hand(old: OpenCheckpoint, branch: OpenCheckpoint, batch: int) -> None:
    """Plan a batch of a checkpoint in its branch, whose newest batch is the one before.

    The watermark is the branch's: it is the old one, unless the new code has another. What the
    sources have noted since the branch was made comes first: which files they read in the batch.

    Guarantee: on return Spark repeats the batch when the query of the branch is started once.

    Raises:
        NotFoundError: An entry is gone.
        CorruptionError, StorageError: An entry cannot be read, or a storage failed; or as
            `require_own`.
    """
    known = {info.name for info in branch.io.list_tree(branch.path)}
    missing = [
        path for path in spark_files_of(old) if path not in known and not path.startswith("state/")
    ]
    require_own(old)
    for path in missing:
        data = read_bytes(old.io, f"{old.path}/{path}")
        write_bytes(branch.io, f"{branch.path}/{path}", data, overwrite=True)
    entry = old.offsets_entry(batch)
    before = branch.commit_entry(batch - 1).fields
    if _COMMITTED in before:
        entry = replace(entry, metadata={**entry.metadata, _PLANNED: before[_COMMITTED]})
    # Spark takes over what it knows, and no mark of an operation.
    entry = entry.with_conf(unmarked(branch.offsets_entry(batch - 1).conf))
    QueryLog(branch.io, branch.path, "offsets").replace(batch, entry.encode())


def input_of(checkpoint: OpenCheckpoint, version: int) -> tuple[object, ...]:
    """Return what tells the input up to a version from another; errors as `offsets_entry`."""
    entry = checkpoint.offsets_entry(version - 1)
    return entry.sources, entry.metadata.get("batchTimestampMs")


def require_same_input(old: OpenCheckpoint, branch: OpenCheckpoint, compared: int) -> None:
    """Check that a branch has read what the newest version of its checkpoint has, and no more.

    So no row is read twice, and none left out, by a query that goes on from the branch in place of
    the checkpoint; and each batch of it was compared.

    Args:
        old: The checkpoint.
        branch: The branch.
        compared: The version up to which they were compared.

    Raises:
        InvalidArgumentError: It has not; or a batch is planned and not committed (kind
            unfinished-batch), or a rescale was begun and not finished (kind unfinished-operation).
        InUseError: The query runs, and is about to end its batch.
        NotFoundError, CorruptionError, StorageError: The logs cannot be read.
    """
    # A savepoint of it would have the batch of an edit that was begun.
    try:
        begun = find_begun_edit(old)
    except InvalidArgumentError as error:
        # Finished, it would be a batch that no code can repeat.
        if error.kind == "unfinished-operation":
            undo = f"statestore rescale {shlex.quote(old.uri)} --undo --yes"
            error.to_fix = f"take it back by `{undo}`, then promote"
        raise
    if begun is not None:
        raise_unfinished(old)
    if branch.newest_version > compared or not branch.is_between_batches:
        # Tried again it would be compared as it is, and stay ahead.
        trial = shlex.quote(posixpath.dirname(branch.uri.rstrip("/")))
        raise InvalidArgumentError(
            "the branch of the trial has gone on since the new code was compared",
            checkpoint=branch.uri,
            newest_version=branch.newest_version,
            tried_version=compared,
            to_fix=f"drop the trial by `statestore drop {trial} --yes`, and try the code again",
        )
    mine = [(each.newest_version, input_of(each, each.newest_version)) for each in (old, branch)]
    is_compared = old.newest_version == compared
    if mine[0] != mine[1] or not is_compared:
        raise InvalidArgumentError(
            "the checkpoint has gone on since the new code was tried",
            checkpoint=old.uri,
            newest_version=old.newest_version,
            tried_version=min(branch.newest_version, compared),
            to_fix="stop the query, and try the code again: it goes on where the trial is; then "
            "promote",
        )
