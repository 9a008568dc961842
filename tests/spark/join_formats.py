"""Joins in state format 3 and 4, and their rows beside those of Spark's RocksDB provider.

Spark 4.3 gives the formats to no provider but its own, unless a query has them from its offset log.
There the shim writes the first entry, without offsets: batch 0 reads nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from .features import missing
from .harness import COUNTS, PROVIDER_CLASS, ROCKSDB, STATE_STORE, Lane, Query
from .queries import JOIN_FORMAT, join_query

V1: Mapping[str, str] = {}
V2 = {f"{STATE_STORE}.checkpointFormatVersion": "2"}


@cache  # a query is built by one function
def join_in(how: str, kind: str, version: str) -> Query:
    """Return a join in a state format, to be compared with Spark's RocksDB provider in that."""
    conf = {JOIN_FORMAT: version, "spark.sql.streaming.join.stateFormatV4.enabled": "true"}
    query = join_query(how, kind)
    return replace(query, name=f"{query.name}-format-{version}", conf=conf, built_in=ROCKSDB)


def pinned(lane: Lane, batch: int | None = None) -> tuple[str, str]:
    """Return state format of joins and provider, as an entry of the offset log has them.

    Args:
        batch: Whose; None for the oldest that there is.
    """
    offsets = lane.checkpoint / "offsets"
    if batch is None:
        batch = min(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    conf = json.loads((offsets / str(batch)).read_text().splitlines()[1])["conf"]
    return conf[JOIN_FORMAT], conf[PROVIDER_CLASS]


def rows_in_order(lane: Lane) -> list[list[str]]:
    """Return what the sink was handed, as `in_order`."""
    return in_order(lane, lane.batches)


def in_order(lane: Lane, values: Mapping[int, Any]) -> list[Any]:
    """Return values by batch, without a first one that reads nothing: operations take batches."""
    batches = sorted(values)
    if lane.conf[PROVIDER_CLASS] != ROCKSDB and not missing("join-guardrail"):
        assert lane.batches[batches.pop(0)] == []
    return [values[batch] for batch in batches]


def assert_same(reference: Lane, lane: Lane) -> None:
    """Assert that a lane returned and counted what one on Spark's provider did, in its format."""
    assert any(reference.batches.values()), "the query returned nothing: the test tests nothing"
    assert pinned(lane)[0] == pinned(reference)[0] == reference.query.conf[JOIN_FORMAT]
    assert rows_in_order(lane) == rows_in_order(reference)
    # Without a watermark Spark draws the times of keys, and rows of a key and time count as one.
    is_drawn = "-always-format-4" in lane.query.name
    for name in COUNTS[1:] if is_drawn else COUNTS:
        expected = in_order(reference, reference.counts(name))
        assert in_order(lane, lane.counts(name)) == expected, name
