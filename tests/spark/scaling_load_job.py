"""A query on two executors that scales by itself: its load is four times as high, then as before.

`python -m tests.spark.scaling_load_job NAME ARGUMENTS`; the report has what was measured.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import statestore
from statestore import Between, Checkpoint, NoRestart

from .application import start_application
from .harness import PROVIDER_CLASS, wait_for
from .scaling_job import newest

INTERVAL_S = 15
KEYS_A_SECOND = 20
"""Of the low load; each key takes 45 ms of the task that has it."""
TASK_S_A_KEY = 0.045
NUM_KEYS = 5_000
LONGEST_S = 200


class Load:
    """Rows that are fed every second, by a thread of its own.

    Attributes:
        factor: How many times the low load.
        fed: How often each key was fed.
    """

    def __init__(self, directory: Path) -> None:
        self.factor = 1
        self.fed: Counter[str] = Counter()
        self._directory = directory
        directory.mkdir()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self._thread.start()

    def end(self) -> None:
        """Feed no more."""
        self._is_over.set()
        self._thread.join()

    def _feed(self) -> None:
        keys = count()
        while not self._is_over.wait(1):
            rows = [str(next(keys) % NUM_KEYS) for _ in range(KEYS_A_SECOND * self.factor)]
            self.fed.update(rows)
            partial = self._directory.with_name("partial")
            partial.write_text("".join(json.dumps({"key": key}) + "\n" for key in rows))
            partial.rename(self._directory / f"{time.time_ns()}.json")


def pauses_s(checkpoint: Path) -> dict[int, float]:
    """Return from the end of a batch to the begin of the next, over each change, by its number."""
    found = {}
    for entry in Checkpoint(checkpoint).history():
        batch = (entry.to_version or 0) - 1
        ended_s = (checkpoint / "commits" / str(batch - 1)).stat().st_mtime
        planned = (checkpoint / "offsets" / str(batch + 1)).read_text().splitlines()[1]
        begun_s = json.loads(planned)["batchTimestampMs"] / 1000
        found[entry.options["num_partitions"]] = begun_s - ended_s
    return found


def main(_: str, text: str) -> None:
    """Run the query through the load, and compare what it has counted."""
    arguments = json.loads(text)
    root = Path(arguments["root"])
    session = start_application(
        root, list(map(Path, arguments["jars"])), "local-cluster[2,4,1024]",
        conf={"spark.sql.shuffle.partitions": "4", PROVIDER_CLASS: arguments["provider"]},
    )  # fmt: skip
    load = Load(root / "input")
    checkpoint = root / "checkpoint"
    handles: list[Any] = []

    def collect(frame: DataFrame, _: int) -> None:
        frame.collect()

    def start() -> Any:
        rows = session.readStream.schema("key STRING").json(str(root / "input"))
        sleeps = f"reflect('java.lang.Thread', 'sleep', {int(TASK_S_A_KEY * 1000)}L)"
        counts = rows.groupBy("key").count().withColumn("slept", sf.expr(sleeps))
        writer = counts.writeStream.outputMode("update").trigger(
            processingTime=f"{INTERVAL_S} seconds"
        )
        writer = writer.foreachBatch(collect)
        handles.append(writer.option("checkpointLocation", str(checkpoint)).start())
        return handles[-1]

    def number_is(number: int) -> Any:
        commits = checkpoint / "commits"
        has_run = commits.is_dir() and newest(checkpoint, "commits") >= 2
        return has_run and Checkpoint(checkpoint).info.num_partitions == number

    def counted() -> dict[str, int]:
        rows = Checkpoint(checkpoint).rows().read(flatten=True).to_pylist()
        return {row["key.key"]: row["value.count"] for row in rows}

    def has_read_all() -> bool:
        time.sleep(1)
        return sum(counted().values()) == load.fed.total()

    def go_through() -> None:
        try:
            wait_for(lambda: number_is(4), "some batches", LONGEST_S)
            load.factor = 4
            wait_for(lambda: number_is(8), "more state partitions", LONGEST_S)
            time.sleep(2 * INTERVAL_S)
            load.factor = 1
            wait_for(lambda: number_is(4), "fewer state partitions", LONGEST_S)
            load.end()
            wait_for(has_read_all, "the last rows", LONGEST_S)
        finally:
            load.end()
            for handle in handles[-1:]:
                handle.stop()

    going = threading.Thread(target=go_through)
    going.start()
    scale = Between(4, 8, cool_down=3 * INTERVAL_S)
    past = statestore.run(start, NoRestart(), scale=scale)
    going.join()
    session.stop()
    report = {
        "is_equal": counted() == load.fed,
        "num_rows": load.fed.total(),
        "starts": past.attempts,
        "pauses_s": pauses_s(checkpoint),
        "history": [repr(entry.result["reason"]) for entry in Checkpoint(checkpoint).history()],
        "findings": [str(one) for one in Checkpoint(checkpoint).verify(deep=True).findings],
    }
    (root / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
