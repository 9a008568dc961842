"""Writing: a savepoint with other rows than there are, made of them or put in their place."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from statestore.api.state import State
from statestore.operations.writing.decide import decide_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.api.directory import DirectoryLike
    from statestore.operations.copy_result import CopyResult
    from statestore.operations.copying import Copy
    from statestore.operations.result import Progress
    from statestore.operations.savepoint.savepoint import SavepointInfo

Written = TypeVar("Written")
"""Savepoint, which stands on this module."""


class Writing(State, Generic[Written]):
    """State that is read, and of which a savepoint with other rows is made.

    Rows are Arrow data: a table, a stream of record batches, or what pandas, Polars and DuckDB
    make. Their columns are those of `read`: structs `key` and `value`, or their fields as columns
    named with dots, `key.shop`; or the path of a file of these. Values keep the types that the
    state has; they are cast where nothing is lost by it. A column `partition_id` is passed over:
    Spark's hash of the key decides.
    """

    def transform(
        self,
        destination: DirectoryLike,
        operators: Mapping[int, Any],
        *,
        version: int | None = None,
        change_schema: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CopyResult[Written]:
        """Make a savepoint of which some operators have other rows, made of those they have.

        The query may run meanwhile.

        Args:
            destination: Directory of the savepoint, which must not be there; of any storage.
            operators: By operator ID what makes its rows: a function, called with a `pa.Table` of
                some of them at a time, which returns rows; SQL of DuckDB, over all of them as the
                table `state`; or `Edited`, which keys go and which rows are put. Of a join a
                mapping by store, of transformWithState by state variable. What is not named keeps
                its rows.
            version: State version, None for the newest committed one.
            change_schema: Whether names and types of the columns returned are the schemas of keys
                and values from now on; else they must be those there are.
            dry_run: Whether to return what it would do, and change nothing. Functions are called
                with a table without rows, for the columns that they return; a stream of rows in
                `Edited` is read.
            progress: Called with bytes of state done and the total.

        Guarantee: on return the savepoint is whole and durable, refers to nothing outside of it,
        and every row is in the state partition where Spark looks for it. After a raise, or when the
        process is killed, the destination is not taken for a savepoint, and the call may be
        repeated; this directory is as it was.

        Raises:
            InvalidArgumentError: The destination has files (kind checkpoint-exists); there is no
                such operator, store or state variable; rows do not fit it; a key is there twice
                (kind duplicate-key); all rows would go by an `Edited` without `all_rows`; or SQL is
                given and `duckdb` is not installed.
            NotFoundError: The version was not committed, or is being expired; or no row is there
                that an `Edited` deletes (kind keys-not-found), and it puts none.
            IncompatibleError: Another provider wrote the checkpoint; rows are not where their keys
                belong (kind not-rescalable); or a schema that cannot change would.
            CorruptionError, FencedError, StorageError: A file cannot be read, or a storage failed.
        """
        to = self._beside(destination).place
        with self._opened() as checkpoint:
            copy = decide_rows(
                "transform",
                checkpoint,
                to,
                operators,
                version=version,
                change_schema=change_schema,
                makes=True,
            )
            return self._made(copy, destination, dry_run=dry_run, progress=progress)

    def _made(
        self,
        copy: Copy[SavepointInfo],
        destination: DirectoryLike,
        *,
        dry_run: bool,
        progress: Progress | None,
    ) -> CopyResult[Written]:
        return copy.make(lambda _: self._written(destination), dry_run=dry_run, progress=progress)

    @abstractmethod
    def _written(self, destination: DirectoryLike) -> Written:
        """Return the savepoint at a destination."""
