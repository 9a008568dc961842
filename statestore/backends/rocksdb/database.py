"""The working state of one store: a RocksDB database on local disk, and a view of each version.

    <directory>/db-<n>/                      the database, at the version last committed or loaded
    <directory>/view-<version>-<id>/         a version as hard links, immutable; `VERSION` names it
                                             and says whether rows of other state partitions are in
    <directory>/.tmp-view/                   a view being made
    <directory>/step-<version>-<id>.sst      what a version that waits adds to the one before

All of it is a cache of durable files: on any doubt it is thrown away, but not where no more files
may be open, which is no doubt. Rows come in by ingesting
SSTs only, so a version is there whole or not at all, and a reader of a view never sees half of one.
A commit leaves its SST as a step; steps are ingested for a reader, or when there are many. The
version before the newest waits, or has a view: a failed batch starts from it again.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocksdict import Checkpoint, DbClosedError, IngestExternalFileOptions, Rdict

from statestore.backends.database_rows import all_rows
from statestore.codec.references import VersionRef
from statestore.core.errors import StorageError
from statestore.io.local import MORE_OPEN_FILES, is_disk_full, is_out_of_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocksdict import Options


NUM_VIEWS = 4
"""Views kept: the two newest versions, and those that readers of older ones were just given."""

MAX_WAITING = 8
MAX_WAITING_BYTES = 64 << 20
"""Steps, and bytes of them, that a commit leaves waiting at most."""

_VERSION_FILE = "VERSION"


@dataclass(frozen=True, slots=True)
class LocalView:
    """A version in a directory of its own, immutable.

    Attributes:
        path: The directory.
        is_mixed: Whether it has rows of other state partitions.
    """

    path: str
    is_mixed: bool


@dataclass(frozen=True, slots=True)
class _Step:
    """A committed version that waits, as an SST on top of the one before; None without rows."""

    version: VersionRef
    path: Path | None


class LocalDatabase:
    """The database of one store. Not thread-safe; views may be read by any process.

    Args:
        directory: Local directory, owned by this object; views in it are taken over.
        options: Of the database.
    """

    def __init__(self, directory: str, options: Options) -> None:
        self.directory = Path(directory)
        self._options = options
        self._db: Rdict | None = None
        self._path: Path | None = None
        self._ingested: VersionRef | None = None
        self._is_mixed = False
        self._waiting: list[_Step] = []
        """Oldest first, on top of the ingested version."""
        self._views: dict[VersionRef, LocalView] = {}
        """Least recently used first."""
        with local_errors("open the local database", directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._adopt()

    @property
    def at(self) -> VersionRef | None:
        """Version of the database; None when it has none, and must be brought to one."""
        return self._waiting[-1].version if self._waiting else self._ingested

    @property
    def is_at_mixed(self) -> bool:
        """Whether the database has rows of other state partitions."""
        return self._is_mixed

    @property
    def versions(self) -> tuple[VersionRef, ...]:
        """Versions that `go_to` can go to."""
        waiting = (step.version for step in self._waiting)
        ingested = () if self._ingested is None else (self._ingested,)
        return (*self._views, *ingested, *waiting)

    def has_view(self, version: VersionRef) -> bool:
        """Return whether there is a view of a version."""
        return version in self._views

    def view(self, version: VersionRef) -> LocalView | None:
        """Return a version's view, or None.

        It stays at least until three other views were made or returned.
        """
        view = self._views.pop(version, None)
        if view is None or not Path(view.path, _VERSION_FILE).exists():
            return None
        self._views[version] = view
        return view

    def get(self, key: bytes) -> bytes | None:
        """Return the encoded value of an encoded key at the database's version.

        Raises:
            StorageError: The local disk failed; everything is removed.
        """
        database = self._current()
        with self._forgotten_on_error():
            value: bytes | None = database.get(key)
        return value

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every encoded row in key order, at the database's version.

        Raises:
            StorageError: The local disk failed; everything is removed.
        """
        database = self._current()
        with self._forgotten_on_error():
            yield from all_rows(database)

    def go_to(self, version: VersionRef | None) -> None:
        """Go to one of `versions`, None for the empty state.

        Raises:
            StorageError: The local disk failed; the database is at no version, and the view it
                started from is given up, unless no more files may be open, or the disk is full.
        """
        waiting = [step.version for step in self._waiting]
        with local_errors("go to a version of the local database", str(self.directory)):
            if version is not None and version in (self._ingested, *waiting):
                stays = waiting.index(version) + 1 if version in waiting else 0
                self._drop_steps(stays)
                return
            self._drop_steps(0)
            view = None if version is None else self._views.pop(version)
            try:
                self._open(None if view is None else view.path)
            except Exception as error:
                is_as_it_was = is_out_of_files(error) or is_disk_full(error)
                if version is not None and view is not None and is_as_it_was:
                    self._views[version] = view
                raise
            self._is_mixed = view is not None and view.is_mixed
            if version is not None and view is not None:
                self._views[version] = view
                self._ingested = version

    def follow(self, sst_path: str | None, version: VersionRef) -> None:
        """Go to the version that a commit made of the one the database is at.

        Args:
            sst_path: Its rows, moved away; None for none.
            version: The version.

        Raises:
            StorageError: The local disk failed; the database is at no version.
        """
        with self._closed_on_error("keep a version in the local database"):
            step = None
            if sst_path is not None:
                step = self.directory / f"step-{version.version}-{version.checkpoint_id}.sst"
                Path(sst_path).replace(step)
            self._waiting.append(_Step(version, step))
            paths = [step.path for step in self._waiting]
            size = sum(path.stat().st_size for path in paths if path is not None)
            if len(paths) > MAX_WAITING or size > MAX_WAITING_BYTES:
                self._take_in(self._waiting[:-1])

    def ingest(
        self, sst_paths: Sequence[str], version: VersionRef, *, is_mixed: bool = False
    ) -> LocalView:
        """Bring the database to a version and return its view.

        Args:
            sst_paths: SSTs that lead there from the database's version, oldest first; moved away.
            version: The version.
            is_mixed: Whether they hold rows of other state partitions; once in, those stay until
                the database is emptied.

        Raises:
            StorageError: The local disk failed; the database is at no version.
        """
        with self._closed_on_error("ingest into the local database"):
            # The version before keeps a way back to it: a view.
            self._take_in(self._waiting[:-1])
            self._take_in(self._waiting, has_view=self.at == version and not sst_paths)
            self._is_mixed = self._is_mixed or is_mixed
            ingest_files(self._require(), sst_paths)
            return self._make_view(version)

    def compact(self) -> None:
        """Compact the whole database; views are not touched.

        Raises:
            StorageError: The local disk failed.
        """
        with local_errors("compact the local database", str(self.directory)):
            self._current().compact_range(None, None)

    def shrink(self, num_views: int = 1) -> None:
        """Close the database and keep on disk only its newest views, with that of its version."""
        if self.at is not None and self.at not in self._views:
            with suppress(StorageError):
                self.ingest((), self.at)
        self.close()
        for version in list(self._views)[:-num_views]:
            shutil.rmtree(self._views.pop(version).path, ignore_errors=True)
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    def close(self) -> None:
        """Close the database, which is then at no version; views stay on disk. Never raises."""
        database, self._db, self._ingested = self._db, None, None
        with suppress(OSError):
            self._drop_steps(0)
        if database is not None:
            # An error that RocksDB met before, in a thread of its own, is told once more here.
            with suppress(StorageError), local_errors("close the database", str(self.directory)):
                database.close()

    def forget(self) -> None:
        """Close the database and remove everything; readers of a view that is open go on."""
        self.close()
        self._views.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    @contextmanager
    def _forgotten_on_error(self) -> Iterator[None]:
        """Remove everything where a read fails: views share the damaged file."""
        try:
            with local_errors("read the local database", str(self.directory)):
                yield
        except StorageError as error:
            if not is_out_of_files(error):
                self.forget()
            raise

    @contextmanager
    def _closed_on_error(self, action: str) -> Iterator[None]:
        try:
            with local_errors(action, str(self.directory)):
                yield
        except StorageError:
            self.close()
            raise

    def _require(self) -> Rdict:
        if self._db is None:
            raise StorageError(
                "the local database is not open",
                directory=str(self.directory),
                to_fix="let the batch run again; the local database is built anew",
            )
        return self._db

    def _current(self) -> Rdict:
        """Return the database with nothing waiting."""
        if self._waiting:
            self.ingest((), self._waiting[-1].version)
        return self._require()

    def _take_in(self, steps: list[_Step], *, has_view: bool = False) -> None:
        """Ingest the oldest waiting steps; make a view of the last unless it gets one anyway."""
        if not steps:
            return
        steps = list(steps)
        ingest_files(self._require(), [str(step.path) for step in steps if step.path is not None])
        del self._waiting[: len(steps)]
        self._ingested = steps[-1].version
        if not has_view:
            self._make_view(self._ingested)

    def _drop_steps(self, stays: int) -> None:
        """Forget the waiting steps but the first ones."""
        while len(self._waiting) > stays:
            path = self._waiting.pop().path
            if path is not None:
                path.unlink(missing_ok=True)

    def _adopt(self) -> None:
        """Take over the views of an engine that died; its database may be in any state."""
        found: list[tuple[VersionRef, LocalView]] = []
        for path in self.directory.iterdir():
            try:
                fields = json.loads((path / _VERSION_FILE).read_text())
                view = LocalView(str(path), fields.pop("is_mixed"))
                version = VersionRef(**fields)
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                version = None
            if version is not None and path.name.startswith("view-"):
                found.append((version, view))
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._views = dict(sorted(found, key=lambda view: view[0].version))

    def _open(self, view: str | None) -> None:
        """Close the database and open a new one: empty, or a clone of a view."""
        old = self._path
        self.close()
        number = int(old.name.removeprefix("db-")) + 1 if old is not None else 0
        path = self.directory / f"db-{number}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        if view is not None:
            for source in Path(view).iterdir():
                if source.suffix == ".sst":
                    _link_or_copy(source, path / source.name)
                elif source.name != _VERSION_FILE:
                    shutil.copyfile(source, path / source.name)
        self._db = Rdict(str(path), self._options)
        self._path = path
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)

    def _make_view(self, version: VersionRef) -> LocalView:
        """Make a view of the database, whose ingested rows are a version."""
        self._ingested = version
        temporary = self.directory / ".tmp-view"
        shutil.rmtree(temporary, ignore_errors=True)
        Checkpoint(self._require()).create_checkpoint(str(temporary))
        fields = {**asdict(version), "is_mixed": self._is_mixed}
        (temporary / _VERSION_FILE).write_text(json.dumps(fields))
        path = str(self.directory / f"view-{version.version}-{version.checkpoint_id}")
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
        before = self._views.pop(version, None)
        if before is not None and before.path != path:
            # Made by another attempt, with the same rows.
            shutil.rmtree(before.path, ignore_errors=True)
        self._views[version] = LocalView(path, self._is_mixed)
        while len(self._views) > NUM_VIEWS:
            shutil.rmtree(self._views.pop(next(iter(self._views))).path, ignore_errors=True)
        return self._views[version]


def _link_or_copy(source: Path, path: Path) -> None:
    try:
        path.hardlink_to(source)
    except OSError:  # such as a file system without hard links
        shutil.copyfile(source, path)


def ingest_files(database: Rdict, paths: Iterable[str]) -> None:
    """Take in SSTs, oldest first; they are gone afterwards."""
    paths = list(paths)
    if not paths:
        return
    move = IngestExternalFileOptions()
    move.set_move_files(True)
    database.ingest_external_file(paths, opts=move)
    # Links where the file system can, copies where it cannot.
    for path in paths:
        Path(path).unlink(missing_ok=True)


@contextmanager
def local_errors(action: str, path: str) -> Iterator[None]:
    """Turn errors of RocksDB and the local disk into an error of this package.

    Raises:
        StorageError: Kind storage-full where no space is left.
    """
    try:
        yield
    except (OSError, DbClosedError) as error:
        raise _named(error, action, path) from error
    except Exception as error:
        # rocksdict raises plain Exception with RocksDB's status as text.
        if type(error) is not Exception:
            raise
        raise _named(error, action, path) from error


def _named(error: Exception, action: str, path: str) -> StorageError:
    is_full = is_disk_full(error)
    return StorageError(
        f"cannot {action}" + (": no space left" if is_full else ""),
        kind="storage-full" if is_full else "storage",
        directory=path,
        reason=str(error),
        to_fix="free space on the local disk: of an executor spark.local.dir, of a command TMPDIR"
        if is_full
        else MORE_OPEN_FILES
        if is_out_of_files(error)
        else "let the batch, or the command, run again; the local database is built anew from the "
        "checkpoint",
    )
