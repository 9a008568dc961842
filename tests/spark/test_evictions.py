"""A row lives its own time, though Spark's index still has the expiry of one before it."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore import Checkpoint, keyed
from tests.attack.keyed import STEP_MS, DiffersError, Plan, try_program
from tests.keyed.kinds import Given
from tests.keyed.program import START_MS, Call, State
from tests.spark.harness import FILESYSTEM, ROCKSDB, ROCKSDB_BACKEND

pytestmark = pytest.mark.needs("row-api")
TTL = keyed.StateTtlConfig(timedelta(milliseconds=STEP_MS * 3 // 2), "OnCreateAndWrite")
ENTRY = Given("entry", "entry")


def _given(value: int) -> Given:
    return Given(value, value)


PUT_AGAIN = pytest.mark.parametrize(
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


def _put_again(provider: str, state: State, calls: list[Call], taken: list[list[int]]) -> Plan:
    """Two keys, a call of the state in each of four batches, 20 s apart."""
    batches = [
        [{"key": key, "part": 1, "step": step, "at": START_MS} for key in ("a", "b")]
        for step in range(4)
    ]
    return Plan(
        [state], [[call] for call in calls], [[]], "ProcessingTime", provider, False, batches,
        [[batch] for batch in range(4)], [None] * 4, taken, set(), ["key"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "provider", [FILESYSTEM, pytest.param(ROCKSDB_BACKEND, marks=pytest.mark.extended)]
)
@PUT_AGAIN
def test_what_is_put_again_lives_its_own_time(
    spark: SparkSession,
    tmp_path: Path,
    provider: str,
    state: State,
    calls: list[Call],
    taken: list[list[int]],
) -> None:
    """Catches a row that is evicted when the row of the key before it was due, 20 s early."""
    tried = Counter[str]()
    try_program(spark, _put_again(provider, state, calls, taken), tmp_path, tried)

    assert tried["batch"] == 4
    assert tried["state read from the checkpoint"] == 4 - taken.count([])


@pytest.mark.extended
@PUT_AGAIN
def test_spark_evicts_what_is_put_again_too_early(
    spark: SparkSession, tmp_path: Path, state: State, calls: list[Call], taken: list[list[int]]
) -> None:
    """Catches a Spark that has mended it: documents say that its own provider loses the row."""
    with pytest.raises(DiffersError, match="batch 3"):
        try_program(spark, _put_again(ROCKSDB, state, calls, taken), tmp_path, Counter())


def test_restore_leaves_the_index_of_a_deleted_state_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a checkpoint of Spark's that cannot be restored: its index outlives the state."""
    states = [
        State("kept", "value", int, None, None, TTL),
        State("deleted_value", "value", int, None, None, TTL),
        State("deleted_list", "list", int, None, None, TTL),
        State("deleted_map", "map", int, str, None, TTL),
    ]
    calls = [
        Call(0, "update", (_given(1),)),
        Call(1, "update", (_given(2),)),
        Call(2, "add", (_given(3),)),
        Call(3, "put", (ENTRY, _given(4))),
    ]
    plan = Plan(
        states, [calls], [[]], "ProcessingTime", ROCKSDB, False,
        [[{"key": "a", "part": 1, "step": 0, "at": START_MS}]] * 2,
        [[0], [1]], [None] * 2, [[0, 1, 2, 3], [0]], set(), ["key"],
    )  # fmt: skip
    try_program(spark, plan, tmp_path, Counter())

    made = Checkpoint(tmp_path / "checkpoint").restore(tmp_path / "new", backend="filesystem").made

    assert made.rows("kept").read().num_rows == 1
    assert made.verify(deep=True).ok
    names = {family.name for store in made.inspect() for family in store.column_families}
    assert not {name for name in names if "deleted" in name}
