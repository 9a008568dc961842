"""A query that goes to Spark's own providers, and comes from them, returns what it would have."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statestore import Checkpoint
from statestore.checkpoint.query_log import OffsetsEntry, QueryLog
from statestore.cli.commands import cli
from statestore.core.errors import (
    IncompatibleError,
    InternalError,
    InUseError,
)
from statestore.core.providers import PROVIDERS, SPARK_PROVIDERS
from statestore.io.local import LocalFileIO
from statestore.testing.sample import NUM_BATCHES, SALES_A_BATCH, make_sample

from .conftest import EXTENDED, OURS, MakeLane
from .harness import (
    FORMAT,
    FORMAT_2,
    LEASES,
    NO_CHANGELOG,
    ROCKSDB,
    STATE_STORE,
    Lane,
    Query,
    assert_not_startable,
    assert_same,
    run_plan,
    tree,
    wait_for,
)
from .queries import (
    AGGREGATION,
    AGGREGATION_THEN_DEDUP,
    GLOBAL,
    JOIN,
    LIMITS,
    SESSION_APPEND,
    WITH_SCHEMAS,
    in_runs,
    one_input,
)
from .state_variables import CHANGES, COMPARED, EVENT_TIME, changing, everything

pytestmark = pytest.mark.skipif(not OURS, reason="no session with the jar")

ROUND_TRIPS = [
    ("spark-hdfs", "filesystem", "spark-rocksdb"),
    ("spark-rocksdb", "filesystem", "spark-hdfs"),
    ("spark-hdfs", "rocksdb", "spark-rocksdb"),
    ("spark-rocksdb", "rocksdb", "spark-hdfs"),
]
FILES = {
    "heap": "heap-backend",
    "spark-hdfs": "*.delta",
    "spark-rocksdb": "*.changelog",
    "filesystem": "*.delta.arrows",
    "rocksdb": "*.delta.sst",
}
HOUR_MS = 3_600_000
WITH_TTL = everything("scala", "ProcessingTime", (HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS))


def _cases() -> list[Any]:
    """Return round trips with queries: each provider twice each way, each kind of operator."""
    some = [
        (SESSION_APPEND, ROUND_TRIPS[2]),
        (GLOBAL, ROUND_TRIPS[3]),
        (LIMITS[0], ("heap", "spark-hdfs", "rocksdb")),
        # Spark's RocksDB provider asserts on another operator's read store.
        (AGGREGATION_THEN_DEDUP, ("spark-hdfs", "rocksdb", "spark-hdfs")),
        (EVENT_TIME, ("spark-rocksdb", "filesystem", "spark-rocksdb")),
        # Of Python the file of schemas has no column family `default`.
        (everything(COMPARED), ("rocksdb", "spark-rocksdb", "filesystem")),
    ]
    every = [
        (query, names)
        for query in WITH_SCHEMAS
        for names in ROUND_TRIPS
        if query is not AGGREGATION_THEN_DEDUP or "spark-rocksdb" not in names
    ]
    every += [
        (EVENT_TIME, ("heap", "spark-rocksdb", "rocksdb")),
        (EVENT_TIME, ("rocksdb", "spark-rocksdb", "filesystem")),
        (WITH_TTL, ("spark-rocksdb", "rocksdb", "spark-rocksdb")),
        (WITH_TTL, ("filesystem", "spark-rocksdb", "filesystem")),
    ]
    return [
        pytest.param(
            query, names, id=f"{query.name}-{'-'.join(names)}", marks=[*marks, *_needs(names)]
        )
        for cases, marks in ((some, []), ([case for case in every if case not in some], [EXTENDED]))
        for query, names in cases
    ]


def _needs(names: Sequence[str]) -> list[Any]:
    return [pytest.mark.needs("to-spark-rocksdb")] if "spark-rocksdb" in names[1:] else []


def _leases(directory: Path) -> set[str]:
    return {path.name for path in directory.glob(f"{LEASES}/*.json")}


def _convert(lane: Lane, to: str) -> None:
    """Have a lane go on with another provider's checkpoint, under the session it had."""
    before, leases = tree(lane.checkpoint), _leases(lane.checkpoint)
    new = lane.checkpoint.with_name(f"checkpoint-{to}")
    reports: list[tuple[int, int]] = []
    checkpoint = Checkpoint(lane.checkpoint, spark=lane.spark)

    def progress(done: int, total: int) -> None:
        reports.append((done, total))

    if to in SPARK_PROVIDERS:
        conversion = checkpoint.convert(new, to, progress=progress)
        assert conversion.rows is not None
        assert sum(conversion.rows.values()) > 0
        assert conversion.num_stores > 0
    else:
        assert checkpoint.restore(new, backend=to, progress=progress).backend == to

    assert tree(lane.checkpoint) == before
    assert _leases(lane.checkpoint) <= leases
    assert not _leases(new), "no query has run on it yet"
    assert reports[-1][0] == reports[-1][1]
    lane.checkpoint = new


def _assert_round_trip(
    make_lane: MakeLane,
    query: Query,
    names: Sequence[str],
    conf: Mapping[str, str] | None = None,
    prepare: Callable[[Lane, str], None] = lambda lane, to: None,
    files: Mapping[str, str] = FILES,
) -> None:
    """Run on one provider after the other; compare every batch with a query that was left alone.

    Args:
        prepare: Called before each conversion, with the name of its target.
        files: What only the state of a provider has, by its name.
    """
    query = in_runs(query, *[1] * len(names))
    provider = {**SPARK_PROVIDERS, **PROVIDERS}[names[0]]
    reference, lane = make_lane(query, query.built_in), make_lane(query, provider, conf)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_plan, reference)
        for index, (name, batches) in enumerate(zip(names, query.plan, strict=True)):
            if index:
                prepare(lane, name)
                _convert(lane, name)
                (made,) = Checkpoint(lane.checkpoint).history()
                operation = "convert" if name in SPARK_PROVIDERS else "restore"
                assert (made.operation, made.status) == (operation, "done")
            lane.run(*batches)
            # The pinned provider ran: the session still names the first.
            assert list((lane.checkpoint / "state").rglob(files[name])), name
        running.result()

    assert any(lane.batches.values()), "the query returned nothing: the test tests nothing"
    assert_same(reference, lane)


@pytest.mark.parametrize(("query", "names"), _cases())
@pytest.mark.few(3)
def test_rows_equal_never_converted(make_lane: MakeLane, query: Query, names: Any) -> None:
    """Catches a row, a watermark or a batch lost between providers, in any operator's layout."""
    _assert_round_trip(make_lane, query, names)


@pytest.mark.needs("to-spark-rocksdb")
def test_rows_equal_never_converted_when_there_is_no_changelog(make_lane: MakeLane) -> None:
    """Catches what only a RocksDB of whole snapshots has, Spark's default, read as nothing."""

    def check(lane: Lane, to: str) -> None:
        assert not list((lane.checkpoint / "state").rglob(FILES["spark-rocksdb"]))

    _assert_round_trip(
        make_lane, JOIN, ROUND_TRIPS[1], NO_CHANGELOG, check, {**FILES, "spark-rocksdb": "*.zip"}
    )


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(
            ("spark-rocksdb", "rocksdb", "spark-rocksdb"),
            marks=pytest.mark.needs("to-spark-rocksdb"),
        ),
        ("rocksdb", "spark-hdfs", "filesystem"),
    ],
    ids=["kept", "given-up"],
)
def test_rows_equal_never_converted_when_checkpoint_format_is_2(
    make_lane: MakeLane, names: Sequence[str]
) -> None:
    """Catches checkpoint IDs of nothing or of another store, and a planned batch that is lost.

    Spark's HDFS-backed provider goes on in format 1.
    """

    def uncommit(lane: Lane, to: str) -> None:
        if to in SPARK_PROVIDERS:  # the newest batch was planned and written, but not committed
            (lane.checkpoint / "commits" / str(max(lane.batches))).unlink()
        if to == "spark-hdfs":
            lane.conf[FORMAT] = "1"

    _assert_round_trip(make_lane, JOIN, names, FORMAT_2, uncommit)


FAULTS = {
    "RowLosingProvider": "missing=1, different=0, foreign=0",
    "ValueChangingProvider": "missing=0, different=1, foreign=0",
    "RowAddingProvider": "missing=0, different=0, foreign=1",
}


@pytest.mark.needs("store-calls")
@pytest.mark.parametrize("provider", ["filesystem", "rocksdb"])
@pytest.mark.few(1)
def test_conversion_fails_when_the_target_keeps_other_rows(
    make_lane: MakeLane, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """Catches a comparison, from either side, that overlooks a lost, changed or made up row."""
    query = in_runs(AGGREGATION, 1)
    lane = make_lane(query, PROVIDERS[provider])
    run_plan(lane)
    new = lane.root / "new"

    for fault, counts in FAULTS.items():
        monkeypatch.setitem(SPARK_PROVIDERS, "spark-hdfs", f"io.statestore.testing.{fault}")
        with pytest.raises(InternalError, match="is not what it was made from") as caught:
            Checkpoint(lane.checkpoint, spark=lane.spark).convert(new, "spark-hdfs")

        assert f"operator=0, partition=0, store='default', {counts}" in str(caught.value)
        assert json.loads((new / "metadata").read_text())["statestore"]["unfinished"] == "convert"
        assert not (new / "offsets").exists()
    assert_not_startable(lane, new)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_checkpoint_is_only_read(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    """Catches versions of it that are deleted by what the converting session retains.

    A session may also be set up for another query: for key groups of its own.
    """
    merged = {
        f"{STATE_STORE}.snapshot.maxChainLength": "2",
        f"{STATE_STORE}.rocksdb.mergeMinFiles": "2",
    }
    query = in_runs(AGGREGATION, 3, 3, 3)
    lane = Lane(spark, query, PROVIDERS[backend], tmp_path / "lane", merged)
    for batches in query.plan:
        lane.run(*batches)
        wait_for(lambda: not _leases(lane.checkpoint), "the end of the lane's own leases")
        Checkpoint(lane.checkpoint).compact()
    before = tree(lane.checkpoint)
    session = spark.newSession()
    of_another = {
        "spark.sql.streaming.minBatchesToRetain": "1",
        f"{STATE_STORE}.maxParallelism": "24",
    }
    for key, value in of_another.items():
        session.conf.set(key, value)

    checkpoint = Checkpoint(lane.checkpoint, spark=session)
    checkpoint.convert(tmp_path / "new", "spark-hdfs")

    time.sleep(2)  # what an engine does beside its calls
    after = tree(lane.checkpoint)
    assert sorted(after) == sorted(before)
    assert after == before


@pytest.mark.lacks("to-spark-rocksdb")
def test_conversion_is_refused_when_this_spark_cannot_write_it(make_lane: MakeLane) -> None:
    """Catches a conversion that fails in some task, with a part of it written."""
    lane = make_lane(in_runs(AGGREGATION, 2))
    run_plan(lane)
    new = lane.root / "new"

    with pytest.raises(IncompatibleError, match=r"\[wrong-spark\] .*provider='spark-rocksdb'"):
        Checkpoint(lane.checkpoint, spark=lane.spark).convert(new, "spark-rocksdb")

    assert not new.exists()


def test_conversion_is_refused_by_a_spark_that_is_older_than_a_pinned_setting(
    make_lane: MakeLane,
) -> None:
    """Catches a late error that wants a setting of Spark's own removed."""
    lane = make_lane(AGGREGATION, PROVIDERS["filesystem"])
    run_plan(lane)
    log = QueryLog(LocalFileIO(), str(lane.checkpoint), "offsets")
    newest = log.newest()
    entry = OffsetsEntry.parse(log.read(newest), log.path(newest))
    pinned = {f"{STATE_STORE}.ofALaterSpark.enabled": "true"}
    log.replace(newest, entry.with_conf(pinned).encode())

    with pytest.raises(IncompatibleError, match=r"wrong-spark.*ofALaterSpark") as caught:
        Checkpoint(lane.checkpoint, spark=lane.spark).convert(lane.root / "new", "spark-hdfs")

    assert "the Spark that wrote the checkpoint last, or a later one" in caught.value.to_fix
    assert not (lane.root / "new").exists()


def test_the_programs_session_is_used_and_not_stopped(make_lane: MakeLane) -> None:
    """Catches a conversion in a thread of its own that ends the application of the program."""
    lane = make_lane(AGGREGATION, PROVIDERS["filesystem"])
    run_plan(lane)

    with ThreadPoolExecutor(1) as pool:
        convert = Checkpoint(lane.checkpoint).convert
        converted = pool.submit(convert, lane.root / "new", "spark-hdfs").result()

    assert converted.done
    assert lane.spark.range(3).count() == 3


def test_conversion_is_refused_while_a_query_of_ours_runs(make_lane: MakeLane) -> None:
    """Catches a conversion that takes no notice of the lease of a query, idle or not."""
    lane = make_lane(AGGREGATION, PROVIDERS["filesystem"])
    new = lane.root / "new"
    lane.feed(AGGREGATION.plan[0][0])
    handle = lane.start(available_now=False)
    try:
        wait_for(lambda: (lane.checkpoint / "commits" / "0").exists(), "a batch", timeout_s=60)

        with pytest.raises(InUseError, match="a query is writing the checkpoint") as caught:
            Checkpoint(lane.checkpoint, spark=lane.spark).convert(new, "spark-hdfs")
    finally:
        handle.stop()

    assert caught.value.kind == "checkpoint-in-use"
    assert caught.value.fields["run"] == str(handle.runId)
    assert not new.exists()


@pytest.mark.needs("to-spark-rocksdb")
def test_command_does_what_the_library_does(make_lane: MakeLane) -> None:
    """Catches a command that differs from the library, or writes when it is asked for a plan."""
    lane = make_lane(in_runs(AGGREGATION, 1), PROVIDERS["filesystem"])
    run_plan(lane)
    new = lane.root / "new"
    arguments = ["convert", str(lane.checkpoint), str(new), "--provider", "spark-rocksdb"]
    arguments += ["--output", "json"]

    planned = CliRunner().invoke(cli, [*arguments, "--dry-run"])
    assert planned.exit_code == 0, planned.output
    assert not new.exists()
    events = lane.root / "events"
    events.mkdir()
    logs = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    conf = [word for pair in logs.items() for word in ("--session-conf", "=".join(pair))]
    command = [sys.executable, "-m", "statestore.cli", *arguments, *conf]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    again = CliRunner().invoke(cli, arguments)
    assert done.returncode == 0, done.stderr
    assert [*events.iterdir()], "the session has not the settings"
    # What the launcher of Java says goes before everything that could keep it quiet.
    launched = ("NOTE: Picked up JDK_JAVA_OPTIONS", "WARNING: Using incubator modules")
    assert [line for line in done.stderr.splitlines() if not line.startswith(launched)] == []

    plan, result = json.loads(planned.stdout), json.loads(done.stdout)
    assert (plan["done"], result["done"]) == (False, True)
    assert plan["stores"][0]["num_partitions"] == 3
    assert plan["stores"][0]["rows"] is None
    assert result["stores"][0]["rows"] == lane.counts("numRowsTotal")[0][0]
    assert again.exit_code == 1
    assert "checkpoint-exists" in again.output


@pytest.mark.needs("to-spark-rocksdb")
def test_what_the_demo_makes_goes_to_sparks_provider(spark: SparkSession, tmp_path: Path) -> None:
    """Catches a first look at a checkpoint that lacks a file which Spark would have written."""
    make_sample(tmp_path / "sales")
    checkpoint = Checkpoint(tmp_path / "sales", spark=spark)
    checkpoint.convert(tmp_path / "sales-2", "spark-rocksdb")
    reader = spark.newSession()
    for key, value in FORMAT_2.items():  # else Spark looks for files of format 1
        reader.conf.set(key, value)
    rows = reader.read.format("statestore").load(str(tmp_path / "sales-2")).collect()
    found = {(row.key.shop, row.key.product): row.value["count"] for row in rows}
    sold = "SELECT key.shop, key.product, value.count FROM state"
    of_ours = checkpoint.sql(sold).read().to_pylist()
    assert found == {(row["shop"], row["product"]): row["count"] for row in of_ours}
    assert sum(found.values()) == NUM_BATCHES * SALES_A_BATCH


@pytest.mark.needs("row-api")
@pytest.mark.needs("to-spark-rocksdb")
def test_rows_equal_never_converted_when_a_variable_was_deleted(make_lane: MakeLane) -> None:
    """Catches a way back that is closed for ever: Spark leaves the indexes of what it deletes."""
    plan = [[files] for (files,) in one_input(1, 1, 1)]
    lane, reference = make_lane(changing("")), make_lane(changing(""), ROCKSDB)
    for number, files in enumerate(plan):
        if number == 2:
            _convert(lane, "spark-rocksdb")
        for one in (lane, reference):
            one.query = changing(CHANGES[min(number, 1)])
            one.run(*files)

    assert_same(reference, lane)
