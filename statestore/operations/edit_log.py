"""The batch by which Spark's logs take over rows that an edit wrote.

An edit is a batch that reads nothing: its entry of the offset log is that of the batch before, with
a mark. Planned but not committed it changes nothing: a query that is started runs it on the state
of before, without input, and goes on. Committed, it is what the next batch goes on from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from statestore.core.errors import InvalidArgumentError
from statestore.operations.rescale_log import raise_unfinished, read_rescale_batch

if TYPE_CHECKING:
    from statestore.checkpoint.query_log import CommitEntry, OffsetsEntry
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.rescale_log import CheckpointIds

MARK = "statestore.edit"
"""Key in the conf of an entry of the offset log; Spark takes those it knows, and no others."""
Marked = Literal["edit", "forget", "forgotten"]
"""What it says: an edit; a `forget` that was begun; one that was committed."""
_PLANNED, _COMMITTED = "batchWatermarkMs", "nextBatchWatermarkMs"


@dataclass(frozen=True, slots=True)
class EditBatch:
    """The batch of an edit that is to be made.

    Attributes:
        batch: Its number.
        is_begun: Whether an edit that did not end planned it.
        watermark_ms: The query's watermark until now, milliseconds since the Unix epoch.
    """

    batch: int
    is_begun: bool
    watermark_ms: int


def find_edit_batch(checkpoint: OpenCheckpoint) -> EditBatch:
    """Return the batch that an edit of the newest version is.

    Raises:
        InvalidArgumentError: The newest batch is neither committed nor an edit's (kind
            unfinished-batch), or it is a rescale's (kind unfinished-operation); or it is a
            savepoint.
        InUseError: The query runs, and is about to end its batch.
        NotFoundError, CorruptionError, StorageError: The logs cannot be read.
    """
    checkpoint.check_of_query()
    newest, committed = checkpoint.newest_planned, checkpoint.newest_committed
    if newest is None or committed is None:
        raise_unfinished(checkpoint)
    is_begun = newest != committed
    if is_begun:
        found = read_rescale_batch(checkpoint, newest)
        if found is not None:
            raise InvalidArgumentError(
                "a rescale of the checkpoint was begun and not finished",
                kind="unfinished-operation",
                checkpoint=checkpoint.uri,
                batch=newest,
                begun=found.num_partitions,
                to_fix="finish it by `statestore rescale`, or take it back (--undo), then repeat "
                "this",
            )
        if MARK not in checkpoint.offsets_entry(newest).conf:
            raise_unfinished(checkpoint)
    watermark_ms = int(checkpoint.commit_entry(committed).fields.get(_COMMITTED, 0))
    return EditBatch(committed + 1, is_begun, watermark_ms)


def commit_edit(
    checkpoint: OpenCheckpoint,
    edit: EditBatch,
    ids: CheckpointIds,
    watermark_ms: int | None,
    *,
    operation: Literal["edit", "forget"] = "edit",
) -> None:
    """Let the query go on from an edited version; the entry of the commit log decides.

    Args:
        checkpoint: The checkpoint.
        edit: The batch.
        ids: Checkpoint IDs of the version in format v2, empty in v1.
        watermark_ms: The watermark from now on; None for that of before.
        operation: What the batch is.

    Guarantee: on return the query goes on from the edited version, and drops rows that are late by
    the watermark from its first batch on. After a kill before the entry of the commit log it goes
    on from the version before; after one behind it from the edited one, whose first batch may still
    take rows that are late by the new watermark, as when a batch of its own moved it.

    Raises:
        FencedError: The batch was planned or committed meanwhile.
        StorageError: The storage failed.
    """
    entry = checkpoint.offsets_entry(edit.batch - 1).with_conf({MARK: operation})
    # The watermark last: a query that runs a planned batch takes it from here.
    if edit.is_begun:
        checkpoint.offsets.replace(edit.batch, entry.encode())
    else:
        checkpoint.offsets.add(edit.batch, entry.encode())
    done = checkpoint.commit_entry(edit.batch - 1)
    if ids:
        done = done.with_checkpoint_ids(ids)
    if watermark_ms is None:
        checkpoint.commits.add(edit.batch, done.encode())
        return
    offsets, done = with_watermark(entry, done, watermark_ms)
    checkpoint.commits.add(edit.batch, done.encode())
    checkpoint.offsets.replace(edit.batch, offsets.encode())


def mark_forgotten(checkpoint: OpenCheckpoint, edit: EditBatch) -> None:
    """Note of a committed `forget` that nothing may go back behind it: files are deleted then.

    Raises:
        StorageError: The storage failed.
    """
    entry = checkpoint.offsets_entry(edit.batch - 1).with_conf({MARK: "forgotten"})
    checkpoint.offsets.replace(edit.batch, entry.encode())


def read_mark(checkpoint: OpenCheckpoint, batch: int) -> Marked | None:
    """Return what a planned batch is, None where it is no edit.

    Raises:
        NotFoundError, CorruptionError, StorageError: The entry cannot be read.
    """
    # A rescale copies the entry of the batch before, with its mark.
    if read_rescale_batch(checkpoint, batch) is not None:
        return None
    found = checkpoint.offsets_entry(batch).conf.get(MARK)
    return cast("Marked", found) if found in ("edit", "forget", "forgotten") else None


def with_watermark(
    offsets: OffsetsEntry, commit: CommitEntry, watermark_ms: int
) -> tuple[OffsetsEntry, CommitEntry]:
    """Return the entries of a batch with the watermark that the next one has.

    Spark evicts by the watermark in the commit entry of the batch before, and drops late rows by
    that in its offsets entry.
    """
    return (
        replace(offsets, metadata={**offsets.metadata, _PLANNED: watermark_ms}),
        replace(commit, fields={**commit.fields, _COMMITTED: watermark_ms}),
    )
