"""Snapshots of Spark's RocksDB provider: a zip with RocksDB's own small files, and SSTs beside it.

The zip has a file `metadata`: the number of keys, column families by name, and both names of each
SST. Column families are no families of RocksDB's: their ID, u16 little-endian, is in front of every
key. Source: RocksDBCheckpointMetadata, releases 4.0 to 4.3.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast

from statestore.backends.database_rows import MOST_ROWS, all_pieces
from statestore.checkpoint.layout import store_directory
from statestore.codec.sorting import RUN_BYTES
from statestore.core.errors import CorruptionError, InvalidArgumentError
from statestore.core.json_fields import Fields, MalformedError, parse_fields
from statestore.core.providers import SPARK_PROVIDERS
from statestore.io.local import is_disk_full, is_out_of_files, named_errors
from statestore.spark_files.files import StoreFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocksdict import Rdict

    from statestore.backends.database_rows import Rows
    from statestore.codec.references import StoreName
    from statestore.io.file_io import FileIO
    from statestore.spark_files.changes import Changes

FAMILY_BYTES = 2
SST_DIRECTORY = "SSTs"
_MAX_FAMILY = 0xFFFF
_OTHERWISE = (
    "or let the query make a newer snapshot: Spark 4.1 and later starts from an older one, where "
    "its changelogs are there; or read an older version"
)
_METADATA = "metadata"
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")
_MAX_BYTES = 256 * 1024 * 1024
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
# Spark has the operator with a delimiter that RocksDB does not write down among its options.
_OPTIONS = """[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1

[DBOptions]
  max_open_files=-1

[CFOptions "default"]
  merge_operator={{id=StringAppendOperator;delimiter={delimiter};}}

[TableOptions/BlockBasedTable "default"]
"""


@dataclass(frozen=True, slots=True)
class Sst:
    """An SST of a snapshot.

    Attributes:
        name: Its name for RocksDB.
        path: Its path on the storage.
        size: Bytes.
    """

    name: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot, described.

    Attributes:
        path: Of the zip.
        num_keys: Number of keys, None where Spark did not count.
        family_ids: IDs of column families by name; empty in a store without any.
        internal: Names of those that are Spark's own.
        ssts: Its SSTs.
    """

    path: str
    num_keys: int | None
    family_ids: Mapping[str, int]
    internal: frozenset[str]
    ssts: tuple[Sst, ...]


def read_snapshot(files: StoreFiles, path: str) -> Snapshot:
    """Read the description of a snapshot.

    Args:
        files: Of its store.
        path: Of the zip.

    Raises:
        CorruptionError: It is no snapshot, or damaged.
        NotFoundError, StorageError: It cannot be read.
    """
    text = _read_members(files, path, {_METADATA}).get(_METADATA, b"")
    try:
        fields = parse_fields(text.partition(b"\n")[2])
        counts = [
            fields.value(name) if fields.has(name) else 0 for name in ("numKeys", "numInternalKeys")
        ]
        ids = fields.object("columnFamilyMapping") if fields.has("columnFamilyMapping") else None
        kinds = fields.object("columnFamilyTypeMap") if fields.has("columnFamilyTypeMap") else None
        return Snapshot(
            path,
            sum(counts) if all(type(count) is int and count >= 0 for count in counts) else None,
            {} if ids is None else {name: ids.integer(name, 0, _MAX_FAMILY) for name in ids.all},
            frozenset(() if kinds is None else (name for name in kinds.all if kinds.flag(name))),
            tuple(_parse_sst(Fields(item), files.directory) for item in fields.items("sstFiles")),
        )
    except MalformedError as error:
        raise _no_snapshot(path, str(error)) from error


def _parse_sst(item: Fields, directory: str) -> Sst:
    name = item.text("dfsSstFileName", _NAME)
    path = f"{directory}/{SST_DIRECTORY}/{name}"
    return Sst(item.text("localFileName", _NAME), path, item.integer("sizeBytes"))


def _read_members(files: StoreFiles, path: str, names: set[str] | None) -> dict[str, bytes]:
    """Return files of a zip, all where no names are given."""
    local_path = files.open(path)
    try:
        with named_errors("open a file", local_path):
            data = Path(local_path).read_bytes()
        with zipfile.ZipFile(BytesIO(data)) as archive:
            members = [one for one in archive.infolist() if names is None or one.filename in names]
            if sum(member.file_size for member in members) > _MAX_BYTES:
                raise _no_snapshot(path, f"more than {_MAX_BYTES} bytes beside its SSTs")
            return {member.filename: _read_member(archive, member, path) for member in members}
    except _DAMAGED as error:
        raise _no_snapshot(path, str(error)) from error


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> bytes:
    """Return a file of a zip, of which no more is unpacked than it says to have."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _no_snapshot(path, f"a compression that Java does not write, of {member.filename!r}")
    with archive.open(member) as file:
        found = file.read(member.file_size + 1)
    if len(found) != member.file_size:
        raise _no_snapshot(path, f"{member.filename!r} has not the size that it says")
    return found


@contextmanager
def open_database(
    files: StoreFiles,
    snapshot: Snapshot | None,
    directory: str,
    delimiter: bytes,
    pieces: Iterator[Changes],
) -> Iterator[Database]:
    """Open the rows of a snapshot, with changes made to them.

    Args:
        files: Of its store.
        snapshot: The snapshot, None for no rows.
        directory: Local directory for RocksDB's files, empty; to be deleted afterwards.
        delimiter: Bytes between merged values.
        pieces: The changes, oldest first.

    Raises:
        InvalidArgumentError: The package that reads SSTs is not installed.
        NotFoundError: An SST is not there (kind file-not-found).
        CorruptionError: The snapshot is damaged; methods of the yielded database raise it too.
        StorageError: The storage or the local disk failed.
    """
    try:
        # Imported here because it needs a package that is an extra.
        from rocksdict import AccessType, Env, MemtableFactory, Options, Rdict

        from statestore.backends.rocksdb.database import local_errors
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            "rows of Spark's RocksDB provider need a package that is not installed",
            missing=error.name,
            to_fix="pip install 'statestore[rocksdb]'",
        ) from error
    options, path = Options(raw_mode=True), files.directory
    if snapshot is not None:
        path = snapshot.path
        _lay_out(files, snapshot, directory, delimiter)
        with _named(path):
            options, _ = Options.load_latest(directory, Env(), True)
    first = next(pieces, None)
    access = AccessType.read_only()
    if first is not None or snapshot is None:
        access = AccessType.read_write()
        # Changes are written once and then read once: they are sorted when they go to the disk.
        options.set_memtable_factory(MemtableFactory.vector())
        options.set_allow_concurrent_memtable_write(False)
        options.set_disable_auto_compactions(True)
        options.create_if_missing(snapshot is None)
    with _named(path):
        database = Rdict(directory, options, access_type=access)
    try:
        with _named(path):
            live = {str(file["name"]).lstrip("/") for file in database.live_files()}
        # A manifest that was lost would be one of a database without rows. What a log has of the
        # snapshot is in one more file once it is opened to be written.
        if snapshot is not None and not live.issuperset(sst.name for sst in snapshot.ssts):
            raise _no_snapshot(path, f"a manifest of {', '.join(sorted(live)) or 'no SSTs'}")
        for changes in chain(() if first is None else (first,), pieces):
            with local_errors("write changes to the scratch directory", directory):
                _write(database, changes)
        if first is not None:
            with local_errors("write changes to the scratch directory", directory):
                database.flush()
        yield Database(database, path)
    finally:
        database.close()


def _lay_out(files: StoreFiles, snapshot: Snapshot, directory: str, delimiter: bytes) -> None:
    """Lay the files of a snapshot into a local directory."""
    members = _read_members(files, snapshot.path, None)
    with named_errors("lay out a snapshot in the scratch directory", directory):
        for name, data in members.items():
            if _NAME.fullmatch(name) and name != _METADATA and not name.startswith("OPTIONS"):
                Path(directory, name).write_bytes(data)
        options = _OPTIONS.format(delimiter=delimiter.decode())
        Path(directory, "OPTIONS-000001").write_text(options)
    for sst in snapshot.ssts:
        check_size(sst, files.size(sst.path))
        local_path = files.open(sst.path)
        with named_errors("lay out a snapshot in the scratch directory", directory):
            # Fetched copies may be deleted when more are fetched, so they get a second name; a
            # file in place may be on another disk, to which no hard link leads.
            place = os.symlink if local_path == sst.path else os.link
            place(local_path, f"{directory}/{sst.name}")


def _write(database: Rdict, changes: Changes) -> None:
    from rocksdict import WriteBatch, WriteOptions

    options = WriteOptions()
    setattr(options, "disable_wal", True)  # noqa: B010 (a method by the package's types)
    batch = WriteBatch(raw_mode=True)
    for key, value in changes.of_keys.items():
        if value is None:
            batch.delete(key)
        elif key not in changes.merged:
            batch.put(key, bytes(value))
    database.write(batch, options)
    batch, num_bytes = WriteBatch(raw_mode=True), 0
    merged = list(changes.merged)
    # What is added may be little, and what it is added to much.
    for start in range(0, len(merged), MOST_ROWS):
        if not num_bytes:
            database.flush()  # what is not sorted yet is slow to look up
        some = merged[start : start + MOST_ROWS]
        keys = cast("list[str | int | float | bytes | bool]", some)
        before = cast("list[bytes | None]", database.get(keys))
        for key, first in zip(some, before, strict=True):
            value = changes.of_keys[key] or b""
            joined = changes.delimiter.join((first, value)) if first else bytes(value)
            batch.put(key, joined)
            num_bytes += len(key) + len(joined)
        if num_bytes >= RUN_BYTES:
            database.write(batch, options)
            batch, num_bytes = WriteBatch(raw_mode=True), 0
    database.write(batch, options)


def check_size(sst: Sst, found: int) -> None:
    """Check that an SST is as large as its snapshot says.

    Raises:
        CorruptionError: It is not.
    """
    if found != sst.size:
        raise CorruptionError(
            "an SST is not as large as its snapshot says",
            kind="truncated" if found < sst.size else None,
            file=sst.path,
            offset=min(found, sst.size),
            expected=sst.size,
            found=found,
            to_fix=f"put the file back from a copy; {_OTHERWISE}",
        )


class SparkFiles:
    """The files of a checkpoint's stores; each directory and snapshot is read once.

    Args:
        io: The storage.
        root: The checkpoint's `state` directory.
    """

    def __init__(self, io: FileIO, root: str) -> None:
        self._io = io
        self._root = root
        self._sizes: dict[StoreName, dict[str, int]] = {}
        self._snapshots: dict[str, Snapshot] = {}

    def of(self, store: StoreName, provider: str, codec: str) -> StoreFiles:
        """Return the files of a store.

        Args:
            store: The store.
            provider: Provider class.
            codec: Spark's name of the compression codec.

        Raises:
            StorageError: The storage failed.
        """
        if store not in self._sizes:
            directory = store_directory(self._root, store)
            sizes = {info.name: info.size for info in self._io.list(directory)}
            if provider == SPARK_PROVIDERS["spark-rocksdb"]:
                ssts = self._io.list(f"{directory}/{SST_DIRECTORY}")
                sizes |= {f"{SST_DIRECTORY}/{info.name}": info.size for info in ssts}
            self._sizes[store] = sizes
        return StoreFiles(self._io, store, self._root, provider, codec, self._sizes[store])

    def snapshot(self, files: StoreFiles, path: str) -> Snapshot:
        """Return the description of a snapshot; arguments and errors as `read_snapshot`."""
        if path not in self._snapshots:
            self._snapshots[path] = read_snapshot(files, path)
        return self._snapshots[path]


class Database:
    """The rows of a version, open.

    Args:
        database: RocksDB's.
        path: Its name in errors.
    """

    def __init__(self, database: Rdict, path: str) -> None:
        self._database = database
        self._path = path

    def pieces(self, prefix: bytes) -> Iterator[Rows]:
        """Yield all keys with a prefix of FAMILY_BYTES bytes or none, ascending, some at a time."""
        from rocksdict import ReadOptions

        options = ReadOptions()
        if prefix and prefix != b"\xff" * FAMILY_BYTES:
            end = int.from_bytes(prefix) + 1
            options.set_iterate_upper_bound(end.to_bytes(FAMILY_BYTES))
        with _named(self._path):
            yield from all_pieces(self._database, prefix or None, options)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Turn RocksDB's errors, which are bare exceptions, into named ones.

    Raises:
        CorruptionError: The snapshot is damaged.
        StorageError: The local disk is full, or no more files may be open.
    """
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        if is_disk_full(error) or is_out_of_files(error):
            # Imported here as rocksdict is.
            from statestore.backends.rocksdb.database import local_errors

            with local_errors("read a snapshot of Spark's RocksDB provider", path):
                raise
        raise _no_snapshot(path, str(error)) from error


def _no_snapshot(path: str, found: str) -> CorruptionError:
    return CorruptionError(
        "a snapshot of Spark's RocksDB provider cannot be read",
        file=path,
        offset=0,
        expected="metadata and the files of a RocksDB database",
        found=found,
        to_fix=f"put it and its SSTs back from a copy; {_OTHERWISE}",
    )
