"""Files of keys and rows as people type them."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from .columns import NAN
from .families import keys_table

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.random import Generator

    from .columns import Column
    from .families import Key

FORMS = ("csv", "csv", "csv", "json", "parquet")
"""A form for each draw: most files that people type have no types of their own."""
UNSURE = ("", "null", "NULL", "NA", "nan")
"""Texts that a file of text may mean to be no value."""


def write_keys(
    rng: Generator, path: Path, columns: tuple[Column, ...], keys: list[Key]
) -> tuple[Path, bool]:
    """Write keys to a file of some form.

    Returns:
        The file; and whether it says beyond doubt what it means, so that it must be taken.
    """
    # Who types text has no structs in mind.
    is_nested = any(column.within for column in columns)
    form = "parquet" if is_nested else str(rng.choice(FORMS))
    if form == "csv" and any(value in (None, "") for key in keys for value in key):
        form = "json"  # in CSV the one looks like the other
    path = path.with_suffix(f".{form}")
    names = [f"key.{column.name}" for column in columns]
    if form == "parquet":
        pq.write_table(keys_table(columns, keys), path)
        return path, True
    if form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_MINIMAL)
            writer.writerow(names)
            writer.writerows([[_text(value) for value in key] for key in keys])
    else:
        lines = [dict(zip(names, map(_json, key), strict=True)) for key in keys]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    is_sure = all(
        column.type.is_exact_in_text and _is_sure(value, form)
        for key in keys
        for column, value in zip(columns, key, strict=True)
    )
    return path, is_sure


def _is_sure(value: Any, form: str) -> bool:
    if form == "json":
        return True
    return value is not None and value not in UNSURE and "\n" not in str(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    return "NaN" if value == NAN else str(value)


def _json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return "NaN" if value == NAN else value
    if isinstance(value, tuple):
        return [_json(one) for one in value]
    return _text(value)
