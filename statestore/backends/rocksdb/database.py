"""The working state of one store: a RocksDB database on local disk, and a view of each version.

    <directory>/db-<n>/                      the database, at the version last committed or loaded
    <directory>/view-<version>-<id>/         a version as hard links, immutable; `VERSION` names it
                                             and says whether rows of other state partitions are in
    <directory>/.tmp-view/                   a view being made
    <directory>/step-<n>.sst                 what a version adds to the one before

Everything here is a cache of durable files: on doubt it is thrown away. Rows come in by ingesting
SSTs only, one call for one or some versions, so a version is there whole or not at all, and whoever
opens a view read-only never sees a half of one. A commit leaves its SST as a step; steps are
ingested when somebody wants to read, or when they have become many.
"""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocksdict import Checkpoint, DbClosedError, IngestExternalFileOptions, Rdict

from statestore.codec.trailer import VersionRef
from statestore.core.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocksdict import Options

logger = logging.getLogger(__name__)

NUM_VIEWS = 4
"""Views kept: the two newest versions, and those that readers of older ones were just given."""

MAX_WAITING = 8
MAX_WAITING_BYTES = 64 << 20
"""Steps, and bytes of them, that a commit leaves waiting at most."""

_VERSION_FILE = "VERSION"


@dataclass(frozen=True, slots=True)
class _Step:
    """A committed version as an SST, None without rows, on top of another; None: the empty one."""

    parent: VersionRef | None
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
        self._at: VersionRef | None = None
        self._is_mixed = False
        self._views: dict[VersionRef, str] = {}
        """Least recently used first."""
        self._mixed: set[VersionRef] = set()
        self._steps: dict[VersionRef, _Step] = {}
        """Oldest first: those that wait, and those that lead from the view before to the newest."""
        self._ingested: VersionRef | None = None
        self._num_steps = 0
        with local_errors("open the local database", directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._adopt()

    @property
    def at(self) -> VersionRef | None:
        """Version the database is at; None when it is at none, and must be loaded."""
        return self._at

    @property
    def is_at_mixed(self) -> bool:
        """Whether the database has rows of other state partitions."""
        return self._is_mixed

    @property
    def versions(self) -> tuple[VersionRef, ...]:
        """Versions that `rewind` can go to."""
        return tuple(v for v in {*self._views, *self._steps} if self._route(v) is not None)

    def view(self, version: VersionRef) -> str | None:
        """Return the directory of a version's view, or None.

        It stays at least until three other views were made or returned.
        """
        path = self._views.pop(version, None)
        if path is None or not Path(path, _VERSION_FILE).exists():
            return None
        self._views[version] = path
        return path

    def is_mixed(self, version: VersionRef) -> bool:
        """Return whether a version's view has rows of other state partitions."""
        return version in self._mixed

    def get(self, key: bytes) -> bytes | None:
        """Return the encoded value of an encoded key at the database's version.

        Raises:
            StorageError: The local disk failed.
        """
        with local_errors("read the local database", str(self.directory)):
            value: bytes | None = self._current().get(key)
        return value

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every encoded row in key order, at the database's version.

        Raises:
            StorageError: The local disk failed.
        """
        with local_errors("read the local database", str(self.directory)):
            yield from self._current().items()

    def begin_empty(self) -> None:
        """Go to the empty state.

        Raises:
            StorageError: The local disk failed.
        """
        with local_errors("empty the local database", str(self.directory)):
            self._open(None)
            self._is_mixed = False

    def rewind(self, version: VersionRef) -> None:
        """Go to a version that is held.

        Raises:
            StorageError: The local disk failed; the database is at no version, and the view it
                started from is given up.
        """
        route = self._route(version)
        if route is None:
            raise self._not_open()
        start, steps = route
        path = self._views.pop(start) if start is not None else None
        with local_errors("rewind the local database", str(self.directory)):
            self._open(path)
            if start is not None and path is not None:
                self._views[start] = path
            self._ingested = start
            self._ingest(steps)
        self._at = version
        # Steps are a commit's own rows.
        self._is_mixed = start in self._mixed

    def follow(self, sst_path: str | None, parent: VersionRef | None, version: VersionRef) -> None:
        """Go to the version that a commit made of the one the database is at.

        Args:
            sst_path: What it adds, moved away; None for nothing.
            parent: Where the database is, None for the empty state.
            version: The version.

        Raises:
            StorageError: The local disk failed; the database is at no version.
        """
        self._at = None
        with local_errors("keep a version in the local database", str(self.directory)):
            step = None
            if sst_path is not None:
                self._num_steps += 1
                step = self.directory / f"step-{self._num_steps}.sst"
                Path(sst_path).replace(step)
            self._steps.pop(version, None)
            self._steps[version] = _Step(parent, step)
            self._at = version
            waiting = self._waiting()
            size = sum(path.stat().st_size for _, path in waiting if path is not None)
        if len(waiting) > MAX_WAITING or size > MAX_WAITING_BYTES:
            self.ingest((), version)

    def ingest(
        self, sst_paths: Sequence[str], version: VersionRef, *, is_mixed: bool = False
    ) -> str:
        """Bring the database to a version and return the directory of its view.

        Args:
            sst_paths: SSTs that lead there from where the database is, oldest first; moved away.
            version: The version.
            is_mixed: Whether they hold rows of other state partitions; once in, those stay until
                the database is emptied.

        Raises:
            StorageError: The local disk failed; the database is at no version.
        """
        self._is_mixed = self._is_mixed or is_mixed
        with local_errors("ingest into the local database", str(self.directory)):
            self._ingest(self._waiting())
            database = self._require()
            self._at = self._ingested = None
            if sst_paths:
                _ingest_files(database, sst_paths)
            path = self._make_view(database, version)
            self._at = self._ingested = version
        return path

    def compact(self) -> None:
        """Compact the whole database; views are not touched.

        Raises:
            StorageError: The local disk failed.
        """
        with local_errors("compact the local database", str(self.directory)):
            self._current().compact_range(None, None)

    def shrink(self) -> None:
        """Close the database and keep of what is on disk only the view of its version."""
        if self._at is not None and self._at not in self._views:
            with suppress(StorageError):
                self.ingest((), self._at)
        self.close()
        for version in list(self._views)[:-1]:
            shutil.rmtree(self._views.pop(version), ignore_errors=True)
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        self._forget_steps()

    def close(self) -> None:
        """Close the database; views stay on disk. Never raises."""
        database, self._db, self._at = self._db, None, None
        self._ingested = None
        if database is not None:
            # An error that RocksDB met before, in a thread of its own, is told once more here.
            with suppress(StorageError), local_errors("close the database", str(self.directory)):
                database.close()

    def forget(self) -> None:
        """Close the database and remove everything; readers of a view that is open go on."""
        self.close()
        self._views.clear()
        self._mixed.clear()
        self._steps.clear()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _not_open(self) -> StorageError:
        return StorageError(
            "the local database is not open",
            directory=str(self.directory),
            to_fix="let the batch run again; the local database is built anew",
        )

    def _require(self) -> Rdict:
        if self._db is None:
            raise self._not_open()
        return self._db

    def _current(self) -> Rdict:
        """Return the database with nothing waiting."""
        if self._at != self._ingested:
            with local_errors("ingest into the local database", str(self.directory)):
                self._ingest(self._waiting())
        return self._require()

    def _route(
        self, version: VersionRef
    ) -> tuple[VersionRef | None, list[tuple[VersionRef, Path | None]]] | None:
        """Return a view, None for the empty state, and the steps from it to a version."""
        steps: list[tuple[VersionRef, Path | None]] = []
        at: VersionRef | None = version
        while at is not None and at not in self._views:
            step = self._steps.get(at)
            if step is None:
                return None
            steps.append((at, step.path))
            at = step.parent
        return at, steps[::-1]

    def _waiting(self) -> list[tuple[VersionRef, Path | None]]:
        """Return the steps from what is ingested to where the database is, oldest first."""
        steps: list[tuple[VersionRef, Path | None]] = []
        at = self._at
        while at is not None and at != self._ingested:
            step = self._steps[at]
            steps.append((at, step.path))
            at = step.parent
        return steps[::-1]

    def _ingest(self, steps: Sequence[tuple[VersionRef, Path | None]]) -> None:
        """Ingest steps, which stay: there may be a way back to one of them."""
        if not steps:
            return
        database = self._require()
        copies = []
        for number, (_, path) in enumerate(steps):
            if path is not None:
                copy = self.directory / f".tmp-step-{number}.sst"
                copy.unlink(missing_ok=True)
                copy.hardlink_to(path)
                copies.append(str(copy))
        self._ingested, at = None, self._at
        self._at = None
        if copies:
            _ingest_files(database, copies)
        self._at, self._ingested = at, steps[-1][0]

    def _forget_steps(self, keep: frozenset[VersionRef] = frozenset()) -> None:
        for version in [version for version in self._steps if version not in keep]:
            path = self._steps.pop(version).path
            if path is not None:
                path.unlink(missing_ok=True)

    def _adopt(self) -> None:
        """Take over the views of an engine that died; its database may be in any state."""
        found: list[tuple[VersionRef, str]] = []
        for path in self.directory.iterdir():
            is_mixed = False
            try:
                fields = json.loads((path / _VERSION_FILE).read_text())
                is_mixed = fields.pop("is_mixed")
                version = VersionRef(**fields)
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                version = None
            if version is not None and path.name.startswith("view-"):
                found.append((version, str(path)))
                if is_mixed:
                    self._mixed.add(version)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._views = dict(sorted(found, key=lambda view: view[0].version))

    def _open(self, view: str | None) -> Rdict:
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
                    (path / source.name).hardlink_to(source)
                elif source.name != _VERSION_FILE:
                    shutil.copyfile(source, path / source.name)
        self._db = Rdict(str(path), self._options)
        self._path = path
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        return self._db

    def _make_view(self, database: Rdict, version: VersionRef) -> str:
        temporary = self.directory / ".tmp-view"
        shutil.rmtree(temporary, ignore_errors=True)
        Checkpoint(database).create_checkpoint(str(temporary))
        fields = {**asdict(version), "is_mixed": self._is_mixed}
        (temporary / _VERSION_FILE).write_text(json.dumps(fields))
        path = str(self.directory / f"view-{version.version}-{version.checkpoint_id}")
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
        # The version before is still reached, by the steps from the view before.
        route = self._route(version)
        self._forget_steps(frozenset(at for at, _ in route[1]) if route else frozenset())
        self._views.pop(version, None)
        self._views[version] = path
        self._mixed.discard(version)
        if self._is_mixed:
            self._mixed.add(version)
        while len(self._views) > NUM_VIEWS:
            oldest = next(iter(self._views))
            self._mixed.discard(oldest)
            shutil.rmtree(self._views.pop(oldest), ignore_errors=True)
        return path


def _ingest_files(database: Rdict, paths: Sequence[str]) -> None:
    move = IngestExternalFileOptions()
    move.set_move_files(True)
    database.ingest_external_file(list(paths), opts=move)
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
    is_full = "No space left" in str(error) or "Disk quota" in str(error)
    return StorageError(
        f"cannot {action}" + (": no space left" if is_full else ""),
        kind="storage-full" if is_full else "storage",
        directory=path,
        reason=str(error),
        to_fix="free space on the local disk of the executor (spark.local.dir)"
        if is_full
        else "let the batch run again; the local database is built anew from the checkpoint",
    )
