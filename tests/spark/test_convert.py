"""A query that was converted to another provider, and back, returns what it would have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore.operations.conversion import TARGETS
from statestore.spark.convert import convert

from .conftest import MakeLane
from .harness import HDFS, PROVIDER_CLASS, ROCKSDB, STATE_STORE, Lane, Query, assert_same, run_plan
from .queries import (
    AGGREGATION,
    AGGREGATIONS,
    DEDUPS,
    EVENT_TIME_GROUPS,
    JOIN,
    LIMITS,
    OPERATORS,
    SESSION_APPEND,
    WINDOW_APPEND,
    one_input,
    two_inputs,
)

FORMAT_2 = {f"{STATE_STORE}.checkpointFormatVersion": "2"}
OURS = ("filesystem", "rocksdb")
SPARKS = ("spark-hdfs", "spark-rocksdb")


def _in_three_runs(query: Query) -> Query:
    """The query with the batches of its plan in three runs, between which it is converted."""
    make = two_inputs if "left" in query.schemas else one_input
    return replace(query, plan=make(2, 1, 1))


def _tree(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def _convert(lane: Lane, to: str, **session: str) -> None:
    """Convert a lane's checkpoint, which goes on with the new one."""
    before = _tree(lane.checkpoint)
    new = lane.checkpoint.with_name(f"checkpoint-{to}")

    rows = convert(str(lane.checkpoint), str(new), to, spark=lane.spark)

    assert _tree(lane.checkpoint) == before
    lane.checkpoint = new


def _there_and_back(make_lane: MakeLane, query: Query, names: tuple[str, str, str], **conf) -> None:
    """Run on the first provider, then on the second, then on the third; compare every batch."""
    query = _in_three_runs(query)
    reference, lane = make_lane(query, HDFS), make_lane(query, TARGETS[names[0]], conf)
    run_plan(reference)
    for index, batches in enumerate(query.plan):
        if index:
            _convert(lane, names[index])
        lane.run(*batches)

    assert any(lane.batches.values()), "the query returned nothing: the test tests nothing"
    assert_same(reference, lane)


@pytest.mark.parametrize("query", [AGGREGATION, JOIN], ids=lambda query: query.name)
@pytest.mark.parametrize("names", [("spark-hdfs", "filesystem", "spark-hdfs"), ("spark-rocksdb", "rocksdb", "spark-rocksdb")], ids="-".join)
def test_rows_equal_never_converted(make_lane: MakeLane, query: Query, names) -> None:
    _there_and_back(make_lane, query, names)
