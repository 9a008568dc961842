"""The database in which conditions and SQL of users are run: DuckDB, reaching nothing outside."""

from __future__ import annotations

from typing import Any

from statestore.core.errors import InvalidArgumentError

_CONFIG: dict[str, Any] = {
    # Times without a zone are in UTC, whatever the machine's zone is.
    "TimeZone": "UTC",
    "autoinstall_known_extensions": False,
    # Names of tables are never taken for variables of Python.
    "python_enable_replacements": False,
}


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
