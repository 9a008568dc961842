"""Queries on YARN in both deploy modes, state on HDFS, with containers killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statestore.core.options import PREFIX
from tests.spark.hdfs_cluster import JarsUnreachableError

from .cluster import SYSTEM_PYTHON, WORKERS, runs
from .query import Input
from .record import Row
from .yarn import EXECUTOR, HDFS, Yarn

FORMAT = {f"{PREFIX}checkpointFormatVersion": "2"}
NO_LEASE = "Without it operations may take the query for stopped"
"""What a driver says that has no engine."""
DYNAMIC = {
    f"spark.dynamicAllocation.{name}": value
    for name, value in {
        "enabled": "true",
        "shuffleTracking.enabled": "true",
        "shuffleTracking.timeout": "3s",
        "minExecutors": "1",
        "maxExecutors": "3",
        "executorIdleTimeout": "3s",
        "schedulerBacklogTimeout": "1s",
        "sustainedSchedulerBacklogTimeout": "1s",
    }.items()
}


@pytest.fixture(scope="module")
def cluster(cluster_directory: Path) -> Iterator[Yarn]:
    try:
        cluster = Yarn(cluster_directory)
    except JarsUnreachableError as error:
        pytest.skip(f"the jars of YARN cannot be fetched: {error}")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_rows_are_right_in_both_modes_when_containers_are_killed(
    cluster: Yarn, record: Callable[[Row], None]
) -> None:
    """Catches a row lost or doubled, and what stays of a container that was killed."""
    here, there = cluster.make_folder("killed")
    events = Input(here / "input")
    events.add(5)
    paths = [f"file://{there}/input", f"file://{there}/sink", f"{HDFS}/killed"]
    began_s = time.monotonic()

    conf = {**FORMAT, **DYNAMIC, "spark.executor.cores": "1"}
    first = cluster.run("killed-1", "cluster", "rocksdb", [*paths, "4"], conf)
    first.await_tasks(1, task=1)
    cluster.kill(WORKERS, runs(EXECUTOR))
    first.await_tasks(3, task=1)
    cluster.kill(WORKERS, runs(EXECUTOR))
    first.await_end()
    cluster.await_nothing_left()
    events.add(3)
    two = {"spark.executor.instances": "2", "spark.executor.cores": "2"}
    second = cluster.run("killed-2", "client", "rocksdb", [*paths, "0"], {**FORMAT, **two})
    second.await_tasks(6)
    cluster.kill(WORKERS, runs(EXECUTOR))
    second.await_end()
    cluster.await_nothing_left()

    seconds = time.monotonic() - began_s
    assert NO_LEASE not in second.text()
    keys = cluster.check(events, here / "sink", f"{HDFS}/killed")
    record(
        Row.of(
            seconds,
            first,
            second,
            mode="cluster, then client",
            storage="HDFS",
            backend="rocksdb, format 2",
            killed="3 containers; executors came and went (dynamic allocation)",
            batches="5 + 3",
            keys=keys,
        )
    )


def test_doctor_asks_the_executors_of_every_host(cluster: Yarn) -> None:
    """Catches a Python that is sought where the driver is, and not beside each executor."""
    conf = {**cluster.conf("client"), "spark.executor.instances": "2"}

    # They need not be on two hosts.
    assert cluster.doctor(conf, environment=cluster.environment()) <= set(WORKERS)


def test_container_ends_when_its_engine_takes_too_much(
    cluster: Yarn, record: Callable[[Row], None]
) -> None:
    """Catches an engine that YARN does not count, and a query that its end would stop.

    The driver has a Python without the packages of an engine: it says once that it has no lease.
    """
    here, there = cluster.make_folder("hungry")
    events = Input(here / "input")
    events.add(6)
    paths = [f"file://{there}/input", f"file://{there}/sink", f"{HDFS}/hungry"]
    began_s = time.monotonic()

    conf = {
        **FORMAT,
        "spark.executor.instances": "2",
        "spark.executor.cores": "2",
        "spark.pyspark.driver.python": SYSTEM_PYTHON,
    }
    job = cluster.run("hungry", "client", "filesystem", [*paths, "3"], conf)
    job.await_batch(1)
    host = cluster.have_an_engine_eat()
    job.await_end()
    cluster.await_nothing_left()

    seconds = time.monotonic() - began_s
    assert "beyond the 'PHYSICAL' memory limit" in cluster.log("NodeManager", host)
    assert job.text().count(NO_LEASE) == 1
    keys = cluster.check(events, here / "sink", f"{HDFS}/hungry")
    record(
        Row.of(
            seconds,
            job,
            mode="client",
            storage="HDFS",
            backend="filesystem, format 2",
            killed="container, by YARN: its engine took 2 GiB",
            batches="6",
            keys=keys,
        )
    )
