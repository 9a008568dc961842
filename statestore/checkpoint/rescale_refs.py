"""Reference files of rescales: a rescaled version holds the files of its sources.

`<version>.<partition>.ref` lies in the directory of every source, where it keeps the files of lower
versions from being deleted, and in the rescaled store's own directory. Its bytes are the same
everywhere and name the sources. A maintenance that lists its own directory, as each does, sees them
all; no further request is made until the last retained version that needs foreign files has gone.
The one in its own directory is written first and deleted last, so that it always leads to the
others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from statestore.checkpoint.cleanup import Cleanup, Deadline, delete_files
from statestore.checkpoint.layout import (
    RescaleRefName,
    is_temporary,
    parse_pin_name,
    parse_rescale_ref_name,
    parse_state_file_name,
)
from statestore.core.errors import CorruptionError, IncompatibleError, NotFoundError
from statestore.core.json_fields import MalformedError, parse_fields, to_integer
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT
from statestore.io.file_io import delete_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statestore.checkpoint.layout import StoreLocation
    from statestore.io.file_io import FileInfo

FORMAT_VERSION = 1


def write_refs(
    location: StoreLocation, version: int, sources: Iterable[int], *, sync: bool
) -> None:
    """Keep the files of some state partitions for a version that is going to be made of them.

    Args:
        location: The store that the version is of.
        version: The rescaled version.
        sources: State partitions whose store directories hold the files.
        sync: Whether to wait for the disk.

    Guarantee: on return no maintenance deletes a file of a lower version there, until `release` or
    `plan_release` says so. Writing them again changes nothing.

    Raises:
        StorageError: The storage failed; `release` takes away what was written.
    """
    own = location.store.partition
    ref = RescaleRefName(version, own)
    others = sorted(set(sources) - {own})
    fields = {"format_version": FORMAT_VERSION, "sources": sorted({own, *others})}
    data = json.dumps(fields).encode()
    for partition in (own, *others):
        source = location.sibling(partition)
        source.io.make_directory(source.directory)
        source.io.write(source.path(str(ref)), data, sync=sync, overwrite=True)


def find_refs(files: Iterable[FileInfo]) -> tuple[RescaleRefName, ...]:
    """Return the reference files of a listing."""
    found = (parse_rescale_ref_name(info.name) for info in files)
    return tuple(sorted(ref for ref in found if ref is not None))


def plan_release(
    refs: Iterable[RescaleRefName], partition: int, num_partitions: int, oldest: int
) -> tuple[tuple[RescaleRefName, ...], int]:
    """Decide which reference files of a store directory are needed no longer.

    None goes before the store's newest rescaled version does: until then that rescale may be
    undone, which needs the files of the layout before it. Then the store's own go, and those of
    state partitions that no longer exist: whoever took over their state has its own.

    Args:
        refs: Reference files in the directory.
        partition: State partition of the store.
        num_partitions: State partitions that the checkpoint has now.
        oldest: The oldest version that a retained version of the store is made of; 0 where one of
            them is made of files that a rescale took over.

    Returns:
        The references to release; and the version below which the remaining ones keep every file, 0
        without any.
    """
    known = tuple(refs)
    newest_own = max((ref.version for ref in known if ref.partition == partition), default=0)
    done = tuple(
        ref
        for ref in known
        if newest_own < oldest
        and ref.version < oldest
        and (ref.partition == partition or ref.partition >= num_partitions)
    )
    return done, max((ref.version for ref in known if ref not in done), default=0)


def release(
    location: StoreLocation,
    refs: Sequence[RescaleRefName],
    num_partitions: int,
    deadline: Deadline | None = None,
) -> Cleanup:
    """Release the sources of rescaled versions, and delete those that no longer exist.

    Args:
        location: A store whose directory has the reference files.
        refs: Its own, or of state partitions that no longer exist; a missing file is no error.
        num_partitions: State partitions that the checkpoint has now: a source beyond them has no
            maintenance of its own, so whoever releases it last deletes its files.
        deadline: After it no more of those files are deleted, and the own reference stays.

    Guarantee: can be repeated after a raise, and after the deadline.

    Raises:
        CorruptionError, IncompatibleError: A reference cannot be read.
        StorageError: The storage failed.
    """
    own = location.store.partition
    below = max((ref.version for ref in refs if ref.partition == own), default=0)
    cleaned = Cleanup()
    for ref in refs:
        sources = _read_sources(location, ref) if ref.partition == own else ()
        for partition in sources:
            if partition != own:
                source = location.sibling(partition)
                source.io.delete(source.path(str(ref)))
                cleaned += _delete_abandoned(source, below, num_partitions, {own}, deadline)
                if cleaned.num_left:
                    return cleaned
    _delete_refs(location, refs)
    return cleaned


def _delete_abandoned(
    location: StoreLocation,
    below: int,
    num_partitions: int,
    visited: set[int],
    deadline: Deadline | None,
) -> Cleanup:
    """Delete the files of a state partition that no longer exists, unless a version needs them."""
    partition = location.store.partition
    if partition < num_partitions or partition in visited:
        return Cleanup()
    visited.add(partition)
    files = location.io.list(location.directory)
    refs = find_refs(files)
    if any(ref.partition < num_partitions or ref.version > below for ref in refs):
        return Cleanup()
    cleaned = delete_files(
        location, [info for info in files if _is_below(info.name, below)], deadline
    )
    # It was perhaps the last that needed the files of its own sources.
    own = {ref for ref in refs if ref.partition == partition}
    for source in sorted({source for ref in own for source in _read_sources(location, ref)}):
        if not cleaned.num_left:
            cleaned += _delete_abandoned(
                location.sibling(source), below, num_partitions, visited, deadline
            )
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


def _is_below(file_name: str, version: int) -> bool:
    """Return whether a file is of a lower version, or of none and useless without those."""
    name = parse_state_file_name(file_name)
    if name is not None:
        return name.version < version
    return is_temporary(file_name) or parse_pin_name(file_name) is not None


def _read_sources(location: StoreLocation, ref: RescaleRefName) -> tuple[int, ...]:
    path = location.path(str(ref))
    try:
        data, _ = location.io.read_tail(path, 1 << 20)
        fields = parse_fields(data)
        version = fields.integer("format_version", 1)
        sources = tuple(
            to_integer(source, 0, MAX_PARALLELISM_LIMIT - 1) for source in fields.items("sources")
        )
    except NotFoundError:
        return ()
    except MalformedError as error:
        raise CorruptionError(
            "a rescale's reference file cannot be read",
            file=path,
            offset=0,
            to_fix="restore the file from a copy: the same one is in the directory of every "
            "state partition it names",
        ) from error
    if version > FORMAT_VERSION:
        raise IncompatibleError(
            "a rescale's reference file is of a newer format version",
            kind="newer-format",
            file=path,
            format_version=version,
            newest_known=FORMAT_VERSION,
            to_fix="use the statestore release that wrote it, or a later one",
        )
    return sources
