"""What a file source knows of the files that it has read: without it, it reads all of them again.

The offset of a file source is a number in its own log, `sources/<position>/<number>`, or, where
sources have names, `sources/<name>/<number>`. Every so many entries one ends in `.compact` and
holds all before it, which may be deleted then. Source: Spark's FileStreamSourceLog, OffsetSeqLog,
StreamProgress and StreamingUtils, releases 4.0 to 4.3.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING

from statestore.checkpoint.query_log import NO_OFFSET
from statestore.core.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from statestore.checkpoint.query_log import OffsetsEntry
    from statestore.io.file_io import TreeFileIO

SOURCES = "sources"
_OFFSET = re.compile(r'\{"logOffset":([0-9]+)\}')
_ENTRY = re.compile(rf"{SOURCES}/([^/]+)/([0-9]+)(\.compact)?")


def check_sources(uri: str, offsets: Mapping[int, OffsetsEntry], names: Iterable[str]) -> None:
    """Check that file sources have the log of what they had read by some batches.

    In v1 of the offset log a source that a query reads twice, as in a join with itself, has two
    offsets and one log. Nothing says which they are, so offsets that are the same in every batch
    may be of one source.

    Args:
        uri: The checkpoint, for the error.
        offsets: Entries of the offset log, by batch.
        names: Paths below the checkpoint directory of at least all its files of sources.

    Raises:
        NotFoundError: An entry is not there (kind file-not-found).
    """
    found: dict[str, dict[int, bool]] = {}
    for entry in filter(None, map(_ENTRY.fullmatch, names)):
        found.setdefault(entry[1], {})[int(entry[2])] = entry[3] is not None
    batches = {batch: _by_source(entry) for batch, entry in offsets.items()}
    sources = {
        source: tuple(of.get(source, NO_OFFSET) for of in batches.values())
        for source in dict.fromkeys(source for of in batches.values() for source in of)
    }
    is_v1 = any(entry.version == "v1" for entry in offsets.values())
    if is_v1 and _can_be([*sources.values()], found):
        return
    for source, texts in sources.items():
        logs = [source] if is_v1 else _logs_of(source, sources, found)
        lacks = {log: _lacks(texts, found.get(log, {})) for log in logs}
        if None not in lacks.values():
            newest = _newest(texts)
            told_by = (at for at, of in batches.items() if _newest((of.get(source, ""),)) == newest)
            raise NotFoundError(
                "a file source would read files again: its log lacks an entry",
                kind="file-not-found",
                checkpoint=uri,
                file=f"{SOURCES}/{source}/{lacks[source]}",
                log_offset=newest,
                told_by=f"offsets/{next(told_by)}",
                to_fix="put the directory back from a copy of the checkpoint; else see whether "
                "`statestore repair` finds a version to go back to, or start the query with a new "
                "checkpoint directory",
            )


def names_of_sources(io: TreeFileIO, checkpoint: str) -> list[str]:
    """Return the paths of all files of sources below the checkpoint directory.

    Raises:
        StorageError: The storage failed.
    """
    return [f"{SOURCES}/{info.name}" for info in io.list_tree(f"{checkpoint}/{SOURCES}")]


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
    old = _by_source(before)
    return all(
        number in known
        for source, new in _by_source(entry).items()
        if (last := _newest((new,))) is not None
        for number in range(_after((old.get(source, NO_OFFSET),)), last + 1)
    )


def _by_source(entry: OffsetsEntry) -> dict[str, str]:
    """Return offsets by the position of their source in the query, or by its name.

    In v2 of the log each offset has its source before it; they stand in any order, and there is
    none of a source that has read nothing yet. Of later versions nothing is returned.
    """
    match entry.version:
        case "v1":
            return {str(position): text for position, text in enumerate(entry.sources)}
        case "v2":
            split = (line.partition(":") for line in entry.sources)
            return {source: text for source, _, text in split}
    return {}


def _logs_of(
    source: str, sources: Collection[str], found: Mapping[str, Mapping[int, bool]]
) -> list[str]:
    """Return logs, one of which a source has, where the offset log is of v2.

    The log has the name of the source, or its position. A source that is read twice has the last of
    its positions: behind one that is not there a log may be any up to the position.
    """
    if not source.isdecimal():
        return [source]
    gap = next(position for position in count() if str(position) not in sources)
    between = (log for log in found if log.isdecimal() and gap <= int(log) < int(source))
    return [source, *between]


def _can_be(sources: list[tuple[str, ...]], found: Mapping[str, Mapping[int, bool]]) -> bool:
    """Return whether logs can be those of all sources, where the offset log is of v1.

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
        newest = shared | {log for log in own if _lacks(texts, found.get(str(log), {})) is None}
    return bool(newest)


def _lacks(texts: tuple[str, ...], known: Mapping[int, bool]) -> int | None:
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
