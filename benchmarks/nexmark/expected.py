"""What the queries must have returned: computed by DuckDB over the same files, without a stream."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

from benchmarks.comparison.check import Check, Expected, check_rows
from benchmarks.datasets import CACHE
from benchmarks.nexmark.generator import BASE_TIME_MS, event_time_ms
from benchmarks.nexmark.queries import Query

WATERMARK_MS, JOIN_MS = 4_000, 1_000
"""The watermark is behind the last event; behind a join in an interval it is behind that, too."""


def expect(spark: SparkSession, query: Query, files: Sequence[Path], num_events: int) -> Expected:
    """Return what a query returns, with all batches together; a batch is a file."""
    bounds = f"{query.batch} {query.changed} {num_events}"
    digest = hashlib.sha256(bounds.encode()).hexdigest()[:12]
    kept = CACHE / f"{files[0].parent.name}-{query.name}-{digest}.json"
    if not kept.exists():
        scratch = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            write_expected(query, files, num_events, scratch)
            found = check_rows(spark.read.parquet(str(scratch)))
            staged = scratch / kept.name
            staged.write_text(json.dumps(astuple(found)))
            staged.replace(kept)
        finally:
            shutil.rmtree(scratch)
    return Expected(Check(*json.loads(kept.read_text())))


def write_expected(query: Query, files: Sequence[Path], num_events: int, directory: Path) -> None:
    """Write the rows of a query as Parquet files of a directory.

    Of a query in update mode they are the groups of each file, over the events up to its end.
    """
    last_ms = event_time_ms(num_events - 1) - WATERMARK_MS
    sql = query.batch.replace(":watermark", _timestamp(last_ms))
    sql = sql.replace(":joined", _timestamp(last_ms - JOIN_MS))
    with duckdb.connect() as database:
        database.execute("SET threads = 2; SET memory_limit = '6GB'")
        ends = range(1, len(files) + 1) if query.changed else [len(files)]
        for end in ends:
            _views(database, files[:end], "")
            if query.changed:
                _views(database, files[end - 1 : end], "new_")
                same = " AND ".join(f"n.{name} = bid.{name}" for name in query.changed)
                touched = f"(FROM bid WHERE EXISTS (FROM new_bid AS n WHERE {same}))"
                sql_now = sql.replace("FROM bid", f"FROM {touched}")
            else:
                sql_now = sql
            database.execute(f"COPY ({sql_now}) TO '{directory}/{end}.parquet'")


def _views(database: duckdb.DuckDBPyConnection, files: Sequence[Path], prefix: str) -> None:
    listed = ", ".join(f"'{file}'" for file in files)
    # Timestamps without a zone, which are UTC: those with one need an extension of DuckDB.
    for number, name in enumerate(("person", "auction", "bid")):
        columns = "* REPLACE (make_timestamp(epoch_us(expires)) AS expires)" if number == 1 else "*"
        database.execute(
            f"""CREATE OR REPLACE VIEW {prefix}{name} AS SELECT {columns} FROM (
            SELECT unnest({name}), make_timestamp(epoch_us(date_time)) AS date_time
            FROM read_parquet([{listed}]) WHERE event_type = {number})"""
        )


def _timestamp(ms: int) -> str:
    return f"(TIMESTAMP '2015-07-15' + to_milliseconds({ms - BASE_TIME_MS}))"
