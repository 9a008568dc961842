"""Queries that scale by themselves: other numbers of state partitions, the same rows."""

from __future__ import annotations

import json
import logging
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

import statestore
from statestore import Between, Checkpoint, FixedDelay, NoRestart, QueryFailedError
from statestore.api import scaling, stopping
from statestore.core.clock import ManualClock
from statestore.core.scaling import Decision
from statestore.spark import batch_end

from .conftest import EXTENDED, PROVIDER, MakeLane, state_in_files
from .harness import (
    FILESYSTEM,
    HDFS,
    HEAP,
    PROVIDER_CLASS,
    ROCKSDB_BACKEND,
    STATE_STORE,
    Lane,
    wait_for,
)
from .job_process import Job
from .queries import AGGREGATION, one_input
from .scaling_job import MOMENTS, SCALED
from .scaling_load_job import INTERVAL_S
from .test_rescale import FOUR

QUERY = replace(AGGREGATION, name="scaled", plan=one_input(8))
EVERY = "100 milliseconds"
"""Shorter than any batch: each says that the query is busy."""
BATCH_S = 0.6
"""Longer than the time between two looks at a query: no batch is passed over."""
COOL_DOWN_S = 300.0


class Run:
    """A supervised run of a lane, whose time is moved by hand: 200 s in every batch."""

    def __init__(self, lane: Lane, batch_s: float = BATCH_S) -> None:
        self.lane, self.batch_s = lane, batch_s
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
        time.sleep(self.batch_s)
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
def test_query_that_gets_no_rows_after_a_change_has_fewer_partitions(make_lane: MakeLane) -> None:
    """Catches a run without a batch, which keeps for ever what the last rows have asked for."""
    lane = make_lane(QUERY, conf=FOUR)
    lane.feed(*QUERY.plan[0][:4])  # of the first batch of a run the load is not known

    with Run(lane, batch_s=2) as run:
        run.wait(lambda: len(run.handles) == 2, "more partitions")
        run.wait(lambda: run.idle() or len(run.handles) == 3, "fewer partitions")

    assert len(lane.batches) == 4
    fell = next(iter(Checkpoint(lane.checkpoint).history()))
    assert fell.options == {"num_partitions": 2}


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


def test_stop_that_was_given_up_is_no_stop(
    make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a query that ends for good at its next change, for a stop that was once begun."""
    lane = make_lane(QUERY)
    lane.feed(*QUERY.plan[0][:1])
    query = lane.start(every=EVERY)

    def give_up(_: Any, __: float) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batch_end, "_await_end", give_up)
        with pytest.raises(KeyboardInterrupt):
            batch_end.stop_after_batch(query)

    assert query.isActive
    assert batch_end.stop_after_batch(query)
    assert not query.isActive


@pytest.mark.parametrize("moment", ["before", "after", "savepoint"])
def test_query_that_somebody_stops_during_a_change_does_not_go_on(
    make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Catches a query that starts again after its program has stopped it.

    It stops the query before the scaler does, or interrupts the last batch, or waits for it.
    """
    lane = make_lane(QUERY, conf=FOUR)
    lane.feed(*QUERY.plan[0][:6])
    stop, end = scaling.stop_after_batch, batch_end._end
    is_interrupted = batch_end._is_interrupted
    others: list[threading.Thread] = []
    interruptions: list[bool] = []
    is_told, is_held, is_changing = threading.Event(), threading.Event(), threading.Event()
    decide = scaling._Run._decide

    def hold(_: int) -> None:
        is_held.set()
        if is_changing.wait(1.0) and moment != "before":
            wait_for(lambda: others, "the other stop")
            if moment == "after":
                wait_for(lambda: any(interruptions), "the interruption")
            else:
                told_to = str(run.handles[-1].runId)
                wait_for(lambda: [of for of, _ in batch_end._stops].count(told_to) == 2, "both")
        is_held.clear()

    def decide_in_a_batch(of: Any) -> Decision | None:
        # Where the last batch ends first, nothing tells one stop from the other.
        decide(of)
        if of._scaler is None or not is_held.is_set():
            return None
        is_changing.set()
        return Decision(8, "the test")

    run = Run(lane)
    lane.on_batch = hold
    monkeypatch.setattr(scaling._Run, "_decide", decide_in_a_batch)

    def beside(call: Callable[..., Any], *arguments: Any) -> None:
        others.append(threading.Thread(target=call, args=arguments))
        others[-1].start()

    def stop_first(query: Any, **named: Any) -> bool:
        if moment == "before":
            query.stop()
        return stop(query, **named)

    def stop_then(execution: Any) -> None:
        end(execution)
        if not others:
            query = run.handles[-1]
            if moment == "after":
                beside(query.stop)
            elif moment == "savepoint":
                beside(statestore.stop_with_savepoint, query, lane.root / "savepoint")
                is_told.wait(60)

    def told(query: Any, wait_s: float) -> bool:
        is_told.set()
        return stop(query, wait_s)

    monkeypatch.setattr(scaling, "stop_after_batch", stop_first)

    def note(execution: Any) -> bool:
        interruptions.append(is_interrupted(execution))
        return interruptions[-1]

    monkeypatch.setattr(batch_end, "_is_interrupted", note)
    monkeypatch.setattr(batch_end, "_end", stop_then)
    monkeypatch.setattr(stopping, "stop_after_batch", told)
    with run:
        wait_for(lambda: run.past is not None or len(run.handles) == 2, "the end of the run")
        for other in others:
            other.join(60)

    assert len(run.handles) == 1
    assert Checkpoint(lane.checkpoint).info.num_partitions == 4


def test_run_lasts_until_the_last_batch_of_a_query_that_was_stopped_has_ended(
    make_lane: MakeLane,
) -> None:
    """Catches a program that goes on, or ends, in the middle of that batch."""
    lane = make_lane(QUERY, conf=FOUR)
    lane.feed(*QUERY.plan[0][:1])
    handles: list[Any] = []

    def start() -> Any:
        handles.append(lane.start(every=EVERY))
        return handles[-1]

    def stop() -> None:
        statestore.stop_with_savepoint(handles[-1], lane.root / "savepoint")

    stopping = threading.Thread(target=stop)

    def on_batch(_: int) -> None:
        wait_for(lambda: handles, "the handle")
        stopping.start()
        wait_for(lambda: not handles[-1].isActive, "a query that is told to end")
        time.sleep(2.0)  # for more than one look

    lane.on_batch = on_batch
    past = statestore.run(start, scale=Between(2, 8))
    is_committed = (lane.checkpoint / "commits" / "0").exists()
    stopping.join()

    assert is_committed
    assert (past.attempts, past.failures) == (1, [])
    assert statestore.Savepoint(lane.root / "savepoint").info.version == 1


PARTITIONS = f"{STATE_STORE}.partitions"
SHUFFLES = "spark.sql.shuffle.partitions"


def _numbers(lane: Lane) -> list[int]:
    """Return the number of state partitions of every batch."""
    found = sorted(map(int, (path.name for path in (lane.checkpoint / "offsets").glob("[0-9]*"))))
    entries = [(lane.checkpoint / "offsets" / str(batch)).read_text() for batch in found]
    confs = [json.loads(entry.splitlines()[1])["conf"] for entry in entries]
    return [int(conf["spark.sql.shuffle.partitions"]) for conf in confs]


@pytest.mark.ours
def test_restart_with_another_number_rescales_first(make_lane: MakeLane) -> None:
    """Catches a number that is asked for in vain, and one of a new query that is not the one asked.

    A query that was stopped within a batch goes on as it was.
    """
    (files,) = QUERY.plan
    expected, lane = make_lane(QUERY, HDFS), make_lane(QUERY, conf={PARTITIONS: "4"})
    lane.checkpoint = lane.root / "it's a checkpoint at=10%3A00"
    expected.run(*files[:5])

    lane.run(*files[:2])
    lane.conf[PARTITIONS] = "8"
    with pytest.raises(IllegalArgumentException, match="--num-partitions 8 --yes") as refused:
        lane.start()
    (command,) = re.findall("`(.*)`", str(refused.value))
    assert shlex.split(command)[:2] == ["statestore", "rescale"]
    assert Checkpoint(shlex.split(command)[2]).info.num_partitions == 4
    lane.feed(*files[2:3])
    past = statestore.run(lane.start, NoRestart())
    assert past.attempts == 1
    assert _numbers(lane) == [4, 4, 8, 8]
    for name in ("3", ".3.crc"):  # its last batch
        (lane.checkpoint / "commits" / name).unlink()
    lane.conf[PARTITIONS] = "2"
    lane.feed(*files[3:4])
    statestore.run(lane.start, NoRestart())
    lane.feed(*files[4:5])
    statestore.run(lane.start, NoRestart())

    assert _numbers(lane) == [4, 4, 8, 8, 8, 2, 2]
    assert _in_order(lane.batches) == _in_order(expected.batches)
    checkpoint = Checkpoint(lane.checkpoint, spark=lane.spark if PROVIDER == HEAP else None)
    assert checkpoint.verify(deep=True).ok
    reasons = {entry.result["reason"] for entry in checkpoint.history()}
    assert reasons == {"the configuration asks for it"}


def _count(
    session: SparkSession, directory: Path, on_batch: Callable[[SparkSession], object], batch: int
) -> None:
    """Run a query until a batch is committed; call with its own session in each batch."""
    rates = session.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1)
    counts = rates.load().groupBy("value").count().writeStream.outputMode("update")

    def each(frame: DataFrame, _: int) -> None:
        frame.collect()
        on_batch(frame.sparkSession)

    query = counts.foreachBatch(each).option("checkpointLocation", str(directory)).start()
    committed = directory / "commits" / str(batch)
    try:
        wait_for(lambda: committed.exists() or not query.isActive, "a batch")
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.ours
@pytest.mark.needs("partition-warning")
def test_number_leaves_shuffles_without_state_as_they_are(
    spark: SparkSession, tmp_path: Path, application_root: Path
) -> None:
    """Catches the session's number replaced by that of state partitions, and a warning of both."""
    session = spark.newSession()
    session.conf.set(PROVIDER_CLASS, PROVIDER)
    session.conf.set(PARTITIONS, "4")
    session.conf.set(SHUFFLES, "7")
    found = []
    for batch in (0, 1) if PROVIDER != HEAP else (0,):
        _count(session, tmp_path, lambda of_query: found.append(of_query.conf.get(SHUFFLES)), batch)

    assert set(found) == {"7"}
    assert Checkpoint(tmp_path, spark=session).info.num_partitions == 4
    lines = (application_root / "spark.log").read_text().splitlines()
    assert not [line for line in lines if str(tmp_path) in line and "statestore rescale" in line]


@pytest.mark.ours
def test_number_that_a_batch_sets_is_not_that_of_state_partitions(
    spark: SparkSession, tmp_path: Path, unload_all: Callable[[], None]
) -> None:
    """Catches a store that is opened anew, and believes what `foreachBatch` did to the session."""
    session = spark.newSession()
    session.conf.set(PROVIDER_CLASS, PROVIDER)
    session.conf.set(SHUFFLES, "4")

    def on_batch(of_query: SparkSession) -> None:
        of_query.conf.set(SHUFFLES, "1")
        unload_all()

    _count(session, tmp_path, on_batch, 1)

    assert Checkpoint(tmp_path, spark=session).info.num_partitions == 4


@EXTENDED
@pytest.mark.ours
def test_number_is_not_for_queries_on_a_store_of_sparks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a session that goes on with another provider, and this package's number for ever."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.conf.set(PARTITIONS, "5")
    rates = session.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1)
    found = []
    for provider in (PROVIDER, HDFS):
        session.conf.set(PROVIDER_CLASS, provider)
        directory = tmp_path / provider
        counts = rates.load().groupBy("value").count().writeStream.outputMode("update")
        query = counts.format("noop").option("checkpointLocation", str(directory)).start()
        offsets = directory / "offsets" / "0"
        wait_for(offsets.exists, "a batch")
        query.stop()
        conf = json.loads(offsets.read_text().splitlines()[1])["conf"]
        found.append(conf["spark.sql.shuffle.partitions"])

    assert found == ["5", "3"]


@pytest.mark.ours
def test_query_with_a_continuous_trigger_is_started_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches an offset log without a configuration, that is taken for a damaged one."""
    session = spark.newSession()
    session.conf.set(PROVIDER_CLASS, PROVIDER)
    session.conf.set(PARTITIONS, "8")
    rates = session.readStream.format("rate").option("numPartitions", 1).load()
    writer = rates.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    for number in range(2):
        query = writer.trigger(continuous="100 milliseconds").start()
        try:
            newest = tmp_path / "commits" / str(2 * number + 1)
            wait_for(newest.exists, "two epochs", 60)
            assert query.exception() is None
        finally:
            query.stop()


@pytest.mark.ours
@state_in_files
def test_batch_of_an_edit_that_was_killed_is_ended_before_a_rescale(make_lane: MakeLane) -> None:
    """Catches a checkpoint that neither a start, nor `run`, nor a rescale goes on with."""
    (files,) = QUERY.plan
    expected, lane = make_lane(QUERY, HDFS), make_lane(QUERY, conf={PARTITIONS: "4"})
    expected.run(*files[:3])
    lane.run(*files[:1])
    checkpoint = Checkpoint(lane.checkpoint)
    checkpoint.edit(delete="key.key IS NOT NULL")
    # As a process that died before the entry of the commit log leaves it.
    for name in ("1", ".1.crc"):
        (lane.checkpoint / "commits" / name).unlink(missing_ok=True)

    lane.conf[PARTITIONS] = "8"
    for file in files[1:3]:
        lane.feed(file)
        past = statestore.run(lane.start, NoRestart())
        assert past.attempts == 1

    assert _numbers(lane) == [4, 4, 4, 8, 8]
    assert [rows for rows in _in_order(lane.batches) if rows] == _in_order(expected.batches)
    assert checkpoint.verify(deep=True).ok


@pytest.mark.ours
@state_in_files
def test_number_asked_for_within_the_first_batch_is_a_warning(
    make_lane: MakeLane, application_root: Path
) -> None:
    """Catches a number asked for in vain, without a word of the batch that is to end first."""
    lane = make_lane(QUERY, conf={PARTITIONS: "4"})
    lane.run(*QUERY.plan[0][:1])
    for name in ("0", ".0.crc"):
        (lane.checkpoint / "commits" / name).unlink(missing_ok=True)

    lane.conf[PARTITIONS] = "8"
    lane.run()

    assert _numbers(lane) == [4]
    log = (application_root / "spark.log").read_text().splitlines()
    lines = [line for line in log if "the query ends a batch that was begun" in line]
    assert [line for line in lines if str(lane.checkpoint) in line]


def test_query_is_not_scaled_where_its_number_is_set(make_lane: MakeLane) -> None:
    """Catches a query whose restarts take back what its scaling has changed.

    Also one that is rescaled, and then refused.
    """
    lane = make_lane(QUERY, conf={PARTITIONS: "4"})
    lane.feed(*QUERY.plan[0][:1])

    def refused(fix: str) -> str:
        with pytest.raises(QueryFailedError, match=fix) as raised:
            statestore.run(lambda: lane.start(every=EVERY), FixedDelay(2, 1), scale=Between(2, 8))
        return str(raised.value.fields["obstacle"])

    assert refused("leave out the key") == "invalid-argument"
    lane.run()
    lane.conf[PARTITIONS] = "8"
    assert refused("To fix: run `statestore rescale") == "partitions-asked"
    assert Checkpoint(lane.checkpoint).info.num_partitions == 4


@EXTENDED
@pytest.mark.ours
@state_in_files
@pytest.mark.parametrize("moment", MOMENTS)
def test_query_goes_on_when_it_is_killed_in_a_change(
    start_job: Callable[..., Job], make_lane: MakeLane, moment: str
) -> None:
    """Catches rows lost or doubled, and a program that cannot go on, or has neither of the two
    numbers, after a `kill -9` at each step: the stop of the query, its rescale, its next start.
    """
    expected = make_lane(SCALED, HDFS)
    expected.run(*SCALED.plan[0])
    arguments = {"provider": PROVIDER, "module": "tests.spark.scaling_job"}

    killed = start_job(moment, **arguments)
    assert killed.process.wait(150) == -signal.SIGKILL
    wait_for(lambda: not killed.pids(), "the end of the killed job's processes")
    checkpoint = Checkpoint(killed.root / SCALED.name / "checkpoint")
    before = checkpoint.info.num_partitions
    report = start_job("not-at-all", **arguments).report()

    assert before == MOMENTS[moment]
    assert checkpoint.info.num_partitions == 8
    assert checkpoint.verify(deep=True).ok
    # The rows of a batch are told once more where its commit was not seen; the last ones are all.
    rows = {row for batch in report["batches"].values() for row in batch}
    assert rows <= {row for batch in expected.batches.values() for row in batch}
    assert report["batches"][max(report["batches"], key=int)] == expected.batches[11]
    assert _state(expected.spark, checkpoint.uri) == _state(expected.spark, expected.checkpoint)


def _state(spark: SparkSession, checkpoint: Path | str) -> list[str]:
    rows = spark.read.format("statestore").load(str(checkpoint)).select("key", "value").collect()
    return sorted(map(repr, rows))


@EXTENDED
@pytest.mark.ours
@state_in_files
@pytest.mark.timeout(600)
def test_query_on_two_executors_follows_a_load_that_is_four_times_as_high_and_back(
    start_job: Callable[..., Job],
) -> None:
    """Catches a row that is lost, a number that does not follow, and a pause that is a long one.

    It is 1.2 s to 1.5 s on a machine that does nothing else.
    """
    report = start_job("load", provider=PROVIDER, module="tests.spark.scaling_load_job").report(560)

    assert report["is_equal"], report
    assert report["findings"] == []
    assert report["starts"] == 3, report
    assert report["pauses_s"].keys() == {"4", "8"}
    assert max(report["pauses_s"].values()) < 2 * INTERVAL_S, report
