"""Checkpoint and Savepoint: the nouns of the package, with everything that is done to them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from statestore.api.editing import Editing
from statestore.api.upkeep import Upkeep
from statestore.api.writing import Writing
from statestore.operations.operator_map import OperatorMap
from statestore.operations.savepoint.branch import decide_branch
from statestore.operations.savepoint.restore import decide_restore
from statestore.operations.savepoint.savepoint import open_savepoint, take_savepoint
from statestore.operations.upkeep.listing import find_savepoints
from statestore.spark.convert import open_conversion

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from statestore.api.directory import DirectoryLike
    from statestore.operations.copy_result import CopyResult
    from statestore.operations.result import Progress
    from statestore.operations.savepoint.conversion import Convert
    from statestore.operations.savepoint.savepoint import SavepointForm, SavepointInfo


class Checkpoint(Upkeep, Editing, Writing["Savepoint"]):
    """The checkpoint of a query: read, looked after, and gone on from with another shape.

    What changes or makes something returns what it did; with `dry_run=True` it changes nothing, and
    returns what it would do. Both are one class, whose text the command line prints; `made` is the
    savepoint or checkpoint that was made. The query must not run, except for `savepoint`, `branch`
    and `transform`. A checkpoint of Spark's own providers is read and converted; everything else
    refuses it by name (IncompatibleError, kind other-provider).
    """

    def savepoints(self, directory: str | os.PathLike[str]) -> tuple[Savepoint, ...]:
        """Return the query's savepoints that lie directly in a directory, oldest version first.

        Nobody but the user knows where savepoints are, so nothing else is looked at; one that is
        not finished or cannot be read is left out.

        Raises:
            NotFoundError: There is no checkpoint.
            InvalidArgumentError: No storage of that URI (kind unsupported-scheme).
            StorageError: The storage failed.
        """
        reach = self._reach.beside(directory)
        with self._opened() as checkpoint:
            found = find_savepoints(checkpoint, reach.place.uri)
        return tuple(self._savepoint(one.uri, one.savepoint) for one in found)

    def _written(self, destination: DirectoryLike) -> Savepoint:
        return Savepoint._at(self._beside(destination))

    def _savepoint(self, directory: DirectoryLike, info: SavepointInfo) -> Savepoint:
        made = Savepoint._at(self._beside(directory))
        made.__dict__["info"] = info
        return made

    def savepoint(
        self,
        destination: DirectoryLike,
        *,
        version: int | None = None,
        form: SavepointForm = "canonical",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CopyResult[Savepoint]:
        """Copy a committed version, with all that a restart needs, to a new directory.

        The query may run meanwhile. Where its retention deletes a file that is being copied, a
        newer version is copied instead, unless one was asked for.

        Args:
            destination: Directory of the savepoint, which must not be there; of any storage, which
                is reached as this checkpoint's, or by the options of the object given.
            version: State version, None for the newest committed one.
            form: canonical can be restored on every state backend; native is copied faster.
            dry_run: Whether to return what it would do, and change nothing.
            progress: Called with bytes done and the total.

        Guarantee: on return the savepoint is whole and durable, and refers to nothing outside of
        it. After a raise, or when the process is killed, the destination is not taken for a
        savepoint, and the same call may be repeated; the checkpoint is as it was, but for pins that
        expire.

        Raises:
            InvalidArgumentError: The destination has files (kind checkpoint-exists).
            NotFoundError: The version was not committed, or is being expired faster than it is
                copied.
            IncompatibleError: Another provider wrote the checkpoint, or a newer version of this.
            CorruptionError, FencedError, StorageError: A file cannot be read, or a storage failed.
        """
        to = self._beside(destination).place
        with self._reach.using(), self._reach.opened() as place:
            return take_savepoint(
                place,
                to,
                lambda info: self._savepoint(destination, info),
                version=version,
                form=form,
                dry_run=dry_run,
                progress=progress,
            )

    def branch(
        self,
        new: DirectoryLike,
        *,
        version: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CopyResult[Checkpoint]:
        """Make a second checkpoint that shares the state files of this one.

        The query may run meanwhile.

        Args:
            new: The new checkpoint, which must not be there; state files are shared where it is on
                the storage that has the state, and else copied.
            version: State version, None for the newest committed one.
            dry_run: Whether to return what it would do, and change nothing.
            progress: Called with bytes of state done and the total.

        Guarantee: on return the new checkpoint is whole and durable, and neither query can harm the
        other's. After a raise, or when the process is killed, no query starts from it until the
        call is repeated.

        Raises:
            InvalidArgumentError: The new checkpoint has files (kind checkpoint-exists), or the
                state is in a driver's memory.
            NotFoundError: The version was not committed, or was expired meanwhile.
            CorruptionError, IncompatibleError, FencedError, StorageError: A file cannot be read, or
                a storage failed.
        """
        to = self._beside(new)
        with self._opened() as checkpoint:
            return decide_branch(checkpoint, to.place, version).make(
                lambda _: Checkpoint._at(to), dry_run=dry_run, progress=progress
            )

    def convert(
        self,
        new: DirectoryLike,
        to: str,
        *,
        session_conf: Mapping[str, str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Convert[Checkpoint]:
        """Make a new checkpoint from which the query goes on with another provider.

        Args:
            new: Where the new checkpoint is to be: a path or URI that Spark's Hadoop can open, as
                this one's.
            to: filesystem, rocksdb, spark-hdfs or spark-rocksdb; the latter two run Spark.
            session_conf: Configuration of the session that is started for Spark, where this object
                has none, and none is active; it is stopped at the end.
            dry_run: Whether to return what it would do, and change nothing.
            progress: Called with bytes of state done and the total; where Spark runs, with the
                stores that are copied and compared, and their number.

        Guarantee: on return the query starts from the new checkpoint, on the provider `to`; where
        Spark ran, every row was read again and compared by checksum. After a raise, or a crash, no
        query starts from it, and the conversion can be run again. This checkpoint is not changed.

        Raises:
            InUseError: A query is writing this checkpoint, or wrote it meanwhile.
            InvalidArgumentError: `to` is unknown or the checkpoint's own, nothing is to convert, or
                there is something at `new`.
            FencedError: Another conversion has begun there since.
            IncompatibleError: Some of the state cannot be converted, or not to this provider, or
                not by this Spark.
            InternalError: A row is not what it was.
            NotFoundError: No batch is committed, Spark's metadata is missing, or the session has
                not got the jar.
            CorruptionError, StorageError: State cannot be read or written; names the reason.
        """
        there = self._beside(new)
        with open_conversion(
            self._reach.place,
            there.place,
            to,
            spark=self._reach.spark,
            session_conf={**self._reach.hadoop_conf, **(session_conf or {})},
        ) as conversion:
            return conversion.make(Checkpoint._at(there), dry_run=dry_run, progress=progress)


class Savepoint(Writing["Savepoint"]):
    """A savepoint: a version of a query, whole, that nothing but its user deletes.

    It is read as a checkpoint is, and restored to a new one.
    """

    def _written(self, destination: DirectoryLike) -> Savepoint:
        return Savepoint._at(self._beside(destination))

    @cached_property
    def info(self) -> SavepointInfo:
        """What the savepoint says about itself.

        Raises:
            NotFoundError: There is no savepoint (kind savepoint-not-found), or one that was begun
                and not finished.
            CorruptionError, IncompatibleError: It is damaged, or of a newer format.
            StorageError: The storage failed.
        """
        with self._reach.using(), open_savepoint(self._reach.place) as (info, _):
            return info

    def restore(
        self,
        checkpoint: DirectoryLike,
        *,
        backend: str | None = None,
        num_partitions: int | None = None,
        map_operators: Mapping[int, int] | None = None,
        drop_operators: Iterable[int] = (),
        add_operators: Mapping[int, str] | None = None,
        new_query_id: bool = False,
        claim: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CopyResult[Checkpoint]:
        """Make a new checkpoint of the savepoint, from which the query goes on.

        Args:
            checkpoint: The new checkpoint, which must not be there; of any storage. The options of
                this object, or of the one given, also say where state is kept (checkpointStorage)
                and the form of files.
            backend: Its state backend; that of the checkpoint the savepoint was taken of when None.
            num_partitions: Number of its state partitions, 1 to 32768; the savepoint's when None.
                Where it does not divide the number of key groups, every row is hashed anew, which
                needs local disk for the state three times.
            map_operators: New ID by old, of operators whose number changes.
            drop_operators: Old IDs of operators whose state is left behind.
            add_operators: Spark's short name by new ID, of operators that begin with empty state.
            new_query_id: Whether it is a new query beside the one that was; else the query goes on
                under its ID, so that sinks which know its batches by it pass over those they have.
            claim: Whether the savepoint is moved, and gone afterwards.
            dry_run: Whether to return what it would do, and change nothing.
            progress: Called with bytes of state done and the total.

        Guarantee: on return the checkpoint is whole and durable, and the savepoint as it was, or
        gone where it was claimed. After a raise, or when the process is killed, no query starts
        from the checkpoint until the restore is repeated, and the savepoint is whole; or the
        checkpoint is whole, and what may be left of a claimed savepoint no longer is one.

        Raises:
            InvalidArgumentError: The checkpoint has files (kind checkpoint-exists); the operators
                do not become those of a query; the number of state partitions or the state backend
                cannot be had.
            IncompatibleError: The rows of a store do not follow their key groups (kind
                not-rescalable).
            NotFoundError, CorruptionError, StorageError: As `info`, or a storage failed.
        """
        to = self._beside(checkpoint)
        operators = OperatorMap(map_operators or {}, frozenset(drop_operators), add_operators or {})
        with (
            self._reach.using(),
            to.opened() as target,
            open_savepoint(self._reach.place) as (info, source),
        ):
            return decide_restore(
                info,
                source,
                target,
                backend=backend,
                num_partitions=num_partitions,
                operators=operators,
                claims=claim,
                keeps_query_id=not new_query_id,
            ).make(lambda _: Checkpoint._at(to), dry_run=dry_run, progress=progress)
