"""A job that counts events by key: `job.py INPUT SINK CHECKPOINT PAUSE_S`, on a host of a cluster.

Each file of the input is a batch, each batch a folder of the sink; then it prints `BATCH number`.
It imports nothing of the project.
"""

import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql


def forget_stores(spark: SparkSession) -> None:
    """Have Spark forget where the stores are: the tasks of the next batch go anywhere."""
    jvm: Any = spark._jvm
    java, state = jvm.java, jvm.org.apache.spark.sql.execution.streaming.state
    environment = spark._jsc.sc().env()
    conf = spark._jsparkSession.sessionState().conf()
    coordinator = state.StateStoreCoordinatorRef.forDriver(environment, conf)
    for query in spark.streams.active:
        coordinator.deactivateInstances(java.util.UUID.fromString(query.runId))


def main(source: str, sink: str, checkpoint: str, pause_s: str) -> None:
    """Run what input there is through the query."""
    spark = SparkSession.builder.appName("counts").getOrCreate()
    events = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
    counts = (
        events.parquet(source)
        .groupBy("key")
        .agg(
            sql.count("*").alias("number"),
            sql.sum("value").alias("total"),
            sql.max("value").alias("largest"),
        )
        # What is killed in the middle of a batch finds tasks of the state at work.
        .where("key % 300 != 0 or reflect('java.lang.Thread', 'sleep', 100L) = 'null'")
    )

    def write(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{sink}/{batch:04d}")
        print(f"BATCH {batch}", flush=True)
        forget_stores(spark)
        time.sleep(float(pause_s))

    writer = counts.writeStream.outputMode("update").foreachBatch(write)
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
