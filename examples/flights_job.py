"""Two stateful queries over files of flights: figures of every aircraft, and the set of routes.

    python examples/flights_job.py --input DIR --output DIR --checkpoint DIR --jar JAR

A plain PySpark program: the two lines of configuration in `start_spark` are all that puts its state
into the state store. It processes the files that are there, one a batch, and ends; started again
with the same directories it goes on where it was, however it ended.

Every batch writes its rows to a directory named by the batch ID, and a repeated batch replaces its
directory, so the output holds every row once.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

PROVIDER = "io.statestore.FileSystemStateStoreProvider"
SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING,
    dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""


def start_spark(jar: str, provider: str, conf: list[str]) -> SparkSession:
    """Start Spark with its state in the state store, and further `key=value` configuration."""
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in conf)
    return (
        SparkSession.builder.appName("flights")
        .master("local[2]")
        .config("spark.jars", jar)
        .config("spark.sql.streaming.stateStore.providerClass", provider)
        .config("spark.sql.shuffle.partitions", 4)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config(map=settings)
        .getOrCreate()
    )


def aircraft_figures(flights: DataFrame) -> DataFrame:
    """Number of flights, distance in miles and delay in minutes of every aircraft so far."""
    return flights.groupBy("tailnum").agg(
        sf.count("*").alias("flights"),
        sf.sum("distance").alias("distance"),
        sf.max("dep_delay").alias("max_delay"),
        sf.sum("dep_delay").alias("total_delay"),
    )


def routes(flights: DataFrame) -> DataFrame:
    """Every flight number between two airports, once."""
    columns = ["carrier", "flight", "origin", "dest"]
    return flights.select(columns).dropDuplicates(columns)


class ProgressLog(StreamingQueryListener):
    """Appends the report of every batch to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 (Spark's name)
        """Append the report."""
        with self._path.open("a") as log:
            log.write(event.progress.json.replace("\n", " ") + "\n")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""


def start_query(
    frame: DataFrame, name: str, output_mode: str, output: Path, checkpoint: Path
) -> StreamingQuery:
    """Start a query that writes every batch to `<output>/<name>/batch-<ID>`."""

    def write(batch: DataFrame, batch_id: int) -> None:
        path = output / name / f"batch-{batch_id:06d}"
        batch.coalesce(1).write.mode("overwrite").parquet(str(path))

    return (
        frame.writeStream.queryName(name)
        .outputMode(output_mode)
        .option("checkpointLocation", str(checkpoint / name))
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )


def main() -> None:
    """Parse the command line, run both queries to the end of the input."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--input", type=Path, required=True, help="directory of CSV files")
    parser.add_argument("--output", type=Path, required=True, help="directory of the results")
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--jar", default=os.environ.get("STATESTORE_JAR", ""), help="shim jar")
    parser.add_argument("--provider", default=PROVIDER, help="state store provider")
    parser.add_argument(
        "--conf", action="append", default=[], help="Spark configuration, KEY=VALUE"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)

    spark = start_spark(arguments.jar, arguments.provider, arguments.conf)
    spark.streams.addListener(ProgressLog(arguments.output / "progress.jsonl"))
    flights = (
        spark.readStream.schema(SCHEMA)
        .options(header=True, nullValue="NA", maxFilesPerTrigger=1)
        .csv(str(arguments.input))
    )
    queries = [
        start_query(frame, name, mode, arguments.output, arguments.checkpoint)
        for frame, name, mode in (
            (aircraft_figures(flights), "aircraft", "update"),
            (routes(flights), "routes", "append"),
        )
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
