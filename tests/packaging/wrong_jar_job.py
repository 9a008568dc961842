"""Run by test_jars.py, in a process of its own: what a Spark says to the jar of another one."""

import sys
import tempfile
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

PROVIDER = "io.statestore.FileSystemStateStoreProvider"


def main(jar: str, class_path: str) -> None:
    """Start a query, make a provider as the state reader does, and start a query over Spark's own.

    Print what each raises.
    """
    with tempfile.TemporaryDirectory() as checkpoints:
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.jars", jar)
            .config("spark.driver.extraClassPath", class_path)
            .config("spark.sql.streaming.stateStore.providerClass", PROVIDER)
            .getOrCreate()
        )
        counts = spark.readStream.format("rate").load().groupBy("value").count()
        writer = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        jvm: Any = spark._jvm

        def run(name: str) -> None:
            writer.option("checkpointLocation", f"{checkpoints}/{name}").start().awaitTermination()

        def run_on_sparks_own() -> None:
            spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
            run("own")

        for action in (
            lambda: run("ours"),
            jvm.io.statestore.FileSystemStateStoreProvider,
            run_on_sparks_own,
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
