"""Run by test_jars.py, in a process of its own: what a Spark says to the jar of another one."""

import sys
import tempfile
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

PROVIDER = "io.statestore.FileSystemStateStoreProvider"


def main(jar: str, class_path: str) -> None:
    """Start a query, and make a provider as the state reader does; print what each raises."""
    with tempfile.TemporaryDirectory() as checkpoint:
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.jars", jar)
            .config("spark.driver.extraClassPath", class_path)
            .config("spark.sql.streaming.stateStore.providerClass", PROVIDER)
            .getOrCreate()
        )
        counts = spark.readStream.format("rate").load().groupBy("value").count()
        query = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        jvm: Any = spark._jvm
        for action in (
            lambda: query.option("checkpointLocation", checkpoint).start().awaitTermination(),
            jvm.io.statestore.FileSystemStateStoreProvider,
        ):
            try:
                action()
            except (Py4JError, PySparkException) as error:
                sys.stdout.write(f"raised: {' '.join(str(error).split())}\n")
            else:
                sys.stdout.write("served\n")
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
