"""Spark's state data source reads the variables of `transformWithState` as it reads its own."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, product
from typing import Any, NamedTuple

import pytest

from .conftest import EXTENDED, PROVIDER, MakeLane, RunOnce
from .features import missing
from .harness import FILESYSTEM, ROCKSDB, ROCKSDB_BACKEND, STATE_STORE, Lane, run_plan
from .state_variables import COMPARED, EVENT_TIME, everything

BACKENDS = {"filesystem": FILESYSTEM, "rocksdb": ROCKSDB_BACKEND}
pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(PROVIDER not in BACKENDS.values(), reason="it has its own run"),
]


VARIABLES: list[dict[str, Any]] = [
    {"stateVarName": "count"},
    {"stateVarName": "seen"},
    {"stateVarName": "seen", "flattenCollectionTypes": "false"},
    {"stateVarName": "totals"},
    {"stateVarName": "totals", "flattenCollectionTypes": "false"},
    {"readRegisteredTimers": "true"},
]


def _state(lane: Lane, **options: Any) -> list[str]:
    reader = lane.spark.read.format("statestore").options(**options)
    rows = reader.load(str(lane.checkpoint)).collect()
    return sorted(
        repr({name: _sorted(value) for name, value in row.asDict().items()}) for row in rows
    )


def _sorted(value: Any) -> Any:
    return sorted(value.items()) if isinstance(value, dict) else value


@pytest.mark.parametrize("backend", ["filesystem", pytest.param("rocksdb", marks=EXTENDED)])
def test_state_reader_shows_variables_and_timers_as_built_in(
    run_once: RunOnce, backend: str
) -> None:
    """Catches a variable that is read with the schema of another, or not at all."""
    query = everything(COMPARED)
    lanes = run_once(query, query.built_in), run_once(query, BACKENDS[backend])

    for variable, batch in product(VARIABLES, (1, max(lanes[0].batches))):
        expected, found = (_state(lane, **variable, batchId=batch) for lane in lanes)
        assert found == expected, variable
        assert found, "no rows: the test tests nothing"
    rows = [len(_state(lanes[1], **variable)) for variable in (VARIABLES[0], *VARIABLES[2:4])]
    assert lanes[1].counts("numRowsTotal")[max(lanes[0].batches)] == [sum(rows)]
    expected, found = (
        lane.spark.read.format("state-metadata").load(str(lane.checkpoint)).collect()
        for lane in lanes
    )
    assert list(map(repr, found)) == list(map(repr, expected))


class Change(NamedTuple):
    """What a batch did to a key: `put`, `merge` or `delete`, and the values it wrote."""

    what: str
    values: tuple[str, ...] = ()


def _net(changes: Iterable[tuple[str, str]], before: tuple[str, ...]) -> Change | None:
    """Return what every write of a batch to a key does together, if anything."""
    net: Change | None = None
    for what, value in changes:
        if what == "delete":
            net = Change("delete")
        elif what == "update":
            net = Change("put", (value,))
        elif net is None or net.what == "delete":
            net = Change("merge" if net is None else "put", (value,))
        else:
            net = Change(net.what, (*net.values, value))
    return None if net == Change("delete") and not before else net


def _change_feed(lane: Lane, variable: str) -> dict[tuple[int, str], Change]:
    """The net change of every key in every batch; an unchanged beginning of a list left out."""
    options = {"stateVarName": variable, "readChangeFeed": "true", "changeStartBatchId": 0}
    rows = lane.spark.read.format("statestore").options(**options).load(str(lane.checkpoint))
    found = []
    for row in (row.asDict(recursive=True) for row in rows.collect()):
        batch, what = row.pop("batch_id"), row.pop("change_type")
        value = repr([row.pop(name, None) for name in ("value", "user_map_value", "list_element")])
        found.append(((batch, repr(sorted(row.items()))), what, value))
    found.sort(key=lambda change: change[0])  # writes to a key stay in their order
    state: dict[str, tuple[str, ...]] = {}
    net = {}
    for (batch, key), changes in groupby(found, key=lambda change: change[0]):
        before = state.get(key, ())
        change = _net([change[1:] for change in changes], before)
        if change is None:
            continue
        after = change.values if change.what != "merge" else (*before, *change.values)
        if before and after[: len(before)] == before and after != before:
            change = Change("merge", after[len(before) :])
        state[key] = after
        net[batch, key] = change
    return net


@pytest.mark.parametrize("backend", BACKENDS)
def test_change_feed_of_variables_is_the_net_change_of_built_in(
    run_once: RunOnce, backend: str
) -> None:
    """Catches changes that are lost or made up, and whole lists shown where a batch added to them.

    Spark's own provider shows every write.
    """
    lanes = run_once(EVENT_TIME, ROCKSDB), run_once(EVENT_TIME, BACKENDS[backend])

    for variable in ("count", "totals", *([] if missing("feed-of-lists") else ["seen"])):
        expected, found = (_change_feed(lane, variable) for lane in lanes)
        assert found == expected, variable
        kinds = {"put", "merge", "delete"} if variable == "seen" else {"put", "delete"}
        assert {change.what for change in found.values()} == kinds
    if missing("feed-of-lists"):
        return
    options = {"stateVarName": "seen", "readChangeFeed": "true", "changeStartBatchId": 0}
    shown = [
        lane.spark.read.format("statestore").options(**options).load(str(lane.checkpoint)).count()
        for lane in lanes
    ]
    assert shown[1] <= shown[0]


@pytest.mark.parametrize("backend", ["filesystem", pytest.param("rocksdb", marks=EXTENDED)])
def test_variables_from_a_snapshot_equal_built_in(
    make_lane: MakeLane, run_once: RunOnce, backend: str
) -> None:
    """Catches a snapshot without some variable, and a replay that begins without its families."""
    conf = {
        f"{STATE_STORE}.snapshot.maxChainLength": "2",
        f"{STATE_STORE}.rocksdb.mergeMinFiles": "2",
    }
    lane = make_lane(EVENT_TIME, BACKENDS[backend], conf)
    run_plan(lane)
    reference = run_once(EVENT_TIME, ROCKSDB)
    end = max(lane.batches)
    snapshots = {
        (int(path.parent.name), int(path.name.split("_")[0]) - 1)
        for path in lane.checkpoint.glob("state/0/[0-9]*/*.snapshot.*")
    }
    assert snapshots, "the test tests nothing"

    for (partition, start), variable in product(sorted(snapshots)[:3], VARIABLES):
        options = {"snapshotStartBatchId": start, "snapshotPartitionId": partition}
        found = _state(lane, **variable, **options, batchId=end)
        whole = _state(reference, **variable, batchId=end)
        assert found == [row for row in whole if f"'partition_id': {partition}" in row], variable
