"""Rolling difference of every user, from one topic to another, kept across restarts.

    python -m examples.wikipedia_edits.job --servers 127.0.0.1:9092 --checkpoint DIR --log FILE

It processes the edits that are there and ends; started again it goes on where it was, however it
ended. A record of the output is the total of a user after a batch, with the number of that batch.
State is exactly once. The sink is idempotent by batch ID: a batch that is repeated has the same
input and the same state before it, so it writes the same records, and a reader takes one of each.

The log has a line of JSON for every attempt and for every batch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

import statestore
from examples.wikipedia_edits.topics import KAFKA, parse, start_spark
from statestore import FixedDelay


class Log(StreamingQueryListener):
    """Appends to a file; an attempt has the number of those before it in the file, and one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, **fields: Any) -> None:
        """Append a line."""
        with self._path.open("a") as log:
            log.write(json.dumps(fields) + "\n")

    def write_attempt(self) -> None:
        """Append the line of an attempt."""
        before = self._path.read_text().count('{"attempt"') if self._path.exists() else 0
        self.write(attempt=before + 1)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        """Append the line of a batch, with what it took in milliseconds."""
        progress = json.loads(event.progress.json)
        if progress["numInputRows"]:
            state = progress["stateOperators"][0]
            self.write(
                batch=progress["batchId"],
                rows=progress["numInputRows"],
                batch_ms=progress["batchDuration"],
                commit_ms=state["commitTimeMs"],
                partitions=state["numShufflePartitions"],
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""


def bytes_by_user(edits: DataFrame) -> DataFrame:
    """Sum of the edits of every user so far."""
    return edits.groupBy("user").agg(sf.sum("delta").alias("diff"))


def kilobytes_by_user(edits: DataFrame) -> DataFrame:
    """The changed logic: the same sum in kilobytes, and one more aggregate, the number of edits."""
    diff = sf.sum(sf.col("delta") / sf.lit(1024.0)).alias("diff")
    return edits.groupBy("user").agg(diff, sf.count("*").alias("edits"))


LOGIC = {"bytes": bytes_by_user, "kilobytes": kilobytes_by_user}


def main() -> None:
    """Parse the command line, process what is in the topic, and end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--servers", default="127.0.0.1:9092", help="the broker")
    parser.add_argument("--input", default="edits", help="topic of the edits")
    parser.add_argument("--output", default="diffs", help="topic of the totals")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True, help="file of attempts and batches")
    parser.add_argument("--backend", default="filesystem", help="heap, filesystem or rocksdb")
    parser.add_argument("--logic", choices=list(LOGIC), default="bytes")
    parser.add_argument("--partitions", type=int, default=4, help="state partitions")
    parser.add_argument("--per-batch", type=int, default=10_000, help="edits of a batch")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], help="of Spark, KEY=VALUE")
    arguments = parser.parse_args()
    spark = start_spark(
        arguments.master, arguments.backend, arguments.partitions, tuple(arguments.conf)
    )
    log = Log(arguments.log)
    spark.streams.addListener(log)

    def write(batch: DataFrame, batch_id: int) -> None:
        totals = batch.withColumn("batch", sf.lit(batch_id))
        value = sf.to_json(sf.struct(*totals.drop("user").columns)).alias("value")
        records = totals.select(sf.col("user").alias("key"), value)
        to_kafka = records.write.format("kafka").option(KAFKA, arguments.servers)
        to_kafka.option("topic", arguments.output).save()

    def start_query() -> StreamingQuery:
        log.write_attempt()
        messages = (
            spark.readStream.format("kafka")
            .option(KAFKA, arguments.servers)
            .option("subscribe", arguments.input)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", arguments.per_batch)
            .load()
        )
        return (
            LOGIC[arguments.logic](parse(messages))
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(arguments.checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(write)
            .start()
        )

    statestore.run(start_query, restart=FixedDelay(attempts=5, delay=1))
    spark.stop()


if __name__ == "__main__":
    main()
