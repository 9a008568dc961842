"""Random types of keyed state, random values of each, and values that do not fit one.

A value comes as two: what a program gives, and what it gets back. They are equal in Python; an int
is given for a float, a datetime of another zone, a dict of another class.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections import OrderedDict
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from random import Random
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

SCALARS: dict[Any, str] = {
    int: "BIGINT",
    Annotated[int, "INT"]: "INT",
    Annotated[int, "SMALLINT"]: "SMALLINT",
    Annotated[int, "TINYINT"]: "TINYINT",
    float: "DOUBLE",
    Annotated[float, "FLOAT"]: "FLOAT",
    bool: "BOOLEAN",
    str: "STRING",
    bytes: "BINARY",
    date: "DATE",
    datetime: "TIMESTAMP",
    Annotated[datetime, "TIMESTAMP_NTZ"]: "TIMESTAMP_NTZ",
    Decimal: "DECIMAL(38,18)",
    Annotated[Decimal, "DECIMAL(10,2)"]: "DECIMAL(10,2)",
    Annotated[Decimal, "DECIMAL(38,0)"]: "DECIMAL(38,0)",
}
BITS = {"BIGINT": 64, "INT": 32, "SMALLINT": 16, "TINYINT": 8}
TEXTS = ["", "a", "Zoë", "\0", "'", "`", "_1", "🙂", "null", " x ", "1", "a" * 300]
FLOATS = [0.0, 1.5, -2.5, 1e300, -1e-300, 0.1, math.inf, -math.inf, 16777217.0, 7.0]
NAMES = ["x", "value", "key", "count", "index", "select", "é", "A", "a", "Value", "_1"]
SURROGATE = "a\ud800"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAIVE = EPOCH.replace(tzinfo=None)
FIRST = datetime.min  # noqa: DTZ901
GAP = date(1582, 10, 10)


class Text(str):
    """A str of another class."""

    __slots__ = ()


class Ddl(NamedTuple):
    """Columns that DDL names; values are tuples of a kind."""

    text: str
    kind: Any


class Given(NamedTuple):
    """A value as it is given, and as it comes back."""

    given: Any
    kept: Any


def kind_of(rng: Random, depth: int = 3) -> Any:
    """Return a type."""
    if rng.random() < 0.1:
        plain = tuple[tuple(_plain(rng, depth - 1) | None for _ in range(rng.randint(1, 3)))]  # type: ignore[misc]
        types = [_ddl(each) for each in get_args(plain)]
        return Ddl(", ".join(f"`c{n}` {each}" for n, each in enumerate(types)), plain)
    return _annotation(rng, depth)


def key_kind_of(rng: Random) -> Any:
    """Return a type whose values are keys of a map state."""
    what = rng.randrange(4)
    if what == 0:
        return rng.choice([*SCALARS])
    if what == 1:
        return tuple[rng.choice([*SCALARS]), ...]
    fields = [_maybe_none(rng, rng.choice([*SCALARS])) for _ in range(rng.randint(1, 3))]
    if what == 2:
        return tuple[tuple(fields)]
    return _class(rng, fields)


def _annotation(rng: Random, depth: int) -> Any:
    if depth <= 0 or rng.random() < 0.25:
        return rng.choice([*SCALARS])
    what = rng.randrange(5)
    if what == 0:
        return list[_maybe_none(rng, _annotation(rng, depth - 1))]
    if what == 1:
        return tuple[_maybe_none(rng, _annotation(rng, depth - 1)), ...]
    if what == 2:
        return dict[str, _maybe_none(rng, _annotation(rng, depth - 1))]
    fields = [_maybe_none(rng, _annotation(rng, depth - 1)) for _ in range(rng.randint(1, 4))]
    return tuple[tuple(fields)] if what == 3 else _class(rng, fields)


def _plain(rng: Random, depth: int) -> Any:
    """Return what DDL can say: structs are tuples, and everything may be null."""
    if depth <= 0 or rng.random() < 0.4:
        return rng.choice([*SCALARS])
    what = rng.randrange(3)
    if what == 0:
        return list[_plain(rng, depth - 1) | None]
    if what == 1:
        return dict[str, _plain(rng, depth - 1) | None]
    return tuple[tuple(_plain(rng, depth - 1) | None for _ in range(rng.randint(1, 3)))]


def _ddl(kind: Any) -> str:
    kind = without_none(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    arguments = get_args(kind)
    if get_origin(kind) is list:
        return f"ARRAY<{_ddl(arguments[0])}>"
    if get_origin(kind) is dict:
        return f"MAP<{_ddl(arguments[0])}, {_ddl(arguments[1])}>"
    return "STRUCT<" + ", ".join(f"`f{n}`: {_ddl(each)}" for n, each in enumerate(arguments)) + ">"


def _maybe_none(rng: Random, kind: Any) -> Any:
    return kind | None if rng.random() < 0.3 else kind


def _class(rng: Random, fields: list[Any]) -> Any:
    name = f"C{rng.randrange(10**6)}"
    names = rng.sample(NAMES, len(fields))
    if rng.random() < 0.5:
        names = [each.replace("_", "n") for each in names]
        return NamedTuple(name, list(zip(names, fields, strict=True)))
    return dataclasses.make_dataclass(
        name,
        list(zip(names, fields, strict=True)),
        frozen=True,
        kw_only=rng.random() < 0.3,
    )


def without_none(kind: Any) -> Any:
    """Return T of `T | None`."""
    if get_origin(kind) in (Union, UnionType):
        return next(each for each in get_args(kind) if each is not NoneType)
    return kind


def fields_of(kind: Any) -> list[Any] | None:
    """Return the types of the fields of a row; None of another type."""
    if isinstance(kind, Ddl):
        return fields_of(kind.kind)
    if get_origin(kind) is tuple and get_args(kind)[1:] != (...,):
        return list(get_args(kind))
    if isinstance(kind, type) and (hasattr(kind, "_fields") or dataclasses.is_dataclass(kind)):
        return list(typing.get_type_hints(kind, include_extras=True).values())
    return None


def value_of(rng: Random, kind: Any, *, is_key: bool = False) -> Given:
    """Return a random value of a type."""
    if isinstance(kind, Ddl):
        return value_of(rng, kind.kind)
    inner = without_none(kind)
    if inner is not kind and rng.random() < 0.3:
        return Given(None, None)
    if inner in SCALARS:
        return _scalar(rng, SCALARS[inner], is_key)
    fields = fields_of(inner)
    if fields is not None:
        values = [value_of(rng, field, is_key=is_key) for field in fields]
        given, kept = ([each[which] for each in values] for which in (0, 1))
        if dataclasses.is_dataclass(inner):
            names = [field.name for field in dataclasses.fields(inner)]
            given, kept = (dict(zip(names, each, strict=True)) for each in (given, kept))
            return Given(inner(**given), inner(**kept))
        make = inner._make if hasattr(inner, "_make") else tuple
        return Given(make(given), make(kept))
    collection, arguments = get_origin(inner), get_args(inner)
    if collection is dict:
        entries = {}
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            key = value_of(rng, arguments[0], is_key=True)
            entries[key.kept] = key.given, value_of(rng, arguments[1])
        given = {key: value.given for key, value in entries.values()}
        kept = {key: value.kept for key, (_, value) in entries.items()}
        return Given(OrderedDict(given) if rng.random() < 0.2 else given, kept)
    values = [
        value_of(rng, arguments[0], is_key=is_key) for _ in range(rng.choice([0, 1, 1, 2, 3]))
    ]
    return Given(collection(each.given for each in values), collection(e.kept for e in values))


def _scalar(rng: Random, ddl: str, is_key: bool) -> Given:
    if ddl in BITS:
        limit = 1 << BITS[ddl] - 1
        value = rng.choice([0, 1, -1, limit - 1, -limit, rng.randrange(-limit, limit)])
        return Given(value, value)
    if ddl in ("DOUBLE", "FLOAT"):
        return _floating(rng, ddl, is_key)
    if ddl == "BOOLEAN":
        value = rng.random() < 0.5
        return Given(value, value)
    if ddl == "STRING":
        text = rng.choice(TEXTS)
        return Given(Text(text) if rng.random() < 0.1 else text, text)
    if ddl == "BINARY":
        data = rng.choice([b"", b"\0", b"\xff" * 9, rng.randbytes(5)])
        return Given(data, data)
    if ddl == "DATE":
        day = rng.choice(
            [date.min, date.max, date(1970, 1, 1), date(1582, 10, 4), date(1582, 10, 15)]
        )
        return Given(day, day)
    if ddl.startswith("DECIMAL"):
        return _decimal(rng, ddl)
    second = rng.choice([0, -1, 2**31, rng.randrange(-60_000_000_000, 250_000_000_000)])
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        seconds=second, microseconds=rng.choice([0, 1])
    )
    if ddl == "TIMESTAMP_NTZ":
        return Given(at.replace(tzinfo=None), at.replace(tzinfo=None))
    given = at.astimezone(timezone(timedelta(minutes=rng.choice([-480, 0, 345]))))
    return Given(at.astimezone().replace(tzinfo=None) if rng.random() < 0.2 else given, at)


def _floating(rng: Random, ddl: str, is_key: bool) -> Given:
    value = rng.choice(FLOATS)
    if ddl == "FLOAT" and math.isfinite(value):
        value = rng.choice([0.0, 1.5, -2.5, 2.0**100, 7.0])
    if value == 0 and rng.random() < 0.5:
        return Given(-0.0, 0.0 if is_key else -0.0)
    if not is_key and rng.random() < 0.1:
        return Given(math.nan, math.nan)
    is_whole = math.isfinite(value) and value == int(value)
    return Given(int(value) if is_whole and rng.random() < 0.3 else value, value)


def _decimal(rng: Random, ddl: str) -> Given:
    precision, scale = map(int, ddl[8:-1].split(","))
    digits = (
        rng.randrange(10**precision)
        if rng.random() < 0.5
        else rng.choice([0, 1, 10**precision - 1])
    )
    value = Decimal(digits * rng.choice([1, -1])).scaleb(-scale, Context(prec=50))
    return Given(value.normalize(Context(prec=50)) if rng.random() < 0.5 else value, value)


MISFITS: list[Any] = [
    None, True, 7, 2**53 + 1, 1 << 70, 0.5, math.inf, 1e39, "text", SURROGATE, b"b", Decimal("1.5"),
    Decimal("1e30"), Decimal("NaN"), Decimal("0.001"), date(2020, 1, 1), GAP, EPOCH, NAIVE, FIRST,
    timedelta(1), [], [None], (), {}, {None: 1}, {0.1: 1, 0.1 + 1e-12: 2}, bytearray(b""), (1,),
    [True], [1 << 70], [0, 0.5], [SURROGATE], [date(2020, 1, 1), EPOCH], {"a": True}, {1},
]  # fmt: skip
"""Values of every kind; of most types most of them are none."""


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value of MISFITS is one of a type, as the documents say."""
    if isinstance(kind, Ddl):
        return fits(value, kind.kind)
    inner = without_none(kind)
    if value is None:
        return inner is not kind
    if inner in SCALARS:
        return _fits_scalar(value, SCALARS[inner])
    fields = fields_of(inner)
    if fields is not None:
        if get_origin(inner) is not tuple or type(value) is not tuple or len(value) != len(fields):
            return False
        return all(map(fits, value, fields))
    collection, arguments = get_origin(inner), get_args(inner)
    if not isinstance(value, collection):
        return False
    if collection is dict:
        return all(
            key is not None and fits(key, arguments[0]) and fits(each, arguments[1])
            for key, each in value.items()
        )
    return all(fits(each, arguments[0]) for each in value)


def _fits_scalar(value: Any, ddl: str) -> bool:
    is_int = type(value) is int
    if ddl in BITS:
        return is_int and -(1 << BITS[ddl] - 1) <= value < 1 << BITS[ddl] - 1
    if ddl == "DOUBLE":
        return type(value) is float or (is_int and float(value) == value)
    if ddl == "FLOAT":
        is_in_range = isinstance(value, float) and (math.isinf(value) or abs(value) < 3.5e38)
        return is_in_range or (is_int and value in (0, 1, 7, 300, 1 << 70))
    if ddl == "STRING":
        return isinstance(value, str) and value != SURROGATE
    if ddl.startswith("DECIMAL"):
        precision, scale = map(int, ddl[8:-1].split(","))
        if type(value) is not Decimal or not value.is_finite():
            return False
        whole = value * 10**scale
        return whole == int(whole) and abs(whole) < 10**precision
    if ddl == "TIMESTAMP":
        return type(value) is datetime and value != FIRST
    if ddl == "TIMESTAMP_NTZ":
        return type(value) is datetime and value.tzinfo is None
    if value == GAP:
        return False
    return type(value) is {"BOOLEAN": bool, "BINARY": bytes, "DATE": date}[ddl]


def show(value: Any) -> str:
    """Return a text that equal values of the same types share."""
    if dataclasses.is_dataclass(value):
        pairs = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return type(value).__name__ + "(" + ", ".join(f"{n}={show(v)}" for n, v in pairs) + ")"
    if hasattr(value, "_fields"):
        return type(value).__name__ + "(" + ", ".join(map(show, value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{show(k)}: {show(v)}" for k, v in value.items())) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}[{', '.join(map(show, value))}]"
    if isinstance(value, Decimal):
        return f"Decimal {value.normalize(Context(prec=60)) or 0:f}"
    return f"{type(value).__name__} {value!r}"
