"""A first query of an application, whose classes class_archive.py has written down.

usage: python -m tests.spark.first_query submit|application DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from .application import start_application


def run(kind: str, root: Path) -> None:
    """Run a query with state in an application of a kind, and end the application."""
    if kind == "application":
        spark = start_application(root, [])
    else:
        spark = SparkSession.builder.master("local[2]").getOrCreate()
        spark.conf.set("spark.sql.shuffle.partitions", 2)
    rows = spark.range(10).selectExpr("id AS k", "timestamp_seconds(id) AS t")
    rows.write.parquet(f"{root}/in/0")
    read = spark.readStream.schema(rows.schema).parquet(f"{root}/in/*")
    counts = read.withWatermark("t", "1 second").groupBy("k").count()
    sink = counts.writeStream.outputMode("update").option("checkpointLocation", f"{root}/ck")
    query = sink.foreachBatch(_collect).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.read.format("statestore").load(f"{root}/ck").collect()
    spark.stop()
    jvm = SparkContext._gateway.proc
    SparkContext._gateway.shutdown()
    jvm.stdin.close()
    jvm.wait()


def _collect(rows: DataFrame, _: int) -> None:
    rows.collect()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
