"""Codes that count and pick rows of files, and a query whose code may be replaced by another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from statestore import Checkpoint

from .conftest import PROVIDER, state_in_files
from .harness import Files, Lane
from .queries import single

MARKS = [
    pytest.mark.ours,
    state_in_files,
]


def counted(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(sf.count("*").alias("number"), sf.sum("value").alias("total"))


def counted_otherwise(events: DataFrame) -> DataFrame:
    """Another program of the same meaning."""
    kept = events.select("key", (sf.col("value") + 1).alias("more"))
    totals = kept.groupBy("key").agg(
        sf.count("key").alias("number"), sf.sum(sf.col("more") - 1).alias("total")
    )
    return totals.select("key", "number", "total")


def counted_wrongly(events: DataFrame) -> DataFrame:
    """A bug: some values count twice."""
    value = sf.when(sf.col("key") == "k1", sf.col("value") * 2).otherwise(sf.col("value"))
    return events.groupBy("key").agg(sf.count("*").alias("number"), sf.sum(value).alias("total"))


def counted_more(events: DataFrame) -> DataFrame:
    """One more aggregate."""
    return events.groupBy("key").agg(
        sf.count("*").alias("number"),
        sf.sum("value").alias("total"),
        sf.max("value").alias("largest"),
    )


def files(first: int, number: int) -> list[Files]:
    """Return a file each batch: keys that come again, each batch with values of its own."""
    at = "2024-01-01T00:00:00.000Z"
    return [
        {"events": [{"key": f"k{key}", "value": batch + key, "ts": at} for key in range(3)]}
        for batch in range(first, first + number)
    ]


def expected(number: int) -> dict[str, tuple[int, int]]:
    """Return number and total of each key after some files."""
    return {f"k{key}": (number, sum(batch + key for batch in range(number))) for key in range(3)}


def first_of_each(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["key"]).select("key", "value")


def first_of_some(events: DataFrame) -> DataFrame:
    """A bug: keys of one kind are lost."""
    return first_of_each(events.where("not key like '%5'"))


def first_otherwise(events: DataFrame) -> DataFrame:
    """Another program of the same meaning."""
    return first_of_each(events.where("value >= 0")).selectExpr("key", "value + 0 AS value")


class Tried(Lane):
    """A query over files whose code may be replaced, with a sink that must not be written twice.

    Attributes:
        written: What its sink was given, by batch.
    """

    def __init__(
        self, spark: SparkSession, root: Path, conf: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(spark, single("tried", "update", counted, []), PROVIDER, root, conf)

    def job(self, build: Callable[[DataFrame], DataFrame]) -> Callable[[], Any]:
        """Return new code: what a user's program does up to its start."""
        self.query = single("tried", "update", build, [])
        return self.start

    @property
    def state(self) -> dict[str, tuple[int, int]]:
        """Number and total by key."""
        rows = Checkpoint(self.checkpoint).rows().read(flatten=True).to_pylist()
        return {row["key.key"]: (row["value.count"], row["value.sum"]) for row in rows}


def tried_again(
    tried: Tried,
    old: Callable[[DataFrame], DataFrame],
    new: Callable[[DataFrame], DataFrame],
) -> Callable[[], Any]:
    """Return the old code as a job, which leaves the new one in its place."""

    def start() -> None:
        tried.job(old)
        try:
            tried.start()
        finally:
            tried.job(new)

    return start
