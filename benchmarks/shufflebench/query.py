"""The query of ShuffleBench with a number of rules, for Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame, SparkSession

from benchmarks.shufflebench.records import OUTPUT_RATE, SEED, arc


@dataclass(frozen=True, slots=True)
class Query:
    """The query with so many rules, and as many consumers."""

    num_rules: int
    output_mode: ClassVar[str] = "update"
    needs_families: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The number of rules."""
        return str(self.num_rules)


def find_query(name: str) -> Query:
    """Return the query with that number of rules.

    Raises:
        LookupError: It is no such number.
    """
    if not name.isdigit() or not int(name):
        raise LookupError(f"no number of rules: rules={name!r}. To fix: use one from 1 on")
    return Query(int(name))


def stream(spark: SparkSession, query: Query, source: Path) -> DataFrame:
    """Return what consumers return of the files of a directory, one a batch."""
    reader = spark.readStream.schema("time long, data binary").option("maxFilesPerTrigger", 1)
    rows = reader.parquet(str(source))._jdf
    jvm: Any = spark._jvm
    rules = jvm.io.statestore.bench.ShuffleRules
    num_rules = query.num_rules
    return DataFrame(rules.shuffle(rows, num_rules, arc(num_rules), SEED, OUTPUT_RATE), spark)
