"""Joins of state format 3 and 4 have the rows that they have on Spark's RocksDB provider."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from statestore import Checkpoint

from .conftest import EXTENDED, PROVIDER, MakeLane, RunReference
from .harness import (
    FILESYSTEM,
    HEAP,
    PROVIDER_CLASS,
    ROCKSDB,
    ROCKSDB_BACKEND,
    RUN_TIMEOUT_S,
    SOURCE_EVOLUTION,
    Build,
    Lane,
    Query,
    run_plan,
    wait_for,
)
from .join_formats import V1, V2, assert_same, join_in, pinned
from .queries import JOIN_FORMAT, WATERMARK_DEDUP

pytestmark = pytest.mark.ours

OFFSETS_1: Mapping[str, str] = {}
OFFSETS_2 = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
NAMED = {SOURCE_EVOLUTION: "true"}
OURS = (FILESYSTEM, ROCKSDB_BACKEND)
BOUNDED = product(
    ("inner", "left_outer", "right_outer", "full_outer", "left_semi"), ("interval", "window")
)
EVERY = (*BOUNDED, ("inner", "always"))
GUARDED = pytest.mark.needs("join-guardrail")
JOIN_4 = join_in("inner", "interval", "4")


def _cases() -> list[Any]:
    """Every join on every backend in both formats; a short run has some."""
    some = [
        (FILESYSTEM, V2, "left_outer", "interval", "4"),
        (FILESYSTEM, V1, "inner", "always", "3"),
        (ROCKSDB_BACKEND, V2, "full_outer", "window", "4"),
        (ROCKSDB_BACKEND, V1, "left_semi", "interval", "4"),
    ]
    found = []
    for provider, conf, (how, kind), version in product(
        (FILESYSTEM, ROCKSDB_BACKEND, HEAP), (V1, V2), EVERY, ("3", "4")
    ):
        is_short = (provider, conf, how, kind, version) in some
        marks = [pytest.mark.needs(f"join-format-{version}"), *([] if is_short else [EXTENDED])]
        backend = provider.rpartition(".")[2].removesuffix("StateStoreProvider")
        name = f"{backend}-{'v2' if conf else 'v1'}-{how}-{kind}-format-{version}"
        query = join_in(how, kind, version)
        found.append(pytest.param(provider, conf, query, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("provider", "conf", "query"), _cases())
@pytest.mark.few(2)
def test_rows_equal_built_in_when_rescaled(
    make_lane: MakeLane,
    run_reference: RunReference,
    provider: str,
    conf: Mapping[str, str],
    query: Query,
) -> None:
    """Catches a family of a join that is lost, or taken for another, in a restart or a rescale."""
    lane = make_lane(query, provider, conf)

    for batches, num_partitions in zip(query.plan, (4, 5), strict=True):
        lane.run(*batches)
        checkpoint = Checkpoint(lane.checkpoint, spark=lane.spark if provider == HEAP else None)
        checkpoint.rescale(num_partitions)
        assert checkpoint.verify(deep=True).findings == ()

    assert_same(run_reference(query), lane)


@GUARDED
@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(n, marks=EXTENDED) for n in range(2, 30))]
)
def test_rows_equal_built_in_whatever_happens_to_the_checkpoint(
    make_lane: MakeLane, run_reference: RunReference, seed: int
) -> None:
    """Catches a start that takes another format than the one that the first one was asked for."""
    rng = random.Random(seed)
    how, kind = rng.choice(EVERY)
    query = join_in(how, kind, rng.choice("34"))
    conf = {**rng.choice((V1, V2)), **rng.choice((OFFSETS_1, OFFSETS_2, {**OFFSETS_2, **NAMED}))}
    lane = make_lane(query, rng.choice(OURS), conf)
    told = []
    if rng.random() < 0.6:
        _begin_only(make_lane, lane)
        told.append("killed between entry and start")

    for run, batches in enumerate(query.plan):
        began = bool(told) or run > 0
        if began and rng.random() < 0.5:
            # What the checkpoint pins is what counts.
            changed = {JOIN_FORMAT: rng.choice("234"), PROVIDER_CLASS: rng.choice(OURS)}
            lane.conf |= changed
            told.append(f"session of {changed}")
        if run > 0 and rng.random() < 0.5:
            _uncommit(lane)
            told.append("killed before the commit")
        elif run > 0 and rng.random() < 0.7:
            number = rng.randint(1, 6)
            Checkpoint(lane.checkpoint).rescale(number)
            told.append(f"rescaled to {number}")
        lane.run(*batches)
        assert Checkpoint(lane.checkpoint).verify(deep=True).findings == (), told

    assert_same(run_reference(query), lane)


def _begin_only(make_lane: MakeLane, lane: Lane) -> None:
    """Leave of a query what is there when it is killed after the shim has written the entry."""
    begun = make_lane(lane.query, lane.conf[PROVIDER_CLASS], lane.conf)
    begun.run()
    lane.checkpoint.joinpath("offsets").mkdir(parents=True)
    for name in ("metadata", "offsets/0"):
        shutil.copy(begun.checkpoint / name, lane.checkpoint / name)


def _uncommit(lane: Lane) -> None:
    """Leave of a query what is there when it is killed before its newest batch is committed."""
    commits = lane.checkpoint / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (str(newest), f".{newest}.crc"):
        (commits / name).unlink(missing_ok=True)


@GUARDED
def test_query_fails_when_the_format_cannot_bepinned(make_lane: MakeLane) -> None:
    """Catches a query that has format 2 for good since a storage failed for a moment."""
    failing = {"spark.sql.streaming.checkpointFileManagerClass": "io.statestore.testing.FailingLog"}
    lane = make_lane(join_in("inner", "interval", "4"), conf=failing)

    with pytest.raises(StreamingQueryException, match=rf"{JOIN_FORMAT}=4, reason=no space is left"):
        lane.run(*lane.query.plan[0])

    assert not [*lane.checkpoint.joinpath("offsets").glob("[0-9]*")]
    lane.run()
    assert pinned(lane) == ("4", PROVIDER)


@GUARDED
def test_nothing_else_gets_an_entry(make_lane: MakeLane) -> None:
    """Catches an entry for a query that Spark gives what it asks for, or that asks for nothing."""
    asks = {JOIN_FORMAT: "4"}
    lanes = {
        "another operator": make_lane(WATERMARK_DEDUP, conf=asks),
        "Spark's provider": make_lane(join_in("inner", "interval", "4"), ROCKSDB),
        "no later format": make_lane(join_in("inner", "interval", "2")),
        "a table is joined": make_lane(replace(WATERMARK_DEDUP, build=_with_table), conf=asks),
    }

    for lane in lanes.values():
        lane.run(lane.query.plan[0][0])

    assert {name: len(lane.batches[0]) > 0 for name, lane in lanes.items()} == dict.fromkeys(
        lanes, True
    )


@GUARDED
def test_a_checkpoint_that_has_begun_is_left_alone(make_lane: MakeLane) -> None:
    """Catches an entry over the format that a query has, or where Spark refuses to begin."""
    begun, foreign = make_lane(join_in("inner", "interval", "2")), make_lane(JOIN_4)
    begun.run(JOIN_4.plan[0][0])
    begun.conf[JOIN_FORMAT] = "4"
    foreign.checkpoint.joinpath("state/0/0").mkdir(parents=True)

    begun.run(*JOIN_4.plan[1])
    with pytest.raises(StreamingQueryException, match="CHECKPOINT_LOCATION_NOT_EMPTY"):
        foreign.run(*JOIN_4.plan[0])

    newest = max(begun.batches)
    assert {pinned(begun, batch)[0] for batch in range(newest + 1)} == {"2"}
    assert not [*foreign.checkpoint.joinpath("offsets").glob("[0-9]*")]


@GUARDED
def test_first_run_reads_nothing_with_trigger_once(make_lane: MakeLane) -> None:
    """Catches input that is lost, where the only batch of a run is the one without offsets."""
    lane = make_lane(JOIN_4)
    lane.feed(*JOIN_4.plan[0])

    for _ in range(2):
        assert lane.start(once=True).awaitTermination(RUN_TIMEOUT_S)

    assert lane.batches[0] == []
    assert lane.batches[1]


@GUARDED
def test_source_that_starts_now_leaves_nothing_out_before_the_second_batch(
    make_lane: MakeLane,
) -> None:
    """Catches input that comes between the batch that reads nothing and the one after it."""

    class Reader(SimpleDataSourceStreamReader):
        """Numbers, one in a line of a file, from where the file ended when it was first asked."""

        def __init__(self, options: Mapping[str, str]) -> None:
            self.path = options["path"]

        def lines(self) -> list[str]:
            return Path(self.path).read_text().split()

        def initialOffset(self) -> dict[str, int]:
            return {"at": len(self.lines())}

        def read(self, start: dict[str, int]) -> Any:
            lines = self.lines()
            return iter([(int(line),) for line in lines[start["at"] :]]), {"at": len(lines)}

        def readBetweenOffsets(self, start: Any, end: Any) -> Any:
            return iter([(int(line),) for line in self.lines()[start["at"] : end["at"]]])

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "number BIGINT"

        def simpleStreamReader(self, schema: Any) -> Reader:
            return Reader(self.options)

    lane = make_lane(JOIN_4)
    session = lane.session()
    session.dataSource.register(Numbers)
    files = [lane.root / "left.txt", lane.root / "right.txt"]
    for file in files:
        file.write_text("1\n2\n")
    left, right = (
        session.readStream.format("numbers").option("path", str(file)).load() for file in files
    )
    rows: list[int] = []

    def keep(frame: DataFrame, batch: int) -> None:
        rows.extend(row.number for row in frame.collect())
        for file in files if batch == 0 else ():
            file.write_text("1\n2\n3\n4\n")

    writer = left.join(right, "number").writeStream.foreachBatch(keep)
    handle = writer.option("checkpointLocation", str(lane.checkpoint)).start()
    try:
        wait_for(lambda: rows, "what came while the batch ran that reads nothing")
    finally:
        handle.stop()

    assert pinned(lane, 0)[0] == "4"
    assert sorted(rows) == [3, 4]


def _with_table(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
    """A stream with duplicates removed, joined with a table."""
    table = session.range(20).select(sf.concat(sf.lit("kéy-"), "id").alias("key"))
    return streams["events"].dropDuplicates(["key"]).join(table, "key")


def _self_join(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
    """One frame twice: the plan has a source twice."""
    return _near(streams["left"], streams["left"])


def _join_of_unions(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
    both = streams["left"].union(streams["right"])
    return _near(both, streams["right"].dropDuplicates(["key", "ts"]))


def _common_expression(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
    """One stream that is named once and used twice: more leaves in the plan than sources."""
    _late(streams["left"]).createOrReplaceTempView("events")
    return session.sql(
        "WITH some AS (SELECT * FROM events WHERE value > 0) "
        "SELECT a.value, b.value AS other FROM some a JOIN some b "
        "ON a.key = b.key AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 9 SECONDS"
    )


def _late(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds")


def _near(left: DataFrame, right: DataFrame) -> DataFrame:
    other = right.select(*(sf.col(name).alias(f"r_{name}") for name in right.columns))
    near = "key = r_key AND r_ts BETWEEN ts AND ts + INTERVAL 9 SECONDS"
    joined = _late(left).join(other.withWatermark("r_ts", "10 seconds"), sf.expr(near))
    return joined.select("value", "r_value")


SHAPES = (_self_join, _join_of_unions, _common_expression)


@GUARDED
@pytest.mark.parametrize("offsets", [OFFSETS_1, pytest.param(OFFSETS_2, marks=EXTENDED)])
def test_rows_equal_built_in_whatever_the_sources(
    make_lane: MakeLane, offsets: Mapping[str, str]
) -> None:
    """Catches an entry for another number of sources, and one query's settings in another's."""
    before: list[tuple[SparkSession, dict[str, str]]] = []

    def noted(build: Build) -> Build:
        def build_and_note(session: SparkSession, streams: Mapping[str, DataFrame]) -> DataFrame:
            frame = build(session, streams)
            before.append((session, dict(session.conf.getAll)))
            return frame

        return build_and_note

    queries = [
        replace(join_in("inner", "interval", "4"), name=build.__name__, build=noted(build))
        for build in SHAPES
    ]
    references = [make_lane(query, ROCKSDB, offsets) for query in queries]
    lanes = [make_lane(query, PROVIDER, offsets) for query in queries]

    run_plan(*references, *lanes)

    for reference, lane in zip(references, lanes, strict=True):
        assert_same(reference, lane)
    assert all(session.conf.getAll == conf for session, conf in before)
