"""The database in which conditions and SQL of users are run: DuckDB, reaching nothing outside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG: dict[str, Any] = {
    # Times without a zone are in UTC, whatever the machine's zone is.
    "TimeZone": "UTC",
    "autoinstall_known_extensions": False,
    # Names of tables are never taken for variables of Python.
    "python_enable_replacements": False,
}

OUT_ROWS = 256
"""Rows of a batch that comes out: rows may be wide, and a column of a batch holds 2 GiB at most.
`gather` puts batches of narrow rows together."""
QUERY_INTERRUPTED = "Query interrupted"
"""Text of the RuntimeError by which DuckDB ends at a signal, whatever its handler raised."""
_PARSE = "SELECT json_serialize_sql(?, skip_null := true, skip_empty := true, skip_default := true)"
_WITHOUT_PARENTHESES = frozenset(
    [
        *("user", "current_user", "session_user", "current_role", "current_schema"),
        *("current_catalog", "current_date", "current_time"),
        *("current_timestamp", "localtime", "localtimestamp"),
    ]
)
"""Words without parentheses that DuckDB takes for a function, where no column has the name."""


def open_database(directory: str | None = None, **settings: Any) -> Any:
    """Open a database that runs SQL of users.

    Args:
        directory: Local directory for what does not fit memory; None for a database that keeps
            everything in memory.
        settings: More settings of DuckDB.

    Returns:
        A connection. It reads and writes no file but those in the directory, loads no extension,
        and none of that can be changed by SQL.

    Raises:
        InvalidArgumentError: DuckDB is not installed.
    """
    try:
        # Imported here because it is an extra.
        import duckdb
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            "SQL over state needs a package that is not installed",
            missing=error.name,
            to_fix="pip install 'statestore[sql]'",
        ) from error
    path = ":memory:" if directory is None else f"{directory}/state.duckdb"
    connection = duckdb.connect(path, config={**_CONFIG, **settings})
    if directory is not None:
        connection.execute("SET temp_directory = ?", [directory])
        connection.execute("SET allowed_directories = [?]", [directory])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def check_words(tree: Any, sql: str) -> None:
    """Check that SQL of a user names columns where it seems to.

    Args:
        tree: As `parsed` returns it; an error is left to whoever runs the SQL.
        sql: Its statements.

    Raises:
        InvalidArgumentError: A word by itself is the name of a function of DuckDB's: its value is
            the same in every row.
    """
    for node in expressions_of(tree):
        names = node.get("column_names", ())
        if len(names) == 1 and names[0].lower() in _WITHOUT_PARENTHESES:
            raise InvalidArgumentError(
                "a word of the SQL is not a column, but a function of the database",
                sql=sql,
                word=names[0],
                to_fix=f"name the column by its path, such as key.{names[0]} or value.{names[0]}; "
                "give one that the SQL makes another name; for the time, write now() or today()",
            )


def parsed(connection: Any, sql: str) -> Any:
    """Return DuckDB's tree of SQL: statements, or an error and its message.

    Raises:
        InvalidArgumentError: It is nested too deeply, or is not UTF-8.
    """
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            "SQL is not UTF-8",
            sql=sql,
            to_fix="write it in UTF-8; on a command line, see that the terminal does",
        ) from error
    ((text,),) = connection.execute(_PARSE, [sql]).fetchall()
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidArgumentError(
            "SQL is nested more deeply than the parser allows",
            characters=len(sql),
            to_fix="use IN (…) in place of many ORs, and list_sum([…]) in place of a long sum",
        ) from error


def expressions_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the expressions of DuckDB's tree of a statement, each before those in it."""
    return (node for node in nodes_of(tree) if "class" in node)


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of DuckDB's tree of a statement, each before those in it."""
    left = [tree]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left += reversed(part.values())
        elif isinstance(part, list):
            left += reversed(part)
