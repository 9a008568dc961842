"""Files of rows that people make: Parquet, CSV, and JSON with a row a line.

CSV and JSON are read by the types that the state has, so that `007` of a column of text is `007`.
Nothing is guessed. Values are written as `statestore read --output json` prints them.

| Spark | in CSV and JSON |
|---|---|
| string | text; in JSON a string |
| numbers | as usual; in JSON a number, of a decimal also a string; NaN, Infinity, -Infinity |
| boolean | true, false |
| date, time | 2024-01-31, 10:00:00.5 |
| timestamp | 2024-01-31T10:00:00Z, or with another offset |
| timestamp_ntz | 2024-01-31T10:00:00 |
| interval day to second | 1 day, 2:03:04 |
| binary | hexadecimal digits |
| struct, array, map | an object, a list, a list of pairs or an object; in CSV these as text |
| null | null; in CSV nothing, but not for text: there that may be an empty one as well |

Other intervals are in no file. An empty text is "" in CSV.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.codec.key_bytes import key_type, value_type
from statestore.codec.spark_types import VARIANT_PARTS, SparkType
from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore.codec.column_family import ColumnFamily

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_NUMBERS = (*_BITS, "float", "double", "decimal")
_NESTED = ("struct", "variant", "array", "map")
_MOST_SHOWN = 60

_WHOLE = re.compile(r"[+-]?[0-9]{1,50}")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_TIME = re.compile(_CLOCK)
_NTZ = re.compile(rf"{_DATE.pattern}[ T]{_CLOCK}")
_INSTANT = re.compile(rf"{_NTZ.pattern}(Z|[+-][0-9]{{2}}:[0-9]{{2}})")
_CELL = re.compile(rb'(?:"[^"]*(?:""[^"]*)*"|[^",\r\n][^,\r\n]*)?(?:[,\r\n]|\Z)')
"""A cell of CSV and what ends it; possessive repeats are wrong in Python before 3.11.5."""
_DURATION = re.compile(
    r"((?P<days>-?[0-9]{1,9}) days?, )?(?P<hours>[0-9]{1,2}):(?P<minutes>[0-9]{2})"
    r":(?P<seconds>[0-9]{2})(\.(?P<fraction>[0-9]{1,6}))?"
)


class _Number(str):
    """A number as it was typed."""

    __slots__ = ()


class _MisfitError(ValueError):
    """A value is not one of its type; says why, and of a part of a value which part that is."""

    path: str = ""
    part: Any = None

    def note(self, name: str, part: Any) -> None:
        """Note which part it is of what is around."""
        self.part = self.part if self.path else part
        self.path = f"{name}{self.path}"


class RowsFile:
    """A file of rows as it was when this was made: its bytes are in memory.

    So it is the same each time that it is read, whatever becomes of the file.

    Args:
        path: A file whose name ends with .parquet, .csv, .json or .jsonl; with the columns that
            `FamilyColumns.encode` takes.

    Raises:
        InvalidArgumentError: The file cannot be read, or is of another form.
    """

    def __init__(self, path: Path) -> None:
        form = FORMS.get(path.suffix)
        if form is None:
            raise InvalidArgumentError(
                "a file of rows is of a form that is not known",
                file=str(path),
                known=", ".join(FORMS),
                to_fix="name it by what it is",
            )
        self.path = path
        self._form = form
        with _named_errors(path):
            self._data = path.read_bytes()

    def read(self, family: ColumnFamily) -> pa.Table:
        """Read rows of a column family, or keys alone.

        Args:
            family: Whose types text is read by; Parquet has its own.

        Raises:
            InvalidArgumentError: The file is not of its form; or a value is not of its column's
                type: names file, row or line, column and value.
        """
        kinds = {"key": key_type(family), "value": value_type(family)}
        with _named_errors(self.path):
            return self._form(self._data, self.path, kinds)


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
    del path, kinds
    import pyarrow.parquet as pq

    # Times of 96 bits reach beyond the year 2262; those in nanoseconds would come round again.
    with pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit="us") as file:
        leaves = [file.schema.column(number) for number in range(len(file.schema))]
        instants = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
        table = file.read()
    # Times of 96 bits, as Spark writes them, are of no zone to Arrow; Spark means UTC.
    fields = [field.with_type(_in_utc(field.type, field.name, instants)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _in_utc(kind: Any, path: str, instants: set[str]) -> Any:
    if path in instants:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct(
            [part.with_type(_in_utc(part.type, f"{path}.{part.name}", instants)) for part in kind]
        )
    return kind


def _read_csv(data: bytes, path: Path, kinds: dict[str, SparkType]) -> pa.Table:
    import pyarrow.csv as csv

    _require_closed_quotes(data, path)
    parsed = csv.ParseOptions(newlines_in_values=True)
    with csv.open_csv(io.BytesIO(data), parse_options=parsed) as file:
        names = file.schema.names
    as_text = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = csv.read_csv(io.BytesIO(data), parse_options=parsed, convert_options=as_text)
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        kind = _type_at(name, kinds)
        columns.append(column if kind is None else _typed(path, name, kind, column.to_pylist()))
    return pa.Table.from_arrays(columns, names=names)


def _require_closed_quotes(data: bytes, path: Path) -> None:
    """Refuse what Arrow takes: a quote up to the end of the file, and text behind a closing one."""
    at = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    while at < len(data):
        cell = _CELL.match(data, at)
        if cell is None:
            raise InvalidArgumentError(
                "a quote is not closed, or text follows the closing one",
                file=str(path),
                line=len(data[: at + 1].splitlines()),
                to_fix='close it, and write a quote within quoted text as ""',
            )
        at = cell.end()


def _typed(path: Path, name: str, kind: SparkType, texts: list[str | None]) -> pa.Array[Any]:
    values = []
    for row, text in enumerate(texts, 1):
        try:
            values.append(_of_cell(text, kind))
        except _MisfitError as error:
            raise _refused(error, text or "", name, path, row=row) from error
    return pa.array(values, kind.arrow)


def _of_cell(text: str | None, kind: SparkType) -> Any:
    if text is None:
        if kind.kind == "string":
            raise _MisfitError(
                'nothing may be a null or an empty text: write "" for the text, and give nulls in '
                "JSON or Parquet"
            )
        return None
    if kind.kind in _NUMBERS:
        return _value(_Number(text), kind)
    if kind.kind == "boolean":
        return _value({"true": True, "false": False}.get(text.lower(), text), kind)
    return _value(_parsed(text) if kind.kind in _NESTED else text, kind)


def _read_json(data: bytes, path: Path, kinds: dict[str, SparkType]) -> pa.Table:
    columns: dict[str, list[Any]] = {}
    for line, row in _lines(data, path):
        columns = columns or {name: [] for name in row}
        if row.keys() != columns.keys():
            raise InvalidArgumentError(
                "rows of a file have not the same columns",
                file=str(path),
                line=line,
                expected=", ".join(columns),
                found=", ".join(row),
                to_fix="give every row all columns, null where it has none",
            )
        for name, given in row.items():
            kind = _type_at(name, kinds)
            try:
                columns[name].append(None if kind is None else _value(given, kind))
            except _MisfitError as error:
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
            except _MisfitError as error:
                raise InvalidArgumentError(
                    "a line of a file is no row in JSON",
                    file=str(path),
                    line=number,
                    reason=str(error),
                    to_fix='give an object a line, such as {"key": {…}, "value": {…}}',
                ) from error


def _row(line: str) -> dict[str, Any]:
    row = _parsed(line)
    if not isinstance(row, dict) or not row:
        raise _MisfitError("it is no object with columns")
    return row


def _parsed(text: str) -> Any:
    try:
        return json.loads(
            text,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_Number,
            object_pairs_hook=_object,
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise _MisfitError(f"no JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _MisfitError("a name is there twice in an object")
    return made


def _type_at(name: str, kinds: dict[str, SparkType]) -> SparkType | None:
    """Return the type of a column: key, value, or a field of one, named with dots."""
    side, dot, path = name.partition(".")
    if side not in kinds:
        return None
    return _field_type(kinds[side], path) if dot else kinds[side]


def _field_type(kind: SparkType, path: str) -> SparkType | None:
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
    error: _MisfitError, given: Any, column: str, path: Path, **place: Any
) -> InvalidArgumentError:
    text = str(error.part if error.path else given)
    return InvalidArgumentError(
        "a value of a file is not one of its column's type",
        file=str(path),
        **place,
        column=column + error.path,
        value=text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…",
        reason=str(error),
        to_fix="give a value of the type that the state has; Parquet files bring their types with "
        "them",
    )


def _value(given: Any, kind: SparkType) -> Any:
    """Return a value as Arrow takes it from Python.

    Args:
        given: What JSON has, numbers as they were typed.
        kind: Its type.

    Raises:
        _MisfitError: It is none of that type.
    """
    if given is None:
        return None
    found = _OF_KIND.get(kind.kind)
    if found is None:
        raise _MisfitError("such a value is in no file of text: give Arrow data from Python")
    return found(given, kind)


def _text(given: Any, _: SparkType) -> str:
    if type(given) is not str:
        raise _MisfitError("it is no text: quote it as it was typed")
    return given


def _boolean(given: Any, _: SparkType) -> bool:
    if not isinstance(given, bool):
        raise _MisfitError("it is not true or false")
    return given


def _whole(given: Any, kind: SparkType) -> int:
    if not isinstance(given, _Number) or not _WHOLE.fullmatch(given):
        raise _MisfitError("it is no whole number")
    limit = 1 << (_BITS[kind.kind] - 1)
    number = int(given)
    if not -limit <= number < limit:
        raise _MisfitError(f"it is not from {-limit} to {limit - 1}")
    return number


def _floating(given: Any, kind: SparkType) -> float:
    if given in ("NaN", "Infinity", "-Infinity"):
        return float(given)
    if not isinstance(given, _Number) or not _DECIMAL.fullmatch(given):
        raise _MisfitError("it is no number")
    number = float(given)
    if kind.kind == "float":
        narrow = pa.array([number]).cast(pa.float32())[0].as_py()
        number = number if narrow is None else narrow
    if number in (float("inf"), float("-inf")) or (number == 0 and Decimal(given) != 0):
        raise _MisfitError("it is too large or too small")
    return number


def _decimal(given: Any, kind: SparkType) -> Decimal:
    if not isinstance(given, str) or not _DECIMAL.fullmatch(given):
        raise _MisfitError("it is no number")
    with localcontext() as context:
        context.prec = 100
        context.Emax, context.Emin = 99_999, -99_999
        try:
            number = Decimal(given)
            made = number.quantize(Decimal(1).scaleb(-kind.scale))
        except InvalidOperation:
            raise _MisfitError(f"it has more than {kind.precision} digits") from None
        if made != number:
            raise _MisfitError(f"it has more than {kind.scale} digits behind the point")
        if len(made.as_tuple().digits) > kind.precision:
            raise _MisfitError(f"it has more than {kind.precision} digits")
        return made


def _iso(pattern: re.Pattern[str], read: Callable[[str], Any], example: str) -> Any:
    def parse(given: Any, _: SparkType) -> Any:
        if type(given) is not str or not pattern.fullmatch(given):
            raise _MisfitError(f"it is not like {example}")
        try:
            return read(given)
        except (ValueError, OverflowError) as error:
            raise _MisfitError(str(error)) from error

    return parse


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _duration(text: str) -> timedelta:
    match: Any = _DURATION.fullmatch(text)
    parts = match.groupdict(default="0")
    return timedelta(
        **{unit: int(parts[unit]) for unit in ("days", "hours", "minutes", "seconds")},
        microseconds=int(parts["fraction"].ljust(6, "0")),
    )


def _struct(given: Any, kind: SparkType) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _MisfitError("it is no object")
    struct: Any = kind.arrow
    fields = dict(zip(struct.names, kind.types, strict=True))
    # A value of nothing, as deduplication has it, need not be given.
    needed = {name for name, part in fields.items() if part.kind != "void"}
    if needed - given.keys() or given.keys() - fields.keys():
        raise _MisfitError(
            f"it has the fields {', '.join(given) or 'none'}, and not {', '.join(fields) or 'none'}"
        )
    return {name: _part(given.get(name), part, f".{name}") for name, part in fields.items()}


def _part(given: Any, kind: SparkType, name: str) -> Any:
    try:
        return _value(given, kind)
    except _MisfitError as error:
        error.note(name, given)
        raise


def _array(given: Any, kind: SparkType) -> list[Any]:
    if not isinstance(given, list):
        raise _MisfitError("it is no list")
    return [_part(one, kind.types[0], f"[{number}]") for number, one in enumerate(given)]


def _map(given: Any, kind: SparkType) -> list[tuple[Any, Any]]:
    if isinstance(given, dict) and kind.types[0].kind == "string":
        given = [[name, value] for name, value in given.items()]
    if not isinstance(given, list):
        raise _MisfitError("it is no list of pairs, and no object with keys of text")
    if not all(isinstance(pair, list) and len(pair) == len(kind.types) for pair in given):
        raise _MisfitError("it is no list of pairs")
    return [
        (_part(pair[0], kind.types[0], "[].key"), _part(pair[1], kind.types[1], "[].value"))
        for pair in given
    ]


def _nothing(given: Any, _: SparkType) -> Any:
    raise _MisfitError(f"only null has that type, not {given!r}")


_OF_KIND: dict[str, Callable[[Any, SparkType], Any]] = {
    "string": _text,
    "boolean": _boolean,
    **dict.fromkeys(_BITS, _whole),
    "float": _floating,
    "double": _floating,
    "decimal": _decimal,
    "date": _iso(_DATE, date.fromisoformat, "2024-01-31"),
    "time": _iso(_TIME, time.fromisoformat, "10:00:00"),
    "timestamp": _iso(_INSTANT, _instant, "2024-01-31T10:00:00Z, with its zone"),
    "timestamp_ntz": _iso(_NTZ, datetime.fromisoformat, "2024-01-31T10:00:00, without a zone"),
    "day-time interval": _iso(_DURATION, _duration, "1 day, 2:03:04"),
    "binary": _iso(re.compile("([0-9a-fA-F]{2})*"), bytes.fromhex, "00ff: hexadecimal digits"),
    "struct": _struct,
    "variant": lambda given, _: _struct(given, VARIANT_PARTS),
    "array": _array,
    "map": _map,
    "void": _nothing,
}

FORMS: dict[str, Callable[[bytes, Path, dict[str, SparkType]], pa.Table]] = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json,
}
"""Reads the bytes of a file, by how its name ends; the path is for errors."""
