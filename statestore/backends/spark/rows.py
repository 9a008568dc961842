"""The rows of a version of Spark's own state stores, in order of column family and key.

Rows are turned into what this package's own backends keep: keys as their encoder makes them, values
as UnsafeRow, several values of a key each with its length before it.

    key           column family u16 LE, where the store has several | 0, of a key without prefix |
                  key
    value         0 | UnsafeRow; of several values i32 LE length | 0 | UnsafeRow, again and again,
                  a delimiter between
    row checksum  CRC32C u32 LE of key and value | length i32 LE | value
                  CRC32C u32 LE of the key | key, where a key is removed

The HDFS-backed provider has no column families, and neither the 0 nor a length. Source: Spark's
RocksDBStateEncoder and KeyValueChecksumEncoder, releases 4.0 to 4.3.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import pyarrow as pa

from statestore.backends.spark.snapshot import FAMILY_BYTES, check_size, open_snapshot
from statestore.codec.byte_ranges import ByteRanges
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.rows import DELETE, MAX_BLOCK_BYTES, MERGE, PUT, SCHEMA, from_numpy
from statestore.core.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from statestore.backends.spark.files import Chain, StoreFiles
    from statestore.backends.spark.records import Record
    from statestore.backends.spark.snapshot import Database, Snapshot
    from statestore.codec.column_family import ColumnFamily

_BATCH_ROWS = 16_384
_ENCODING = b"\0"
_CRC_BYTES = 4
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class RowForm:
    """How a query's provider writes rows, beside what the column family says.

    Attributes:
        is_rocksdb: As the RocksDB provider does.
        has_families: Whether the store has column families.
        has_checksums: Whether every row has a checksum.
        delimiter: What stands between values that were merged.
    """

    is_rocksdb: bool
    has_families: bool
    has_checksums: bool
    delimiter: bytes


@dataclass(frozen=True, slots=True)
class SparkVersion:
    """A version of a store, and how to read it.

    Attributes:
        files: Of the store.
        chain: What the version is made of.
        snapshot: The snapshot of the RocksDB provider that it begins with.
        form: How rows are written.
        families: Column families, with the IDs that this state partition has them by.
        max_parallelism: Number of key groups; Spark has none, and rows are given theirs here.
    """

    files: StoreFiles
    chain: Chain
    snapshot: Snapshot | None
    form: RowForm
    families: tuple[ColumnFamily, ...]
    max_parallelism: int

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file of the version, by path."""
        ssts = () if self.snapshot is None else self.snapshot.ssts
        return {path: self.files.size(path) for path in self.chain.paths} | {
            sst.path: sst.size for sst in ssts
        }

    def check_files(self) -> None:
        """Check that SSTs are there and as large as the snapshot says, as they were listed.

        Raises:
            NotFoundError: One is not there (kind file-not-found).
            CorruptionError: One is of another size.
        """
        for sst in () if self.snapshot is None else self.snapshot.ssts:
            check_size(sst, self.files.size(sst.path))

    def batches(self, scratch_directory: str, name: str | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        What snapshots of the RocksDB provider hold passes by; all other files are held in memory,
        for the HDFS-backed provider that is the state partition.

        Args:
            scratch_directory: Local directory for RocksDB's files.
            name: Of the only column family wanted, None for all.

        Yields:
            Record batches of SCHEMA, puts only, each key once.

        Raises:
            NotFoundError, CorruptionError, IncompatibleError, InvalidArgumentError, StorageError:
                A file of the version cannot be read.
        """
        wanted = [family for family in self.families if name in (None, family.name)]
        if not wanted:
            return
        changes = _Changes(self.form.delimiter)
        for path in self.chain.changes if self.snapshot else self.chain.paths:
            changes.add(self._records(path))
        with ExitStack() as stack:
            database = None
            if self.snapshot is not None:
                directory = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="spark-", dir=scratch_directory)
                )
                database = stack.enter_context(
                    open_snapshot(self.files, self.snapshot, directory, self.form.delimiter)
                )
            for family in sorted(wanted, key=lambda found: found.id):
                rows = changes.upon(database, self._prefix(family))
                while some := _some(rows):
                    yield self._batch(some, family)

    def _records(self, path: str) -> Iterator[Record]:
        """Yield the records of a file, removed keys without their checksum, which is checked."""
        for kind, key, value in self.files.records(path):
            if kind != DELETE or not self.form.has_checksums:
                yield kind, key, value
                continue
            removed = key[_CRC_BYTES:]
            try:
                _check(removed, b"", key[:_CRC_BYTES])
            except CorruptionError as error:
                error.fields.update(file=path)
                raise
            yield kind, removed, value

    def _prefix(self, family: ColumnFamily) -> bytes:
        return family.id.to_bytes(FAMILY_BYTES, "little") if self.form.has_families else b""

    def _batch(self, rows: Sequence[tuple[bytes, bytes]], family: ColumnFamily) -> pa.RecordBatch:
        try:
            columns = [self._keys(rows, family), self._values(rows, family)]
            store = self.files.store.name
            groups = compute_key_groups(columns[0], store, family, self.max_parallelism)
        except CorruptionError as error:
            error.fields.update(file=self.chain.paths[-1], column_family=family.name)
            raise
        constants = (
            from_numpy(np.full(len(rows), family.id, np.uint16), pa.uint16()),
            from_numpy(np.full(len(rows), PUT, np.uint8), pa.uint8()),
        )
        made = [from_numpy(groups, pa.uint16()), *constants, *columns]
        return pa.RecordBatch.from_arrays(made, schema=SCHEMA)

    def _keys(
        self, rows: Sequence[tuple[bytes, bytes]], family: ColumnFamily
    ) -> pa.Array[pa.BinaryScalar]:
        skipped = self._prefix(family)
        if self.form.is_rocksdb and family.encoder == "no-prefix":
            skipped += _ENCODING
        keys = [key for key, _ in rows]
        if not all(key.startswith(skipped) for key in keys):
            raise _not_encoded(skipped)
        return _joined(keys).skip(len(skipped)).to_arrow(pa.binary())

    def _values(
        self, rows: Sequence[tuple[bytes, bytes]], family: ColumnFamily
    ) -> pa.Array[pa.BinaryScalar]:
        if family.multi_values:
            return pa.array([self._several(*row) for row in rows], pa.binary())
        values = (
            [self._checked(*row) for row in rows]
            if self.form.has_checksums
            else [value for _, value in rows]
        )
        if not self.form.is_rocksdb:
            return _joined(values).to_arrow(pa.binary())
        if not all(value.startswith(_ENCODING) for value in values):
            raise _not_encoded(_ENCODING)
        return _joined(values).skip(len(_ENCODING)).to_arrow(pa.binary())

    def _checked(self, key: bytes, value: bytes) -> bytes:
        """Return a value without its checksum, which is checked."""
        checksum, found = value[:_CRC_BYTES], value[_CRC_BYTES:]
        if self.form.is_rocksdb:
            found, end = _part(value, _CRC_BYTES)
            if end != len(value):
                raise _not_encoded(checksum)
        _check(key, found, checksum)
        return found

    def _several(self, key: bytes, value: bytes) -> bytes:
        """Return the rows of a value, each with its length before it as this package has it."""
        found: list[bytes] = []
        position = 0
        while position < len(value):
            if found and self.form.delimiter:
                position += len(self.form.delimiter)
            if self.form.has_checksums:
                checksum = value[position : position + _CRC_BYTES]
                position += _CRC_BYTES
                part, position = _part(value, position)
                _check(key, part, checksum)
                row, end = _part(part, 0)
                if end != len(part):
                    raise _not_encoded(part[:_LENGTH_BYTES])
            else:
                row, position = _part(value, position)
            if not row.startswith(_ENCODING):
                raise _not_encoded(_ENCODING)
            row = row[len(_ENCODING) :]
            found += [len(row).to_bytes(_LENGTH_BYTES), row]
        return b"".join(found)


def _part(value: bytes, position: int) -> tuple[bytes, int]:
    """Return the part of a value that has its length before it, and where it ends."""
    start = position + _LENGTH_BYTES
    end = start + int.from_bytes(value[position:start], "little")
    if not start <= end <= len(value):
        raise _not_encoded(value[position:start])
    return value[start:end], end


def _check(key: bytes, value: bytes, checksum: bytes) -> None:
    found = google_crc32c.extend(google_crc32c.value(key), value)
    expected = int.from_bytes(checksum, "little")
    if found != expected:
        raise CorruptionError(
            "a row does not match its checksum",
            kind="checksum-mismatch",
            expected=expected,
            found=found,
            to_fix="put the file back from a copy; or read an older version",
        )


def _not_encoded(expected: bytes) -> CorruptionError:
    return CorruptionError(
        "a row is not encoded as the checkpoint says",
        expected=expected.hex(),
        to_fix="put the file back from a copy; or read an older version",
    )


class _Changes:
    """What deltas or changelogs do together: of each key the last put or delete, and merges."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._of_keys: dict[bytes, tuple[int, bytes]] = {}

    def add(self, records: Iterable[Record]) -> None:
        for kind, key, value in records:
            if kind == MERGE:
                before = self._of_keys.get(key, (MERGE, b""))
                joined = self._joined(before[1], value or b"")
                self._of_keys[key] = (MERGE if before[0] == MERGE else PUT, joined)
            else:
                self._of_keys[key] = (kind, value or b"")

    def _joined(self, first: bytes, second: bytes) -> bytes:
        return first + self._delimiter + second if first else second

    def upon(self, database: Database | None, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows that they make of those of a database, of keys with a prefix, ascending.

        Values of the HDFS-backed provider may be empty; those that are merged never are.
        """
        keys = iter(sorted(key for key in self._of_keys if key.startswith(prefix)))
        key = next(keys, None)
        for held, value in database.rows(prefix) if database is not None else ():
            while key is not None and key < held:
                yield from self._row(key, b"")
                key = next(keys, None)
            if key == held:
                yield from self._row(held, value)
                key = next(keys, None)
            else:
                yield held, value
        while key is not None:
            yield from self._row(key, b"")
            key = next(keys, None)

    def _row(self, key: bytes, before: bytes) -> Iterator[tuple[bytes, bytes]]:
        kind, value = self._of_keys[key]
        if kind != DELETE:
            yield key, self._joined(before, value) if kind == MERGE else value


def _some(rows: Iterator[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the next rows, as many as a batch has, and none at the end."""
    found: list[tuple[bytes, bytes]] = []
    num_bytes = 0
    for row in islice(rows, _BATCH_ROWS):
        found.append(row)
        num_bytes += len(row[0]) + len(row[1])
        if num_bytes >= MAX_BLOCK_BYTES:
            break
    return found


def _joined(values: Sequence[bytes]) -> ByteRanges:
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    return ByteRanges(np.frombuffer(b"".join(values), np.uint8), np.cumsum(sizes) - sizes, sizes)
