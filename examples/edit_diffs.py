"""Rolling sum of the edits of every user, kept across restarts.

    python examples/edit_diffs.py --input DIR --output DIR --checkpoint DIR --jar JAR

The input is a directory of JSON lines files, an edit a line with `user` and `delta`, the number of
bytes or lines it added (negative: removed). Each start is an attempt and writes to a directory of
its own, `<output>/attempt-<number>/`, a file of (user, diff) for every batch: the sums of the users
of that batch so far. So what two attempts wrote can be compared: a later one goes on from the sums
of the earlier one, and repeats at most the one batch that was running when that ended.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

PROVIDER = "io.statestore.FileSystemStateStoreProvider"


def make_attempt_directory(output: Path) -> Path:
    """Create and return the directory of the next attempt."""
    output.mkdir(parents=True, exist_ok=True)
    attempt = len(list(output.glob("attempt-*"))) + 1
    directory = output / f"attempt-{attempt:03d}"
    directory.mkdir()
    return directory


def rolling_diffs(edits: DataFrame) -> DataFrame:
    """Sum of the edits of every user so far."""
    return edits.groupBy("user").agg(sf.sum("delta").alias("diff"))


def main() -> None:
    """Parse the command line, process the files that are there, one a batch, and end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--input", type=Path, required=True, help="directory of JSON lines files")
    parser.add_argument("--output", type=Path, required=True, help="directory of the attempts")
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--jar", default=os.environ.get("STATESTORE_JAR", ""), help="shim jar")
    parser.add_argument("--provider", default=PROVIDER, help="state store provider")
    arguments = parser.parse_args()

    spark = (
        SparkSession.builder.appName("edit-diffs")
        .master("local[2]")
        .config("spark.jars", arguments.jar)
        .config("spark.sql.streaming.stateStore.providerClass", arguments.provider)
        .config("spark.sql.shuffle.partitions", 4)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    attempt = make_attempt_directory(arguments.output)

    def write(batch: DataFrame, batch_id: int) -> None:
        rows = [json.dumps({"user": row.user, "diff": row.diff}) + "\n" for row in batch.collect()]
        (attempt / f"batch-{batch_id:06d}.jsonl").write_text("".join(rows))

    edits = (
        spark.readStream.schema("user STRING, delta LONG")
        .option("maxFilesPerTrigger", 1)
        .json(str(arguments.input))
    )
    query = (
        rolling_diffs(edits)
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(arguments.checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
