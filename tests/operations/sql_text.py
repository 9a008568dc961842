"""Names, values and rows as text, in the words of SQL."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa


def quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def literal(value: Any) -> str:
    """Return a value in SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool | int | Decimal):
        return str(value)
    if isinstance(value, float):
        return f"'{value}'::DOUBLE"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.datetime):
        kind = "TIMESTAMP" if value.tzinfo is None else "TIMESTAMPTZ"
        return f"'{value.isoformat(' ')}'::{kind}"
    if isinstance(value, dt.date):
        return f"'{value}'::DATE"
    if isinstance(value, dt.time):
        return f"'{value}'::TIME_NS"
    us = value // dt.timedelta(microseconds=1)
    return f"to_microseconds({us})"


def text(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))
