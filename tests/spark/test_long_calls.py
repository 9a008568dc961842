"""Calls to an engine that take longer than `engine.callTimeoutMs`, and engines that hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.s3_server import REGION

from .conftest import MakeLane, state_in_files, state_in_memory
from .harness import HDFS, STATE_STORE, Lane, assert_same, wait_for
from .processes import descendants, engines
from .queries import AGGREGATION, one_input, single

pytestmark = [pytest.mark.ours, state_in_files, state_in_memory]

TIMEOUT = {f"{STATE_STORE}.engine.callTimeoutMs": "6000"}
"""Of engines of their own; they import the client of S3 without a sign of life."""
NUM_KEYS = 70
WIDE = single(
    "wide",
    "update",
    lambda events: events.groupBy("key").agg(sf.max("value").alias("most")).select("most"),
    one_input(1),
)


def _wide_rows(value: int) -> dict[str, list[dict[str, Any]]]:
    """A batch of one row for each key, of 15 kB that no compression makes smaller."""
    keys = [os.urandom(15_000).hex() for _ in range(NUM_KEYS)]
    return {"events": [{"key": key, "value": value, "ts": None} for key in keys]}


@pytest.fixture
def slow_lane(make_lane: MakeLane, s3_server: Any, bucket: str) -> Lane:
    """A query with a megabyte of state on S3 in one partition, stopped."""
    options = {
        "checkpointStorage": f"s3://{bucket}/queries",
        "s3.endpoint": s3_server.endpoint,
        "s3.region": REGION,
        "s3.pathStyle": "true",
        "s3.accessKey": "test",
        "s3.secretKey": "test",
        "s3.timeoutMs": "60000",
    }
    conf = {**TIMEOUT, **{f"{STATE_STORE}.{key}": value for key, value in options.items()}}
    conf["spark.sql.shuffle.partitions"] = "1"
    lane = make_lane(replace(WIDE, plan=[[]]), conf=conf)
    lane.run(_wide_rows(1))
    return lane


def _restarts(spark: SparkSession) -> int:
    jvm: Any = spark._jvm
    return int(jvm.io.statestore.engine.Engines.restarts())


@pytest.mark.extended
def test_long_restore_succeeds_while_another_query_of_the_engine_commits(
    slow_lane: Lane, make_lane: MakeLane, s3_server: Any, spark: SparkSession
) -> None:
    """Catches an engine at work that is killed for its slow storage, with the commits of others."""
    query = replace(AGGREGATION, plan=one_input(2))
    reference, other = make_lane(query, HDFS), make_lane(query, conf=TIMEOUT)
    reference.run(*query.plan[0])
    before = _restarts(spark)
    s3_server.bytes_per_s = 80_000
    s3_server.requests.clear()

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(slow_lane.run, _wide_rows(2))
        wait_for(lambda: s3_server.requests["GET"] > 1, "the restore")
        other.run(*query.plan[0])
        assert not slow.done()
        slow.result()

    assert slow_lane.batches[1] == ["(2,)"] * NUM_KEYS
    assert slow_lane.custom_metrics()[-1]["rocksdbLoadLatencyMs"] > 6000
    assert_same(reference, other)
    assert (_restarts(spark), slow_lane.failed_tasks) == (before, 0)


def test_engine_that_gives_no_sign_of_life_is_replaced(
    make_lane: MakeLane, spark: SparkSession
) -> None:
    """Catches a query that waits for ever for an engine that stands still."""
    query = replace(AGGREGATION, plan=one_input(3))
    reference, lane = make_lane(query, HDFS), make_lane(query, conf=TIMEOUT)
    before = _restarts(spark)

    def freeze(batch_id: int) -> None:
        for pid in engines(descendants(os.getpid())) if batch_id == 1 else ():
            os.kill(pid, signal.SIGSTOP)

    lane.before_batch = freeze
    reference.run(*query.plan[0])
    try:
        lane.run(*query.plan[0])
    finally:
        for pid in engines(descendants(os.getpid())):
            os.kill(pid, signal.SIGCONT)

    assert _restarts(spark) > before
    assert_same(reference, lane)


@pytest.mark.extended
def test_storage_that_is_silent_ends_the_batch_with_the_option_named(
    slow_lane: Lane, s3_server: Any, unload_all: Callable[[], None]
) -> None:
    """Catches a restore from a storage that sends nothing any more, and an error without advice."""
    s3_server.outage = "silent"
    with pytest.raises(StreamingQueryException) as raised:
        slow_lane.run(_wide_rows(2))
    s3_server.outage = ""

    assert "engine gave no sign of life 2 times" in str(raised.value)
    assert "spark.sql.streaming.stateStore.engine.callTimeoutMs" in str(raised.value)
    slow_lane.run()
    assert slow_lane.batches[1] == ["(2,)"] * NUM_KEYS
