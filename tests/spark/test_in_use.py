"""Leases of real queries: a checkpoint is in use while its query runs, idle or not, and no longer.

What becomes of the leases of killed drivers and executors is in test_cluster.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from statestore import Checkpoint
from statestore.checkpoint.lease import Leases
from statestore.core.errors import InUseError
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import exclusive_use
from tests.s3_server import REGION
from tests.seams import place_of

from .conftest import PROVIDER, MakeLane
from .harness import STATE_STORE, Lane, Query, wait_for
from .job_process import Job
from .processes import descendants, engines
from .queries import AGGREGATION, one_input, single

pytestmark = pytest.mark.ours

INTERVAL_MS = 500
IDLE_REPORTS = "spark.sql.streaming.noDataProgressEventInterval"
LEASE_INTERVAL = f"{STATE_STORE}.lease.intervalMs"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def lane(make_lane: MakeLane) -> Lane:
    """A query whose lease is renewed often."""
    query = replace(AGGREGATION, plan=one_input(2, 1, 1))
    return make_lane(query, conf={LEASE_INTERVAL: str(INTERVAL_MS)})


def _leases(lane: Lane) -> Leases:
    return Leases(LocalFileIO(), f"{lane.checkpoint}/state")


def _change(lane: Lane) -> None:
    """Do nothing to the checkpoint, as an operation."""
    with (
        open_checkpoint(place_of(lane.checkpoint)) as checkpoint,
        exclusive_use(checkpoint, "rescale"),
    ):
        pass


def _renewals(lane: Lane) -> set[int]:
    return {info.modified_ms for info in _leases(lane).list().values()}


def test_running_query_is_in_use_until_it_stops(lane: Lane, spark: SparkSession) -> None:
    """Catches an idle query that is overlooked, and a stopped one that is not forgotten."""
    first, second, third = lane.query.plan
    lane.feed(*first)
    lane.conf[IDLE_REPORTS] = "1000"
    handle = lane.start(available_now=False, name="clicks by <shop>")
    try:
        wait_for(lambda: len(lane.batches) == len(first), "the batches", timeout_s=60)
        wait_for(lambda: not handle.status["isTriggerActive"], "an idle query")

        with pytest.raises(InUseError) as caught:
            _change(lane)

        fields = caught.value.fields
        assert caught.value.kind == "checkpoint-in-use"
        assert (fields["run"], fields["executor"]) == (str(handle.runId), "driver")
        assert fields["application"] == spark.sparkContext.applicationId
        jvm: Any = spark._jvm
        assert fields["pid"] == jvm.java.lang.ProcessHandle.current().pid()

        # Readers see no state in the leases, and take none.
        reader = lane.session().read
        metadata = reader.format("state-metadata").load(str(lane.checkpoint))
        assert [row.operatorId for row in metadata.collect()] == [0]
        assert reader.format("statestore").load(str(lane.checkpoint)).count() > 0
        held = [_leases(lane).read(name) for name in _leases(lane).list()]
        assert [lease.holder.run for lease in held if lease] == [str(handle.runId)]

        # What only the driver knows is in its lease, and of the newest batch after a renewal.
        def rates() -> tuple[int, int] | None:
            found = Checkpoint(lane.checkpoint).query.rates
            return (found.batch, found.rows) if found and found.known_by == "progress" else None

        def reported() -> tuple[int, int]:
            ran = [each for each in handle.recentProgress if "addBatch" in each["durationMs"]]
            return ran[-1]["batchId"], ran[-1]["numInputRows"]

        wait_for(lambda: "addBatch" not in handle.lastProgress["durationMs"], "an idle report")
        wait_for(lambda: rates() == reported(), "rates in the lease")
        assert reported()[0] == len(first) - 1
        told = Checkpoint(lane.checkpoint).query
        assert (told.is_running, told.name) == (True, "clicks by <shop>")
        assert told.query_id == str(handle.id)

        # The lease is the query's, whatever becomes of an engine.
        for pid in engines(descendants(os.getpid())):
            os.kill(pid, signal.SIGKILL)
        before = _renewals(lane)
        wait_for(lambda: _renewals(lane) - before, "a renewal by another engine")
    finally:
        handle.stop()

    _change(lane)
    assert _leases(lane).list() == {}

    with (
        open_checkpoint(place_of(lane.checkpoint)) as checkpoint,
        exclusive_use(checkpoint, "rescale"),
    ):
        with pytest.raises(StreamingQueryException, match="checkpoint-under-operation"):
            lane.run(*second)
        (name,) = _leases(lane).list()
        assert name.startswith("operation-")

    lane.run(*third)
    assert len(lane.batches) == sum(map(len, lane.query.plan))
    wait_for(lambda: not _leases(lane).list(), "the end of the lease")


@pytest.mark.extended
def test_lease_is_renewed_while_an_engine_starts(make_lane: MakeLane) -> None:
    """Catches a running query that counts as stopped, since its engine takes long to start anew.

    Which of two engines renews the lease nobody says: each is lost in turn.
    """

    def running() -> set[int]:
        return set(engines(descendants(os.getpid())))

    others = running()
    conf = {LEASE_INTERVAL: str(INTERVAL_MS), f"{STATE_STORE}.engine.processes": "2"}
    lane = make_lane(replace(AGGREGATION, plan=one_input(2, 1, 1)), conf=conf)
    lane.feed(*lane.query.plan[0])
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: len(lane.batches) == 2, "the batches", timeout_s=60)
        wait_for(lambda: len(running() - others) == 2, "both engines")
        for lost in running() - others:
            known = running()
            os.kill(lost, signal.SIGKILL)
            wait_for(lambda known=known: running() - known, "a start")
            (starting,) = running() - known
            os.kill(starting, signal.SIGSTOP)
            try:
                seen: set[int] = set()

                def renewed(seen: set[int] = seen) -> bool:
                    seen |= _renewals(lane)
                    return len(seen) > 2

                wait_for(renewed, "renewals by the other engine", timeout_s=8)
            finally:
                os.kill(starting, signal.SIGCONT)
            files = Path(f"/proc/{starting}/fd")
            wait_for(
                lambda files=files: any(file.is_socket() for file in files.iterdir()), "its end"
            )
    finally:
        handle.stop()


@pytest.mark.parametrize(
    "conf",
    [
        pytest.param({}, id="keeps-stores"),
        pytest.param(
            {f"{STATE_STORE}.unloadOnCommit": "true"},
            id="unloads-stores",
            marks=pytest.mark.needs("unload-on-commit"),
        ),
    ],
)
def test_lease_is_written_once_an_interval(make_lane: MakeLane, conf: dict[str, str]) -> None:
    """Catches a lease for every store, task or batch, and one that depends on loaded providers."""
    query = replace(AGGREGATION, plan=one_input(4))
    lane = make_lane(query, conf=conf)
    seen: dict[str, set[int]] = {}

    def look(batch_id: int) -> None:
        for name, info in _leases(lane).list().items():
            seen.setdefault(name, set()).add(info.modified_ms)

    lane.on_batch = look
    began = time.monotonic()
    lane.run(*query.plan[0])
    num_renewals = int((time.monotonic() - began) / 10)
    wait_for(lambda: not _leases(lane).list(), "the end of the lease")

    (times,) = seen.values()
    assert 1 <= len(times) <= 1 + num_renewals


def test_lease_is_held_until_a_commit_under_way_has_ended(
    make_lane: MakeLane, s3_server: Any, bucket: str
) -> None:
    """Catches an operation that begins while a killed task is still publishing its version."""
    options = {
        "checkpointStorage": f"s3://{bucket}/state",
        "s3.endpoint": s3_server.endpoint,
        "s3.region": REGION,
        "s3.pathStyle": "true",
        "s3.accessKey": "test",
        "s3.secretKey": "test",
        "s3.timeoutMs": "60000",
    }
    conf = {f"{STATE_STORE}.{key}": value for key, value in options.items()}
    lane = make_lane(replace(AGGREGATION, plan=one_input(2)), conf=conf)
    first, second = lane.query.plan[0]
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        gate.wait(60)

    lane.feed(first)
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: len(lane.batches) == 1, "the first batch")
        s3_server.fail("PUT", hold)
        lane.feed(second)
        assert entered.wait(60)
    finally:
        handle.stop()
    # The driver forgets the run at once, and its leases are looked at once a second.
    time.sleep(4)
    held = _leases(lane).list()
    gate.set()

    assert held
    wait_for(lambda: not _leases(lane).list(), "the end of the lease")


# Each of four renewals waits 5 s for the engine that hangs.
@pytest.mark.timeout(240)
@pytest.mark.extended
def test_renewals_go_on_when_one_engine_hangs(make_lane: MakeLane) -> None:
    """Catches an engine that does not answer and lets the leases of all queries expire."""
    conf = {LEASE_INTERVAL: str(INTERVAL_MS), f"{STATE_STORE}.engine.processes": "2"}
    lane = make_lane(replace(AGGREGATION, plan=one_input(1)), conf=conf)
    before = set(engines(descendants(os.getpid())))
    lane.feed(*lane.query.plan[0])
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: len(lane.batches) == 1, "the batch")
        own = set(engines(descendants(os.getpid()))) - before
        assert len(own) == 2
        for pid in own:
            os.kill(pid, signal.SIGSTOP)
            try:
                seen = _renewals(lane)
                # One may have been under way.
                wait_for(lambda: len(_renewals(lane) - seen) > 0, "a renewal")  # noqa: B023
                seen |= _renewals(lane)
                wait_for(lambda: _renewals(lane) - seen, "another renewal")  # noqa: B023
            finally:
                os.kill(pid, signal.SIGCONT)
    finally:
        handle.stop()


@pytest.mark.timeout(240)
@pytest.mark.extended
def test_only_engine_is_replaced_when_it_hangs(make_lane: MakeLane) -> None:
    """Catches the engine of a cluster's driver, which serves no store, that hangs for ever."""
    conf = {
        LEASE_INTERVAL: str(INTERVAL_MS),
        f"{STATE_STORE}.engine.processes": "1",
        f"{STATE_STORE}.engine.callTimeoutMs": "5000",
    }
    lane = make_lane(replace(AGGREGATION, plan=one_input(1)), conf=conf)
    before = set(engines(descendants(os.getpid())))
    lane.feed(*lane.query.plan[0])
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: len(lane.batches) == 1, "the batch")
        (pid,) = set(engines(descendants(os.getpid()))) - before
        os.kill(pid, signal.SIGSTOP)
        try:
            seen = _renewals(lane)
            wait_for(lambda: _renewals(lane) - seen, "a renewal by another engine", timeout_s=60)
            assert pid not in engines(descendants(os.getpid()))
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    finally:
        handle.stop()


def test_nothing_is_committed_when_the_lease_cannot_be_renewed(make_lane: MakeLane) -> None:
    """Catches commits under a lease that has expired, which operations do not see."""
    lane = make_lane(
        replace(AGGREGATION, plan=one_input(2)),
        conf={LEASE_INTERVAL: str(INTERVAL_MS)},
    )
    first, second = lane.query.plan[0]
    lane.feed(first)
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: len(lane.batches) == 1, "the first batch")
        directory = Path(_leases(lane).directory)
        shutil.rmtree(directory)
        directory.touch()
        time.sleep(4 * INTERVAL_MS / 1000)
        lane.feed(second)
        wait_for(lambda: not handle.isActive, "the end of the query", timeout_s=120)
    finally:
        handle.stop()

    assert not list((lane.checkpoint / "state").rglob("2*.delta.*"))
    assert handle.exception() is not None
    directory.unlink()
    lane.run()
    assert len(lane.batches) == 2


def _first_of_each(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["key"]).select("key", "value")


@pytest.mark.parametrize(
    "query",
    [AGGREGATION, single("first-of-each", "append", _first_of_each)],
    ids=lambda query: query.name,
)
def test_query_without_a_batch_is_in_use(make_lane: MakeLane, query: Query) -> None:
    """Catches an undo under a query that goes on from the logs as it found them.

    Spark does not count duplicates that are told by no time among stateful operators.
    """
    lane = make_lane(
        replace(query, plan=one_input(2, 1)),
        conf={"spark.sql.shuffle.partitions": "2", LEASE_INTERVAL: str(INTERVAL_MS)},
    )
    lane.run(*lane.query.plan[0])
    Checkpoint(lane.checkpoint).rescale(4)
    before = {path.name for path in (lane.checkpoint / "offsets").iterdir()}
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: _leases(lane).list(), "a lease")
        for operation in (Checkpoint.undo_rescale, partial(Checkpoint.rescale, num_partitions=8)):
            with pytest.raises(InUseError) as caught:
                operation(Checkpoint(lane.checkpoint))
            assert caught.value.kind == "checkpoint-in-use"
            assert caught.value.fields["run"] == str(handle.runId)
        assert {path.name for path in (lane.checkpoint / "offsets").iterdir()} == before
        lane.feed(*lane.query.plan[1])
        wait_for(lambda: len(lane.batches) == 3, "a batch with four state partitions")
    finally:
        handle.stop()


@pytest.mark.timeout(240)
def test_query_of_a_cluster_whose_driver_was_refused_fails(start_job: Callable[..., Job]) -> None:
    """Catches a query that goes on from what it read before an operation, and has no lease then.

    No executor was refused: there was no batch while the operation was under way.
    """
    report = start_job("refused", provider=PROVIDER).report(220)

    assert "[checkpoint-under-operation]" in report["error"]
    assert report["batches"] == [0, 1]


IDLE_JOB = """
import sys
from pathlib import Path
from tests.spark.application import start_application
from tests.spark.harness import Lane
from tests.spark.queries import AGGREGATION

local, provider, root, *jars = sys.argv[1:]
spark = start_application(Path(local), [Path(jar) for jar in jars])
handle = Lane(spark, AGGREGATION, provider, Path(root)).start(available_now=False)
print("started", handle.runId, flush=True)
sys.stdin.read()
handle.stop()
spark.stop()
"""


@pytest.mark.timeout(240)
def test_first_query_of_an_application_is_in_use_without_a_batch(
    make_lane: MakeLane, jars: list[Path], tmp_path: Path
) -> None:
    """Catches a driver that looks for queries only when it has planned a batch of one."""
    lane = make_lane(replace(AGGREGATION, plan=one_input(1)))
    lane.run(*lane.query.plan[0])
    wait_for(lambda: not _leases(lane).list(), "the end of the lease")
    command = [sys.executable, "-c", IDLE_JOB, tmp_path / "job", PROVIDER, lane.root, *jars]
    (tmp_path / "job").mkdir()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as job:
        try:
            assert job.stdout
            assert job.stdin
            lines = (line.split() for line in job.stdout)
            run = next(words[1] for words in lines if words[:1] == ["started"])

            wait_for(lambda: _leases(lane).list(), "a lease")
            with pytest.raises(InUseError) as caught:
                _change(lane)
            assert caught.value.fields["run"] == run
        finally:
            job.stdin.close()
    assert _leases(lane).list() == {}
