"""Queries that scale by themselves: other numbers of state partitions, the same rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import statestore
from statestore import Between, Checkpoint, NoRestart, QueryFailedError
from statestore.core.clock import ManualClock

from .conftest import EXTENDED, PROVIDER, MakeLane
from .harness import FILESYSTEM, HDFS, HEAP, ROCKSDB_BACKEND, Lane, wait_for
from .queries import AGGREGATION, one_input
from .test_rescale import FOUR

QUERY = replace(AGGREGATION, name="scaled", plan=one_input(8))
EVERY = "100 milliseconds"
"""Shorter than any batch: each says that the query is busy."""
BATCH_S = 0.6
"""Longer than the time between two looks at a query: no batch is passed over."""
COOL_DOWN_S = 300.0


class Run:
    """A supervised run of a lane, whose time is moved by hand: 200 s in every batch."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.clock = ManualClock(now_ms=0)
        self.handles: list[Any] = []
        self.past: Any = None
        lane.on_batch = self._on_batch
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Run:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.handles[-1].stop()
        self._thread.join(60)

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition, or for the end of the run."""
        wait_for(lambda: condition() or not self._thread.is_alive(), what)
        assert self._thread.is_alive(), what

    def idle(self) -> None:
        """Let time go by without a batch."""
        self.clock.advance(50_000)

    def _on_batch(self, _: int) -> None:
        time.sleep(BATCH_S)
        self.clock.advance(200_000)

    def _run(self) -> None:
        scale = Between(2, 8, cool_down=COOL_DOWN_S)
        self.past = statestore.run(self._start, NoRestart(), scale=scale, clock=self.clock)

    def _start(self) -> Any:
        self.handles.append(self.lane.start(every=EVERY))
        return self.handles[-1]


def _in_order(batches: Mapping[int, Any]) -> list[Any]:
    return [batches[batch] for batch in sorted(batches)]


@pytest.mark.ours
@pytest.mark.parametrize(
    "provider",
    [
        PROVIDER,
        pytest.param(ROCKSDB_BACKEND, marks=EXTENDED),
        pytest.param(HEAP, marks=EXTENDED),
        pytest.param(FILESYSTEM, marks=EXTENDED),
    ],
)
def test_rows_are_the_same_when_the_query_scales_by_itself(
    make_lane: MakeLane, provider: str
) -> None:
    """Catches rows lost, doubled or misplaced when the number follows the load up and down."""
    (files,) = QUERY.plan
    expected, lane = make_lane(QUERY, HDFS), make_lane(QUERY, provider, FOUR)
    expected.run(*files)
    lane.feed(*files[:6])

    with Run(lane) as run:
        run.wait(lambda: len(run.handles) == 2 and len(lane.batches) == 6, "more partitions")
        run.wait(lambda: run.idle() or len(run.handles) == 3, "fewer partitions")
        lane.feed(*files[6:])
        run.wait(lambda: len(lane.batches) == 8, "the last batches")

    assert _in_order(lane.batches) == _in_order(expected.batches)
    assert set(lane.attempts.values()) == {1}
    assert (run.past.attempts, len(run.past.failures)) == (3, 0)
    checkpoint = Checkpoint(lane.checkpoint, spark=lane.spark if provider == HEAP else None)
    assert checkpoint.verify(deep=True).ok
    rose, fell = reversed(list(checkpoint.history()))
    assert (rose.options, fell.options) == ({"num_partitions": 8}, {"num_partitions": 2})
    assert rose.result["reason"].endswith("rows/s, more than 90%")
    assert fell.result["reason"] == "busy 0% of the time at 0 rows/s, less than 30%"


@pytest.mark.ours
def test_rescale_of_a_killed_program_is_finished(make_lane: MakeLane) -> None:
    """Catches a program that cannot go on by itself after a kill in the middle of a rescale."""
    (files,) = QUERY.plan
    expected, lane = make_lane(QUERY, HDFS), make_lane(QUERY, conf=FOUR)
    expected.run(*files[:4])
    lane.run(*files[:2])
    checkpoint = Checkpoint(lane.checkpoint, spark=lane.spark if PROVIDER == HEAP else None)
    done = checkpoint.rescale(8)
    commit = lane.checkpoint / "commits" / str(done.batch)
    commit.unlink()

    with Run(lane) as run:
        run.wait(lambda: len(run.handles) == 2, "the second start")
        lane.feed(*files[2:4])
        run.wait(lambda: len(lane.batches) == 4, "the last batches")

    assert _in_order(lane.batches) == _in_order(expected.batches)
    assert commit.exists()
    assert run.past.failures == type(run.past.failures)()


def test_query_that_cannot_be_scaled_goes_on_and_says_so_once(
    make_lane: MakeLane, caplog: pytest.LogCaptureFixture
) -> None:
    """Catches a query that ends, or is stopped for nothing, over another provider."""
    (files,) = QUERY.plan
    lane = make_lane(QUERY, HDFS)
    lane.feed(*files[:5])

    with caplog.at_level(logging.WARNING, "statestore"), Run(lane) as run:
        run.wait(lambda: len(lane.batches) == 5, "the batches")

    assert len(run.handles) == 1
    (said,) = [record.message for record in caplog.records]
    assert "not scaled any more" in said
    assert "[other-provider]" in said


def test_query_without_an_interval_is_refused(make_lane: MakeLane) -> None:
    """Catches a query that is always busy, and would have ever more state partitions."""
    lane = make_lane(QUERY)
    lane.feed(*QUERY.plan[0][:1])
    handles: list[Any] = []

    def start() -> Any:
        handles.append(lane.start(available_now=False))
        return handles[-1]

    with pytest.raises(QueryFailedError, match="processingTime") as raised:
        statestore.run(start, NoRestart(), scale=Between(2, 8))

    assert raised.value.kind == "query-failed"
    assert not handles[0].isActive
