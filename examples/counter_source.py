"""Counters whose offsets are state: a source of Python in Flink's words.

    python examples/counter_source.py --checkpoint DIR [--counters 3] [--parallelism 2]

Counts on by three numbers a counter and batch, two batches a start, and prints what each task
counted. Start it again, with another parallelism too: every counter goes on where it was, in
whatever task.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import statestore
from statestore import keyed

STEP = 3


class CounterSource(keyed.StatefulSource):
    """Counts in as many counters as the option `counters` says, up to `until`."""

    @classmethod
    def name(cls) -> str:
        """Return what the source is registered as."""
        return "counter"

    def schema(self) -> str:
        """Return the columns: who counted, and what."""
        return "task INT, counter INT, value LONG"

    def initialize_state(self) -> list[Any]:
        """Return the counters at zero."""
        return [{"counter": number, "offset": 0} for number in range(int(self.options["counters"]))]

    def snapshot_state(self, elements: list[Any]) -> list[Any]:
        """Return how far the next batch counts."""
        until = int(self.options["until"])
        return [each | {"offset": min(each["offset"] + STEP, until)} for each in elements]

    def read(self, split: keyed.Split) -> Iterator[tuple[int, int, int]]:
        """Yield the numbers of a batch; state and output are planned together, without a lock."""
        for before, after in split.elements:
            for value in range(before["offset"], after["offset"]):
                yield split.index, after["counter"], value


def show(batch: DataFrame, _: int) -> None:
    """Print the numbers of a batch, a line a counter."""
    counted: dict[tuple[int, int], list[int]] = {}
    for task, counter, value in sorted(batch.collect()):
        counted.setdefault((task, counter), []).append(value)
    for (task, counter), values in counted.items():
        print(f"task {task} counter {counter}: {values}")


def run(session: SparkSession, checkpoint: Path, counters: int, parallelism: int) -> None:
    """Print two batches.

    Args:
        session: Any.
        checkpoint: Of this query.
        counters: Number of counters, the same at every start.
        parallelism: Number of tasks of a batch.
    """
    session.dataSource.register(CounterSource)
    # Spark deletes old entries of its log.
    commits = (int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit())
    committed = max(commits, default=-1) + 1
    reader = session.readStream.format("counter").option("counters", counters)
    reader = reader.option("until", (committed + 2) * STEP).option("parallelism", parallelism)
    writer = reader.load().writeStream.option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(show).start()
    query.processAllAvailable()
    query.stop()


def main() -> None:
    """Run the query, and end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--counters", type=int, default=3, help="number of counters")
    parser.add_argument("--parallelism", type=int, default=2, help="number of tasks")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("counter-source").master("local[2]")
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = statestore.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    run(session, arguments.checkpoint, arguments.counters, arguments.parallelism)
    session.stop()


if __name__ == "__main__":
    main()
