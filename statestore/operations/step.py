"""Step: an operation that changes a checkpoint where it is.

What is true of all of them is here: nothing is changed but under the lease, which is asked before
every change, and after the history says that the operation was begun. The next version is made in
one order: state first, then the entry of the offset log, Spark's metadata, and the entry of the
commit log, from which the version counts.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.history import Event, append, event_of, newest_line
from statestore.checkpoint.operator_metadata import write_num_partitions
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY, LogName, QueryLog
from statestore.checkpoint.text_files import read_bytes, write_bytes
from statestore.core.errors import FencedError, InUseError, NotFoundError
from statestore.operations.batches import (
    checkpoint_ids_of,
    mark,
    with_every_expiry_due,
    with_next_watermark,
)
from statestore.operations.in_use import exclusive_use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import StoreName
    from statestore.operations.batches import BatchKind
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.in_use import ExclusiveUse

logger = logging.getLogger(__name__)


class Step:
    """An operation under way; made by `step`.

    Attributes:
        checkpoint: What it changes, by `location`, `files`, `offsets` and `commits`, each of which
            asks before a change.
        to_version: The version that it makes or goes back to, the newest where it changes none; to
            be set before anything is changed.
        result: What the history says at the end: plain JSON, and no key or value of a row.
    """

    def __init__(
        self,
        checkpoint: OpenCheckpoint,
        use: ExclusiveUse,
        operation: str,
        options: Mapping[str, Any],
    ) -> None:
        self.checkpoint = checkpoint
        self.to_version = checkpoint.newest_version
        self.result: dict[str, Any] = {}
        self._use = use
        self._operation = operation
        self._options = options
        self._lock = threading.Lock()
        self._begun: Event | None = None

    def commit(
        self,
        batch: int,
        kind: BatchKind,
        made: Mapping[StoreName, PublishedFile],
        *,
        is_begun: bool,
        num_partitions: int | None = None,
        watermark_ms: int | None = None,
        puts_expiries: bool = False,
    ) -> None:
        """Let the query go on from a version whose state was written.

        Args:
            batch: The batch that makes it.
            kind: What the batch is: rescale, edit or forget.
            made: The version of every store.
            is_begun: Whether the batch was planned before, by a call that did not end.
            num_partitions: State partitions from the batch on, None for those of before.
            watermark_ms: The watermark from now on, None for that of before.
            puts_expiries: Whether rows are put that may have expired.

        Guarantee: on return the query goes on from the version. Its first batch evicts what has
        ended by the watermark, and takes rows that are late by it, as when a batch of its own moved
        it. After a kill before the entry of the commit log it goes on from the version before, with
        the watermark of the batch before, or is refused where the number of state partitions
        changes. After one behind it, it goes on from the new version, where rows that were put and
        had expired may stay, which Spark hides.

        Raises:
            FencedError: The batch was planned or committed meanwhile.
            InUseError: The lease was lost.
            CorruptionError, StorageError: A file of Spark's cannot be read or written.
        """
        checkpoint = self.checkpoint
        layout = {} if num_partitions is None else {NUM_PARTITIONS_KEY: str(num_partitions)}
        done = checkpoint.commit_entry(batch - 1)
        before = checkpoint.offsets_entry(batch - 1).with_conf(layout)
        planned = before.with_conf(mark(kind, is_committed=False))
        committed = before.with_conf(mark(kind, is_committed=True))
        if is_begun:
            checkpoint.offsets.replace(batch, planned.encode())
        else:
            checkpoint.offsets.add(batch, planned.encode())
        if num_partitions is not None:
            self.write_num_partitions(num_partitions, batch)
        if done.checkpoint_ids:
            stores = {one.id: [store.name for store in one.stores] for one in checkpoint.operators}
            done = done.with_checkpoint_ids(checkpoint_ids_of(stores, made))
        if watermark_ms is not None:
            done = with_next_watermark(done, watermark_ms)
        checkpoint.commits.add(batch, done.encode())
        if puts_expiries:
            # Not before: a query that runs a planned batch takes its time from there.
            committed = with_every_expiry_due(committed)
        if committed != planned:
            checkpoint.offsets.replace(batch, committed.encode())

    def write_num_partitions(self, num_partitions: int, batch: int) -> None:
        """Write the number of state partitions from a batch on into every operator's metadata.

        What it says of later batches goes.

        Raises:
            InUseError: The lease was lost.
            CorruptionError, StorageError: Metadata cannot be read or written.
        """
        checkpoint = self.checkpoint
        operators = (operator.id for operator in checkpoint.operators)
        write_num_partitions(
            checkpoint.files, checkpoint.state_directory, operators, num_partitions, batch
        )

    def take_back(self, name: LogName, batch: int) -> None:
        """Delete the entry of a batch from a log, if it is there.

        Raises:
            InUseError: The lease was lost. It may have been while the process stood still before
                the entry went: a query may go by it, so the entry is put back.
            StorageError: The storage failed.
        """
        checkpoint = self.checkpoint
        path = QueryLog(checkpoint.io, checkpoint.path, name).path(batch)
        entry = None
        with suppress(NotFoundError):
            entry = read_bytes(checkpoint.io, path)
        getattr(checkpoint, name).delete(batch)
        try:
            self._use.require_held()
        except InUseError:
            if entry is not None:
                with suppress(FencedError):  # a query has written its own
                    write_bytes(checkpoint.io, path, entry, overwrite=False)
            raise

    def before_change(self) -> None:
        """Ask the lease, and before the first change write into the history that it is begun.

        Raises:
            InUseError: The lease was lost (kind checkpoint-in-use).
            StorageError: The storage failed.
        """
        self._use.require_held()
        with self._lock:
            if self._begun is None:
                self._begun = self._unfinished() or self._begin()

    def end(self) -> None:
        """Write into the history that it is done; nothing where nothing was changed.

        A call that has nothing to do after one that was killed at its end completes its entry.

        Raises:
            InUseError: Nothing was changed, and the lease was lost.
            StorageError: The storage failed.
        """
        if self._begun is None:
            self._use.require_held()
        begun = self._begun or self._unfinished()
        if begun is None:
            return
        try:
            self._use.require_held()
        except InUseError as error:
            # Somebody else may be at it, and write the history.
            logger.warning("the history does not say that the operation is done: %s", error)
            return
        done = replace(
            self._event(begun.id),
            from_version=begun.from_version,
            event="done",
            result=self.result,
        )
        append(self.checkpoint.io, self.checkpoint.path, done)

    def _unfinished(self) -> Event | None:
        """Return the line of a call that asked for the same and did not end."""
        newest = event_of(newest_line(self.checkpoint.io, self.checkpoint.path))
        if newest is None or newest.event == "done":
            return None
        asked = (self._operation, self.to_version, self._options)
        return newest if (newest.operation, newest.to_version, newest.options) == asked else None

    def _begin(self) -> Event:
        event = self._event(self.checkpoint.place.ids.new_id())
        append(self.checkpoint.io, self.checkpoint.path, event)
        return event

    def _event(self, event_id: str) -> Event:
        checkpoint = self.checkpoint
        return Event(
            event_id,
            self._operation,
            int(checkpoint.clock.now_ms()),
            checkpoint.newest_version,
            self.to_version,
            options=self._options,
        )


@contextmanager
def step(checkpoint: OpenCheckpoint, operation: str, **options: Any) -> Iterator[Step]:
    """Change a checkpoint where it is, within a block.

    Args:
        checkpoint: The checkpoint, as `exclusive_use`.
        operation: As there.
        **options: What the operation was asked for: plain JSON, and no key or value of a row.

    Guarantee: nothing is changed by `location`, `files`, `offsets` and `commits` of the checkpoint
    unless its lease is held and its history says `begun`. The history says `done` when the block
    has ended without a raise, unless the lease was lost meanwhile. A call that asks for the same as
    one that did not end goes on with its entry.

    Raises:
        As `exclusive_use`, and `Step.end`.
    """
    with exclusive_use(checkpoint, operation) as use:
        made = Step(checkpoint, use, operation, options)
        with checkpoint.guard.asking(made.before_change):
            yield made
        made.end()
