"""A table whose rows are read when a database asks for them, and no more of it than it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    import pyarrow.compute as pc

    Scan: TypeAlias = Callable[[Sequence[str], pc.Expression | None], Iterator[pa.RecordBatch]]


class ScannedTable(ds.Dataset):
    """A dataset of Arrow, which is what DuckDB hands columns and filters down to.

    DuckDB does not apply a filter again that it hands down.

    Args:
        schema: Of all columns.
        scan: Called with names of columns and a filter over all columns, None for none; returns
            record batches of these columns, in their order, of the rows for which the filter holds.
            From any thread.
    """

    def __init__(self, schema: pa.Schema, scan: Scan) -> None:
        # Arrow's own is not called: it refuses to, and has nothing to do with this one.
        self._columns = schema
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        """Of all columns."""
        return self._columns

    def scanner(  # type: ignore[override]
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **_how: Any,
    ) -> ds.Scanner:
        """Return a scanner; nothing is read before somebody reads from it."""
        names = self._columns.names if columns is None else list(columns)
        schema = pa.schema([self._columns.field(name) for name in names])
        return _Scanner(schema, self._scan(names, filter))


class _Scanner(ds.Scanner):
    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self._columns = schema
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._columns, self._batches)
