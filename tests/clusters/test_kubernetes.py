"""Queries in pods, by Kubernetes or a stand-in for it, with what may be killed killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statestore.core.options import PREFIX
from tests.seaweed import find_weed

from . import real_kubernetes, seaweed
from .cluster import LIGHT_JVM, is_engine
from .kubernetes import Kubernetes, why_not
from .query import Input
from .real_kubernetes import RealKubernetes
from .record import Row

FORMAT = {f"{PREFIX}checkpointFormatVersion": "2"}
OVERHEAD = "spark.executor.memoryOverhead"


@pytest.fixture(scope="module")
def cluster(cluster_directory: Path) -> Iterator[Kubernetes]:
    if reason := why_not():
        pytest.skip(f"no pods: {reason}")
    is_real = bool(os.environ.get(real_kubernetes.BINARY))
    if is_real and (reason := real_kubernetes.why_not()):
        pytest.skip(f"no Kubernetes: {reason}")
    others, folders = seaweed.host_where_installed(cluster_directory)
    kind = RealKubernetes if is_real else Kubernetes
    cluster = kind(cluster_directory, others, folders)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.skipif(find_weed() is None, reason="SeaweedFS is not installed")
def test_state_on_s3_is_right_when_pods_and_engines_end(
    cluster: Kubernetes, record: Callable[[Row], None]
) -> None:
    """Catches a row lost or doubled, and what stays of a pod or an engine that was killed."""
    seaweed.start(cluster)
    here, there = cluster.make_folder("killed")
    events = Input(here / "input")
    events.add(5)
    paths = [str(there / name) for name in ("input", "sink", "checkpoint")]
    conf = seaweed.conf(cluster) | FORMAT
    where = {f"{PREFIX}checkpointStorage": f"s3://{seaweed.BUCKET}/pods"}
    began_s = time.monotonic()

    first = cluster.run("killed-1", [*paths, "3"], {**conf, **where})
    first.await_tasks(1)
    cluster.delete_pod("killed-1-exec-1")
    first.await_tasks(3)
    cluster.kill_in_pod("killed-1-exec-2", is_engine)
    first.await_end()
    cluster.await_nothing_left()
    events.add(3)
    second = cluster.run("killed-2", [*paths, "0"], conf)
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
            mode=f"cluster, {cluster.KIND}",
            storage="S3 (SeaweedFS)",
            backend="rocksdb, format 2",
            killed="executor's pod, by deleting it; engine in a pod",
            batches="5 + 3",
            keys=keys,
        )
    )


def test_query_goes_on_after_its_pods_were_too_small(
    cluster: Kubernetes, record: Callable[[Row], None]
) -> None:
    """Catches a pod whose engines its limit does not count, and state that its end would spoil."""
    here, there = cluster.make_folder("small")
    events = Input(here / "input")
    events.add(4)
    paths = [str(there / name) for name in ("input", "sink", "checkpoint")]
    began_s = time.monotonic()

    touched = {"spark.executor.extraJavaOptions": f"{LIGHT_JVM} -XX:+AlwaysPreTouch"}
    small = cluster.run("small-1", [*paths, "0"], FORMAT | touched, {OVERHEAD: "150m"})
    small.await_text(r"executor with id (\d+) exited .* possible container OOM", times=3)
    assert "termination reason: OOMKilled" in small.text()
    cluster.delete_pod("small-1-driver")
    cluster.await_nothing_left()
    right = cluster.run("small-2", [*paths, "0"], FORMAT)
    right.await_end()
    cluster.await_nothing_left()

    seconds = time.monotonic() - began_s
    keys = cluster.check(events, here / "sink", str(here / "checkpoint"))
    record(
        Row.of(
            seconds,
            small,
            right,
            mode=f"cluster, {cluster.KIND}",
            storage="volume",
            backend="rocksdb, format 2",
            killed="3 pods, by their memory limit (OOMKilled); the driver's pod, by deleting it",
            batches="0 + 4",
            keys=keys,
        )
    )


def test_doctor_asks_every_pod(cluster: Kubernetes) -> None:
    """Catches a check of the machine that asks, where the Python of a pod is the image's."""
    here, there = cluster.make_folder("doctor")
    conf = cluster.client_conf("doctor")

    hosts = cluster.doctor(conf, f"--storage={there}", environment=cluster.environment())
    cluster.await_nothing_left()

    assert hosts == {"doctor-exec-1", "doctor-exec-2"}
    assert list(here.iterdir()) == []
