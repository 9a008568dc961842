"""What must be equal of the rows that a stream returned and of those that it should have."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


@dataclass(frozen=True, slots=True)
class Check:
    """How many rows came out, and the sum of a hash of each."""

    rows: int
    hash: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What a query must have left: rows that came out, and rows of state, None where not known."""

    check: Check
    state_rows: int | None = None


def checks(of: DataFrame) -> tuple[DataFrame, list[Column]]:
    """Return rows with columns that no two share, and what makes a `Check` of them."""
    rows = of.toDF(*(f"c{number}" for number in range(len(of.columns))))
    # As 32 bits, so that a sum of them fits into a long.
    hashed = sf.xxhash64(*rows.columns).bitwiseAND(sf.lit(0xFFFFFFFF))
    return rows, [
        sf.count(sf.lit(1)).alias("rows"),
        sf.coalesce(sf.sum(hashed), sf.lit(0)).alias("hash"),
    ]


def check_rows(of: DataFrame) -> Check:
    """Return the check of the rows of a batch."""
    rows, made = checks(of)
    found = rows.agg(*made).collect()[0]
    return Check(found["rows"], found["hash"])
