"""What Spark does to a provider around the rows: maintenance, unloading, retries, two instances."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from .conftest import BODY, EXTENDED, MakeLane, state_in_files, state_in_memory
from .harness import (
    FILESYSTEM,
    FORMAT_2,
    HDFS,
    HEAP,
    NUM_PARTITIONS,
    ROCKSDB,
    ROCKSDB_BACKEND,
    RUN_TIMEOUT_S,
    STATE_STORE,
    Lane,
    assert_same,
    engine_calls,
    run_plan,
    wait_for,
)
from .processes import descendants, engines, num_open_files, scratch_directories
from .queries import (
    AGGREGATION,
    GROUP_STATES,
    JOIN,
    WATERMARK_DEDUP,
    WINDOW_APPEND,
    one_input,
    single,
)

PROCESSING_TIME = GROUP_STATES[-1]
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
MAINTENANCE = {f"{STATE_STORE}.maintenanceInterval": "200ms"}
SHORT_CHAINS = {
    f"{STATE_STORE}.snapshot.maxChainLength": "3",
    f"{STATE_STORE}.rocksdb.mergeMinFiles": "3",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


def _versions(lane: Lane, partition: int, kind: str) -> list[int]:
    folder = lane.checkpoint / "state" / "0" / str(partition)
    kinds = (kind, "merged") if kind == "snapshot" else (kind,)
    names = [path.name for kind in kinds for path in folder.glob(f"*.{kind}.{BODY}")]
    return sorted(int(name.split(".")[0].split("_")[0]) for name in names)


@state_in_files
@pytest.mark.ours
def test_maintenance_snapshots_and_deletes_when_instances_overlap(
    make_lane: MakeLane, unload_all: Callable[[], None]
) -> None:
    """Catches maintenance Spark never reaches, and an old instance deleting a new one's files.

    Each restart leaves the stopped run's providers loaded; they go on with maintenance until the
    next tick finds them inactive, beside the new run's providers of the same directories.
    """
    unload_all()
    query = replace(AGGREGATION, plan=one_input(4, 3, 3, 3))
    # The first provider that is loaded, of either lane, sets the interval for all.
    expected = make_lane(query, HDFS, MAINTENANCE)
    candidate = make_lane(query, conf={**MAINTENANCE, **SHORT_CHAINS})

    run_plan(expected, candidate)

    assert_same(expected, candidate)
    newest = sum(map(len, query.plan))
    for partition in range(NUM_PARTITIONS):
        wait_for(lambda: _versions(candidate, partition, "snapshot"), "a snapshot")  # noqa: B023
        wait_for(
            lambda: _versions(candidate, partition, "delta")[0] > 1,  # noqa: B023
            "the first delta deleted",
        )
        assert _versions(candidate, partition, "delta")[-1] == newest
    candidate.run({"events": query.plan[0][0]["events"]})
    expected.run({"events": query.plan[0][0]["events"]})
    assert_same(expected, candidate)


@EXTENDED
@state_in_memory
@pytest.mark.ours
def test_provider_stays_loaded_when_its_maintenance_fails(
    make_lane: MakeLane, unload_all: Callable[[], None], application_root: Path
) -> None:
    """Catches a raise out of maintenance, for which Spark closes a provider: its view is gone."""
    unload_all()
    query = replace(AGGREGATION, plan=one_input(5))
    conf = {**MAINTENANCE, "spark.sql.streaming.minBatchesToRetain": "3"}
    lanes = [make_lane(query, HDFS, conf), make_lane(query, conf=conf)]
    store = lanes[1].checkpoint / "state" / "0" / "1"
    delta, away = store / f"2.delta.{BODY}", store / "away"

    def num_failures() -> int:
        log = (application_root / "spark.log").read_text()
        return log.count(f"maintenance failed: task=cleanup, store=file:{store}\n")

    def damage_the_oldest_to_retain(batch_id: int) -> None:
        if batch_id == 2:
            delta.rename(away)
            delta.write_text("damaged")
        if batch_id == 3:
            wait_for(lambda: num_failures() > 1, "two failures: the provider is still loaded")
            away.replace(delta)

    lanes[1].on_batch = damage_the_oldest_to_retain
    run_plan(*lanes)

    assert_same(*lanes)
    assert {metrics["statestoreLoadedFiles"] for metrics in lanes[1].custom_metrics()} == {0}


@pytest.mark.ours
@pytest.mark.needs("store-calls")
@pytest.mark.parametrize("provider", [FILESYSTEM, HEAP, ROCKSDB_BACKEND])
def test_init_needs_neither_storage_nor_engine(spark: SparkSession, provider: str) -> None:
    """Catches a provider that cannot be made where its store cannot be opened, as on the driver."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    python = conf.get("spark.pyspark.python")
    session = spark.newSession()
    session.conf.set(f"{STATE_STORE}.engine.processes", "3")  # others than those of the lanes
    before = engines(descendants(os.getpid()))

    conf.set("spark.pyspark.python", "/nonexistent/python3")
    try:
        spark._jvm.io.statestore.testing.StoreContract.initialise(
            session._jsparkSession, "hdfs://127.0.0.1:1/state", provider
        )
    finally:
        conf.set("spark.pyspark.python", python)

    assert engines(descendants(os.getpid())) == before


@state_in_files
@state_in_memory
@pytest.mark.ours
@pytest.mark.needs("unload-on-commit")
def test_maintenance_runs_when_unloaded_on_commit(make_lane: MakeLane) -> None:
    """Catches maintenance that only the background threads of Spark start."""
    query = replace(AGGREGATION, plan=one_input(12))
    conf = {f"{STATE_STORE}.unloadOnCommit": "true", **SHORT_CHAINS}
    candidate = make_lane(query, conf=conf)

    run_plan(candidate)

    for partition in range(NUM_PARTITIONS):
        assert _versions(candidate, partition, "snapshot")
        assert _versions(candidate, partition, "delta")[0] > 1


@pytest.mark.ours
@pytest.mark.needs("commit-reports")
def test_snapshot_reports_keep_stores_from_lagging(
    make_lane: MakeLane, unload_all: Callable[[], None], application_root: Path
) -> None:
    """Catches a provider that never tells the driver of snapshots: forced ones on every commit."""
    unload_all()
    query = replace(AGGREGATION, plan=one_input(14))
    lag = {
        f"{STATE_STORE}.multiplierForMinVersionDiffToLog": "1",
        f"{STATE_STORE}.minDeltasForSnapshot": "10",
        f"{STATE_STORE}.multiplierForMinTimeDiffToLog": "1",
        f"{STATE_STORE}.snapshotLagReportInterval": "0ms",
    }
    candidate = make_lane(query, conf={**MAINTENANCE, **SHORT_CHAINS, **lag})

    run_plan(candidate)

    reported = candidate.custom_metrics()[-1]
    names = {f"SnapshotLastUploaded.partition_{p}_default" for p in range(NUM_PARTITIONS)}
    assert names <= reported.keys()
    assert all(reported[name] > 4 for name in names)
    log = (application_root / "spark.log").read_text()
    lagging = [line for line in log.splitlines() if "state stores falling behind" in line]
    assert not [line for line in lagging if not line.endswith(": 0")]


@state_in_memory
@pytest.mark.ours
def test_resources_stay_bounded_when_many_batches_read(make_lane: MakeLane, spark: Any) -> None:
    """Catches read stores kept for ever: Spark never aborts or releases an aggregation's."""
    num_batches = 36
    candidate = make_lane(replace(AGGREGATION, plan=[]))
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    opened: list[int] = []

    def count(batch_id: int) -> None:
        pids = [java, *engines(descendants(os.getpid()))]
        opened.append(sum(num_open_files(pid) for pid in pids))

    candidate.on_batch = count
    (batches,) = one_input(num_batches)
    candidate.run(*batches)

    memory = [sizes[0] for sizes in candidate.counts("memoryUsedBytes").values()]
    assert len(memory) == num_batches
    assert max(memory[-5:]) <= 1.5 * max(memory[5:10])
    # What is kept for ever is open in every later batch; maintenance opens files for a moment.
    assert min(opened[-5:]) <= max(opened[5:10]) + 2 * NUM_PARTITIONS


@pytest.mark.ours
def test_query_goes_on_when_its_local_disk_is_damaged(
    make_lane: MakeLane, application_root: Path
) -> None:
    """Catches a query that fails with each start until its JVM ends, though no file is damaged."""
    no_cache = {f"{STATE_STORE}.rocksdb.rowCacheBytes": "0"}
    lanes = [make_lane(AGGREGATION, HDFS), make_lane(AGGREGATION, ROCKSDB_BACKEND, conf=no_cache)]
    *first, then = [batch for run in AGGREGATION.plan for batch in run][:3]
    for lane in lanes:
        lane.run(*first)
    tables = [
        table
        for directory in scratch_directories(application_root)
        for table in directory.rglob("*.sst")
    ]
    for table in tables:
        with table.open("r+b") as file:
            file.write(bytes(64))
    assert tables

    for lane in lanes:
        lane.run(then)

    told = (application_root / "spark.log").read_text()
    assert "the state on the local disk is damaged, and built anew" in told
    assert lanes[0].batches == lanes[1].batches


@pytest.mark.needs("commit-reports")
@pytest.mark.parametrize("query", [AGGREGATION, JOIN], ids=lambda query: query.name)
def test_commits_are_validated_by_default(make_lane: MakeLane, query: Any) -> None:
    """Catches commits not reported to the driver, which foreachBatch makes a failed query."""
    candidate = make_lane(query)
    session = candidate.session()

    assert session.conf.get(f"{STATE_STORE}.commitValidation.enabled") == "true"
    candidate.run(*query.plan[0])

    # A watermark that has moved may have made one more, without input.
    assert candidate.batches.keys() >= set(range(len(query.plan[0])))


@pytest.mark.parametrize(
    ("query", "conf"),
    [
        (AGGREGATION, {}),
        pytest.param(WINDOW_APPEND, FORMAT_2, marks=EXTENDED),
        pytest.param(JOIN, {}, marks=EXTENDED),
        (JOIN, FORMAT_2),
    ],
    ids=["aggregation", "window-format-2", "join", "join-format-2"],
)
def test_rows_equal_when_a_batch_fails_after_its_state_commit(
    make_lane: MakeLane, query: Any, conf: dict[str, str]
) -> None:
    """Catches a restart that builds on the failed attempt's version instead of the one before."""
    lanes = [make_lane(query, HDFS), make_lane(query, conf=conf)]
    batches = [batch for run in query.plan for batch in run][:3]

    for lane in lanes:
        lane.run(*batches[:1])
        lane.on_batch = _fail_first_attempts(lane, num_batches=2)
        lane.feed(*batches[1:])
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match="the sink fails once"):
                lane.run()
        lane.run()

    assert list(lanes[1].attempts.values()).count(2) == 2
    assert lanes[0].batches == lanes[1].batches


def _fail_first_attempts(lane: Lane, num_batches: int) -> Callable[[int], None]:
    left = num_batches

    def on_batch(batch_id: int) -> None:
        nonlocal left
        if left and lane.attempts[batch_id] == 1:
            left -= 1
            message = "the sink fails once"
            raise RuntimeError(message)

    return on_batch


def test_rows_equal_when_a_sink_computes_each_batch_twice(make_lane: MakeLane) -> None:
    """Catches a version that cannot be asked again after its successor was committed."""
    lanes = [make_lane(AGGREGATION, HDFS), make_lane(AGGREGATION)]

    for lane in lanes:
        collect = lane._collect
        lane._collect = lambda frame, batch_id, collect=collect: (  # type: ignore[method-assign]
            collect(frame, batch_id),
            collect(frame, batch_id),
        )
    run_plan(*lanes)

    assert set(lanes[1].attempts.values()) == {2}
    assert_same(*lanes)


@pytest.mark.ours
@pytest.mark.parametrize(
    ("provider", "conf"),
    [
        pytest.param(FILESYSTEM, {}, id="filesystem-v1", marks=EXTENDED),
        pytest.param(FILESYSTEM, FORMAT_2, id="filesystem-v2"),
        pytest.param(HEAP, {}, id="heap-v1"),
        pytest.param(HEAP, FORMAT_2, id="heap-v2", marks=EXTENDED),
        pytest.param(ROCKSDB_BACKEND, {}, id="rocksdb-v1"),
        pytest.param(ROCKSDB_BACKEND, FORMAT_2, id="rocksdb-v2"),
    ],
)
@pytest.mark.few(2)
def test_nothing_is_loaded_when_a_sink_computes_each_batch_twice(
    make_lane: MakeLane, spark: SparkSession, provider: str, conf: dict[str, str]
) -> None:
    """Catches a load of all the state in every batch.

    The second action asks for the version before; in format 2 the next batch then asks for the
    version by the first action's checkpoint ID.
    """
    query = replace(AGGREGATION, plan=one_input(5))
    lanes = [make_lane(query, ROCKSDB, conf), make_lane(query, provider, conf)]
    loads: list[int] = []
    for lane in lanes:
        collect = lane._collect
        lane._collect = lambda frame, batch_id, collect=collect: (  # type: ignore[method-assign]
            collect(frame, batch_id),
            collect(frame, batch_id),
        )
    lanes[1].on_batch = lambda batch_id: loads.append(engine_calls(spark)["load"])

    run_plan(*lanes)

    assert set(lanes[1].attempts.values()) == {2}
    assert_same(*lanes)
    assert len(set(loads)) == 1, "loads after the first action of the first batch"
    metrics = lanes[1].custom_metrics()
    assert {batch["statestoreRollBacks"] for batch in metrics} == {NUM_PARTITIONS}
    assert {batch["statestoreLoadedFiles"] for batch in metrics} == {0}


@pytest.mark.parametrize("after_commit", [False, True], ids=["before-commit", "after-commit"])
@pytest.mark.parametrize(
    "query",
    [
        pytest.param(AGGREGATION, id="aggregation"),
        pytest.param(WATERMARK_DEDUP, id="watermark-dedup", marks=EXTENDED),
    ],
)
def test_rows_equal_when_every_task_is_tried_twice(
    make_lane: MakeLane, query: Any, after_commit: bool
) -> None:
    """Catches writes of a failed task that its retry, in the same provider instance, can see."""
    short = replace(query, plan=one_input(1, 2))
    failing = replace(short, build=_failing(query.build, after_commit))
    lanes = [make_lane(short, HDFS), make_lane(failing)]

    run_plan(*lanes)

    assert lanes[1].failed_tasks > 0
    assert_same(*lanes)


def _failing(build: Any, after_commit: bool) -> Any:
    """Make each task of the last stage fail at its first attempt, before or after its commit.

    A stateful operator commits when its output is drained, so a task that fails once its input has
    ended fails after the commit.
    """

    def build_failing(session: SparkSession, streams: Any) -> DataFrame:
        tasks = session._jvm.io.statestore.testing.FailingTasks
        frame = build(session, streams)
        return DataFrame(tasks.failFirstAttempt(frame._jdf, after_commit), session)

    return build_failing


def test_rows_equal_when_a_task_fails_on_a_row(make_lane: MakeLane) -> None:
    """Catches half of a batch's writes surviving a query that failed on a bad record."""

    def build(events: DataFrame) -> DataFrame:
        checked = events.selectExpr(
            "key",
            "ts",
            "IF(value = 777777, CAST(raise_error('bad record') AS BIGINT), value) value",
        )
        return checked.groupBy("key").sum("value")

    query = single("aggregation-bad-record", "update", build, one_input(2, 1, 1))
    lanes = [make_lane(query, HDFS), make_lane(query)]
    first, last = query.plan[0], [batch for run in query.plan[1:] for batch in run]
    bad_row = {**first[0]["events"][0], "value": 777777}

    for lane in lanes:
        lane.run(*first)
        lane.feed({"events": [*last[0]["events"], bad_row]})
        with pytest.raises(StreamingQueryException, match="bad record"):
            lane.run()
        bad_file = lane.root / "input" / "events" / "00002.json"
        bad_file.write_text(bad_file.read_text().replace("777777", "7"))
        lane.run(*last)

    assert_same(*lanes)


@pytest.mark.ours
def test_no_scratch_file_stays_when_batches_are_done(
    make_lane: MakeLane, application_root: Path
) -> None:
    """Catches deltas left in the scratch directory after the engine has published them."""
    candidate = make_lane(AGGREGATION)

    run_plan(candidate)

    folders = scratch_directories(application_root)
    assert folders, "no scratch directory below java.io.tmpdir or spark.local.dir"
    wait_for(
        lambda: not [path for folder in folders for path in folder.glob("delta*")],
        "the scratch directories empty of deltas",
    )


@EXTENDED
@pytest.mark.ours
def test_query_that_does_not_end_as_asked_is_a_warning(
    make_lane: MakeLane, application_root: Path
) -> None:
    """Catches a query with processing time that runs for ever under availableNow without a word."""
    lane = make_lane(PROCESSING_TIME, conf={NO_DATA_BATCHES: "true"})
    lane.feed(*PROCESSING_TIME.plan[0])

    handle = lane.start()
    try:
        wait_for(lambda: max(lane.batches, default=0) > 5, "no input", RUN_TIMEOUT_S)
        assert handle.isActive
    finally:
        handle.stop()
    lane.conf[NO_DATA_BATCHES] = "false"
    lane.run(*PROCESSING_TIME.plan[1])

    lines = (application_root / "spark.log").read_text().splitlines()
    (warning,) = [line for line in lines if str(lane.checkpoint) in line and "for ever" in line]
    assert f"To fix: set {NO_DATA_BATCHES} to false" in warning
