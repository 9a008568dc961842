"""Keyed state in Flink's words beside plain `transformWithState`: rows a second in Python.

    $ python -m benchmarks.keyed_state [--rows 5000] [--rounds 7]

A pair of queries for each kind of state and number of rows a key, over the same files: one is a
`StatefulProcessor` that reads and writes as seldom as Spark's interface lets it, one a function of
`statestore.keyed`. They take turns, batch by batch, on the filesystem backend, in one application;
the first two batches of each are left out. Keys and their state are the same in every batch.

On a loaded machine the difference of two such times is mostly noise. So both are also run on
variables that are dicts, with no Spark around them: what the wrapper's own Python takes for a row.
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

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.sessions import start_session
from benchmarks.workloads import OURS, find_provider
from statestore import keyed
from statestore.keyed.processor import keyed_processor

OUTPUT = "key BIGINT, total BIGINT"
ROWS_PER_KEY = (1, 10)
WARM_UP_BATCHES = 2
SLOTS = 16


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
        self.sum = runtime.get_state(keyed.ValueStateDescriptor("sum", int, default=0))

    def map(self, value: Row) -> tuple[int, int]:
        total = self.sum.value() + value.value
        self.sum.update(total)
        return value.key, total


class KeyedList(keyed.RichMapFunction):
    """Keeps the values of a key."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        self.values = runtime.get_list_state(keyed.ListStateDescriptor("values", int))

    def map(self, value: Row) -> tuple[int, int]:
        self.values.add(value.value)
        return value.key, value.value


class KeyedMap(keyed.RichMapFunction):
    """Counts the values of a key by slot."""

    def open(self, runtime: keyed.RuntimeContext) -> None:
        self.counts = runtime.get_map_state(keyed.MapStateDescriptor("counts", int, int))

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


def main() -> int:
    """Measure every pair, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=5000, help="rows a batch")
    parser.add_argument("--rounds", type=int, default=7, help="batches of each query")
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # also for Spark's worker beside the driver
    spark = start_session(find_provider(OURS))
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    say("| state | rows a key and batch | plain, rows/s | keyed, rows/s | keyed costs | own time |")
    say("|---|---|---|---|---|---|")
    for kind in arguments.kinds.split(","):
        for per_key in ROWS_PER_KEY:
            with tempfile.TemporaryDirectory() as work:
                pair = Pair(spark, kind, Path(work))
                plain, ours = pair.run(arguments.rows, per_key, arguments.rounds)
            costs = median(b / a - 1 for a, b in zip(plain, ours, strict=True))
            rates = (f"{arguments.rows / median(times):,.0f}" for times in (plain, ours))
            own = own_time_us(kind, per_key)
            share = own * arguments.rows / median(plain) / 1e6
            figures = f"{costs:+.1%} | {own:.1f} µs a row, {share:.1%}"
            say(f"| {kind} | {per_key} | {' | '.join(rates)} | {figures} |")
    spark.stop()
    return 0


class DictVariables:
    """Variables of every kind that cost next to nothing; stands for Spark's handle, too."""

    def __init__(self) -> None:
        self.key: Any = None
        self.held: dict[Any, Any] = {}

    def getValueState(self, *_: Any) -> DictVariables:
        """Return the variable."""
        return self

    getListState = getMapState = getValueState  # noqa: N815

    def get(self) -> Any:
        return self.held.get(self.key)

    def update(self, row: Any) -> None:
        self.held[self.key] = row

    def appendList(self, rows: Any) -> None:
        self.held[self.key] = rows

    def getValue(self, key: Any) -> Any:
        return self.held.get((self.key, key))

    def updateValue(self, key: Any, value: Any) -> None:
        self.held[self.key, key] = value


def own_time_us(kind: str, per_key: int) -> float:
    """Return the microseconds of CPU a row that keyed takes more than plain."""
    plain, ours = KINDS[kind]
    wrapped = keyed_processor(ours(), OUTPUT)
    times = [_dict_times_us(processor, per_key) for processor in (plain(), wrapped)]
    return float(median(after - before for before, after in zip(*times, strict=True)))


def _dict_times_us(processor: StatefulProcessor, per_key: int, num_keys: int = 2000) -> list[float]:
    variables, make, times = DictVariables(), Row("key", "value"), []
    processor.init(variables)  # type: ignore[arg-type]
    for batch in range(15):
        groups = [
            ((key,), [make(key, key * 7 + place + batch) for place in range(per_key)])
            for key in range(num_keys)
        ]
        started = time.process_time()
        for key, rows in groups:
            variables.key = key
            for _ in processor.handleInputRows(key, iter(rows), None):  # type: ignore[arg-type]
                pass
        times.append((time.process_time() - started) * 1e6 / num_keys / per_key)
    return times


class Pair:
    """A plain query and a keyed one, which take turns.

    Args:
        spark: The session.
        kind: One of KINDS.
        work: An empty directory.
    """

    def __init__(self, spark: Any, kind: str, work: Path) -> None:
        plain, ours = KINDS[kind]
        self._work = work
        self._queries = [
            self._start(
                spark,
                "plain",
                lambda groups: groups.transformWithState(plain(), OUTPUT, "Append", "None"),
            ),
            self._start(spark, "keyed", lambda groups: keyed.process(groups, ours(), OUTPUT)),
        ]

    def run(self, num_rows: int, per_key: int, rounds: int) -> tuple[list[float], list[float]]:
        """Return the seconds of every batch of the plain query, and of the keyed one."""
        times: tuple[list[float], list[float]] = ([], [])
        for batch in range(WARM_UP_BATCHES + rounds):
            lines = "".join(
                json.dumps({"key": row // per_key, "value": row * 7 + batch}) + "\n"
                for row in range(num_rows)
            )
            for which in (0, 1) if batch % 2 else (1, 0):
                seconds = self._batch(which, batch, lines, num_rows)
                if batch >= WARM_UP_BATCHES:
                    times[which].append(seconds)
        for query in self._queries:
            query.stop()
        return times

    def _start(
        self, spark: Any, name: str, transform: Callable[[Any], DataFrame]
    ) -> StreamingQuery:
        (self._work / name).mkdir()
        rows = spark.readStream.schema("key LONG, value LONG").json(str(self._work / name))
        writer = transform(rows.groupBy("key")).writeStream.format("noop")
        started = writer.option("checkpointLocation", str(self._work / f"{name}-checkpoint"))
        return started.start()

    def _batch(self, which: int, batch: int, lines: str, num_rows: int) -> float:
        name, query = ("plain", "keyed")[which], self._queries[which]
        partial = self._work / f"{name}-{batch}.json"
        partial.write_text(lines)
        os.utime(partial, (1_700_000_000 + batch,) * 2)
        partial.rename(self._work / name / partial.name)
        query.processAllAvailable()
        reports = [each for each in query.recentProgress if each.batchId == batch]
        (report,) = [each for each in reports if "addBatch" in each.durationMs]  # others are idle
        assert report.numInputRows == num_rows, report.json
        return float(report.durationMs["addBatch"]) / 1000


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
