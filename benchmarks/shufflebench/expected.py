"""What consumers must have returned: computed by NumPy over the same files, without a stream."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.comparison.check import Expected, check_rows
from benchmarks.datasets import CACHE
from benchmarks.shufflebench.query import Query
from benchmarks.shufflebench.records import (
    BEGIN,
    LAST_PLACE,
    OUTPUT_RATE,
    PLACE,
    SUMMED,
    route,
    words,
)


def expect(spark: SparkSession, query: Query, files: Sequence[Path], num_records: int) -> Expected:
    """Return what the consumers return, with all batches together, and how many have a state."""
    table, num_consumers = run_consumers(files, query.num_rules)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        pq.write_table(table, f"{scratch}/{num_records}.parquet")
        return Expected(check_rows(spark.read.parquet(scratch)), num_consumers)


def run_consumers(files: Sequence[Path], num_rules: int) -> tuple[pa.Table, int]:
    """Return the rows that come out of the files, in no order, and the number of consumers."""
    times, kept = [], []
    for file in files:
        table = pq.read_table(file)
        times.append(table["time"].to_numpy())
        kept.append(words(table)[:, [SUMMED, PLACE, BEGIN]])
    time = np.concatenate(times)
    summed, place, begin = np.concatenate(kept).T
    pairs = list(route(place & LAST_PLACE, num_rules))
    record = np.concatenate([index for index, _ in pairs])
    rule = np.concatenate([rules for _, rules in pairs])
    order = np.lexsort((record, rule))
    record, rule = record[order], rule[order]
    # A consumer is a run of rows; each row has its place in it, and counts from where it begins.
    starts = np.flatnonzero(np.diff(rule, prepend=-1))
    sizes = np.diff(starts, append=len(rule))
    first = np.repeat(starts, sizes)
    count = (begin[record[first]] & LAST_PLACE) % OUTPUT_RATE + np.arange(len(rule)) - first
    # Rows that end up in one returned row, from its first to its last.
    opens = np.flatnonzero((count % OUTPUT_RATE == 0) | (np.arange(len(rule)) == first))
    lasts = np.append(opens[1:], len(rule)) - 1
    sums = np.add.reduceat(summed[record], opens)
    full = count[lasts] % OUTPUT_RATE == OUTPUT_RATE - 1
    opens, lasts = opens[full], lasts[full]
    made = pa.table(
        {
            "consumer": [f"consumer-{one}" for one in rule[lasts].tolist()],
            "count": np.full(len(lasts), OUTPUT_RATE, np.int64),
            "sum": sums[full],
            "first": time[record[opens]],
            "last": time[record[lasts]],
        }
    )
    return made, len(starts)
