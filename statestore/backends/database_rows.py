"""Rows of a RocksDB database, many at a time.

They are read in pieces that stay in the CPU's cache until they are copied into columns: a list of
all rows of a batch takes twice as long to make and to copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias, cast

import pyarrow as pa

if TYPE_CHECKING:
    from rocksdict import Rdict, ReadOptions

Rows: TypeAlias = Sequence[tuple[bytes, bytes]]

_FIRST_ROWS = 16
MOST_ROWS = 1_024
_MOST_BYTES = 1024 * 1024
_SAMPLED = 16


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
    """Yield what `all_rows` does, some rows at a time: few first, for whoever wants no more.

    Raises:
        Exception: RocksDB's, where rows cannot be read.
    """
    piece: Rows = ()
    num_rows = _FIRST_ROWS
    rows = cast("Iterator[tuple[bytes, bytes]]", database.items(from_key=first, read_opt=options))
    while some := list(islice(rows, num_rows)):
        piece = some
        yield piece
        # About: large rows are fewer at a time.
        row_bytes = sum(len(value) for _, value in piece[::_SAMPLED]) * _SAMPLED // len(piece)
        num_rows = max(1, min(2 * num_rows, MOST_ROWS, _MOST_BYTES // max(1, row_bytes)))
    # `items` takes a block that cannot be read for the end: whoever reads on is told.
    rest = database.iter(options)
    if piece:
        rest.seek(piece[-1][0])
        rest.next()
    elif first is not None:
        rest.seek(first)
    else:
        rest.seek_to_first()
    rest.status()


def to_columns(keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    """Return keys and values of rows as two binary columns."""
    columns = [pa.array(column, pa.binary()) for column in (keys, values)]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])
