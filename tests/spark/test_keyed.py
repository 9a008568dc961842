"""Keyed state in Flink's words does on a real Spark what plain dicts do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from statestore import Checkpoint

from .conftest import EXTENDED, PROVIDER, MakeLane
from .harness import HEAP, Lane
from .keyed_functions import KEYS, AllStates, Plain, query_of, rows_of

pytestmark = [pytest.mark.ours, pytest.mark.needs("row-api")]


def _watermark_ms(progress: dict[str, Any]) -> int:
    text = progress.get("eventTime", {}).get("watermark", "1970-01-01T00:00:00.000Z")
    return round(
        datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z").astimezone(UTC).timestamp() * 1000
    )


def _expected(lane: Lane, model: Plain, files: list[Any]) -> dict[int, list[Any]]:
    """Return what the model returns of the batches that ran, with their watermarks."""
    left = iter(files)
    return {
        progress["batchId"]: model.run(
            next(left) if progress["numInputRows"] else [], _watermark_ms(progress)
        )
        for progress in lane.progress
    }


def test_every_kind_of_state_is_what_plain_dicts_are(make_lane: MakeLane) -> None:
    """Catches a handle that loses, mixes up or changes what it was given, over restarts.

    Also after a rescale, and what is read of it under the descriptors' names.
    """
    plan = [[rows_of(0), rows_of(1)], [rows_of(2), rows_of(3)]]
    lane = make_lane(query_of("keyed", AllStates(), plan))

    lane.run(*lane.query.plan[0])
    if PROVIDER != HEAP:
        Checkpoint(lane.checkpoint).rescale(6)
    lane.run(*lane.query.plan[1])

    model = Plain(AllStates())
    expected = _expected(lane, model, [rows for run in plan for rows in run])
    print(lane.batches)
    print(expected)
