"""Every operator begins with a batch history: its rows in, the second half streamed, as if all was.

The rows of the history are those that a query which streamed it has, as `Checkpoint.read` gives
them: whoever computes a history otherwise writes the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from statestore import Checkpoint, capture_query, write_savepoint
from statestore.checkpoint.query_log import CommitEntry

from .conftest import EXTENDED, OURS, PROVIDER, MakeLane
from .harness import HEAP, Lane, Query, wait_for
from .queries import GROUP_STATES, JOIN, SESSION_APPEND, WINDOW_APPEND, single
from .state_variables import everything

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(not OURS or PROVIDER == HEAP, reason="state outlives its driver"),
]


def history_of(checkpoint: Checkpoint, leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """Return the rows of every store and state variable, as `write_savepoint` takes them."""
    return {
        family.address: checkpoint.rows(family.address).read()
        for store in checkpoint.inspect()
        for family in store.column_families
        if family.address is not None and family.name not in leave_out
    }


def newest_watermark(checkpoint: Path) -> int:
    """Return the watermark of the next batch."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    return int(CommitEntry.parse(newest.read_text(), "").fields["nextBatchWatermarkMs"])


def captured(lane: Lane) -> Any:
    """Capture a lane's query, which has not run."""
    session, query = lane.session(), lane.query
    streams = {
        name: session.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .json(str(lane.root / "input" / name))
        for name, schema in query.schemas.items()
    }
    frame: DataFrame = query.build(session, streams)
    return capture_query(frame, lane.root / "captured", output_mode=query.mode)


def bootstrapped(make_lane: MakeLane, query: Query, leave_out: Iterable[str] = ()) -> list[Lane]:
    """Return a lane that streamed all, and one that began with the first half as its history."""
    streamed, lane = make_lane(query), make_lane(query)
    first, *others = query.plan
    streamed.run(*first)
    num_before = len(streamed.batches)
    history = history_of(Checkpoint(streamed.checkpoint), leave_out)
    watermark_ms = newest_watermark(streamed.checkpoint)
    lane.feed(*first)
    savepoint = write_savepoint(
        lane.root / "savepoint",
        like=captured(lane),
        rows=history,
        watermark_ms=watermark_ms,
    ).made
    assert savepoint.verify(deep=True).findings == ()
    lane.checkpoint = lane.root / "bootstrapped"
    savepoint.restore(lane.checkpoint)
    for batches in others:
        streamed.run(*batches)
        lane.run(*batches)
    rest = [rows for _, rows in sorted(streamed.batches.items())][num_before:]
    assert [rows for _, rows in sorted(lane.batches.items())] == rest
    assert any(rest)
    return [streamed, lane]


WITHOUT_CLOCK = [query for query in GROUP_STATES if "processing" not in query.name]


@pytest.mark.parametrize(
    "query",
    [
        SESSION_APPEND,
        *(
            pytest.param(query, marks=EXTENDED)
            for query in (WINDOW_APPEND, JOIN, *WITHOUT_CLOCK, everything("scala"))
        ),
        pytest.param(everything("row"), marks=EXTENDED),
    ],
    ids=lambda query: query.name,
)
def test_second_half_streams_as_if_all_had(make_lane: MakeLane, query: Query) -> None:
    """Catches a first state that an operator reads otherwise than its own."""
    streamed, lane = bootstrapped(make_lane, query)

    found, expected = (history_of(Checkpoint(one.checkpoint)) for one in (lane, streamed))
    assert found.keys() == expected.keys()
    for address, rows in expected.items():
        columns = ["key", "value"]
        assert sorted(map(str, found[address].select(columns).to_pylist())) == sorted(
            map(str, rows.select(columns).to_pylist())
        )


@pytest.mark.extended
def test_variables_alone_are_a_history(make_lane: MakeLane) -> None:
    """Catches a list that needs the counter that Spark keeps of its elements."""
    bootstrapped(make_lane, everything("scala"), leave_out=["$rowCounter_seen"])


@pytest.mark.extended
def test_file_source_goes_on_where_it_is_told_to(make_lane: MakeLane) -> None:
    """Catches files that are read again, or left out, by offsets that were given."""
    query = single("n", "update", lambda events: events.groupBy().agg(sf.count("*").alias("n")))
    (first, second) = query.plan
    for offset, num_rows in ((-1, 80), (0, 0)):
        lane = make_lane(query)
        lane.feed(*first)
        savepoint = write_savepoint(
            lane.root / "savepoint",
            like=captured(lane),
            rows={},
            offsets=[f'{{"logOffset":{offset}}}'],
        ).made
        lane.checkpoint = lane.root / "bootstrapped"
        savepoint.restore(lane.checkpoint)
        lane.run(*second)
        assert lane.batches[max(lane.batches)] == [f"({num_rows + 80},)"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("source", "options", "offset", "least"),
    [
        ("rate", {"rowsPerSecond": "10"}, "1", 10),
        ("rate-micro-batch", {"rowsPerBatch": "10"}, '{"offset":50,"timestamp":5000}', 50),
    ],
)
def test_rate_source_goes_on_where_it_is_told_to(
    make_lane: MakeLane, source: str, options: dict[str, str], offset: str, least: int
) -> None:
    """Catches rows of the history that are counted twice, or rows after it that are missed."""
    lane = make_lane(SESSION_APPEND)
    session = lane.session()
    rates = session.readStream.format(source).options(**options).load()
    frame = (
        rates.withColumn("rest", rates.value % 3)
        .groupBy("rest")
        .agg(sf.min("value").alias("least"))
    )
    began_s = time.monotonic()
    history = pa.table({"key.rest": pa.array([0], pa.int64()), "value.min": [-7]})
    savepoint = write_savepoint(
        lane.root / "savepoint",
        like=capture_query(frame, lane.root / "captured"),
        rows={0: history},
        offsets=[offset],
    ).made
    savepoint.restore(lane.checkpoint)
    found: list[tuple[int, int]] = []

    def keep(batch: DataFrame, _batch_id: int) -> None:
        found.extend((row.rest, row.least) for row in batch.collect())

    wait_for(lambda: time.monotonic() > began_s + 2, "the second that the source goes on from")
    writer = frame.writeStream.outputMode("update").foreachBatch(keep)
    handle = writer.option("checkpointLocation", str(lane.checkpoint)).start()
    try:
        wait_for(lambda: len(found) >= 3 or handle.exception(), "rows of the source")
    finally:
        handle.stop()
    assert min(value for rest, value in found if rest != 0) in (least, least + 1)
    assert {value for rest, value in found if rest == 0} == {-7}
