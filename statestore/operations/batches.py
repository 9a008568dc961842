"""Batches of Spark's logs that operations make: they read nothing.

The entry of the offset log is that of the batch before with a mark. Committed, the batch is what
the next one goes on from. Planned and not committed

    of an edit or a `forget` it changes nothing: a query that is started runs it on the state of
        before, without input, and goes on. By the watermark and the time of the batch before it
        gives its sink nothing. So the operation may be done again, whether a query was started
        meanwhile or not, which nothing tells until it commits
    of a rescale it has another `spark.sql.shuffle.partitions`, as in Spark's own repartition: it is
        unfinished, and Spark refuses to start the query, or before Spark 4.2 the provider does

Only the offset log's conf decides; `numPartitions` of the operator metadata is for people.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from statestore.codec.references import StoreName
from statestore.core.clock import LAST_MS
from statestore.core.errors import InvalidArgumentError
from statestore.operations.in_use import require_not_in_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.checkpoint.query_log import CommitEntry, OffsetsEntry
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.checkpoint import OpenCheckpoint

BatchKind = Literal["rescale", "edit", "forget", "forgotten"]
"""A rescale; an edit; a `forget` that was begun; one that was committed and may have deleted files:
nothing goes back behind it."""
_RESCALE_MARK = "statestore.rescale"
_EDIT_MARK = "statestore.edit"
"""Keys in the conf of an entry of the offset log, by which the shim knows that no sink was given
the batch. Spark takes those it knows, and no others."""
_WHEN_COMMITTED = {"edit": "edited", "forget": "forgotten"}
"""Values of the second key: that of a planned batch, and what it becomes when the operation has
committed it. A committed batch that still has the former was run by a query, after a kill."""
_LATE, _TIME, _NEXT = "batchWatermarkMs", "batchTimestampMs", "nextBatchWatermarkMs"

CheckpointIds = dict[str, list[list[str]]]
"""By operator ID: for each state partition one for each store, in the operator metadata's order."""


@dataclass(frozen=True, slots=True)
class OwnBatch:
    """A batch that an operation made or began.

    Attributes:
        batch: Its number.
        kind: Its kind.
        num_partitions_before: Number of state partitions of the batch before; the same unless it is
            a rescale's.
        num_partitions: Number of state partitions from it on.
        is_committed: Whether it counts: the operation has made its version.
    """

    batch: int
    kind: BatchKind
    num_partitions_before: int
    num_partitions: int
    is_committed: bool

    @property
    def version(self) -> int:
        """The state version it makes."""
        return self.batch + 1


def mark(kind: BatchKind, *, is_committed: bool) -> dict[str, str]:
    """Return the settings that mark a batch as one of an operation."""
    if kind == "rescale":
        return {_RESCALE_MARK: "true"}
    return {_EDIT_MARK: _WHEN_COMMITTED[kind] if is_committed else kind}


def unmarked(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a batch without those that mark it as one of an operation."""
    return {key: value for key, value in conf.items() if key not in (_RESCALE_MARK, _EDIT_MARK)}


def is_of_operation(checkpoint: OpenCheckpoint, batch: int) -> bool:
    """Return whether a planned batch is an operation's; errors as `read_own_batch`.

    Also of a rescale in a copy, where the batch before has the same number of state partitions, and
    of one that a query has run in place of an operation's.
    """
    if batch in checkpoint.planned_batches:
        conf = checkpoint.offsets_entry(batch).conf
        if _RESCALE_MARK in conf or _EDIT_MARK in conf:
            return True
    return read_own_batch(checkpoint, batch) is not None


def read_own_batch(checkpoint: OpenCheckpoint, batch: int) -> OwnBatch | None:
    """Return a planned batch where it is an operation's, else None.

    Raises:
        IncompatibleError, CorruptionError: As `num_own_partitions`.
        StorageError: The offset log cannot be read.
    """
    now = _num_partitions(checkpoint, batch)
    if now is None:
        return None
    before = _num_partitions(checkpoint, batch - 1)
    is_committed = batch in checkpoint.committed_batches
    if before is not None and before != now:
        return OwnBatch(batch, "rescale", before, now, is_committed)
    # A rescale copies the entry of the batch before, with its mark.
    found = checkpoint.offsets_entry(batch).conf.get(_EDIT_MARK)
    if found == "edited":
        found = "edit"
    elif found in _WHEN_COMMITTED:
        if is_committed:
            return None
    elif found != "forgotten":
        return None
    return OwnBatch(batch, cast("BatchKind", found), now, now, is_committed)


def _num_partitions(checkpoint: OpenCheckpoint, batch: int) -> int | None:
    """Return the number of state partitions of a batch, None where its entry is gone."""
    if batch not in checkpoint.planned_batches:
        return None
    return checkpoint.num_own_partitions(batch + 1)


def find_newest(checkpoint: OpenCheckpoint) -> OwnBatch | None:
    """Return the newest batch where it is an operation's, made or begun, else None.

    Raises:
        InvalidArgumentError: The newest batch is neither committed nor an operation's (kind
            unfinished-batch); or it is a savepoint.
        InUseError: The query runs, and is about to end its batch.
        NotFoundError: A log lacks an entry.
        IncompatibleError, CorruptionError, StorageError: The logs cannot be read.
    """
    checkpoint.check_of_query()
    checkpoint.decide_from_here()
    for batch in checkpoint.done_batches[-1:]:
        checkpoint.offsets_entry(batch)
        checkpoint.commit_entry(batch)
    newest, committed = checkpoint.newest_planned, checkpoint.newest_committed
    assert newest is not None, "a checkpoint has a planned batch"  # noqa: S101
    if committed is None:
        raise_unfinished(checkpoint)
    found = read_own_batch(checkpoint, newest)
    if found is None and newest != committed:
        raise_unfinished(checkpoint)
    return found


def find_rescale(checkpoint: OpenCheckpoint) -> OwnBatch | None:
    """Return the newest batch where it is a rescale's, made or begun, else None.

    Raises:
        As `find_newest`; an edit that was begun is an unfinished batch, which a query ends.
    """
    found = find_newest(checkpoint)
    if found is None or found.kind == "rescale":
        return found
    if not found.is_committed:
        raise_unfinished(checkpoint)
    return None


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


def find_begun_edit(checkpoint: OpenCheckpoint) -> OwnBatch | None:
    """Return the newest batch where it is that of an edit or a `forget` that was begun, else None.

    Raises:
        InvalidArgumentError: A rescale was begun and not finished (kind unfinished-operation).
        As `find_newest`.
    """
    found = find_newest(checkpoint)
    begun = None if found is None or found.is_committed else found
    if begun is not None and begun.kind == "rescale":
        raise InvalidArgumentError(
            "a rescale of the checkpoint was begun and not finished",
            kind="unfinished-operation",
            checkpoint=checkpoint.uri,
            batch=begun.batch,
            begun=begun.num_partitions,
            to_fix="finish it by `statestore rescale`, or take it back (--undo), then repeat this",
        )
    return begun


def find_edit(checkpoint: OpenCheckpoint) -> EditBatch:
    """Return the batch that an edit of the newest version is; errors as `find_begun_edit`."""
    begun = find_begun_edit(checkpoint)
    committed = checkpoint.done_batches[-1]
    watermark_ms = int(checkpoint.commit_entry(committed).fields.get(_NEXT, 0))
    return EditBatch(committed + 1, begun is not None, watermark_ms)


def raise_unfinished(checkpoint: OpenCheckpoint) -> NoReturn:
    """Raise since the newest batch is planned and not committed.

    Raises:
        InvalidArgumentError: Always (kind unfinished-batch), unless a query runs.
        InUseError: The query runs, and is about to end its batch.
    """
    # Of a query that runs, the batch is not to be ended by starting it.
    require_not_in_use(checkpoint)
    raise InvalidArgumentError(
        "the newest batch of the query is planned but not committed",
        kind="unfinished-batch",
        checkpoint=checkpoint.uri,
        planned_batch=checkpoint.newest_planned,
        committed_batch=checkpoint.newest_committed,
        to_fix="start the query as it was and let it end the batch, for example with "
        "trigger(availableNow=True), then repeat this; its rows may have reached the sink already, "
        "so it cannot be left out",
    )


def checkpoint_ids_of(
    stores: Mapping[int, Iterable[str]], made: Mapping[StoreName, PublishedFile]
) -> CheckpointIds:
    """Return the checkpoint IDs that an entry of the commit log has in format v2.

    Args:
        stores: Names of the stores of each operator, in the order of its metadata, by its ID.
        made: The version of every store in each of its state partitions.
    """
    return {
        str(operator): [
            [made[StoreName(operator, partition, name)].trailer.checkpoint_id for name in names]
            for partition in sorted({one.partition for one in made if one.operator == operator})
        ]
        for operator, names in stores.items()
    }


def require_watermark(watermark_ms: Any) -> None:
    """Refuse what Spark cannot read as a watermark, or what is past every time.

    Raises:
        InvalidArgumentError: It is no int of milliseconds from 1970 to the year 9999.
    """
    if type(watermark_ms) is not int or not 0 <= watermark_ms <= LAST_MS:
        raise InvalidArgumentError(
            "the watermark is not a time from 1970 to the year 9999 in milliseconds",
            watermark_ms=watermark_ms,
            to_fix="give an int of milliseconds since the Unix epoch, of the year 9999 at most",
        )


def evicts_a_range(families: Iterable[ColumnFamily]) -> bool:
    """Return whether Spark looks for rows to evict only behind the watermark of late rows.

    So in state format 4 of joins (`SymmetricHashJoinStateManagerV4`, Spark 4.3): it takes those
    before to be gone.
    """
    return any(family.encoder.startswith("timestamp-") for family in families)


def with_next_watermark(commit: CommitEntry, watermark_ms: int) -> CommitEntry:
    """Return the entry of a batch with the watermark by which the next one evicts."""
    return replace(commit, fields={**commit.fields, _NEXT: watermark_ms})


def with_late_watermark(offsets: OffsetsEntry, watermark_ms: int) -> OffsetsEntry:
    """Return the entry of a batch with the watermark by which the next one drops late rows.

    See `evicts_a_range`.
    """
    return replace(offsets, metadata={**offsets.metadata, _LATE: watermark_ms})


def with_every_expiry_due(offsets: OffsetsEntry) -> OffsetsEntry:
    """Return the entry of a batch after which the next one evicts all that has expired.

    Spark takes what expired before the time of the batch before to be gone.
    """
    return replace(offsets, metadata={**offsets.metadata, _TIME: 0})
