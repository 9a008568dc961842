"""The rows of a version of Spark's own state stores.

Rows take the form of this package's own backends: keys as their encoder makes them, values as
UnsafeRow, several values of a key each with its length before it.

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

from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import pyarrow as pa

from statestore.backends.database_rows import split, to_batches
from statestore.codec.byte_ranges import ByteRanges
from statestore.codec.merge import merge_runs
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.rows import DELETE, PUT, SCHEMA, from_numpy
from statestore.codec.sorting import RUN_BYTES, join_batches, write_run
from statestore.core.errors import CorruptionError, NotFoundError
from statestore.io.local import named_errors
from statestore.spark_files.changes import Changes
from statestore.spark_files.snapshot import FAMILY_BYTES, check_size, open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from statestore.backends.database_rows import KeysAndValues, Rows
    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.sorting import LocalRun
    from statestore.core.errors import StateStoreError
    from statestore.spark_files.files import Chain, StoreFiles
    from statestore.spark_files.records import Record
    from statestore.spark_files.snapshot import Snapshot

_ENCODING = b"\0"
_CRC_BYTES = 4
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class RowForm:
    """How a query's provider writes rows, beside the column family's description.

    Attributes:
        is_rocksdb: Whether as the RocksDB provider does.
        has_families: Whether the store has column families.
        has_checksums: Whether every row has a checksum.
        delimiter: Bytes between merged values.
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
        chain: The files of the version.
        snapshot: The snapshot of the RocksDB provider that it begins with.
        form: How rows are written.
        families: Column families, with the IDs that this state partition has them by.
        max_parallelism: Number of key groups; Spark has none, so rows get theirs here.
        older: Finds the version again without the snapshot that it begins with; None where it
            begins with none.
        passed_over: What is wrong with newer snapshots that it does without.
    """

    files: StoreFiles
    chain: Chain
    snapshot: Snapshot | None
    form: RowForm
    families: tuple[ColumnFamily, ...]
    max_parallelism: int
    older: Callable[[], SparkVersion] | None = None
    passed_over: tuple[StateStoreError, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file of the version, by path."""
        ssts = () if self.snapshot is None else self.snapshot.ssts
        return {path: self.files.size(path) for path in self.chain.paths} | {
            sst.path: sst.size for sst in ssts
        }

    @property
    def family_ids(self) -> Mapping[str, int]:
        """IDs of column families by name, as the snapshot has them."""
        return {} if self.snapshot is None else self.snapshot.family_ids

    def check_files(self) -> None:
        """Check that SSTs are there and as large as the snapshot says, as they were listed.

        Raises:
            NotFoundError: One is not there (kind file-not-found).
            CorruptionError: One is of another size.
        """
        for sst in () if self.snapshot is None else self.snapshot.ssts:
            check_size(sst, self.files.size(sst.path))

    def without(self, damage: StateStoreError) -> SparkVersion:
        """Return the version by an older snapshot, as Spark 4.1 and later loads it.

        Args:
            damage: What is wrong with a file.

        Raises:
            StateStoreError: `damage`: the file is not of the snapshot, or no other files lead to
                the version.
        """
        path = damage.fields.get("file")
        ssts = () if self.snapshot is None else self.snapshot.ssts
        is_of_snapshot = path in {self.chain.snapshot, *(sst.path for sst in ssts)}
        if self.older is not None and is_of_snapshot:
            with suppress(CorruptionError, NotFoundError):
                older = self.older()
                # Of a column family that was made since, only the newer snapshot has the ID.
                if not self.form.has_families or self.family_ids == older.family_ids:
                    passed_over = (*self.passed_over, damage, *older.passed_over)
                    return replace(older, families=self.families, passed_over=passed_over)
        raise damage

    def batches(self, scratch_directory: str, name: str | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, by an older snapshot where one is damaged in a way that shows at once.

        Memory holds a few times RUN_BYTES of them, however many there are. Those of the RocksDB
        provider are read from a database in the scratch directory, to which its changelogs are
        written. Those of the HDFS-backed provider are sorted there, and come in file order.

        Args:
            scratch_directory: Local directory for RocksDB's files, or for sorting.
            name: Of the only column family wanted, None for all.

        Yields:
            Record batches of SCHEMA, puts only, each key once.

        Raises:
            NotFoundError, CorruptionError, IncompatibleError, InvalidArgumentError, StorageError:
                A file of the version cannot be read.
        """
        rows = self._batches(scratch_directory, name)
        try:
            first = list(islice(rows, 1))
        except (CorruptionError, NotFoundError) as error:
            first, rows = [], self.without(error).batches(scratch_directory, name)
        yield from first
        yield from rows

    def _batches(self, scratch_directory: str, name: str | None) -> Iterator[pa.RecordBatch]:
        wanted = [family for family in self.families if name in (None, family.name)]
        if not wanted:
            return
        if not self.form.is_rocksdb:
            yield from self._merged(wanted[0], scratch_directory)
            return
        changes = self.chain.changes if self.snapshot else self.chain.paths
        with TemporaryDirectory(prefix="spark-", dir=scratch_directory) as directory:
            delimiter = self.form.delimiter
            with open_database(
                self.files, self.snapshot, directory, delimiter, self._pieces(changes)
            ) as database:
                for family in sorted(wanted, key=lambda found: found.id):
                    pieces = database.pieces(self._prefix(family))
                    for encoded in to_batches(self._columns(piece, family) for piece in pieces):
                        yield self._batch(encoded, family)

    def _merged(self, family: ColumnFamily, scratch_directory: str) -> Iterator[pa.RecordBatch]:
        """Yield the state of snapshot and deltas: each key's last put that no delete follows."""
        with TemporaryDirectory(prefix="spark-", dir=scratch_directory) as directory:
            runs: list[LocalRun] = []
            for changes in self._pieces(self.chain.paths):
                put = [
                    (key, bytes(value))
                    for key, value in changes.of_keys.items()
                    if value is not None
                ]
                gone = [key for key, value in changes.of_keys.items() if value is None]
                batches = [
                    self._batch(rows, family, op)
                    for op, piece in ((PUT, self._columns(put, family)), (DELETE, (gone, gone)))
                    for rows in to_batches([piece])
                ]
                path = f"{directory}/{len(runs)}.arrow"
                with named_errors("sort rows in the scratch directory", path):
                    runs.append(write_run(join_batches(batches), self.max_parallelism, path))
            yield from merge_runs(runs, self.max_parallelism)

    def _pieces(self, paths: Iterable[str]) -> Iterator[Changes]:
        """Yield the records of files, oldest first, bounded by memory at a time."""
        held = Changes(self.form.delimiter)
        for path in paths:
            for record in self._records(path):
                held.add(*record)
                if held.num_bytes >= RUN_BYTES:
                    yield held
                    held = Changes(self.form.delimiter)
        if held.of_keys:
            yield held

    def _records(self, path: str) -> Iterable[Record]:
        """Return the records of a file; checksums of removed keys are checked and cut."""
        records = self.files.records(path)
        return self._removed_checked(path, records) if self.form.has_checksums else records

    def _removed_checked(self, path: str, records: Iterable[Record]) -> Iterator[Record]:
        for kind, key, value in records:
            if kind != DELETE:
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

    def _columns(self, rows: Rows, family: ColumnFamily) -> KeysAndValues:
        """Return keys, and values with their checksums checked and cut."""
        keys, values = split(rows) if rows else ((), ())
        with self._named(family):
            if family.multi_values:
                values = [self._several(*row) for row in rows]
            elif self.form.has_checksums:
                values = [self._checked(*row) for row in rows]
        return keys, values

    def _batch(self, rows: pa.RecordBatch, family: ColumnFamily, op: int = PUT) -> pa.RecordBatch:
        before_key, before_value = self._prefix(family), b""
        if self.form.is_rocksdb and family.encoder == "no-prefix":
            before_key += _ENCODING
        if self.form.is_rocksdb and not family.multi_values:
            before_value = _ENCODING
        with self._named(family):
            keys = _without(rows.column(0), before_key)
            values = _without(rows.column(1), before_value)
            store = self.files.store.name
            groups = compute_key_groups(keys, store, family, self.max_parallelism)
        columns = [
            from_numpy(groups, pa.uint16()),
            from_numpy(np.full(len(keys), family.id, np.uint16), pa.uint16()),
            from_numpy(np.full(len(keys), op, np.uint8), pa.uint8()),
            keys,
            values if op == PUT else pa.nulls(len(keys), pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    @contextmanager
    def _named(self, family: ColumnFamily) -> Iterator[None]:
        """Name the place of a damaged row."""
        try:
            yield
        except CorruptionError as error:
            error.fields.update(file=self.chain.paths[-1], column_family=family.name)
            raise

    def _checked(self, key: bytes, value: bytes) -> bytes:
        """Check a value's checksum, and return the value without it."""
        checksum, found = value[:_CRC_BYTES], value[_CRC_BYTES:]
        if self.form.is_rocksdb:
            found, end = _part(value, _CRC_BYTES)
            if end != len(value):
                raise _not_encoded(checksum)
        _check(key, found, checksum)
        return found

    def _several(self, key: bytes, value: bytes) -> bytes:
        """Return the rows of a value, each with its length before it in this package's form."""
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
    """Return the part of a value behind its length, and its end."""
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


def _without(column: pa.Array[Any], prefix: bytes) -> pa.Array[Any]:
    """Return a column of bytes without their common beginning."""
    if not prefix:
        return column
    ranges = ByteRanges.of_column(column)
    if (ranges.sizes < len(prefix)).any() or any(
        (ranges.data[ranges.starts + place] != byte).any() for place, byte in enumerate(prefix)
    ):
        raise _not_encoded(prefix)
    return ranges.skip(len(prefix)).to_arrow(pa.binary())
