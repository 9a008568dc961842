"""Reads a view from Python, as the shim does from the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from rocksdict import AccessType, Options, Rdict, ReadOptions

from statestore.backends.database_rows import all_pieces, all_rows
from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import local_errors
from statestore.codec.rows import rows_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.core.key_groups import KeyGroupSet


_READAHEAD_BYTES = 4 * 1024 * 1024


class View:
    """A version in RocksDB, opened read-only; it stays readable when its directory is removed.

    Args:
        path: Directory of the view.
        owned: Rows of other key groups are passed over; None shows all.
    """

    def __init__(self, path: str, owned: KeyGroupSet | None = None) -> None:
        options = Options(raw_mode=True)
        options.set_max_open_files(-1)
        with local_errors("open the local database", path):
            self._database = Rdict(path, options, access_type=AccessType.read_only())
        self._owned = owned
        self._path = path

    def count(self) -> int:
        """Return how many rows there are, by reading them all.

        Raises:
            StorageError: The local disk failed.
        """
        with local_errors("read the local database", self._path):
            return sum(1 for _ in sst.rows_in(all_rows(self._database), self._owned))

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def get(self, column_family: int, key: bytes) -> tuple[int, bytes] | None:
        """Return key group and value of a key, or None."""
        value = self._database.get(sst.encode_key(column_family, key))
        if value is None:
            return None
        _, _, group, found = sst.split_row(b"\0\0", value)
        return (group, found or b"") if self._shows(group) else None

    def scan(self, column_family: int, prefix: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (key group, key, value) of keys with a prefix, in key order.

        Raises:
            StorageError: The local disk failed.
        """
        first = sst.encode_key(column_family, prefix)
        with local_errors("read the local database", self._path):
            for key, value in all_rows(self._database, first):
                if not key.startswith(first):
                    return
                _, short_key, group, found = sst.split_row(key, value)
                if self._shows(group):
                    yield group, short_key, found or b""

    def _shows(self, group: int) -> bool:
        return self._owned is None or group in self._owned

    def batches(self, column_family: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows, or those of a column family, in order of column family and key.

        Yields:
            Record batches of SCHEMA, puts only.

        Raises:
            StorageError: The local disk failed.
        """
        with local_errors("read the local database", self._path):
            yield from self._batches(column_family)

    def _batches(self, column_family: int | None) -> Iterator[pa.RecordBatch]:
        options = ReadOptions()
        options.set_readahead_size(_READAHEAD_BYTES)
        first = None
        if column_family is not None:
            first = sst.encode_key(column_family, b"")
            options.set_iterate_upper_bound(sst.encode_key(column_family + 1, b""))
        for batch in sst.decode_rows(all_pieces(self._database, first, options)):
            yield batch if self._owned is None else rows_in(batch, self._owned)
