"""The chain of a version: which durable files make it, which to merge, which may go.

A version's files are deltas and merged files, oldest first; the first may be a snapshot, which is a
merged file that begins with the store itself. Merging goes by size, as in a log-structured merge
tree: young files together with every older one that is not larger than all younger ones, so that a
row is rewritten about log2(versions / 8) times and a chain stays short. Files that a rescale took
over stand first and are merged with the whole chain or not at all: they delete keys of other state
partitions, which a merged file that is not the beginning would pass on as the store's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import is_temporary, parse_state_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.codec.trailer import FileRef
    from statestore.core.options import StateStoreOptions
    from statestore.io.file_io import FileInfo


@dataclass(frozen=True, slots=True)
class Merge:
    """A merged file that is published and the files it stands for, in chain order."""

    sources: tuple[FileRef, ...]
    result: FileRef


def with_merges(chain: tuple[FileRef, ...], merges: Iterable[Merge]) -> tuple[FileRef, ...]:
    """Return a chain with every run of files that was merged replaced by its merged file."""
    for merge in merges:
        length = len(merge.sources)
        for start in range(len(chain) - length + 1):
            if chain[start : start + length] == merge.sources:
                chain = (*chain[:start], merge.result, *chain[start + length :])
                break
    return chain


def merges_left(chain: tuple[FileRef, ...], merges: Iterable[Merge]) -> tuple[Merge, ...]:
    """Return the merges that a version's chain could still take in."""
    return tuple(merge for merge in merges if set(merge.sources) <= set(chain))


def newest_summary(chain: tuple[FileRef, ...]) -> FileRef | None:
    """Return the newest file that stands for more than one version, or for all of the chain."""
    if len(chain) == 1:
        return chain[0]
    merged = (ref for ref in chain if ref.kind != "delta")
    return max(merged, key=lambda ref: ref.version, default=None)


def files_to_merge(chain: tuple[FileRef, ...], min_files: int) -> tuple[FileRef, ...]:
    """Return the youngest run of files that should become one, empty when it is too short.

    After a rescale that is the whole chain as soon as it has so many files of its own.

    Args:
        chain: Files of a version, oldest first.
        min_files: Fewest files worth a merge, at least 2.
    """
    num_foreign = sum(ref.is_foreign for ref in chain)
    if num_foreign:
        return chain if len(chain) - num_foreign >= min_files else ()
    size = 0
    start = len(chain)
    while start > 0 and (size == 0 or chain[start - 1].size <= size):
        start -= 1
        size += chain[start].size
    return chain[start:] if len(chain) - start >= min_files else ()


def files_to_delete(
    files: Iterable[FileInfo],
    needed: Mapping[int, frozenset[str]],
    pending: frozenset[str],
    held_below: int,
    options: StateStoreOptions,
    now_ms: int,
) -> list[FileInfo]:
    """Return the files of a store directory that may go: no retained version is made of them.

    Args:
        files: Listing of the directory.
        needed: For each retained version the paths of the files that make it.
        pending: Merged files that the next version may name, published already or not, and the
            files of newer versions.
        held_below: Files of lower versions stay, for the sake of a rescaled version, or because a
            hole in the lineage hides which of them make a retained version.
        options: orphan_age_ms is the age from which files of newer versions go: of an attempt that
            lost, or of a merge nobody used.
        now_ms: Now, milliseconds since the Unix epoch.
    """
    reachable = pending.union(*needed.values())
    oldest, newest = min(needed), max(needed)
    delete = []
    for info in files:
        is_old = now_ms - info.modified_ms >= options.orphan_age_ms
        name = parse_state_file_name(info.name)
        if name is None:
            if is_temporary(info.name) and is_old:
                delete.append(info)
        # The newest version itself may be the attempt that lost.
        elif (
            info.name not in reachable
            and name.version >= held_below
            and (name.version < oldest or (is_old and name.version < newest))
        ):
            delete.append(info)
    return delete
