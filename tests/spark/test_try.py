"""New code is tried on real state: it repeats the old batches, is compared, promoted or dropped."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import DataStreamWriter

from statestore import (
    Checkpoint,
    FixedDelay,
    QueryFailedError,
    Savepoint,
    Trial,
    run,
    try_job,
)
from statestore.core.errors import InvalidArgumentError
from statestore.operations.reading.diff import DiffCounts
from statestore.operations.trial.rule import Rule, compare_rows
from statestore.spark.job_on_branch import Repeat, run_job
from statestore.spark.old_sink_rows import write_rows

from .conftest import EXTENDED, MakeLane, RunReference
from .harness import FORMAT_2, Files, Query, default_mount, tree
from .join_formats import join_in, rows_in_order
from .queries import OPERATORS, in_runs, single
from .state_variables import EVENT_TIME
from .tried import (
    MARKS,
    Tried,
    counted,
    counted_more,
    counted_otherwise,
    counted_wrongly,
    expected,
    files,
    first_of_each,
    first_of_some,
    first_otherwise,
    tried_again,
)

pytestmark = MARKS


@pytest.fixture(params=[pytest.param({}, id="v1"), pytest.param(FORMAT_2, id="v2")])
def tried(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Tried:
    """A query that has run six batches."""
    made = Tried(spark, tmp_path / "query", request.param)
    made.run(*files(0, 6))
    return made


@pytest.mark.few(1)
def test_planted_bug_is_refused_with_the_rows_that_differ(tried: Tried, tmp_path: Path) -> None:
    """Catches a wrong program that is let through, and a trial that writes the sink."""
    old, attempts = tried.job(counted), dict(tried.attempts)

    def both(build: Callable[[DataFrame], DataFrame]) -> Callable[[], Any]:
        return lambda: tried.job(build)()

    trial = try_job(tried.checkpoint, both(counted_wrongly), against=both(counted), batches=2)

    assert not trial.is_same
    by_name = {one.of: one for one in trial.result.compared}
    assert by_name.keys() == {"batch 4", "batch 5", "state 0"}
    # k1's values from batch 4 on count twice.
    before, now = sum(batch + 1 for batch in range(5)), sum(batch + 1 for batch in range(4)) + 10
    removed, added = by_name["batch 4"].rows
    assert removed == {"change": "removed", "old": {"key": "k1", "number": 5, "total": before}}
    assert added == {"change": "added", "new": {"key": "k1", "number": 5, "total": now}}
    (row,) = by_name["state 0"].rows
    assert (row["change"], row["key"]) == ("changed", {"key": "k1"})
    with pytest.raises(InvalidArgumentError, match="differs from the old"):
        trial.promote()
    assert dict(tried.attempts) == attempts
    assert tried.state == expected(6)
    trial.drop()
    assert not Path(f"{tried.checkpoint}-trial").exists()
    tried.job(counted)
    tried.run(*files(6, 1))
    assert tried.state == expected(7)
    del old


@pytest.mark.few(1)
def test_same_result_by_other_code_is_promoted_and_goes_on(tried: Tried) -> None:
    """Catches a row that is counted twice or lost by the change, and an old that is lost."""
    trial = try_job(tried.checkpoint, tried.job(counted_otherwise), batches=3)

    assert trial.is_same, str(trial)
    assert (trial.result.first_version, trial.result.version) == (3, 6)
    promoted = trial.promote()

    assert tried.state == expected(6)
    tried.run(*files(6, 2))
    assert tried.state == expected(8)
    assert sorted(tried.batches) == list(range(8))
    assert set(tried.attempts.values()) == {1}
    assert Checkpoint(tried.checkpoint).verify(deep=True).findings == ()
    savepoint = Savepoint(promoted.savepoint)
    assert savepoint.info.version == 6
    assert Trial(trial.uri).result.state == "promoted"


@pytest.mark.few(1)
def test_supervised_query_is_tried_and_not_restarted(tried: Tried) -> None:
    """Catches a trial that a restart strategy takes for a failure."""
    job = tried.job(counted)

    trial = try_job(tried.checkpoint, lambda: run(job), batches=1)

    assert trial.is_same
    assert trial.result.first_version == 5


def _fails(events: DataFrame) -> DataFrame:
    """A bug: a function that raises."""
    raises = sf.udf(lambda value: 1 // 0, "long")
    return counted(events.withColumn("value", raises("value")))


def _supervised(job: Callable[[], Any]) -> None:
    run(job, FixedDelay(2, 0))


def _in_a_thread(job: Callable[[], Any]) -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(_supervised, job)


@pytest.mark.parametrize("tried", [FORMAT_2], indirect=True)
@pytest.mark.parametrize(
    ("supervise", "build", "message"),
    [
        pytest.param(_supervised, _fails, "reason='ZeroDivisionError: ", id="function"),
        pytest.param(_in_a_thread, _fails, "reason='ZeroDivisionError: ", id="thread"),
        pytest.param(_supervised, counted_more, r"new_schema=.*max.* --sql NAME=", id="schema"),
    ],
)
def test_supervised_query_that_fails_is_not_restarted(
    tried: Tried,
    supervise: Callable[[Callable[[], Any]], Any],
    build: Callable[[DataFrame], DataFrame],
    message: str,
) -> None:
    """Catches a trial that a restart strategy repeats, and whose failure it hides."""
    start = tried.job(build)
    starts: list[int] = []

    def job() -> Any:
        starts.append(1)
        return start()

    with pytest.raises(InvalidArgumentError, match=message) as failed:
        try_job(tried.checkpoint, lambda: supervise(job), batches=1)

    assert failed.value.kind == "trial-failed"
    assert len(starts) == 1


@pytest.mark.parametrize("tried", [FORMAT_2], indirect=True)
@pytest.mark.parametrize("waits_for", ["it", "any"])
def test_job_of_another_checkpoint_is_told_what_it_started(
    tried: Tried, tmp_path: Path, waits_for: str
) -> None:
    """Catches an error about a query that was not started, and a wait for it without end."""
    checkpoint, other = tried.checkpoint, tmp_path / "an other%20"
    start = tried.job(counted)

    def job() -> None:
        tried.checkpoint = other
        query = start()
        if waits_for == "any":
            tried.spark.streams.awaitAnyTermination()
        query.awaitTermination()

    with pytest.raises(InvalidArgumentError, match="starts no query of the checkpoint") as failed:
        try_job(checkpoint, job, batches=1)

    assert failed.value.kind == "trial-failed"
    assert failed.value.fields["started"] == str(other)
    if waits_for == "it":
        assert isinstance(failed.value.__cause__, AttributeError)
        assert "NoneType" in failed.value.fields["reason"]
    with pytest.raises(StreamingQueryException):
        _ends(tried.spark)


def _ends(spark: SparkSession) -> None:
    """Wait for a query that fails by any: waits are Spark's again."""
    failing = spark.readStream.format("rate").load().selectExpr("raise_error('it')")
    query = failing.writeStream.format("noop").start()
    try:
        spark.streams.awaitAnyTermination(60)
    finally:
        query.stop()
        spark.streams.resetTerminated()


@pytest.mark.few(1)
def test_query_that_ran_on_is_caught_up_before_it_is_promoted(tried: Tried) -> None:
    """Catches a promote that takes batches back which the sink has."""
    script = tried.job(counted)
    trial = try_job(tried.checkpoint, script, batches=2)
    tried.run(*files(6, 1))

    with pytest.raises(InvalidArgumentError, match="gone on since"):
        trial.promote()
    again = try_job(tried.checkpoint, script, batches=2)
    assert again.is_same
    again.promote()

    tried.run(*files(7, 1))
    assert tried.state == expected(8)


@pytest.mark.parametrize("tried", [FORMAT_2], indirect=True)
def test_batches_after_the_branch_was_made_are_repeated_too(tried: Tried, tmp_path: Path) -> None:
    """Catches a batch that reads nothing, since only the old checkpoint knows its files."""
    branch = Checkpoint(tried.checkpoint).branch(tmp_path / "branch", version=4).made
    tried.run(*files(6, 1))
    rows = tmp_path / "rows"

    for version in (5, 7):
        repeat = Repeat(str(tried.checkpoint), branch.uri, version, str(rows), None, 4)
        run_job(repeat, tried.job(counted))

    assert branch.info.newest_version == 7
    assert branch.rows().count_differences(Checkpoint(tried.checkpoint).rows()) == DiffCounts()
    assert sorted(path.name for path in rows.iterdir()) == ["4", "5", "6"]


LOG = "spark.sql.streaming.fileSource.log"
COMPACTED = {
    f"{LOG}.compactInterval": "3",
    f"{LOG}.cleanupDelay": "0",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


@pytest.mark.parametrize("tried", [COMPACTED], indirect=True)
@pytest.mark.parametrize("more", range(3))
def test_only_batches_whose_files_are_known_are_repeated(tried: Tried, more: int) -> None:
    """Catches a batch that reads nothing, since the source's log no longer tells its files."""
    tried.run(*files(6, more))

    trial = try_job(tried.checkpoint, tried.job(counted), batches=6)

    assert trial.is_same, str(trial)
    assert trial.result.version == 6 + more
    assert trial.result.first_version >= 6 + more - 2


@pytest.mark.few(1)
def test_one_more_aggregate_begins_with_state_that_is_transformed(tried: Tried) -> None:
    """Catches a change of the schema that is refused, or whose other columns are not compared."""
    job = tried.job(counted_more)
    with pytest.raises(InvalidArgumentError, match=r"new_schema=.*max.* To fix: .*--sql NAME="):
        try_job(tried.checkpoint, job, batches=2)
    more = "SELECT key, {'count': value.count, 'sum': value.sum, 'max': NULL::BIGINT} AS value"
    rows = {0: f"{more} FROM state"}

    old = tried_again(tried, counted, counted_more)
    different = try_job(tried.checkpoint, job, against=old, rows=rows, batches=2)

    assert not different.is_same
    by_name = {one.of: one for one in different.result.compared}
    assert by_name["batch 4"].columns == ("largest: only the new has it",)
    assert by_name["state 0"].columns == ("value.max: only the new has it",)
    trial = try_job(
        tried.checkpoint,
        job,
        against=old,
        rows=rows,
        batches=2,
        ignore=["largest", "value.max"],
    )
    assert trial.is_same, str(trial)
    assert trial.result.ignored == ("largest", "value.max")
    assert [(one.num_old, one.num_new) for one in trial.result.compared] == [(3, 3)] * 3
    trial.promote()
    tried.run(*files(6, 1))
    assert tried.state == expected(7)
    newest = [eval(row) for row in tried.batches[6]]  # noqa: S307 (its own text)
    assert newest == [(f"k{key}", *expected(7)[f"k{key}"], 6 + key) for key in range(3)]


IN_CI = ("join-left-outer", EVENT_TIME.name)
EVERY = [
    pytest.param(query, id=query.name, marks=[] if query.name in IN_CI else EXTENDED)
    for query in [*OPERATORS, EVENT_TIME]
]
OF_FORMAT_4 = [join_in("left_outer", "interval", "4"), join_in("inner", "always", "4")]
EVERY += [
    pytest.param(query, id=query.name, marks=[pytest.mark.needs("join-format-4"), EXTENDED])
    for query in OF_FORMAT_4
]


@pytest.mark.parametrize("query", EVERY)
def test_same_code_of_every_operator_is_equal_and_goes_on(
    make_lane: MakeLane, run_reference: RunReference, query: Query
) -> None:
    """Catches an operator whose batches are repeated otherwise, or whose state is lost."""
    if sum(map(len, query.plan[:-1])) < 2:  # nothing is before the only batch that was run
        query = replace(in_runs(query, 2, 1), name=f"{query.name}-in-two-runs")
    reference = run_reference(query)
    lane = make_lane(query)
    num_promoted = 0

    for number, batches in enumerate(query.plan):
        lane.run(*batches)
        if number == len(query.plan) - 1 or Checkpoint(lane.checkpoint).info.newest_version < 2:
            continue
        trial = try_job(lane.checkpoint, lane.start, against=lane.start, batches=2)
        assert trial.is_same, str(trial)
        trial.promote()
        num_promoted += 1

    assert num_promoted
    rows = rows_in_order if query in OF_FORMAT_4 else attrgetter("batches")
    assert rows(lane) == rows(reference)
    assert Checkpoint(lane.checkpoint).verify(deep=True).findings == ()


class FileSunk(Tried):
    """One that writes the first row of each key into files, by Spark's file sink."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark, root)
        self.query = single("tried", "append", first_of_each, [])
        self.conf["spark.sql.streaming.fileSink.log.compactInterval"] = "3"
        self.output = root / "out put"

    def job(self, build: Callable[[DataFrame], DataFrame]) -> Callable[[], Any]:
        self.query = single("tried", "append", build, [])
        return self.start

    def _keep_rows(self, frame: DataFrame) -> Any:
        return frame.writeStream.format("json").option("path", str(self.output))

    @property
    def rows(self) -> Counter[tuple[str, int]]:
        """Rows in the sink."""
        found = self.spark.read.schema("key STRING, value BIGINT").json(str(self.output))
        return Counter((row.key, row.value) for row in found.collect())


def of_new_keys(first: int, number: int) -> list[Files]:
    """Return a file each batch, with a key that is new, and one that is not."""
    at = "2024-01-01T00:00:00.000Z"
    return [
        {"events": [{"key": key, "value": batch, "ts": at} for key in (f"k{batch}", "stays")]}
        for batch in range(first, first + number)
    ]


def test_rows_in_the_file_sink_are_compared_and_it_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches rows that are twice in the sink, or not, and a bug that only its rows show."""
    lane = FileSunk(spark, tmp_path / "query")
    lane.run(*of_new_keys(0, 7))
    before = lane.rows

    bad = try_job(lane.checkpoint, lane.job(first_of_some), batches=4)

    by_name = {one.of: one for one in bad.result.compared}
    assert by_name.keys() == {*(f"batch {batch}" for batch in range(3, 7)), "state 0"}
    assert [name for name, one in by_name.items() if not one.is_same] == ["batch 5", "state 0"]
    assert by_name["batch 5"].rows == ({"change": "removed", "old": {"key": "k5", "value": 5}},)
    assert not any(one.why for one in by_name.values())
    good = try_job(lane.checkpoint, lane.job(first_otherwise), batches=4)
    assert good.is_same, str(good)
    assert lane.rows == before
    page = tmp_path / "page.html"
    bad.report(page)
    assert "New code on real state" in page.read_text()
    good.promote()

    lane.run(*of_new_keys(7, 4))
    assert lane.rows == Counter([("stays", 0), *((f"k{batch}", batch) for batch in range(11))])


def test_old_rows_that_were_not_kept_whole_are_kept_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a trial that was killed while it kept the old rows, and then calls all equal."""
    lane = FileSunk(spark, tmp_path / "query")
    lane.run(*of_new_keys(0, 7))
    monkeypatch.setattr("statestore.api.try_job._Side.mark", lambda _: ["the same script"])

    def differing() -> list[str]:
        tried = try_job(lane.checkpoint, lane.job(first_of_some), batches=4)
        assert not any(one.why for one in tried.result.compared)
        return [one.of for one in tried.result.compared if not one.is_same]

    first = differing()
    kept = Path(f"{lane.checkpoint}-trial/old/5")
    for path in kept.iterdir():
        path.unlink()
    (kept / "_temporary").mkdir()

    assert differing() == first == ["batch 5", "state 0"]

    def broken() -> None:
        raise ValueError("a bug of its own")

    # What was compared before says nothing of a call that has begun anew.
    with pytest.raises(InvalidArgumentError, match="a bug of its own"):
        try_job(lane.checkpoint, broken, batches=4)
    with pytest.raises(InvalidArgumentError, match="cannot be promoted before"):
        Trial(f"{lane.checkpoint}-trial").promote(accept=True)


def test_paths_of_a_job_are_on_the_default_file_system_of_its_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a checkpoint or a sink that is looked for on the local disk, and Spark's is not."""
    lane, (uri, conf) = FileSunk(spark, tmp_path / "query"), default_mount(tmp_path)
    lane.conf |= conf
    lane.checkpoint, lane.output = Path("/data/ck"), Path("/data/out put")
    lane.run(*of_new_keys(0, 4))
    checkpoint = Checkpoint(f"{uri}/data/ck", spark=lane.session())

    trial = try_job(checkpoint, lane.job(first_of_some), batches=1)
    assert trial.is_same, str(trial)
    assert not any(one.why for one in trial.result.compared)
    trial = try_job(checkpoint, lane.job(_first("value + 1 AS value")), batches=1)
    assert not trial.is_same
    assert not Path("/data").exists()


class WrittenOtherwise(FileSunk):
    """One whose sink is asked for in another way.

    Attributes:
        ask: Says on a writer how.
    """

    def __init__(self, spark: SparkSession, root: Path, ask: Callable[[Any], Any]) -> None:
        super().__init__(spark, root)
        self.ask = ask

    def _keep_rows(self, frame: DataFrame) -> Any:
        return self.ask(frame.writeStream).option("path", str(self.output))


def _first(*columns: str) -> Callable[[DataFrame], DataFrame]:
    return lambda events: events.dropDuplicates(["key"]).selectExpr("key", *columns)


OTHERWISE = {
    "json-drops": ("json", {}, ["value", "value + 1 AS more"], ["value"], "more: only the old"),
    "json-retypes": (
        "json",
        {},
        ["value"],
        ["double(value) AS value"],
        "value: int64 became double",
    ),
    "json-as-text": (
        "json",
        {},
        ["value"],
        ["string(value) AS value"],
        "value: int64 became string",
    ),
    "json-within": (
        "json",
        {},
        ["struct(value, key AS of) AS s"],
        ["struct(value) AS s"],
        "s: struct<value: int64, of: string> became struct<value: int64>",
    ),
    "csv-drops": ("csv", {}, ["value", "value + 1 AS more"], ["value"], "only the old"),
    "csv-retypes": ("csv", {}, ["value"], ["double(value) AS value"], "became double"),
    "csv-by-name": (
        "csv",
        {"header": "true"},
        ["value + 1 AS more", "value"],
        ["value"],
        "more: only the old",
    ),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_column_that_is_dropped_or_has_another_type_differs_in_a_text(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Catches rows of the old that are read as the new has them, and then called equal."""
    kind, options, old, new, said = OTHERWISE[name]
    ask = lambda writer: writer.format(kind).options(**options)  # noqa: E731
    lane = WrittenOtherwise(spark, tmp_path / "query", ask)
    lane.query = single("tried", "append", _first(*old), [])
    lane.run(*of_new_keys(0, 3))

    same = try_job(lane.checkpoint, lane.start, batches=1)
    assert same.is_same, str(same)
    assert not any(one.why for one in same.result.compared)
    lane.query = single("tried", "append", _first(*new), [])
    trial = try_job(lane.checkpoint, lane.start, batches=1)

    assert not trial.is_same
    (batch,) = (one for one in trial.result.compared if one.of == "batch 2")
    assert any(said in column for column in batch.columns), batch.columns


@pytest.mark.parametrize("kind", ["parquet", "default", "csv"])
def test_partitioned_sink_and_that_of_the_default_format_are_compared(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Catches a type that is guessed from a name of a directory, and a sink that is passed over."""

    def ask(writer: Any) -> Any:
        writer = writer if kind == "default" else writer.format(kind)
        return writer.partitionBy("day", "number")

    columns = ["value", "'2024-01-31' AS day", "value AS number"]
    lane = WrittenOtherwise(spark, tmp_path / "query", ask)
    lane.query = single("tried", "append", _first(*columns), [])
    lane.run(*of_new_keys(0, 3))

    trial = try_job(lane.checkpoint, lane.start, batches=1)

    assert trial.is_same, str(trial)
    assert not any(one.why for one in trial.result.compared)
    lane.query = single("tried", "append", _first("value + 1 AS value", *columns[1:]), [])
    assert not try_job(lane.checkpoint, lane.start, batches=1).is_same


def test_variants_are_compared_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Catches rows that differ and are called equal, as files take variants apart by their rows."""
    sides = []
    for number in (2, 3):
        text = sf.when(sf.col("id") == 0, '{"a": 1}').otherwise(f'{{"b": {number}}}')
        rows = spark.range(0, 2, 1, 2).select(sf.parse_json(text).alias("v"))
        write_rows(rows, str(tmp_path / str(number)))
        sides.append(sorted(map(str, (tmp_path / str(number)).glob("*.parquet"))))
    old, new = sides

    found = compare_rows("batch 1", old, new, Rule())

    assert (found.removed, found.added, found.why) == (1, 1, "")
    assert compare_rows("batch 1", old, old, Rule()).is_same


class AnyFrame(Tried):
    """One whose sink takes what Parquet does not, and whose trigger names what it is not."""

    def start(self) -> Any:
        return super().start(available_now=False)

    def _keep_rows(self, frame: DataFrame) -> Any:
        nothing = sf.lit(None).alias("n.o"), sf.array().alias("none"), sf.make_interval().alias("i")
        frame = frame.select("*", sf.col("total").alias("KEY"), "number", *nothing)
        return super()._keep_rows(frame).trigger(processingTime="1 second", continuous=None)


@pytest.mark.few(1)
def test_frame_that_parquet_cannot_hold_is_compared(tried: Tried) -> None:
    """Catches new code that is told to be mended for the sake of the files it is compared by."""
    sunk = AnyFrame(tried.spark, tried.root, tried.conf)

    def job(build: Callable[[DataFrame], DataFrame]) -> Callable[[], Any]:
        return lambda: sunk.job(build)()

    trial = try_job(tried.checkpoint, job(counted_otherwise), against=job(counted), batches=1)
    assert trial.is_same, str(trial)
    trial.drop()

    trial = try_job(tried.checkpoint, job(counted_wrongly), against=job(counted), batches=1)
    (batch,) = (one for one in trial.result.compared if one.of == "batch 5")
    assert batch.rows[1]["new"].keys() >= {"key_2", "number_2", "n.o", "none", "i"}


@pytest.mark.few(1)
def test_query_that_a_thread_starts_after_the_job_is_tried(tried: Tried) -> None:
    """Catches the query itself started, with its sink, by a thread that outlives the job."""
    job, attempts = tried.job(counted), dict(tried.attempts)
    before = {path.name for path in Path(tried.checkpoint, "offsets").iterdir()}

    def late(seconds: float) -> threading.Thread:
        def start() -> None:
            time.sleep(seconds)
            with suppress(BaseException):
                job()

        thread = threading.Thread(target=start)
        thread.start()
        return thread

    trial = try_job(tried.checkpoint, lambda: late(0.5), batches=1)
    assert trial.is_same
    trial.drop()
    left: list[threading.Thread] = []

    def two() -> None:
        left.append(late(3.0))
        job()

    try_job(tried.checkpoint, two, batches=1).drop()
    left[0].join()

    assert dict(tried.attempts) == attempts
    assert {path.name for path in Path(tried.checkpoint, "offsets").iterdir()} == before


@pytest.mark.parametrize("tried", [FORMAT_2], indirect=True)
def test_a_job_is_refused_while_another_one_is_tried(tried: Tried, tmp_path: Path) -> None:
    """Catches new code that a trial beside its own lets start on the checkpoint itself."""
    other = Tried(tried.spark, tmp_path / "other", FORMAT_2)
    other.run(*files(0, 2))
    start = DataStreamWriter.start
    runs, may_end = threading.Event(), threading.Event()

    def repeat(lane: Tried) -> Repeat:
        version = Checkpoint(lane.checkpoint).info.newest_version
        made = Checkpoint(lane.checkpoint).branch(lane.root / "branch", version=version - 1).made
        rows = str(lane.root / "rows")
        return Repeat(str(lane.checkpoint), made.uri, version, rows, None, version - 1)

    def first() -> None:
        runs.set()
        may_end.wait(60)
        tried.job(counted)()

    lanes = tried, other
    before = [(tree(lane.checkpoint), dict(lane.attempts)) for lane in lanes]
    repeats = [repeat(lane) for lane in lanes]
    with ThreadPoolExecutor() as pool:
        one = pool.submit(run_job, repeats[0], first)
        assert runs.wait(60)
        with pytest.raises(
            InvalidArgumentError, match=r"another job is tried.*one after the other"
        ):
            run_job(repeats[1], other.job(counted))
        may_end.set()
        one.result()
    run_job(repeats[1], other.job(counted))

    assert DataStreamWriter.start is start
    assert [(tree(lane.checkpoint), dict(lane.attempts)) for lane in lanes] == before
    assert [Checkpoint(one.branch).info.newest_version for one in repeats] == [
        one.version for one in repeats
    ]


@pytest.mark.parametrize("tried", [FORMAT_2], indirect=True)
def test_job_that_tries_a_job_is_refused(tried: Tried) -> None:
    """Catches a trial that waits for itself for ever, also by way of a thread."""

    def nested() -> None:
        trial = tried.root / "nested"
        with ThreadPoolExecutor() as pool:
            pool.submit(
                try_job, tried.checkpoint, tried.job(counted), trial=trial, batches=1
            ).result()

    with pytest.raises(InvalidArgumentError, match=r"another job is tried"):
        try_job(tried.checkpoint, nested, batches=1)


@pytest.mark.parametrize("tried", [FORMAT_2], indirect=True)
def test_thread_that_was_begun_by_a_job_says_why_it_starts_no_query(tried: Tried) -> None:
    """Catches a thread of a pool that ends without a word, or is supervised without end."""
    start, pool = tried.job(counted), ThreadPoolExecutor(1)
    starts: list[int] = []

    def job() -> Any:
        pool.submit(int).result()
        return start()

    def again() -> Any:
        starts.append(1)
        return start()

    with pool:
        try_job(tried.checkpoint, job, batches=1).drop()
        with pytest.raises(InvalidArgumentError, match=r"begun while a job was tried.*To fix: "):
            pool.submit(start).result()
        with pytest.raises(QueryFailedError, match="obstacle='invalid-argument'"):
            pool.submit(run, again, FixedDelay(2, 0)).result()

    assert len(starts) == 1
    tried.run(*files(6, 1))
    assert tried.state == expected(7)
