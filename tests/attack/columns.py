"""Columns of random types under names that collide, and their values in plain Python."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator

NAMES = (
    "user", "current_user", "session_user", "date", "time", "timestamp", "key", "value", "order",
    "select", "from", "group", "a.b", "a b", "User", "straße", "名", "count", "sum", "max",
    "partition_id", "row", "state", "index", "null", "true", "all", "default", "rowid", "shop",
    "current_date", "id", "user_id", 'quo"te', "day", "table", "end", "desc", "localtime",
)  # fmt: skip
NAN = "\0NaN"
"""A NaN in plain form: equal to itself, as Spark groups by it."""
START = datetime(2024, 1, 1, tzinfo=UTC)
_LOCAL_START = START.replace(tzinfo=None)
LETTERS = list("abcdefghijkmnpqrstuvwxyz")
NASTY = (
    "", " ", "null", "NULL", "NA", "nan", "true", "0", "7", "007", "1.0", "1e5", "0x1F", "x'y",
    'say "x"', "a,b", "tab\there", "line\nbreak", "%", "_", "\\", "é", "名前", "🦉", "2024-01-31",
    "12345678901234567890", "00012345678901234567890", "-0", "user", "key.user",
)  # fmt: skip


@dataclass(frozen=True)
class Type:
    """A type of Spark, as a file and a condition have it.

    Attributes:
        ddl: Spark's name of it.
        arrow: Arrow's.
        draw: Draws a value that is not null.
        sql: How a condition in DuckDB's SQL says a value; None where no condition is made of it.
        is_exact_in_text: Whether CSV and JSON have its values as people write them, beyond doubt.
    """

    ddl: str
    arrow: pa.DataType
    draw: Callable[[Generator], Any]
    sql: Callable[[Any], str] | None = None
    is_exact_in_text: bool = False


def token(rng: Generator) -> str:
    """Draw a text that is nowhere else by chance."""
    return "".join(rng.choice(LETTERS, 10))


def _text(rng: Generator) -> str:
    chance = rng.random()
    if chance < 0.2:
        return f"{rng.integers(10_000):06d}"  # a postcode: text, whatever it looks like
    return str(rng.choice(NASTY)) if chance < 0.5 else token(rng)


def _integer(bits: int) -> Callable[[Generator], int]:
    top = 1 << (bits - 1)
    edges = (0, 1, -1, 7, 42, 100, top - 1, -top)

    def draw(rng: Generator) -> int:
        if rng.random() < 0.4:
            return int(edges[rng.integers(len(edges))])
        return int(rng.integers(-top, top))

    return draw


def _real(rng: Generator) -> float:
    edges = (0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 0.125, 1e6)
    if rng.random() < 0.5:
        return float(edges[rng.integers(len(edges))])
    return float(rng.integers(-80_000, 80_000)) / 8


def _decimal(digits: int, scale: int) -> Callable[[Generator], Decimal]:
    def draw(rng: Generator) -> Decimal:
        number = int(rng.integers(-(10 ** min(digits, 18)) + 1, 10 ** min(digits, 18)))
        return Decimal(number if rng.random() < 0.7 else number % 1000).scaleb(-scale)

    return draw


def _day(rng: Generator) -> date:
    edges = (date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(1600, 1, 1))
    if rng.random() < 0.3:
        return edges[rng.integers(len(edges))]
    return date(2000, 1, 1) + timedelta(days=int(rng.integers(0, 20_000)))


def _local(rng: Generator) -> datetime:
    if rng.random() < 0.3:
        return _LOCAL_START + timedelta(days=30, hours=int(rng.integers(24)))
    return _LOCAL_START + timedelta(microseconds=int(rng.integers(0, 10**14)))


def _at(rng: Generator) -> datetime:
    return _local(rng).replace(tzinfo=UTC)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sql_real(value: float | str) -> str:
    text = {NAN: "nan", math.inf: "inf", -math.inf: "-inf"}.get(value)
    return f"'{text}'::DOUBLE" if text else f"{float(value)!r}::DOUBLE"


TYPES: dict[str, Type] = {
    "boolean": Type("BOOLEAN", pa.bool_(), lambda rng: bool(rng.random() < 0.5), str, True),
    "byte": Type("TINYINT", pa.int8(), _integer(8), str, True),
    "short": Type("SMALLINT", pa.int16(), _integer(16), str, True),
    "int": Type("INT", pa.int32(), _integer(32), str, True),
    "long": Type("BIGINT", pa.int64(), _integer(64), str, True),
    "float": Type("FLOAT", pa.float32(), _real, _sql_real),
    "double": Type("DOUBLE", pa.float64(), _real, _sql_real),
    "decimal": Type("DECIMAL(12, 4)", pa.decimal128(12, 4), _decimal(12, 4), lambda v: f"{v:f}"),
    "large": Type("DECIMAL(38, 10)", pa.decimal128(38, 10), _decimal(38, 10), lambda v: f"{v:f}"),
    "string": Type("STRING", pa.string(), _text, _quoted, True),
    "binary": Type("BINARY", pa.binary(), lambda rng: rng.bytes(int(rng.integers(0, 14)))),
    "date": Type("DATE", pa.date32(), _day, lambda v: f"DATE '{v}'", True),
    "timestamp": Type(
        "TIMESTAMP", pa.timestamp("us", "UTC"), _at, lambda v: f"TIMESTAMPTZ '{v.isoformat(' ')}'"
    ),
    "local": Type(
        "TIMESTAMP_NTZ", pa.timestamp("us"), _local, lambda v: f"TIMESTAMP '{v.isoformat(' ')}'"
    ),
    "struct": Type(
        "STRUCT<a: BIGINT, `B`: STRING>",
        pa.struct([("a", pa.int64()), ("B", pa.string())]),
        lambda rng: {"a": _integer(64)(rng), "B": None if rng.random() < 0.2 else _text(rng)},
    ),
    "array": Type(
        "ARRAY<STRING>",
        pa.list_(pa.string()),
        lambda rng: [None if rng.random() < 0.2 else _text(rng) for _ in range(rng.integers(3))],
    ),
    "structs": Type(
        "ARRAY<STRUCT<n: INT>>",
        pa.list_(pa.struct([("n", pa.int32())])),
        lambda rng: [{"n": _integer(32)(rng)} for _ in range(rng.integers(3))],
    ),
}
ORDERED = (
    "byte", "short", "int", "long", "float", "double", "decimal", "large", "string", "binary",
    "date", "timestamp", "local",
)  # fmt: skip
"""Types whose values Spark and Python order alike."""


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: Its name.
        type_name: Name of its type in TYPES.
        within: Names of the structs of a key or value that it is in, the outermost first.
    """

    name: str
    type_name: str
    within: tuple[str, ...] = ()

    @property
    def path(self) -> tuple[str, ...]:
        """Its name, behind those of the structs that it is in."""
        return (*self.within, self.name)

    @property
    def type(self) -> Type:
        return TYPES[self.type_name]

    @property
    def field(self) -> pa.Field[Any]:
        return pa.field(self.name, self.type.arrow)

    @property
    def ddl(self) -> str:
        """It in a schema of Spark."""
        return f"{tick(self.name)} {self.type.ddl}"

    def draw(self, rng: Generator, nulls: float = 0.1) -> Any:
        """Draw a value, null at times."""
        return None if rng.random() < nulls else self.type.draw(rng)


def tick(name: str) -> str:
    """Return a name as Spark's SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


def draw_columns(
    rng: Generator,
    number: int,
    type_names: Sequence[str],
    taken: Sequence[str] = (),
    names: Sequence[str] = NAMES,
) -> tuple[Column, ...]:
    """Draw columns with names that Spark tells apart."""
    columns: list[Column] = []
    known = {name.casefold() for name in taken}
    while len(columns) < number:
        name = str(rng.choice(names))
        if name.casefold() not in known:
            known.add(name.casefold())
            columns.append(Column(name, str(rng.choice(type_names))))
    return tuple(columns)


def plain(value: Any) -> Any:
    """Return a value as a thing that a dict may have as its key, equal where Spark's are."""
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0  # -0.0 becomes 0.0
    if isinstance(value, dict):
        return tuple(plain(one) for one in value.values())
    if isinstance(value, (list, tuple)):
        return tuple(plain(one) for one in value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value


def given(value: Any, arrow: pa.DataType) -> Any:
    """Return a plain value as Arrow takes it."""
    if value is None:
        return None
    if pa.types.is_struct(arrow):
        fields = [arrow.field(ordinal) for ordinal in range(arrow.num_fields)]
        return {one.name: given(part, one.type) for one, part in zip(fields, value, strict=True)}
    if pa.types.is_list(arrow):
        return [given(part, arrow.value_type) for part in value]
    return math.nan if value == NAN and pa.types.is_floating(arrow) else value


def array(values: Sequence[Any], arrow: pa.DataType) -> pa.Array[Any]:
    """Return plain values as an Arrow array."""
    return pa.array([given(value, arrow) for value in values], arrow)


def order_key(value: Any) -> Any:
    """Return what plain values of an ordered type are ordered by: a NaN is behind all."""
    return (1, 0.0) if value == NAN and isinstance(value, str) else (0, value)
