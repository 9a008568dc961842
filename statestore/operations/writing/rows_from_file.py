"""Rows out of files that people give: Parquet, Arrow, CSV, and JSON with a row a line.

CSV and JSON are read by the types that the state has, so that `007` of a column of text is `007`.
Nothing is guessed. Values are as `statestore.operations.typed_text` reads them: in CSV a null is
nothing, but not for text, where that may be an empty one as well; an empty text is "".
"""

from __future__ import annotations

import codecs
import io
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.key_bytes import key_type, value_type
from statestore.codec.rows import to_numpy
from statestore.codec.spark_types import VARIANT_PARTS
from statestore.core.errors import InvalidArgumentError
from statestore.operations.rows_file_form import RowsFileForm, form_of
from statestore.operations.typed_text import MisfitError, parsed, value_of, value_of_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.spark_types import SparkType

_MOST_SHOWN = 60

_CELL = re.compile(rb'(?:"[^"]*(?:""[^"]*)*"|[^",\r\n][^,\r\n]*)?(?:[,\r\n]|\Z)')
"""A cell of CSV and what ends it; possessive repeats are wrong in Python before 3.11.5."""


class RowsFile:
    """A file of rows as it was when this was made: its bytes are in memory.

    So it is the same each time that it is read, whatever becomes of the file.

    Attributes:
        path: The file.
        form: Its form.

    Args:
        path: A file of the form that `form_of` tells, with the columns that `FamilyColumns.encode`
            takes.

    Raises:
        InvalidArgumentError: The file cannot be read; or as `form_of`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.form = form_of(path)
        with _named_errors(path):
            self._data = path.read_bytes()

    def read(self, family: ColumnFamily, *, has_values: bool = True) -> pa.Table:
        """Read rows of a column family, or keys alone, whatever its values are.

        Args:
            family: Whose types text is read by; Parquet and Arrow have their own.
            has_values: Whether values are given beside keys.

        Raises:
            InvalidArgumentError: The file is not of its form; or a value is not of its column's
                type: names file, row or line, column and value.
            IncompatibleError: As `key_type`.
        """
        kinds = {"key": key_type(family)}
        if has_values:
            kinds["value"] = value_type(family)
        with _named_errors(self.path):
            return _READERS[self.form](self._data, self.path, kinds)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError, pa.ArrowException) as error:
        raise InvalidArgumentError(
            "a file of rows cannot be read",
            file=str(path),
            reason=str(error).partition("\n")[0],
            to_fix="give a file of the form that its name says, text in UTF-8",
        ) from error


def _read_parquet(data: bytes, path: Path, kinds: dict[str, SparkType]) -> pa.Table:
    del kinds
    import pyarrow.parquet as pq

    # Times of 96 bits reach beyond the year 2262; those in nanoseconds would come round again.
    with pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us") as file:
        leaves = [file.schema.column(number) for number in range(len(file.schema))]
        instants = [leaf.physical_type == "INT96" for leaf in leaves]
        table = file.read()
    if not any(instants):
        return table
    with pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="ns") as file:
        _check_whole_micros(table, file.read(), path)
    # Times of 96 bits, as Spark writes them, are of no zone to Arrow; Spark means UTC.
    left = iter(instants)
    fields = [field.with_type(_in_utc(field.type, left)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _in_utc(kind: Any, instants: Iterator[bool]) -> Any:
    """Return a type with the zone of those of its leaves, in file order, that are of 96 bits."""

    def inner(part: Any) -> Any:
        return part.with_type(_in_utc(part.type, instants))

    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    for is_list, make in _LISTS:
        if is_list(kind):
            return make(inner(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([inner(part) for part in kind])
    return pa.timestamp(kind.unit, "UTC") if next(instants) else kind


_LISTS: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)


def _check_whole_micros(micros: pa.Table, nanos: pa.Table, path: Path) -> None:
    """Check that times of 96 bits lose nothing as microseconds.

    Args:
        micros: A table with such times in microseconds.
        nanos: The same with them in nanoseconds; those that do not fit have come round.
        path: Of the file, for the error.

    Raises:
        InvalidArgumentError: They do.
    """
    columns = zip(micros.column_names, micros.columns, nanos.columns, strict=True)
    for name, in_micros, in_nanos in columns:
        pairs = zip(_times(in_micros), _times(in_nanos), strict=True)
        for of_micros, of_nanos in pairs:
            if of_micros.type == of_nanos.type:
                continue
            lost = to_numpy(of_nanos, np.int64) - to_numpy(of_micros, np.int64) * 1000
            lost[of_micros.is_null().to_numpy(zero_copy_only=False)] = 0
            if lost.any():
                at = int(np.flatnonzero(lost)[0])
                raise InvalidArgumentError(
                    "a value is not one of its column's type, or not without a loss",
                    file=str(path),
                    column=name,
                    value=f"{of_micros[at].cast(pa.string())} and {lost[at]} nanoseconds",
                    expected=str(of_micros.type),
                    to_fix="give times in microseconds",
                )


def _times(column: pa.ChunkedArray[Any]) -> Iterator[pa.Array[Any]]:
    """Yield the times in a column, and in what its values are made of, in one order."""
    left: list[Any] = list(column.chunks)
    while left:
        part = left.pop()
        if pa.types.is_timestamp(part.type):
            yield part
        elif pa.types.is_struct(part.type):
            left += part.flatten()
        elif pa.types.is_map(part.type):
            left += [part.keys, part.items]
        elif pa.types.is_nested(part.type):
            left.append(part.flatten())


def _read_arrow(data: bytes, path: Path, kinds: dict[str, SparkType]) -> pa.Table:
    del path, kinds
    from pyarrow import ipc

    with ipc.open_file(pa.BufferReader(data)) as file:
        table = file.read_all()
    table.validate(full=True)  # Arrow's own reader trusts a file
    return table


def _read_csv(data: bytes, path: Path, kinds: dict[str, SparkType]) -> pa.Table:
    import pyarrow.csv as csv

    empty_line = _first_empty_line(data, path)
    # Arrow refuses a row that is longer than a block, which cannot be of 2 GiB.
    blocks = csv.ReadOptions(block_size=min(max(len(data), 1 << 20), 1 << 30))
    parsed = csv.ParseOptions(newlines_in_values=True)
    with csv.open_csv(io.BytesIO(data), blocks, parse_options=parsed) as file:
        names = file.schema.names
    if len(names) == 1 and empty_line is not None:
        raise InvalidArgumentError(
            "an empty line in a file of one column may be a null, or no row",
            file=str(path),
            line=empty_line,
            to_fix="take the line out; give nulls in JSON or Parquet",
        )
    as_text = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = csv.read_csv(io.BytesIO(data), blocks, parsed, as_text)
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        kind = _type_at(name, kinds)
        columns.append(column if kind is None else _typed(path, name, kind, column.to_pylist()))
    return pa.Table.from_arrays(columns, names=names)


def _first_empty_line(data: bytes, path: Path) -> int | None:
    """Return the number of the first line behind the header that has nothing.

    Refuse what Arrow takes: a quote up to the end of the file, and text behind a closing one.
    """
    found: int | None = None
    has_header = False
    at = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    before = b"\n"
    while at < len(data):
        cell = _CELL.match(data, at)
        if cell is None:
            raise InvalidArgumentError(
                "a quote is not closed, or text follows the closing one",
                file=str(path),
                line=len(data[: at + 1].splitlines()),
                to_fix='close it, and write a quote within quoted text as ""',
            )
        is_empty = before != b"," and cell[0] in (b"\r", b"\n")
        if not is_empty:
            has_header = True
        elif has_header and found is None and (before, cell[0]) != (b"\r", b"\n"):
            found = len(data[: at + 1].splitlines())
        before = cell[0][-1:]
        at = cell.end()
    return found


def _typed(path: Path, name: str, kind: SparkType, texts: list[str | None]) -> pa.Array[Any]:
    values = []
    for row, text in enumerate(texts, 1):
        try:
            values.append(_of_cell(text, kind))
        except MisfitError as error:
            raise _refused(error, text or "", name, path, row=row) from error
    return pa.array(values, kind.arrow)


def _of_cell(text: str | None, kind: SparkType) -> Any:
    if text is None:
        if kind.kind == "string":
            raise MisfitError(
                'an empty field may be a null or an empty text: write "" for the text, and give '
                "nulls in JSON or Parquet"
            )
        return None
    return value_of_text(text, kind)


def _read_json(data: bytes, path: Path, kinds: dict[str, SparkType]) -> pa.Table:
    columns: dict[str, list[Any]] = {}
    for line, row in _lines(data, path):
        columns = columns or {name: [] for name in row}
        if row.keys() != columns.keys():
            raise InvalidArgumentError(
                "rows of a file do not have the same columns",
                file=str(path),
                line=line,
                expected=", ".join(columns),
                found=", ".join(row),
                to_fix="give every row all columns, null where it has none",
            )
        for name, given in row.items():
            kind = _type_at(name, kinds)
            try:
                columns[name].append(None if kind is None else value_of(given, kind))
            except MisfitError as error:
                raise _refused(error, given, name, path, line=line) from error
    types = {name: _type_at(name, kinds) for name in columns}
    return pa.table(
        {
            name: pa.array(values, pa.null() if (kind := types[name]) is None else kind.arrow)
            for name, values in columns.items()
        }
    )


def _lines(data: bytes, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield number, _row(line)
            except MisfitError as error:
                raise InvalidArgumentError(
                    "a line of a file is not a row in JSON",
                    file=str(path),
                    line=number,
                    reason=str(error),
                    to_fix='give an object a line, such as {"key": {…}, "value": {…}}',
                ) from error


def _row(line: str) -> dict[str, Any]:
    row = parsed(line)
    if not isinstance(row, dict) or not row:
        raise MisfitError("it is not an object with columns")
    return row


def _type_at(name: str, kinds: dict[str, SparkType]) -> SparkType | None:
    """Return the type of a column: key, value, or a field of one, named with dots."""
    side, dot, path = name.partition(".")
    if side not in kinds:
        return None
    return _field_type(kinds[side], path) if dot else kinds[side]


def _field_type(kind: SparkType, path: str) -> SparkType | None:
    if kind.kind == "variant":
        kind = VARIANT_PARTS
    if kind.kind != "struct":
        return None
    struct: Any = kind.arrow
    fields: dict[str, SparkType] = dict(zip(struct.names, kind.types, strict=True))
    if path in fields:
        return fields[path]
    for name, part in fields.items():
        if path.startswith(f"{name}."):
            return _field_type(part, path[len(name) + 1 :])
    return None


def _refused(
    error: MisfitError, given: Any, column: str, path: Path, **place: Any
) -> InvalidArgumentError:
    text = str(error.part if error.path else given)
    return InvalidArgumentError(
        "a value of a file is not one of its column's type",
        file=str(path),
        **place,
        column=column + error.path,
        value=text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…",
        reason=str(error),
        to_fix="give a value of the type that the state has; files of Parquet and Arrow bring "
        "their types with them",
    )


_READERS: dict[RowsFileForm, Callable[[bytes, Path, dict[str, SparkType]], pa.Table]] = {
    RowsFileForm.PARQUET: _read_parquet,
    RowsFileForm.ARROW: _read_arrow,
    RowsFileForm.CSV: _read_csv,
    RowsFileForm.JSON: _read_json,
}
"""Reads the bytes of a file; the path is for errors."""
