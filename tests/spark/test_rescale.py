"""Every stateful operator goes on after a rescale as if there had been none."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statestore import Checkpoint
from statestore.codec.partition_key import compute_key_groups
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.states import read_rows
from statestore.operations.upkeep.verify import verify
from statestore.spark.checkpoint_memory import checkpoint_memory
from tests.seams import at, place_of

from .conftest import EXTENDED, PROVIDER, MakeLane, RunReference
from .features import missing
from .harness import FILESYSTEM, FORMAT_2, HEAP, ROCKSDB_BACKEND, STATE_STORE, Lane, Query
from .queries import (
    AGGREGATION,
    AGGREGATIONS,
    JOIN,
    LIMITS,
    OPERATORS,
    SESSION_APPEND,
)

pytestmark = pytest.mark.ours

FOUR = {"spark.sql.shuffle.partitions": "4"}
GLOBAL_AGGREGATION = next(query for query in AGGREGATIONS if "global" in query.name)
CHAIN = ((8, 2), (6,))
"""Numbers of state partitions to go through between the runs of a query."""
LAST = (12, 3)
"""And after the last run: every row hashed anew, and by key groups again."""
UNFINISHED = "STREAMING_UNFINISHED_REPARTITION_DETECTED"


SHORT = (AGGREGATION, GLOBAL_AGGREGATION, SESSION_APPEND, LIMITS[0], JOIN)
"""One operator of each layout of keys."""


def _cases() -> list[Any]:
    """Every operator on every state backend in both checkpoint formats."""
    of_ci = (FILESYSTEM, HEAP, ROCKSDB_BACKEND) if PROVIDER == FILESYSTEM else (PROVIDER,)
    return [
        pytest.param(
            provider,
            conf,
            query,
            id=f"{provider.rpartition('.')[2]}-{'v2' if conf else 'v1'}-{query.name}",
            marks=[] if query in SHORT and provider in of_ci else [EXTENDED],
        )
        for provider in (FILESYSTEM, HEAP, ROCKSDB_BACKEND)
        for conf in ({}, FORMAT_2)
        for query in OPERATORS
    ]


def _memory(spark: SparkSession, provider: str) -> AbstractContextManager[Any]:
    return checkpoint_memory(spark) if provider == HEAP else nullcontext()


def _rescale(lane: Lane, provider: str, *numbers: int) -> None:
    """Rescale a lane's checkpoint, several times in a row; no row is lost, doubled or misplaced."""
    uri = str(lane.checkpoint)
    checkpoint = Checkpoint(uri, spark=lane.spark if provider == HEAP else None)
    with _memory(lane.spark, provider) as memory:
        before = _rows(uri, memory)
        for num_partitions in numbers:
            checkpoint.rescale(num_partitions)
            assert _rows(uri, memory) == before


def _rows(uri: str, memory: Any) -> dict[tuple[int, str], dict[bytes, bytes]]:
    """Every row of every store, after a check that it is where Spark's hash puts its key."""
    found: dict[tuple[int, str], dict[bytes, bytes]] = {}
    with open_checkpoint(place_of(uri, memory=memory and (lambda: memory))) as checkpoint:
        assert verify(checkpoint, deep=True).findings == ()
        for store, head in checkpoint.heads(checkpoint.newest_version).items():
            rows = found.setdefault((store.operator, store.name), {})
            (family,) = head.trailer.column_families
            for batch in read_rows(checkpoint, head):
                keys = batch.column(3)
                groups = compute_key_groups(keys, store.name, family, 1 << 15)
                if checkpoint.num_partitions in (2, 4, 8):
                    assert set(groups % checkpoint.num_partitions) <= {store.partition}
                pairs = batch.select(["key", "value"]).to_pylist()
                assert not rows.keys() & {pair["key"] for pair in pairs}
                rows |= {pair["key"]: pair["value"] for pair in pairs}
    return found


def _in_order(by_batch: Mapping[int, Any]) -> list[Any]:
    """Values by batch without the batches' numbers: a rescale takes one."""
    return [by_batch[batch] for batch in sorted(by_batch)]


def _assert_same(reference: Lane, candidate: Lane) -> None:
    assert any(reference.batches.values()), "the query returned nothing: the test tests nothing"
    assert _in_order(candidate.batches) == _in_order(reference.batches)
    for name in ("numRowsTotal", "numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark"):
        assert _in_order(candidate.counts(name)) == _in_order(reference.counts(name)), name


@pytest.mark.parametrize(("provider", "conf", "query"), _cases())
@pytest.mark.each_once
def test_rows_equal_built_in_when_rescaled(
    make_lane: MakeLane,
    run_reference: RunReference,
    provider: str,
    conf: Mapping[str, str],
    query: Query,
) -> None:
    """Catches an operator whose state is not whole in the new state partitions."""
    lane = make_lane(query, provider, {**FOUR, **conf})

    for batches, numbers in zip_longest(query.plan, CHAIN[: len(query.plan) - 1]):
        lane.run(*batches)
        _rescale(lane, provider, *(numbers or LAST))

    _assert_same(run_reference(query), lane)


@pytest.mark.parametrize("provider", [FILESYSTEM, ROCKSDB_BACKEND], ids=["filesystem", "rocksdb"])
@pytest.mark.few(1)
def test_rows_are_counted_where_no_file_tells_them(
    make_lane: MakeLane, run_reference: RunReference, provider: str
) -> None:
    """Catches rows of another state partition that are counted, or own ones that are not."""
    conf = {**FOUR, f"{STATE_STORE}.maxParallelism": "24"}
    lane = make_lane(AGGREGATION, provider, conf)

    for batches, num_partitions in zip(AGGREGATION.plan, (3, 12, 2), strict=True):
        lane.run(*batches)
        _rescale(lane, provider, num_partitions)
        with open_checkpoint(place_of(lane.checkpoint)) as checkpoint:
            heads = checkpoint.heads(checkpoint.newest_version).values()
            # 12 to 2 is a merge, whose rows add up.
            assert all((head.trailer.num_keys is None) == (num_partitions > 2) for head in heads)
            assert all(head.trailer.key_group_rows is None for head in heads)

    _assert_same(run_reference(AGGREGATION), lane)


def _refusal(lane: Lane) -> str:
    with pytest.raises(StreamingQueryException) as raised:
        lane.run()
    return str(raised.value)


@pytest.mark.needs("repartition-check")
def test_spark_refuses_what_is_unfinished_and_goes_on_after_it(
    make_lane: MakeLane, run_reference: RunReference, spark: SparkSession
) -> None:
    """Catches rows computed on half a rescale, and a checkpoint that Spark's own tool spoiled."""
    lane = make_lane(AGGREGATION, conf=FOUR)
    uri = str(lane.checkpoint)
    first, second, third = AGGREGATION.plan
    lane.run(*first)

    # Spark's own tool plans its batch, then finds that the provider is not its own.
    with pytest.raises(Exception, match="UNSUPPORTED_PROVIDER"):
        spark._streamingCheckpointManager.repartition(uri, 8)
    assert UNFINISHED in _refusal(lane)
    with _memory(spark, PROVIDER) as memory:
        assert at(uri, memory=lambda: memory).rescale(8, dry_run=True).is_begun
        at(uri, memory=lambda: memory).rescale(8)
    lane.run(*second)
    with _memory(spark, PROVIDER) as memory:
        done = at(uri, memory=lambda: memory).rescale(2)
        (lane.checkpoint / "commits" / str(done.batch)).unlink()
        assert UNFINISHED in _refusal(lane)
        at(uri, memory=lambda: memory).undo_rescale()
    lane.run(*third)

    _assert_same(run_reference(AGGREGATION), lane)


@pytest.mark.lacks("repartition-check")
@pytest.mark.parametrize("num_partitions", [2, 8])
def test_unfinished_rescale_is_refused_where_spark_does_not_know_of_it(
    make_lane: MakeLane, run_reference: RunReference, spark: SparkSession, num_partitions: int
) -> None:
    """Catches a batch that is computed on the state of other state partitions."""
    lane = make_lane(AGGREGATION, conf=FOUR)
    uri = str(lane.checkpoint)
    first, second, third = AGGREGATION.plan
    lane.run(*first)

    with _memory(spark, PROVIDER) as memory:
        done = at(uri, memory=lambda: memory).rescale(num_partitions)
        (lane.checkpoint / "commits" / str(done.batch)).unlink()
        text = _refusal(lane)
        assert "[num-partitions-changed]" in text or "[max-parallelism-changed]" in text
        at(uri, memory=lambda: memory).undo_rescale()
    lane.run(*second)
    lane.run(*third)

    _assert_same(run_reference(AGGREGATION), lane)


def test_state_reader_finds_the_new_state_partitions(
    make_lane: MakeLane, spark: SparkSession
) -> None:
    """Catches a rescale that only a query can read, or old state partitions that are read too."""
    lane = make_lane(AGGREGATION, conf=FOUR)
    uri = str(lane.checkpoint)
    lane.run(*AGGREGATION.plan[0])
    num_rows = lane.counts("numRowsTotal")[1][0]

    for num_partitions in (8, 2):
        _rescale(lane, PROVIDER, num_partitions)
        with (
            _memory(spark, PROVIDER) as memory,
            open_checkpoint(place_of(uri, memory=memory and (lambda: memory))) as checkpoint,
        ):
            heads = checkpoint.heads(checkpoint.newest_version).values()
            assert sum(head.trailer.num_keys or 0 for head in heads) == num_rows
            assert all(sum(head.trailer.key_group_rows or ()) for head in heads)
            seams = {"memory": lambda: memory} if memory else {}
            assert at(uri, **seams).rows().read().num_rows == num_rows
        frame = spark.read.format("statestore").load(str(lane.checkpoint))
        if num_partitions < 4 and missing("reader-of-fewer"):
            with pytest.raises(Py4JJavaError, match=r"CANNOT_LOAD_STATE_STORE\."):
                frame.collect()
            continue
        rows = frame.collect()

        assert len(rows) == num_rows
        assert max(row.partition_id for row in rows) == num_partitions - 1


def test_global_aggregation_stays_whole(make_lane: MakeLane) -> None:
    """Catches what Spark's own tool does: its rows hashed into a state partition nobody reads."""
    lane = make_lane(GLOBAL_AGGREGATION, conf=FOUR)
    lane.run(*GLOBAL_AGGREGATION.plan[0])

    with _memory(lane.spark, PROVIDER) as memory:
        plan = at(lane.checkpoint, memory=lambda: memory).rescale(6, dry_run=True)

    assert [(store.way, store.partition_rows) for store in plan.stores] == [("whole", (1,))]
