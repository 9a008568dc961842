"""Upkeep: what is changed of a checkpoint in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.api.state import State
from statestore.operations.rescale import rescale
from statestore.operations.result import Progress, no_progress
from statestore.operations.upkeep import compact, expire, repair
from statestore.store.store import open_store

if TYPE_CHECKING:
    from statestore.operations.rescale.results import Rescale, UndoRescale
    from statestore.operations.upkeep.compact import Compact
    from statestore.operations.upkeep.expire import Expire
    from statestore.operations.upkeep.repair import Repair
    from statestore.store.store import Backend, Store


class Upkeep(State):
    """The state of a query, and what changes it where it is."""

    def open_store(
        self,
        operator: int = 0,
        partition: int = 0,
        store: str = "default",
        *,
        version: int | None = None,
        checkpoint_id: str | None = None,
        num_partitions: int | None = None,
        checkpoint_format: int = 1,
        backend: Backend | None = None,
    ) -> Store:
        """Open one state store at a version, to read and write its bytes.

        Args:
            operator: Operator ID.
            partition: State partition.
            store: Store name.
            version: Version to open, 0 for the empty store, None for the newest: of a query's
                checkpoint the newest that a batch has committed.
            checkpoint_id: The attempt in checkpoint format v2; None takes the only one there is.
            num_partitions: Checked against the checkpoint; None takes the checkpoint's, or 1 in a
                new one.
            checkpoint_format: 1 or 2, for a new store; an existing one keeps its own.
            backend: State backend; None takes the checkpoint's, or filesystem in a new one.

        Returns:
            An open store, owned by the caller; close it or use it as a context manager.

        Raises:
            NotFoundError: The version is not there.
            InvalidArgumentError: Several attempts made the version and none was named.
            IncompatibleError, FencedError, CorruptionError, StorageError: It cannot be restored.
        """
        with self._reach.using():
            return open_store(
                self._reach.place,
                operator,
                partition,
                store,
                version=version,
                checkpoint_id=checkpoint_id,
                num_partitions=num_partitions,
                checkpoint_format=checkpoint_format,
                backend=backend,
            )

    def rescale(
        self,
        num_partitions: int,
        *,
        count_rows: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Rescale:
        """Change the number of state partitions.

        Args:
            num_partitions: Number of state partitions to have, 1 to 32768.
            count_rows: Whether to read every row, so that the rows of the new state partitions are
                known where trailers do not tell them.
            dry_run: Whether to return what it would do, and change nothing.
            progress: Called with what is done and the total: a new state partition of a store
                counts 1, or where every row is hashed anew each row that is read and each that is
                written.

        Guarantee: on return the query goes on from the same rows in the new state partitions. After
        a raise, or a kill at any moment, it either starts on the old or new ones, whole, or is
        refused because the rescale is unfinished, by Spark or before Spark 4.2 by the provider; the
        same call again finishes it, `undo_rescale` takes it back.

        Raises:
            InUseError: A query, or another operation, is writing the checkpoint.
            InvalidArgumentError: The number is out of range; a batch is planned but not committed
                (kind unfinished-batch); another rescale is (kind unfinished-operation); or the
                query has no state.
            IncompatibleError: Another provider's checkpoint, or state that does not follow its keys
                (kind not-rescalable).
            NotFoundError: There is no checkpoint, or a version of a store is not there; of the heap
                backend also without a session of its driver (kind driver-lost).
            CorruptionError, FencedError, StorageError: A file cannot be read.
        """
        with self._opened() as checkpoint:
            return rescale.rescale(
                checkpoint,
                num_partitions,
                count_rows=count_rows,
                dry_run=dry_run,
                progress=progress or no_progress,
            )

    def undo_rescale(self, *, dry_run: bool = False) -> UndoRescale:
        """Go back to the state partitions before the newest rescale, finished or not.

        Args:
            dry_run: Whether to return what it would do, and change nothing.

        Guarantee: on return the checkpoint is as it was before the rescale. After a raise or a kill
        Spark refuses to start the query, and the same call again goes on; so does `rescale`.

        Raises:
            InUseError: A query, or another operation, is writing the checkpoint.
            InvalidArgumentError: The newest batch is not a rescale's: nothing can be undone, or no
                more since a batch has run; or what the rescale was made of is not all here.
            NotFoundError, IncompatibleError, CorruptionError, StorageError: As `rescale`.
        """
        with self._opened() as checkpoint:
            return rescale.undo_rescale(checkpoint, dry_run=dry_run)

    def repair(
        self, *, deep: bool = True, dry_run: bool = False, progress: Progress | None = None
    ) -> Repair:
        """Take the checkpoint back to its newest version that can be read.

        Args:
            deep: Whether a version counts as readable only after every byte of it was read.
            dry_run: Whether to return what it would do, and change nothing. It looks for the
                version all the same.
            progress: As `verify`, once for each version that is tried.

        Guarantee: on return the query starts from `Repair.version`, and every entry that was taken
        out of Spark's logs is in `Repair.aside`. After a raise or a kill a query starts from that
        version, from the one it would have started from before, or Spark refuses; doing it again
        finishes it.

        Raises:
            InUseError: A query is writing the checkpoint, or may be, since this process stood still
                for longer than its lease lasts; what is left is done by doing it again.
            NotFoundError: No checkpoint, or no version that can be read (kind version-not-found),
                or none since keys were forgotten.
            InvalidArgumentError: A savepoint, which is never changed; or as `verify`.
            IncompatibleError, StorageError: As `verify`: what cannot be reached is not taken for
                damaged.
        """
        with self._opened() as checkpoint:
            return repair.repair(
                checkpoint, deep=deep, dry_run=dry_run, progress=progress or no_progress
            )

    def expire(
        self, keep: int = 2, *, dry_run: bool = False, progress: Progress | None = None
    ) -> Expire:
        """Delete the versions before the newest few, with the files that only they need.

        Savepoints are elsewhere and never touched. A file that nobody names goes when it is older
        than the option orphan.ageMs.

        Args:
            keep: How many versions stay loadable, the newest; at least 2.
            dry_run: Whether to return what it would do, and change nothing.
            progress: Called with the stores done and their number.

        Guarantee: the newest `keep` versions stay loadable, also after a raise half way, and so do
        those that a savepoint or branch being made has pinned.

        Raises:
            InUseError: A query is writing the checkpoint, or may be, since this process stood still
                for longer than its lease lasts.
            NotFoundError: No checkpoint.
            InvalidArgumentError: keep is less than 2; or a savepoint, which is never changed.
            CorruptionError, IncompatibleError, StorageError: A trailer cannot be read; nothing can
                be deleted safely then.
        """
        with self._opened() as checkpoint:
            return expire.expire(
                checkpoint, keep, dry_run=dry_run, progress=progress or no_progress
            )

    def compact(self, *, dry_run: bool = False, progress: Progress | None = None) -> Compact:
        """Write the newest version as one file a store: versions after it need no older files.

        A version is the changes to the one before it, so it keeps the files of those from being
        expired until a snapshot, or of the rocksdb backend all of them merged, stands for them.

        Args:
            dry_run: Whether to return what it would do, and change nothing.
            progress: Called with the stores done and their number.

        Guarantee: on return every store has the version in one file, which is durable; no version
        has changed. After a raise half way the stores that were done have it.

        Raises:
            NotFoundError: No checkpoint.
            InvalidArgumentError: A savepoint, which is never changed; or the package that the state
                backend needs is not installed.
            InUseError: A query is writing the checkpoint, or may be, since this process stood still
                for longer than its lease lasts.
            CorruptionError, FencedError, IncompatibleError, StorageError: A file cannot be read, or
                the storage or local disk failed.
        """
        with self._opened() as checkpoint:
            return compact.compact(checkpoint, dry_run=dry_run, progress=progress or no_progress)
