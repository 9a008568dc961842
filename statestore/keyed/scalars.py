"""Scalars on their way into a state variable: the value itself, or a refusal.

Spark does not look at what it is handed: a value of another type becomes NULL, an integer out of
range wraps around, NULL in a column that has none becomes 0. So every value is looked at here.
"""

from __future__ import annotations

import calendar
import math
import re
import struct
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, NamedTuple

Convert = Callable[[Any], Any]
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_LEFT_OUT = (date(1582, 10, 5), date(1582, 10, 14))
"""Days that are of no calendar of java.sql, through which Spark's state goes: it moves them."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


class MisfitError(Exception):
    """A value does not fit its column.

    Args:
        expected: The type that the column takes.
        value: The given value, of which only the type is told: values are not for logs.
        why: What is wrong with a value of the right type.

    Attributes:
        at: Where in the whole value: names of fields and numbers of elements; "" is all of it.
    """

    def __init__(self, expected: str, value: Any, why: str = "") -> None:
        super().__init__(expected)
        self.expected = expected
        self.found = "None" if value is None else f"{type(value).__name__} {why}".strip()
        self.at = ""

    def enter(self, part: str) -> None:
        """Go on to the value that has what did not fit in a part of it."""
        self.at = f"{part}{'' if self.at[:1] in ('', '[', '.') else '.'}{self.at}"


class Scalar(NamedTuple):
    """A scalar type of Spark.

    Attributes:
        kind: The type in Python.
        to_row: Returns what Spark is handed; raises MisfitError. Reading it back is no change.
        from_row: Makes a value of that, or of what Spark returns; None where it is the value.
        are_kept: Whether to_row returns all of several values as they are: found by one look, for
            long arrays and maps. None where there is no such look.
    """

    kind: type
    to_row: Convert
    from_row: Convert | None = None
    are_kept: Callable[[Collection[Any]], bool] | None = None


def scalar_of(name: str) -> Scalar | None:
    """Return the type that the JSON of Spark's schemas names so; None where Spark keeps none."""
    if name in _BITS:
        return Scalar(int, _integer(_BITS[name]), None, _are_integers(_BITS[name]))
    if decimal := _DECIMAL.fullmatch(name):
        return Scalar(Decimal, _decimal(*map(int, decimal.groups())))
    return _OTHERS.get(name.partition(" collate ")[0])


def as_key(convert: Convert) -> Convert:
    """Return the conversion of a floating-point number that is a key: -0.0 is 0.0, NaN is NaN."""

    def to_row(value: Any) -> Any:
        number = convert(value)
        return number + 0.0 if number == number else math.nan

    return to_row


def _integer(num_bits: int) -> Convert:
    limit = 1 << num_bits - 1

    def to_row(value: Any) -> int:
        if type(value) is not int:
            if not isinstance(value, int) or isinstance(value, bool):
                raise MisfitError("int", value)
            value = int(value)
        if not -limit <= value < limit:
            raise MisfitError(f"int of {num_bits} bits", value, "out of range")
        return value  # type: ignore[no-any-return]

    return to_row


def _are_integers(num_bits: int) -> Callable[[Collection[Any]], bool]:
    limit = 1 << num_bits - 1
    return lambda values: (
        set(map(type, values)) == {int} and -limit <= min(values) and max(values) < limit
    )


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise MisfitError("float", value)
    try:
        number = float(value)
    except OverflowError as error:
        raise MisfitError("float", value, "out of range") from error
    if number != value and number == number:
        raise MisfitError("float", value, "that no float is equal to")
    return number


def _float(value: Any) -> float:
    """Round to 4 bytes, as the column does."""
    number = _double(value)
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError as error:
        raise MisfitError("float of 4 bytes", value, "out of range") from error
    if rounded != number and not isinstance(value, float):
        raise MisfitError("float of 4 bytes", value, "that none is equal to")
    return rounded


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise MisfitError("bool", value)
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise MisfitError("str", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise MisfitError("str", value, "with half of a surrogate pair") from error
    return value if type(value) is str else str.__str__(value)


def _are_ascii(values: Collection[Any]) -> bool:
    return set(map(type, values)) == {str} and all(map(str.isascii, values))


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise MisfitError("bytes", value)
    return bytes(value)


def _date(value: Any) -> date:
    if type(value) is not date:  # a datetime is one, too, and would lose its time
        raise MisfitError("date", value)
    if _LEFT_OUT[0] <= value <= _LEFT_OUT[1]:
        raise MisfitError("date", value, "of 5 to 14 October 1582")
    return value


def timestamp(value: Any) -> datetime:
    """Return a time in UTC; without a zone it is in the worker's. Raises MisfitError."""
    if type(value) is not datetime:
        raise MisfitError("datetime", value)
    try:
        in_utc = value.astimezone(UTC)
        if in_utc.year in (1, 9999):  # as PySpark will read it, in the worker's zone
            datetime.fromtimestamp(calendar.timegm(in_utc.utctimetuple()))  # noqa: DTZ006
    except (OverflowError, ValueError) as error:
        raise MisfitError("datetime", value, "out of the range that is read back") from error
    if in_utc.year == 1582 and _is_left_out(in_utc):
        raise MisfitError("datetime", value, "of 4 to 15 October 1582")
    return in_utc


def _is_left_out(in_utc: datetime) -> bool:
    """Tell whether a JVM of some time zone may move the time to another day."""
    first, last = (day.toordinal() for day in _LEFT_OUT)
    return first - 1 <= in_utc.toordinal() <= last + 1


def _timestamp_ntz(value: Any) -> datetime:
    if type(value) is not datetime:
        raise MisfitError("datetime", value)
    if value.tzinfo is not None:
        raise MisfitError("datetime without a zone", value, "with a zone")
    return value.replace(fold=0) if value.fold else value


def _decimal(precision: int, scale: int) -> Convert:
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit, zero = Decimal(1).scaleb(-scale), Decimal(0).scaleb(-scale)
    expected = f"Decimal of {precision} digits, {scale} of them after the point"

    def to_row(value: Any) -> Decimal:
        if not isinstance(value, Decimal):
            raise MisfitError(expected, value)
        if not value.is_finite():
            raise MisfitError(expected, value, "that is no number")
        try:
            return value.quantize(unit, context=context) or zero  # which has no sign
        except (Inexact, InvalidOperation) as error:
            raise MisfitError(expected, value, "of more digits") from error

    return to_row


def _in_utc(value: datetime) -> datetime:
    """Spark gives timestamps without a zone, in the worker's."""
    return value.astimezone(UTC)


_OTHERS = {
    "boolean": Scalar(bool, _boolean),
    "float": Scalar(float, _float),
    "double": Scalar(float, _double, None, lambda values: set(map(type, values)) == {float}),
    "string": Scalar(str, _string, None, _are_ascii),
    "binary": Scalar(bytes, _binary, bytes),
    "date": Scalar(date, _date),
    "timestamp": Scalar(datetime, timestamp, _in_utc),
    "timestamp_ntz": Scalar(datetime, _timestamp_ntz),
}
