"""A source whose offset is its state gives every row once, over restarts, failures and rescales."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from examples import counter_source
from statestore import keyed

from .conftest import EXTENDED

pytestmark = [pytest.mark.ours, pytest.mark.needs("source-start")]
# Workers import neither the examples nor the tests.
cloudpickle.register_pickle_by_value(counter_source)
cloudpickle.register_pickle_by_value(sys.modules[__name__])
Rows = list[tuple[int, ...]]


class Growing(counter_source.CounterSource):
    """Has a counter more with every batch, and writes down what it is notified of."""

    @classmethod
    def name(cls) -> str:
        return "growing"

    def initialize_state(self) -> list[Any]:
        return []

    def snapshot_state(self, elements: list[Any]) -> list[Any]:
        if len(elements) >= int(self.options["counters"]):
            return elements
        further = [each | {"offset": each["offset"] + 2} for each in elements]
        return [*further, {"counter": len(elements), "offset": 2}]

    def read(self, split: keyed.Split) -> Iterator[tuple[int, int, int]]:
        for before, after in split.elements:
            for value in range(before["offset"] if before else 0, after["offset"]):
                if self.redistribution == "even-split" or value % split.parallelism == split.index:
                    yield split.index, after["counter"], value

    def notify_checkpoint_complete(self, elements: list[Any]) -> None:
        with Path(self.options["told"]).open("a") as told:
            told.write(json.dumps([each["offset"] for each in elements]) + "\n")


class GrowingOfAll(Growing):
    """Hands all elements to every task."""

    redistribution = "union"

    @classmethod
    def name(cls) -> str:
        return "growing-of-all"


def _run(
    spark: SparkSession, root: Path, source: type[Growing], fails: str = "", **options: Any
) -> Rows:
    """Run until there is nothing new, and return all rows of the batches that ran."""
    rows: Rows = []

    def keep(batch: DataFrame, batch_id: int) -> None:
        if fails:
            (root / fails).write_text(json.dumps(sorted(map(list, batch.collect()))))
            raise RuntimeError("failed on purpose")
        rows.extend(map(tuple, batch.collect()))

    session = spark.newSession()
    session.dataSource.register(source)
    frame = session.readStream.format(source.name()).option("told", str(root / "told"))
    for key, value in options.items():
        frame = frame.option(key, value)
    query = frame.load().writeStream.option("checkpointLocation", str(root / "checkpoint"))
    running = query.foreachBatch(keep).start()
    try:
        running.processAllAvailable()
    finally:
        running.stop()
    return rows


def _values(rows: Rows) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for _, counter, value in sorted(rows, key=lambda row: row[1:]):
        found.setdefault(counter, []).append(value)
    return found


@EXTENDED
@pytest.mark.parametrize("source", [Growing, GrowingOfAll], ids=lambda source: source.name())
def test_every_row_comes_once_when_the_parallelism_changes(
    spark: SparkSession, tmp_path: Path, source: type[Growing]
) -> None:
    """Catches an element that a restart loses or repeats, or that comes to two tasks or none."""
    first = _run(spark, tmp_path, source, counters=2, parallelism=1)
    with pytest.raises(StreamingQueryException, match="failed on purpose"):
        _run(spark, tmp_path, source, "attempt", counters=4, parallelism=1)
    second = _run(spark, tmp_path, source, counters=4, parallelism=3)
    third = _run(spark, tmp_path, source, counters=5, parallelism=2)

    assert _values(first + second + third) == {
        counter: [*range(2 * (5 - counter))] for counter in range(5)
    }
    assert [sorted({row[0] for row in rows}) for rows in (first, second, third)] == [
        [0],
        [0, 1, 2],
        [0, 1],
    ]
    of_attempt = json.loads((tmp_path / "attempt").read_text())
    assert of_attempt
    assert {tuple(row[1:]) for row in of_attempt} <= {row[1:] for row in second}
    if source.redistribution == "even-split":
        assert {counter: counter % 2 for counter in range(5)} == {row[1]: row[0] for row in third}
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert [2] in told
    assert told == sorted(told)


def test_counter_source_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches numbers that are skipped or counted twice, in a listing of Flink's documentation."""
    for parallelism in (1, 2):
        counter_source.run(spark.newSession(), tmp_path, 2, parallelism)

    assert capsys.readouterr().out.splitlines() == [
        "task 0 counter 0: [0, 1, 2]",
        "task 0 counter 1: [0, 1, 2]",
        "task 0 counter 0: [3, 4, 5]",
        "task 0 counter 1: [3, 4, 5]",
        "task 0 counter 0: [6, 7, 8]",
        "task 1 counter 1: [6, 7, 8]",
        "task 0 counter 0: [9, 10, 11]",
        "task 1 counter 1: [9, 10, 11]",
    ]


def test_counter_source_goes_on_when_its_log_is_cleaned(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a listing that counts no more after many starts, and says nothing."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.minBatchesToRetain", "2")
    for _ in range(4):
        counter_source.run(session, tmp_path, 1, 1)

    assert capsys.readouterr().out.splitlines()[-1] == "task 0 counter 0: [21, 22, 23]"
