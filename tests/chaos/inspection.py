"""What a checkpoint holds: which batches, whether it is whole, its state, and files of no use."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore import driver_memory
from statestore.checkpoint.layout import is_temporary, parse_state_file_name
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.reading.read import read
from statestore.operations.upkeep.verify import verify

from .lane import ORPHAN_AGE_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statestore.operations.checkpoint import Checkpoint

    from .lane import LaneSpec

SLACK_MS = 40_000
"""How much older than `orphan.ageMs` an orphan may get: maintenance runs beside faults."""


def newest_commit(checkpoint: Path) -> int:
    """Return the newest committed batch, -1 when there is none."""
    names = (path.name for path in (checkpoint / "commits").glob("[0-9]*"))
    return max((int(name) for name in names if name.isdigit()), default=-1)


def offsets_of(checkpoint: Path, batch: int) -> tuple[list[int], datetime]:
    """Return how many files of each source were read with a batch, and its watermark."""
    _, metadata, *sources = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    watermark_ms = json.loads(metadata)["batchWatermarkMs"]
    numbers = [json.loads(source)["logOffset"] + 1 for source in sources]
    return numbers, datetime.fromtimestamp(watermark_ms / 1000, UTC)


def inspect(spark: SparkSession, directory: Path, spec: LaneSpec) -> dict[str, Any]:
    """Return what there is to compare and to complain about.

    Returns:
        `batch`, the newest committed; `findings`, of every version, deep; `state`, rows of the
        state as `Expected` has them, None of a join; `orphans`; `files`, the most of any store.
    """
    with ExitStack() as stack:
        memory = None
        if spec.backend == "heap":
            memory = stack.enter_context(driver_memory(spark))
        checkpoint = stack.enter_context(
            open_checkpoint(str(directory), options=spec.options(), memory=memory)
        )
        found = verify(checkpoint, versions="all", deep=True)
        orphans, num_files = _orphans(checkpoint, spec.retained)
        return {
            "batch": checkpoint.newest_committed,
            "findings": [str(finding) for finding in found.findings],
            "state": _state(checkpoint, spec.query),
            "orphans": orphans,
            "files": num_files,
        }


def _state(checkpoint: Checkpoint, query: str) -> Counter[Any] | None:
    if query == "pairs":
        return None
    rows = read(checkpoint).to_pylist()
    if query == "totals":
        made = [(*row["key"].values(), *row["value"].values()) for row in rows]
    elif query == "distinct":
        made = [tuple(row["key"].values()) for row in rows]
    else:
        made = [(row["key"]["user"], *_counts(row["value"])) for row in rows]
    return Counter(made)


def _counts(value: dict[str, Any]) -> tuple[int, int]:
    """Return count and sum of a session, which Spark keeps as its buffers, in this order."""
    numbers = [number for number in value.values() if isinstance(number, int)]
    return numbers[-2], numbers[-1]


def _orphans(checkpoint: Checkpoint, retained: int) -> tuple[list[str], int]:
    """Return deltas of attempts that lost, and temporary files, that should be gone by now.

    And the most files of any store.
    """
    newest = checkpoint.newest_version
    first = max(min(checkpoint.committed_batches) + 1, newest - retained + 1)
    kept: set[str] = set()
    for version in range(first, newest + 1):
        for store, head in checkpoint.heads(version).items():
            location = checkpoint.location(store)
            kept |= {location.path(ref.path) for ref in (head.ref, *head.trailer.files)}
    now_ms = checkpoint.clock.now_ms()
    orphans, most = [], 0
    for store in checkpoint.heads(newest):
        location = checkpoint.location(store)
        files = list(location.io.list(location.directory))
        most = max(most, len(files))
        for info in files:
            name, path = parse_state_file_name(info.name), location.path(info.name)
            is_old = now_ms - info.modified_ms > ORPHAN_AGE_MS + SLACK_MS
            lost = name is not None and name.kind == "delta" and first <= name.version < newest
            if is_old and path not in kept and (lost or is_temporary(info.name)):
                orphans.append(path)
    return orphans, most
