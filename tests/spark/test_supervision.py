"""Supervised queries: failures of real causes, then the rows of a query that never failed."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import QueryProgressEvent

import statestore
from statestore import CheckpointListener, FixedDelay, QueryFailedError
from statestore.core.clock import ManualClock
from statestore.core.errors import NotFoundError
from statestore.spark.driver_session import session_of

from .conftest import BODY, PROVIDER, MakeLane, state_in_files, state_in_memory
from .harness import HDFS, STATE_STORE, Lane, wait_for
from .job_process import Job
from .queries import AGGREGATION, one_input, single


class Recorder(CheckpointListener):
    """Keeps what it is told in one run, and raises whenever a version is complete."""

    def __init__(self, commits: Callable[[], Path]) -> None:
        self.commits = commits
        self.complete: list[int] = []
        self.aborted: list[int] = []
        self.early: list[int] = []

    def notify_checkpoint_complete(self, version: int) -> None:
        self.complete.append(version)
        if not (self.commits() / str(version - 1)).exists():
            self.early.append(version)
        message = f"the listener fails at {version}"
        raise RuntimeError(message)

    def notify_checkpoint_aborted(self, version: int) -> None:
        self.aborted.append(version)


class FailingStarts:
    """Starts a lane with a listener; four attempts fail in batch 1 or before, each in its way."""

    def __init__(self, lane: Lane, deaths: Path) -> None:
        self.lane = lane
        self.deaths = deaths
        self.commits = lane.checkpoint / "commits"
        self.aside = lane.root / "commits-aside"
        self.recorders: list[Recorder] = []

    @property
    def attempt(self) -> int:
        return len(self.recorders)

    def start(self) -> Any:
        recorder = Recorder(lambda: self.aside if self.aside.exists() else self.commits)
        self.recorders.append(recorder)
        if self.aside.exists():  # the storage is back
            self.commits.unlink()
            self.aside.rename(self.commits)
        if self.attempt in (3, 5):
            # A run that began before the end of this one was known would supersede it.
            wait_for(lambda: self.recorders[-2].aborted, "the aborted version")
        if self.attempt == 1:
            message = "the catalog does not answer"
            raise ConnectionError(message)
        if self.attempt == 4:
            for death in ("task", "retry"):
                (self.deaths / death).touch()
        query = self.lane.start()
        statestore.listen(query, recorder)
        return query

    def before_batch(self, batch_id: int) -> None:
        """Make the third attempt's batch fail when Spark writes that it is committed."""
        if (self.attempt, batch_id) == (3, 1):
            wait_for(lambda: self.recorders[-1].complete, "the first notification of the run")
            self.commits.rename(self.aside)
            self.commits.write_text("not a directory")

    def on_batch(self, batch_id: int) -> None:
        """Make the second attempt's batch fail after the commits of its state."""
        if (self.attempt, batch_id) == (2, 1):
            message = "the sink is full"
            raise OSError(message)


def _read_by_mortals(deaths: Path) -> Callable[[DataFrame], DataFrame]:
    """Return a query whose Python worker dies as often as there are files in a folder."""

    def build(events: DataFrame) -> DataFrame:
        @sf.udf("bigint")
        def read(value):  # with type hints it would be read by Arrow
            for death in deaths.iterdir():
                death.unlink()
                os._exit(3)
            return value

        return events.withColumn("value", read("value")).groupBy("key").sum("value")

    return build


def test_query_goes_on_exactly_once_after_failures(
    make_lane: MakeLane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Catches batches that a restart loses or counts twice, and versions told early or never.

    The start fails, then the sink behind the commits of the state, then the commit log, then the
    Python workers of a task and its retry; the fifth attempt gets to the end.
    """
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    query = single("aggregation-python", "update", _read_by_mortals(deaths), one_input(3))
    expected, lane = make_lane(query, HDFS), make_lane(query)
    expected.run(*query.plan[0])
    lane.feed(*query.plan[0])
    starts, clock = FailingStarts(lane, deaths), ManualClock(now_ms=0)
    lane.before_batch, lane.on_batch = starts.before_batch, starts.on_batch

    with caplog.at_level(logging.WARNING, "statestore"):
        past = statestore.run(starts.start, FixedDelay(5, 30), clock=clock)
        second, _, fourth, fifth = starts.recorders[1:]
        # Its error is logged behind the call.
        wait_for(lambda: "the listener fails at 3" in caplog.text, "the last version")

    assert lane.batches == expected.batches
    assert past.attempts == 5
    log = "\n".join(caplog.messages)  # PySpark's formatter would escape the quotes
    for attempt, (failure, cause) in enumerate(
        zip(
            past.failures,
            ("catalog does not answer", "sink is full", "commits", "exited unexpectedly"),
            strict=True,
        ),
        1,
    ):
        assert cause in failure.reason
        assert f"attempt={attempt}, reason={failure.reason!r}, delay_ms=30000" in log
    assert clock.now_ms() == 4 * 30_000
    for recorder in starts.recorders[1:]:
        assert recorder.complete[0] >= 1
        assert recorder.complete == sorted(set(recorder.complete))
        assert recorder.early == []
    assert [recorder.complete for recorder in starts.recorders[:4]] == [[], [1], [1], [1]]
    assert (second.aborted, fourth.aborted, fifth.aborted) == ([2], [2], [])
    assert fifth.complete[-1] == 3
    assert "method=notify_checkpoint_complete" in log


def _set_partitions(lane: Lane, number: int) -> None:
    for path in (lane.checkpoint / "offsets").glob("[0-9]*"):
        version, metadata, *offsets = path.read_text().splitlines()
        fields = json.loads(metadata)
        fields["conf"]["spark.sql.shuffle.partitions"] = str(number)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        path.write_text("\n".join([version, json.dumps(fields), *offsets]))


@state_in_files
@state_in_memory
@pytest.mark.ours
def test_query_is_not_restarted_when_the_failure_would_last(make_lane: MakeLane) -> None:
    """Catches errors that come out of Spark in a form that hides that they are there to stay."""
    query = replace(AGGREGATION, plan=one_input(2))
    lane, plan = make_lane(query), query.plan[0]
    lane.run(plan[0])
    lane.feed(plan[1])
    delta = lane.checkpoint / "state" / "0" / "1" / f"1.delta.{BODY}"
    written, conf = delta.read_bytes(), lane.conf
    obstacles = []

    def refuse(start_query: Callable[[], Any] = lane.start) -> None:
        with pytest.raises(QueryFailedError) as raised:
            statestore.run(start_query, FixedDelay(3, 1), clock=ManualClock())
        assert raised.value.fields["attempts"] == 1
        obstacles.append(raised.value.fields["obstacle"])

    def start_to(sink: str) -> Any:
        stream = lane.session().readStream.schema(query.schemas["events"])
        events = stream.json(str(lane.root / "input" / "events"))
        writer = query.build(lane.session(), {"events": events}).writeStream.outputMode("update")
        to = writer.option("checkpointLocation", str(lane.checkpoint)).format(sink)
        return to.queryName("refused").trigger(availableNow=True).start()

    lane.query = replace(query, build=lambda session, streams: streams["events"].groupBy("nope"))
    refuse(lambda: start_to("memory"))
    refuse(lambda: lane.query.build(lane.session(), {"events": lane.spark.range(1)}).count())
    lane.query = replace(
        query, build=lambda session, streams: streams["events"].groupBy("key").avg("value")
    )
    refuse()
    lane.query = query
    lane.conf = {**conf, f"{STATE_STORE}.snapshot.maxChainLenght": "5"}
    refuse()
    refuse(lambda: start_to("noop"))
    lane.conf = conf
    _set_partitions(lane, 2)
    refuse()
    refuse(lambda: start_to("noop"))
    _set_partitions(lane, 3)
    delta.write_bytes(written[:50] + bytes([written[50] ^ 1]) + written[51:])
    refuse()
    delta.write_bytes(written)

    assert obstacles == [
        "AnalysisException",
        "42703",
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        "unknown-option",
        "unknown-option",
        "num-partitions-changed",
        "num-partitions-changed",
        "checksum-mismatch",
    ]
    assert statestore.run(lane.start).attempts == 1
    assert sorted(lane.batches) == [0, 1]


def test_supervision_ends_when_restarts_are_used_up_or_the_query_is_stopped(
    make_lane: MakeLane,
) -> None:
    """Catches a supervisor that starts a query again that failed too often or was stopped.

    Also an ended run that calls the batch aborted which the next run is at.
    """
    query = replace(AGGREGATION, plan=one_input(2))
    expected, lane = make_lane(query, HDFS), make_lane(query)
    expected.run(*query.plan[0])
    lane.feed(*query.plan[0])

    def fail(batch_id: int) -> None:
        message = "the sink is full"
        raise OSError(message)

    def start_query() -> Any:
        queries.append(lane.start(available_now=False))
        statestore.listen(queries[-1], StopAtTheEnd())
        return queries[-1]

    def look_at_an_ended_run(batch_id: int) -> None:
        statestore.listen(queries[0], told)

    class StopAtTheEnd(CheckpointListener):
        def notify_checkpoint_complete(self, version: int) -> None:
            if version == 2:
                queries[-1].stop()

    queries: list[Any] = []
    told = Recorder(lambda: lane.checkpoint / "commits")
    lane.on_batch = fail
    with pytest.raises(QueryFailedError) as raised:
        statestore.run(start_query, FixedDelay(2, 10), clock=ManualClock())
    assert raised.value.kind == "restarts-exhausted"
    assert isinstance(raised.value.__cause__, StreamingQueryException)
    assert raised.value.restart is not None
    assert raised.value.restart.attempts == lane.attempts[0] == 3

    lane.on_batch = look_at_an_ended_run
    assert statestore.run(start_query, FixedDelay(2, 10), clock=ManualClock()).attempts == 1
    assert lane.batches == expected.batches
    assert (told.complete, told.aborted, told.early) == ([1], [], [])


def test_listener_is_told_of_its_own_query_alone(
    make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches another query's end that is taken for its own, and progress that is read whole."""
    lane = make_lane(AGGREGATION)
    read: list[Any] = []
    monkeypatch.setattr(QueryProgressEvent, "fromJObject", read.append)
    files = AGGREGATION.plan[0]
    lane.feed(*files[:1])
    query = lane.start(available_now=False)
    rates = session_of(query).readStream.format("rate").load().writeStream.format("noop")
    other = rates.start()
    told, of_other = Recorder(lambda: lane.checkpoint / "commits"), Counter[str]()

    class Others(CheckpointListener):
        def notify_checkpoint_complete(self, version: int) -> None:
            of_other["complete"] += 1

    try:
        statestore.listen(query, told)
        statestore.listen(other, Others())
        wait_for(lambda: told.complete == [1], "the first version", 60)
        wait_for(lambda: of_other["complete"] >= 2, "versions of the other", 60)
        other.stop()
        lane.feed(*files[1:2])
        wait_for(lambda: told.complete == [1, 2], "the second version", 60)
    finally:
        other.stop()
        query.stop()
    assert not told.early
    assert read == []


def test_what_a_sink_raised_is_the_cause(make_lane: MakeLane) -> None:
    """Catches an exception of the program of which only text is left."""
    raised = ConnectionError("the sink is away")

    def fail(_batch_id: int) -> None:
        raise raised

    lane = make_lane(replace(AGGREGATION, plan=one_input(1)))
    lane.feed(*lane.query.plan[0])
    lane.on_batch = fail

    with pytest.raises(QueryFailedError) as failed:
        statestore.run(lane.start, statestore.NoRestart())

    assert isinstance(failed.value.__cause__, StreamingQueryException)
    assert failed.value.__cause__.__cause__ is raised
    assert failed.value.fields["reason"] == "ConnectionError: the sink is away"


def test_savepoints_are_taken_while_the_query_runs(make_lane: MakeLane, tmp_path: Path) -> None:
    """Catches a schedule that begins anew with each start, stops the query, or outlives it."""
    lane, kept = make_lane(replace(AGGREGATION, plan=one_input(3))), tmp_path / "kept"
    checkpoint = statestore.Checkpoint(lane.checkpoint, spark=lane.spark)

    def versions() -> list[int]:
        return [one.info.version for one in checkpoint.savepoints(kept)]

    def is_kept(version: int) -> bool:
        try:
            return versions()[-1:] == [version]
        except NotFoundError:  # the oldest went between the listing and a look
            return False

    def drive() -> None:
        try:
            for number, files in enumerate(lane.query.plan[0], 1):
                lane.feed(files)
                wait_for(commits[number - 1].exists, "a batch")
                wait_for(lambda number=number: is_kept(number), "a savepoint")
        finally:
            queries[0].stop()

    def start_query() -> Any:
        queries.append(lane.start(available_now=False))
        return queries[-1]

    commits = [lane.checkpoint / "commits" / str(batch) for batch in range(3)]
    queries: list[Any] = []
    driving = threading.Thread(target=drive)
    driving.start()
    statestore.run(start_query, savepoints=statestore.Every(1, kept, keep=2))
    driving.join()

    assert versions()[-2:] == [2, 3]
    assert [one.verify(deep=True).findings for one in checkpoint.savepoints(kept)] == [(), ()]
    assert not [one for one in threading.enumerate() if one.name == "savepoints"]
    lane.feed(lane.query.plan[0][0])
    statestore.run(lane.start, savepoints=statestore.Every(3600, kept, keep=2))
    assert versions() == [2, 3], "it is not due after a restart"


@pytest.mark.ours
def test_program_that_waits_for_its_query_is_ended_by_signals(start_job: Callable[..., Job]):
    """Catches a query that is started again when its program is told to end."""
    job = start_job("supervised", provider=PROVIDER)

    for number, signal_to_end in enumerate((signal.SIGTERM, signal.SIGINT), 1):
        wait_for(lambda number=number: job.num_batches() == number, "a batch", timeout_s=100)
        os.kill(job.process.pid, signal_to_end)

    assert job.report(60) == {
        "attempts": 1,
        "version": 1,
        "is_interrupted": True,
        "is_active": True,
        "starts": 2,
    }


@state_in_files
def test_query_that_is_stopped_within_a_batch_is_not_started_again(make_lane: MakeLane):
    """Catches a program that runs on after its handler of SIGTERM has stopped the query."""
    lane = make_lane(AGGREGATION, PROVIDER)
    lane.feed(AGGREGATION.plan[0][0])
    handles: list[Any] = []
    is_within = threading.Event()

    def start() -> Any:
        handles.append(lane.start())
        return handles[-1]

    def stop() -> None:
        is_within.wait(60)
        handles[-1].stop()

    def give_up(_: int) -> None:
        is_within.set()
        wait_for(lambda: not handles[-1].isActive, "the end of the query")
        message = "the sink gave up"
        raise ValueError(message) from None

    lane.on_batch = give_up
    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(QueryFailedError) as raised:
        statestore.run(start, FixedDelay(3, 1), clock=ManualClock())
    stopper.join()

    assert raised.value.fields["obstacle"] == "stopped"
    assert raised.value.restart.attempts == len(handles) == 1
