"""Queries on Spark's own cluster manager, with what may be killed killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statestore.core.options import PREFIX
from tests.seaweed import find_weed

from . import seaweed
from .cluster import WORKERS, is_engine
from .hosts import MOUNTS
from .query import Input
from .record import Row
from .standalone import URL, Standalone

FILES = 8
MORE_FILES = 4
FORMAT = f"{PREFIX}checkpointFormatVersion"


@pytest.fixture(scope="module")
def cluster(cluster_directory: Path) -> Iterator[Standalone]:
    others, folders = seaweed.host_where_installed(cluster_directory)
    cluster = Standalone(cluster_directory, others, folders)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.parametrize(("backend", "checkpoint_format"), [("filesystem", "1"), ("rocksdb", "2")])
def test_rows_are_right_after_kills_and_in_the_next_application(
    cluster: Standalone, backend: str, checkpoint_format: str, record: Callable[[Row], None]
) -> None:
    """Catches a row lost or doubled, and what a killed process leaves on its host."""
    one, other = WORKERS
    here, there = cluster.make_folder(backend)
    events = Input(here / "input")
    events.add(FILES)
    paths = [str(there / name) for name in ("input", "sink", "checkpoint")]
    conf = {FORMAT: checkpoint_format}
    began_s = time.monotonic()

    first = cluster.run(f"{backend}-1", backend, [*paths, "2"], conf)
    first.await_tasks(2)
    cluster.kill_executor(one)
    first.await_tasks(4)
    cluster.kill_worker(other)
    await_worker = cluster.start_worker(other)
    first.await_tasks(6)
    cluster.kill([one], is_engine)
    await_worker()
    first.await_end()
    cluster.await_nothing_left()
    events.add(MORE_FILES)
    second = cluster.run(f"{backend}-2", backend, [*paths, "0"], conf)
    second.await_end()
    cluster.await_nothing_left()

    seconds = time.monotonic() - began_s
    keys = cluster.check(events, here / "sink", str(here / "checkpoint"))
    assert first.num_lost_tasks() > 0
    record(
        Row.of(
            seconds,
            first,
            second,
            mode="client",
            storage="shared directory",
            backend=f"{backend}, format {checkpoint_format}",
            killed="executor, worker daemon, engine",
            batches=f"{FILES} + {MORE_FILES}",
            keys=keys,
        )
    )


@pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed")
def test_state_on_s3_is_found_again_by_the_next_application(
    cluster: Standalone, record: Callable[[Row], None]
) -> None:
    """Catches a real S3 server that is asked for what only an imitation does."""
    seaweed.start(cluster)
    here, there = cluster.make_folder("s3")
    events = Input(here / "input")
    events.add(5)
    paths = [str(there / name) for name in ("input", "sink", "checkpoint")]
    conf = seaweed.conf(cluster)
    conf[FORMAT] = "2"
    began_s = time.monotonic()

    where = {f"{PREFIX}checkpointStorage": f"s3://{seaweed.BUCKET}/queries"}
    first = cluster.run("s3-1", "rocksdb", [*paths, "0.3"], {**conf, **where})
    first.await_tasks(2)
    cluster.kill_executor(WORKERS[0])
    first.await_end()
    events.add(3)
    second = cluster.run("s3-2", "rocksdb", [*paths, "0"], conf)
    second.await_end()
    cluster.await_nothing_left()

    seconds = time.monotonic() - began_s
    keys = cluster.check(
        events, here / "sink", str(here / "checkpoint"), *seaweed.command_line(cluster)
    )
    record(
        Row.of(
            seconds,
            first,
            second,
            mode="client",
            storage="S3 (SeaweedFS)",
            backend="rocksdb, format 2",
            killed="executor",
            batches="5 + 3",
            keys=keys,
        )
    )


def test_doctor_asks_the_executors_of_every_host(cluster: Standalone) -> None:
    """Catches a check of the machine that asks, which has what the others lack."""
    here, _ = cluster.make_folder("doctor")
    shared = f"{MOUNTS}/shared/doctor"
    conf = {"spark.master": URL, "spark.pyspark.python": f"{MOUNTS}/python/bin/python"}

    assert cluster.doctor(conf, f"--storage={shared}") == set(WORKERS)
    assert list(here.iterdir()) == []
