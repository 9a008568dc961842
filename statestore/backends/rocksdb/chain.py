"""The chain of a version: chooses the durable files to merge.

A version's files are deltas and merged files, oldest first; the first may be a snapshot, which is a
merged file that begins with the store itself. Merging goes by size, as in a log-structured merge
tree: young files together with every older one that is not larger than all younger ones, so that a
row is rewritten about log2(versions / 8) times and a chain stays short. Files that a rescale took
over stand first and are merged with the whole chain or not at all: they delete keys of other state
partitions, which a merged file that is not the beginning would pass on as the store's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statestore.codec.references import FileRef


def newest_summary(chain: tuple[FileRef, ...]) -> FileRef | None:
    """Return the newest file that replaces several files, or all of the chain."""
    if len(chain) == 1:
        return chain[0]
    merged = (ref for ref in chain if ref.kind != "delta")
    return max(merged, key=lambda ref: ref.version, default=None)


def files_to_merge(chain: tuple[FileRef, ...], min_files: int) -> tuple[FileRef, ...]:
    """Return the youngest run of files to merge, empty if it is too short.

    After a rescale that is the whole chain, once it has so many files of its own.

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
