"""SQL over the rows of checkpoints, run by DuckDB, which asks for no more than it needs.

Tables of an attached checkpoint are `ALIAS.NAME`. A name is looked up before DuckDB sees it, so
that it is rows of a checkpoint or refused.
"""

from __future__ import annotations

import re
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from statestore.checkpoint.pins import pinned
from statestore.codec.rows import MAX_BLOCK_BYTES, no_rows
from statestore.codec.sorting import gather
from statestore.codec.spark_types import distinct_names
from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.core.ids import RandomIds
from statestore.io.local import is_disk_full
from statestore.operations.database import OUT_ROWS, check_words, nodes_of, open_database, parsed
from statestore.operations.reading.lookup import Asked, demand_of
from statestore.operations.reading.names import paths_of
from statestore.operations.reading.read import read_batches, row_schema
from statestore.operations.reading.sql_types import (
    as_sql_has_it,
    sql_schema,
    with_short_durations,
    with_short_intervals,
)
from statestore.operations.reading.tables import find_table, fold_case, list_tables, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    import pyarrow.compute as pc

    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.states import FoundRows

MEMORY_LIMIT = "1GB"
"""Of DuckDB; what does not fit goes to the local disk."""
_FIRST_BATCHES = 8
"""Batches that come out as they are made; later ones are gathered."""
_ITSELF = ""
_SETTINGS = {"threads": 2, "preserve_insertion_order": False}
"""Rows have no order that could be kept."""
_COLUMNS = ("partition_id", "key", "value")
"""Of the tables as DuckDB has them: to count rows it reads the first one, which is cheap."""
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGT])i?)?B", re.IGNORECASE | re.ASCII)
_UNITS = ("", "K", "M", "G", "T")
_MOST_MEMORY = 2**60
"""More bytes than any machine has, and fewer than the database counts."""
_TAKEN = ("information_schema", "main", "memory", "pg_catalog", "state", "system", "temp")
"""Names of DuckDB's own schemas and databases."""
_MOST_NAMED = 30
_FUNCTIONS = ("generate_series", "json_each", "json_tree", "range", "unnest")
"""Functions that make a table of their arguments, and of nothing else."""
_T = TypeVar("_T")
_INTERRUPT_EVERY_S = 0.1
_INTERRUPTED = "INTERRUPT Error"
"""Begins the text of what was stopped, where Arrow passes it on."""
_NOT_ONE = "it is not one SELECT"


def run_sql(
    sql: str,
    checkpoint: OpenCheckpoint,
    attached: Mapping[str, OpenCheckpoint],
    *,
    memory_limit: str = MEMORY_LIMIT,
    timeout_ms: int | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Run SQL over the rows of checkpoints; errors as of `SqlRows`.

    Args:
        sql: One SELECT.
        checkpoint: The one whose tables need no alias.
        attached: Others by alias.
        memory_limit: Of DuckDB, such as 1GB.
        timeout_ms: How long it may run, until the last batch was read; None for any time.

    Yields:
        Record batches, the first one always, if empty; a column with the name of an earlier one
        gets a number. The versions that are read are pinned until the last one, where the
        checkpoint is a query's and can be written.
    """
    _check_aliases(attached)
    _check_memory_limit(memory_limit)
    scratch = checkpoint.scratch_directory
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sql-", dir=scratch))
        connection = stack.enter_context(
            open_database(directory, memory_limit=memory_limit, **_SETTINGS)
        )
        running = _Running(
            sql, {_ITSELF: checkpoint, **attached}, connection, memory_limit, timeout_ms
        )
        with running.named_errors():
            stack.enter_context(running.ended_in_time())
            tables = running.find()
            stack.enter_context(running.pinned(tables))
            running.register(tables)
            pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="sql"))
            wait_for = partial(_stoppable, connection, pool)
            found = wait_for(lambda: with_short_intervals(connection.sql(sql)))
            reader = wait_for(lambda: found.to_arrow_reader(OUT_ROWS))
            stack.callback(reader.close)
            # Who looks at few rows waits for no more of them.
            batches = chain(islice(reader, _FIRST_BATCHES), gather(reader, MAX_BLOCK_BYTES))
            names = distinct_names(reader.schema.names)
            schema = pa.schema(
                [field.with_name(name) for field, name in zip(reader.schema, names, strict=True)]
            )
            yield no_rows(schema)
            while (batch := wait_for(lambda: next(batches, None))) is not None:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _stoppable(connection: Any, pool: ThreadPoolExecutor, act: Callable[[], _T]) -> _T:
    """Do something with the database, and stop it where a signal ends the caller meanwhile.

    In the main thread DuckDB waits for threads of its own, and lets no handler of Python's run.
    """
    future = pool.submit(act)
    try:
        return future.result()
    except BaseException:
        while not future.done():
            # Again and again: what begins a moment later takes no notice of the first.
            connection.interrupt()
            wait([future], _INTERRUPT_EVERY_S)
        raise


def _check_aliases(attached: Mapping[str, OpenCheckpoint]) -> None:
    folded: set[str] = set()
    for alias in attached:
        if not alias or fold_case(alias) in (*_TAKEN, *folded) or "\0" in alias:
            raise InvalidArgumentError(
                "a checkpoint cannot be attached by this name",
                alias=alias,
                taken=", ".join(_TAKEN),
                to_fix="attach each by a name of its own, whatever the case of letters",
            )
        folded.add(fold_case(alias))


def _check_memory_limit(memory_limit: str) -> None:
    given = _MEMORY.fullmatch(str(memory_limit))
    if not given or float(given[1]) * 1024 ** _UNITS.index((given[2] or "").upper()) > _MOST_MEMORY:
        raise InvalidArgumentError(
            "the memory limit is not a size such as 512MB, or is too large",
            memory_limit=memory_limit,
            to_fix="give a number and its unit, such as 1GB",
        )


@dataclass(frozen=True, slots=True)
class _Name:
    """A name of a table in SQL, as it is written there."""

    alias: str
    name: str


_OWN_VIEWS = """
    SELECT lower(view_name) FROM duckdb_views() WHERE schema_name <> 'information_schema'
"""
"""Those that a name without a schema reaches."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows by the name that SQL has for them."""

    named: _Name
    checkpoint: OpenCheckpoint
    version: int
    rows: FoundRows


@dataclass
class _Running:
    """A run of SQL; errors of what is read are kept, since DuckDB has their text alone."""

    sql: str
    checkpoints: Mapping[str, OpenCheckpoint]
    connection: Any
    memory_limit: str
    timeout_ms: int | None
    columns: list[str] = field(default_factory=list)
    failed: list[StateStoreError] = field(default_factory=list)

    def find(self) -> list[_Table]:
        """Return the tables that it names, each once.

        Raises:
            InvalidArgumentError: It is not one SELECT, or takes rows from elsewhere; or a name has
                no rows, or two differ by the case of letters alone.
        """
        tree = self._parsed()
        check_words(tree, self.sql)
        found: dict[tuple[str, str], _Table] = {}
        made = {fold_case(name) for name in _made_names(tree)}
        for name in dict.fromkeys(self._names(tree)):
            try:
                table = self._find(name)
            except InvalidArgumentError:
                is_made = not name.alias and fold_case(name.name) in made
                if is_made and name.name.lower() not in self._own_names():
                    continue
                raise
            before = found.setdefault((fold_case(name.alias), fold_case(name.name)), table)
            if (before.rows.name, *before.rows.states) != (table.rows.name, *table.rows.states):
                raise InvalidArgumentError(
                    "two tables differ by the case of letters alone, which SQL does not tell apart",
                    tables=f"{before.named.name}, {name.name}",
                    to_fix='write one of them with its operator, such as "0/clicks"',
                )
        return list(found.values())

    def _own_names(self) -> set[str]:
        """Return the names of the database's own views: a name that SQL makes hides them in part.

        Beyond the part of the SQL that knows the name it would be the view.
        """
        views = self.connection.execute(_OWN_VIEWS).fetchall()
        return {name for (name,) in views}

    def _parsed(self) -> Any:
        if "\0" in self.sql:
            raise self._refused("it contains a NUL character")
        tree = parsed(self.connection, self.sql)
        if tree["error"]:
            is_other = tree.get("error_type") == "not implemented"
            raise self._refused(_NOT_ONE if is_other else tree["error_message"])
        if len(tree["statements"]) != 1:
            raise self._refused(_NOT_ONE)
        return tree

    def _names(self, tree: Any) -> Iterator[_Name]:
        for node in nodes_of(tree):
            kind = node.get("type")
            if kind == "TABLE_FUNCTION":
                self._check_function(node["function"]["function_name"])
            elif kind == "SHOW_REF" and node.get("show_type") not in ("DESCRIBE", "SUMMARY"):
                raise self._refused("DuckDB's own tables are not shown: list the tables instead")
            elif kind == "BASE_TABLE":
                if node.get("catalog_name"):
                    raise self._unknown(".".join(node["qualified_name"]["path"]))
                yield _Name(node.get("schema_name", _ITSELF), node["table_name"])

    def _check_function(self, name: str) -> None:
        if name.lower() not in _FUNCTIONS:
            raise InvalidArgumentError(
                "a function of the SQL would read something else than the checkpoint",
                sql=self.sql,
                function=name,
                known=", ".join(_FUNCTIONS),
                to_fix="use the tables of the checkpoint, and of those that are attached",
            )

    def _find(self, named: _Name) -> _Table:
        folded = {fold_case(alias): alias for alias in self.checkpoints}
        alias = folded.get(fold_case(named.alias))
        if alias is None:
            raise self._unknown(f"{named.alias}.{named.name}")
        checkpoint = self.checkpoints[alias]
        found = find_table(checkpoint, named.name)
        if found is None:
            raise self._unknown(f"{named.alias}.{named.name}" if named.alias else named.name)
        return _Table(named, checkpoint, *found)

    def _unknown(self, name: str) -> InvalidArgumentError:
        known = [
            table.name
            for alias, checkpoint in self.checkpoints.items()
            for table in list_tables(checkpoint, alias)
        ]
        more = len(known) - _MOST_NAMED
        listed = ", ".join(known[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return InvalidArgumentError(
            "there is no table of that name",
            table=name,
            known=listed or "none",
            to_fix='use one of these; of an older version as "NAME@VERSION" in double quotes',
        )

    @contextmanager
    def pinned(self, tables: Sequence[_Table]) -> Iterator[None]:
        """Keep what is read from expiring within a block."""
        ids = RandomIds()
        held = {
            (table.checkpoint.uri, table.version, store): table.checkpoint.location(store)
            for table in tables
            # Of a savepoint nothing expires; of Spark's own providers nothing knows of a pin.
            if table.checkpoint.query_id and not table.checkpoint.is_of_spark
            for store in table.rows.states
        }
        with ExitStack() as stack:
            for of in dict.fromkeys((uri, version) for uri, version, _ in held):
                locations = [place for (*key, _), place in held.items() if (*key,) == of]
                stack.enter_context(pinned(locations, of[1], ids.new_id()))
            yield

    @contextmanager
    def ended_in_time(self) -> Iterator[None]:
        """Stop what the database does within a block when its time is over."""
        if self.timeout_ms is None:
            yield
            return
        done = threading.Event()

        def watch(wait_s: float) -> None:
            # Again and again: what begins a moment later takes no notice of the first.
            while not done.wait(wait_s):
                self.connection.interrupt()
                wait_s = _INTERRUPT_EVERY_S

        thread = threading.Thread(
            target=watch, args=(self.timeout_ms / 1000,), name="sql-timeout", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def register(self, tables: Sequence[_Table]) -> None:
        """Make the tables of the database."""
        # Imported here because it takes long, and needs what is an extra.
        from statestore.operations.reading.scanned import ScannedTable

        for alias in self.checkpoints:
            if alias != _ITSELF:
                self.connection.execute(f"CREATE SCHEMA {quoted(alias)}")
        for table in tables:
            scanned = _Scanned(table.rows, self.failed)
            names = paths_of(pa.schema([scanned.schema.field(name) for name in _COLUMNS[1:]]))
            self.columns += [str(path) for path in names if str(path) not in self.columns]
            # A name that is no table's: what is registered comes before all tables.
            own = f"scan_{RandomIds().new_id()}"
            self.connection.register(own, ScannedTable(scanned.schema, scanned.scan))
            schema = table.named.alias or "main"
            self.connection.execute(
                f"CREATE VIEW {quoted(schema)}.{quoted(table.named.name)} AS "  # noqa: S608 (quoted)
                f"SELECT key, value, partition_id FROM temp.main.{own}"
            )

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Name errors of DuckDB by what they are about."""
        import duckdb

        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if self.failed:
                raise self.failed[0] from error
            if is_disk_full(error):
                raise
            if isinstance(error, duckdb.OutOfMemoryException):
                raise self._needs_memory() from error
            if isinstance(error, duckdb.InterruptException) or _INTERRUPTED in str(error):
                raise self._needs_time() from error
            raise self._refused(error) from error

    def _needs_memory(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "the SQL needs more memory than it may take",
            sql=self.sql,
            memory_limit=self.memory_limit,
            to_fix="give a larger limit, --memory-limit or memory_limit; or select fewer columns "
            "and rows at once",
        )

    def _needs_time(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "the SQL takes longer than it may",
            sql=self.sql,
            timeout_ms=self.timeout_ms,
            to_fix="select fewer rows, by the columns of the key; or run it by `statestore sql`, "
            "which takes its time",
        )

    def _refused(self, reason: object) -> InvalidArgumentError:
        known = {}
        if self.columns:
            more = len(self.columns) - _MOST_NAMED
            listed = ", ".join(self.columns[:_MOST_NAMED])
            known["columns"] = listed + (f" and {more} more" if more > 0 else "")
        return InvalidArgumentError(
            "the SQL cannot be run",
            sql=self.sql,
            reason=str(reason).partition("\n")[0],
            **known,
            to_fix="give one SELECT, of DuckDB's SQL; fields of key and value have dots, such as "
            "key.shop; text is in single quotes, and other names than plain ones in double quotes",
        )


def _made_names(tree: Any) -> Iterator[str]:
    """Yield the names that SQL gives to parts of itself: WITH name AS (…)."""
    for node in nodes_of(tree):
        entries = node.get("cte_map")
        for entry in (entries or {}).get("map", ()):
            yield entry["key"]


@dataclass(frozen=True, slots=True)
class _Scanned:
    """Rows, of which what is asked for is read."""

    rows: FoundRows
    failed: list[StateStoreError]

    @property
    def schema(self) -> pa.Schema:
        given = sql_schema(row_schema(self.rows.family))
        return pa.schema([given.field(name) for name in _COLUMNS])

    def scan(
        self, columns: Sequence[str], filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows for which a filter holds."""
        try:
            yield from self._scan(columns, filter)
        except StateStoreError as error:
            self.failed.append(error)
            raise

    def _scan(
        self, columns: Sequence[str], filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        needed = {*columns}
        asked = Asked()
        if filter is not None:
            demand = demand_of(filter)
            needed |= {*_COLUMNS} if demand.fields is None else {of[0] for of in demand.fields}
            given = row_schema(self.rows.family)
            as_named = paths_of(sql_schema(given))
            asked = demand.asked({path.names: (path.ordinals, path.type) for path in as_named})
        schema = sql_schema(row_schema(self.rows.family, needed))
        for batch in read_batches(self.rows, columns=needed, asked=asked):
            found = as_sql_has_it(with_short_durations(batch), schema)
            if filter is not None:
                found = found.filter(filter)
            yield found.select(list(columns))
