"""The newest versions of a store that this process committed or loaded."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.commit import find_committed, read_parent, require_stream
from statestore.checkpoint.load import check_settings
from statestore.checkpoint.trailers import PublishedFile, read_delta_trailer

if TYPE_CHECKING:
    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.references import VersionRef

_NUM_REMEMBERED = 2


class RecentVersions:
    """The trailers of the two newest versions, so that a commit need not read its parent's.

    Thread-safe: only memory is locked, never a storage call.
    """

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._files: dict[tuple[int, str], PublishedFile] = {}

    def remember(self, file: PublishedFile) -> None:
        """Take in the delta of a version as the newest; the times of its commit stay known."""
        key = (file.trailer.version, file.trailer.checkpoint_id)
        with self._lock:
            known = self._files.pop(key, file)
            self._files[key] = replace(file, commit=file.commit or known.commit)
            while len(self._files) > _NUM_REMEMBERED:
                del self._files[next(iter(self._files))]

    def recall(self, version: VersionRef) -> PublishedFile | None:
        """Return the delta of a version, None where it is not remembered."""
        with self._lock:
            return self._files.get((version.version, version.checkpoint_id))

    def read(self, version: int, checkpoint_id: str | None) -> PublishedFile:
        """Return the delta of a version, from the storage where it is not remembered.

        Raises:
            NotFoundError, CorruptionError, FencedError, StorageError: As `read_delta_trailer`.
        """
        with self._lock:
            for (known_version, known_id), file in self._files.items():
                if known_version == version and checkpoint_id in (None, known_id):
                    return file
        return read_delta_trailer(self._location, version, checkpoint_id)

    def forget(self) -> None:
        """Forget all; the next commit looks at the storage first."""
        with self._lock:
            self._files.clear()

    def find_done(self, new: NewVersion, local_path: str, *, sync: bool) -> PublishedFile | None:
        """Return the version if this attempt committed it before, and delete its stream.

        Guarantee: as `publish_delta`, with `sync`: its publisher may have died before it waited.

        The storage is asked where the parent is not remembered, since this may be a new engine that
        repeats a call of the last one, or where the stream is gone.

        Raises:
            StorageError: The storage failed, or stream and version are both gone.
        """
        is_known = new.parent is not None and self.recall(new.parent) is not None
        if is_known and Path(local_path).exists():
            return None
        done = find_committed(self._location, new)
        if done is None:
            require_stream(local_path)
            return None
        if sync:
            self._location.io.sync(self._location.path(done.ref.path))
        Path(local_path).unlink(missing_ok=True)
        return done

    def parent_of(self, new: NewVersion) -> PublishedFile | None:
        """Return the delta that a commit is built on, None for a full state.

        Raises:
            FencedError, StorageError: As `read_parent`.
            IncompatibleError: The version does not fit its parent's settings.
        """
        cached = self.recall(new.parent) if new.parent else None
        parent = read_parent(self._location, new, cached)
        if parent is not None:
            check_settings(
                parent.trailer,
                backend=new.backend,
                num_partitions=new.num_partitions,
                max_parallelism=new.max_parallelism,
            )
        return parent
