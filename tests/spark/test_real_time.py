"""Queries in real-time mode give the rows that they give on Spark's RocksDB provider."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import pytest

from examples.wikipedia_edits.broker import Broker

from .conftest import EXTENDED, PROVIDER
from .harness import FILESYSTEM, HEAP, ROCKSDB, ROCKSDB_BACKEND
from .helper_jar import compile_test_jar
from .job_process import Job
from .real_time import committed_rows

KEYS = 50
StartJob = Callable[..., Job]

pytestmark = [
    pytest.mark.ours,
    pytest.mark.needs("real-time"),
    pytest.mark.skipif(PROVIDER != FILESYSTEM, reason="each backend is a query of the tests"),
]


def _jobs(start_job: StartJob, jars: Sequence[Path] = (), **always: Any) -> StartJob:
    """Return a function that starts a job of queries in real-time mode."""
    more = [compile_test_jar("realtime"), *jars]
    module = "tests.spark.real_time_job"
    return lambda name, **given: start_job(name, module=module, more_jars=more, **always, **given)


@pytest.fixture
def start(start_job: StartJob) -> StartJob:
    """Returns a function that starts a job whose sources are in memory."""
    return _jobs(start_job)


@pytest.fixture
def start_kafka(start_job: StartJob, kafka_jars: list[Path], kafka: str) -> StartJob:
    """Returns one that starts a job whose queries read from a broker and write to it."""
    return _jobs(start_job, kafka_jars, servers=kafka)


SOME = [("aggregation", FILESYSTEM), ("deduplication", ROCKSDB_BACKEND), ("variables", FILESYSTEM)]
QUERIES = ("plain", "aggregation", "windows", "deduplication", "variables", "timers")
EVERY = list(product(QUERIES, (FILESYSTEM, ROCKSDB_BACKEND, HEAP)))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("lanes", [SOME, pytest.param(EVERY, marks=EXTENDED)], ids=["ci", "all"])
def test_rows_and_state_equal_sparks_over_restarts(
    start: StartJob, lanes: list[tuple[str, str]]
) -> None:
    """Catches a row that a batch of seconds loses, doubles or changes, in sink or state.

    And a query that a restart, or the way from micro-batches and back, takes to another provider.
    """
    compare(start, lanes)


def compare(start: StartJob, lanes: list[tuple[str, str]]) -> None:
    """Assert that sinks and stores of queries have the rows that they have over Spark's RocksDB."""
    references = [(query, ROCKSDB) for query in dict(lanes)]

    report = start("compare", lanes=[*references, *lanes]).report(350)["lanes"]

    found = dict(zip([*references, *lanes], report, strict=True))
    for (query, provider), lane in found.items():
        assert lane["provider"] == provider
        assert lane["lines"] == found[query, ROCKSDB]["lines"], (query, provider)
        assert lane["state"] == found[query, ROCKSDB]["state"], (query, provider)
        assert all(len(rows) >= KEYS for rows in lane["state"].values())
        assert set(lane["lines"].values()) == {1}


def test_what_spark_refuses_in_real_time_is_refused(start: StartJob) -> None:
    """Catches a check of Spark's that a session of ours has switched off, and a typo."""
    told = start("refusals").report()

    assert "SQL_CONFIGURATION_NOT_SUPPORTED" in told["spark-key"]
    assert "key=spark.statestore.providerClass, value=io.statestore.Other" in told["no-provider"]
    assert "StreamingDeduplicateWithinWatermarkExec" in told["operator"]
    assert "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST" in told["operator"]
    for sink in ("noop", "memory"):
        assert "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST" in told[sink]
    assert "realTimeMode.allowlistCheck=true. To fix: set it to false" in told["allowlist"]


IN_KAFKA = [
    ("aggregation", FILESYSTEM),
    ("aggregation", ROCKSDB_BACKEND),
    ("deduplication", FILESYSTEM),
    ("variables", ROCKSDB_BACKEND),
]


@EXTENDED
@pytest.mark.timeout(400)
def test_rows_and_state_equal_sparks_from_kafka_to_kafka(start_kafka: StartJob) -> None:
    """Catches a record that a query loses, doubles or changes between two topics."""
    compare(start_kafka, IN_KAFKA)


@EXTENDED
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("jobs", "provider"),
    [("start", FILESYSTEM), ("start", ROCKSDB_BACKEND), ("start_kafka", FILESYSTEM)],
)
def test_nothing_is_lost_when_the_driver_is_killed_within_a_batch(
    request: pytest.FixtureRequest, tmp_path: Path, jobs: str, provider: str
) -> None:
    """Catches state that is not that of the committed offsets, and a row that never comes out."""
    start = request.getfixturevalue(jobs)
    checkpoint = tmp_path / "job" / "lane" / "checkpoint"
    for kills in range(1, 3):
        running = start("endless", provider=provider)
        _wait_for_commit(running, checkpoint)
        time.sleep(3.0 * kills)
        os.kill(running.driver(), signal.SIGKILL)
        running.process.wait(60)

    report = start("resume").report(350)

    assert report["before"] == totals(report["committed"])
    _assert_exact(report)


@EXTENDED
@pytest.mark.timeout(600)
def test_nothing_is_lost_when_the_broker_is_killed_within_a_batch(
    start_job: StartJob, kafka_jars: list[Path], tmp_path: Path
) -> None:
    """Catches a query that does not survive a broker that is away, and a row that it counts twice.

    The driver is killed in the end, too, within a later batch.
    """
    checkpoint = tmp_path / "job" / "lane" / "checkpoint"
    broker = Broker(tmp_path / "kafka")
    try:
        start = _jobs(start_job, kafka_jars, servers=broker.servers)
        running = start("endless", provider=FILESYSTEM)
        _wait_for_commit(running, checkpoint)
        time.sleep(2.0)
        broker.kill()
        broker.start()
        for _ in range(2):
            _wait_for_commit(running, checkpoint)
        os.kill(running.driver(), signal.SIGKILL)
        running.process.wait(60)
        report = start("resume").report(350)
    finally:
        broker.kill()

    assert report["before"] == totals(report["committed"])
    _assert_exact(report)


def _wait_for_commit(running: Job, checkpoint: Path) -> None:
    before = committed_rows(checkpoint)
    while committed_rows(checkpoint) <= before:
        assert running.process.poll() is None, running.output.read_text()
        time.sleep(0.2)


@EXTENDED
@pytest.mark.timeout(600)
@pytest.mark.parametrize("provider", [FILESYSTEM, ROCKSDB_BACKEND])
def test_nothing_is_lost_when_engines_and_executors_are_killed_within_a_batch(
    start: StartJob, provider: str
) -> None:
    """Catches state that only an executor or an engine knew, and a batch that a killed engine ends.

    Spark does not repeat a task of the mode: the loss of an executor ends the query.
    """
    report = start("killed", provider=provider, victims=["engine", "executor"]).report(550)

    assert report["survived"] == [True, False]
    _assert_exact(report)


@EXTENDED
@pytest.mark.timeout(400)
@pytest.mark.parametrize("provider", [FILESYSTEM, ROCKSDB_BACKEND])
def test_operations_within_a_batch_find_the_one_before_it(start: StartJob, provider: str) -> None:
    """Catches an operation that sees, or copies, what is not committed, and a rescale beside it.

    And a query that does not go on exactly after a rescale, or from the savepoint.
    """
    report = start("operate", provider=provider).report(350)

    within = report["within"]
    committed = totals(within["committed"])
    assert within["committed"] == within["committed_after"]
    assert within["reader"] == within["read"] == within["savepoint"] == committed
    assert within["versions"]
    assert within["findings"] == 0
    assert within["is_running"]
    assert "checkpoint-in-use" in within["rescale"]
    for moment in ("stopped", "rescaled"):
        assert report[moment]["read"] == totals(report[moment]["committed"])
    assert report["partitions"] == 5
    _assert_exact(report["exact"])
    other = report["other"]
    assert other["after"] == totals(other["rows"])


@EXTENDED
@pytest.mark.timeout(400)
def test_state_is_exact_where_rows_go_to_the_console(start: StartJob) -> None:
    """Catches a sink of Spark's that a query on a provider of this package does not get."""
    providers = [FILESYSTEM, ROCKSDB_BACKEND]
    report = start("console", providers=providers).report(350)

    assert report["states"] == dict.fromkeys(providers, totals(report["rows"]))


def _assert_exact(report: dict[str, Any]) -> None:
    """Assert that the state is that of the rows, and each was told at least once, and alike."""
    assert report["after"] == totals(report["rows"])
    told = report["lines"].keys()
    assert told >= set(_lines(report["rows"]))
    assert told <= set(_lines(10 * report["rows"])), "a row is told otherwise when it is told again"


def totals(num_rows: int) -> dict[str, list[int]]:
    """Return the number of rows and their sum by key."""
    sums = Counter[int]()
    for i in range(num_rows):
        sums[i % KEYS] += i
    return {str(key): [len(range(key, num_rows, KEYS)), sums[key]] for key in sums}


def _lines(num_rows: int) -> Iterable[str]:
    """Return what the aggregation tells of each row."""
    for key in range(min(KEYS, num_rows)):
        for number, total in enumerate(accumulate(range(key, num_rows, KEYS)), 1):
            yield f"{key},{number},{total}"
