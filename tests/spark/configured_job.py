"""Counts words in a session made by `statestore.configure`, and keeps what its pages show of it.

It ends while another query runs, to which it listens.

python configured_job.py BACKEND STORAGE JAR COLLECTOR: JAR is one that the program brings itself,
COLLECTOR the address of a collector of OTLP.
"""

import sys
import threading
from pathlib import Path
from urllib.request import urlopen

from pyspark.sql import SparkSession

import statestore


class Told(statestore.CheckpointListener):
    """Waits for a few versions."""

    def __init__(self) -> None:
        self.enough = threading.Event()

    def notify_checkpoint_complete(self, version: int) -> None:
        """See CheckpointListener."""
        if version > 2:
            self.enough.set()


backend, storage, jar, collector = sys.argv[1:]
builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jar)
    .config("spark.sql.shuffle.partitions", 1)
    .config("spark.ui.port", 0)
)
spark = statestore.configure(
    builder,
    backend,
    checkpoint_storage=storage,
    engine_otlp_endpoint=collector,
    **{"fsync.enabled": False},
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
pages = {
    "prometheus.txt": "/metrics/prometheus/",
    "query.html": f"/StreamingQuery/statistics/?id={query.runId}",
}
for name, page in pages.items():
    with urlopen(f"{spark.sparkContext.uiWebUrl}{page}", timeout=60) as reply:  # noqa: S310
        Path(name).write_bytes(reply.read())
jars = [Path(path).name for path in spark.conf.get("spark.jars").split(",")]
rates = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
writer = rates.writeStream.format("noop").trigger(processingTime="100 milliseconds")
query = writer.option("checkpointLocation", "rates").start()
told = Told()
statestore.listen(query, told)
told.enough.wait(60)
sys.stdout.write(f"{counts} {jars}\n")
