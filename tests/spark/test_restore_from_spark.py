"""A checkpoint of Spark's own providers, restored: the same rows, each where its query looks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from statestore import Checkpoint
from statestore.cli.commands import cli
from statestore.core.errors import (
    FencedError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
)
from statestore.operations.metadata_file import metadata_fields

from .conftest import EXTENDED, OURS, MakeLane
from .harness import (
    FORMAT_2,
    HDFS,
    NO_CHANGELOG,
    NUM_PARTITIONS,
    ROCKSDB,
    STATE_STORE,
    Lane,
    Query,
    assert_not_startable,
    assert_same,
    comparable_counts,
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
    WINDOW_APPEND,
    WITH_SCHEMAS,
    in_runs,
)
from .state_variables import COMPARED, EVENT_TIME, everything

pytestmark = pytest.mark.skipif(not OURS, reason="no session with the jar")

SNAPSHOTS = {
    f"{STATE_STORE}.minDeltasForSnapshot": "1",
    f"{STATE_STORE}.maintenanceInterval": "300ms",
}
VARIABLES = {"count", "seen", "totals"}


def _cases() -> list[Any]:
    """Each kind of operator from a provider of Spark's to a backend and number of partitions."""
    some: list[tuple[Query, str, Mapping[str, str], str, int]] = [
        (AGGREGATION, ROCKSDB, NO_CHANGELOG, "filesystem", 5),
        (AGGREGATION, HDFS, SNAPSHOTS, "rocksdb", 6),
        (WINDOW_APPEND, HDFS, {}, "filesystem", 1),
        (SESSION_APPEND, HDFS, {}, "rocksdb", 2),
        (SESSION_APPEND, ROCKSDB, {}, "filesystem", 4),
        (GLOBAL, ROCKSDB, {}, "rocksdb", 4),
        (LIMITS[0], HDFS, {}, "filesystem", 5),
        (JOIN, ROCKSDB, SNAPSHOTS, "filesystem", 4),
        (AGGREGATION_THEN_DEDUP, HDFS, {}, "filesystem", 2),
        (EVENT_TIME, ROCKSDB, {}, "rocksdb", 5),
        (everything(COMPARED), ROCKSDB, SNAPSHOTS, "filesystem", 4),
    ]
    every: list[tuple[Query, str, Mapping[str, str], str, int]] = [
        (query, provider, conf, backend, number)
        for query in WITH_SCHEMAS
        for provider, conf, backend, number in (
            (HDFS, {}, "rocksdb", 5),
            (HDFS, SNAPSHOTS, "filesystem", 3),
            (ROCKSDB, NO_CHANGELOG, "rocksdb", 3),
            (ROCKSDB, {}, "filesystem", 2),
        )
        # Spark's RocksDB provider asserts on another operator's read store.
        if query is not AGGREGATION_THEN_DEDUP or provider == HDFS
    ]
    every += [
        (everything("scala", "ProcessingTime", (3_600_000,) * 3), ROCKSDB, {}, "rocksdb", 4),
        (EVENT_TIME, ROCKSDB, NO_CHANGELOG, "filesystem", 3),
    ]
    return [
        pytest.param(
            query,
            *how,
            id=f"{query.name}-{'hdfs' if how[0] == HDFS else 'rocksdb'}-{how[2]}-{how[3]}",
            marks=marks,
        )
        for cases, marks in ((some, []), (every, [EXTENDED]))
        for query, *how in cases
    ]


def _read(lane: Lane, checkpoint: Path) -> dict[str, DataFrame]:
    """Every store, or state variable, as Spark's own state reader reads it."""
    session = lane.session()
    found: dict[str, DataFrame] = {}
    for operator in session.read.format("state-metadata").load(str(checkpoint)).collect():
        place = {"operatorId": operator.operatorId, "storeName": operator.stateStoreName}
        parts: dict[str, dict[str, str]] = {f"{operator.operatorId}-{operator.stateStoreName}": {}}
        if operator.operatorName.startswith("transformWithState"):
            parts = {name: {"stateVarName": name} for name in VARIABLES}
            parts["timers"] = {"readRegisteredTimers": "true"}
        for name, options in parts.items():
            reader = session.read.format("statestore").options(**place, **options)
            found[name] = reader.load(str(checkpoint)).cache()
    return found


def _rows(frame: DataFrame) -> list[str]:
    """Rows wherever they are; a row of a list for each of its elements."""
    return sorted(map(repr, frame.drop("partition_id").collect()))


def _partition_key(query: Query, store: str, frame: DataFrame) -> list[str]:
    """The columns that Spark partitions a store's rows by: its key, but for what a row adds."""
    fields = frame.schema["key"].dataType.fieldNames()  # type: ignore[attr-defined]
    is_longer = query.name.startswith("session") or store.endswith("keyWithIndexToValue")
    return [f"key.`{name}`" for name in (fields[:-1] if is_longer else fields)]


def _assert_each_in_its_place(lane: Lane, frames: Mapping[str, DataFrame], number: int) -> None:
    """Every row is in the state partition of Spark's own hash of its key."""
    for name, frame in frames.items():
        columns = _partition_key(lane.query, name, frame)
        if not columns or frame.schema["key"].dataType.jsonValue()["fields"][0]["type"] == "void":
            assert {row.partition_id for row in frame.collect()} <= {0}
            continue
        hashed = sf.expr(f"pmod(hash({', '.join(columns)}), {number})")
        assert frame.where(hashed != frame.partition_id).count() == 0, name


@pytest.mark.parametrize(("query", "provider", "conf", "backend", "number"), _cases())
@pytest.mark.few(6)
def test_query_goes_on_with_the_rows_that_spark_reads(
    make_lane: MakeLane,
    query: Query,
    provider: str,
    conf: Mapping[str, str],
    backend: str,
    number: int,
) -> None:
    """Catches a row that is lost, changed or doubled, or put where its query does not look."""
    query = in_runs(query, 2, 2)
    first, second = query.plan
    reference, lane = make_lane(query, provider, conf), make_lane(query, provider, conf)
    run_plan(reference)
    lane.run(*first)
    source, new = lane.checkpoint, lane.root / "new"

    Checkpoint(source).restore(new, backend=backend, num_partitions=number)

    assert Checkpoint(new).verify(deep=True).findings == ()
    expected, found = _read(lane, source), _read(lane, new)
    assert found.keys() == expected.keys()
    assert any(frame.count() for frame in expected.values())
    for name, frame in expected.items():
        assert _rows(found[name]) == _rows(frame), name
    _assert_each_in_its_place(lane, expected, NUM_PARTITIONS)
    _assert_each_in_its_place(lane, found, number)
    lane.checkpoint = new
    lane.run(*second)
    assert lane.batches == reference.batches
    for count in comparable_counts(reference):
        # Of state variables Spark's counter depends on the number of state partitions.
        if count != "numRowsUpdated" or not expected.keys() & VARIABLES:
            assert lane.counts(count) == reference.counts(count), count
    assert lane.progress[-1]["stateOperators"][0]["numShufflePartitions"] in (1, number)


@pytest.mark.needs("reader-of-ids")
@pytest.mark.parametrize("number", [pytest.param(NUM_PARTITIONS, marks=EXTENDED), 4])
def test_query_goes_on_when_the_checkpoint_format_is_2(make_lane: MakeLane, number: int) -> None:
    """Catches checkpoint IDs of no state partition, and a planned batch that is lost."""
    query = in_runs(JOIN, 2, 2)
    first, second = query.plan
    reference, lane = (make_lane(query, ROCKSDB, FORMAT_2) for _ in range(2))
    run_plan(reference)
    lane.run(*first)
    newest = max(lane.batches)
    (lane.checkpoint / f"commits/{newest}").unlink()  # planned and written, but not committed
    new = lane.root / "new"

    Checkpoint(lane.checkpoint).restore(new, num_partitions=number)

    lane.checkpoint = new
    lane.run(*second)
    assert lane.attempts[newest] == 2
    assert_same(reference, lane)


def test_an_operator_may_move(make_lane: MakeLane) -> None:
    """Catches state that stays under the number that its operator had."""
    lane = make_lane(in_runs(AGGREGATION, 2), ROCKSDB)
    run_plan(lane)
    new = lane.root / "new"

    made = Checkpoint(lane.checkpoint).restore(
        new, map_operators={0: 1}, add_operators={0: "dedupe"}, new_query_id=True
    )

    assert made.operators == {0: 1}
    assert made.query_id is None
    assert sorted(path.name for path in (new / "state").iterdir() if path.name.isdigit()) == [
        "0",
        "1",
    ]


KILLED_COMMAND = """
import os, signal, sys
from statestore.cli.commands import cli

def kill(event, arguments):
    if event == "os.rename" and arguments[1] == sys.argv[1]:
        os.killpg(0, signal.SIGKILL)

sys.addaudithook(kill)
cli(sys.argv[2:])
"""
"""Dies where the file that it is told first is about to be replaced."""
PLACES = ("state/0/*/*", "offsets/0", "commits/0", "metadata")
"""What a restore writes, in this order."""


def _kill_in_the_middle(lane: Lane, new: Path, place: str) -> None:
    """Run the command in a process of its own and kill it at one of PLACES."""
    command = [sys.executable, "-c", KILLED_COMMAND, str(new / place)]
    command += ["restore", str(lane.checkpoint), str(new), "--backend", "filesystem"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(
            lambda: process.poll() is not None or ("*" in place and any(new.glob(place))),
            f"the restore is at {place}",
            timeout_s=120,
        )
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=[] if place == "offsets/0" else [EXTENDED]) for place in PLACES],
)
def test_restore_is_done_again_when_killed(make_lane: MakeLane, place: str) -> None:
    """Catches a half-made checkpoint that a query starts from, or that nothing can replace."""
    query = in_runs(AGGREGATION, 1, 1)
    reference, lane = make_lane(query, HDFS), make_lane(query, ROCKSDB)
    run_plan(reference)
    lane.run(*query.plan[0])
    before = tree(lane.checkpoint)
    new = lane.root / "new"

    _kill_in_the_middle(lane, new, place)

    written = PLACES[: PLACES.index(place)] or [place]
    assert all(any(new.glob(pattern)) for pattern in written)
    assert json.loads((new / "metadata").read_text())["statestore"]["unfinished"] == "restore"
    assert tree(lane.checkpoint) == before
    assert_not_startable(lane, new)
    source = Checkpoint(lane.checkpoint)
    source.restore(new, backend="filesystem")
    finished = tree(new)
    with pytest.raises(InvalidArgumentError, match="checkpoint-exists"):
        source.restore(new, backend="rocksdb")
    assert tree(new) == finished
    # A crash before the very last step; an overwritten file has no checksum file of Hadoop's.
    (new / "metadata").write_text(metadata_fields(unfinished="restore"))
    assert_not_startable(lane, new)

    def begin_anew() -> None:
        (new / "metadata").write_text(metadata_fields(unfinished="restore", attempt="another"))

    with pytest.raises(FencedError, match="begun anew"):
        source.restore(new, backend="rocksdb", progress=lambda *_: begin_anew())
    assert not (new / "offsets").exists()
    source.restore(new, backend="rocksdb")
    lane.checkpoint = new
    lane.run(*query.plan[1])
    assert_same(reference, lane)


def test_error_names_the_reason_when_state_is_damaged(make_lane: MakeLane) -> None:
    """Catches a damaged source restored as if it were empty, and storage of Hadoop's only."""
    lane = make_lane(in_runs(AGGREGATION, 2), HDFS)
    run_plan(lane)
    session, uri, new = lane.session(), "viewfs://restore/data", lane.root / "new"
    session.conf.set("fs.viewfs.mounttable.restore.link./data", lane.root.as_uri())
    damaged = lane.checkpoint / "state" / "0" / "1" / "1.delta"
    data = damaged.read_bytes()
    damaged.unlink()
    source = Checkpoint(f"{uri}/checkpoint", spark=session)

    with pytest.raises(NotFoundError, match=r"1\.delta") as caught:
        source.restore(f"{uri}/new")

    assert "\n" not in str(caught.value)
    assert not new.exists()
    damaged.write_bytes(data)
    made = source.restore(f"{uri}/new").made
    assert made.verify(deep=True).num_rows == lane.counts("numRowsTotal")[1][0]


def test_restore_is_refused_when_the_query_runs_meanwhile(make_lane: MakeLane) -> None:
    """Catches a state that goes with offsets of another batch."""
    query = in_runs(AGGREGATION, 1, 1)
    lane = make_lane(query, HDFS)
    lane.run(*query.plan[0])
    new = lane.root / "new"

    runs = iter(query.plan[1:])

    def run_meanwhile(*_: int) -> None:
        for inputs in runs:
            lane.run(*inputs)

    with pytest.raises(InUseError, match="batch_now=1"):
        Checkpoint(lane.checkpoint).restore(new, progress=run_meanwhile)

    assert_not_startable(lane, new)


@pytest.mark.parametrize("provider", [HDFS, ROCKSDB], ids=["hdfs", "rocksdb"])
def test_command_does_what_the_library_does(make_lane: MakeLane, provider: str) -> None:
    """Catches a command that differs from the library, or writes when it is asked for a plan."""
    query = in_runs(AGGREGATION, 1)
    lane = make_lane(query, provider)
    run_plan(lane)
    new = lane.root / "new"
    arguments = ["restore", str(lane.checkpoint), str(new), "--output", "json"]

    planned = CliRunner().invoke(cli, [*arguments, "--dry-run"])
    assert planned.exit_code == 0, planned.output
    assert not new.exists()
    done = CliRunner().invoke(cli, arguments)
    again = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output

    plan, result = json.loads(planned.stdout), json.loads(done.stdout)
    assert {**plan, "done": True} == result
    assert not plan["done"]
    assert plan["num_partitions"] == NUM_PARTITIONS
    assert plan["backend"] == ("filesystem" if provider == HDFS else "rocksdb")
    assert again.exit_code == 1
    assert "checkpoint-exists" in again.output
