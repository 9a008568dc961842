"""State: what is read of a checkpoint or a savepoint, rows and numbers."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from statestore.api.directory import Directory
from statestore.api.listing import Listing
from statestore.operations.reading import diff as differences
from statestore.operations.reading import inspection
from statestore.operations.reading.read import read_batches
from statestore.operations.reading.selection import Selection
from statestore.operations.result import Progress, no_progress
from statestore.operations.upkeep.verify import verify

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    import pyarrow.compute as pc

    from statestore.api.directory import DirectoryLike
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.reading.diff import DiffCounts
    from statestore.operations.reading.inspection import StoreDescription
    from statestore.operations.upkeep.verification import Verification
    from statestore.report.facts import Facts

_FAMILIES: list[pa.Field[Any]] = [
    pa.field("name", pa.string()),
    pa.field("key", pa.string()),
    pa.field("value", pa.string()),
    pa.field("encoder", pa.string()),
    pa.field("multi_values", pa.bool_()),
    pa.field("internal", pa.bool_()),
    pa.field("variable", pa.string()),
    pa.field("has_ttl", pa.bool_()),
]
_STORES: list[pa.Field[Any]] = [
    pa.field("operator", pa.int64()),
    pa.field("operator_name", pa.string()),
    pa.field("store", pa.string()),
    pa.field("num_partitions", pa.int64()),
    pa.field("max_parallelism", pa.int64()),
    pa.field("rescalable", pa.bool_()),
    pa.field("num_keys", pa.int64()),
    pa.field("column_families", pa.list_(pa.struct(_FAMILIES))),
]


class State(Directory):
    """The state in a directory, of this package's providers or of Spark's own, as it is read.

    Errors of all that reads:

        NotFoundError: There is no checkpoint, no such version, or it was expired; or its state is
            in the memory of a driver, and no session of it was given (kind driver-lost).
        InvalidArgumentError: There is no such operator, store, column family or state partition.
        IncompatibleError: A provider's that cannot be read, or such a data type.
        CorruptionError, FencedError, StorageError: The version cannot be restored.
    """

    def inspect(self, *, version: int | None = None) -> Listing[StoreDescription]:
        """List the stores of a version with their schemas and numbers of rows; no row is read."""
        with self._opened() as checkpoint:
            found = inspection.describe(checkpoint, version=version)
        return Listing(found, pa.schema(_STORES), lambda store: store.fields())

    def read(
        self,
        *,
        operator: int = 0,
        store: str = "default",
        version: int | None = None,
        column_family: str = "default",
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | str | None = None,
        flatten: bool = False,
    ) -> pa.Table:
        """Read a column family of a store into memory.

        Args:
            operator: Operator ID.
            store: Store name; a stream-stream join has four.
            version: State version, which is batch + 1; None for the newest committed.
            column_family: Name of the column family; of transformWithState that of a state
                variable.
            partitions: Only these state partitions, None for all.
            columns: Only these columns, fields of a struct by names with dots: `key.shop`.
            filter: Only rows for which it holds, such as `pc.field("value.count") > 3`, by the same
                names, also where the column itself is not wanted; or a condition in SQL, such as
                `"shop = 'x' and value.count > 3"`, where a field whose name no other has needs no
                dots, and times are in UTC.
            flatten: Whether every field becomes a column of its own, named with dots.

        Returns:
            A row a key, in a multi-value column family a row a value; no order. Columns as in
            Spark's state reader: `key` and `value`, structs of the column family's schemas, and
            `partition_id`.

        Raises:
            InvalidArgumentError: There is no such column, the filter does not fit them, or the
                package that SQL needs is not installed; or as the class says.
        """
        batches = self.read_batches(
            operator=operator,
            store=store,
            version=version,
            column_family=column_family,
            partitions=partitions,
            columns=columns,
            filter=filter,
            flatten=flatten,
        )
        return pa.Table.from_batches(list(batches))

    def read_batches(
        self,
        *,
        operator: int = 0,
        store: str = "default",
        version: int | None = None,
        column_family: str = "default",
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | str | None = None,
        flatten: bool = False,
        progress: Progress | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Read a column family of a store batch by batch, for state that does not fit memory.

        Yields:
            Record batches of the columns of `read`, a few MiB each, the first one always, if empty.
            A version stays readable while it is read unless the query expires it.

        Arguments and errors as `read`; and `progress` is called with the rows read so far and the
        total, of all column families of the store.
        """
        selection = Selection(None if columns is None else tuple(columns), filter, flatten)
        with ExitStack() as stack:
            batches = read_batches(
                self._enter(stack),
                operator=operator,
                store=store,
                version=version,
                column_family=column_family,
                partitions=partitions,
                progress=progress or no_progress,
            )
            for batch in batches:
                yield selection.apply(batch)

    def find(
        self,
        key: Sequence[Any],
        *,
        operator: int = 0,
        store: str = "default",
        version: int | None = None,
        column_family: str = "default",
    ) -> pa.Table:
        """Read the rows of a key, or of all keys that begin with some columns.

        Only one state partition is read where the columns given decide on it.

        Takes what `read` takes, and `key`: values of the first key columns, in order: Python
        values, or text that Arrow can read as the column's type; for a struct, such as a window, a
        dict of all its fields or a list of their values; None for null.

        Returns:
            Columns as `read`.

        Raises:
            InvalidArgumentError: A value is not of its column's type, there are more values than
                columns; or as the class says.
        """
        with self._opened() as checkpoint:
            return inspection.find_rows(
                checkpoint,
                key,
                operator=operator,
                store=store,
                version=version,
                column_family=column_family,
            )

    def largest(
        self,
        num_keys: int = 10,
        *,
        operator: int = 0,
        store: str = "default",
        version: int | None = None,
        column_family: str = "default",
    ) -> pa.Table:
        """Find the keys with the most bytes of values.

        Takes what `read` takes, and `num_keys`, how many, at least 1.

        Returns:
            Largest first; columns `key`, `partition_id`, `key_bytes` and `value_bytes`.
        """
        with self._opened() as checkpoint:
            return inspection.largest_keys(
                checkpoint,
                num_keys,
                operator=operator,
                store=store,
                version=version,
                column_family=column_family,
            )

    def key_groups(
        self,
        *,
        operator: int = 0,
        store: str = "default",
        version: int | None = None,
        column_family: str = "default",
    ) -> pa.Table:
        """Count the rows of every key group: how state would spread over more state partitions.

        Takes what `read` takes.

        Returns:
            Key groups that have rows, ascending; columns `key_group`, `partition_id`, `num_rows`,
            `key_bytes` and `value_bytes`.
        """
        with self._opened() as checkpoint:
            return inspection.key_group_histogram(
                checkpoint,
                operator=operator,
                store=store,
                version=version,
                column_family=column_family,
            )

    def diff(
        self,
        new: DirectoryLike | None = None,
        *,
        old_version: int | None = None,
        new_version: int | None = None,
        operator: int = 0,
        store: str = "default",
        column_family: str = "default",
    ) -> pa.Table:
        """Compare a version of a column family with another one, here or elsewhere.

        Takes what `read` takes, and `new`, another checkpoint or savepoint, this one when None;
        with a version of each, `old_version` and `new_version`, the newest committed when None.

        Returns:
            A row a key that differs, in no order. Columns: `change` (added, removed or changed),
            `key`, `old_value` and `new_value`, null where there is none. A multi-value column
            family has lists of values. Both values are of their own version's schema, the key of
            the new one's.
        """
        batches = self.diff_batches(
            new,
            old_version=old_version,
            new_version=new_version,
            operator=operator,
            store=store,
            column_family=column_family,
        )
        return pa.Table.from_batches(list(batches))

    def diff_batches(
        self,
        new: DirectoryLike | None = None,
        *,
        old_version: int | None = None,
        new_version: int | None = None,
        operator: int = 0,
        store: str = "default",
        column_family: str = "default",
    ) -> Generator[pa.RecordBatch, None, None]:
        """Compare two versions batch by batch, in bounded memory.

        Yields:
            Record batches of the columns of `diff`, the first one always, if empty.

        Arguments and errors as `diff`.
        """
        with ExitStack() as stack:
            yield from differences.diff_batches(
                *self._sides(stack, new),
                old_version=old_version,
                new_version=new_version,
                operator=operator,
                store=store,
                column_family=column_family,
            )

    def count_differences(
        self,
        new: DirectoryLike | None = None,
        *,
        old_version: int | None = None,
        new_version: int | None = None,
        operator: int = 0,
        store: str = "default",
        column_family: str = "default",
    ) -> DiffCounts:
        """Count what `diff` would return, in bounded memory; arguments and errors as there."""
        with ExitStack() as stack:
            return differences.count_differences(
                *self._sides(stack, new),
                old_version=old_version,
                new_version=new_version,
                operator=operator,
                store=store,
                column_family=column_family,
            )

    def _sides(
        self, stack: ExitStack, new: DirectoryLike | None
    ) -> tuple[OpenCheckpoint, OpenCheckpoint]:
        old = self._enter(stack)
        return old, old if new is None else Directory._at(self._beside(new))._enter(stack)

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
            NotFoundError: There is no checkpoint, or a version is not committed; of the heap
                backend also without a session of its driver (kind driver-lost).
            InvalidArgumentError: The package that the state backend needs is not installed.
            IncompatibleError: Neither this package's nor one of Spark's own providers wrote it
                (kind other-provider), or it is in a newer format than this release knows (kind
                newer-format).
            StorageError: The storage, or the local disk, failed; nothing is known of the rest then.
        """
        with self._opened() as checkpoint:
            return verify(
                checkpoint, versions=versions, deep=deep, progress=progress or no_progress
            )

    def report(
        self,
        to: str | os.PathLike[str] | None = None,
        *,
        limit: int = 100,
        deep: bool = False,
        savepoints: str | os.PathLike[str] | None = None,
    ) -> Facts:
        """Gather the facts of a page, and write the page: one HTML file that needs no network.

        Args:
            to: HTML file to write, in place of one there; none when None.
            limit: At most so many versions of the history, at least 1.
            deep: Whether to read every row: the heaviest keys of state of any size, and all checks
                of `verify(deep=True)`.
            savepoints: Directory to look for savepoints and branches in.

        Raises:
            NotFoundError: There is no checkpoint.
            InvalidArgumentError: The page cannot be written.
            IncompatibleError: Neither this package's nor one of Spark's own providers wrote it.
            CorruptionError, StorageError: Spark's logs cannot be read, or the storage failed.
                Damaged state is a finding instead.
        """
        # Imported here because it needs packages that are an extra.
        from statestore.report.gather import gather
        from statestore.report.page import write_page

        place = None if savepoints is None else os.fspath(savepoints)
        with self._opened() as checkpoint:
            facts = gather(checkpoint, num_versions=limit, deep=deep, savepoints=place)
        if to is not None:
            write_page(facts, to)
        return facts
