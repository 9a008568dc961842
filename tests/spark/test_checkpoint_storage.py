"""State on S3 while Spark's own files are on the disk: restarts, requests, faults."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import statestore
from statestore import Checkpoint, NoRestart
from tests.s3_server import REGION, WRONG_KEY

from .conftest import BODY, MakeLane, state_in_files
from .harness import (
    HDFS,
    NUM_PARTITIONS,
    RUN_TIMEOUT_S,
    STATE_STORE,
    Lane,
    assert_same,
    run_plan,
    wait_for,
)
from .queries import AGGREGATION, JOIN, one_input, two_inputs

pytestmark = pytest.mark.ours

FORMAT = f"{STATE_STORE}.checkpointFormatVersion"
STORAGE = f"{STATE_STORE}.checkpointStorage"
SECRET = "not-to-be-seen"  # noqa: S105


@pytest.fixture
def conf(s3_server: Any, bucket: str) -> dict[str, str]:
    """Configuration of a query whose state is in a new bucket."""
    options = {
        "checkpointStorage": f"s3://{bucket}/state of/queries",
        "s3.endpoint": s3_server.endpoint,
        "s3.region": REGION,
        "s3.pathStyle": "true",
        "s3.accessKey": "test",
        "s3.secretKey": SECRET,
        "s3.maxAttempts": "3",
    }
    return {f"{STATE_STORE}.{key}": value for key, value in options.items()}


def _state(lane: Lane) -> list[str]:
    reader = lane.session().read.format("statestore").load(str(lane.checkpoint))
    return sorted(repr(row) for row in reader.collect())


@state_in_files
@pytest.mark.parametrize(
    ("query", "version"),
    [
        (replace(AGGREGATION, plan=one_input(2, 1, 1)), "1"),
        (replace(JOIN, plan=two_inputs(1, 1)), "2"),
    ],
    ids=["aggregation-v1", "join-v2"],
)
def test_rows_equal_built_in_when_restarted_with_and_without_the_key(
    make_lane: MakeLane, conf: dict[str, str], s3_server: Any, bucket: str, query: Any, version: str
) -> None:
    """Catches state that a restart does not find, or that is written beside Spark's files."""
    reference, lane = make_lane(query, HDFS), make_lane(query, conf={**conf, FORMAT: version})
    run_plan(reference)

    for number, batches in enumerate(query.plan):
        if number == len(query.plan) - 1:
            del lane.conf[STORAGE]
        lane.run(*batches)

    assert_same(reference, lane)
    assert not list(lane.checkpoint.rglob(f"*.{BODY}"))
    assert [key for key in s3_server.keys(bucket) if key.endswith(f".delta.{BODY}")]
    if query.name == AGGREGATION.name:
        assert _state(lane) == _state(reference)
        options = {key.removeprefix(f"{STATE_STORE}."): value for key, value in conf.items()}
        del options["checkpointStorage"]  # of the checkpoint's
        checkpoint = Checkpoint(lane.checkpoint, storage_options=options)
        assert checkpoint.sql("FROM state").read().num_rows == len(_state(reference))


@state_in_files
def test_query_without_a_checkpoint_leaves_nothing_on_the_storage(
    make_lane: MakeLane, tmp_path: Path
) -> None:
    """Catches state of queries that nobody can start again, and that nothing deletes."""
    lane = make_lane(AGGREGATION, conf={STORAGE: str(tmp_path / "storage")})
    session = lane.session()
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "one.json").write_text('{"key": "a"}\n{"key": "b"}\n{"key": "a"}\n')
    counts = session.readStream.schema("key STRING").json(str(tmp_path / "rows"))
    writer = counts.groupBy("key").count().writeStream.outputMode("complete")

    query = writer.format("memory").queryName("counts").trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(RUN_TIMEOUT_S)
    finally:
        query.stop()

    assert sorted(map(tuple, session.table("counts").collect())) == [("a", 2), ("b", 1)]
    assert not (tmp_path / "storage").exists()


@state_in_files
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_batch_is_one_put_a_store(
    make_lane: MakeLane,
    conf: dict[str, str],
    s3_server: Any,
    version: str,
    unload_all: Callable[[], None],
) -> None:
    """Catches requests nobody needs, and metrics that are not what the server was asked."""
    query = replace(AGGREGATION, plan=one_input(5))
    unload_all()  # and with that the maintenance that others began, which lists and reads
    in_peace = {f"{STATE_STORE}.maintenanceInterval": "1h"}
    lane = make_lane(query, conf={**conf, **in_peace, FORMAT: version})
    asked: dict[int, Counter[str]] = {}
    lane.before_batch = lambda batch_id: asked.update({batch_id: Counter(s3_server.requests)})

    run_plan(lane)

    # Format v1 names a version the same in every attempt: only a look tells whose it is.
    num_gets = NUM_PARTITIONS if version == "1" else 0
    for batch_id in range(1, 4):
        made = asked[batch_id + 1] - asked[batch_id]
        assert made == Counter(PUT=NUM_PARTITIONS, GET=num_gets)
        metrics = lane.custom_metrics()[batch_id]
        kinds = {name: metrics[f"statestoreStorage{name}s"] for name in (
            "Put", "Get", "Head", "List", "Delete")}  # fmt: skip
        assert kinds == {"Put": NUM_PARTITIONS, "Get": num_gets, "Head": 0, "List": 0, "Delete": 0}


@state_in_files
def test_partitions_commit_side_by_side(
    make_lane: MakeLane, conf: dict[str, str], s3_server: Any
) -> None:
    """Catches commits of one executor that wait for each other's round trip."""
    num_partitions = 32
    conf = {**conf, "spark.sql.shuffle.partitions": str(num_partitions)}
    lane = make_lane(replace(AGGREGATION, plan=one_input(1, 1)), conf=conf)
    lane.run(*lane.query.plan[0])
    s3_server.delay_s = 0.05
    s3_server.most_at_once.clear()

    lane.run(*lane.query.plan[1])

    assert lane.custom_metrics()[-1]["statestoreStoragePuts"] >= num_partitions
    assert s3_server.most_at_once["PUT"] == 2  # as many as the application runs tasks at a time


@state_in_files
def test_wrong_settings_are_refused_by_name_and_leave_no_mark(
    make_lane: MakeLane,
    conf: dict[str, str],
    s3_server: Any,
    bucket: str,
    application_root: Path,
) -> None:
    """Catches retries without hope, errors without a name, secrets in logs, spoilt checkpoints."""
    query = replace(AGGREGATION, plan=one_input(1, 1))
    reference, lane = make_lane(query, HDFS), make_lane(query, conf=conf)
    run_plan(reference)
    lane.feed(*query.plan[0])

    def refusal(**options: str) -> str:
        before = lane.conf
        lane.conf = {**before, **{f"{STATE_STORE}.{key}": options[key] for key in options}}
        s3_server.requests.clear()
        try:
            with pytest.raises(StreamingQueryException) as raised:
                lane.run()
        finally:
            lane.conf = before
        # Each of the tasks that run at a time may fail, and be tried again once. Each attempt asks
        # whose the state is, and for the state; the driver's lease of the query asks the former.
        assert s3_server.requests.total() <= 2 * 2 * NUM_PARTITIONS + 1
        assert "To fix: " in str(raised.value)
        return str(raised.value)

    wrong = {"s3.accessKey": WRONG_KEY}
    assert "[permission-denied]" in refusal(**wrong)
    assert "no-such-bucket" in refusal(checkpointStorage="s3://no-such-bucket/a")
    lane.run()
    lane.feed(*query.plan[1])
    assert "[permission-denied]" in refusal(**wrong)
    changed = refusal(checkpointStorage=f"s3://{bucket}/other")
    assert "[storage-changed]" in changed
    assert conf[STORAGE] in changed
    lane.run()

    assert_same(reference, lane)
    assert SECRET not in (application_root / "spark.log").read_text()


@state_in_files
def test_savepoint_of_a_running_query_has_the_options_of_its_session(
    make_lane: MakeLane, conf: dict[str, str], bucket: str
) -> None:
    """Catches savepoints beside a query that know nothing of the endpoint that it was given."""
    query = replace(AGGREGATION, plan=one_input(1))
    lane = make_lane(query, conf=conf)
    lane.feed(*query.plan[0])
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: handle.lastProgress and handle.lastProgress["batchId"] == 0, "a batch")
        every = statestore.Every(3600, f"s3a://{bucket}/kept")
        with every.beside() as follow:
            follow(handle)
            at = Checkpoint(lane.checkpoint, spark=lane.session())
            (kept,) = wait_for(lambda: at.savepoints(f"s3a://{bucket}/kept"), "a savepoint")
        taken = statestore.stop_with_savepoint(handle, f"s3a://{bucket}/stopped")
    finally:
        handle.stop()

    for savepoint in (kept, taken):
        assert savepoint.rows().read().num_rows == savepoint.info.num_rows > 0


@state_in_files
def test_query_on_a_copied_directory_does_not_write_the_state_of_the_original(
    make_lane: MakeLane, conf: dict[str, str], s3_server: Any, bucket: str
) -> None:
    """Catches two queries over one state, and a directory that is refused by its other name."""
    query = replace(AGGREGATION, plan=one_input(1, 1, 1))
    reference, lane = make_lane(query, HDFS), make_lane(query, conf=conf)
    run_plan(reference)
    lane.run(*query.plan[0])
    original, copy, name = (lane.root / name for name in (lane.checkpoint.name, "copy", "name"))
    shutil.copytree(original, copy)
    name.symlink_to(original)
    files = s3_server.keys(bucket)

    lane.checkpoint = copy
    lane.feed(*query.plan[1])
    with pytest.raises(StreamingQueryException, match="other-checkpoint"):
        lane.run()

    assert s3_server.keys(bucket) == files
    lane.checkpoint = name
    lane.run()
    lane.checkpoint = original
    lane.run(*query.plan[2])
    assert_same(reference, lane)


@state_in_files
def test_query_is_rescaled_before_its_start_by_the_options_of_its_own_session(
    make_lane: MakeLane, conf: dict[str, str], unload_all: Callable[[], None]
) -> None:
    """Catches a storage that is reached by the options of another session of the application."""
    query = replace(AGGREGATION, plan=one_input(1, 1))
    reference, lane = make_lane(query, HDFS), make_lane(query, conf=conf)
    run_plan(reference)
    lane.run(*query.plan[0])

    lane.conf[f"{STATE_STORE}.partitions"] = str(2 * NUM_PARTITIONS)
    lane.feed(*query.plan[1])
    statestore.run(lane.start, NoRestart())

    assert [*lane.batches.values()] == [*reference.batches.values()]
    last = max((lane.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    planned = (lane.checkpoint / "offsets" / last.name).read_text().split("\n")[1]
    assert f'"spark.sql.shuffle.partitions":"{2 * NUM_PARTITIONS}"' in planned
