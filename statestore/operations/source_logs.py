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
    from collections.abc import Iterable

    from statestore.checkpoint.query_log import OffsetsEntry

SOURCES = "sources"
_OFFSET = re.compile(r'\{"logOffset":([0-9]+)\}')
_ENTRY = re.compile(rf"{SOURCES}/([0-9]+)/([0-9]+)(\.compact)?")


def check_sources(uri: str, offsets: Iterable[OffsetsEntry], names: Iterable[str]) -> None:
    """Check that file sources have the log of what they had read by some batches.

    Args:
        uri: The checkpoint, for the error.
        offsets: Entries of the offset log.
        names: Paths below the checkpoint directory of at least all its files of sources.

    Raises:
        NotFoundError: An entry is not there (kind file-not-found).
    """
    found: dict[int, dict[int, bool]] = {}
    for entry in filter(None, map(_ENTRY.fullmatch, names)):
        found.setdefault(int(entry[1]), {})[int(entry[2])] = entry[3] is not None
    for source, newest in sorted(_newest(offsets).items()):
        known = found.get(source, {})
        first = max((number for number, is_compact in known.items() if is_compact), default=0)
        for number in range(first, max(newest, *known, first) + 1):
            if number not in known:
                raise NotFoundError(
                    "a file source would read files again: its log lacks an entry",
                    kind="file-not-found",
                    checkpoint=uri,
                    file=f"{SOURCES}/{source}/{number}",
                    log_offset=newest,
                    to_fix="put the directory back from a copy of the checkpoint; else start the "
                    "query with a new checkpoint directory",
                )


def _newest(offsets: Iterable[OffsetsEntry]) -> dict[int, int]:
    """Return the newest entry that is needed, by the position of a file source."""
    needed: dict[int, int] = {}
    for entry in offsets:
        # Later forms of the log name sources otherwise.
        for source, text in enumerate(entry.sources if entry.version == "v1" else ()):
            offset = _OFFSET.fullmatch(text)
            if offset is not None:
                needed[source] = max(int(offset[1]), needed.get(source, 0))
    return needed
