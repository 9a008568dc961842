"""Retention: which files of a store may go, on every state backend.

These stay: the files of the oldest version to retain, every later delta of the lineage, and each
summary that a version made of those, or built on one, could name (`Summaries.nameable`). The files
of a later version are those of the one before it and itself, with summaries in their place: so no
retained version of any attempt lacks a file. The files that can replace a damaged snapshot stay as
well.

Deltas below the oldest version go at once, and so do summaries that no version could name. Files
above it of an attempt that was not chosen go when they are old. The newest version may be such an
attempt, so files from there on stay. A wrong clock loses nothing: age decides only about files that
no version can need.

A lineage begins with version 1, a full state, or a rescaled version, whose files are other
partitions': reference files keep those. As long as one does, no version expires: a store always
keeps its newest versions without a gap, so a version that is missing between two others was lost.
Behind a hole in the lineage nothing goes. A pinned version is retained as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import REPLAYED, is_temporary, parse_state_file_name
from statestore.checkpoint.lineage import check_parent, check_ref
from statestore.checkpoint.load import own_deltas
from statestore.checkpoint.pins import oldest_to_retain
from statestore.checkpoint.trailers import PublishedFile, read_delta_trailer, read_trailer
from statestore.core.errors import CorruptionError, FencedError, NotFoundError

if TYPE_CHECKING:
    from statestore.checkpoint.layout import RescaleRefName, StoreLocation
    from statestore.checkpoint.rescale_refs import References
    from statestore.checkpoint.summaries import Summaries
    from statestore.codec.references import FileRef, VersionRef
    from statestore.core.options import StateStoreOptions
    from statestore.io.file_io import FileInfo

logger = logging.getLogger(__name__)

UNFINISHED_MS = 3_600_000
"""How long a file with a temporary name was left alone before it counts as nobody's."""


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """The files that a cleanup deletes.

    Attributes:
        delete: The files to delete, oldest version first.
        release: References of rescaled versions that are to be released first.
    """

    delete: tuple[FileInfo, ...]
    release: tuple[RescaleRefName, ...]


class KnownDeltas:
    """The deltas of versions written whole that the last cleanup of a store read.

    Each is told by what a listing says of its file. Not thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[FileInfo, PublishedFile] = {}
        self._before: dict[FileInfo, PublishedFile] = {}
        self._listed: dict[str, FileInfo] = {}

    def among(self, files: list[FileInfo]) -> KnownDeltas:
        """Begin a cleanup with a listing, and forget what the last one did not ask for."""
        self._before, self._known = self._known, {}
        self._listed = {info.name: info for info in files}
        return self

    def parent_of(
        self, location: StoreLocation, child: PublishedFile, parent: VersionRef
    ) -> PublishedFile:
        """Return the delta of the version that one is built on; errors as `read_delta_trailer`.

        Raises:
            FencedError: As `check_parent`.
        """
        checkpoint_id = parent.checkpoint_id if child.trailer.checkpoint_format >= 2 else None
        names = location.delta_names(parent.version, checkpoint_id)
        info = next((self._listed[name] for name in names if name in self._listed), None)
        found = self._before.get(info) if info is not None else None
        if found is None:
            found = read_delta_trailer(location, parent.version, checkpoint_id)
        check_parent(found.trailer, parent, location.path(found.ref.path))
        if info is not None and info.name == found.ref.path:
            self._known[info] = found.lean
        return found


@dataclass(frozen=True, slots=True)
class _Retained:
    """The retained part of a lineage.

    Attributes:
        oldest: The oldest version that stays loadable, as far as the lineage is known.
        files: The files of its versions.
        has_hole: Whether the lineage goes on where it is not known.
    """

    oldest: int
    files: frozenset[FileRef]
    has_hole: bool


def plan_cleanup(
    location: StoreLocation,
    head: PublishedFile,
    files: list[FileInfo],
    summaries: Summaries,
    references: References,
    options: StateStoreOptions,
    now_ms: int,
    known: KnownDeltas,
) -> CleanupPlan:
    """Decide which files of a listing may go; reads trailers, deletes nothing.

    Args:
        location: The store.
        head: Newest committed version known.
        files: Listing of the store directory.
        summaries: Those of the store.
        references: Those in its directory.
        options: min_versions_to_retain and orphan_age_ms decide, and pins in the listing.
        now_ms: Now, milliseconds since the Unix epoch.
        known: What the cleanup before has read; on return what this one has.

    Raises:
        CorruptionError, IncompatibleError, StorageError: A trailer on the lineage cannot be read;
            nothing may be deleted then.
    """
    newest = head.trailer.version
    oldest, expired_pins = oldest_to_retain(newest, options.min_versions_to_retain, files, now_ms)
    retained = _retained(location, head, summaries, oldest, known.among(files))
    is_made_of_foreign = any(ref.is_foreign for ref in retained.files)
    held = references.plan_release(
        files,
        head.trailer.num_partitions,
        0 if is_made_of_foreign or retained.has_hole else retained.oldest,
        0 if retained.has_hole else oldest,
    )
    expired_below = 0 if retained.has_hole else retained.oldest
    if held.kept:
        expired_below = min(expired_below, held.lowest)
    judged_from = max(*(ref.version for ref in held.kept), retained.oldest, 0)
    needed = {ref.path for ref in retained.files}
    delete = list(expired_pins)
    stays: list[str] = []
    unnamed: list[tuple[int, FileInfo]] = []
    for info in files:
        age_ms = now_ms - info.modified_ms
        is_old = age_ms >= options.orphan_age_ms
        name = parse_state_file_name(info.name)
        if name is None:
            # A commit may be writing it, whatever the age of orphans.
            if is_temporary(info.name) and is_old and age_ms >= UNFINISHED_MS:
                delete.append(info)
        elif info.name not in needed:
            is_lost = is_old and judged_from <= name.version < newest
            if is_lost or name.version < expired_below:
                unnamed.append((name.version, info))
            elif name.kind == "delta":
                stays.append(info.name)
    nameable = summaries.nameable((info.name for info in files), needed.union(stays))
    unnamed.sort(key=lambda found: found[0])
    delete += [info for _, info in unnamed if info.name not in nameable]
    return CleanupPlan(tuple(delete), held.released)


def _retained(
    location: StoreLocation,
    head: PublishedFile,
    summaries: Summaries,
    oldest: int,
    known: KnownDeltas,
) -> _Retained:
    """Return the files of the versions of a lineage from the oldest to retain on."""
    files: set[FileRef] = set()
    newer, at = head, head
    while True:
        chain = at.chain
        files.update(chain)
        try:
            chain = summaries.reach_back(chain, oldest)
            files.update(chain)
            first = own_deltas(chain, oldest)[0]
            if first != at.ref:
                at = _read(location, first)
            newer = at
            before = at.trailer.parent
            if at.trailer.files or before is None or before.version < oldest:
                break
            # A version that was written whole: the one before it is made of other files.
            at = known.parent_of(location, at, before)
        except (NotFoundError, FencedError) as error:
            # Expired before, or replaced in format v1. Versions behind the hole may be retained.
            logger.info("lineage ends early: store=%s, error=%s", location.store, error)
            first_known = min(ref.version for ref in own_deltas((newer.ref, *chain), oldest))
            return _Retained(first_known, frozenset(files), has_hole=True)
    base = at.trailer.files
    files.update(base)
    is_own_snapshot = base and base[0].kind == "snapshot" and not base[0].is_foreign
    if is_own_snapshot and location.body in REPLAYED:
        try:
            files.update(summaries.files_before((*base, at.ref), 0))
        except (NotFoundError, FencedError, CorruptionError) as error:
            logger.info("a snapshot stands alone: store=%s, error=%s", location.store, error)
    return _Retained(at.trailer.version, frozenset(files), has_hole=False)


def _read(location: StoreLocation, ref: FileRef) -> PublishedFile:
    """Read the trailer of a delta that a chain names."""
    found = read_trailer(location, ref.path)
    check_ref(found.trailer, ref, location.path(ref.path))
    return PublishedFile(ref, found.trailer)
