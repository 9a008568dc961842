"""Queries go on from state that was written as data: transformed, of another query, or of none."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming import DataStreamWriter

from statestore import Checkpoint, Savepoint, capture_query, write_savepoint
from statestore.core.errors import InvalidArgumentError
from tests.checkpoints import files_below

from .conftest import OURS, PROVIDER, MakeLane
from .harness import HEAP, Lane, Query, default_mount, wait_for
from .queries import single

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(not OURS or PROVIDER == HEAP, reason="state outlives its driver"),
]


def _totals(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(sf.count("*").alias("n"), sf.sum("value").alias("total"))


def _totals_and_most(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(
        sf.count("*").alias("n"), sf.sum("value").alias("total"), sf.max("value").alias("most")
    )


def _most(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(sf.max("value").alias("most"))


def _kilobytes(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(sf.sum(sf.col("value") / 1024).alias("diff"))


def _bytes(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(sf.sum("value").alias("diff"))


TOTALS = single("totals", "update", _totals)
TOTALS_AND_MOST = single("totals-and-most", "update", _totals_and_most)
MOST = single("most", "update", _most)
BYTES = single("bytes", "update", _bytes)
KILOBYTES = single("kilobytes", "update", _kilobytes)
DISTINCT = single("distinct", "append", lambda events: events.dropDuplicates(["key", "value"]))


def go_on(lane: Lane, of: Lane, checkpoint: Path) -> None:
    """Let a lane's query run the second part of its plan on another one's checkpoint and files."""
    lane.checkpoint, lane.root, lane._fed = checkpoint, of.root, of._fed
    lane.run(*lane.query.plan[1])


def _captured(lane: Lane) -> Checkpoint:
    """Capture a lane's query over the files that it was fed."""
    session = lane.session()
    streams = {
        name: session.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .json(str(lane.root / "input" / name))
        for name, schema in lane.query.schemas.items()
    }
    frame = lane.query.build(session, streams)
    return capture_query(frame, lane.root / "captured", output_mode=lane.query.mode)


def history(lane: Lane) -> Any:
    """Return the rows that a lane's query has read, as a table of DuckDB."""
    return duckdb.connect().read_json(
        str(lane.root / "input" / "events" / "*.json"),
        columns={"key": "VARCHAR", "value": "BIGINT", "ts": "VARCHAR"},
    )


def test_query_with_one_more_aggregate_starts_from_the_old_state(make_lane: MakeLane) -> None:
    """Catches state that the new query refuses, or takes for other columns."""
    never_interrupted, old = make_lane(TOTALS_AND_MOST), make_lane(TOTALS)
    for batches in TOTALS_AND_MOST.plan:
        never_interrupted.run(*batches)
    old.run(*TOTALS.plan[0])
    most = dict(history(old).aggregate("key, max(value)").fetchall())

    def with_most(rows: Any) -> Any:
        values = rows["value"].combine_chunks().flatten()
        keys = rows["key"].combine_chunks().field("key").to_pylist()
        columns = dict(zip(rows["value"].type.names, values, strict=True))
        columns["max"] = pa.array([most[key] for key in keys], pa.int64())
        named = {f"value.{name}": column for name, column in columns.items()}
        return pa.table({"key": rows["key"], **named})

    refused = make_lane(TOTALS_AND_MOST)
    Checkpoint(old.checkpoint).branch(old.root / "branch")
    with pytest.raises(StreamingQueryException, match="VALUE_SCHEMA_NOT_COMPATIBLE"):
        go_on(refused, old, old.root / "branch")
    old._fed = refused._fed
    savepoint = (
        Checkpoint(old.checkpoint)
        .transform(old.root / "savepoint", {0: with_most}, change_schema=True)
        .made
    )
    savepoint.restore(old.root / "restored", num_partitions=8)
    changed = make_lane(TOTALS_AND_MOST)
    changed.checkpoint, changed.root = old.root / "restored", old.root
    changed.run()

    assert changed.batches == {
        batch: rows for batch, rows in never_interrupted.batches.items() if batch >= 2
    }


def test_sums_of_bytes_become_kilobytes(make_lane: MakeLane) -> None:
    """Catches the seeds' assignment 3.2 for which the sums begin anew, or stay bytes."""
    never_interrupted, old, changed = map(make_lane, (KILOBYTES, BYTES, KILOBYTES))
    for batches in KILOBYTES.plan:
        never_interrupted.run(*batches)
    old.run(*BYTES.plan[0])

    savepoint = (
        Checkpoint(old.checkpoint)
        .transform(
            old.root / "savepoint",
            {0: "SELECT key, {'sum': value.sum / 1024} AS value FROM state"},
            change_schema=True,
        )
        .made
    )
    savepoint.restore(old.root / "restored")
    go_on(changed, old, old.root / "restored")

    assert changed.batches == {
        batch: rows for batch, rows in never_interrupted.batches.items() if batch >= 2
    }


@pytest.mark.parametrize("checkpoint_format", ["1", "2"])
def test_query_that_never_ran_begins_with_a_batch_history(
    make_lane: MakeLane, checkpoint_format: str
) -> None:
    """Catches a first state that differs from that of having streamed all of it."""
    conf = {"spark.sql.streaming.stateStore.checkpointFormatVersion": checkpoint_format}
    for query, sql in (
        (
            TOTALS_AND_MOST,
            'SELECT key AS "key.key", count(*) AS "value.count", sum(value) AS "value.sum", '
            'max(value) AS "value.max" FROM history GROUP BY key',
        ),
        (DISTINCT, 'SELECT DISTINCT key AS "key.key", value AS "key.value" FROM history'),
    ):
        streamed, lane = make_lane(query, conf=conf), make_lane(query, conf=conf)
        for batches in query.plan:
            streamed.run(*batches)
        lane.feed(*query.plan[0])
        captured = _captured(lane)
        rows = history(lane).query("history", sql)
        savepoint = write_savepoint(lane.root / "savepoint", like=captured, rows={0: rows}).made
        assert not list((lane.root / "captured" / "state").rglob("*.arrows"))
        assert savepoint.info.checkpoint_format == int(checkpoint_format)
        lane.checkpoint = lane.root / "bootstrapped"
        savepoint.restore(lane.checkpoint)
        lane.run(*query.plan[1])

        # The history was one batch, and has no rows of its own in the sink.
        assert [rows for _, rows in sorted(lane.batches.items())] == [
            rows for batch, rows in sorted(streamed.batches.items()) if batch >= 2
        ]
        assert min(lane.batches) == 1
        (state, of_streamed) = (
            {
                str(row)
                for row in Checkpoint(one.checkpoint)
                .rows()
                .read()
                .select(["key", "value"])
                .to_pylist()
            }
            for one in (lane, streamed)
        )
        assert state == of_streamed


@pytest.mark.extended
@pytest.mark.parametrize(
    ("old", "new", "sql"),
    [
        pytest.param(
            (TOTALS, MOST),
            TOTALS_AND_MOST,
            "SELECT old_0.key, {'count': old_0.value.count, 'sum': old_0.value.sum, "
            "'max': old_1.value.max} AS value FROM old_0 JOIN old_1 USING (key)",
            id="merged",
        ),
        pytest.param(
            (TOTALS_AND_MOST,),
            MOST,
            "SELECT key, {'max': value.max} AS value FROM old_0",
            id="split",
        ),
    ],
)
def test_operators_are_merged_and_split(
    make_lane: MakeLane, old: tuple[Query, ...], new: Query, sql: str
) -> None:
    """Catches a query that cannot begin with what others have counted, and goes on otherwise."""
    streamed, lane = make_lane(new), make_lane(new)
    for batches in new.plan:
        streamed.run(*batches)
    state = duckdb.connect()
    for number, query in enumerate(old):
        before = make_lane(query)
        before.run(*query.plan[0])
        state.register(f"old_{number}", Checkpoint(before.checkpoint).rows().read())
    lane.feed(*new.plan[0])

    savepoint = write_savepoint(
        lane.root / "savepoint", like=_captured(lane), rows={0: state.sql(sql)}
    ).made
    lane.checkpoint = lane.root / "bootstrapped"
    savepoint.restore(lane.checkpoint)
    lane.run(*new.plan[1])

    assert [rows for _, rows in sorted(lane.batches.items())] == [
        rows for batch, rows in sorted(streamed.batches.items()) if batch >= 2
    ]


def test_captured_query_is_looked_for_where_spark_was_told_to_write_it(
    make_lane: MakeLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a plan that is captured on the default file system, and is looked for on the disk.

    Also one on a file system that only the session knows.
    """
    lane = make_lane(TOTALS)
    lane.feed(TOTALS.plan[0][0])
    uri, conf = default_mount(tmp_path)
    lane.conf |= conf
    monkeypatch.chdir(tmp_path)
    session = lane.session()
    stream = session.readStream.schema(TOTALS.schemas["events"])
    frame = TOTALS.build(session, {"events": stream.json(str(lane.root / "input" / "events"))})
    rows = {0: pa.table({"key.key": ["a"], "value.count": [2], "value.sum": [7]})}

    for directory, savepoint in (
        ("a relative %20", "savepoint"),
        (f"{uri}/data/captured", Savepoint(f"{uri}/data/savepoint", spark=session)),
    ):
        captured = capture_query(frame, directory)
        made = write_savepoint(savepoint, like=captured, rows=rows).made
        assert made.rows().read().num_rows == 1

    assert (tmp_path / "a relative %20" / "offsets").is_dir()


def test_query_without_input_is_not_captured(make_lane: MakeLane) -> None:
    """Catches a query captured at no offset, which would read its history again."""
    lane = make_lane(TOTALS)
    frame = TOTALS.build(
        lane.session(),
        {"events": lane.session().readStream.schema("key STRING, value BIGINT").json(
            str(lane.root / "input" / "events"))},
    )  # fmt: skip

    with pytest.raises(InvalidArgumentError, match="nothing yet"):
        capture_query(frame, lane.root / "captured")

    lane.feed(TOTALS.plan[0][0])
    assert Path(capture_query(frame, lane.root / "captured").directory).is_dir()
    before = files_below(lane.root)
    with pytest.raises(InvalidArgumentError) as raised:
        capture_query(frame, lane.root / "captured")  # its offsets would be those of before
    assert raised.value.kind == "checkpoint-exists"
    assert files_below(lane.root) == before


def test_spark_logs_again_when_two_captures_overlapped(
    make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a log that stays off, since the last to end puts back what the first had set."""
    lanes = [make_lane(TOTALS), make_lane(MOST)]
    for lane in lanes:
        lane.feed(TOTALS.plan[0][0])
    both, first_ended = threading.Barrier(2), threading.Event()
    start = DataStreamWriter.start

    def overlapping(writer: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            both.wait(2)
        if threading.current_thread().name == "second":
            first_ended.wait(60)
        return start(writer)

    def capture(lane: Lane) -> None:
        _captured(lane)
        first_ended.set()

    monkeypatch.setattr(DataStreamWriter, "start", overlapping)
    first, second = (
        threading.Thread(target=capture, args=(lane,), name=name)
        for lane, name in zip(lanes, ("first", "second"), strict=True)
    )
    first.start()
    wait_for(lambda: "OFF" in _levels(lanes[0]), "the first capture", 60)
    second.start()
    first.join()
    second.join()

    assert all((lane.root / "captured" / "offsets").is_dir() for lane in lanes)
    assert "OFF" not in _levels(lanes[0])


def _levels(lane: Lane) -> str:
    """Return the levels of the loggers of the driver's JVM."""
    jvm: Any = lane.spark._jvm
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    loggers = context.getConfiguration().getLoggers()
    return ", ".join(str(logger.getLevel()) for logger in loggers.values())
