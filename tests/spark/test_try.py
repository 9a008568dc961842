"""New code is tried on real state: it repeats the old batches, is compared, promoted or dropped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from statestore import Checkpoint, Savepoint, Trial, run, upgrade
from statestore.core.errors import InvalidArgumentError
from statestore.operations.reading.diff import DiffCounts
from statestore.spark.trying import Repeat, run_job
from tools.json_reference import fields

from .conftest import EXTENDED, OURS, PROVIDER, MakeLane, RunReference
from .harness import FORMAT_2, HEAP, Files, Lane, Query
from .queries import OPERATORS, in_runs, single
from .state_variables import EVENT_TIME

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(not OURS or PROVIDER == HEAP, reason="state outlives its driver"),
]


def counted(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(sf.count("*").alias("number"), sf.sum("value").alias("total"))


def counted_otherwise(events: DataFrame) -> DataFrame:
    """Another program of the same meaning."""
    kept = events.select("key", (sf.col("value") + 1).alias("more"))
    totals = kept.groupBy("key").agg(
        sf.count("key").alias("number"), sf.sum(sf.col("more") - 1).alias("total")
    )
    return totals.select("key", "number", "total")


def counted_wrongly(events: DataFrame) -> DataFrame:
    """A bug: some values count twice."""
    value = sf.when(sf.col("key") == "k1", sf.col("value") * 2).otherwise(sf.col("value"))
    return events.groupBy("key").agg(sf.count("*").alias("number"), sf.sum(value).alias("total"))


def counted_more(events: DataFrame) -> DataFrame:
    """One more aggregate."""
    return events.groupBy("key").agg(
        sf.count("*").alias("number"),
        sf.sum("value").alias("total"),
        sf.max("value").alias("largest"),
    )


def files(first: int, number: int) -> list[Files]:
    """Return a file each batch: keys that come again, each batch with values of its own."""
    at = "2024-01-01T00:00:00.000Z"
    return [
        {"events": [{"key": f"k{key}", "value": batch + key, "ts": at} for key in range(3)]}
        for batch in range(first, first + number)
    ]


def expected(number: int) -> dict[str, tuple[int, int]]:
    """Return number and total of each key after some files."""
    return {f"k{key}": (number, sum(batch + key for batch in range(number))) for key in range(3)}


def first_of_each(events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["key"]).select("key", "value")


def first_of_some(events: DataFrame) -> DataFrame:
    """A bug: keys of one kind are lost."""
    return first_of_each(events.where("not key like '%5'"))


def first_otherwise(events: DataFrame) -> DataFrame:
    """Another program of the same meaning."""
    return first_of_each(events.where("value >= 0")).selectExpr("key", "value + 0 AS value")


class Tried(Lane):
    """A query over files whose code may be replaced, with a sink that must not be written twice.

    Attributes:
        written: What its sink was given, by batch.
    """

    def __init__(
        self, spark: SparkSession, root: Path, conf: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(spark, single("tried", "update", counted, []), PROVIDER, root, conf)

    def job(self, build: Callable[[DataFrame], DataFrame]) -> Callable[[], Any]:
        """Return new code: what a user's program does up to its start."""
        self.query = single("tried", "update", build, [])
        return self.start

    @property
    def state(self) -> dict[str, tuple[int, int]]:
        """Number and total by key."""
        rows = Checkpoint(self.checkpoint).rows().read(flatten=True).to_pylist()
        return {row["key.key"]: (row["value.count"], row["value.sum"]) for row in rows}


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

    trial = upgrade(tried.checkpoint, both(counted_wrongly), against=both(counted), batches=2)

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


def test_same_result_by_other_code_is_promoted_and_goes_on(tried: Tried) -> None:
    """Catches a row that is counted twice or lost by the change, and an old that is lost."""
    trial = upgrade(tried.checkpoint, tried.job(counted_otherwise), batches=3)

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

    trial = upgrade(tried.checkpoint, lambda: run(job), batches=1)

    assert trial.is_same
    assert trial.result.first_version == 5


def test_query_that_ran_on_is_caught_up_before_it_is_promoted(tried: Tried) -> None:
    """Catches a promote that takes batches back which the sink has."""
    script = tried.job(counted)
    trial = upgrade(tried.checkpoint, script, batches=2)
    tried.run(*files(6, 1))

    with pytest.raises(InvalidArgumentError, match="gone on since"):
        trial.promote()
    again = upgrade(tried.checkpoint, script, batches=2)
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

    trial = upgrade(tried.checkpoint, tried.job(counted), batches=6)

    assert trial.is_same, str(trial)
    assert trial.result.version == 6 + more
    assert trial.result.first_version >= 6 + more - 2


@pytest.mark.few(1)
def test_one_more_aggregate_begins_with_state_that_is_transformed(tried: Tried) -> None:
    """Catches a change of the schema that is refused, or whose other columns are not compared."""
    job = tried.job(counted_more)
    with pytest.raises(InvalidArgumentError, match=r"new_schema=.*max.* To fix: .*--sql NAME="):
        upgrade(tried.checkpoint, job, batches=2)
    more = "SELECT key, {'count': value.count, 'sum': value.sum, 'max': NULL::BIGINT} AS value"
    rows = {0: f"{more} FROM state"}

    old = tried_again(tried, counted, counted_more)
    different = upgrade(tried.checkpoint, job, against=old, rows=rows, batches=2)

    assert not different.is_same
    by_name = {one.of: one for one in different.result.compared}
    assert by_name["batch 4"].columns == ("largest: only the new has it",)
    assert by_name["state 0"].columns == ("value.max: only the new has it",)
    trial = upgrade(
        tried.checkpoint,
        job,
        against=old,
        rows=rows,
        batches=2,
        ignore=["largest", "value.max"],
    )
    assert trial.is_same, str(trial)
    assert trial.result.ignored == ("largest", "value.max")
    assert [one.num_rows for one in trial.result.compared] == [3, 3, None]
    trial.promote()
    tried.run(*files(6, 1))
    assert tried.state == expected(7)
    newest = [eval(row) for row in tried.batches[6]]  # noqa: S307 (its own text)
    assert newest == [(f"k{key}", *expected(7)[f"k{key}"], 6 + key) for key in range(3)]


def tried_again(
    tried: Tried,
    old: Callable[[DataFrame], DataFrame],
    new: Callable[[DataFrame], DataFrame],
) -> Callable[[], Any]:
    """Return the old code as a job, which leaves the new one in its place."""

    def start() -> None:
        tried.job(old)
        try:
            tried.start()
        finally:
            tried.job(new)

    return start


IN_CI = ("join-left-outer", EVENT_TIME.name)
EVERY = [
    pytest.param(query, id=query.name, marks=[] if query.name in IN_CI else EXTENDED)
    for query in [*OPERATORS, EVENT_TIME]
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
        trial = upgrade(lane.checkpoint, lane.start, against=lane.start, batches=2)
        assert trial.is_same, str(trial)
        trial.promote()
        num_promoted += 1

    assert num_promoted
    assert lane.batches == reference.batches
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

    bad = upgrade(lane.checkpoint, lane.job(first_of_some), batches=4)

    by_name = {one.of: one for one in bad.result.compared}
    assert by_name.keys() == {*(f"batch {batch}" for batch in range(3, 7)), "state 0"}
    assert [name for name, one in by_name.items() if not one.is_same] == ["batch 5", "state 0"]
    assert by_name["batch 5"].rows == ({"change": "removed", "old": {"key": "k5", "value": 5}},)
    assert not any(one.why for one in by_name.values())
    good = upgrade(lane.checkpoint, lane.job(first_otherwise), batches=4)
    assert good.is_same, str(good)
    assert lane.rows == before
    page = tmp_path / "page.html"
    bad.report(page)
    assert "New code on real state" in page.read_text()
    good.promote()

    lane.run(*of_new_keys(7, 4))
    assert lane.rows == Counter([("stays", 0), *((f"k{batch}", batch) for batch in range(11))])


JOB = """
import sys
import statestore
from pyspark.sql import SparkSession, functions as sf

root, wrong = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
builder = builder.config("spark.ui.enabled", "false")
spark = statestore.configure(builder, backend="{backend}").getOrCreate()
events = spark.readStream.schema("key STRING, value BIGINT, ts TIMESTAMP")
events = events.option("maxFilesPerTrigger", 1).json(root + "/input")
value = sf.col("value") * (2 if wrong == "yes" else 1)
totals = events.groupBy("key").agg(sf.count("*").alias("number"), sf.sum(value).alias("total"))


def write(batch, number):
    batch.write.mode("overwrite").json(root + "/output/" + str(number))


{slow}
other = events.writeStream.format("noop").option("checkpointLocation", root + "/other").start()
query = totals.writeStream.outputMode("update").foreachBatch(write).option(
    "checkpointLocation", root + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
if other is not None:
    other.stop()
spark.stop()
"""


class Script:
    """A user's program in a file, which is run and tried by commands.

    Attributes:
        root: Directory of its input, checkpoint and output.
        path: The program.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "job.py"
        (root / "input").mkdir(parents=True)
        backend = "rocksdb" if "RocksDB" in PROVIDER else "filesystem"
        self.path.write_text(JOB.replace("{backend}", backend).replace("{slow}", ""))

    def feed(self, first: int, number: int) -> None:
        """Add files, a batch each."""
        for batch, file in enumerate(files(first, number), first):
            lines = [json.dumps(row) for row in file["events"]]
            path = self.root / "input" / f"{batch:05d}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_700_000_000 + batch,) * 2)

    def command(self, *arguments: str) -> list[str]:
        """Return a command of this package."""
        return [sys.executable, "-m", "statestore.cli", *arguments]

    def tried(self, wrong: str = "no") -> list[str]:
        """Return the command that tries it."""
        checkpoint = str(self.root / "checkpoint")
        how = ["--against", str(self.path), "--batches", "2", "--output", "json"]
        return self.command("try", *how, checkpoint, str(self.path), str(self.root), wrong)

    def run(self, wrong: str = "no") -> None:
        """Run it as its user does."""
        command = [sys.executable, str(self.path), str(self.root), wrong]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    @property
    def written(self) -> dict[str, tuple[int, int]]:
        """Number and total by key, as the newest batch wrote them."""
        found = {}
        output = sorted((self.root / "output").iterdir(), key=lambda path: int(path.name))
        for part in output[-1].glob("*.json"):
            for line in part.read_text().splitlines():
                row = json.loads(line)
                found[row["key"]] = (row["number"], row["total"])
        return found


@EXTENDED
@pytest.mark.timeout(600)
def test_script_is_tried_by_commands_and_goes_on_when_it_is_killed(tmp_path: Path) -> None:
    """Catches a script that writes its sink while it is tried, and a kill that stops the trial."""
    script = Script(tmp_path / "script")
    script.feed(0, 4)
    script.run()
    assert script.written == expected(4)
    output = sorted(path.name for path in (script.root / "output").iterdir())

    rounds = 0
    while True:
        rounds += 1
        process = subprocess.Popen(
            script.tried(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=5 + 3 * rounds if rounds < 6 else 200)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    assert process.returncode == 0, err.decode()[-3000:]
    printed = json.loads(out)
    assert printed["verdict"] == "equal"
    assert {*printed} == fields("try")
    assert rounds > 1
    assert sorted(path.name for path in (script.root / "output").iterdir()) == output
    script.feed(4, 1)
    script.run()
    again = subprocess.run(script.tried(), check=True, capture_output=True, timeout=120)
    printed = json.loads(again.stdout)
    assert (printed["verdict"], printed["first_version"], printed["version"]) == ("equal", 2, 5)
    trial = str(script.root / "checkpoint-trial")
    promote = script.command("promote", trial, "--yes")
    subprocess.run(promote, check=True, capture_output=True, timeout=60)
    script.feed(5, 2)
    script.run()
    assert script.written == expected(7)


class History:
    """A query that is run, tried, promoted and operated on at random, and a model of it in dicts.

    Attributes:
        tried: The query.
        states: What the model has of each version, by version.
        factor: What the running code multiplies values of k1 with.
    """

    def __init__(self, tried: Tried, seed: int) -> None:
        self.tried, self.random = tried, Random(seed)
        self.factor = 1
        self.num_fed = 0
        self.read: dict[int, int] = {}
        """The file that each batch read."""
        self.states: dict[int, dict[str, tuple[int, int]]] = {0: {}}

    @property
    def version(self) -> int:
        return max(self.states)

    def after(self, state: Mapping[str, tuple[int, int]], batch: int, factor: int) -> Any:
        """Return a state after one more batch."""
        found = dict(state)
        for key in range(3):
            number, total = found.get(f"k{key}", (0, 0))
            value = (self.read[batch] + key) * (factor if key == 1 else 1)
            found[f"k{key}"] = (number + 1, total + value)
        return found

    def job(self, factor: int) -> Callable[[], Any]:
        """Return a code as a job, which leaves the running one in its place."""
        new = counted_wrongly if factor == 2 else self.random.choice([counted, counted_otherwise])
        old = counted_wrongly if self.factor == 2 else counted
        return tried_again(self.tried, new, old)

    def run(self) -> None:
        """Run one to three batches."""
        number = self.random.randint(1, 3)
        self.tried.job(counted_wrongly if self.factor == 2 else counted)
        self.tried.run(*files(self.num_fed, number))
        for _ in range(number):
            batch = self.version
            self.read[batch] = self.num_fed
            self.num_fed += 1
            self.states[batch + 1] = self.after(self.states[batch], batch, self.factor)

    def operate(self) -> None:
        """Rescale, or delete a key: a batch that reads nothing."""
        ck = Checkpoint(self.tried.checkpoint)
        state = dict(self.states[self.version])
        if self.random.random() < 0.5:
            ck.rescale(ck.info.num_partitions % 4 + 1)
        else:
            key = self.random.choice(sorted(state))
            ck.edit(delete=f"key.key = '{key}'")
            del state[key]
        self.states[self.version + 1] = state

    def try_code(self) -> None:
        """Try the same code, or another; then promote or drop it."""
        factor, wanted = self.random.choice([1, 2]), self.random.randint(1, 4)
        first = self.version
        while first > max(self.version - wanted, 1) and first - 1 in self.read:
            first -= 1
        call = partial(
            upgrade,
            self.tried.checkpoint,
            self.job(factor),
            against=self.job(self.factor),
            batches=wanted,
        )
        if first == self.version:
            with pytest.raises(InvalidArgumentError, match="no batch"):
                call()
            return
        trial = call()
        assert (trial.result.first_version, trial.result.version) == (first, self.version)
        assert trial.is_same == (factor == self.factor)
        if self.random.random() < 0.3:
            trial.drop()
            return
        if not trial.is_same:
            with pytest.raises(InvalidArgumentError, match="differs"):
                trial.promote()
        trial.promote(accept=True)
        self.factor = factor
        for batch in range(first, self.version):
            self.states[batch + 1] = self.after(self.states[batch], batch, factor)

    def check(self) -> None:
        """Check state, sink and files."""
        assert self.tried.state == self.states[self.version]
        assert sorted(self.tried.batches) == sorted(self.read)
        assert set(self.tried.attempts.values()) == {1}
        ck = Checkpoint(self.tried.checkpoint)
        assert ck.info.newest_version == self.version
        assert ck.verify(deep=True).findings == ()


@EXTENDED
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, Random().randrange(1 << 32)])
@pytest.mark.parametrize("conf", [{}, FORMAT_2], ids=["v1", "v2"])
def test_random_histories_are_those_of_a_model(
    spark: SparkSession, tmp_path: Path, seed: int, conf: Mapping[str, str]
) -> None:
    """Catches a promote after which a row is there twice, or not, whatever was done before."""
    history = History(Tried(spark, tmp_path / "query", conf), seed)
    history.run()
    for _ in range(12):
        do = history.random.choice(
            [history.run, history.operate, history.try_code, history.try_code]
        )
        do()
        history.check()
