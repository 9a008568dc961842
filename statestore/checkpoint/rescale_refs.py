"""Reference files of rescales: a rescaled version holds the files of its sources.

`<version>.<partition>.ref` lies in the directory of every source, where it keeps the files of lower
versions from being deleted, and in the rescaled store's own directory. Its bytes are the same
everywhere: they name the sources, and the oldest version whose files the rescaled one is made of.
A maintenance that lists its own directory, as each does, sees them all; it reads them, once, only
where the rescale is older than every version to retain. The one in its own directory is written
first and deleted last, so that it always leads to the others.

Let r be a rescale that is older than every version to retain. Those are made of files that r names,
or that came after it, whichever rescales followed. So nothing needs a file that is older than those
that r names, and the references of the rescales before r may go. Both stay so when a later rescale
is undone. A rescale that was killed has references, too, perhaps not all: it counts as none.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.cleanup import Cleanup, Deadline, delete_files
from statestore.checkpoint.layout import (
    RescaleRefName,
    is_temporary,
    parse_pin_name,
    parse_rescale_ref_name,
    parse_state_file_name,
)
from statestore.checkpoint.trailers import read_trailer
from statestore.core.errors import CorruptionError, NotFoundError
from statestore.core.json_fields import MalformedError, parse_fields, to_integer
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT
from statestore.io.file_io import delete_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from statestore.checkpoint.layout import StoreLocation
    from statestore.io.file_io import FileInfo

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1


def write_refs(location: StoreLocation, version: int, sources: Iterable[int], lowest: int) -> None:
    """Keep the files of some state partitions for a version that is going to be made of them.

    Args:
        location: The store that the version is of.
        version: The rescaled version.
        sources: State partitions whose store directories hold the files.
        lowest: The oldest version whose files it is made of, or would be were a summary damaged;
            itself where there are none.

    Guarantee: on return the references are durable, and no maintenance deletes a file of a lower
    version there, until `release` or `References.plan_release` says so. Writing them again changes
    nothing; what another rescale that made the version before, and was killed or taken back, has of
    them is released with them.

    Raises:
        CorruptionError, IncompatibleError: Those of such a rescale cannot be read.
        StorageError: The storage failed; `release` takes away what was written.
    """
    own = location.store.partition
    ref = RescaleRefName(version, own)
    before = _read(location, ref)
    others = sorted({*sources, *before.sources} - {own})
    fields = {
        "format_version": FORMAT_VERSION,
        "sources": sorted({own, *others}),
        "lowest": min(lowest, before.lowest) if before.sources else lowest,
    }
    data = json.dumps(fields).encode()
    for partition in (own, *others):
        source = location.sibling(partition)
        source.io.make_directory(source.directory)
        source.io.write(source.path(str(ref)), data, sync=True, overwrite=True)


def find_refs(files: Iterable[FileInfo]) -> tuple[RescaleRefName, ...]:
    """Return the reference files of a listing."""
    found = (parse_rescale_ref_name(info.name) for info in files)
    return tuple(sorted(ref for ref in found if ref is not None))


@dataclass(frozen=True, slots=True)
class Held:
    """The reference files of a store directory, as a maintenance finds them.

    Attributes:
        released: Those that are needed no longer.
        kept: The others.
        lowest: `kept` keeps no file of a version below it; 0 where that is not known.
    """

    released: tuple[RescaleRefName, ...]
    kept: tuple[RescaleRefName, ...]
    lowest: int


class References:
    """The reference files in the directory of one store; each is read once.

    Args:
        location: The store.
    """

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._known: dict[tuple[str, int], int] = {}
        """What was read of a file, by its name and the time at which it was written: `lowest` of a
        reference; of a delta whether it has a parent."""

    def plan_release(
        self, files: Sequence[FileInfo], num_partitions: int, made_of: int, retained: int
    ) -> Held:
        """Decide which reference files are needed no longer.

        None goes before the store's newest rescaled version does, or while there is none that is
        newer and older than every version to retain: until then a rescale may be undone, which
        needs the files of the layout before it. Then the store's own go, and those of state
        partitions that no longer exist: whoever took over their state has its own.

        Args:
            files: Listing of the directory.
            num_partitions: State partitions that the checkpoint has now.
            made_of: The oldest version that a retained version of the store is made of; 0 where one
                of them is made of files that a rescale took over.
            retained: The oldest version to retain; 0 where the lineage is not known.

        Raises:
            IncompatibleError, StorageError: A reference, or the trailer of a rescaled version,
                cannot be read; for a damaged one files stay.
        """
        refs = find_refs(files)
        partition = self._location.store.partition
        own = [ref.version for ref in reversed(refs) if ref.partition == partition]
        passed = next(
            (
                version
                for version in own
                if version < retained and self._is_rescaled(files, version)
            ),
            0,
        )
        may_go_below = max(passed, made_of if max(own, default=0) < made_of else 0)
        released = tuple(
            ref
            for ref in refs
            if ref.version < may_go_below
            and (ref.partition == partition or ref.partition >= num_partitions)
        )
        kept = tuple(ref for ref in refs if ref not in released)
        lowest = self._lowest(files, kept) if passed else 0
        present = {(info.name, info.modified_ms) for info in files}
        self._known = {key: known for key, known in self._known.items() if key in present}
        return Held(released, kept, lowest)

    def _is_rescaled(self, files: Sequence[FileInfo], version: int) -> bool:
        """Return whether a rescale made a version, which a batch has not made since."""
        names = ((info, parse_state_file_name(info.name)) for info in files)
        deltas = [info for info, of in names if of and (of.kind, of.version) == ("delta", version)]
        return bool(deltas) and not any(self._once(info, self._has_parent) for info in deltas)

    def _has_parent(self, name: str) -> int:
        return read_trailer(self._location, name).trailer.parent is not None

    def _lowest(self, files: Sequence[FileInfo], kept: tuple[RescaleRefName, ...]) -> int:
        names = {str(ref): ref for ref in kept}
        found = [info for info in files if info.name in names]
        return min(
            (
                self._once(info, lambda name: _read(self._location, names[name]).lowest, damaged=0)
                for info in found
            ),
            default=0,
        )

    def _once(self, info: FileInfo, read: Callable[[str], int], *, damaged: int = 1) -> int:
        key = info.name, info.modified_ms
        if key not in self._known:
            try:
                self._known[key] = read(info.name)
            except NotFoundError:
                return damaged
            except CorruptionError as error:
                logger.warning("files stay for what cannot be read: error=%s", error)
                return damaged
        return self._known[key]


def release(
    location: StoreLocation,
    refs: Sequence[RescaleRefName],
    num_partitions: int,
    newest: int,
    deadline: Deadline | None = None,
) -> Cleanup:
    """Release the sources of rescaled versions, and delete what is in those that no longer exist.

    Args:
        location: A store whose directory has the reference files.
        refs: Its own, or of state partitions that no longer exist; a missing file is no error.
        num_partitions: State partitions that the checkpoint has now: one beyond them has no
            maintenance of its own, so whoever releases it last deletes its files.
        newest: Newest version of the checkpoint: files of a later one, which was taken back or is
            a rescale's under way, stay, and with them the references here, for the next cleanup.
        deadline: After it no more of those files are deleted, and the references here stay.

    Guarantee: can be repeated after a raise, and after the deadline.

    Raises:
        CorruptionError, IncompatibleError: A reference cannot be read.
        StorageError: The storage failed.
    """
    own = location.store.partition
    abandoned = {ref.partition for ref in refs}
    for ref in refs:
        if ref.partition == own:
            abandoned.update(_release_sources(location, ref))
    cleaned = Cleanup()
    visited = {own}
    below = max((ref.version for ref in refs), default=0)
    for partition in sorted(abandoned):
        if cleaned.num_files and deadline is not None and deadline.has_passed():
            cleaned += Cleanup(num_left=1)
        if cleaned.num_left:
            return cleaned
        source = location.sibling(partition)
        cleaned += _delete_abandoned(source, below, newest, num_partitions, visited, deadline)
    if not cleaned.num_left:
        _delete_refs(location, refs)
    return cleaned


def _release_sources(location: StoreLocation, ref: RescaleRefName) -> list[int]:
    """Delete a store's own reference where its other sources have it, and return those."""
    others = [number for number in _read(location, ref).sources if number != ref.partition]
    for number in others:
        source = location.sibling(number)
        source.io.delete(source.path(str(ref)))
    return others


def _delete_abandoned(
    location: StoreLocation,
    below: int,
    newest: int,
    num_partitions: int,
    visited: set[int],
    deadline: Deadline | None,
) -> Cleanup:
    """Delete the files of a state partition that no longer exists, unless a version needs them.

    One that needs them, or existed in between, has a reference there. So files of later versions
    than those released are of no use either: a rescale or batches that were taken back left them.
    """
    partition = location.store.partition
    if partition < num_partitions or partition in visited:
        return Cleanup()
    visited.add(partition)
    files = location.io.list(location.directory)
    refs = find_refs(files)
    if any(ref.partition < num_partitions or ref.version > below for ref in refs):
        return Cleanup()
    cleaned = delete_files(
        location, [info for info in files if _may_go(info.name, newest)], deadline
    )
    # What is of later versions goes with a later cleanup, which the references lead to it.
    names = filter(None, (parse_state_file_name(info.name) for info in files))
    cleaned += Cleanup(num_left=sum(name.version > newest for name in names))
    # It was perhaps the last that needed the files of its own sources. What it has there goes now:
    # once a rescale has made the state partition anew, it would be taken for one that is needed.
    for ref in (ref for ref in refs if ref.partition == partition):
        for number in () if cleaned.num_left else _release_sources(location, ref):
            source = location.sibling(number)
            cleaned += _delete_abandoned(source, below, newest, num_partitions, visited, deadline)
    if not cleaned.num_left:
        _delete_refs(location, refs)
    return cleaned


def _delete_refs(location: StoreLocation, refs: Sequence[RescaleRefName]) -> None:
    """Delete reference files of a store directory, the store's own last."""
    own = location.store.partition
    for names in (
        [str(ref) for ref in refs if ref.partition != own],
        [str(ref) for ref in refs if ref.partition == own],
    ):
        for batch in delete_batches(names):
            location.io.delete_files(location.directory, batch)


def _may_go(file_name: str, newest: int) -> bool:
    """Return whether a file is of no later version than the newest, or of none."""
    name = parse_state_file_name(file_name)
    if name is not None:
        return name.version <= newest
    return is_temporary(file_name) or parse_pin_name(file_name) is not None


@dataclass(frozen=True, slots=True)
class _Ref:
    """What a reference file says; see `write_refs`."""

    sources: tuple[int, ...] = ()
    lowest: int = 0


def _read(location: StoreLocation, ref: RescaleRefName) -> _Ref:
    """Read a reference file; without sources where it is not there."""
    path = location.path(str(ref))
    try:
        data, _ = location.io.read_tail(path, 1 << 20)
        fields = parse_fields(data)
        fields.require_format(FORMAT_VERSION, path)
        sources = tuple(
            to_integer(source, 0, MAX_PARALLELISM_LIMIT - 1) for source in fields.items("sources")
        )
        lowest = fields.integer("lowest", 0, ref.version)
    except NotFoundError:
        return _Ref()
    except MalformedError as error:
        raise CorruptionError(
            "a rescale's reference file cannot be read",
            file=path,
            offset=0,
            to_fix="restore the file from a copy: the same one is in the directory of every "
            "state partition it names",
        ) from error
    return _Ref(sources, lowest)
