"""Counts words in a session made by `statestore.configure`.

python configured_job.py BACKEND STORAGE JAR, the last a jar that the program brings itself.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import statestore

backend, storage, jar = sys.argv[1:]
builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jar)
    .config("spark.sql.shuffle.partitions", 1)
    .config("spark.ui.enabled", "false")
)
spark = statestore.configure(
    builder, backend, checkpoint_storage=storage, **{"fsync.enabled": False}
).getOrCreate()
Path("words").mkdir()
Path("words", "1.csv").write_text("a\nb\nb\n")
query = (
    spark.readStream.schema("word STRING")
    .csv("words")
    .groupBy("word")
    .count()
    .writeStream.outputMode("complete")
    .format("memory")
    .queryName("counts")
    .trigger(availableNow=True)
    .option("checkpointLocation", "checkpoint")
    .start()
)
query.awaitTermination()
counts = {row["word"]: row["count"] for row in spark.table("counts").collect()}
jars = [Path(path).name for path in spark.conf.get("spark.jars").split(",")]
spark.stop()
sys.stdout.write(f"{counts} {jars}\n")
