"""The lineage of a store's versions, walked from the newest: what cleanups and change feeds ask."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.trailers import PublishedFile, read_delta_trailer
from statestore.codec.trailer import VersionRef
from statestore.core.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.checkpoint.layout import StoreLocation


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """What is remembered of a version.

    Attributes:
        parent: The version it is built on, None where it is a full state.
        checkpoint_format: 1 or 2, which says how the parent's delta is named.
        paths: The files it is made of, relative to the store directory.
    """

    parent: VersionRef | None
    checkpoint_format: int
    paths: frozenset[str]


class Lineage:
    """The versions of one store as far as they are known, read where they are not. Thread-safe."""

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._entries: dict[VersionRef, LineageEntry] = {}

    def add(self, file: PublishedFile) -> None:
        """Remember the version that a delta makes."""
        with self._lock:
            self._entries[file.trailer.version_ref] = _entry(file)

    def walk(self, head: PublishedFile, oldest: int) -> Iterator[tuple[VersionRef, LineageEntry]]:
        """Yield the versions from the head's down to `oldest`, or to the first.

        Raises:
            NotFoundError, FencedError: One was expired or replaced.
            CorruptionError, IncompatibleError, StorageError: A trailer cannot be read.
        """
        ref: VersionRef | None = head.trailer.version_ref
        entry = _entry(head)
        while ref is not None and ref.version >= oldest:
            yield ref, entry
            ref, child = entry.parent, entry
            if ref is not None and ref.version >= oldest:
                entry = self._find(ref, child.checkpoint_format)

    def forget_below(self, version: int) -> None:
        """Forget the versions older than one."""
        with self._lock:
            self._entries = {
                ref: entry for ref, entry in self._entries.items() if ref.version >= version
            }

    def forget(self) -> None:
        """Forget all versions."""
        with self._lock:
            self._entries.clear()

    def paths_above(self, version: int) -> frozenset[str]:
        """Return the files of the known versions newer than one."""
        with self._lock:
            newer = (entry.paths for ref, entry in self._entries.items() if ref.version > version)
            return frozenset().union(*newer)

    def _find(self, ref: VersionRef, checkpoint_format: int) -> LineageEntry:
        with self._lock:
            known = self._entries.get(ref)
        if known is not None:
            return known
        checkpoint_id = ref.checkpoint_id if checkpoint_format >= 2 else None
        found = read_delta_trailer(self._location, ref.version, checkpoint_id)
        if found.trailer.lineage != ref.lineage:
            raise FencedError(
                "a version was replaced by another attempt with other rows",
                kind="lineage-broken",
                version=ref.version,
                to_fix="nothing; maintenance keeps what it can reach",
            )
        entry = _entry(found)
        with self._lock:
            self._entries[ref] = entry
        return entry


def _entry(file: PublishedFile) -> LineageEntry:
    trailer = file.trailer
    paths = frozenset([file.ref.path, *(ref.path for ref in trailer.files)])
    return LineageEntry(trailer.parent, trailer.checkpoint_format, paths)
