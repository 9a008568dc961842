"""The application all tests of the lane share, and the provider under test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.wikipedia_edits.broker import Broker
from examples.wikipedia_edits.jars import JarsUnreachableError as KafkaUnreachableError
from examples.wikipedia_edits.jars import broker_jars, connector_jars
from statestore.core.clock import SystemClock
from statestore.io.file_io import TreeFileIO
from statestore.io.hadoop_process import HadoopProcess, use
from statestore.io.shim_jar import find_jar
from statestore.io.storage import open_storage

from .application import abandon_calls, start_application
from .features import missing
from .harness import (
    FILESYSTEM,
    HDFS,
    HEAP,
    INTERPRETED,
    ROCKSDB,
    ROCKSDB_BACKEND,
    Lane,
    Query,
    run_plan,
)
from .hdfs_cluster import CLIENT_CONF, HdfsCluster, JarsUnreachableError
from .helper_jar import compile_test_jar
from .job_process import Job

# STATESTORE_LANE_PROVIDER runs the whole lane on another provider; a built-in one checks the lane.
PROVIDER = {
    "filesystem": FILESYSTEM,
    "heap": HEAP,
    "rocksdb": ROCKSDB_BACKEND,
    "spark-rocksdb": ROCKSDB,
    "spark-hdfs": HDFS,
}[os.environ.get("STATESTORE_LANE_PROVIDER", "filesystem")]
OURS = PROVIDER.startswith("io.statestore.")
BODY = "sst" if PROVIDER == ROCKSDB_BACKEND else "arrows"
IGNORED_WARNINGS = [
    # py4j leaves its sockets to the garbage collector.
    ":ResourceWarning",
    ":pytest.PytestUnraisableExceptionWarning",
    "PySpark does not yet fully support pandas:FutureWarning",
]
INTERPRETED_FILES = {
    "test_bad_input",
    "test_checkpoint_storage",
    "test_edit_in_place",
    "test_hadoop_storage",
    "test_hdfs",
    "test_heap",
    "test_in_use",
    "test_lifecycle",
    "test_long_calls",
    "test_metrics",
    "test_rescale",
    "test_restore_from_spark",
    "test_savepoint",
    "test_scaling",
    "test_supervision",
}
"""Files in which Spark interprets its plans: they are about checkpoints, calls and failures.

All others, above all those that compare rows of every kind of query with those of Spark's own
stores, have Spark compile code, as users do: what keys and values are made of may depend on it.
"""
EXTENDED = pytest.mark.extended
ON_EACH_SPARK = [EXTENDED, pytest.mark.each_spark]
"""Of `test-all` on the newest Spark, and of `test-spark` on the others."""
MakeLane = Callable[..., Lane]
RunOnce = Callable[[Query, str], Lane]
RunReference = Callable[[Query], Lane]
state_in_memory = pytest.mark.skipif(
    PROVIDER == ROCKSDB_BACKEND,
    reason="the rocksdb backend keeps state on local disk, where a restarted query finds it",
)
state_in_files = pytest.mark.skipif(
    PROVIDER == HEAP,
    reason="the heap backend has no files, and nothing of it outlives its driver",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ours: asserts what only this project's provider promises")
    config.addinivalue_line("markers", "each_spark: of `test-spark`, though extended")
    config.addinivalue_line("markers", "needs(feature): runs on a Spark that has it, features.py")
    config.addinivalue_line("markers", "lacks(feature): runs on a Spark that has not got it")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(600))
            for warning in IGNORED_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}"))
            for mark in list(item.iter_markers("needs")):
                if reason := missing(*mark.args):
                    item.add_marker(pytest.mark.skip(reason=reason))
            for mark in list(item.iter_markers("lacks")):
                if not missing(*mark.args):
                    item.add_marker(pytest.mark.skip(reason="this Spark can do it"))
            if not OURS and item.get_closest_marker("ours"):
                item.add_marker(pytest.mark.skip(reason="built-in provider under test"))
        # Tests of a file share an application; those that start more take turns.
        group = "jobs" if _has_own_processes(item) and here in item.path.parents else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
    # The longest ones first, so that two processes end at about the same time.
    items.sort(key=_has_own_processes, reverse=True)


def pytest_exception_interact() -> None:
    """Have the tests after one that failed, perhaps in the middle of a call, begin afresh."""
    abandon_calls()


def _has_own_processes(item: pytest.Item) -> bool:
    """Whether a test starts applications of its own, each for many seconds."""
    return "start_job" in getattr(item, "fixturenames", ()) or item.path.stem in (
        "test_examples",
        "test_wheel",
    )


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    """The jars of the application: test helpers and, unless a built-in is tested, the shim."""
    names = ["queries"] if missing("store-calls") else ["queries", "stores"]
    return [*map(compile_test_jar, names), *([find_jar()] if OURS else [])]


@pytest.fixture(scope="session")
def application_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the shared application's local files and its log, `spark.log`."""
    return tmp_path_factory.mktemp("application")


@pytest.fixture(scope="session")
def spark(jars: list[Path], application_root: Path) -> Iterator[SparkSession]:
    """The shared local application; a lane takes a new session of it with its own confs."""
    session = start_application(application_root, jars)
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def interpreted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has Spark interpret the plans of INTERPRETED_FILES; a lane does as this session does."""
    if request.path.stem not in INTERPRETED_FILES:
        yield
        return
    conf = request.getfixturevalue("spark").conf
    for key, value in INTERPRETED.items():
        conf.set(key, value)
    yield
    for key in INTERPRETED:
        conf.unset(key)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a real HDFS, where its jars can be had."""
    try:
        cluster = HdfsCluster(tmp_path_factory.mktemp("hdfs"))
    except JarsUnreachableError as error:
        pytest.skip(f"the jars of HDFS cannot be fetched: {error}")
    yield cluster.uri
    cluster.stop()


@pytest.fixture(scope="session")
def kafka_jars() -> list[Path]:
    """The jars of the connector; skips the test where they or the broker's cannot be had."""
    try:
        broker_jars()
        return connector_jars()
    except KafkaUnreachableError as error:
        pytest.skip(f"the jars of Kafka cannot be fetched: {error}")


@pytest.fixture(scope="session")
def kafka(kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker."""
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    yield broker.servers
    broker.kill()


@pytest.fixture(scope="module")
def operations_jvm() -> Iterator[None]:
    """One JVM for what the operations of a file open through Hadoop."""
    with closing(HadoopProcess(CLIENT_CONF)) as files, use(files):
        yield


@pytest.fixture
def hdfs_storage(hdfs: str, operations_jvm: None, tmp_path: Path) -> tuple[TreeFileIO, str]:
    """A directory of its own on HDFS."""
    (tmp_path / "fetched").mkdir()
    uri = f"{hdfs}/{uuid.uuid4().hex}"
    return open_storage(uri, str(tmp_path / "fetched"), None, SystemClock())


@pytest.fixture
def make_lane(spark: SparkSession, tmp_path: Path) -> MakeLane:
    """Returns a function that makes a lane, on the provider under test or on another."""
    made = 0

    def make(query: Query, provider: str = PROVIDER, conf: Mapping[str, str] | None = None) -> Lane:
        nonlocal made
        made += 1
        name = f"{made}-{provider.rpartition('.')[2]}"
        return Lane(spark, query, provider, tmp_path / name, conf)

    return make


@pytest.fixture(scope="session")
def run_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RunOnce:
    """Returns a function that runs a query's plan on a provider, once for each."""
    lanes: dict[tuple[str, str], Lane] = {}

    def run(query: Query, provider: str) -> Lane:
        found = lanes.get((query.name, provider))
        if found is None:
            found = Lane(spark, query, provider, tmp_path_factory.mktemp("once"))
            run_plan(found)
            lanes[query.name, provider] = found
        assert found.query == query, "queries of one name must be the same"
        return found

    return run


@pytest.fixture(scope="session")
def run_reference(run_once: RunOnce) -> RunReference:
    """Returns a function that runs a query's plan on Spark's own provider, once for each query."""
    return lambda query: run_once(query, query.built_in)


@pytest.fixture
def unload_all(spark: SparkSession) -> Iterator[Callable[[], None]]:
    """Returns a function that unloads every provider and stops maintenance, also done at the end.

    The next query starts maintenance again, at its own `maintenanceInterval`.
    """
    stores = getattr(spark._jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$")

    def unload() -> None:
        getattr(stores, "MODULE$").stop()

    yield unload
    unload()


@pytest.fixture
def start_job(jars: list[Path], tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Returns a function that starts a job below the test's folder; its processes end with it."""
    jobs: list[Job] = []

    def start(name: str, *, more_jars: Sequence[Path] = (), **arguments: Any) -> Job:
        jobs.append(Job(name, tmp_path / "job", [*jars, *more_jars], **arguments))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()
