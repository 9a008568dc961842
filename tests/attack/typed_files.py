"""Files of keys and rows as people type them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from .columns import NAN
from .families import keys_table

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from numpy.random import Generator

    from .columns import Column
    from .families import Family, Key, Rows
    from .steps import Expected

FORMS = ("csv", "csv", "csv", "json", "parquet")
"""A form for each draw: most files that people type have no types of their own."""
BOM = b"\xef\xbb\xbf"
"""What programs of Windows begin a text with."""


@dataclass(frozen=True)
class Typed:
    """A file that was typed.

    Attributes:
        path: The file.
        is_sure: Whether it says beyond doubt what it means, so that it must be taken.
        is_wrong: Whether it must be refused.
    """

    path: Path
    is_sure: bool
    is_wrong: bool = False

    def expected(self, others: Expected) -> Expected:
        """Return what is expected of a step that it is given to, and other things."""
        return {
            "must_be_refused": others["must_be_refused"] or self.is_wrong,
            "may_be_refused": others["may_be_refused"] or not self.is_sure,
        }


def write_keys(rng: Generator, path: Path, columns: tuple[Column, ...], keys: list[Key]) -> Typed:
    """Write keys to a file of some form."""
    named = [(f"key.{column.name}", column) for column in columns]
    return _write(rng, path, named, keys, keys_table(columns, keys), is_once=False)


def write_rows(rng: Generator, path: Path, family: Family, rows: Rows) -> Typed:
    """Write rows of a family to a file of some form."""
    named = [
        (f"{side}.{column.name}", column)
        for side, columns in (("key", family.keys), ("value", family.values))
        for column in columns
    ]
    lines = [
        (*key, *value)
        for key, values in rows.items()
        for value in ((values,) if family.kind == "value" else values)
    ]
    return _write(rng, path, named, lines, family.table(rows), is_once=family.kind == "value")


def _write(
    rng: Generator,
    path: Path,
    named: list[tuple[str, Column]],
    rows: list[Key],
    table: pa.Table,
    *,
    is_once: bool,
) -> Typed:
    # Who types text has no structs in mind.
    is_nested = any(column.within for _, column in named)
    form = "parquet" if is_nested else str(rng.choice(FORMS))
    texts = [at for at, (_, column) in enumerate(named) if column.type_name == "string"]
    nulls = any(value is None for row in rows for value in row)
    is_unclear = any(row[at] in (None, "") for row in rows for at in texts)
    if form == "csv" and (is_unclear or (nulls and len(named) == 1)):
        form = "json"  # in CSV the one looks like the other, and a row of nothing like no row
    path = path.with_suffix(f".{form}")
    if form == "parquet":
        pq.write_table(table, path)
        return Typed(path, is_sure=True)
    is_sure = all(column.type.is_exact_in_text for _, column in named)
    order = rng.permutation(len(named))
    names = [named[at][0] for at in order]
    cells = [[(_text if form == "csv" else _json)(row[at]) for at in order] for row in rows]
    slip = str(rng.choice(SLIPS))
    at = int(rng.integers(len(names)))
    column = named[order[at]][1]
    if slip == "unknown column":
        names, cells = [*names, "key.nobody"], [[*row, "1"] for row in cells]
    elif slip == "no column" and len(names) > 1:
        names, cells = _without(names, at), [_without(row, at) for row in cells]
    elif slip == "twice":
        cells = [*cells, cells[0]]
        is_sure = is_sure and is_once
    elif slip == "no value" and column.type_name in NUMBERS:
        cells[0][at] = "nought"
    else:
        slip = ""
    is_wrong = bool(slip) and (slip != "twice" or is_once)
    text = _json_lines(rng, names, cells)
    if form == "csv":
        text = _csv(rng, names, cells, has_nulls=nulls)
    if rng.random() < 0.3 and not any("\n" in str(cell) for row in cells for cell in row):
        text = text.replace("\n", "\r\n")
    path.write_bytes((BOM if rng.random() < 0.3 else b"") + text.encode())
    return Typed(path, is_sure, is_wrong)


SLIPS = (*[""] * 12, "unknown column", "no column", "twice", "no value")
"""What goes wrong when a file is typed; most times nothing."""
NUMBERS = ("byte", "short", "int", "long", "float", "double", "decimal", "large")


def _without(items: list[Any], at: int) -> list[Any]:
    return items[:at] + items[at + 1 :]


def _csv(rng: Generator, names: list[str], cells: list[list[str]], *, has_nulls: bool) -> str:
    made = io.StringIO()
    is_minimal = has_nulls or rng.random() < 0.5
    writer = csv.writer(
        made, quoting=csv.QUOTE_MINIMAL if is_minimal else csv.QUOTE_ALL, lineterminator="\n"
    )
    writer.writerow(names)
    for row in cells:
        writer.writerow(row)
        # In a file of one column it may be a null, and is refused.
        made.write("\n" * int(rng.random() < 0.1 and len(names) > 1))
    return made.getvalue()


def _json_lines(rng: Generator, names: list[str], cells: list[list[Any]]) -> str:
    has_structs = bool(rng.random() < 0.4)
    lines = []
    for row in cells:
        line = dict(zip(names, row, strict=True))
        if has_structs:
            structs: dict[str, Any] = {}
            for name, value in line.items():
                side, _, field = name.partition(".")
                structs.setdefault(side, {})[field] = value
            line = structs
        lines.append(json.dumps(line, ensure_ascii=bool(rng.random() < 0.5)))
        lines += [" "] * int(rng.random() < 0.1)
    return "\n".join(lines) + "\n" * int(rng.random() < 0.8)


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
