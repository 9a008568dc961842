"""Rows into a file that is whole or not there: Parquet, Arrow, CSV, or JSON with a row a line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.core.errors import IncompatibleError, InvalidArgumentError, StorageError
from statestore.core.text import to_cell, to_json
from statestore.io.local import written_beside
from statestore.operations.rows_file_form import RowsFileForm, form_of

if TYPE_CHECKING:
    import pyarrow as pa


def write_rows(batches: Iterator[pa.RecordBatch], path: str) -> int:
    """Write rows to a local file, in the form that `form_of` tells by its name.

    CSV and JSON have values as `--output json` prints them; in CSV nested ones are JSON, nothing is
    null, and an empty text is "".

    Args:
        batches: At least one record batch, all of one schema; read to their end.
        path: The file; where it is a link, what it points to is written.

    Returns:
        Number of rows.

    Guarantee: the file appears, or is replaced, once all rows are in it; after a raise it is as it
    was. It has the permissions of the one there. It is not synced to the disk.

    Raises:
        InvalidArgumentError: The path is something else than a file; or as `form_of`.
        IncompatibleError: The form has no type for a column.
        StorageError: The file cannot be written; also whatever the batches raise.
    """
    num_rows = 0
    form = form_of(Path(path))
    first = next(batches)
    with _written(path, form) as temporary, _OPENERS[form](temporary, first.schema) as write:
        write(first)
        for batch in batches:
            write(batch)
            num_rows += batch.num_rows
    return num_rows + first.num_rows


_GROUP_BYTES = 32 << 20
"""Bytes of a row group of Parquet."""
Writer = Callable[["pa.RecordBatch"], Any]


@contextmanager
def _parquet(path: str, schema: pa.Schema) -> Iterator[Writer]:
    import pyarrow as pa
    from pyarrow import parquet

    waiting: list[pa.RecordBatch] = []
    num_bytes = 0

    def write_group() -> None:
        nonlocal num_bytes
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
        waiting.clear()
        num_bytes = 0

    def write(batch: pa.RecordBatch) -> None:
        nonlocal num_bytes
        if batch.num_rows:  # each call makes a row group, of none as well
            waiting.append(batch)
            num_bytes += batch.nbytes
        if num_bytes >= _GROUP_BYTES:
            write_group()

    with parquet.ParquetWriter(path, schema) as writer:
        yield write
        write_group()


@contextmanager
def _arrow(path: str, schema: pa.Schema) -> Iterator[Writer]:
    from pyarrow import ipc

    with ipc.new_file(path, schema) as writer:
        yield writer.write_batch


@contextmanager
def _json(path: str, schema: pa.Schema) -> Iterator[Writer]:
    from statestore.codec.python_values import to_pylist

    del schema
    with Path(path).open("w", encoding="utf-8", errors="backslashreplace") as file:
        yield lambda batch: file.writelines(
            f"{to_json(row, ensure_ascii=False)}\n" for row in to_pylist(batch)
        )


@contextmanager
def _csv(path: str, schema: pa.Schema) -> Iterator[Writer]:
    import pyarrow as pa
    from pyarrow import csv, types

    from statestore.codec.python_values import to_pylist

    def is_plain(kind: Any) -> bool:
        is_of = (types.is_integer, types.is_boolean, types.is_decimal, types.is_string)
        return any(of(kind) for of in is_of)

    def is_utf8(column: pa.Array[Any]) -> bool:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    fields = [
        field if is_plain(field.type) else pa.field(field.name, pa.string()) for field in schema
    ]
    as_text = pa.schema(fields)

    def columns(batch: pa.RecordBatch) -> Iterator[pa.Array[Any]]:
        for column in batch.columns:
            if is_plain(column.type) and is_utf8(column):
                yield column
            else:
                yield pa.array([_text(value) for value in to_pylist(column)], pa.string())

    with csv.CSVWriter(path, as_text) as writer:
        yield lambda batch: writer.write_batch(
            pa.RecordBatch.from_arrays(list(columns(batch)), schema=as_text)
        )


def _text(value: Any) -> str | None:
    if value is None:
        return None
    # As JSON has it: bytes in hex, NaN and Infinity.
    return str(to_cell(value)) if not isinstance(value, float) else to_json(value).strip('"')


_OPENERS = {
    RowsFileForm.PARQUET: _parquet,
    RowsFileForm.ARROW: _arrow,
    RowsFileForm.CSV: _csv,
    RowsFileForm.JSON: _json,
}


@contextmanager
def _written(path: str, form: RowsFileForm) -> Iterator[str]:
    """Yield a path to write to, as `written_beside`, for a block that writes rows."""
    from pyarrow import ArrowException

    try:
        if Path(path).exists() and not Path(path).is_file():
            raise InvalidArgumentError(
                "rows can only be written to a regular file",
                file=path,
                to_fix="name a file, which may be a new one",
            )
        with written_beside(path) as temporary:
            yield temporary
    except OSError as error:
        raise StorageError(
            "cannot write rows to a file",
            file=path,
            reason=os.strerror(error.errno) if error.errno else str(error),
            to_fix="name a local file, in a directory that exists, that may be written to and has "
            "space left",
        ) from error
    except ArrowException as error:
        raise IncompatibleError(
            f"{form.value} has no type for a column of these rows",
            file=path,
            reason=str(error),
            to_fix="name a file that ends with .arrow; or print them with --output json, or read "
            "them in Python: Checkpoint.rows",
        ) from error
