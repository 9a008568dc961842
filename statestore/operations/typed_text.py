"""Values that people type, and `statestore read --output json` prints, by the type they are of.

| Spark | in JSON; elsewhere the same as text |
|---|---|
| string | a string |
| numbers | a number, of a decimal also a string; NaN, Infinity, -Infinity |
| boolean | true, false |
| date, time | 2024-01-31, 10:00:00.5 |
| timestamp | 2024-01-31T10:00:00Z, or with another offset |
| timestamp_ntz | 2024-01-31T10:00:00 |
| interval day to second | 1 day, 2:03:04 |
| binary | hexadecimal digits |
| struct, array, map | an object, a list, a list of pairs or an object |
| null | null |

Other intervals cannot be typed.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from statestore.codec.spark_types import VARIANT_PARTS, SparkType

if TYPE_CHECKING:
    from collections.abc import Callable

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_NUMBERS = (*_BITS, "float", "double", "decimal")
_NESTED = ("struct", "variant", "array", "map")

_WHOLE = re.compile(r"[+-]?[0-9]{1,50}")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DATE = re.compile(r"-?[0-9]{4,6}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_TIME = re.compile(_CLOCK)
_NTZ = re.compile(rf"{_DATE.pattern}[ T]{_CLOCK}")
_INSTANT = re.compile(rf"{_NTZ.pattern}(?P<zone>Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)")
_MOST_HOURS, _MOST_MINUTES = 23, 59
_DURATION = re.compile(
    r"((?P<days>-?[0-9]{1,9}) days?, )?(?P<hours>[0-9]{1,2}):(?P<minutes>[0-9]{2})"
    r":(?P<seconds>[0-9]{2})(\.(?P<fraction>[0-9]{1,6}))?"
)


class _Number(str):
    """A number as it was typed."""

    __slots__ = ()


class MisfitError(ValueError):
    """A value is not one of its type; says why, and of a part of a value which part that is."""

    path: str = ""
    part: Any = None

    def note(self, name: str, part: Any) -> None:
        """Note which part it is of what is around."""
        self.part = self.part if self.path else part
        self.path = f"{name}{self.path}"


def value_of_text(text: str, kind: SparkType) -> Any:
    """Return a value of a type as Arrow takes it from Python.

    Raises:
        MisfitError: It is none of that type.
    """
    if kind.kind in _NUMBERS:
        return value_of(_Number(text), kind)
    if kind.kind == "boolean":
        return value_of({"true": True, "false": False}.get(text.lower(), text), kind)
    return value_of(parsed(text) if kind.kind in _NESTED else text, kind)


def parsed(text: str) -> Any:
    """Return what JSON says, numbers as they were typed; raises MisfitError where it is none."""
    try:
        return json.loads(
            text,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_Number,
            object_pairs_hook=_object,
        )
    except (json.JSONDecodeError, RecursionError) as error:
        raise MisfitError(f"it is not JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise MisfitError("an object has a name twice")
    return made


def value_of(given: Any, kind: SparkType) -> Any:
    """Return a value as Arrow takes it from Python.

    Args:
        given: What `parsed` returns.
        kind: Its type.

    Raises:
        MisfitError: It is none of that type.
    """
    if given is None:
        return None
    found = _OF_KIND.get(kind.kind)
    if found is None:
        raise MisfitError(
            "text cannot express a value of this type: give it from Python, rows also as a file of "
            "Arrow"
        )
    return found(given, kind)


def _text(given: Any, _: SparkType) -> str:
    if type(given) is not str:
        raise MisfitError("it is not a string: put it in double quotes")
    return given


def _boolean(given: Any, _: SparkType) -> bool:
    if not isinstance(given, bool):
        raise MisfitError("it is not true or false")
    return given


def _whole(given: Any, kind: SparkType) -> int:
    if not isinstance(given, _Number) or not _WHOLE.fullmatch(given):
        raise MisfitError("it is not a whole number")
    limit = 1 << (_BITS[kind.kind] - 1)
    number = int(given)
    if not -limit <= number < limit:
        raise MisfitError(f"it is not from {-limit} to {limit - 1}")
    return number


def _floating(given: Any, kind: SparkType) -> float:
    if given in ("NaN", "Infinity", "-Infinity"):
        return float(given)
    if not isinstance(given, _Number) or not _DECIMAL.fullmatch(given):
        raise MisfitError("it is not a number")
    number = float(given)
    if kind.kind == "float":
        narrow = pa.array([number]).cast(pa.float32())[0].as_py()
        number = number if narrow is None else narrow
    if number in (float("inf"), float("-inf")) or (number == 0 and Decimal(given) != 0):
        raise MisfitError("it is too large or too small")
    return number


def _decimal(given: Any, kind: SparkType) -> Decimal:
    if not isinstance(given, str) or not _DECIMAL.fullmatch(given):
        raise MisfitError("it is not a number")
    with localcontext() as context:
        context.prec = 100
        context.Emax, context.Emin = 99_999, -99_999
        try:
            number = Decimal(given)
            made = number.quantize(Decimal(1).scaleb(-kind.scale))
        except InvalidOperation:
            raise MisfitError(f"it has more than {kind.precision} digits") from None
        if made != number:
            raise MisfitError(f"it has more than {kind.scale} digits after the decimal point")
        if len(made.as_tuple().digits) > kind.precision:
            raise MisfitError(f"it has more than {kind.precision} digits")
        return made


def _iso(pattern: re.Pattern[str], read: Callable[[str], Any], example: str) -> Any:
    def parse(given: Any, _: SparkType) -> Any:
        if type(given) is not str or not pattern.fullmatch(given):
            raise MisfitError(f"it is not like {example}")
        try:
            return read(given)
        except (ValueError, OverflowError) as error:
            raise MisfitError(str(error)) from error

    return parse


def _day(text: str) -> date | int:
    """Return a date; of a year that Python does not have the days that Arrow counts."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return _far(text, "D", 31)


def _time_ntz(text: str) -> datetime | int:
    """Return a time; of a year that Python does not have the microseconds that Arrow counts."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return _far(text, "us", 63)


def _instant(text: str) -> datetime | int:
    """Return a time likewise, in UTC."""
    match: Any = _INSTANT.fullmatch(text)
    zone = match["zone"].replace(":", "").replace("Z", "+00").ljust(5, "0")
    if int(zone[1:3]) > _MOST_HOURS or int(zone[3:5]) > _MOST_MINUTES:
        raise ValueError("there is no such time zone")
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        offset_s = int(zone[1:3]) * 3600 + int(zone[3:5]) * 60
        offset_us = offset_s * (-1_000_000 if zone[0] == "-" else 1_000_000)
        return _far(text.removesuffix(match["zone"]), "us", 63) - offset_us


def _far(text: str, unit: Literal["D", "us"], bits: int) -> int:
    found = np.datetime64(text, unit)
    number = int(found.astype(np.int64))
    if text[: text.index("-", 1)] != str(found.astype("datetime64[Y]")):
        raise ValueError("there is no such time")
    if not -(1 << bits) <= number < 1 << bits:
        raise ValueError("Spark has no such time")
    return number


def _duration(text: str) -> timedelta:
    match: Any = _DURATION.fullmatch(text)
    parts = match.groupdict(default="0")
    return timedelta(
        **{unit: int(parts[unit]) for unit in ("days", "hours", "minutes", "seconds")},
        microseconds=int(parts["fraction"].ljust(6, "0")),
    )


def _struct(given: Any, kind: SparkType) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise MisfitError("it is not an object")
    struct: Any = kind.arrow
    fields = dict(zip(struct.names, kind.types, strict=True))
    # A value of nothing, as deduplication has it, need not be given.
    needed = {name for name, part in fields.items() if part.kind != "void"}
    if needed - given.keys() or given.keys() - fields.keys():
        raise MisfitError(
            f"its fields are {', '.join(given) or 'none'}; expected: {', '.join(fields) or 'none'}"
        )
    return {name: _part(given.get(name), part, f".{name}") for name, part in fields.items()}


def _part(given: Any, kind: SparkType, name: str) -> Any:
    try:
        return value_of(given, kind)
    except MisfitError as error:
        error.note(name, given)
        raise


def _array(given: Any, kind: SparkType) -> list[Any]:
    if not isinstance(given, list):
        raise MisfitError("it is not a list")
    return [_part(one, kind.types[0], f"[{number}]") for number, one in enumerate(given)]


def _map(given: Any, kind: SparkType) -> list[tuple[Any, Any]]:
    if isinstance(given, dict) and kind.types[0].kind == "string":
        given = [[name, value] for name, value in given.items()]
    if not isinstance(given, list):
        raise MisfitError(
            "it is not a list of [key, value] pairs; an object is taken where keys are text"
        )
    if not all(isinstance(pair, list) and len(pair) == len(kind.types) for pair in given):
        raise MisfitError("it is not a list of [key, value] pairs")
    return [
        (_part(pair[0], kind.types[0], "[].key"), _part(pair[1], kind.types[1], "[].value"))
        for pair in given
    ]


def _nothing(given: Any, _: SparkType) -> Any:
    raise MisfitError(f"only null has that type, not {given!r}")


_OF_KIND: dict[str, Callable[[Any, SparkType], Any]] = {
    "string": _text,
    "boolean": _boolean,
    **dict.fromkeys(_BITS, _whole),
    "float": _floating,
    "double": _floating,
    "decimal": _decimal,
    "date": _iso(_DATE, _day, "2024-01-31"),
    "time": _iso(_TIME, time.fromisoformat, "10:00:00"),
    "timestamp": _iso(_INSTANT, _instant, "2024-01-31T10:00:00Z, with its zone"),
    "timestamp_ntz": _iso(_NTZ, _time_ntz, "2024-01-31T10:00:00, without a zone"),
    "day-time interval": _iso(_DURATION, _duration, "1 day, 2:03:04"),
    "binary": _iso(re.compile("([0-9a-fA-F]{2})*"), bytes.fromhex, "00ff: hexadecimal digits"),
    "struct": _struct,
    "variant": lambda given, _: _struct(given, VARIANT_PARTS),
    "array": _array,
    "map": _map,
    "void": _nothing,
}
