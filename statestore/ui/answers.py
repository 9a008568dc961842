"""Answers to the SQL and the keys of a page: few rows, as text, in bounded time and memory."""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from statestore.core.digest import digest_of
from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.core.text import format_count, format_time, to_cell

if TYPE_CHECKING:
    import pyarrow as pa

    from statestore.api.checkpoint import Checkpoint
    from statestore.core.clock import Clock

MOST_ROWS = 1000
MOST_SECONDS = 20
MEMORY_LIMIT = "256MB"
LIMITS = f"At most {MOST_ROWS:,} rows, {MOST_SECONDS} seconds and {MEMORY_LIMIT} of memory"
_MOST_CHARACTERS = 2_000
"""Of one cell."""
_MOST_TEXT = 4_000_000
"""Characters of all cells of an answer."""
_MOST_VERSIONS = 50
_MOST_LINES = MOST_ROWS // _MOST_VERSIONS
"""Of a key in one version."""


class _Found(NamedTuple):
    """What a version has of a key: the lines that are shown, and a digest of all its rows."""

    version: int
    committed_ms: int | None
    lines: list[list[str | None]]
    digest: str


def run_sql(checkpoint: Checkpoint, sql: str) -> dict[str, Any]:
    """Run SQL of a page.

    Returns:
        Columns; rows, each a text or None a column; and about them a sentence.

    Raises:
        StateStoreError: As `Checkpoint.sql`; it takes too long, or too much memory.
    """
    # Arrow takes long to import.
    from statestore.codec.python_values import to_pylist

    found = checkpoint.sql(sql, memory_limit=MEMORY_LIMIT, timeout=MOST_SECONDS)
    rows: list[list[str | None]] = []
    left = _MOST_TEXT
    columns: list[str] = []
    is_cut = False
    with closing(found.read_batches()) as batches:
        for batch in batches:
            columns = batch.schema.names
            for row in to_pylist(batch):
                if len(rows) == MOST_ROWS or left <= 0:
                    is_cut = True
                    break
                cells = [_shown(value) for value in row.values()]
                left -= sum(map(len, filter(None, cells)))
                rows.append(cells)
            if is_cut:
                break
    about = format_count(len(rows), "row")
    about = f"The first {about}; there are more." if is_cut else f"{about}."
    return {"columns": columns, "rows": rows, "about": about}


def follow_key(checkpoint: Checkpoint, rows: str, key: str, clock: Clock) -> dict[str, Any]:
    """Look a key up in the versions that there are, newest first.

    Args:
        checkpoint: The checkpoint.
        rows: Address of the rows, empty for the only ones.
        key: The text of the first column of the key; or a JSON list of its columns.
        clock: Says when it has taken long enough.

    Returns:
        As `run_sql`: a line a row and version, the first rows of many; versions in which no row
        differs, shown or not, are one.

    Raises:
        StateStoreError: As `Rows.find`, of the newest version.
    """
    from statestore.codec.python_values import to_pylist

    wanted = _key_of(key)
    until_ms = clock.elapsed_ms() + 1000 * MOST_SECONDS
    found: list[_Found] = []
    columns: list[str] = []
    looked = 0
    versions = checkpoint.versions(limit=_MOST_VERSIONS)
    is_over = False
    for version in versions:
        if version.kind == "expired":
            continue
        if looked and clock.elapsed_ms() > until_ms:
            is_over = True
            break
        try:
            table = checkpoint.rows(rows or None, version=version.version).find(wanted)
        except StateStoreError as error:
            if not looked:
                raise
            lines: list[list[str | None]] = [[str(error), None]]
            digest = str(error)
        else:
            columns = ["key", "value"]
            lines = [
                [_shown(row["key"]), _shown(row["value"])]
                for row in to_pylist(table.slice(0, _MOST_LINES))
            ]
            if (more := table.num_rows - len(lines)) > 0:
                lines.append([f"… and {format_count(more, 'row')} more", None])
            digest = _digest(table)
        looked += 1
        found.append(_Found(version.version, version.committed_ms, lines, digest))
    about = f"{format_count(looked, 'version')} looked at, of those that can be loaded."
    if is_over:
        about += f" The rest was left after {MOST_SECONDS} seconds."
    return {
        "columns": ["versions", "from", *columns],
        "rows": _folded(found, len(columns)),
        "about": about,
    }


def _digest(table: pa.Table) -> str:
    """Return a digest of all rows, to the bit: NaN is the same as NaN."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return digest_of(sink.getvalue().to_pybytes())


def _folded(found: list[_Found], num_columns: int) -> list[list[str | None]]:
    """Return the lines of versions, those of neighbours with the same rows once."""
    folded: list[list[str | None]] = []
    for _, same in itertools.groupby(found, lambda one: one.digest):
        versions = list(same)
        newest, oldest = versions[0], versions[-1]
        span = str(newest.version)
        if newest.version != oldest.version:
            span = f"{oldest.version} to {newest.version}"
        since = None if oldest.committed_ms is None else format_time(oldest.committed_ms)
        lines = newest.lines or [["no row", *[None] * (num_columns - 1)]]
        folded += [[span, since, *line] for line in lines]
    return folded


def _key_of(text: str) -> list[Any]:
    if not text.startswith("["):
        return [text]
    try:
        found = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, ArithmeticError) as error:
        raise InvalidArgumentError(
            "the key begins with [ and is not a JSON list of its columns",
            given=text[:100],
            to_fix='write ["a", 3], or the text of a key of one column',
        ) from error
    return list(found)


def _shown(value: Any) -> str | None:
    """Return a value as a cell shows it: nested as JSON, bytes in hex, long ones cut."""
    if value is None:
        return None
    text = str(to_cell(value))
    more = len(text) - _MOST_CHARACTERS
    return f"{text[:_MOST_CHARACTERS]}… and {more:,} characters more" if more > 0 else text
