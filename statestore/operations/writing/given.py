"""Rows that a user gives for a column family: as Arrow data, or made of the rows there are."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.codec.rows import MAX_BLOCK_BYTES
from statestore.codec.sorting import gather
from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.io.local import is_disk_full
from statestore.operations.database import OUT_ROWS, check_words, open_database, parsed
from statestore.operations.reading.sql_types import with_short_durations, with_short_intervals
from statestore.operations.writing.casts import KeyForm
from statestore.operations.writing.columns import SIDES, FamilyColumns, decide_family
from statestore.operations.writing.rows_from_file import RowsFile

if TYPE_CHECKING:
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.addresses import Address

Function = Callable[[pa.Table], Any]
"""Makes rows of rows: columns as `read` returns them in, Arrow data out; called many times."""
Batches = Callable[[], Generator[pa.RecordBatch, None, None]]
"""Reads the rows there are; the first batch is empty and tells their columns."""
TABLE = "state"
"""The table in SQL of the rows there are."""
_SETTINGS: dict[str, Any] = {"memory_limit": "1GB", "threads": 2}


class GivenRows(ABC):
    """Rows with columns of keys and values, whoever makes them."""

    @property
    @abstractmethod
    def what(self) -> str:
        """Where they come from, in words."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return their columns; a function or SQL is run on no rows for that."""

    @abstractmethod
    def batches(self, scratch_directory: str) -> Generator[pa.RecordBatch, None, None]:
        """Yield them; what was given as a stream only once. Close it: it may read in threads.

        Args:
            scratch_directory: Local directory for what does not fit memory.

        Raises:
            InvalidArgumentError: The function returns no rows, the SQL cannot be run, or a stream
                that is given has no row, or is below a relation of DuckDB.
        """


def rows_of(given: Any, stored: Batches | None) -> GivenRows:
    """Return rows as they were given.

    Args:
        given: Arrow data, also of pandas, Polars or DuckDB; or where there are rows already, a
            function of them, or SQL over the table `state`.
        stored: Reads the rows there are; None where there are none to make others of.

    Raises:
        InvalidArgumentError: It is nothing of that.
    """
    if stored is not None and isinstance(given, str):
        return _Sql(given, stored)
    if stored is not None and callable(given) and not hasattr(given, "__arrow_c_stream__"):
        return _Made(given, stored)
    reader = as_reader(given)
    if reader is not given:
        reader.close()  # what it holds open is not to be in the way of the next one
    return _Data(given, reader.schema)


def as_reader(given: Any) -> pa.RecordBatchReader:
    """Return Arrow data, of whatever library, as a stream of record batches.

    Raises:
        InvalidArgumentError: It is no such data.
    """
    if isinstance(given, pa.RecordBatchReader):
        return given
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        return given.to_reader()
    if hasattr(given, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(given)
    raise InvalidArgumentError(
        "the rows given are not Arrow data",
        type=type(given).__name__,
        to_fix="give Arrow data: a table, a stream of record batches, or what pandas, Polars or "
        "DuckDB make; a file as a pathlib.Path; a function or SQL only where there are rows to "
        "change",
    )


def kept(given: Any) -> Any:
    """Return given rows in a form that reads the same each time: a stream as a table.

    So is data of other libraries; a file is copied. Anything else is returned as it is.

    Raises:
        InvalidArgumentError: As `RowsFile`; or as `as_reader`.
    """
    if isinstance(given, Path):
        return RowsFile(given)
    if isinstance(given, pa.Table) or not hasattr(given, "__arrow_c_stream__"):
        return given
    return as_reader(given).read_all()


def by_address(rows: Any) -> Mapping[Address, Any]:
    """Return given rows or edits by the address of the rows.

    Raises:
        InvalidArgumentError: It is no mapping.
    """
    if isinstance(rows, Mapping):
        return rows
    raise InvalidArgumentError(
        "the rows given are not a mapping from addresses to rows",
        rows=type(rows).__name__,
        to_fix='give a mapping, such as {"clicks": rows}, or {0: rows} for operator 0',
    )


def read_given(
    given: Any,
    store: str,
    family: ColumnFamily,
    *,
    has_values: bool,
    key_form: KeyForm = KeyForm.GROUPED,
) -> pa.Table:
    """Read rows, or keys alone, that are given for a column family and held in memory.

    Args:
        given: Arrow data, of whatever library; or a `Path` of a file, as `RowsFile` takes it; or
            what `kept` returns of one of them.
        store: Name of the store.
        family: The column family.
        has_values: Whether values are given beside keys.
        key_form: As `FamilyColumns`.

    Returns:
        Columns `key` and, where they are given, `value`, of the column family's own types.

    Raises:
        InvalidArgumentError: It is no such data or file; the columns are not those of the column
            family; or a value is not of its type, or not without a loss.
        IncompatibleError: A type of what is given cannot be read.
    """
    if isinstance(given, Path):
        given = RowsFile(given)
    table = (
        given.read(family, has_values=has_values)
        if isinstance(given, RowsFile)
        else as_reader(given).read_all()
    )
    decide_family(family, table.schema, change_schema=False, has_values=has_values)
    sides = SIDES if has_values else SIDES[:1]
    return FamilyColumns(store, family, key_form).typed(table, sides)


@dataclass(frozen=True, slots=True)
class _Data(GivenRows):
    given: Any
    columns: pa.Schema

    @property
    def what(self) -> str:
        return "rows as given"

    def schema(self) -> pa.Schema:
        return self.columns

    def batches(self, scratch_directory: str) -> Generator[pa.RecordBatch, None, None]:
        del scratch_directory
        # Of a table as often as asked, of a stream once.
        num_rows = 0
        for batch in self._reader():
            num_rows += batch.num_rows
            yield batch
        if not num_rows and isinstance(self.given, pa.RecordBatchReader):
            raise InvalidArgumentError(
                "a stream of rows has no row: it may have been read before",
                columns=", ".join(self.columns.names),
                to_fix="make the stream anew; where no row is meant, give a table without rows",
            )

    def _reader(self) -> pa.RecordBatchReader:
        try:
            return as_reader(self.given)
        except Exception as error:
            if type(error).__name__ != "InvalidInputException":
                raise
            raise InvalidArgumentError(
                "a relation of DuckDB over a stream can be read once, which was for its columns",
                columns=", ".join(self.columns.names),
                to_fix="make the relation anew, and give its to_arrow_reader()",
            ) from error


@dataclass(frozen=True, slots=True)
class _Made(GivenRows):
    function: Function
    stored: Batches

    @property
    def what(self) -> str:
        return f"made by {getattr(self.function, '__name__', 'a function')}"

    def schema(self) -> pa.Schema:
        first = next(self.stored())
        return as_reader(self.function(pa.Table.from_batches([first]))).schema

    def batches(self, scratch_directory: str) -> Generator[pa.RecordBatch, None, None]:
        del scratch_directory
        for batch in self.stored():
            if batch.num_rows:
                yield from as_reader(self.function(pa.Table.from_batches([batch])))


@dataclass(frozen=True, slots=True)
class _Sql(GivenRows):
    sql: str
    stored: Batches

    @property
    def what(self) -> str:
        return "made by SQL"

    def schema(self) -> pa.Schema:
        first = next(self.stored())
        with open_database(**_SETTINGS) as connection:
            return self._run(connection, first.schema, iter([first])).schema

    def batches(self, scratch_directory: str) -> Generator[pa.RecordBatch, None, None]:
        failed: list[StateStoreError] = []
        with (
            closing(self.stored()) as stored,
            tempfile.TemporaryDirectory(prefix="sql-", dir=scratch_directory) as directory,
            open_database(directory, **_SETTINGS) as connection,
        ):
            batches = map(with_short_durations, stored)
            first = next(batches)
            try:
                made = self._run(connection, first.schema, _noting(batches, failed))
                yield from gather(made, MAX_BLOCK_BYTES)
            except (InvalidArgumentError, pa.ArrowException, OSError) as error:
                if failed:
                    raise failed[0] from error
                if isinstance(error, InvalidArgumentError):
                    raise
                raise self._refused(error, first.schema) from error

    def _run(
        self, connection: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
    ) -> pa.RecordBatchReader:
        import duckdb

        try:
            kinds = [statement.type for statement in connection.extract_statements(self.sql)]
            if kinds not in ([duckdb.StatementType.SELECT], [duckdb.StatementType.MULTI]):
                raise self._refused("it is not one SELECT", schema)
            # A table of its own: SQL may look at its rows more than once.
            connection.register("given", pa.RecordBatchReader.from_batches(schema, batches))
            connection.table("given").create(TABLE)
            check_words(parsed(connection, self.sql), self.sql)
            found = with_short_intervals(connection.sql(self.sql))
            reader: pa.RecordBatchReader = found.to_arrow_reader(OUT_ROWS)
            return reader
        except duckdb.Error as error:
            raise self._refused(error, schema) from error

    def _refused(self, error: Exception | str, schema: pa.Schema) -> InvalidArgumentError:
        if isinstance(error, Exception) and is_disk_full(error):
            raise error
        return InvalidArgumentError(
            "the SQL cannot be run",
            sql=self.sql,
            reason=str(error).partition("\n")[0],
            to_fix=f"give one SELECT, of DuckDB's SQL, over the table {TABLE} with the columns "
            f"{', '.join(schema.names)}",
        )


def _noting(
    batches: Iterator[pa.RecordBatch], failed: list[StateStoreError]
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and note the error that ends them, of which DuckDB keeps the text alone."""
    try:
        yield from batches
    except StateStoreError as error:
        failed.append(error)
        raise
