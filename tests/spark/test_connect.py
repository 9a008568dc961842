"""A client of Spark Connect: every operator, and what of the helpers works without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from statestore.core.providers import PROVIDERS

from .conftest import EXTENDED, PROVIDER, RunOnce, state_in_files
from .connect_client import QUERIES, VARIABLES
from .features import missing
from .harness import Lane, assert_same, wait_for
from .job_process import Job
from .queries import AGGREGATION
from .state_variables import CHAINED

pytestmark = pytest.mark.ours

BACKEND = next((name for name, found in PROVIDERS.items() if found == PROVIDER), "")
RunClient = Callable[..., dict[str, Any]]
ADVICE = {
    "listen": "statestore list",
    "stop_with_savepoint": "Checkpoint.savepoint",
    "Checkpoint": "leave the session out",
    "try_job": "without remote()",
    "convert": "statestore convert",
}


@pytest.fixture(scope="module")
def url(jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that was started with the jar."""
    root = tmp_path_factory.mktemp("connect")
    server = Job("connect_server", root, jars)

    def port() -> str:
        assert server.process.poll() is None, server.output.read_text()
        path = root / "port"
        return path.read_text() if path.exists() else ""

    try:
        yield f"sc://127.0.0.1:{wait_for(port, 'the server', 120)}"
    finally:
        server.end()


@pytest.fixture
def run_client(url: str, tmp_path: Path) -> RunClient:
    """Returns a function that has a client do something, by its name in connect_client.py."""

    def run(name: str, **arguments: Any) -> dict[str, Any]:
        root, module = tmp_path / "client", "tests.spark.connect_client"
        client = Job(name, root, [], None, module, url=url, backend=BACKEND, **arguments)
        try:
            return client.report(240)
        finally:
            client.end()

    return run


def _by_batch(batches: dict[str, list[str]]) -> dict[int, list[str]]:
    return {int(batch): rows for batch, rows in batches.items()}


def _case(name: str) -> Any:
    query = QUERIES[name]
    marks = [EXTENDED]
    if query == VARIABLES[0]:
        marks.append(pytest.mark.each_spark)
    if query in VARIABLES:
        marks.append(pytest.mark.needs("connect-variables"))
    if query in (*VARIABLES[1:], *CHAINED):
        marks.append(pytest.mark.needs("row-api"))
    return pytest.param(name, marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(map(_case, QUERIES)))
def test_rows_equal_built_in_through_a_session_of_connect(
    run_client: RunClient, run_once: RunOnce, tmp_path: Path, name: str
) -> None:
    """Catches an operator that a session of the server plans, or restarts, in another way."""
    query = QUERIES[name]
    with ThreadPoolExecutor(1) as pool:
        expected = pool.submit(run_once, query, query.built_in)
        report = run_client("run_query", query=name)
    reference = expected.result()

    lane = Lane(reference.spark, query, PROVIDER, tmp_path)
    lane.batches, lane.progress = _by_batch(report["batches"]), report["progress"]
    assert any(lane.batches.values()), "the query returned nothing: the test tests nothing"
    assert_same(reference, lane)


@state_in_files
@pytest.mark.timeout(300)
def test_helpers_work_or_are_refused_by_name(run_client: RunClient, run_once: RunOnce) -> None:
    """Catches a helper that fails for want of a JVM without saying so, or writes before it does."""
    with ThreadPoolExecutor(1) as pool:
        expected = pool.submit(run_once, AGGREGATION, AGGREGATION.built_in)
        report = run_client("use_helpers")

    (first, *_), *_ = AGGREGATION.plan
    num_keys = len({event["key"] for event in first["events"]})
    state = dict.fromkeys(("read", "open_store"), num_keys)
    if not missing("reader-of-ids"):
        state |= {"state reader": num_keys, "catalog": num_keys}
    assert report["worked"] == {"run": 2, **state, "savepoint": 1}
    assert _by_batch(report["batches"]) == expected.result().batches
    assert report["refused"].keys() == ADVICE.keys()
    for name, (kind, to_fix) in report["refused"].items():
        assert (kind, ADVICE[name] in to_fix) == ("spark-connect", True), (name, to_fix)
    assert not report["made"]


@state_in_files
@pytest.mark.extended
def test_obstacles_are_found_in_errors_of_connect(run_client: RunClient) -> None:
    """Catches a query that is started again and again, since an error lost its cause on its way."""
    report = run_client("fail_queries")

    assert report == {
        "a column that is not there": "42703",
        "another key": "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
        "an option out of range": "invalid-option",
        "a sink that fails": None,
        "state that is damaged": "truncated",
    }
