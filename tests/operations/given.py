"""Column families of any of Spark's types, and what keys that are given for one become."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa

from statestore.codec.column_family import ColumnFamily
from statestore.operations.writing.given import read_given

TIME = dt.datetime(2024, 1, 31, 10, 0, 0, 500_000, tzinfo=dt.UTC)


def family_of(key: dict[str, Any], value: dict[str, Any] | None = None) -> ColumnFamily:
    """Return a column family of fields of Spark's types."""
    return ColumnFamily(0, "default", schema_of(key), schema_of(value or {"n": "long"}))


def schema_of(fields: dict[str, Any]) -> str:
    described = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in fields.items()
    ]
    return json.dumps({"type": "struct", "fields": described})


def struct(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(schema_of(fields))
    return found


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def map_of(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def keys(given: Any, kind: Any) -> list[Any]:
    """Return what a column of keys becomes."""
    table = read_given(given, "default", family_of({"k": kind}), has_values=False)
    return [row["k"] for row in table["key"].to_pylist()]


def column(*values: Any, type: Any = None) -> pa.Table:
    return pa.table({"key.k": pa.array(values, type)})
