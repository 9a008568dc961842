"""Listings of Flink's documentation of state, as programs of this package.

    python examples/flink_listings.py [NAME]

Names: map_with_counter, map_with_state, compute_diffs, word_count; all of them without a name. Each
runs on a few rows, one file a batch, and prints what it returns. The environment's settings
are here too: state backend, checkpoint interval, restart strategy. `count_window_average.py` and
`counter_source.py` are the other listings.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import statestore
from statestore import keyed


class MapWithCounter(keyed.RichMapFunction):
    """Returns the length of all strings of a key so far."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        """Take the handle of the state, at first 0."""
        descriptor = keyed.ValueStateDescriptor("totalLengthByKey", int, default=0)
        self.total_length_by_key: keyed.ValueState[int] = runtime.get_state(descriptor)

    def map(self, value: Row) -> int:
        """Return the new total of the key."""
        length = self.total_length_by_key.value() or 0
        self.total_length_by_key.update(length + len(value[1]))
        return length + len(value[1])


class ComputeDiffs(keyed.RichFlatMapFunction):
    """Returns the bytes that a user changed so far: a state of each key instead of a HashMap."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        """Take the handle of the state: what all diffs of a user were reduced to."""
        descriptor = keyed.ReducingStateDescriptor("diffs", add)
        self.diffs: keyed.ReducingState[int] = runtime.get_reducing_state(descriptor)

    def flat_map(self, value: Row) -> list[tuple[str, int]]:
        """Return the user with the new sum."""
        self.diffs.add(value[1])
        return [(value[0], self.diffs.get() or 0)]


def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right


def count(value: Row, before: int | None) -> tuple[tuple[str, int], int | None]:
    """Return the count of a key before the row, and the state after it."""
    match before:
        case None:
            return (value[0], 0), value[1]
        case _:
            return (value[0], before), before + value[1]


def word_count(lines: DataFrame) -> DataFrame:
    """Count words in windows of 5 seconds, every second."""
    words = lines.select("at", sf.explode(sf.split("line", " ")).alias("word"))
    window = sf.window("at", "5 seconds", "1 second")
    counted = words.withWatermark("at", "0 seconds").groupBy(window, "word").count()
    return counted.select(sf.date_format("window.start", "HH:mm:ss"), "word", "count")


@dataclass(frozen=True)
class Listing:
    """A program: its input, a file of rows for each batch, and what it makes of the stream."""

    schema: str
    batches: Sequence[Sequence[tuple[Any, ...]]]
    transform: Callable[[DataFrame], DataFrame]


LISTINGS = {
    "map_with_counter": Listing(
        "key STRING, text STRING",
        [[("a", "one")], [("a", "three"), ("b", "")], [("a", "!")]],
        lambda strings: keyed.process(strings.groupBy("key"), MapWithCounter()),
    ),
    "map_with_state": Listing(
        "key STRING, value LONG",
        [[("a", 3)], [("a", 4)], [("b", 5), ("a", 1)]],
        lambda pairs: keyed.map_with_state(pairs.groupBy("key"), count),
    ),
    "compute_diffs": Listing(
        "user STRING, diff LONG",
        [[("ann", 10), ("bob", -2)], [("ann", -3)], [("bob", 2)]],
        lambda edits: keyed.process(edits.groupBy("user"), ComputeDiffs()),
    ),
    "word_count": Listing(
        "at TIMESTAMP, line STRING",
        [[("2020-01-01T00:00:04Z", "to be or not to be")], [("2020-01-01T00:00:30Z", "end")]],
        word_count,
    ),
}


def run(session: SparkSession, directory: Path, listing: Listing) -> None:
    """Print the rows of every batch that returns some.

    Args:
        session: Has a state store.
        directory: An empty one, for input and checkpoint.
        listing: One of LISTINGS.
    """
    (directory / "input").mkdir()
    names = [column.split()[0] for column in listing.schema.split(", ")]
    for number, rows in enumerate(listing.batches):
        path = directory / "input" / f"{number}.json"
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + number,) * 2)
    files = session.readStream.schema(listing.schema).option("maxFilesPerTrigger", 1)
    returned = listing.transform(files.json(str(directory / "input")))

    def start() -> StreamingQuery:
        # Flink's enableCheckpointing(5000): the trigger; here it ends when all files are read.
        writer = returned.writeStream.trigger(availableNow=True).foreachBatch(show)
        return writer.option("checkpointLocation", str(directory / "checkpoint")).start()

    # Flink's fixedDelayRestart(3, 10 s).
    statestore.run(start, restart=statestore.FixedDelay(attempts=3, delay=10))


def show(batch: DataFrame, _: int) -> None:
    """Print the rows of a batch, in order."""
    for row in sorted(batch.collect()):
        print(f"({','.join(map(str, row))})")


def main() -> None:
    """Run one listing, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("listing", nargs="?", choices=LISTINGS)
    chosen = parser.parse_args().listing
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("flink-listings").master("local[2]")
    builder = builder.config("spark.sql.shuffle.partitions", 2).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    # Flink's setStateBackend(new FsStateBackend(…)).
    session = statestore.configure(builder, backend="filesystem").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for name in [chosen] if chosen else LISTINGS:
        print(name)
        with tempfile.TemporaryDirectory() as directory:
            run(session, Path(directory), LISTINGS[name])
    session.stop()


if __name__ == "__main__":
    main()
