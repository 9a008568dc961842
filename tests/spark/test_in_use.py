"""Leases of real queries: a checkpoint is in use while its query runs, idle or not, and no longer.

What becomes of the leases of killed drivers and executors is in test_cluster.py.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from statestore.checkpoint.lease import Leases
from statestore.core.errors import InUseError
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import exclusive_use

from .conftest import MakeLane
from .harness import STATE_STORE, Lane, wait_for
from .processes import descendants, engines
from .queries import AGGREGATION, one_input

pytestmark = pytest.mark.ours

INTERVAL_MS = 500


@pytest.fixture
def lane(make_lane: MakeLane) -> Lane:
    """A query whose lease is renewed often."""
    query = replace(AGGREGATION, plan=one_input(2, 1, 1))
    return make_lane(query, conf={f"{STATE_STORE}.lease.intervalMs": str(INTERVAL_MS)})


def _leases(lane: Lane) -> Leases:
    return Leases(LocalFileIO(), f"{lane.checkpoint}/state")


def _change(lane: Lane) -> None:
    """Do nothing to the checkpoint, as an operation."""
    with open_checkpoint(str(lane.checkpoint)) as checkpoint, exclusive_use(checkpoint, "rescale"):
        pass


def _renewals(lane: Lane) -> set[int]:
    return {info.modified_ms for info in _leases(lane).list().values()}


def test_running_query_is_in_use_until_it_stops(lane: Lane, spark: SparkSession) -> None:
    """Catches an idle query that is overlooked, and a stopped one that is not forgotten."""
    first, second, third = lane.query.plan
    lane.feed(*first)
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: len(lane.batches) == len(first), "the batches", timeout_s=60)
        wait_for(lambda: not handle.status["isTriggerActive"], "an idle query")

        with pytest.raises(InUseError) as caught:
            _change(lane)

        fields = caught.value.fields
        assert caught.value.kind == "checkpoint-in-use"
        assert (fields["run"], fields["executor"]) == (str(handle.runId), "driver")
        assert fields["application"] == spark.sparkContext.applicationId
        jvm: Any = spark._jvm
        assert fields["pid"] == jvm.java.lang.ProcessHandle.current().pid()

        # Readers see no state in the leases, and take none.
        reader = lane.session().read
        metadata = reader.format("state-metadata").load(str(lane.checkpoint))
        assert [row.operatorId for row in metadata.collect()] == [0]
        assert reader.format("statestore").load(str(lane.checkpoint)).count() > 0
        held = [_leases(lane).read(name) for name in _leases(lane).list()]
        assert [lease.holder.run for lease in held if lease] == [str(handle.runId)]

        # The lease is the query's, whatever becomes of an engine.
        for pid in engines(descendants(os.getpid())):
            os.kill(pid, signal.SIGKILL)
        before = _renewals(lane)
        wait_for(lambda: _renewals(lane) - before, "a renewal by another engine")
    finally:
        handle.stop()

    _change(lane)
    assert _leases(lane).list() == {}

    with open_checkpoint(str(lane.checkpoint)) as checkpoint, exclusive_use(checkpoint, "rescale"):
        with pytest.raises(StreamingQueryException, match="checkpoint-under-operation"):
            lane.run(*second)
        (name,) = _leases(lane).list()
        assert name.startswith("operation-")

    lane.run(*third)
    assert len(lane.batches) == sum(map(len, lane.query.plan))
    wait_for(lambda: not _leases(lane).list(), "the end of the lease")


@pytest.mark.parametrize("unload", [False, True], ids=["keeps-stores", "unloads-stores"])
def test_lease_is_written_once_an_interval(make_lane: MakeLane, unload: bool) -> None:
    """Catches a lease for every store, task or batch, and one that depends on loaded providers."""
    query = replace(AGGREGATION, plan=one_input(4))
    lane = make_lane(query, conf={f"{STATE_STORE}.unloadOnCommit": str(unload).lower()})
    seen: dict[str, set[int]] = {}

    def look(batch_id: int) -> None:
        for name, info in _leases(lane).list().items():
            seen.setdefault(name, set()).add(info.modified_ms)

    lane.on_batch = look
    began = time.monotonic()
    lane.run(*query.plan[0])
    num_renewals = int((time.monotonic() - began) / 10)
    wait_for(lambda: not _leases(lane).list(), "the end of the lease")

    (times,) = seen.values()
    assert 1 <= len(times) <= 1 + num_renewals
