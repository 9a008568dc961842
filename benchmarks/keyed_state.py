"""Keyed state in Flink's words beside plain `transformWithState`: rows a second in Python.

    $ python -m benchmarks.keyed_state [--rows 4000] [--batches 9]

A query for each kind of state and number of rows a key, on the filesystem backend. Its processor
hands every other key to a `StatefulProcessor` that reads and writes as seldom as Spark's interface
lets it, and the rest to a function of `statestore.keyed`, and returns the nanoseconds of each: all
calls of state are in them, what Spark does to bring and fetch rows is not. Both see the same
machine, key by key, however loaded it is. What keyed costs is the difference as a share of the time
that a task takes for a row, with what Spark does. The first two batches are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.processes import say
from benchmarks.sessions import start_session
from benchmarks.workloads import OURS, find_provider
from statestore import keyed
from statestore.keyed.processor import keyed_processor

OUTPUT = "key BIGINT, total BIGINT"
ROWS_PER_KEY = (1, 10)
WARM_UP_BATCHES = 2
SLOTS = 16
NUM_TASKS = 2


class PlainValue(StatefulProcessor):
    """Sums up the values of a key."""

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", "value BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before = self.sum.get()
        total = before[0] if before is not None else 0
        for row in rows:
            total += row.value
            yield Row(key=key[0], total=total)
        self.sum.update((total,))

    def close(self) -> None:
        """Nothing to give back."""


class PlainList(StatefulProcessor):
    """Keeps the values of a key."""

    def init(self, handle: Any) -> None:
        self.values = handle.getListState("values", "value BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        added = []
        for row in rows:
            added.append((row.value,))
            yield Row(key=key[0], total=row.value)
        self.values.appendList(added)

    def close(self) -> None:
        """Nothing to give back."""


class PlainMap(StatefulProcessor):
    """Counts the values of a key by slot."""

    def init(self, handle: Any) -> None:
        self.counts = handle.getMapState("counts", "slot BIGINT", "value BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            slot = (row.value % SLOTS,)
            before = self.counts.getValue(slot)
            count = (before[0] if before is not None else 0) + 1
            self.counts.updateValue(slot, (count,))
            yield Row(key=key[0], total=count)

    def close(self) -> None:
        """Nothing to give back."""


class KeyedValue(keyed.RichMapFunction):
    """Sums up the values of a key."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        self.sum = runtime.get_state(keyed.ValueStateDescriptor("keyed_sum", int, default=0))

    def map(self, value: Row) -> tuple[int, int]:
        total = self.sum.value() + value.value
        self.sum.update(total)
        return value.key, total


class KeyedList(keyed.RichMapFunction):
    """Keeps the values of a key."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        self.values = runtime.get_list_state(keyed.ListStateDescriptor("keyed_values", int))

    def map(self, value: Row) -> tuple[int, int]:
        self.values.add(value.value)
        return value.key, value.value


class KeyedMap(keyed.RichMapFunction):
    """Counts the values of a key by slot."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        self.counts = runtime.get_map_state(keyed.MapStateDescriptor("keyed_counts", int, int))

    def map(self, value: Row) -> tuple[int, int]:
        slot = value.value % SLOTS
        count = (self.counts.get(slot) or 0) + 1
        self.counts.put(slot, count)
        return value.key, count


KINDS: dict[str, tuple[type[StatefulProcessor], Callable[[], keyed.RichMapFunction]]] = {
    "value": (PlainValue, KeyedValue),
    "list": (PlainList, KeyedList),
    "map": (PlainMap, KeyedMap),
}


class Alternating(StatefulProcessor):
    """Hands keys to the one or the other, and returns how long each took.

    Args:
        processors: The plain one, which gets even keys, and the keyed one.
    """

    def __init__(self, processors: tuple[StatefulProcessor, StatefulProcessor]) -> None:
        self.processors = processors

    def init(self, handle: Any) -> None:
        for processor in self.processors:
            processor.init(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        which, given = key[0] % 2, list(rows)
        started = time.perf_counter_ns()
        for _ in self.processors[which].handleInputRows(key, iter(given), timerValues):
            pass
        yield Row(which=which, ns=time.perf_counter_ns() - started)

    def close(self) -> None:
        """Nothing to give back."""


def main() -> int:
    """Measure every kind, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=4000, help="rows a batch")
    parser.add_argument("--batches", type=int, default=9, help="batches that are measured")
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # also for Spark's worker beside the driver
    spark = start_session(find_provider(OURS))
    spark.conf.set("spark.sql.shuffle.partitions", NUM_TASKS)
    say("| state | rows a key and batch | the query, rows/s | plain | keyed | keyed costs |")
    say("|---|---|---|---|---|---|")
    for kind in arguments.kinds.split(","):
        for per_key in ROWS_PER_KEY:
            with tempfile.TemporaryDirectory() as work:
                plain, ours, batches = measure(
                    spark, kind, per_key, arguments.rows, arguments.batches, Path(work)
                )
            difference = median(b - a for a, b in zip(plain, ours, strict=True)) / per_key
            task = NUM_TASKS * median(batches) / arguments.rows
            times = (f"{median(each) / per_key / 1e3:.1f} µs a row" for each in (plain, ours))
            rate = arguments.rows / median(batches) * 1e9
            row = f"| {kind} | {per_key} | {rate:,.0f} | {' | '.join(times)}"
            say(f"{row} | {difference / 1e3:+.1f} µs a row, {difference / task:.1%} |")
    spark.stop()
    return 0


def measure(
    spark: SparkSession, kind: str, per_key: int, num_rows: int, num_batches: int, work: Path
) -> tuple[list[float], list[float], list[float]]:
    """Return nanoseconds by batch: the median of a plain key, of a keyed one, and of the batch.

    Args:
        spark: The session.
        kind: One of KINDS.
        per_key: Rows of a key in a batch.
        num_rows: Rows of a batch.
        num_batches: Batches that count.
        work: An empty directory.
    """
    plain, ours = KINDS[kind]
    times: tuple[list[float], list[float]] = ([], [])

    def keep(batch: DataFrame, batch_id: int) -> None:
        if batch_id >= WARM_UP_BATCHES:
            rows = batch.collect()
            for which in (0, 1):
                times[which].append(median(row.ns for row in rows if row.which == which))
        else:
            batch.collect()

    (work / "rows").mkdir()
    for batch in range(WARM_UP_BATCHES + num_batches):
        lines = (
            json.dumps({"key": row // per_key, "value": row * 7 + batch}) for row in range(num_rows)
        )
        path = work / "rows" / f"{batch}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + batch,) * 2)
    files = spark.readStream.schema("key LONG, value LONG").option("maxFilesPerTrigger", 1)
    groups = files.json(str(work / "rows")).groupBy("key")
    both = Alternating((plain(), keyed_processor(ours(), OUTPUT)))
    timed = groups.transformWithState(both, "which INT, ns BIGINT", "Append", "None")
    writer = timed.writeStream.option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(availableNow=True).foreachBatch(keep).start()
    query.awaitTermination()
    batches = [report.durationMs["addBatch"] * 1e6 for report in query.recentProgress]
    return *times, batches[WARM_UP_BATCHES:]


if __name__ == "__main__":
    sys.exit(main())
