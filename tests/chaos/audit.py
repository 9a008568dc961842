"""The audit of a lane: its sink and its state against a batch computation, and its files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lives import ProblemError

from .inspection import offsets_of
from .queries import QUERIES

if TYPE_CHECKING:
    from .lane import LaneSpec
    from .stream import Event

MOST_FILES = 45
"""Files of a store that are older than a minute: those of ten versions and what these build on."""


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def audit_lane(
    spec: LaneSpec, folder: Path, files: list[list[Event]], found: dict[str, Any]
) -> int:
    """Compare a lane that stands still with what it should be.

    Args:
        spec: The lane.
        folder: Its folder.
        files: Events of every file it was fed.
        found: What `inspect` returned.

    Returns:
        Number of events that were counted.

    Raises:
        ProblemError: A row is lost, doubled or wrong, a version is not whole, or a file of no
            use stays.
    """
    query = QUERIES[spec.query]
    numbers, watermark = offsets_of(folder / spec.checkpoint, found["batch"])
    sources = [[event for file in files[:number] for event in file] for number in numbers]
    expected = query.expect(sources, watermark)
    batches = sorted((folder / "sink").glob("*.json"), key=lambda path: int(path.stem))
    rows = query.sink_rows(
        [json.loads(line) for line in path.read_text().splitlines()] for path in batches
    )
    _compare("sink", spec, rows, expected.rows)
    if expected.state is not None:
        _compare("state", spec, found["state"], expected.state)
    if found["findings"]:
        raise ProblemError("verify --deep has findings", f"{spec}: {found['findings']}")
    if found["orphans"]:
        raise ProblemError("orphans stay", f"{spec}: {found['orphans']}")
    if found["files"] > MOST_FILES:
        raise ProblemError("the files of a store grow", f"{spec}: {found['files']}")
    return sum(map(len, sources))


def _compare(what: str, spec: LaneSpec, rows: Counter[Any], expected: Counter[Any]) -> None:
    lost, more = expected - rows, rows - expected
    if lost or more:
        raise ProblemError(
            f"rows of the {what} are lost or doubled",
            f"{spec}: lost={lost.total()}, more={more.total()}, of {expected.total()}, first lost="
            f"{list(lost.items())[:3]}, first more={list(more.items())[:3]}",
        )
