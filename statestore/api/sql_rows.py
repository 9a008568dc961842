"""SqlRows: rows that SQL makes of those of checkpoints."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa

from statestore.api.rows import stream_of
from statestore.operations.reading.sql import run_sql

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from statestore.api.reaching import Reach


class SqlRows:
    """Rows that SQL makes; made by `Checkpoint.sql`.

    The SQL is run each time that they are read, and not before. Nothing is open between two calls.
    pandas, Polars, DuckDB and pyarrow take it for a table, by the Arrow PyCapsule interface.

    Attributes:
        sql: The SQL, as given.

    Errors of all that reads:

        InvalidArgumentError: It is not one SELECT; it names no table or column that there is, and
            the error names those there are; an alias or a limit cannot be; it takes longer than it
            may; or DuckDB is not installed.
        NotFoundError: There is no checkpoint, no such version, or it was expired.
        IncompatibleError: A provider's that cannot be read, or such a data type.
        CorruptionError, FencedError, StorageError: A version cannot be restored.
    """

    def __init__(
        self,
        reach: Reach,
        sql: str,
        attached: Mapping[str, Reach],
        memory_limit: str,
        timeout_ms: int | None,
    ) -> None:
        self.sql = sql
        self._reach = reach
        self._attached = attached
        self._memory_limit = memory_limit
        self._timeout_ms = timeout_ms

    def __repr__(self) -> str:
        return f"<SqlRows {self.sql!r} of {self._reach.place.uri}>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return stream_of(self.read_batches(), requested_schema)

    def read(self) -> pa.Table:
        """Run the SQL, and read its rows into memory.

        Returns:
            Columns as the SQL names them, of the types that DuckDB gives them; every interval is of
            months, days and nanoseconds.
        """
        return pa.Table.from_batches(list(self.read_batches()))

    def read_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Run the SQL, and read its rows batch by batch, for more of them than memory.

        Yields:
            Record batches of the columns of `read`, the first one always, if empty. Until the last
            one was read, no query expires the versions that are read, where the checkpoint is this
            package's and can be written.
        """
        with ExitStack() as stack:
            checkpoint = self._reach.enter(stack)
            attached = {alias: of.enter(stack) for alias, of in self._attached.items()}
            yield from run_sql(
                self.sql,
                checkpoint,
                attached,
                memory_limit=self._memory_limit,
                timeout_ms=self._timeout_ms,
            )
