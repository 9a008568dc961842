"""Adds one file of rows to a directory, and prints the counts that a streaming query has of all.

python counting_job.py JAR PACKAGE, the last the value of `engine.package`. The jar is empty where
spark-submit has brought one.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

jar, package = sys.argv[1:]
builder = (
    SparkSession.builder.master("local[2]")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "io.statestore.FileSystemStateStoreProvider",
    )
    .config("spark.sql.streaming.stateStore.engine.package", package)
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.ui.enabled", "false")
)
spark = (builder.config("spark.jars", jar) if jar else builder).getOrCreate()
rows = Path("rows")
rows.mkdir(exist_ok=True)
(rows / f"{package}.csv").write_text("a\nb\nb\n")
query = (
    spark.readStream.schema("name STRING")
    .csv("rows")
    .groupBy("name")
    .count()
    .writeStream.outputMode("complete")
    .format("memory")
    .queryName("counts")
    .trigger(availableNow=True)
    .option("checkpointLocation", "checkpoint")
    .start()
)
query.awaitTermination()
counts = {row["name"]: row["count"] for row in spark.table("counts").collect()}
spark.stop()
sys.stdout.write(" ".join(f"{name}={count}" for name, count in sorted(counts.items())) + "\n")
