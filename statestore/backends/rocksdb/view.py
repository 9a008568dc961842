"""Reading a view from Python, the way the shim reads it from the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rocksdict import AccessType, Options, Rdict

from statestore.backends.rocksdb import sst

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.backends.rocksdb.versions import LocalVersion


class View:
    """A version in RocksDB, opened read-only; it goes on when its directory is removed.

    Args:
        path: Directory of the view.
        partition: State partition of the store.
        num_partitions: Rows of other partitions of so many are passed over; 0 shows all.
    """

    def __init__(self, path: str, partition: int = 0, num_partitions: int = 0) -> None:
        options = Options(raw_mode=True)
        options.set_max_open_files(-1)
        self._database = Rdict(path, options, access_type=AccessType.read_only())
        self._partition = partition
        self._num_partitions = num_partitions

    @classmethod
    def of(cls, local: LocalVersion) -> View:
        """Open the view of a loaded version that has one."""
        trailer = local.head.trailer
        num_partitions = trailer.num_partitions if local.has_foreign_files else 0
        return cls(local.view or "", trailer.store.partition, num_partitions)

    def get(self, column_family: int, key: bytes) -> tuple[int, bytes] | None:
        """Return key group and value of a key, or None."""
        value = self._database.get(sst.encode_key(column_family, key))
        if value is None:
            return None
        _, _, group, found = sst.split_row(b"\0\0", value)
        return group, found or b""

    def scan(self, column_family: int, prefix: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (key group, key, value) of keys with a prefix, in key order."""
        first = sst.encode_key(column_family, prefix)
        items = cast("Iterator[tuple[bytes, bytes]]", self._database.items(from_key=first))
        for key, value in items:
            if not key.startswith(first):
                return
            _, short_key, group, found = sst.split_row(key, value)
            if self._num_partitions == 0 or group % self._num_partitions == self._partition:
                yield group, short_key, found or b""
