"""A real Kafka broker, where there are its jars: as a sink, and killed under the example."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from examples.wikipedia_edits.broker import prepare
from examples.wikipedia_edits.topics import KAFKA
from statestore import Checkpoint, upgrade

from .conftest import EXTENDED, OURS, PROVIDER
from .harness import HEAP
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
@pytest.mark.skipif(not OURS or PROVIDER == HEAP, reason="state outlives its driver")
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
@pytest.mark.skipif(not OURS or PROVIDER == HEAP, reason="state outlives its driver")
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

    wrong = upgrade(lane.checkpoint, lambda: job(2), against=lambda: job(1), batches=3)
    assert not wrong.is_same
    right = upgrade(lane.checkpoint, lambda: job(1), against=lambda: job(1), batches=3)
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
