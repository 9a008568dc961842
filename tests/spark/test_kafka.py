"""A real Kafka broker, where there are its jars: as a sink, and killed under the example."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import statestore
from examples.wikipedia_edits.broker import prepare
from examples.wikipedia_edits.topics import KAFKA
from statestore import Between, Checkpoint, NoRestart, try_job
from statestore.api.scaling import load_of, newest_progress
from statestore.core.clock import ManualClock
from statestore.operations.upkeep.query_info import InputRates, QueryInfo

from .conftest import EXTENDED, state_in_files
from .harness import STATE_STORE, wait_for
from .test_examples import ROOT, read_edits, sums
from .test_sinks import IN_TURN, Operate, Rows, Sunk, run_between

NUM_EDITS = 20_000


class KafkaSunk(Sunk):
    """A query whose sink is a topic, which takes every batch that it is given."""

    def __init__(self, spark: SparkSession, root: Path, servers: str, jars: list[Path]) -> None:
        super().__init__(spark, root)
        self._servers = servers
        self._session = super().session()
        for jar in jars:
            self._session.sql(f"ADD JAR '{jar}'")

    @property
    def _topic(self) -> str:
        return f"{self.root.name}-{self.output.name}"

    def session(self) -> SparkSession:
        """Return the lane's own session, which has the connector."""
        return self._session

    def _keep_rows(self, frame: DataFrame) -> Any:
        records = frame.selectExpr("key", "CAST(value AS STRING) AS value")
        writer = records.writeStream.format("kafka").option(KAFKA, self._servers)
        return writer.option("topic", self._topic)

    def rows(self) -> Rows:
        """Return all records of the topic."""
        reader = self._session.read.format("kafka").option(KAFKA, self._servers)
        read = reader.option("subscribe", self._topic).load()
        records = read.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
        return Counter((row.key, int(row.value)) for row in records.collect())


@EXTENDED
@pytest.mark.ours
@state_in_files
@pytest.mark.parametrize("operations", [pytest.param(each, id=name) for name, each in IN_TURN])
def test_every_row_is_in_kafka_once_when_operations_made_batches(
    spark: SparkSession,
    kafka: str,
    kafka_jars: list[Path],
    tmp_path: Path,
    operations: list[Operate],
) -> None:
    """Catches rows that do not get to the topic, or get there twice, and a query that dies."""
    run_between(KafkaSunk(spark, tmp_path, kafka, kafka_jars), *operations)


@EXTENDED
def test_directory_of_broker_is_formatted_for_an_id_that_begins_with_a_dash(
    kafka_jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an ID that is taken for an option: one broker in 64 would not start."""
    made = "-" + secrets.token_urlsafe(16)[1:]
    monkeypatch.setattr(secrets, "token_urlsafe", lambda size: made)

    prepare(tmp_path, 9092)

    assert f"cluster.id={made}" in (tmp_path / "log" / "meta.properties").read_text()


@EXTENDED
@pytest.mark.timeout(900)
def test_totals_in_kafka_are_exact_when_broker_and_driver_are_killed(
    kafka_jars: list[Path], tmp_path: Path
) -> None:
    """Catches an edit that counts twice or not at all, and a batch that is repeated otherwise.

    The example reads the totals back from Kafka and compares them with a plain sum; it fails when
    one differs.
    """
    lines = read_edits()[:NUM_EDITS]
    assert len(lines) == NUM_EDITS
    edits = tmp_path / "edits.jsonl"
    edits.write_text("".join(lines))
    arguments = [f"--edits={edits}", f"--directory={tmp_path / 'run'}"]

    arguments += ["--only-restarts", "--master=local[2]"]
    command = [sys.executable, "-m", "examples.wikipedia_edits.answers", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    users = len(sums(lines[: NUM_EDITS // 2]))
    assert f"diffs: {users:,} users equal" in done.stdout
    events = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    attempts = {event.removeprefix("| "): attempt for event, attempt, _ in events[1:]}
    assert attempts["2 batches after kill -9 of the broker"] == "1"
    assert attempts["end, after kill -9 of the driver"] == "2"
    assert attempts["end, after the newest batch was repeated"] == "3"


@EXTENDED
@pytest.mark.ours
@state_in_files
def test_code_is_tried_from_kafka_to_kafka_and_promoted(
    spark: SparkSession, kafka: str, kafka_jars: list[Path], tmp_path: Path
) -> None:
    """Catches records that are read otherwise the second time, and a topic that a trial writes."""
    lane = KafkaSunk(spark, tmp_path / "lane", kafka, kafka_jars)
    session = lane.session()
    given = f"{lane.root.name}-given-{secrets.token_hex(4)}"

    def feed(first: int, number: int) -> None:
        numbers = session.range(first, first + number)
        records = numbers.selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")
        writer = records.coalesce(1).write.format("kafka").option(KAFKA, kafka)
        writer.option("topic", given).save()

    def job(factor: int) -> Any:
        reader = session.readStream.format("kafka").option(KAFKA, kafka)
        reader = reader.options(
            subscribe=given, startingOffsets="earliest", maxOffsetsPerTrigger=10
        )
        values = reader.load().selectExpr(
            "CAST(key AS STRING) AS key",
            f"CAST(CAST(value AS STRING) AS BIGINT) * {factor} AS value",
        )
        totals = values.groupBy("key").agg(sf.sum("value").alias("value"))
        writer = lane._keep_rows(totals).outputMode("update").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(lane.checkpoint)).start()

    def run() -> None:
        assert job(1).awaitTermination(90)

    feed(0, 50)
    run()
    before = lane.rows()

    wrong = try_job(lane.checkpoint, lambda: job(2), against=lambda: job(1), batches=3)
    assert not wrong.is_same
    right = try_job(lane.checkpoint, lambda: job(1), against=lambda: job(1), batches=3)
    assert right.is_same, str(right)
    assert right.result.version - right.result.first_version == 3
    assert lane.rows() == before
    right.promote()
    feed(50, 30)
    run()

    state = Checkpoint(lane.checkpoint).rows().read(flatten=True).to_pylist()
    totals = {str(key): sum(range(key, 80, 7)) for key in range(7)}
    assert {row["key.key"]: row["value.sum"] for row in state} == totals
    newest = {key: max(value for of, value in lane.rows() if of == key) for key in totals}
    assert newest == totals
    assert set(lane.rows().values()) == {1}


class Topic:
    """A topic of two partitions, and a live query that counts its records by key.

    Attributes:
        session: A session that has the connector.
        checkpoint: The query's.
        on_batch: Called in every batch, before it is done.
    """

    def __init__(self, spark: SparkSession, root: Path, servers: str, jars: list[Path]) -> None:
        sunk = KafkaSunk(spark, root, servers, jars)
        self.session, self.checkpoint = sunk.session(), sunk.checkpoint
        self.session.conf.set(f"{STATE_STORE}.lease.intervalMs", "500")
        self.on_batch: Callable[[], None] = lambda: None
        self._servers, self._name = servers, f"{root.name}-{secrets.token_hex(4)}"

    def feed(self, first: int, number: int) -> None:
        """Add records, of seven keys."""
        numbers = self.session.range(first, first + number, numPartitions=1)
        records = numbers.selectExpr("CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value")
        writer = records.write.format("kafka").option(KAFKA, self._servers)
        writer.option("topic", self._name).save()

    def offsets(self) -> dict[str, int]:
        """Return how many records each partition of the topic has, as a reader counts them."""
        reader = self.session.read.format("kafka").option(KAFKA, self._servers)
        read = reader.option("subscribe", self._name).load()
        counts = read.groupBy("partition").count().collect()
        return {str(row.partition): row["count"] for row in counts}

    def start(self, rows_per_batch: int, every: str) -> Any:
        """Start the query."""
        reader = self.session.readStream.format("kafka").option(KAFKA, self._servers)
        reader = reader.options(
            subscribe=self._name, startingOffsets="earliest", maxOffsetsPerTrigger=rows_per_batch
        )
        counts = reader.load().selectExpr("CAST(key AS STRING) AS key").groupBy("key").count()
        writer = counts.writeStream.outputMode("update").trigger(processingTime=every)
        writer = writer.foreachBatch(self._on_rows)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def _on_rows(self, frame: DataFrame, _: int) -> None:
        frame.collect()
        self.on_batch()

    def read_by_query(self, query: QueryInfo) -> dict[str, int]:
        """Return how many records of each partition a query has read, as a page tells it."""
        (source,) = query.position.sources if query.position else ("{}",)
        read: dict[str, int] = json.loads(source).get(self._name, {})
        return read

    def state(self) -> dict[str, int]:
        """Return the count of each key, as the state has it."""
        rows = Checkpoint(self.checkpoint).rows().read(flatten=True).to_pylist()
        return {row["key.key"]: row["value.count"] for row in rows}


def batches_of(handle: Any) -> list[Any]:
    """Return what a query has told of its batches that read something, as Spark's JSON has it."""
    told = [json.loads(progress.json()) for progress in handle._jsq.recentProgress()]
    return [progress for progress in told if progress["numInputRows"]]


def rates_of(query: QueryInfo) -> InputRates:
    """Return the rates of a query, which are known."""
    assert query.rates is not None
    return query.rates


def counts_of(number: int) -> dict[str, int]:
    """Return how often each key is there among the first records."""
    return {str(key): len(range(key, number, 7)) for key in range(7)}


@EXTENDED
@pytest.mark.ours
@state_in_files
@pytest.mark.timeout(300)
def test_offsets_rates_and_backlog_of_a_live_query_are_those_of_the_broker(
    spark: SparkSession, kafka: str, kafka_jars: list[Path], tmp_path: Path
) -> None:
    """Catches a page, or a load, that counts otherwise than the broker: in a query that runs, that
    was stopped, and that reads records which came meanwhile.
    """
    topic = Topic(spark, tmp_path / "counted", kafka, kafka_jars)
    checkpoint = Checkpoint(topic.checkpoint)
    topic.feed(0, 100)

    handle = topic.start(10, "1 second")
    try:
        wait_for(lambda: len(batches_of(handle)) > 3, "some batches")
        running = wait_for(
            lambda: (
                (found := checkpoint.query).rates and found.rates.known_by == "progress" and found
            ),
            "what the driver tells",
        )
    finally:
        handle.stop()
    read = [batch["numInputRows"] for batch in batches_of(handle)]
    waiting = [load_of(batch, 0).backlog for batch in batches_of(handle)]
    assert all(8 <= rows <= 12 for rows in read)
    assert waiting == [100 - rows for rows in accumulate(read)]
    assert (running.is_running, rates_of(running).rows) == (True, read[rates_of(running).batch])

    wait_for(lambda: not checkpoint.query.is_running, "the end of the lease")
    stopped = checkpoint.query
    assert (stopped.is_running, rates_of(stopped).known_by) == (False, "offsets")
    num_read = sum(topic.read_by_query(stopped).values())
    assert 8 <= rates_of(stopped).rows <= 12
    assert sum(topic.state().values()) == num_read >= sum(read)
    topic.feed(100, 50)
    end = topic.offsets()
    handle = topic.start(1000, "1 second")
    try:
        wait_for(lambda: topic.read_by_query(checkpoint.query) == end, "the end of the topic")
        wait_for(lambda: load_of(newest_progress(handle), 0).backlog == 0, "no backlog")
    finally:
        handle.stop()

    assert rates_of(checkpoint.query).rows == 150 - num_read
    assert topic.state() == counts_of(150)


@EXTENDED
@pytest.mark.ours
@state_in_files
@pytest.mark.timeout(300)
def test_query_rises_because_of_records_that_wait(
    spark: SparkSession, kafka: str, kafka_jars: list[Path], tmp_path: Path
) -> None:
    """Catches a backlog that does not count: batches are short, and never end to read the topic.

    Without what waits, the same batches take a small share of their time.
    """
    topic = Topic(spark, tmp_path / "scaled", kafka, kafka_jars)
    topic.session.conf.set("spark.sql.shuffle.partitions", "2")
    topic.feed(0, 60_000)
    clock = ManualClock(now_ms=0)
    handles: list[Any] = []

    def on_batch() -> None:
        time.sleep(0.6)  # longer than the time between two looks: no batch is passed over
        clock.advance(20_000)

    def start() -> Any:
        handles.append(topic.start(10, "5 seconds"))
        return handles[-1]

    topic.on_batch = on_batch

    def stop() -> None:
        try:
            wait_for(lambda: len(handles) == 2 and handles[-1].lastProgress, "a change", 180)
        finally:
            for handle in handles[-1:]:
                handle.stop()

    # The query is started in this thread, whose class loader has the jars of the session.
    stopping = threading.Thread(target=stop)
    stopping.start()
    statestore.run(start, NoRestart(), scale=Between(2, 4, cool_down=40), clock=clock)
    stopping.join()

    checkpoint = Checkpoint(topic.checkpoint)
    (rose,) = checkpoint.history()
    assert rose.options == {"num_partitions": 4}
    assert rose.result["reason"].endswith("more than 90%")
    assert sum(topic.read_by_query(checkpoint.query).values()) == sum(topic.state().values())
