"""Directory: what a checkpoint and a savepoint have in common before any row is read."""

from __future__ import annotations

import html
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.api.listing import Listing, schema_of
from statestore.api.reaching import Reach
from statestore.checkpoint.history import HistoryEntry, read_history
from statestore.core.errors import StateStoreError
from statestore.core.text import format_bytes, format_fields
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.upkeep.listing import VersionInfo, list_versions

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from typing import Self, TypeAlias

    from pyspark.sql import SparkSession

    from statestore.checkpoint.operator_metadata import OperatorInfo
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.upkeep.listing import CheckpointInfo

    DirectoryLike: TypeAlias = "str | os.PathLike[str] | Directory"

_SHOWN_VERSIONS = 5
_HISTORY: dict[str, pa.DataType] = {
    "begun_ms": pa.int64(),
    "done_ms": pa.int64(),
    "status": pa.string(),
    "operation": pa.string(),
    "from_version": pa.int64(),
    "to_version": pa.int64(),
    "taken_back_by": pa.string(),
    "user": pa.string(),
    "host": pa.string(),
    "writer": pa.string(),
    "details": pa.string(),
}


class Directory:
    """A directory with a query's state: where it is, how it is reached, what it has at a glance.

    Nothing is open between two calls: each sees the directory as it is then, also while the query
    runs.

    Args:
        directory: The directory: a path, also relative or below `~`, or a URI that this package,
            or Hadoop, opens.
        storage_options: Options of the query that it takes to reach its storage, such as
            `{"s3.endpoint": …}`, by key or by field of docs/configuration.md. Those that begin
            with `spark.hadoop.` or `spark.jars` are for Hadoop's file systems.
        spark: A session, in its driver: its JVM opens Hadoop's file systems, with its
            configuration, and its memory has the state of the heap backend.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        self._reach = Reach(directory, storage_options, spark)

    @classmethod
    def _at(cls, reach: Reach | Place) -> Self:
        """Return the object of a place that is reached otherwise; also a seam for tests."""
        made = cls.__new__(cls)
        made._reach = reach if isinstance(reach, Reach) else Reach.of(reach)
        return made

    @property
    def uri(self) -> str:
        """Where it is: an absolute path, or a URI."""
        return self._reach.place.uri

    @contextmanager
    def _opened(self) -> Iterator[OpenCheckpoint]:
        with (
            self._reach.using(),
            self._reach.opened() as place,
            open_checkpoint(place) as checkpoint,
        ):
            yield checkpoint

    def _enter(self, stack: ExitStack) -> OpenCheckpoint:
        """Open it for a generator, whose caller's thread goes on while it is open."""
        place = stack.enter_context(self._reach.opened())
        with self._reach.using():
            return stack.enter_context(open_checkpoint(place))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def _repr_html_(self) -> str:
        title = f"<p><b>{html.escape(repr(self))}</b></p>"
        try:
            info = self.summary(limit=_SHOWN_VERSIONS)
        except StateStoreError as error:
            return f"{title}<pre>{html.escape(str(error))}</pre>"
        operators = "; ".join(f"{operator.id} {operator.name}" for operator in info.operators)
        fields: list[tuple[str, object]] = [
            ("backend", info.backend),
            ("state partitions", info.num_partitions),
            ("operators", operators),
            ("newest version", info.newest_version),
            ("state files", format_bytes(info.stored_bytes)),
        ]
        about = f"<pre>{html.escape(format_fields(fields))}</pre>"
        return f"{title}{about}{_versions(info)._repr_html_()}"

    @property
    def operators(self) -> tuple[OperatorInfo, ...]:
        """The stateful operators of the query, with their stores and state variables."""
        with self._opened() as checkpoint:
            return checkpoint.operators

    @property
    def backend(self) -> str:
        """State backend; or one of Spark's own providers, by the name that `convert` takes."""
        with self._opened() as checkpoint:
            return checkpoint.kept_by

    @property
    def num_partitions(self) -> int:
        """State partitions of the newest version."""
        with self._opened() as checkpoint:
            return checkpoint.num_partitions

    @property
    def newest_version(self) -> int:
        """Newest committed state version, 0 when there is none."""
        with self._opened() as checkpoint:
            return checkpoint.newest_version

    def summary(self, *, limit: int | None = None) -> CheckpointInfo:
        """Return what there is at a glance: backend, operators, sizes, versions.

        Args:
            limit: At most so many versions, the newest; None for all that the commit log has.
        """
        with self._opened() as checkpoint:
            return list_versions(checkpoint, limit=limit)

    def versions(self, *, limit: int | None = None) -> Listing[VersionInfo]:
        """List the versions, newest first; no row is read.

        Args:
            limit: As `summary`.
        """
        return _versions(self.summary(limit=limit))

    def history(self, *, limit: int | None = None) -> Listing[HistoryEntry]:
        """List the operations that changed the checkpoint where it is, newest first.

        Each notes that it begins before it changes anything, and that it is done after everything:
        who, where, when, from and to which version, what was asked for and what was done. The
        certificate of `forget` is in its result. No key or value of a row is. Batches of the query
        are no operations.

        Args:
            limit: At most so many, the newest; None for all.

        Returns:
            The entries. A line that somebody damaged is one, too, with its text. As a table without
            options and results, which its column details has in words.

        Raises:
            NotFoundError: There is no checkpoint.
            StorageError: The storage failed.
        """
        with self._opened() as checkpoint:
            found = read_history(checkpoint.io, checkpoint.path)[::-1][:limit]
        return Listing(found, pa.schema(_HISTORY), _history_fields)

    def _beside(self, directory: DirectoryLike) -> Reach:
        """Return how another directory is reached: as it says, or else as this one."""
        if isinstance(directory, Directory):
            return directory._reach
        return self._reach.beside(directory)


def _history_fields(entry: HistoryEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in _HISTORY}


def _versions(info: CheckpointInfo) -> Listing[VersionInfo]:
    return Listing(info.versions, schema_of(VersionInfo), asdict)
