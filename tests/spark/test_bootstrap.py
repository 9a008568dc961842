"""Half of a year of flights as a batch history, half as a stream: as if all had been streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.demo import TIMEOUT_S, read_flights, write_input
from examples.flights_job import SCHEMA, aircraft_figures, routes
from statestore import Checkpoint, capture_query, write_savepoint
from statestore.operations.reading.diff import DiffCounts

from .conftest import OURS, PROVIDER
from .harness import HEAP, PROVIDER_CLASS

pytestmark = [
    pytest.mark.ours,
    pytest.mark.extended,
    pytest.mark.skipif(not OURS or PROVIDER == HEAP, reason="state outlives its driver"),
]

FLIGHTS = {
    "aircraft": (
        "update",
        aircraft_figures,
        'SELECT tailnum AS "key.tailnum", count(*) AS "value.count", sum(distance) AS "value.sum", '
        'max(dep_delay) AS "value.max", sum(dep_delay) AS "value.sum_2" FROM history GROUP BY ALL',
    ),
    "routes": (
        "append",
        routes,
        'SELECT DISTINCT carrier AS "key.carrier", flight AS "key.flight", origin AS "key.origin", '
        'dest AS "key.dest" FROM history',
    ),
}


def loggers(session: SparkSession) -> list[str]:
    """Return the loggers of the driver's JVM that have a level of their own."""
    jvm: Any = session._jvm
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    return list(context.getConfiguration().getLoggers().keySet())


@contextmanager
def logged(session: SparkSession) -> Iterator[Callable[[], str]]:
    """Yield what returns the text that the driver's JVM logs in a block."""
    jvm: Any = session._jvm
    log4j = jvm.org.apache.logging.log4j
    writer = jvm.java.io.StringWriter()
    appender = log4j.core.appender.WriterAppender.createAppender(
        None, None, writer, "of a test", False, True
    )
    appender.start()
    root = log4j.LogManager.getRootLogger()
    root.addAppender(appender)
    try:
        yield lambda: str(writer.toString())
    finally:
        root.removeAppender(appender)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FLIGHTS)
def test_half_of_the_flights_as_history_and_half_as_stream_are_all_of_them(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Catches a first state from which real figures go on otherwise than if all was streamed."""
    mode, build, sql = FLIGHTS[name]
    write_input(read_flights(), tmp_path / "all")
    files = sorted((tmp_path / "all").iterdir())
    source = tmp_path / "source"
    source.mkdir()
    session = spark.newSession()
    session.conf.set(PROVIDER_CLASS, PROVIDER)
    session.conf.set("spark.sql.shuffle.partitions", "4")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    flights = session.readStream.schema(SCHEMA).options(header=True, nullValue="NA")
    frame = build(flights.csv(str(source)))
    results: dict[str, list[Any]] = {}

    def run(checkpoint: str) -> None:
        def keep(batch: DataFrame, _batch_id: int) -> None:
            results[checkpoint] = sorted(map(repr, batch.collect()))

        writer = frame.writeStream.outputMode(mode).foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(
            availableNow=True
        )
        handle = query.start()
        try:
            assert handle.awaitTermination(TIMEOUT_S)
        finally:
            handle.stop()

    for file in files[: len(files) // 2]:
        file.rename(source / file.name)
    run("streamed")
    with logged(session) as text:
        captured = capture_query(frame, tmp_path / "captured", output_mode=mode)
    assert not any("MicroBatchExecution" in name for name in loggers(session))
    assert "terminated with error" not in text()
    table = duckdb.connect().read_csv(str(source / "*.csv"), na_values="NA", header=True)
    savepoint = write_savepoint(
        tmp_path / "savepoint", like=captured, rows={0: table.query("history", sql)}
    ).made
    savepoint.restore(tmp_path / "bootstrapped")
    for file in files[len(files) // 2 :]:
        file.rename(source / file.name)
    run("streamed")
    run("bootstrapped")

    assert results["bootstrapped"] == results["streamed"]
    assert (
        Checkpoint(tmp_path / "bootstrapped")
        .rows()
        .count_differences(Checkpoint(tmp_path / "streamed").rows())
        == DiffCounts()
    )
