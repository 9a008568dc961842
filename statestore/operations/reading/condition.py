"""Rows that a condition in SQL wants, such as `shop = 'x'`, as DuckDB understands it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.rows import from_numpy
from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "TimeZone": "UTC",
    "autoinstall_known_extensions": False,
    "enable_external_access": False,
    "lock_configuration": True,
    "threads": 1,
}
"""Of a database in memory that reaches no file, and nothing else outside of it."""


class Condition:
    """A condition over the columns of record batches and the fields of structs in them.

    A field is named with dots, `key.shop`; or by its name alone, `shop`, where no other column or
    field of a column has that name. Times without a zone are in UTC.

    Args:
        text: The condition, what SQL has behind WHERE.

    Raises:
        InvalidArgumentError: The package that it needs is not installed.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            # Imported here because it needs a package that is an extra.
            import duckdb
        except ModuleNotFoundError as error:
            raise InvalidArgumentError(
                "a condition in SQL needs a package that is not installed",
                missing=error.name,
                to_fix="pip install 'statestore[cli]'",
            ) from error
        self._error = duckdb.Error
        self._database = duckdb.connect(config=_CONFIG)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch for which the condition holds, in order.

        Raises:
            InvalidArgumentError: As `rows`.
        """
        return batch.take(from_numpy(self.rows(batch), pa.int64()))

    def rows(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows of a batch for which the condition holds, ascending.

        Raises:
            InvalidArgumentError: It is no condition, or none over these columns; names them.
        """
        short = dict(_short_names(batch.schema))
        row = "row" + "_" * (1 + max(map(len, batch.schema.names), default=0))
        columns = ", ".join(f"{path} AS {_quoted(name)}" for name, path in short.items())
        numbered = batch.append_column(row, pa.array(np.arange(batch.num_rows)))
        self._database.register("state", numbered)
        try:
            found = self._database.execute(
                f"SELECT {row} FROM (SELECT *{', ' if columns else ''}{columns} FROM state) "  # noqa: S608 (the caller's own condition, in a database that holds his rows only)
                f"WHERE ({self._text}\n) ORDER BY {row}"
            ).fetchnumpy()
        except self._error as error:
            raise InvalidArgumentError(
                "the condition does not fit what is read",
                condition=self._text,
                reason=str(error).partition("\n")[0],
                known=", ".join([*batch.schema.names, *short]),
                to_fix="use these columns, fields with dots such as key.shop, text in single "
                "quotes, and double quotes about a name that is a word of SQL",
            ) from error
        return np.asarray(found[row], np.int64)


def _short_names(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield fields of structs whose name alone tells which they are, and their paths in SQL."""
    fields = [
        (field.name, f"{_quoted(column.name)}.{_quoted(field.name)}")
        for column in schema
        if pa.types.is_struct(column.type)
        for field in _fields(column.type)
    ]
    # Names of SQL are the same in either case.
    times = Counter(name.casefold() for name in [*schema.names, *(name for name, _ in fields)])
    return ((name, path) for name, path in fields if times[name.casefold()] == 1)


def _fields(struct: Any) -> list[pa.Field[Any]]:
    return [struct.field(ordinal) for ordinal in range(struct.num_fields)]


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
