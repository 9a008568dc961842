"""`transformWithState` returns the rows that it returns on Spark's RocksDB provider."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from statestore import Checkpoint
from statestore.core.errors import IncompatibleError

from .conftest import EXTENDED, ON_EACH_SPARK, PROVIDER, MakeLane, RunOnce
from .harness import (
    FILESYSTEM,
    HEAP,
    ROCKSDB,
    ROCKSDB_BACKEND,
    STATE_STORE,
    Files,
    Lane,
    Query,
    assert_same,
)
from .queries import generate_events, one_input
from .state_variables import BY_NUMBER, CHAINED, CHANGES, COMPARED, START_MS, changing, everything

FORMAT = f"{STATE_STORE}.checkpointFormatVersion"
BACKENDS = {"filesystem": FILESYSTEM, "rocksdb": ROCKSDB_BACKEND, "heap": HEAP}
pytestmark = pytest.mark.ours


def _needs(case: tuple[Any, ...]) -> list[Any]:
    return [pytest.mark.needs("row-api")] if "row" in case else []


def _cases(*of_ci: tuple[Any, ...], rest: Any = ()) -> list[Any]:
    """Return cases, the first element a backend: those of CI, and the others for `test-all`.

    Each Spark has those of the API that starts no Python workers. Where another backend is under
    test, its own only.
    """
    cases = [(case, []) for case in of_ci]
    cases += [
        (case, ON_EACH_SPARK if "scala" in case else [EXTENDED])
        for case in rest
        if case not in of_ci
    ]
    return [
        pytest.param(*case, id="-".join(map(str, case)), marks=[*marks, *_needs(case)])
        for case, marks in cases
        if PROVIDER in (FILESYSTEM, BACKENDS[case[0]])
    ]


def _compare(run_once: RunOnce, query: Query, backend: str, reference: Query) -> Lane:
    with ThreadPoolExecutor(1) as pool:
        expected = pool.submit(run_once, reference, reference.built_in)
        candidate = run_once(query, BACKENDS[backend])
        assert_same(expected.result(), candidate)
    assert any(candidate.batches.values()), "the query returned nothing: the test tests nothing"
    return candidate


def _in_format(query: Query, checkpoint_format: int) -> Query:
    conf = {**query.conf, FORMAT: str(checkpoint_format)}
    return replace(query, name=f"{query.name}-format-{checkpoint_format}", conf=conf)


@pytest.mark.parametrize(
    ("backend", "api", "checkpoint_format"),
    _cases(
        ("filesystem", COMPARED, 1),
        ("rocksdb", "pandas", 2),
        ("heap", "scala", 1),
        rest=product(BACKENDS, ("row", "pandas", "scala"), (1, 2)),
    ),
)
def test_rows_equal_built_in_with_every_variable_and_event_timers(
    run_once: RunOnce, backend: str, api: Any, checkpoint_format: int
) -> None:
    """Catches a method of value, list or map state, or a timer, that does something else.

    Also what a restart loses of them, and the three APIs apart from each other.
    """
    query = everything(api) if checkpoint_format == 1 else _in_format(everything(api), 2)

    lane = _compare(run_once, query, backend, everything(COMPARED))

    shown = "".join(row for rows in lane.batches.values() for row in rows)
    assert all(f"'{what}" in shown for what in ("seen", "cleared", "timer")), (
        "too few things happen"
    )


@pytest.mark.parametrize(
    ("backend", "api"),
    _cases(("filesystem", COMPARED), rest=product(BACKENDS, ("row", "pandas", "scala"))),
)
def test_rows_equal_built_in_with_initial_state(run_once: RunOnce, backend: str, api: Any) -> None:
    """Catches a store that the first batch opens in another way than all others, and is refused."""
    query = everything(api, initial=True)

    _compare(run_once, query, backend, query)  # Spark 4.1 counts rows otherwise by API


@pytest.mark.needs("row-api")
@pytest.mark.parametrize("query", CHAINED, ids=lambda query: query.name)
@pytest.mark.parametrize("backend", _cases(rest=product(BACKENDS)))
def test_rows_equal_built_in_with_operators_after_it(
    run_once: RunOnce, backend: str, query: Query
) -> None:
    """Catches column families of one operator that another one takes for its own."""
    _compare(run_once, query, backend, query)


TTLS_MS = (50_000, 40_000, 30_000)
TIMES_MS = (0, 35_000, 60_000)
"""Of the batches: some entries are refreshed in between, others expire, by kind of variable."""


def run_at(lane: Lane, files: Files, at_ms: int) -> None:
    """Run a batch at a time of our choice: of its second attempt, Spark takes what it planned."""
    batch = len(lane.batches)

    def fail(batch_id: int) -> None:
        assert batch_id < batch, "planned"

    lane.before_batch = fail
    with pytest.raises(StreamingQueryException, match="planned"):
        lane.run(files)
    planned = lane.checkpoint / "offsets" / str(batch)
    version, metadata, *sources = planned.read_text().splitlines()
    changed = json.loads(metadata) | {"batchTimestampMs": START_MS + at_ms}
    planned.write_text("\n".join([version, json.dumps(changed), *sources]))
    (planned.parent / f".{batch}.crc").unlink()
    lane.before_batch = lambda _: None
    lane.run()


@pytest.mark.parametrize(
    ("backend", "api", "checkpoint_format"),
    _cases(("filesystem", COMPARED, 1), rest=product(BACKENDS, ("row", "pandas", "scala"), (1, 2))),
)
def test_rows_equal_built_in_with_ttl_and_processing_timers(
    make_lane: MakeLane, backend: str, api: Any, checkpoint_format: int
) -> None:
    """Catches an entry of value, list or map state that lives too long, or goes too early."""
    query = everything(api, "ProcessingTime", TTLS_MS)
    conf = {FORMAT: str(checkpoint_format)}
    lanes = [make_lane(query, ROCKSDB), make_lane(query, BACKENDS[backend], conf)]

    def run(lane: Lane) -> None:
        for batch, at_ms in enumerate(TIMES_MS):
            events = generate_events("events", batch, num_rows=20, num_keys=9)
            run_at(lane, {"events": events}, at_ms)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, lanes))

    for batch, rows in lanes[0].batches.items():
        assert lanes[1].batches[batch] == rows, f"batch {batch}"
    assert lanes[0].batches.keys() == lanes[1].batches.keys() == {*range(len(TIMES_MS))}
    assert any("'timer" in row for row in lanes[1].batches[2]), "too few things happen"


@pytest.mark.needs("row-api")
@pytest.mark.parametrize("backend", _cases(("filesystem",), rest=product(BACKENDS)))
def test_rows_equal_built_in_when_variables_come_and_go(make_lane: MakeLane, backend: str) -> None:
    """Catches rows of a removed variable that a new one of its name, or a restart, shows again."""
    lanes = [make_lane(changing(""), ROCKSDB), make_lane(changing(""), BACKENDS[backend])]
    ((first,), (second,), (third,)) = one_input(1, 1, 1)

    def run(lane: Lane) -> None:
        for change, files in zip(
            (*CHANGES, CHANGES[0]), (first, second, third, first), strict=True
        ):
            lane.query = changing(change)
            lane.run(files)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, lanes))

    assert_same(*lanes)


@pytest.mark.parametrize("backend", _cases(("filesystem",), rest=product(("rocksdb",))))
def test_state_by_another_key_than_its_input_stays_where_it_is(
    make_lane: MakeLane, tmp_path: Path, backend: str
) -> None:
    """Catches state lost: Spark goes by the columns of `groupBy(…).as[K, V]`, and not by K."""
    single = make_lane(BY_NUMBER, BACKENDS[backend], {"spark.sql.shuffle.partitions": "1"})
    # Else the schemas of Spark 4.3 have the number as the key, and its own state reader reads that.
    conf = {"spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": "false"}
    reference, moved = (make_lane(BY_NUMBER, ROCKSDB, conf) for _ in range(2))
    lanes = (single, reference, moved)
    first, *others = BY_NUMBER.plan
    for lane in lanes:
        lane.run(*first)

    own, sparks = (Checkpoint(str(lane.checkpoint)) for lane in (single, moved))
    for change in (
        lambda: own.rescale(4),
        lambda: own.restore(tmp_path / "new", num_partitions=4),
        lambda: sparks.restore(tmp_path / "new", num_partitions=4),
    ):
        with pytest.raises(IncompatibleError, match="by other columns") as raised:
            change()
        assert raised.value.kind == "not-rescalable"
    converted = sparks.restore(tmp_path / "new", backend=backend).made
    rows = sparks.rows("count").read().to_pylist()
    assert len(rows) > 5
    for row in rows:
        for checkpoint in (sparks, converted):
            found = checkpoint.rows("count").find([row["key"]["value"]])
            assert found.to_pylist() == [row]
    moved.checkpoint = tmp_path / "new"
    for batches in others:
        for lane in lanes:
            lane.run(*batches)
    assert single.batches == moved.batches == reference.batches
