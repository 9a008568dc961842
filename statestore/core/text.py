"""Text for people: numbers, times, rows in columns."""

from __future__ import annotations

import html
import json
import math
import re
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Shown:
    """Base of objects that a notebook shows as their text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


class Told(Shown, ABC):
    """Base of objects that print as their attributes, a line each, as text and in a notebook."""

    __slots__ = ()

    @abstractmethod
    def fields_for_people(self) -> list[tuple[str, object]]:
        """Return its attributes in words."""

    def __repr__(self) -> str:
        return format_fields(self.fields_for_people())


class Quantity(str):
    """Text of a number with its unit, which a column aligns as a number."""

    __slots__ = ()


def format_bytes(num_bytes: int) -> Quantity:
    """Return a number of bytes for people: `12.3 MB`."""
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return Quantity(f"{num_bytes} B" if unit == "B" else f"{value:.1f} {unit}")


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """Return how many there are of what a noun names: `1 version`, `2,310 versions`."""
    return f"1 {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def to_time(epoch_ms: int) -> datetime:
    """Return milliseconds since the Unix epoch as a time in UTC."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC)


def format_time(epoch_ms: int) -> str:
    """Return milliseconds since the Unix epoch for people, in UTC: `2026-01-31 23:59:59Z`."""
    return to_time(epoch_ms).strftime("%Y-%m-%d %H:%M:%SZ")


def format_duration(ms: float) -> Quantity:
    """Return a time span for people, in two units at most: `350 ms`, `4.1 s`, `2 h 5 min`."""
    if ms < 0:
        return Quantity(f"-{format_duration(-ms)}")
    if ms < 1000:
        return Quantity(f"{ms:.0f} ms")
    if ms < 59_950:
        return Quantity(f"{ms / 1000:.1f} s")
    left = round(ms / 1000)
    units = {"d": 86_400, "h": 3_600, "min": 60, "s": 1}
    parts = []
    for unit, seconds in units.items():
        number, left = divmod(left, seconds)
        parts.append((number, unit))
    first = next(at for at, (number, _) in enumerate(parts) if number)
    return Quantity(
        " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)
    )


_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, or that turn the text around them."""


def escape_controls(text: str) -> str:
    """Return a text that a terminal shows and does not obey: control characters by their code."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escape_lines(text: str) -> str:
    """Return lines as `escape_controls` returns a text."""
    return "\n".join(map(escape_controls, text.split("\n")))


def format_cell(value: object) -> str:
    """Return a value as a cell of a table: `-` for none, `yes` and `no`, numbers as they are.

    Control characters are escaped.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape_controls(str(value))


def to_cell(value: Any) -> object:
    """Return a value as a table or a CSV file shows it: nested as JSON, bytes in hex."""
    if isinstance(value, dict | list | tuple):
        return to_json(value, ensure_ascii=False)
    return value.hex() if isinstance(value, bytes) else value


def to_json(value: Any, *, ensure_ascii: bool = True) -> str:
    """Return a value as JSON; what JSON does not have is text: bytes in hex, NaN and Infinity."""
    return json.dumps(as_json(value), default=str, ensure_ascii=ensure_ascii, allow_nan=False)


def as_json(value: Any) -> Any:
    """Return a value of what JSON has; what it does not have is text, as in `to_json`."""
    if isinstance(value, dict):
        return {name: as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if _is_whole(value):
        return int(value)
    return value.hex() if isinstance(value, bytes) else value


def _is_whole(value: object) -> bool:
    """Return whether a value is a decimal without a fraction, as SQL's sum of numbers is."""
    return isinstance(value, Decimal) and value.as_tuple().exponent == 0


def is_numeric(values: Sequence[object]) -> bool:
    """Return whether a column is to be aligned to the right.

    It has numbers and quantities only; some may lack.
    """
    found = [value for value in values if value is not None]
    return bool(found) and all(
        isinstance(value, int | float | Decimal | Quantity) for value in found
    )


_MOST_PADDED = 240


def format_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows below their columns' names, aligned, without a line break at the end.

    Each row is one line. A cell of more than 240 characters puts its own row out of line only.
    """
    cells = [[format_cell(value) for value in row] for row in (columns, *rows)]
    widths = [
        max((len(row[index]) for row in cells if len(row[index]) <= _MOST_PADDED), default=0)
        for index in range(len(columns))
    ]
    is_right = [is_numeric([row[index] for row in rows]) for index in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_right, strict=True)
        ).rstrip()
        for row in cells
    )


def format_fields(fields: Sequence[tuple[str, object]]) -> str:
    """Return names and values, a line each, without a line break at the end."""
    width = max((len(name) for name, _ in fields), default=0)
    return "\n".join(f"{name:<{width}}  {format_cell(value)}" for name, value in fields)
