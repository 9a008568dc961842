"""What a checkpoint holds: which batches, whether it is whole, its state, and files of no use."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.layout import is_temporary, parse_state_file_name
from statestore.checkpoint.rescale_refs import find_refs
from statestore.checkpoint.retention import UNFINISHED_MS
from statestore.checkpoint.trailers import read_trailer
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.reading.read import read_batches
from statestore.operations.states import rows_at
from statestore.operations.upkeep.verify import verify
from statestore.spark.checkpoint_memory import checkpoint_memory
from tests.seams import place_of

from .lane import ORPHAN_AGE_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from statestore.checkpoint.layout import StoreLocation
    from statestore.operations.checkpoint import OpenCheckpoint

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
        state as `Expected` has them, None of a join; `orphans`; `files`, the most
        old ones of any store.
    """
    with ExitStack() as stack:
        memory = None
        if spec.backend == "heap":
            memory = stack.enter_context(checkpoint_memory(spark))
        checkpoint = stack.enter_context(
            open_checkpoint(place_of(directory, options=spec.options(), memory=lambda: memory))
        )
        found = verify(checkpoint, versions="all", deep=True)
        orphans, num_files = _orphans(checkpoint, found.versions[: spec.retained])
        return {
            "batch": checkpoint.newest_committed,
            "findings": [str(finding) for finding in found.findings],
            "state": _state(checkpoint, spec.query),
            "orphans": orphans,
            "files": num_files,
        }


def _state(checkpoint: OpenCheckpoint, query: str) -> Counter[Any] | None:
    if query == "pairs":
        return None
    found = rows_at(checkpoint, None, None)
    rows = [row for batch in read_batches(found) for row in batch.to_pylist()]
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


def _orphans(checkpoint: OpenCheckpoint, versions: Sequence[int]) -> tuple[list[str], int]:
    """Return files that should be gone by now, and the most old files of any store.

    Those are temporary files, deltas of attempts that lost, and summaries - snapshots and merged
    files - that no version names and none could: not all that they stand for is there. While other
    state partitions use files of a store after a rescale, no version of it expires: what lies below
    the retained ones stays.

    Args:
        checkpoint: The checkpoint.
        versions: Those that are retained.
    """
    newest, first = checkpoint.newest_version, min(versions, default=0)
    kept: set[str] = set()
    for version in versions:
        for store, head in checkpoint.heads(version).items():
            location = checkpoint.location(store)
            kept |= {location.path(ref.path) for ref in (head.ref, *head.trailer.files)}
    now_ms = checkpoint.clock.now_ms()
    orphans, most = [], 0
    for store in checkpoint.heads(newest):
        location = checkpoint.location(store)
        files = list(location.io.list(location.directory))
        names = {info.name for info in files}
        old = [info for info in files if now_ms - info.modified_ms > ORPHAN_AGE_MS + SLACK_MS]
        most = max(most, len(old))
        is_held = bool(find_refs(files))
        spare = _spare_snapshot(names, {path.rpartition("/")[2] for path in kept} & names)
        for info in old:
            name, path = parse_state_file_name(info.name), location.path(info.name)
            if path in kept:
                continue
            age_ms = now_ms - info.modified_ms
            is_of_use = not is_temporary(info.name) or age_ms <= UNFINISHED_MS + SLACK_MS
            if name is not None and name.kind == "delta":
                is_of_use = not first <= name.version < newest
            elif name is not None and name.version < newest:
                is_of_use = (
                    (is_held and name.version < first)
                    or info.name == spare
                    or _could_be_named(location, info.name, names)
                )
            if not is_of_use:
                orphans.append(path)
    return orphans, most


def _spare_snapshot(names: set[str], kept: set[str]) -> str | None:
    """Return the snapshot that, with the deltas since, stands for the oldest one that is needed."""
    snapshots = {
        file.version: name
        for name in names
        if (file := parse_state_file_name(name)) and file.kind == "snapshot"
    }
    needed = min((version for version, name in snapshots.items() if name in kept), default=0)
    before = [version for version in snapshots if version < needed]
    return snapshots[max(before)] if before else None


def _could_be_named(location: StoreLocation, name: str, names: set[str]) -> bool:
    """Return whether all that a summary stands for is in the store directory."""
    trailer = read_trailer(location, name).trailer
    if trailer.kind == "snapshot":
        assert trailer.parent is not None
        made_of = location.delta_names(trailer.parent.version, trailer.parent.checkpoint_id)
        return not names.isdisjoint(made_of)
    return names.issuperset(ref.path for ref in trailer.files if not ref.is_foreign)
