"""What goes into the topics of the example, and what comes out: edits in, totals of users out."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import statestore
from examples.wikipedia_edits.jars import connector_jars

SCHEMA = "user STRING, delta LONG, length STRUCT<old: LONG, new: LONG>"
KAFKA = "kafka.bootstrap.servers"


class RepeatDiffersError(Exception):
    """A batch was written twice, and not alike."""


def start_spark(
    master: str, backend: str = "filesystem", partitions: int = 4, conf: tuple[str, ...] = ()
) -> SparkSession:
    """Start Spark with its state in the state store, Kafka's connector, and more `key=value`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in conf)
    builder = (
        SparkSession.builder.appName("wikipedia-edits")
        .master(master)
        .config("spark.jars", ",".join(map(str, connector_jars())))
        .config("spark.sql.shuffle.partitions", partitions)
        .config("spark.ui.enabled", "false")
        .config("spark.deploy.appIdPattern", "app-wikipedia-%s-%04d")
        .config(map=settings)
    )
    return statestore.configure(builder, backend=backend).getOrCreate()


def parse(messages: DataFrame) -> DataFrame:
    """Return user and delta of every edit.

    An edit is JSON with `user` and `delta`, or as Wikipedia has it, with `user` and the lengths of
    the page before and after, `length.old` and `length.new`. What is neither, is passed over.
    """
    edit = sf.from_json(sf.col("value").cast("string"), SCHEMA)
    old = sf.coalesce("edit.length.old", sf.lit(0))
    delta = sf.coalesce("edit.delta", sf.col("edit.length.new") - old)
    edits = messages.select(edit.alias("edit")).select("edit.user", delta.alias("delta"))
    return edits.where("user IS NOT NULL AND delta IS NOT NULL")


def read_edits(spark: SparkSession, path: Path) -> DataFrame:
    """Return the lines of a file, plain or gzip, as `value`, numbered from 0 by `number`."""
    lines = spark.read.text(str(path)).coalesce(1)
    return lines.withColumn("number", sf.monotonically_increasing_id())


def produce(lines: DataFrame, servers: str, topic: str) -> None:
    """Append lines to a topic, in their order."""
    messages = lines.orderBy("number").coalesce(1).select("value")
    messages.write.format("kafka").option(KAFKA, servers).option("topic", topic).save()


def read_totals(spark: SparkSession, servers: str, topic: str) -> tuple[dict[str, Any], int, int]:
    """Return the newest total of every user, the number of records, and of repeated ones.

    A record says which batch made it. The record of the highest batch counts, wherever it is in the
    topic; those of a batch that was written twice must be equal.

    Raises:
        RepeatDiffersError: They are not: what a batch wrote was not the same when it was repeated.
    """
    messages = spark.read.format("kafka").option(KAFKA, servers).option("subscribe", topic).load()
    rows = messages.selectExpr("CAST(key AS STRING) AS user", "CAST(value AS STRING) AS value")
    found: dict[tuple[str, int], dict[str, Any]] = {}
    num_records = 0
    for row in rows.toLocalIterator():
        num_records += 1
        total = json.loads(row.value)
        batch = total.pop("batch")
        if found.setdefault((row.user, batch), total) != total:
            raise RepeatDiffersError(f"user={row.user}, batch={batch}")
    newest: dict[str, Any] = {}
    for user, batch in sorted(found):
        newest[user] = found[user, batch]
    return newest, num_records, num_records - len(found)
