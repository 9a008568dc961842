"""Rows: a store or state variable of a checkpoint or savepoint, read and compared."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.core.errors import require_several
from statestore.operations.reading import diff as differences
from statestore.operations.reading import inspection
from statestore.operations.reading.changed_keys import most_changed_keys
from statestore.operations.reading.read import read_batches, row_schema
from statestore.operations.reading.selection import Selection
from statestore.operations.result import Progress, no_progress
from statestore.operations.states import rows_at, rows_of_both

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    import pyarrow.compute as pc

    from statestore.api.reaching import Reach
    from statestore.operations.addresses import Address
    from statestore.operations.reading.diff import DiffCounts
    from statestore.operations.states import FoundRows


class Rows:
    """The rows of a store or state variable at a version; made by `Checkpoint.rows`.

    Nothing is open between two calls, and none is made before the first. pandas, Polars, DuckDB and
    pyarrow take it for a table, by the Arrow PyCapsule interface.

    Attributes:
        name: Their address, as given.
        version: State version, None for the newest committed when they are read.

    Errors of all that reads:

        InvalidArgumentError: No rows have the address, or several; names those there are.
        NotFoundError: There is no checkpoint, no such version, or it was expired; or its state is
            in the memory of a driver that is gone, or whose session was not given (kind
            driver-lost).
        IncompatibleError: A provider's that cannot be read, or such a data type.
        CorruptionError, FencedError, StorageError: The version cannot be restored.
    """

    def __init__(self, reach: Reach, name: Address, version: int | None) -> None:
        self.name = name
        self.version = version
        self._reach = reach

    def __repr__(self) -> str:
        version = "" if self.version is None else f", version {self.version}"
        name = "" if self.name is None else f" {self.name!r}"
        return f"<Rows{name} of {self._reach.place.uri}{version}>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return stream_of(self.read_batches(), requested_schema)

    def read(
        self,
        *,
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | str | None = None,
        flatten: bool = False,
    ) -> pa.Table:
        """Read the rows into memory.

        Args:
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
            InvalidArgumentError: There is no such column or state partition, the filter does not
                fit them, or the package that SQL needs is not installed.
        """
        batches = self.read_batches(
            partitions=partitions, columns=columns, filter=filter, flatten=flatten
        )
        return pa.Table.from_batches(list(batches))

    def read_batches(
        self,
        *,
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | str | None = None,
        flatten: bool = False,
        progress: Progress | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Read the rows batch by batch, for state that does not fit memory.

        Yields:
            Record batches of the columns of `read`, a few MiB each, the first one always, if empty.
            A version stays readable while it is read unless the query expires it.

        Arguments and errors as `read`; and `progress` is called with the rows read so far and the
        total, of all column families of the store.
        """
        if columns is not None:
            require_several("columns", columns)
        selection = Selection(None if columns is None else tuple(columns), filter, flatten)
        with ExitStack() as stack:
            rows = rows_at(self._reach.enter(stack), self.name, self.version)
            needed = selection.needed(row_schema(rows.family))
            batches = read_batches(
                rows,
                partitions=partitions,
                columns=needed.columns,
                asked=needed.asked,
                progress=progress or no_progress,
            )
            # Its threads end before the directory that they fetch files to.
            for batch in stack.enter_context(closing(batches)):
                yield selection.apply(batch)

    def find(self, key: Sequence[Any]) -> pa.Table:
        """Read the rows of a key, or of all keys that begin with some columns.

        Only one state partition is read where the columns given decide on it.

        Args:
            key: Values of the first key columns, in order: Python values, or as `read --output
                json` prints them, so bytes in hex; for a struct, such as a window, a dict of all
                its fields or a list of their values; None for null.

        Returns:
            Columns as `read`.

        Raises:
            InvalidArgumentError: A value is not of its column's type, or there are more values than
                columns.
        """
        with self._reach.checkpoint() as checkpoint:
            return inspection.find_key(rows_at(checkpoint, self.name, self.version), key)

    def largest(self, num_keys: int = 10) -> pa.Table:
        """Find the keys with the most bytes of values.

        Args:
            num_keys: How many, at least 1.

        Returns:
            Largest first; columns `key`, `partition_id`, `key_bytes` and `value_bytes`.
        """
        with self._reach.checkpoint() as checkpoint:
            return inspection.largest_keys(rows_at(checkpoint, self.name, self.version), num_keys)

    def most_changed(self, num_keys: int = 10) -> pa.Table:
        """Find the keys that change most often.

        Reads what the 20 newest versions added, and not the state. Versions that were expired, and
        those before a rescale, are not counted.

        Args:
            num_keys: How many, at least 1.

        Returns:
            The most changed first; columns `key`, `partition_id`, `num_changes`, the versions in
            which a row of the key was written or deleted, and `num_versions`, of how many.

        Raises:
            IncompatibleError: It is of one of Spark's own providers (kind other-provider).
        """
        with self._reach.checkpoint() as checkpoint:
            version = checkpoint.newest_version if self.version is None else self.version
            rows = rows_at(checkpoint, self.name, version)
            return most_changed_keys(checkpoint, rows, version, num_keys)

    def key_groups(self) -> pa.Table:
        """Count the rows of every key group: how state would spread over more state partitions.

        Returns:
            Key groups that have rows, ascending; columns `key_group`, `partition_id`, `num_rows`,
            `key_bytes` and `value_bytes`.
        """
        with self._reach.checkpoint() as checkpoint:
            return inspection.key_group_histogram(rows_at(checkpoint, self.name, self.version))

    def diff(self, new: Rows) -> pa.Table:
        """Compare the rows with others: of another version, or of another directory.

        Args:
            new: Such as `checkpoint.rows("clicks", version=12)`, or those of a savepoint.

        Returns:
            A row a key that differs, in no order. Columns: `change` (added, removed or changed),
            `key`, `old_value` and `new_value`, null where there is none. A multi-value column
            family has lists of values. Both values are of their own version's schema, the key of
            the new one's.

        Raises:
            IncompatibleError: Their keys are encoded in different ways, or are of different types.
        """
        return pa.Table.from_batches(list(self.diff_batches(new)))

    def diff_batches(self, new: Rows) -> Generator[pa.RecordBatch, None, None]:
        """Compare the rows with others batch by batch, in bounded memory.

        Yields:
            Record batches of the columns of `diff`, the first one always, if empty.

        Arguments and errors as `diff`.
        """
        with ExitStack() as stack:
            yield from differences.diff_batches(*self._sides(stack, new))

    def count_differences(self, new: Rows) -> DiffCounts:
        """Count what `diff` would return, in bounded memory; arguments and errors as there."""
        with ExitStack() as stack:
            return differences.count_differences(*self._sides(stack, new))

    def _sides(self, stack: ExitStack, new: Rows) -> tuple[FoundRows, FoundRows, str]:
        checkpoint = self._reach.enter(stack)
        there = checkpoint
        if new._reach is not self._reach:
            there = new._reach.enter(stack)
        if new.name == self.name:
            both = rows_of_both(checkpoint, there, self.name, (self.version, new.version))
        else:
            both = (
                rows_at(checkpoint, self.name, self.version),
                rows_at(there, new.name, new.version),
            )
        return *both, checkpoint.scratch_directory


def stream_of(batches: Iterator[pa.RecordBatch], requested_schema: object | None) -> object:
    """Return record batches, one at least, as the Arrow PyCapsule interface has a stream."""
    first = next(batches)

    def all_batches() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    reader = pa.RecordBatchReader.from_batches(first.schema, all_batches())
    return reader.__arrow_c_stream__(requested_schema)  # type: ignore[no-untyped-call]
