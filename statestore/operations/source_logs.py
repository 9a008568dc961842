"""What a file source knows of the files that it has read: without it, it reads all of them again.

The offset of a file source is a number in its own log, `sources/<position>/<number>`. Every so many
entries one ends in `.compact` and holds all before it, which may be deleted then. Source: Spark's
FileStreamSourceLog, releases 4.0 to 4.3.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from statestore.core.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.checkpoint.query_log import OffsetsEntry

SOURCES = "sources"
_OFFSET = re.compile(r'\{"logOffset":([0-9]+)\}')
_ENTRY = re.compile(rf"{SOURCES}/([0-9]+)/([0-9]+)(\.compact)?")


def check_sources(uri: str, offsets: Mapping[int, OffsetsEntry], names: Iterable[str]) -> None:
    """Check that file sources have the log of what they had read by some batches.

    A source that a query reads twice, as in a join with itself, has two offsets and one log.
    Nothing says which they are, so offsets that are the same in every batch may be of one source.

    Args:
        uri: The checkpoint, for the error.
        offsets: Entries of the offset log, by batch.
        names: Paths below the checkpoint directory of at least all its files of sources.

    Raises:
        NotFoundError: An entry is not there (kind file-not-found).
    """
    found: dict[int, dict[int, bool]] = {}
    for entry in filter(None, map(_ENTRY.fullmatch, names)):
        found.setdefault(int(entry[1]), {})[int(entry[2])] = entry[3] is not None
    # Later forms of the log name sources otherwise.
    batches = {batch: entry.sources for batch, entry in offsets.items() if entry.version == "v1"}
    sources = list(zip(*batches.values(), strict=False))
    if _can_be(sources, found):
        return
    for source, texts in enumerate(sources):
        lacks = _lacks(texts, found.get(source, {}))
        if lacks is not None:
            newest = _newest(texts)
            told_by = (
                at for at, of in batches.items() if _newest(of[source : source + 1]) == newest
            )
            raise NotFoundError(
                "a file source would read files again: its log lacks an entry",
                kind="file-not-found",
                checkpoint=uri,
                file=f"{SOURCES}/{source}/{lacks}",
                log_offset=newest,
                told_by=f"offsets/{next(told_by)}",
                to_fix="put the directory back from a copy of the checkpoint; else start the "
                "query with a new checkpoint directory",
            )


def has_input(before: OffsetsEntry, entry: OffsetsEntry, names: Iterable[str]) -> bool:
    """Return whether file sources still know by themselves what they read in a batch.

    They compact their logs: of a batch before that the files are known, and not which batch read
    them.

    Args:
        before: Entry of the offset log of the batch before.
        entry: Entry of the batch.
        names: As `check_sources`.
    """
    known = {int(found[2]) for found in map(_ENTRY.fullmatch, names) if found is not None}
    return all(
        number in known
        for old, new in zip(before.sources, entry.sources, strict=False)
        if (last := _newest((new,))) is not None
        for number in range(_after((old,)), last + 1)
    )


def _can_be(sources: list[tuple[str, ...]], found: dict[int, dict[int, bool]]) -> bool:
    """Return whether logs can be those of all sources.

    The log of a source is the next one, or that of a source before it with the same offsets. Of the
    latter it makes no difference which: each has what the source needs.

    Args:
        sources: Of each the offsets in all batches.
        found: Entries of each log, and whether they are compact.
    """
    newest = {-1}  # the newest log of the sources so far, in each way that they can be
    for number, texts in enumerate(sources):
        shared = newest if texts in sources[:number] else set()
        own = {log + 1 for log in newest}
        newest = shared | {log for log in own if _lacks(texts, found.get(log, {})) is None}
    return bool(newest)


def _lacks(texts: tuple[str, ...], known: dict[int, bool]) -> int | None:
    """Return the first entry that a log lacks of what a source had read; None for none."""
    newest = _newest(texts)
    if newest is None:
        return None
    first = max((number for number, is_compact in known.items() if is_compact), default=0)
    numbers = range(first, max(newest, *known, first) + 1)
    return next((number for number in numbers if number not in known), None)


def _after(texts: tuple[str, ...]) -> int:
    """Return the entry that comes after the newest of a source's, from 0."""
    newest = _newest(texts)
    return 0 if newest is None else newest + 1


def _newest(texts: tuple[str, ...]) -> int | None:
    """Return the newest entry that a source's log must have; None where it is none of files."""
    numbers = [int(found[1]) for found in map(_OFFSET.fullmatch, texts) if found is not None]
    return max(numbers, default=None)
