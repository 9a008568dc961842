"""Checkpoint and Savepoint: the nouns of the package, with everything that is done to them."""

from __future__ import annotations

import html
import os
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from statestore.api.listing import Listing, check_limit, schema_of
from statestore.api.reaching import Reach, Reached
from statestore.api.rows import Rows
from statestore.api.sql_rows import SqlRows
from statestore.checkpoint.history import HistoryEntry, read_history
from statestore.core.defaults import SAVEPOINTS_KEPT
from statestore.core.durations import require_duration
from statestore.core.errors import StateStoreError
from statestore.core.text import format_fields
from statestore.operations.forget.certificate import CertificateFile
from statestore.operations.forget.forget import decide_forget
from statestore.operations.forget.search import KeySearch, search
from statestore.operations.forget.wanted import Wanted
from statestore.operations.operator_map import OperatorMap
from statestore.operations.reading import inspection
from statestore.operations.reading.sql import MEMORY_LIMIT
from statestore.operations.reading.tables import TableInfo, list_tables
from statestore.operations.rescale import rescale
from statestore.operations.result import Progress, no_progress
from statestore.operations.savepoint.branch import decide_branch
from statestore.operations.savepoint.find import find_savepoints
from statestore.operations.savepoint.restore import decide_restore
from statestore.operations.savepoint.savepoint import open_savepoint, savepoint_in, take_savepoint
from statestore.operations.upkeep import compact, expire, repair
from statestore.operations.upkeep.query_info import look_at_query
from statestore.operations.upkeep.retained_savepoints import Retention, retain_savepoint
from statestore.operations.upkeep.survey import VersionInfo, describe, list_versions
from statestore.operations.upkeep.verify import verify
from statestore.operations.writing.decide import decide_edit, decide_rows
from statestore.operations.writing.shape import key_form_of
from statestore.spark.convert import open_conversion
from statestore.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime, timedelta
    from typing import Self, TypeAlias

    from pyspark.sql import SparkSession

    from statestore.core.durations import Duration
    from statestore.io.place import Place
    from statestore.operations.conversion import Convert
    from statestore.operations.copy_result import CopyResult
    from statestore.operations.forget.result import Forget
    from statestore.operations.reading.inspection import StoreDescription
    from statestore.operations.rescale.results import Rescale, UndoRescale
    from statestore.operations.savepoint.savepoint import SavepointForm, SavepointInfo
    from statestore.operations.upkeep.compact import Compact
    from statestore.operations.upkeep.expire import Expire
    from statestore.operations.upkeep.query_info import QueryInfo
    from statestore.operations.upkeep.repair import Repair
    from statestore.operations.upkeep.retained_savepoints import RetainedSavepoints
    from statestore.operations.upkeep.survey import CheckpointInfo
    from statestore.operations.upkeep.verification import Verification
    from statestore.operations.writing.edit_result import Edit
    from statestore.report.facts import Facts
    from statestore.store.store import Backend, Store

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
_STORES: list[pa.Field[Any]] = [
    pa.field("operator", pa.int64()),
    pa.field("operator_name", pa.string()),
    pa.field("store", pa.string()),
    pa.field("num_partitions", pa.int64()),
    pa.field("max_parallelism", pa.int64()),
    pa.field("rescalable", pa.bool_()),
    pa.field("num_keys", pa.int64()),
    pa.field("column_families", pa.list_(pa.struct(list(schema_of(inspection.FamilyDescription))))),
]

_SAVEPOINTS: dict[str, pa.DataType] = {
    "uri": pa.string(),
    "version": pa.int64(),
    "form": pa.string(),
    "backend": pa.string(),
    "num_partitions": pa.int64(),
    "num_rows": pa.int64(),
    "state_bytes": pa.int64(),
    "created_ms": pa.int64(),
}


class Directory(Reached):
    """A directory with a query's state: a checkpoint or a savepoint, of this package or of Spark's.

    Nothing is open between two calls: each sees the directory as it is then, also while the query
    runs.

    Args:
        directory: The directory: a path, also relative or below `~`, or a URI that this package,
            or Hadoop, opens.
        storage_options: Options of the query that it takes to reach its storage, such as
            `{"s3.endpoint": …}`, by key or by field of docs/configuration.md. Those that begin
            with `spark.hadoop.` or `spark.jars` are for Hadoop's file systems.
        spark: A session, in its driver: its JVM opens Hadoop's file systems, with its
            configuration; its options `s3.*` count where they are not given, those of server and
            credentials where none of these is; and its memory has the state of the heap backend.

    Errors of every method, to which its own are added:

        NotFoundError: There is no checkpoint or savepoint, no such version, or it was expired; or
            its state is in the memory of a driver that is gone, or whose session was not given
            (kind driver-lost).
        InvalidArgumentError: No storage of that URI (kind unsupported-scheme); or what two
            directories were given to open Hadoop's file systems contradicts each other.
        IncompatibleError: Neither this package's nor one of Spark's own providers wrote it (kind
            other-provider); it is in a newer format than this release knows (kind newer-format); or
            a data type is not known.
        CorruptionError, FencedError, StorageError: A file cannot be read, or a storage failed.
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def _repr_html_(self) -> str:
        title = f"<p><b>{html.escape(repr(self))}</b></p>"
        try:
            with self._reach.checkpoint() as checkpoint:
                info = describe(checkpoint)
            versions = self.versions(limit=_SHOWN_VERSIONS)
        except StateStoreError as error:
            return f"{title}<pre>{html.escape(str(error))}</pre>"
        about = f"<pre>{html.escape(format_fields(info.fields_for_people()))}</pre>"
        return f"{title}{about}{versions._repr_html_()}"

    def rows(self, name: str | int | None = None, *, version: int | None = None) -> Rows:
        """Return the rows of a store or state variable, to be read and compared.

        Args:
            name: Their address: `NAME`, `OPERATOR/NAME` or `OPERATOR`. NAME is a store of a join, a
                state variable of transformWithState, or a column family; OPERATOR, a number, is
                needed where several operators have the name, and enough where one has no others.
                None for the only rows there are.
            version: State version, which is batch + 1; None for the newest committed when they are
                read.
        """
        return Rows(self._reach, name, version)

    def sql(
        self,
        sql: str,
        *,
        attach: Mapping[str, DirectoryLike] | None = None,
        memory_limit: str = MEMORY_LIMIT,
        timeout: Duration | None = None,
    ) -> SqlRows:
        """Return the rows that SQL makes of those of the checkpoint; it is run when they are read.

        A table has the address of rows for its name, as `rows` takes it and `tables` lists it, in
        double quotes where it is not a plain word; `state` stands for the only rows there are. Of
        an older version it is "NAME@VERSION". Columns are those of `Rows.read`: the structs `key`
        and `value`, with dots before their fields, and `partition_id`.

        Only columns that the SQL names are decoded, and only rows are kept that its conditions on a
        table want. Where they say which keys these are, only blocks of their state partitions are
        read.

        Args:
            sql: One SELECT of DuckDB's SQL. It reads and writes nothing but these tables.
            attach: More checkpoints or savepoints by alias, also of Spark's own providers: their
                tables are `ALIAS.NAME`.
            memory_limit: Memory of DuckDB, such as `1GB`; what does not fit goes to the local disk.
            timeout: How long it may run until the last row was read, a timedelta or seconds, at
                least 1 s; None for any time.
        """
        attached = {alias: self._reach.beside(of) for alias, of in (attach or {}).items()}
        timeout_ms = None if timeout is None else require_duration("timeout", timeout)
        return SqlRows(self._reach, sql, attached, memory_limit, timeout_ms)

    def tables(self) -> Listing[TableInfo]:
        """List the tables that `sql` has, of the newest version; no row is read."""
        with self._reach.checkpoint() as checkpoint:
            found = list_tables(checkpoint)
        return Listing(found, schema_of(TableInfo), asdict)

    def versions(self, *, limit: int | None = None) -> Listing[VersionInfo]:
        """List the versions, newest first; no row is read.

        Args:
            limit: At most so many, the newest; None for all that the commit log has.

        Raises:
            InvalidArgumentError: `limit` is less than 1.
        """
        check_limit(limit)
        with self._reach.checkpoint() as checkpoint:
            found = list_versions(checkpoint, limit=limit)
        return Listing(found, schema_of(VersionInfo), asdict)

    def history(self, *, limit: int | None = None) -> Listing[HistoryEntry]:
        """List the operations that changed the checkpoint where it is, and the copy that made it.

        The newest is first. Each but a promote and a copy notes that it begins before it changes
        anything, and all note that they are done after everything: who, where, when, from and to
        which version, what was asked for and what was done. The certificate of `forget` is in its
        result, without its lists of files. No key or value of a row is.
        Batches of the query are no operations.

        Args:
            limit: At most so many, the newest; None for all.

        Returns:
            The entries. A line that somebody damaged is one, too, with its text. As a table without
            options and results, which its column details has in words.

        Raises:
            InvalidArgumentError: `limit` is less than 1.
        """
        check_limit(limit)
        with self._reach.checkpoint() as checkpoint:
            found = read_history(checkpoint.io, checkpoint.path)[::-1][:limit]
        return Listing(found, pa.schema(_HISTORY), _history_fields)

    def inspect(self, *, version: int | None = None) -> Listing[StoreDescription]:
        """List the stores of a version with their schemas and numbers of rows; no row is read."""
        with self._reach.checkpoint() as checkpoint:
            found = inspection.describe(checkpoint, version=version)
        return Listing(found, pa.schema(_STORES), lambda store: store.fields())

    def verify(
        self,
        *,
        versions: Iterable[int] | Literal["all"] | None = None,
        deep: bool = False,
        progress: Progress | None = None,
    ) -> Verification:
        """Prove that versions are whole; nothing is changed.

        Args:
            versions: State versions, None for the newest committed; all for every one that was
                committed, from the oldest entry of the commit log on, and that was not expired.
            deep: Whether to read every row. Where a backend of this package has 4 million rows or
                more on a local disk or S3, a process for each core reads them, 16 at most. Each
                has `fetch.cacheBytes` and `rocksdb.memoryBytes` for itself.
            progress: Called with the stores done and their number, from any thread.

        Returns:
            What was found. Damage is a finding, not an error.

        Raises:
            InvalidArgumentError: The package that the state backend needs is not installed.
            StorageError: The storage, or the local disk, failed; nothing is known of the rest then.
        """
        with self._reach.checkpoint() as checkpoint:
            return verify(
                checkpoint, versions=versions, deep=deep, progress=progress or no_progress
            )

    def report(
        self,
        to: str | os.PathLike[str] | None = None,
        *,
        limit: int | None = 100,
        deep: bool = False,
        savepoints: str | os.PathLike[str] | None = None,
    ) -> Facts:
        """Gather the facts of a page, and write the page: one HTML file that needs no network.

        Args:
            to: HTML file to write, in place of one there; none when None.
            limit: At most so many versions of the history, the newest; None for all.
            deep: Whether to read every row: the heaviest keys of state of any size, and all checks
                of `verify(deep=True)`.
            savepoints: Directory to look for savepoints and branches in.

        Raises:
            InvalidArgumentError: `limit` is less than 1. Or the page cannot be written; found
                before state is read.
            IncompatibleError: The package that fills pages in is not installed; likewise.
            CorruptionError: Spark's logs cannot be read. Damaged state is a finding instead.
        """
        # Imported here because it needs packages that are an extra.
        from statestore.report.gather import gather
        from statestore.report.page import check_writable, write_page

        check_limit(limit)
        if to is not None:
            check_writable(to)
        place = None if savepoints is None else os.fspath(savepoints)
        with self._reach.checkpoint() as checkpoint:
            facts = gather(checkpoint, num_versions=limit, deep=deep, savepoints=place)
        if to is not None:
            write_page(facts, to)
        return facts

    def transform(
        self,
        destination: DirectoryLike,
        rows: Mapping[Any, Any] = MappingProxyType({}),
        *,
        version: int | None = None,
        change_schema: bool = False,
        join_format: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CopyResult[Savepoint]:
        """Make a savepoint in which some rows are others, made of those there are.

        The query may run meanwhile. Rows are Arrow data: a table, a stream of record batches, or
        what pandas, Polars and DuckDB make; or a `pathlib.Path` of a file. Their columns are those
        of `Rows.read`: structs `key` and `value`, or their fields as columns named with dots,
        `key.shop`. Values keep the types that the state has; they are cast where nothing is lost by
        it. A column `partition_id` is passed over: Spark's hash of the key decides.

        Args:
            destination: Directory of the savepoint, which must not be there; of any storage.
            rows: By address what makes the rows: a function, called with a `pa.Table` of some of
                them at a time, which returns rows; SQL of DuckDB, over all of them as the table
                `state`; or `Edited`, which keys go and which rows are put. What is not named keeps
                its rows.
            version: State version, None for the newest committed one.
            change_schema: Whether names and types of the columns returned are the schemas of keys
                and values from now on; else they must be those there are.
            join_format: 4: every join of two streams, of state format 2 or 3, is of format 4 in
                the savepoint, which Spark 4.3 goes on with. None: joins keep their format.
            dry_run: Whether to return what it would do, and change nothing. Functions are called
                with a table without rows, for the columns that they return; a stream of rows in
                `Edited` is read.
            progress: Called with bytes of state done and the total.

        Guarantee: on return the savepoint is whole and durable, refers to nothing outside of it,
        and every row is in the state partition where Spark looks for it. After a raise, or when the
        process is killed, the destination is not taken for a savepoint, and the call may be
        repeated; this directory is as it was.

        Raises:
            InvalidArgumentError: The destination has files (kind checkpoint-exists); no rows have
                an address, or rows do not fit; a file or a stream has no row; a key is there twice
                (kind duplicate-key); all rows would go by an `Edited` without `all_rows`; or SQL is
                given and `duckdb` is not installed.
            NotFoundError: No row is there that an `Edited` deletes (kind keys-not-found), and it
                puts none.
            IncompatibleError: Rows are not where their keys belong (kind not-rescalable); a
                schema that cannot change would; or joins cannot have `join_format`, of which
                docs/spark.md has every case.
        """
        reach, to = self._reach.with_new(destination)
        with reach.checkpoint() as checkpoint:
            copy = decide_rows(
                "transform",
                checkpoint,
                to.place,
                rows,
                version=version,
                change_schema=change_schema,
                join_format=join_format,
                makes=True,
            )
            return copy.make(self._savepoint(destination), dry_run=dry_run, progress=progress)

    def restore(
        self,
        new: DirectoryLike,
        *,
        version: int | None = None,
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
        """Make a new checkpoint of a savepoint or a checkpoint, from which the query goes on.

        This is also how a query comes from Spark's own providers, RocksDB and HDFS-backed, to this
        package's: their checkpoints are read as they are, without Spark and without Java, in
        bounded memory but for changelogs of the RocksDB provider. The query must not be writing a
        checkpoint that is restored.

        Args:
            new: The new checkpoint, which must not be there; of any storage. The options of
                this object, or of the one given, also say where state is kept (checkpointStorage)
                and the form of files.
            version: State version, None for the newest committed one. From an older one the query
                repeats the batches after it, also those that a sink has.
            backend: Its state backend; when None that of the checkpoint, or of the one that the
                savepoint was taken of; filesystem for Spark's HDFS-backed provider, and rocksdb for
                Spark's RocksDB provider.
            num_partitions: Number of its state partitions, 1 to 32768; as many as there are when
                None. Where it does not divide the number of key groups, every row is hashed anew,
                which needs local disk for the state three times.
            map_operators: New ID by old, of operators whose number changes.
            drop_operators: Old IDs of operators whose state is left behind.
            add_operators: Spark's short name by new ID, of operators that begin with empty state.
            new_query_id: Whether it is a new query beside the one that was; else the query goes on
                under its ID, so that sinks which know its batches by it pass over those they have.
            claim: Whether the savepoint is moved, and gone afterwards; a checkpoint cannot be, nor
                a savepoint with state that is left behind.
            progress: Called with bytes of state done and the total.

        Guarantee: on return the checkpoint is whole and durable, and what it was made of as it was,
        or gone where it was claimed. After a raise, or when the process is killed, no query starts
        from the new checkpoint until the restore is repeated, and what it is made of is whole; or
        the checkpoint is whole, and what may be left of a claimed savepoint no longer is one.

        Raises:
            InvalidArgumentError: `new` has files (kind checkpoint-exists); the operators do not
                become those of a query; the number of state partitions or the state backend cannot
                be had; a checkpoint is claimed; or a savepoint is, and an operator dropped.
            InUseError: A query writes the checkpoint that it is made of, or wrote it meanwhile.
            IncompatibleError: The rows of a store do not follow their key groups (kind
                not-rescalable); some state of Spark's cannot be had in this package's stores; or
                another provider wrote it.
            NotFoundError: There is nothing to restore, no batch is committed, or Spark's metadata
                or state schemas are missing.
            CorruptionError, FencedError, StorageError: A file cannot be read, or a storage failed.
        """
        reach, to = self._reach.with_new_checkpoint(new)
        operators = OperatorMap(map_operators or {}, frozenset(drop_operators), add_operators or {})
        with to.opened() as target, reach.checkpoint() as source:
            return decide_restore(
                savepoint_in(source),
                source,
                target,
                version=version,
                backend=backend,
                num_partitions=num_partitions,
                operators=operators,
                claims=claim,
                keeps_query_id=not new_query_id,
            ).make(Checkpoint._at(to), dry_run=dry_run, progress=progress)

    def _savepoint(self, directory: DirectoryLike) -> Savepoint:
        return Savepoint._at(self._reach.beside(directory))


class Checkpoint(Directory):
    """The checkpoint of a query: read, looked after, and gone on from with another shape.

    What changes or makes something returns what it did; with `dry_run=True` it changes nothing, and
    returns what it would do: it reads what is given to it all the same, and is refused as the
    operation itself would be, but for what only a lease tells: that somebody writes the checkpoint,
    or that its state is another one's. Both are one class, whose text the command line prints;
    `made` is the savepoint or checkpoint that was made. `progress` is called with what is done and
    the total. The query must not run, except for what only reads, `search_keys`, `savepoint`,
    `retain_savepoint`, `branch`, `Checkpoint.transform` and the dry runs of `rescale`, `repair`,
    `expire` and `compact`. A checkpoint of Spark's own providers is read and restored; everything
    else refuses it by name (IncompatibleError, kind other-provider).

    Errors of every method that changes it where it is, beside those of `Directory`:

        InUseError: A query or another operation is writing the checkpoint, or may be, since this
            process stood still for longer than its lease lasts; the same call again goes on.
        InvalidArgumentError: It is a savepoint, which is never changed; or the package that the
            state backend needs is not installed.
    """

    @classmethod
    def find(
        cls,
        directory: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
        spark: SparkSession | None = None,
    ) -> list[Self]:
        """Return the checkpoints at or below a directory, as the storage of a pipeline, by URI.

        Args:
            directory: A path or URI. What lies below it is looked at to the depth at which
                declarative pipelines keep the checkpoints of their flows, 6 directories. One that
                may not be listed is among what is returned: its methods raise why.
            storage_options: As of the checkpoint.
            spark: As of the checkpoint.

        Raises:
            NotFoundError: There is none (kind checkpoint-not-found).
            InvalidArgumentError: There are more than 10,000 directories; or as of the checkpoint.
        """
        reach = Reach(directory, storage_options, spark)
        return [cls._at(reach.beside(uri)) for uri in reach.find()]

    @property
    def info(self) -> CheckpointInfo:
        """What there is at a glance: backend, operators, sizes, the newest version."""
        with self._reach.checkpoint() as checkpoint:
            return describe(checkpoint)

    @property
    def query(self) -> QueryInfo:
        """The query at a glance, running or not: name, batch, watermark, lag, offsets, rates.

        A few small files are read, however large the state is: this is what to ask again and again.
        """
        with self._reach.checkpoint() as checkpoint:
            return look_at_query(checkpoint)

    def savepoints(self, directory: DirectoryLike) -> Listing[Savepoint]:
        """Return the query's savepoints that lie directly in a directory, oldest version first.

        Nobody but the user knows where savepoints are, so nothing else is looked at; one that is
        not finished or cannot be read is left out.

        Raises:
            InvalidArgumentError: No storage of that URI (kind unsupported-scheme).
        """
        reach, there = self._reach.with_new(directory)
        with reach.checkpoint() as checkpoint:
            found = find_savepoints(checkpoint, there.place)
        infos = {one.uri: one.savepoint for one in found}
        return Listing(
            [Savepoint._at(there.beside(uri)) for uri in infos],
            pa.schema(_SAVEPOINTS),
            lambda savepoint: {"uri": savepoint.uri, **asdict(infos[savepoint.uri])},
        )

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
            InvalidArgumentError: Several attempts made the version and none was named; there is no
                such store; or the backend keeps none without Spark.
            NotFoundError: The heap backend has the store (kind driver-lost).
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
            progress: Called with what is done and the total: a new state partition of a store
                counts 1, or where every row is hashed anew each row that is read and each that is
                written.

        Guarantee: on return the query goes on from the same rows in the new state partitions. After
        a raise, or a kill at any moment, it either starts on the old or new ones, whole, or is
        refused because the rescale is unfinished, by Spark or before Spark 4.2 by the provider; the
        same call again finishes it, `undo_rescale` takes it back.

        Raises:
            InvalidArgumentError: The number is out of range; a batch is planned but not committed
                (kind unfinished-batch); another rescale is (kind unfinished-operation); or the
                query has no state.
            IncompatibleError: State does not follow its keys (kind not-rescalable).
        """
        with self._reach.checkpoint() as checkpoint:
            return rescale.rescale(
                checkpoint,
                num_partitions,
                count_rows=count_rows,
                dry_run=dry_run,
                progress=progress or no_progress,
            )

    def undo_rescale(self, *, dry_run: bool = False) -> UndoRescale:
        """Go back to the state partitions before the newest rescale, finished or not.

        Guarantee: on return the checkpoint is as it was before the rescale. After a raise or a kill
        Spark refuses to start the query, and the same call again goes on; so does `rescale`.

        Raises:
            InvalidArgumentError: The newest batch is not a rescale's: nothing can be undone, or no
                more since a batch has run; or what the rescale was made of is not all here.
        """
        with self._reach.checkpoint() as checkpoint:
            return rescale.undo_rescale(checkpoint, dry_run=dry_run)

    def repair(
        self, *, deep: bool = True, dry_run: bool = False, progress: Progress | None = None
    ) -> Repair:
        """Take the checkpoint back to its newest version that can be read.

        Args:
            deep: Whether a version counts as readable only after every byte of it was read.
            dry_run: Whether to return what it would do, and change nothing. It looks for the
                version all the same.
            progress: As `verify`, anew with each version that is tried and with its rows.

        Guarantee: on return the query starts from `Repair.version`, and every entry that was taken
        out of Spark's logs is in `Repair.aside`. After a raise or a kill a query starts from that
        version, from the one it would have started from before, or Spark refuses; doing it again
        finishes it.

        Raises:
            NotFoundError: There is no version that can be read (kind version-not-found), or none
                since keys were forgotten.
            IncompatibleError, StorageError: As `verify`: what cannot be reached is not taken for
                damaged.
        """
        with self._reach.checkpoint() as checkpoint:
            return repair.repair(
                checkpoint, deep=deep, dry_run=dry_run, progress=progress or no_progress
            )

    def expire(
        self, keep: int, *, dry_run: bool = False, progress: Progress | None = None
    ) -> Expire:
        """Delete the versions before the newest few, with the files that only they need.

        Savepoints are elsewhere and never touched. A file that nobody names goes when it is older
        than the option orphan.ageMs.

        Args:
            keep: How many versions stay loadable, the newest; at least 2.
            progress: Called with the stores done and their number.

        Guarantee: the newest `keep` versions stay loadable, also after a raise half way, and so do
        those that a savepoint or branch being made has pinned.

        Raises:
            InvalidArgumentError: `keep` is less than 2.
            CorruptionError, IncompatibleError, StorageError: A trailer cannot be read; nothing can
                be deleted safely then.
        """
        with self._reach.checkpoint() as checkpoint:
            return expire.expire(
                checkpoint, keep, dry_run=dry_run, progress=progress or no_progress
            )

    def compact(self, *, dry_run: bool = False, progress: Progress | None = None) -> Compact:
        """Write the newest version as one file a store: the query's next need no older files.

        A version is the changes to the one before it, so it keeps the files of those from being
        expired until a snapshot, or of the rocksdb backend all of them merged, stands for them.

        Args:
            progress: Called with the stores done and their number.

        Guarantee: on return every store has the version in one file, which is durable; no version
        has changed. After a raise half way the stores that were done have it.

        Raises:
            NotFoundError: No batch is committed (kind version-not-found).
        """
        with self._reach.checkpoint() as checkpoint:
            return compact.compact(checkpoint, dry_run=dry_run, progress=progress or no_progress)

    def edit(
        self,
        rows: str | int | None = None,
        *,
        delete: Any = None,
        upsert: Any = None,
        watermark_ms: int | None = None,
        expire: str | None = None,
        older_than: timedelta | datetime | None = None,
        all_rows: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Edit:
        """Make the next version of the checkpoint itself, without some keys and with some rows.

        The version is a batch of the query that reads nothing. Versions before it keep their rows
        until they expire: `forget` is what takes a key out of them.

        Args:
            rows: Address of the rows, as `rows` takes it. Timers change by key and by time.
            upsert: Rows, in place of those that their keys have, as Arrow data or a `pathlib.Path`
                of a file. Of a state variable that is a list a row an element.
            delete: Keys whose rows go, as Arrow data or a `pathlib.Path` of a file; or a condition
                in SQL that their rows fulfil, such as `"user_id = 'x'"`. They and `upsert` are held
                in memory.
            watermark_ms: Watermark from now on, milliseconds since the Unix epoch, not before that
                of now. The next batch evicts what has ended by it; rows that are late by it are
                dropped from the batch after that on.
            expire: In place of `delete`: a timestamp or date of the key or value, such as
                `value.max`; rows go for which it is earlier than a limit. Only of an operator with
                one store that is not transformWithState.
            older_than: The limit: how old, by this machine's clock; or a time, in UTC where it has
                no zone.
            all_rows: Whether all rows of the store may go.
            dry_run: Whether to return what it would do, and change nothing. It reads a stream of
                rows, too.
            progress: Called with the stores done and their number.

        Guarantee: on return the query goes on from the edited rows. After a raise, or a kill at any
        moment, it goes on from those or from the ones before, whole; the same call again is safe.

        Raises:
            InvalidArgumentError: A batch is planned but not committed (kind unfinished-batch); the
                watermark would go back, or is no int up to the year 9999; there is nothing to edit,
                or no row in `delete` or `upsert`; all rows would go and `all_rows` is not given; or
                rows do not fit, or a key is there twice (kind duplicate-key).
            IncompatibleError: Rows are not where their keys belong (kind not-rescalable).
            NotFoundError: No row is there to delete (kind keys-not-found), and none is put; where
                rows expire that is fine.
        """
        with self._reach.checkpoint() as checkpoint:
            edit = decide_edit(
                checkpoint,
                rows,
                delete=delete,
                upsert=upsert,
                watermark_ms=watermark_ms,
                expire=expire,
                older_than=older_than,
                all_rows=all_rows,
            )
            return edit.result if dry_run else edit.run(progress or no_progress)

    def forget(
        self,
        where: str | None = None,
        *,
        keys: Any = None,
        operator: int = 0,
        all_rows: bool = False,
        certificate: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Forget:
        """Take keys out of every version of an operator, and search every file for them.

        The newest version is written whole, without the rows of the keys in any store or column
        family of the operator. Every other state file of the operator is deleted: its older
        versions cannot be loaded any more. This is not undone.

        Args:
            where: A condition in SQL over the columns of the grouping key, such as
                `"user_id = 'x'"`.
            keys: In place of it, grouping keys as Arrow data or a `pathlib.Path` of a file, columns
                `key.NAME`; held in memory.
            operator: Operator ID.
            all_rows: Whether every row of the operator may go.
            certificate: Local file for the certificate. It is written first, and says `begun`; at
                the end a whole one takes its place. With `keys`, the same call completes one that
                was begun, as long as the query's log has the batch; with `where` name the keys
                then.
            dry_run: Whether to return what it would do, and change nothing. It reads every state
                file, and a stream of keys.
            progress: Called with the state files read and their number; then with the state
                partitions written and theirs.

        Returns:
            What was found; and once done `certificate`: files written and removed, with their
            checksums, and for each operator whether the keys are forgotten there, were found, or
            could not be looked for. It does not hold the keys, but salted fingerprints of them.

        Guarantee: on return the query goes on from all other rows, and no state file of the
        operator has a row of the keys. After a raise or a kill the query goes on from the rows of
        before or from those without the keys, whole; older files may be left, and the same call
        again deletes them. Savepoints and branches keep what they have.

        Raises:
            InUseError: Somebody reads the files: a copy that is being made, SQL, or a trial.
            InvalidArgumentError: A batch is planned but not committed (kind unfinished-batch);
                there is no such operator, or what is given is no key of it, or nothing; every row
                is of the keys and `all_rows` is not given; or another file is where the certificate
                goes (kind file-exists).
            NotFoundError: No row of the keys is there (kind keys-not-found).
            CorruptionError: A file of the newest version is damaged; or another one is, and no file
                that can be read has a row of the keys.
            StorageError: The certificate cannot be written, before which nothing is changed; or a
                file cannot be deleted, and the error says whether the version counts.
        """
        to = None if certificate is None else CertificateFile(certificate)
        with self._reach.checkpoint() as checkpoint:
            progress = progress or no_progress
            of = checkpoint.operator(operator)
            wanted = Wanted(where, keys, key_form=key_form_of(of, checkpoint.conf))
            forget = decide_forget(
                checkpoint, of.id, wanted, all_rows=all_rows, certificate=to, progress=progress
            )
            return forget.result if dry_run else forget.run(progress)

    def search_keys(
        self, keys: Any, *, operator: int = 0, certificate: str | os.PathLike[str] | None = None
    ) -> KeySearch:
        """Look for keys in every file of the checkpoint; the query may run, if files stay.

        Rows of every state file are decoded, whatever version names them, deleted ones too, and
        each column is compared with the columns of the keys; bytes of rows and files are searched
        for the keys as they are stored, and Spark's own files as text.

        Args:
            keys: Grouping keys as `forget` takes them. There is no condition: it would find nothing
                after the rows are gone.
            operator: Operator ID, of which these are keys.
            certificate: Local file with a certificate, to be compared with the keys.

        Returns:
            What was found of each operator, and whether the certificate is of these very keys.
            Nothing is changed.

        Raises:
            InvalidArgumentError: The file is no certificate; or as `forget`, like all others.
        """
        is_of = None if certificate is None else CertificateFile(certificate).is_of
        with self._reach.checkpoint() as checkpoint:
            of = checkpoint.operator(operator)
            wanted = Wanted(keys=keys, key_form=key_form_of(of, checkpoint.conf))
            return search(checkpoint, of.id, wanted, is_of)

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
            progress: Called with bytes done and the total.

        Guarantee: on return the savepoint is whole and durable, and refers to nothing outside of
        it. After a raise, or when the process is killed, the destination is not taken for a
        savepoint, and the same call may be repeated; the checkpoint is as it was, but for pins that
        expire.

        Raises:
            InvalidArgumentError: The destination has files (kind checkpoint-exists); there is no
                such form; or the form is native and the state is in checkpoint memory.
            NotFoundError: The version is being expired faster than it is copied.
        """
        reach, to = self._reach.with_new(destination)
        with reach.using(), reach.opened() as place:
            return take_savepoint(
                place,
                to.place,
                self._savepoint(destination),
                version=version,
                form=form,
                dry_run=dry_run,
                progress=progress,
            )

    def retain_savepoint(
        self,
        destination: DirectoryLike,
        *,
        form: SavepointForm = "canonical",
        keep: int = SAVEPOINTS_KEPT,
        max_age: Duration | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RetainedSavepoints:
        """Take a savepoint into a directory of this query's, and delete old ones that it has there.

        What is taken is `savepoint-<time>-<id>` in the directory: nothing, where no batch was
        committed since the newest one. Only savepoints of such names and of this query are deleted.

        Args:
            destination: The directory of the savepoints, made where it is not there; see
                `savepoint`.
            form: As `savepoint`.
            keep: How many stay, the newest, at least 1.
            max_age: Of these only those that are not older, a timedelta or seconds; the newest
                stays at any age. None for any.
            progress: As `savepoint`.

        Guarantee: where there was a whole savepoint before, there is one at every moment, also
        after a raise or a kill. An old one is deleted when the newest is durable and `verify` finds
        nothing wrong with it. `status.json` in the directory says what was done, or what failed.

        Raises:
            InvalidArgumentError: The directory has savepoints of another query, or by its
                `status.json` of another checkpoint of this one; or is not apart from every
                checkpoint; `keep` is below 1, or `max_age` is below a second.
            CorruptionError: The newest savepoint is damaged, so none was deleted.
        """
        retention = Retention(keep, max_age, form)
        reach, to = self._reach.with_new(destination)
        with reach.using(), reach.opened() as place:
            return retain_savepoint(place, to.place, retention, dry_run=dry_run, progress=progress)

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
            progress: Called with bytes of state done and the total.

        Guarantee: on return the new checkpoint is whole and durable, and neither query can harm the
        other's. After a raise, or when the process is killed, no query starts from it until the
        call is repeated.

        Raises:
            InvalidArgumentError: The new checkpoint has files (kind checkpoint-exists); the state
                is in checkpoint memory; or this is a savepoint, which `restore` makes one of.
        """
        reach, to = self._reach.with_new_checkpoint(new)
        with reach.checkpoint() as checkpoint:
            branch = decide_branch(checkpoint, to.place, version)
            return branch.make(Checkpoint._at(to), dry_run=dry_run, progress=progress)

    def convert(
        self,
        new: DirectoryLike,
        provider: str,
        *,
        session_conf: Mapping[str, str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Convert[Checkpoint]:
        """Make a new checkpoint from which the query goes on with one of Spark's own providers.

        Spark jobs write it. The other way is `restore`.

        Args:
            new: Where the new checkpoint is to be: a path or URI that Spark's Hadoop can open, as
                this one's.
            provider: spark-hdfs or spark-rocksdb.
            session_conf: Configuration of the session that is started, where this object has none,
                and none is active; it is stopped at the end.
            progress: Called with the stores that are copied and compared, and their number.

        Guarantee: on return the query starts from the new checkpoint, on `provider`, and
        every row was read again and compared by checksum. After a raise, or a crash, no query
        starts from it, and the conversion can be run again. This checkpoint is not changed.

        Raises:
            InUseError: A query is writing this checkpoint, or wrote it meanwhile.
            InvalidArgumentError: `provider` is none of Spark's, nothing is to convert, there is
                something at `new`, or the session is one of Spark Connect (kind spark-connect).
            FencedError: Another conversion has begun there since.
            IncompatibleError: Another provider wrote this checkpoint (kind other-provider); some of
                the state cannot be converted, or not to this provider, or not by this Spark.
            InternalError: A row is not what it was.
            NotFoundError: No batch is committed, Spark's metadata is missing, the session has not
                got the jar, or Spark is not installed.
            CorruptionError, StorageError: State cannot be read or written, or the session's JVM
                does not start; names the reason.
        """
        reach, there = self._reach.with_new_checkpoint(new)
        with open_conversion(
            reach.place,
            there.place,
            provider,
            spark=reach.spark,
            session_conf={**reach.hadoop_conf, **(session_conf or {})},
        ) as conversion:
            return conversion.make(Checkpoint._at(there), dry_run=dry_run, progress=progress)


class Savepoint(Directory):
    """A savepoint: a version of a query, whole, that is its user's.

    It is read as a checkpoint is, and restored to a new one. Only a claim, and the schedule that
    took it, delete one.
    """

    @property
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


def _history_fields(entry: HistoryEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in _HISTORY}
