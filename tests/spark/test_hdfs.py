"""Checkpoints on a real HDFS: queries on them, and every operation, without and with Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from statestore import (
    Checkpoint,
    Savepoint,
    stop_with_savepoint,
    try_job,
)
from statestore.core.errors import InUseError, InvalidArgumentError, NotFoundError
from statestore.core.providers import PROVIDERS
from statestore.io.file_io import TreeFileIO
from statestore.io.hadoop_process import HadoopProcess, use
from tests.contract.test_tree_io import *  # noqa: F403

from .conftest import EXTENDED, MakeLane, RunReference
from .harness import (
    FILESYSTEM,
    FORMAT_2,
    HDFS,
    NUM_PARTITIONS,
    PROVIDER_CLASS,
    ROCKSDB_BACKEND,
    RUN_TIMEOUT_S,
    Lane,
    Query,
    assert_same,
    wait_for,
)
from .hdfs_cluster import CLIENT_CONF
from .queries import AGGREGATION, JOIN, one_input

pytestmark = [pytest.mark.ours, pytest.mark.usefixtures("operations_jvm")]

FOUR = {"spark.sql.shuffle.partitions": "4"}
SESSION_CONF = {key.removeprefix("spark.hadoop."): value for key, value in CLIENT_CONF.items()}


@pytest.fixture
def place(hdfs_storage: tuple[TreeFileIO, str]) -> tuple[TreeFileIO, str]:
    """What the contract suite of storages with trees, imported above, runs on."""
    return hdfs_storage


@pytest.fixture
def make_hdfs_lane(make_lane: MakeLane, hdfs: str) -> MakeLane:
    """Returns a function that makes a lane whose checkpoint is on HDFS."""

    def make(query: Query, provider: str, conf: Mapping[str, str] | None = None) -> Lane:
        lane = make_lane(query, provider, {**SESSION_CONF, **(conf or {})})
        lane.checkpoint = f"{hdfs}/{uuid.uuid4().hex}/ck"  # type: ignore[assignment]
        return lane

    return make


def _in_order(by_batch: Mapping[int, Any]) -> list[Any]:
    """Values by batch without the batches' numbers: a rescale takes one."""
    return [by_batch[batch] for batch in sorted(by_batch)]


@pytest.mark.parametrize(
    ("provider", "conf", "other"),
    [
        (FILESYSTEM, {}, "rocksdb"),
        pytest.param(ROCKSDB_BACKEND, FORMAT_2, "filesystem", marks=EXTENDED),
    ],
    ids=["filesystem-v1", "rocksdb-v2"],
)
def test_rows_equal_built_in_when_operated_on(
    make_hdfs_lane: MakeLane,
    run_reference: RunReference,
    provider: str,
    conf: Mapping[str, str],
    other: str,
) -> None:
    """Catches an operation that works on local disks and S3 only."""
    query = replace(AGGREGATION, name="operated-on", plan=one_input(2, 1, 1, 1))
    first, second, third, last = query.plan
    lane = make_hdfs_lane(query, provider, {**FOUR, **conf})
    uri = str(lane.checkpoint)

    lane.run(*first)
    Checkpoint(uri).rescale(8)
    Checkpoint(uri).undo_rescale()
    Checkpoint(uri).rescale(6)
    lane.run(*second)
    Checkpoint(uri).rescale(2)
    assert Checkpoint(uri).verify(deep=True).findings == ()
    Checkpoint(uri).expire(2)
    assert Checkpoint(uri).verify(deep=True).findings == ()
    Checkpoint(uri).savepoint(f"{uri}-native", form="native")
    Checkpoint(uri).branch(f"{uri}-branch")
    before = Checkpoint(uri).rows().read().sort_by("key")
    lane.run(*third)
    Checkpoint(uri).savepoint(f"{uri}-canonical")
    Savepoint(f"{uri}-canonical").restore(f"{uri}-restored", backend=other, num_partitions=3)
    lane.checkpoint = f"{uri}-restored"  # type: ignore[assignment]
    lane.conf[PROVIDER_CLASS] = PROVIDERS[other]
    lane.run(*last)

    reference = run_reference(query)
    assert _in_order(lane.batches) == _in_order(reference.batches)
    assert _in_order(lane.counts("numRowsTotal")) == _in_order(reference.counts("numRowsTotal"))
    assert before.num_rows == _in_order(reference.counts("numRowsTotal"))[2][0]
    for copy in ("branch", "native"):
        assert Checkpoint(f"{uri}-{copy}").rows().read().sort_by("key") == before
    assert (
        Checkpoint(lane.checkpoint).rows().read().num_rows
        == _in_order(lane.counts("numRowsTotal"))[-1][0]
    )


@EXTENDED
def test_commands_open_hdfs_by_themselves(make_hdfs_lane: MakeLane) -> None:
    """Catches a command that needs what only a test or a program of Spark has."""
    query = replace(AGGREGATION, plan=one_input(1, 1))
    lane = make_hdfs_lane(query, FILESYSTEM)
    lane.run(*query.plan[0])

    def run(*arguments: str) -> Any:
        conf = [f"--storage-option={key}={value}" for key, value in CLIENT_CONF.items()]
        command = [sys.executable, "-m", "statestore.cli", *arguments, "--output=json", *conf]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert run("rescale", str(lane.checkpoint), "--num-partitions=6", "--yes")["done"]
    lane.run(*query.plan[1])
    assert run("verify", str(lane.checkpoint), "--deep")["findings"] == []


@EXTENDED
def test_query_is_stopped_with_a_savepoint(
    make_hdfs_lane: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a program whose savepoints need another configuration than its queries."""
    query = replace(AGGREGATION, plan=one_input(2))
    lane = make_hdfs_lane(query, FILESYSTEM)
    lane.feed(*query.plan[0])
    handle = lane.start(available_now=False)
    try:
        wait_for(
            lambda: handle.lastProgress and handle.lastProgress["batchId"] == 1,
            "two batches",
            RUN_TIMEOUT_S,
        )
        with pytest.raises(InUseError):
            Checkpoint(lane.checkpoint).rescale(6)
        monkeypatch.setenv("SPARK_HOME", "/nowhere")
        with use(HadoopProcess()):  # which could not start
            taken = stop_with_savepoint(handle, f"{lane.checkpoint}-stopped")
            assert taken.rows().read().num_rows == taken.info.num_rows
            with pytest.raises(NotFoundError, match="spark-submit"):
                Checkpoint(f"{lane.checkpoint}-stopped").rows().read()
    finally:
        handle.stop()
    assert taken.info.version == 2


@EXTENDED
def test_rows_equal_built_in_when_restored_from_it(
    make_hdfs_lane: MakeLane, run_reference: RunReference
) -> None:
    """Catches a restore that leaves what HDFS keeps of a checkpoint behind."""
    query = replace(JOIN, name="restored-on-hdfs")
    lane = make_hdfs_lane(query, HDFS)
    (first, *rest), old = query.plan, str(lane.checkpoint)

    lane.run(*first)
    Checkpoint(old, spark=lane.session()).restore(f"{old}-new")
    lane.checkpoint = f"{old}-new"  # type: ignore[assignment]
    lane.conf[PROVIDER_CLASS] = FILESYSTEM
    for batches in rest:
        lane.run(*batches)

    assert_same(run_reference(query), lane)
    with pytest.raises(InvalidArgumentError, match="checkpoint-exists"):
        Checkpoint(old, spark=lane.session()).restore(f"{old}-new")


@EXTENDED
def test_store_is_opened_without_spark(make_hdfs_lane: MakeLane) -> None:
    """Catches a program without Spark that reads local disks and S3 only."""
    query = replace(AGGREGATION, plan=one_input(1))
    lane = make_hdfs_lane(query, FILESYSTEM)
    lane.run(*query.plan[0])

    num_keys = 0
    for partition in range(NUM_PARTITIONS):
        with Checkpoint(lane.checkpoint).open_store(operator=0, partition=partition) as store:
            num_keys += len(list(store.scan()))
    assert [num_keys] == lane.counts("numRowsTotal")[0]


@EXTENDED
@pytest.mark.timeout(480)
def test_new_code_is_tried_promoted_and_dropped(make_hdfs_lane: MakeLane) -> None:
    """Catches a trial whose branch, rows or promote need a local disk, or S3."""
    query = replace(AGGREGATION, name="tried-on-hdfs", plan=one_input(3, 1))
    lane, reference = make_hdfs_lane(query, FILESYSTEM), make_hdfs_lane(query, HDFS)
    first, second = query.plan
    for each in (lane, reference):
        each.run(*first)
    uri = str(lane.checkpoint)

    dropped = try_job(uri, lane.start, batches=1, trial=f"{uri}-dropped")
    dropped.drop()
    trial = try_job(uri, lane.start, against=lane.start, batches=2)
    assert trial.is_same, str(trial)
    assert [one.of for one in trial.result.compared] == ["batch 1", "batch 2", "state 0"]
    promoted = trial.promote()
    for each in (lane, reference):
        each.run(*second)

    assert lane.batches == reference.batches
    assert Checkpoint(uri).verify(deep=True).findings == ()
    assert Savepoint(promoted.savepoint).info.version == 3
    trial.drop()
    with pytest.raises(NotFoundError, match="no trial"):
        dropped.drop()
