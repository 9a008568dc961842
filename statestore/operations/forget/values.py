"""Values of a key, looked for in decoded columns of every type and name, however deep they are.

A value is compared as text, so that the number 7654321 is found as text and in a wider type. Where
a column has the name of the key's, an equal value is the key's. Elsewhere it is only where the
value tells enough: the number 1 is also a count. What `Certainty` says is decided here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import unpack
from statestore.codec.python_values import time_text
from statestore.operations.forget.needles import MIN_BYTES
from statestore.operations.key_set import KeySet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

Certainty = Literal["found", "maybe"]
"""`found`: it is the key. `maybe`: an equal value, which may be something else."""

MIN_DIGITS = 7
"""Of a number that tells enough to be looked for in columns of any name."""
MIN_DIGITS_OF_WORD = 3
"""Of a number that is looked for as a word of a log; shorter ones are in every log."""
_MOST_DIGITS = 76
"""Of a decimal, before its point or behind it."""
_NAMELESS = re.compile(r"field[0-9]+|_[0-9]+|key|value|element|userkey|groupingkey")
"""Names that Spark gives to columns of keys, whatever they were called."""
_FLOAT = re.compile(r"-?([0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|inf)")
_NUMBER = re.compile(rb"-?[0-9]*\.?[0-9]*")
_WEAK: tuple[Callable[[Any], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_time,
    pa.types.is_floating,
    pa.types.is_null,
)
"""Of a key of several columns these say nothing alone: a window is everybody's."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the grouping key, or a field in it.

    Attributes:
        name: Its name, in small letters.
        texts: Its values as text, without nulls; a decimal also with all digits of its scale.
        is_binary: Whether its values are text or bytes.
        is_number: Whether they are whole numbers or decimals.
    """

    name: str
    texts: frozenset[bytes]
    is_binary: bool
    is_number: bool

    @property
    def telling(self) -> frozenset[bytes]:
        """Values that tell enough to be looked for anywhere: four bytes of text, seven digits."""
        return frozenset(text for text in self.texts if self._is_telling(text))

    @property
    def short(self) -> frozenset[bytes]:
        """Its other values, but for the empty one."""
        return self.texts - self.telling - {b""}

    @property
    def short_words(self) -> frozenset[bytes]:
        """Those of them that are looked for as words of a log."""
        return frozenset(
            text
            for text in self.short
            if not _NUMBER.fullmatch(text) or _num_digits(text) >= MIN_DIGITS_OF_WORD
        )

    def _is_telling(self, text: bytes) -> bool:
        if self.is_number or _NUMBER.fullmatch(text):
            return _num_digits(text) >= MIN_DIGITS
        return self.is_binary and len(text) >= MIN_BYTES


def is_nameless(name: str) -> bool:
    """Tell whether Spark gave a column of keys its name, so that any may be meant."""
    return _NAMELESS.fullmatch(name.lower()) is not None


def _num_digits(text: bytes) -> int:
    return sum(48 <= one <= 57 for one in text)


def key_columns(keys: pa.Array[Any]) -> tuple[KeyColumn, ...]:
    """Return the columns of grouping keys that are looked for.

    Args:
        keys: Struct, length n, no nulls.
    """
    found = [(_name(path), column) for path, column in leaves(keys, "key")]
    strong = [one for one in found if not any(is_so(one[1].type) for is_so in _WEAK)]
    return tuple(
        KeyColumn(
            name,
            frozenset(text for text in (*texts_of(column), *_at_full(column)) if text is not None),
            is_binary=pa.types.is_string(column.type) or pa.types.is_binary(column.type),
            is_number=pa.types.is_integer(column.type) or pa.types.is_decimal(column.type),
        )
        for name, column in strong or found
    )


def _at_full(column: Any) -> Iterator[bytes]:
    """Yield decimals as Spark prints them, with every digit of their scale."""
    if pa.types.is_decimal(column.type):
        yield from (format(one, "f").encode() for one in column.to_pylist() if one is not None)


def leaves(column: Any, path: str) -> Iterator[tuple[str, pa.Array[Any]]]:
    """Yield the columns in a column, with paths such as `value.window.end` or `value.seen[]`."""
    kind = column.type
    if pa.types.is_struct(kind):
        for field, part in zip(kind, column.flatten(), strict=True):
            yield from leaves(part, f"{path}.{field.name}")
    elif pa.types.is_map(kind):
        yield from leaves(column.keys, f"{path}{{}}")
        yield from leaves(column.items, f"{path}{{}}")
    elif pa.types.is_list(kind):
        yield from leaves(column.flatten(), f"{path}[]")
    else:
        yield path, column


def is_part_of(path: str, columns: Iterable[str]) -> bool:
    """Return whether a path that `leaves` yields is that of one of these columns, or in one."""
    return any(path.startswith(one) and path[len(one) :][:1] in {"", *".[{"} for one in columns)


def _name(path: str) -> str:
    return path.rpartition(".")[2].rstrip("[]{}").lower()


def texts_of(column: Any) -> list[bytes | None]:
    """Return values as text: bytes as they are, times as ISO 8601 in UTC."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        times = column.cast(pa.int64()).to_pylist()
        return [None if us is None else time_text(us).encode() for us in times]
    if pa.types.is_date32(kind):
        days = column.cast(pa.int32()).to_pylist()
        return [None if day is None else str(np.datetime64(day, "D")).encode() for day in days]
    if pa.types.is_string(kind):
        column = column.cast(pa.binary())
    return [None if value is None else _text(value) for value in column.to_pylist()]


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, float) and value.is_integer() and str(value) != "-0.0":
        value = int(value)
    if isinstance(value, Decimal):
        return _decimal_text(value)
    return str(value).encode()


def _decimal_text(value: Decimal) -> bytes:
    text = format(value, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text).encode()


class Values:
    """Values that are looked for, as text, in columns of any type."""

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._texts = frozenset(texts)
        self._tests: dict[Any, Callable[[Any], npt.NDArray[np.bool_]]] = {}

    def is_in(self, column: Any) -> bool:
        """Return whether a column of no struct, list or map has one of them."""
        if not self._texts or not len(column) or column.null_count == len(column):
            return False
        test = self._tests.get(column.type)
        if test is None:
            test = self._tests[column.type] = self._test(column.type)
        found = test(column)
        return bool((found & ~unpack(column.is_null())).any() if column.null_count else found.any())

    def _test(self, kind: Any) -> Callable[[Any], npt.NDArray[np.bool_]]:
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            return self._of_bytes(self._texts, pa.binary())
        if pa.types.is_decimal(kind):
            exact = (_as_arrow_writes(text, kind) for text in self._texts)
            return self._of_bytes({one for one in exact if one is not None}, pa.string())
        for is_so, parse, dtype in _PARSED:
            if is_so(kind):
                return _of_numbers(
                    [one for text in self._texts if (one := _try(parse, text)) is not None], dtype
                )
        others = self._texts
        return lambda column: np.array([text in others for text in texts_of(column)], bool)

    @staticmethod
    def _of_bytes(texts: Iterable[bytes], through: Any) -> Callable[[Any], npt.NDArray[np.bool_]]:
        keys = KeySet([pa.array(sorted(texts), pa.binary())])
        return lambda column: keys.has(column.cast(through).cast(pa.binary()))


def _of_numbers(numbers: list[Any], dtype: str) -> Callable[[Any], npt.NDArray[np.bool_]]:
    known = np.sort(np.array(numbers, dtype))
    through = {"i4": pa.int32(), "i8": pa.int64(), "f8": pa.float64()}[dtype]

    def test(column: Any) -> npt.NDArray[np.bool_]:
        given = column.cast(through).fill_null(0)
        values = np.asarray(given.to_numpy(zero_copy_only=False))
        if not len(known):
            return np.zeros(len(values), bool)
        places = np.minimum(np.searchsorted(known, values), len(known) - 1)
        return np.asarray(known[places] == values)

    return test


def _try(parse: Callable[[str], Any], text: bytes) -> Any:
    try:
        return parse(text.decode())
    except (ValueError, OverflowError):
        return None


def _integer(text: str) -> int | None:
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 and str(number) == text else None


def _days(text: str) -> int | None:
    day = np.datetime64(text, "D")  # which takes other words as well
    days = int(day.astype(np.int64))
    return days if -(1 << 31) <= days < 1 << 31 and str(day) == text else None


def _micros(text: str) -> int | None:
    if "T" not in text:
        return None
    return int(np.datetime64(text, "us").astype(np.int64))


def _as_arrow_writes(text: bytes, kind: Any) -> bytes | None:
    """Return the text that a number has in a column of decimals, None where none of them is it."""
    try:
        number = Decimal(text.decode())
        # All of its digits may be more than the memory holds; and names such as 0e12 are no zero.
        if abs(number.adjusted()) > _MOST_DIGITS or not (number or text.strip(b"-0.") == b""):
            return None
        number = Decimal(_decimal_text(number).decode())
        written = pa.array([number], kind).cast(pa.string())[0].as_py()
    except (ArithmeticError, ValueError):
        return None
    return str(written).encode()


def _float(text: str) -> float | None:
    """Return a number, None of a name that is hex digits, such as 0e12: it is neither 0 nor inf."""
    match = _FLOAT.fullmatch(text)
    if match is None:
        return None
    number = float(text)
    return None if match[3] and (number == 0 or math.isinf(number)) else number


_PARSED: tuple[tuple[Callable[[Any], bool], Callable[[str], Any], str], ...] = (
    (pa.types.is_integer, _integer, "i8"),
    (pa.types.is_floating, _float, "f8"),
    (pa.types.is_date, _days, "i4"),
    (pa.types.is_timestamp, _micros, "i8"),
    (pa.types.is_boolean, {"true": 1, "false": 0}.get, "i8"),
)


class ValueSearch:
    """Looks for the columns of keys in decoded columns.

    Args:
        columns: Those of the keys.
    """

    def __init__(self, columns: Iterable[KeyColumn]) -> None:
        self._columns = tuple(columns)
        self._known: dict[tuple[bool, ...], tuple[Values, Values]] = {}
        """By which columns of the key a column is: of names there may be very many."""

    def find(
        self, column: Any, path: str, skipped: Iterable[str] = (), *, is_other: bool = False
    ) -> Iterator[tuple[str, Certainty]]:
        """Yield the paths in a column where a value is, and how certain that is.

        Args:
            column: Decoded keys or values.
            path: `key` or `value`.
            skipped: Paths of columns that are compared as a whole by somebody else.
            is_other: Whether these are keys of another operator, whose columns may have lost their
                names.
        """
        for at, part in leaves(column, path):
            if is_part_of(at, skipped):
                continue
            sure, equal = self._values(_name(at), is_other)
            if sure.is_in(part):
                yield at, "found"
            elif equal.is_in(part):
                yield at, "maybe"

    def _values(self, name: str, is_other: bool) -> tuple[Values, Values]:
        are_same = tuple(
            is_other if is_nameless(name) or is_nameless(of.name) else name == of.name
            for of in self._columns
        )
        if are_same not in self._known:
            sure: set[bytes] = set()
            every: set[bytes] = set()
            for of, is_same in zip(self._columns, are_same, strict=True):
                sure |= of.texts if is_same else of.telling
                every |= of.texts
            self._known[are_same] = Values(sure), Values(every - sure)
        return self._known[are_same]
