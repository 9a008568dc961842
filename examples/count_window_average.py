"""The average of every two values of a key: keyed state in Flink's words.

    python examples/count_window_average.py [--fields]

Five pairs come one a batch: (1,3), (1,5), (1,7), (1,4), (1,2). Printed is (1,4) and (1,5). The
count and the sum are a value state; with `--fields` they are fields of the function, drawn with
every batch and restored before the next.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession

import statestore
from statestore import keyed

PAIRS = [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]


class CountWindowAverage(keyed.RichFlatMapFunction):
    """Keeps count and sum in a value state."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        """Take the handle of the state: count and sum, at first (0, 0)."""
        average = keyed.ValueStateDescriptor("average", tuple[int, int], default=(0, 0))
        self.sum: keyed.ValueState[tuple[int, int]] = runtime.get_state(average)

    def flat_map(self, value: Row) -> Iterator[tuple[int, int]]:
        """Yield the average with every second value, and begin anew."""
        count, total = self.sum.value() or (0, 0)
        count, total = count + 1, total + value[1]
        self.sum.update((count, total))
        if count >= 2:
            yield value[0], total // count
            self.sum.clear()


class CheckpointedCountWindowAverage(keyed.RichFlatMapFunction, keyed.Checkpointed):
    """Keeps count and sum in a field."""

    def __init__(self) -> None:
        self.sum = (0, 0)

    def flat_map(self, value: Row) -> Iterator[tuple[int, int]]:
        """Yield the average with every second value, and begin anew."""
        count, total = self.sum
        self.sum = count + 1, total + value[1]
        if self.sum[0] >= 2:
            yield value[0], self.sum[1] // self.sum[0]
            self.sum = (0, 0)

    def snapshot_state(self, _checkpoint_id: int, _checkpoint_timestamp: int) -> tuple[int, int]:
        """Return what a batch leaves."""
        return self.sum

    def restore_state(self, state: tuple[int, int]) -> None:
        """Take what the batch before left."""
        self.sum = state


def from_elements(session: SparkSession, directory: Path) -> DataFrame:
    """Return a stream of the pairs, one a batch."""
    directory.mkdir()
    for number, pair in enumerate(PAIRS):
        path = directory / f"{number}.json"
        path.write_text(json.dumps(dict(zip(("key", "value"), pair, strict=True))))
        os.utime(path, (1_700_000_000 + number,) * 2)
    files = session.readStream.schema("key LONG, value LONG").option("maxFilesPerTrigger", 1)
    return files.json(str(directory))


def show(batch: DataFrame, _: int) -> None:
    """Print the rows of a batch."""
    for row in batch.collect():
        print(f"({row[0]},{row[1]})")


def run(session: SparkSession, directory: Path, function: keyed.RichFlatMapFunction) -> None:
    """Print what a function returns of the pairs.

    Args:
        session: Has a state store.
        directory: An empty one for input and checkpoint.
        function: One of the two above.
    """
    averages = keyed.process(from_elements(session, directory / "pairs").groupBy("key"), function)
    query = (
        averages.writeStream.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(show)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    """Run the query on all pairs, and end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fields", action="store_true", help="state in fields of the function")
    function = (
        CheckpointedCountWindowAverage if parser.parse_args().fields else CountWindowAverage
    )()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("count-window-average").master("local[2]")
    builder = builder.config("spark.sql.shuffle.partitions", 2).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = statestore.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        run(session, Path(directory), function)
    session.stop()


if __name__ == "__main__":
    main()
