"""The heap backend: state as durable as its driver, not less and not more, and of bounded size."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statestore import Checkpoint
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.load import load_files
from statestore.checkpoint.trailers import read_delta_trailer
from statestore.codec.references import StoreName
from statestore.core.errors import NotFoundError, StateStoreError
from statestore.io.checkpoint_memory import CheckpointMemoryFileIO
from statestore.io.checkpoint_memory_address import CheckpointMemoryAddress
from statestore.io.fetch_cache import FetchCache
from statestore.store.table import Table

from .conftest import EXTENDED, MakeLane
from .harness import (
    FORMAT_2,
    HDFS,
    HEAP,
    NUM_PARTITIONS,
    STATE_STORE,
    Lane,
    assert_not_startable,
    assert_same,
    files_read,
    run_plan,
    wait_for,
)
from .job import ENDLESS, SHORT
from .job_process import Job
from .processes import checkpoint_memories, descendants
from .queries import AGGREGATION, WATERMARK_DEDUP, generate_events, one_input, single

pytestmark = pytest.mark.ours

EMPTY = {f"{STATE_STORE}.heap.onDriverLoss": "empty"}


@pytest.fixture
def memory(spark: SparkSession, tmp_path: Path) -> Callable[[], CheckpointMemoryFileIO]:
    """Returns a function that opens the memory of the shared application's driver."""

    def open_memory() -> CheckpointMemoryFileIO:
        address = spark._jvm.io.statestore.engine.CheckpointMemory.address("embedded")
        cache = tmp_path / "cache"
        cache.mkdir(exist_ok=True)
        fields = (address.get(name) for name in ("host", "port", "token"))
        host, port, token = (field.asText() for field in fields)
        address = CheckpointMemoryAddress(host, int(port), token)
        return CheckpointMemoryFileIO(address, FetchCache(str(cache), 0))

    return open_memory


def _kill_memory() -> None:
    (pid,) = checkpoint_memories(descendants(os.getpid()))
    os.kill(pid, signal.SIGKILL)


def _refusal(lane: Lane) -> str:
    with pytest.raises(StreamingQueryException) as raised:
        lane.run()
    text = str(raised.value)
    assert "To fix: " in text, text
    return text


def _location(io: CheckpointMemoryFileIO, lane: Lane, partition: int) -> StoreLocation:
    return StoreLocation(io, str(lane.checkpoint / "state"), StoreName(0, partition))


def _state_bytes(location: StoreLocation, version: int) -> int:
    head = read_delta_trailer(location, version, None)
    table = Table.from_restored(load_files(location, head, (*head.trailer.files, head.ref)))
    return sum(len(key) + len(value) for key, value in table.scan(0))


def _num_batches(lane: Lane) -> int:
    return len(list((lane.checkpoint / "commits").glob("[0-9]*")))


@pytest.mark.parametrize("fix", ["limit", "state partitions"])
def test_state_may_grow_to_the_limit_and_not_beyond(
    make_lane: MakeLane, memory: Callable[[], CheckpointMemoryFileIO], fix: str
) -> None:
    """Catches a size that drifts from what the state holds, over updates, evictions and loads, and
    a refused commit that takes the version before with it, or whose fix does not help.
    """
    batches = [
        {"events": generate_events("events", batch, num_rows=num_rows)}
        for batch, num_rows in enumerate((20, 30, 120, 10))
    ]
    query = replace(WATERMARK_DEDUP, plan=[batches[:2], batches[2:]])
    first = make_lane(query, HEAP)
    run_plan(first)
    locations = [_location(memory(), first, partition) for partition in range(NUM_PARTITIONS)]
    sizes = [
        max(_state_bytes(location, version) for location in locations)
        for version in range(1, _num_batches(first) + 1)
    ]
    largest = max(sizes)
    assert sizes[0] < largest > sizes[-1], "the state only grew: the test tests nothing"

    limit = f"{STATE_STORE}.heap.maxStateBytes"
    lane = make_lane(query, HEAP, {limit: str(largest - 1)})
    lane.run(*query.plan[0])
    lane.feed(*query.plan[1])
    text = _refusal(lane)
    assert "[state-too-large]" in text
    assert f"state_bytes={largest}, max_state_bytes={largest - 1}" in text
    assert limit in text
    assert "spark=spark).restore(NEW" in text
    if fix == "limit":
        lane.conf[limit] = str(largest)
    else:
        new = lane.checkpoint.with_name("more")
        checkpoint = Checkpoint(lane.checkpoint, spark=lane.session())
        checkpoint.restore(new, num_partitions=2 * NUM_PARTITIONS)
        lane.checkpoint = new
    lane.run()

    assert lane.batches == first.batches


@pytest.mark.parametrize("conf", [{}, FORMAT_2], ids=["format 1", "format 2"])
def test_killed_memory_is_told_by_name(
    make_lane: MakeLane, application_root: Path, conf: dict[str, str]
) -> None:
    """Catches a query that hangs, goes on from nothing, or cannot be told to."""
    query = replace(AGGREGATION, plan=one_input(2, 2))
    lane, unharmed = make_lane(query, HEAP, conf), make_lane(query, HDFS)
    run_plan(unharmed)
    lane.run(*query.plan[0])
    lane.feed(*query.plan[1])

    lane.before_batch = lambda batch_id: _kill_memory()
    during = _refusal(lane)
    lane.before_batch = lambda batch_id: None
    restarted = _refusal(lane)

    for text in (during, restarted):
        assert "[driver-lost]" in text
        assert "filesystem or rocksdb" in text
        assert "heap.onDriverLoss" in text
    assert lane.batches == {batch: unharmed.batches[batch] for batch in (0, 1)}
    lane.conf |= EMPTY
    lane.run()
    fresh = make_lane(replace(query, plan=query.plan[1:]), HDFS)
    run_plan(fresh)
    assert [lane.batches[batch] for batch in (2, 3)] == [fresh.batches[batch] for batch in (0, 1)]
    assert "the query goes on from empty state" in (application_root / "spark.log").read_text()


def test_new_query_runs_after_the_memory_was_killed(make_lane: MakeLane) -> None:
    """Catches an application whose heap backend never recovers."""
    query = replace(AGGREGATION, plan=one_input(1, 1))
    run_plan(make_lane(query, HEAP))
    _kill_memory()
    lanes = make_lane(query, HDFS), make_lane(query, HEAP)

    run_plan(*lanes)

    assert_same(*lanes)


@pytest.mark.needs("unload-on-commit")
def test_memory_keeps_what_is_retained_only(
    make_lane: MakeLane, memory: Callable[[], CheckpointMemoryFileIO]
) -> None:
    """Catches a driver that fills up: no snapshot, or nothing deleted."""
    conf = {
        f"{STATE_STORE}.unloadOnCommit": "true",
        f"{STATE_STORE}.snapshot.maxChainLength": "3",
        "spark.sql.streaming.minBatchesToRetain": "2",
    }
    lane = make_lane(replace(AGGREGATION, plan=one_input(12)), HEAP, conf)

    run_plan(lane)

    for partition in range(NUM_PARTITIONS):
        location = _location(memory(), lane, partition)
        names = [info.name for info in location.io.list(location.directory)]
        assert any("snapshot" in name for name in names)
        assert min(int(name.split(".")[0].split("_")[0]) for name in names) > 1
        assert not list(Path(location.directory).rglob("*.arrows"))


def test_sql_reads_what_the_memory_has(make_lane: MakeLane) -> None:
    """Catches SQL that looks for files, or tells another process something else than why not."""
    lane = make_lane(replace(AGGREGATION, plan=one_input(2)), HEAP)
    run_plan(lane)

    found = Checkpoint(lane.checkpoint, spark=lane.spark).sql('FROM "state@1"').read()

    reader = lane.session().read.format("statestore").option("batchId", 0)
    assert found.num_rows == reader.load(str(lane.checkpoint)).count() > 0
    with pytest.raises(NotFoundError, match="driver-lost"):
        Checkpoint(lane.checkpoint).sql("FROM state").read()


def test_readers_are_told_that_the_state_was_lost(make_lane: MakeLane) -> None:
    """Catches advice to keep more versions, of state that went with its memory."""
    lane = make_lane(replace(AGGREGATION, plan=one_input(2)), HEAP)
    total = single("total", "complete", lambda events: events.groupBy().count(), one_input(1))
    single_partition = make_lane(total, HEAP)
    run_plan(lane, single_partition)
    states = [Checkpoint(of.checkpoint, spark=of.spark).rows() for of in (lane, single_partition)]
    assert states[0].read().num_rows > states[1].read().num_rows == 1
    address = lane.spark._jvm.io.statestore.engine.CheckpointMemory.address
    before = str(address("embedded").toString())

    _kill_memory()

    wait_for(lambda: str(address("embedded").toString()) != before, "another memory", 60)
    for rows in states:
        with pytest.raises(NotFoundError, match=r"heap\.onDriverLoss") as lost:
            rows.read()
        assert lost.value.kind == "driver-lost"
    session = lane.session()
    for key, value in EMPTY.items():
        session.conf.set(key, value)
    with pytest.raises(StateStoreError, match="driver-lost"):
        Checkpoint(lane.checkpoint, spark=session).convert(lane.root / "new", "spark-hdfs")
    assert_not_startable(lane, lane.root / "new")


def test_session_of_an_application_that_ended_is_told_by_name(
    start_job: Callable[..., Job], make_lane: MakeLane
) -> None:
    """Catches an error of the JVM where the state went with the application."""
    lane = make_lane(replace(AGGREGATION, plan=one_input(1)), HEAP)
    run_plan(lane)

    report = start_job("ended", checkpoint=str(lane.checkpoint)).report()

    assert "[driver-lost] the application of the session has ended" in report["error"]
    assert "heap.onDriverLoss" in report["error"]


@EXTENDED
def test_rows_equal_built_in_when_an_executor_is_killed(
    start_job: Callable[..., Job], make_lane: MakeLane
) -> None:
    """Catches state that is with an executor, executors that do not find checkpoint memory, and
    a token that others can read.
    """
    job = start_job("heap_cluster")
    reference = make_lane(SHORT, HDFS)
    run_plan(reference)

    report = job.report()

    batches = {int(batch): rows for batch, rows in report["batches"].items()}
    assert batches == reference.batches
    assert all(report["killed"]), report["killed"]
    assert report["state_rows"] == reference.counts("numRowsTotal")[max(batches)][0]
    assert len(report["memories"]) == 1
    assert report["token_in_processes"] == []
    assert report["num_executor_logs"] >= 4  # two of each executor
    assert report["token_in_logs"] == []
    assert report["left"] == []
    assert report["scratch_left"] == []


@EXTENDED
def test_killed_driver_is_told_by_name(start_job: Callable[..., Job], make_lane: MakeLane) -> None:
    """Catches a restart that starts from nothing unasked, and one that cannot when asked."""
    job = start_job("endless", provider=HEAP, master="local[2]")
    wait_for(lambda: job.num_batches() > 3, "the third batch", timeout_s=60)
    assert checkpoint_memories(job.pids())
    os.kill(job.driver(), signal.SIGKILL)
    wait_for(lambda: not checkpoint_memories(job.pids()), "the end of the memory", timeout_s=30)

    report: dict[str, Any] = start_job("resume_lost").report()

    assert "[driver-lost]" in report["error"]
    assert report["batches_before"] == {}
    checkpoint = job.root / ENDLESS.name / "checkpoint"
    batches = {int(batch): rows for batch, rows in report["batches"].items()}
    assert min(batches) >= 3
    _, files = files_read(checkpoint, batches, ENDLESS.plan[0])
    fresh = make_lane(replace(ENDLESS, plan=[files]), HDFS)
    run_plan(fresh)
    assert [batches[batch] for batch in sorted(batches)] == list(fresh.batches.values())
