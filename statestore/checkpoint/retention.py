"""Retention: which files of a store may go.

Everything at or above the low-water mark stays: the oldest version that must stay loadable, the
snapshot it starts from, and the files that would stand for that snapshot if it were damaged. The
base of a version is never newer than the base of the version after it, so one walk along the
lineage finds the mark. A lineage begins with version 1, a full state, or a rescaled version, whose
files are other partitions': reference files keep those. A lineage with a hole has no mark: nothing
goes for its age until the oldest version to be retained is newer than the hole. A pinned version is
retained as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import is_temporary, parse_state_file_name
from statestore.checkpoint.lineage import check_ref
from statestore.checkpoint.pins import oldest_to_retain
from statestore.checkpoint.rescale_refs import find_refs, plan_release
from statestore.checkpoint.restore import own_deltas, reach_back
from statestore.checkpoint.trailers import read_trailer
from statestore.core.errors import FencedError, NotFoundError

if TYPE_CHECKING:
    from statestore.checkpoint.layout import RescaleRefName, StateFileName, StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.trailer import FileRef
    from statestore.core.options import StateStoreOptions
    from statestore.io.file_io import FileInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """What a cleanup would do.

    Attributes:
        low_water: Every state file of a lower version goes; 0 where the lineage has a hole.
        delete: The files to delete.
        snapshots: Names of the snapshots on the lineage that stay, oldest first.
        release: References of rescaled versions that are to be released first.
    """

    low_water: int
    delete: tuple[FileInfo, ...]
    snapshots: tuple[str, ...]
    release: tuple[RescaleRefName, ...]


def plan_cleanup(
    location: StoreLocation,
    head: PublishedFile,
    files: list[FileInfo],
    options: StateStoreOptions,
    now_ms: int,
) -> CleanupPlan:
    """Decide which files of a listing may go; reads trailers, deletes nothing.

    Args:
        location: The store.
        head: Newest committed version known.
        files: Listing of the store directory.
        options: min_versions_to_retain and orphan_age_ms decide, and pins in the listing.
        now_ms: Now, milliseconds since the Unix epoch.

    Raises:
        CorruptionError, IncompatibleError, StorageError: A trailer on the lineage cannot be read;
            nothing may be deleted then.
    """
    num_retained = options.min_versions_to_retain
    oldest, expired_pins = oldest_to_retain(head.trailer.version, num_retained, files, now_ms)
    low_water, lineage = _walk_lineage(location, head, oldest)
    partition, num_partitions = location.store.partition, head.trailer.num_partitions
    release, held = plan_release(find_refs(files), partition, num_partitions, low_water)
    delete = expired_pins
    snapshots: list[tuple[int, str]] = []
    for info in files:
        name = parse_state_file_name(info.name)
        is_old = now_ms - info.modified_ms >= options.orphan_age_ms
        if name is None:
            if is_temporary(info.name) and is_old:
                delete.append(info)
        elif name.version < low_water or (is_old and _lost_its_version(name, head, lineage)):
            if name.version >= held:
                delete.append(info)
        elif name.kind == "snapshot" and lineage.get(name.version) == name.checkpoint_id:
            snapshots.append((name.version, info.name))
    ordered = tuple(name for _, name in sorted(snapshots))
    return CleanupPlan(low_water, tuple(delete), ordered, release)


def _walk_lineage(
    location: StoreLocation, head: PublishedFile, oldest: int
) -> tuple[int, dict[int, str]]:
    """Return the low-water mark and the checkpoint ID of each version on the lineage from there."""
    chain: tuple[FileRef, ...] = (*head.trailer.files, head.ref)
    low_water = 0
    try:
        chain = reach_back(location, chain, oldest)
        low_water = _first_version_needed(location, chain, oldest)
        # One more step: what stands for the snapshot that the oldest version starts from.
        chain = reach_back(location, chain, low_water)
        low_water = _first_version_needed(location, chain, low_water)
    except (NotFoundError, FencedError) as error:
        # Expired before, or replaced in format v1. When the oldest version was not reached, what
        # lies behind the hole may be retained, and nothing goes for its age.
        logger.info("lineage ends early: store=%s, error=%s", location.store, error)
    return low_water, {ref.version: ref.checkpoint_id for ref in chain if not ref.is_foreign}


def _first_version_needed(location: StoreLocation, chain: tuple[FileRef, ...], version: int) -> int:
    """Return the first version whose files are needed to load a version of a chain.

    Raises:
        NotFoundError, FencedError: Its delta was expired or replaced.
        CorruptionError, IncompatibleError, StorageError: Its trailer cannot be read.
    """
    ref = own_deltas(chain, version)[0]
    found = read_trailer(location, ref.path)
    check_ref(found.trailer, found.ref.size, ref, location.path(ref.path))
    own = (ref.version for ref in found.trailer.files if not ref.is_foreign)
    return next(own, ref.version)


def _lost_its_version(name: StateFileName, head: PublishedFile, lineage: dict[int, str]) -> bool:
    """Return whether a file with an ID in its name belongs to an attempt that was not chosen.

    Only versions below the head are judged: the head itself may be the attempt that lost.
    """
    if name.checkpoint_id is None or name.version >= head.trailer.version:
        return False
    if head.trailer.checkpoint_format < 2:
        return False
    return lineage.get(name.version, name.checkpoint_id) != name.checkpoint_id
