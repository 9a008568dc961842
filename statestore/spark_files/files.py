"""The files of a version of Spark's own stores.

    HDFS-backed    <version>.delta, <version>.snapshot
    RocksDB        <version>.changelog, <version>.zip, SSTs/<name>.sst
                   in checkpoint format v2 <version>_<checkpoint ID> in place of <version>

A version is its newest snapshot and the changes after it. Source: HDFSBackedStateStoreProvider and
RocksDBFileManager, releases 4.0 to 4.3.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import store_directory
from statestore.checkpoint.text_files import checksum_path
from statestore.codec.arrow_batch import most_unpacked
from statestore.core.errors import NotFoundError
from statestore.core.providers import SPARK_PROVIDERS
from statestore.io.local import named_errors
from statestore.spark_files.checksums import check_hadoop, check_spark
from statestore.spark_files.compression import decompressed
from statestore.spark_files.records import Records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.codec.references import StoreName
    from statestore.io.file_io import FileIO

_SUFFIXES = {
    SPARK_PROVIDERS["spark-hdfs"]: ("snapshot", "delta"),
    SPARK_PROVIDERS["spark-rocksdb"]: ("zip", "changelog"),
}
_FILE = re.compile(r"([1-9][0-9]*)(?:_[0-9A-Za-z-]+)?\.(snapshot|zip|delta|changelog)")
_STORED = re.compile(rf"{_FILE.pattern}|[^/]+\.sst")


def is_state_file(name: str) -> bool:
    """Return whether a file name is of a state file of Spark's own providers."""
    return _STORED.fullmatch(name) is not None


def snapshot_version(name: str) -> int | None:
    """Return the version of a snapshot by its file name, None when it is not a snapshot's."""
    match = _FILE.fullmatch(name)
    return int(match[1]) if match is not None and match[2] in ("snapshot", "zip") else None


@dataclass(frozen=True, slots=True)
class Chain:
    """The files of a version of a store.

    Attributes:
        snapshot: Path of the snapshot that it begins with, None for no rows.
        changes: Paths of the deltas or changelogs after it, oldest first.
    """

    snapshot: str | None
    changes: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All files."""
        return (*(() if self.snapshot is None else (self.snapshot,)), *self.changes)


@dataclass(frozen=True)
class StoreFiles:
    """The files of one store, by a listing of its directory.

    Attributes:
        io: The storage.
        store: The store.
        root: The checkpoint's `state` directory.
        provider: Provider class.
        codec: Spark's name of the compression codec.
        sizes: Bytes of each file by its path from the directory.
    """

    io: FileIO
    store: StoreName
    root: str
    provider: str
    codec: str
    sizes: Mapping[str, int] = field(compare=False)

    @property
    def directory(self) -> str:
        """The directory."""
        return store_directory(self.root, self.store)

    @property
    def is_rocksdb(self) -> bool:
        """Whether the files are the RocksDB provider's."""
        return self.provider == SPARK_PROVIDERS["spark-rocksdb"]

    def size(self, path: str) -> int:
        """Return the bytes of a file of the store.

        Raises:
            NotFoundError: It is not there (kind file-not-found).
        """
        found = self.sizes.get(posixpath.relpath(path, self.directory))
        if found is None:
            raise _gone(path)
        return found

    def without(self, path: str) -> StoreFiles:
        """Return the files as if one of them were not there."""
        name = posixpath.relpath(path, self.directory)
        return replace(self, sizes={of: size for of, size in self.sizes.items() if of != name})

    def changes_path(self, version: int, checkpoint_id: str | None) -> str | None:
        """Return the path of a version's delta or changelog, None where it has none."""
        infix = "" if checkpoint_id is None else f"_{checkpoint_id}"
        name = f"{version}{infix}.{_SUFFIXES[self.provider][1]}"
        return f"{self.directory}/{name}" if name in self.sizes else None

    def chain(self, version: int, checkpoint_id: str | None) -> Chain:
        """Return the files of a version.

        Args:
            version: The version, at least 1.
            checkpoint_id: Its ID in the commit log, None in checkpoint format v1.

        Raises:
            NotFoundError: A file of it is not there (kind version-not-found).
            CorruptionError, StorageError: The lineage in a changelog cannot be read.
        """
        of_snapshot, of_changes = _SUFFIXES[self.provider]
        changes: list[str] = []
        ids: dict[int, str] = {} if checkpoint_id is None else {version: checkpoint_id}
        for at in range(version, 0, -1):
            infix = f"_{ids[at]}" if at in ids else ""
            if f"{at}{infix}.{of_snapshot}" in self.sizes:
                path = f"{self.directory}/{at}{infix}.{of_snapshot}"
                return Chain(path, tuple(reversed(changes)))
            name = f"{at}{infix}.{of_changes}"
            if name not in self.sizes:
                raise self._missing(version, name, of_snapshot)
            changes.append(f"{self.directory}/{name}")
            if at in ids and at - 1 not in ids and at > 1:
                # Of versions before checkpoint format v2 there is none.
                lineage = self.records(changes[-1]).lineage
                ids |= {ancestor.version: ancestor.checkpoint_id for ancestor in lineage}
        return Chain(None, tuple(reversed(changes)))

    def _missing(self, version: int, name: str, of_snapshot: str) -> NotFoundError:
        is_expired = version < self._oldest_version
        return NotFoundError(
            "a version of Spark's own state store is not there",
            kind="version-not-found",
            store=str(self.store),
            version=version,
            missing=f"{self.directory}/{name}",
            no_snapshot=f"{self.directory}/{name.rpartition('.')[0]}.{of_snapshot}",
            oldest_version=self._oldest_version,
            to_fix="ask for a newer version; Spark deletes old ones"
            if is_expired
            else "put the file back from where the checkpoint was copied; an older version may be "
            "whole: statestore read --version",
        )

    @property
    def _oldest_version(self) -> int:
        """The oldest version that may have all its files; 0 for none."""
        names = [match for name in self.sizes if (match := _FILE.fullmatch(name)) is not None]
        snapshots = [snapshot_version(match[0]) for match in names]
        whole = [found for found in snapshots if found is not None]
        return 1 if any(match[1] == "1" for match in names) else min(whole, default=0)

    def records(self, path: str) -> Records:
        """Open a delta, snapshot or changelog.

        Raises:
            NotFoundError: It is gone (kind file-not-found).
            CorruptionError, IncompatibleError: As `decompressed` and `Records`; or it does not
                match a checksum file.
            StorageError: The storage failed.
        """
        local_path = self.open(path)
        with named_errors("open a file", local_path):
            most = most_unpacked(Path(local_path).stat().st_size)
        pieces = decompressed(local_path, self.codec, path)
        is_changelog = path.endswith(".changelog")
        return Records(pieces, path, is_changelog=is_changelog, most_bytes=most)

    def open(self, path: str) -> str:
        """Return a local path of a file of the store, checked by the checksum files it has.

        Raises:
            NotFoundError, CorruptionError, StorageError: As `records`.
        """
        try:
            local_path = self.io.fetch(path)
            checks = [(f"{path}.crc", check_spark)]
            if local_path == path:
                # Elsewhere Hadoop neither reads nor renews those that a local disk had.
                checks.append((checksum_path(path), check_hadoop))
            with named_errors("open a file", local_path):
                for name, check in checks:
                    size = self.sizes.get(posixpath.relpath(name, self.directory))
                    if size is not None:
                        check(local_path, self.io.read_tail(name, size)[0], path, name)
        except NotFoundError as error:
            raise _gone(path) from error
        return local_path


def _gone(path: str) -> NotFoundError:
    return NotFoundError(
        "cannot read a file of Spark's own state store: it is not there",
        kind="file-not-found",
        file=path,
        to_fix="read a newer version where the query runs, since its retention may have deleted "
        "this one meanwhile; else put the file back from a copy",
    )
