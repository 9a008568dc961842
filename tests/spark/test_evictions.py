"""A row lives its own time, though Spark's index still has the expiry of one before it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore import keyed
from tests.attack.keyed import STEP_MS, Plan, try_program
from tests.keyed.kinds import Given
from tests.keyed.program import START_MS, Call, State
from tests.spark.harness import FILESYSTEM, ROCKSDB_BACKEND

TTL = keyed.StateTtlConfig(timedelta(milliseconds=STEP_MS * 3 // 2), "OnCreateAndWrite")
ENTRY = Given("entry", "entry")


def _given(value: int) -> Given:
    return Given(value, value)


@pytest.mark.parametrize("provider", [FILESYSTEM, ROCKSDB_BACKEND])
@pytest.mark.parametrize(
    ("state", "calls", "taken"),
    [
        pytest.param(
            State("s", "map", int, str, None, TTL),
            [
                Call(0, "put", (ENTRY, _given(1))),
                Call(0, "remove", (ENTRY,)),
                Call(0, "put", (ENTRY, _given(2))),
                Call(0, "get", (ENTRY,)),
            ],
            [[0]] * 4,
            id="an entry that was removed",
        ),
        pytest.param(
            State("s", "value", int, None, None, TTL),
            [Call(0, "update", (_given(value),)) for value in (1, 2, 3)] + [Call(0, "value")],
            [[0], [], [0], [0]],
            id="a state that was deleted",
        ),
    ],
)
def test_what_is_put_again_lives_its_own_time(
    spark: SparkSession,
    tmp_path: Path,
    provider: str,
    state: State,
    calls: list[Call],
    taken: list[list[int]],
) -> None:
    """Catches a row that is evicted when the row of the key before it was due, 20 s early."""
    batches = [
        [{"key": key, "part": 1, "step": step, "at": START_MS} for key in ("a", "b")]
        for step in range(4)
    ]
    plan = Plan(
        [state], [[call] for call in calls], [[]], "ProcessingTime", provider, False, batches,
        [[batch] for batch in range(4)], [None] * 4, taken, set(), ["key"],
    )  # fmt: skip

    tried = Counter[str]()
    try_program(spark, plan, tmp_path, tried)

    assert tried["batch"] == 4
    assert tried["state read from the checkpoint"] == 4 - taken.count([])
