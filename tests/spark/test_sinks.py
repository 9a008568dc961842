"""Sinks that tell batches by their numbers go on where an operation made a batch, or took some."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from statestore import Checkpoint, capture_query, write_savepoint
from statestore.core.errors import InvalidArgumentError
from statestore.spark.failures import find_obstacle

from .conftest import EXTENDED, ON_EACH_SPARK, OURS, PROVIDER
from .harness import FORMAT, FORMAT_2, HEAP, Files, Lane
from .queries import single

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(not OURS or PROVIDER == HEAP, reason="state outlives its driver"),
]

FIRST_OF_EACH = single(
    "first-of-each",
    "append",
    lambda events: events.dropDuplicates(["key"]).select("key", "value"),
    [],
)
INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"
RETAINED = "spark.sql.streaming.minBatchesToRetain"
LOG = "_spark_metadata"
Rows = Counter[tuple[str, int]]


class Sunk(Lane):
    """A query with a sink that tells batches by number, and what its sink should hold.

    Attributes:
        output: The sink's directory.
        seen: Keys that the query should know.
        expected: Rows that the sink should hold.
    """

    def __init__(
        self, spark: SparkSession, root: Path, interval: int = 3, conf: dict[str, str] | None = None
    ) -> None:
        conf = {INTERVAL: str(interval), **(conf or {})}
        super().__init__(spark, FIRST_OF_EACH, PROVIDER, root, conf)
        self.output = root / "output"
        self.seen: set[str] = set()
        self.expected: Rows = Counter()

    def run_batches(self, number: int) -> None:
        """Run batches with a key that is new, and two that mostly are not."""
        files: list[Files] = []
        for batch in range(self._fed, self._fed + number):
            rows = [(key, batch) for key in (f"k{batch}", "stays", "gone")]
            new = [(key, value) for key, value in rows if key not in self.seen]
            self.expected.update(new)
            self.seen |= {key for key, _ in new}
            at = "2024-01-01T00:00:00.000Z"
            files.append({"events": [{"key": key, "value": n, "ts": at} for key, n in rows]})
        self.run(*files)

    def begin_output(self, name: str) -> None:
        """Go on with a sink that has nothing."""
        self.output = self.root / name
        self.expected = Counter()

    def rows(self) -> Rows:
        """Return what the sink holds."""
        raise NotImplementedError


class FileSunk(Sunk):
    """One whose sink is Spark's file sink, whose log is made short every third batch."""

    def _keep_rows(self, frame: DataFrame) -> Any:
        return frame.writeStream.format("parquet").option("path", str(self.output))

    def rows(self) -> Rows:
        """Return what a reader of Spark's finds in the output."""
        read = self.spark.read.schema("key STRING, value BIGINT").parquet(str(self.output))
        return Counter((row.key, row.value) for row in read.collect())


class NumberedSunk(Sunk):
    """One whose sink is a function that leaves out a batch that it has, by its number.

    Attributes:
        computes_all: Whether it computes that batch all the same.
    """

    def __init__(
        self, spark: SparkSession, root: Path, interval: int = 3, conf: dict[str, str] | None = None
    ) -> None:
        super().__init__(spark, root, interval, conf)
        self._newest, self._rows = -1, Counter[tuple[str, int]]()
        self.computes_all = True

    def begin_output(self, name: str) -> None:
        super().begin_output(name)
        self._newest, self._rows = -1, Counter()

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        if batch_id <= self._newest and not self.computes_all:
            return
        rows = Counter((row.key, row.value) for row in frame.collect())
        if batch_id > self._newest:
            self._newest, self._rows = batch_id, self._rows + rows

    def rows(self) -> Rows:
        """Return what the function kept."""
        return self._rows


def _rescale(lane: Sunk) -> None:
    checkpoint = Checkpoint(lane.checkpoint)
    checkpoint.rescale(2 if checkpoint.info.num_partitions != 2 else 6)


def _rescale_and_undo(lane: Sunk) -> None:
    _rescale(lane)
    Checkpoint(lane.checkpoint).undo_rescale()


def _edit(lane: Sunk) -> None:
    # A second edit in a row needs a row of its own.
    gone = "gone" if "gone" in lane.seen else min(lane.seen)
    Checkpoint(lane.checkpoint).edit(delete=f"key.key = '{gone}'")
    lane.seen.discard(gone)


def _forget(lane: Sunk) -> None:
    # Something is forgotten each time, and the sum of all stays.
    known = next(key for key in sorted(lane.seen) if key not in ("gone", "stays"))
    Checkpoint(lane.checkpoint).forget(keys=pa.table({"key.key": [known]}))
    lane.seen.discard(known)


def _move(lane: Sunk) -> Path:
    lane.root.joinpath("moved").mkdir(exist_ok=True)
    number = len(list((lane.root / "moved").iterdir()))
    return lane.root / "moved" / f"{number}"


def _restore(lane: Sunk) -> None:
    moved = _move(lane)
    savepoint = Checkpoint(lane.checkpoint).savepoint(moved.with_suffix(".savepoint")).made
    savepoint.restore(moved)
    lane.checkpoint = moved


def _restore_to_new(lane: Sunk) -> None:
    _restore(lane)
    lane.begin_output(lane.checkpoint.name)


def _branch_to_new(lane: Sunk) -> None:
    moved = _move(lane)
    Checkpoint(lane.checkpoint).branch(moved)
    lane.checkpoint = moved
    lane.begin_output(moved.name)


def _bootstrap(lane: Sunk) -> None:
    moved = _move(lane)
    session = lane.session()
    stream = session.readStream.schema(lane.query.schemas["events"])
    frame = lane.query.build(session, {"events": stream.json(str(lane.root / "input" / "events"))})
    captured = capture_query(frame, moved.with_suffix(".captured"), output_mode="append")
    written = write_savepoint(
        moved.with_suffix(".savepoint"),
        like=captured,
        rows={0: pa.table({"key.key": sorted(lane.seen)})},
    ).made
    written.restore(moved)
    lane.checkpoint = moved
    lane.begin_output(moved.name)


def _rescale_and_restore(lane: Sunk) -> None:
    _rescale(lane)
    _restore(lane)


def _in_turn(lane: Sunk) -> None:
    for operate in (_rescale, _edit, _forget):
        operate(lane)


Operate = Callable[[Sunk], None]
IN_TURN: list[tuple[str, list[Operate]]] = [
    ("in-turn", [_rescale, _edit, _forget]),
    ("rescale", [_rescale] * 3),
    ("undo", [_rescale_and_undo] * 3),
    ("edit", [_edit] * 3),
    ("forget", [_forget] * 3),
    ("restore", [_restore, _rescale_and_restore, _restore]),
    ("restore-to-new", [_restore_to_new] * 3),
    ("branch-to-new", [_branch_to_new] * 3),
    ("bootstrap", [_bootstrap] * 3),
    ("new-and-in-turn", [_restore_to_new, _rescale, _edit]),
    ("in-turn-and-restored", [_restore, _in_turn, _restore]),
]


def run_between(lane: Sunk, first: Operate, second: Operate, third: Operate) -> None:
    """Run batches before, between and after operations; compare what the sink holds."""
    lane.run_batches(2)
    assert lane.rows() == lane.expected

    first(lane)
    lane.run_batches(2)
    assert lane.rows() == lane.expected
    second(lane)
    third(lane)
    lane.run_batches(5)

    assert sum(lane.expected.values()) >= 5
    assert lane.rows() == lane.expected


@pytest.mark.parametrize(
    ("sink", "operations"),
    [
        pytest.param(
            sink,
            operations,
            id=f"{sink.__name__}-{name}",
            marks=[]
            if (sink, name) in ((FileSunk, "in-turn"), (FileSunk, "in-turn-and-restored"))
            else ON_EACH_SPARK
            if (sink, name) == (FileSunk, "new-and-in-turn")
            else [EXTENDED],
        )
        for sink in (FileSunk, NumberedSunk)
        for name, operations in IN_TURN
    ],
)
def test_output_is_whole_when_operations_made_batches(
    spark: SparkSession, tmp_path: Path, sink: type[Sunk], operations: list[Operate]
) -> None:
    """Catches output that cannot be read, lacks rows or has some twice, and a query that dies.

    The log is made short in batches 2, 5 and 8: by the operation itself, and by the query.
    """
    run_between(sink(spark, tmp_path), *operations)


def _lose_the_commit(lane: Sunk) -> None:
    """The driver dies when the sink has the newest batch, and the commit log has not."""
    newest = max(int(path.name) for path in lane.checkpoint.glob("commits/[0-9]*"))
    for name in (f"{newest}", f".{newest}.crc"):
        (lane.checkpoint / "commits" / name).unlink(missing_ok=True)


def _damage_and_repair(lane: Sunk) -> None:
    version = Checkpoint(lane.checkpoint).info.newest_version
    damaged = [*lane.checkpoint.glob(f"state/0/*/{version}[._]*")]
    assert damaged
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-7])
    assert Checkpoint(lane.checkpoint).repair().done


def _lose_the_commit_and_restore(lane: Sunk) -> None:
    _lose_the_commit(lane)
    moved = _move(lane)
    Checkpoint(lane.checkpoint).restore(moved)
    lane.checkpoint = moved


def _lose_the_commit_and_restore_apart(lane: Sunk) -> None:
    _lose_the_commit(lane)
    moved = _move(lane)
    options = {"checkpointStorage": str(lane.root / "elsewhere")}
    Checkpoint(lane.checkpoint).restore(Checkpoint(moved, storage_options=options))
    lane.checkpoint = moved


def _lose_the_commit_at_a_late_clock(lane: Sunk) -> None:
    _lose_the_commit(lane)
    for path in (lane.checkpoint / "offsets", lane.output / LOG):
        for file in path.iterdir():
            then = file.stat().st_mtime - 30
            os.utime(file, (then, then))


@pytest.mark.parametrize(
    "happens",
    [
        _lose_the_commit,
        _lose_the_commit_at_a_late_clock,
        _damage_and_repair,
        _lose_the_commit_and_restore,
        pytest.param(_lose_the_commit_and_restore_apart, marks=EXTENDED),
    ],
)
@pytest.mark.parametrize("conf", [{}, FORMAT_2], ids=["v1", "v2"])
@pytest.mark.parametrize("num_batches", [2, 3])
def test_batch_that_the_file_sink_has_runs_again(
    spark: SparkSession,
    tmp_path: Path,
    conf: dict[str, str],
    happens: Callable[[Sunk], None],
    num_batches: int,
) -> None:
    """Catches a query that never starts again: its sink leaves out a batch whose state is missing.

    The third batch makes the sink's log short.
    """
    lane = FileSunk(spark, tmp_path, conf=conf)
    lane.run_batches(num_batches)
    entry = lane.output / LOG / ("1" if num_batches == 2 else "2.compact")
    before = entry.read_bytes()

    happens(lane)
    lane.run_batches(2)

    assert lane.rows() == lane.expected
    assert Checkpoint(lane.checkpoint).verify(deep=True).ok
    # Where its state is there, the batch stays as it is: who reads the output as it grows has it.
    is_needed = conf or "repair" in happens.__name__ or "restore" in happens.__name__
    assert (entry.read_bytes() != before) == bool(is_needed)


def _lose_the_commit_before_the_sink_has_it(lane: Sunk) -> None:
    """The driver dies when the state of the newest batch is written, and no sink has it."""
    _lose_the_commit(lane)
    newest = max(int(path.name) for path in lane.checkpoint.glob("offsets/[0-9]*"))
    for path in lane.output.glob(f"{LOG}/*{newest}*"):
        # The sum of an entry has its name with a dot before and `.crc` behind.
        if path.name.strip(".").split(".")[0] == f"{newest}":
            path.unlink()


def _lose_the_commit_and_operate(lane: Sunk) -> None:
    _lose_the_commit(lane)
    for operate in (_rescale, _edit, _forget):
        with pytest.raises(InvalidArgumentError) as raised:
            operate(lane)
        assert raised.value.kind == "unfinished-batch"


RANDOMLY: list[Operate] = [
    *(_lose_the_commit, _lose_the_commit_before_the_sink_has_it, _lose_the_commit_and_operate),
    *(_lose_the_commit_and_restore, _lose_the_commit_and_restore_apart, _damage_and_repair),
    *(_rescale, _rescale_and_undo, _edit, _forget, _restore, _restore_to_new, _branch_to_new),
]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[EXTENDED] if seed else []) for seed in range(12)]
)
def test_output_is_whole_whatever_happens_between_runs(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Catches rows that are gone or there twice after deaths and operations in any order."""
    rng = random.Random(seed)
    conf = rng.choice([{}, FORMAT_2])
    lane = FileSunk(spark, tmp_path, interval=rng.randint(2, 4), conf=conf)
    lane.run_batches(2)

    happened: list[str] = []
    for _ in range(6):
        happens = rng.choice(RANDOMLY)
        happened.append(happens.__name__)
        happens(lane)
        lane.run_batches(rng.randint(1, 3))
        assert lane.rows() == lane.expected, happened

    assert Checkpoint(lane.checkpoint).verify(deep=True).ok


@pytest.mark.parametrize("conf", [{}, FORMAT_2], ids=["v1", "v2"])
def test_new_query_is_refused_at_the_output_of_another(
    spark: SparkSession, tmp_path: Path, conf: dict[str, str]
) -> None:
    """Catches output that is gone, and input that a query with a new checkpoint leaves out."""
    lane = FileSunk(spark, tmp_path / "first", conf=conf)
    lane.run_batches(1)
    other = FileSunk(spark, tmp_path / "second", conf=conf)
    other.output = lane.output

    for _ in range(2):
        assert "[sink-apart] the file sink has batches" in _refusal(other)

    assert lane.rows() == lane.expected


def test_batch_of_another_query_is_left_where_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Catches output that is gone, and a batch left out, where both ended with one number."""
    lane = FileSunk(spark, tmp_path / "first", conf=FORMAT_2)
    lane.run_batches(1)
    other = FileSunk(spark, tmp_path / "second", conf=FORMAT_2)
    other.run_batches(1)
    _lose_the_commit(other)
    other.output = lane.output
    then = (lane.output / LOG / "0").stat().st_mtime - 600
    os.utime(lane.output / LOG / "0", (then, then))

    assert "[sink-apart] the file sink has batches" in _refusal(other)

    assert lane.rows() == lane.expected


def test_branch_takes_nothing_out_of_the_output_of_its_original(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches rows of the original that are gone, since the branch had its batch planned, too."""
    lane = FileSunk(spark, tmp_path, conf=FORMAT_2)
    lane.run_batches(2)
    _lose_the_commit(lane)
    _delete_entries(lane, 1)
    moved = _move(lane)
    Checkpoint(lane.checkpoint).branch(moved)
    lane.run_batches(1)
    assert lane.rows() == lane.expected
    original, lane.checkpoint = lane.checkpoint, moved

    assert "[sink-apart] the file sink has batches" in _refusal(lane)

    lane.checkpoint = original
    assert lane.rows() == lane.expected


@pytest.mark.needs("pinned-format")
@pytest.mark.parametrize("formats", ["12", "21"])
def test_batch_is_given_again_by_the_format_that_the_query_has(
    spark: SparkSession, tmp_path: Path, formats: str
) -> None:
    """Catches a query that never starts again, since the session has another format than it."""
    lane = FileSunk(spark, tmp_path, conf={FORMAT: formats[0]})
    lane.run_batches(2)
    before = (lane.output / LOG / "1").read_bytes()

    _lose_the_commit(lane)
    lane.conf[FORMAT] = formats[1]
    lane.run_batches(2)

    assert lane.rows() == lane.expected
    assert ((lane.output / LOG / "1").read_bytes() != before) == (formats[0] == "2")


def test_operations_in_a_row_may_be_more_than_batches_that_are_retained(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a query that is refused for ever: Spark purges what says that operations made them.

    It does so before it plans the first batch, so nothing else than the start can find them.
    """
    conf = {RETAINED: "2", "spark.sql.streaming.asyncLogPurge.enabled": "false"}
    lane = FileSunk(spark, tmp_path, interval=10, conf=conf)
    lane.run_batches(2)
    for operate in (_rescale, _edit, _forget):
        operate(lane)

    for _ in range(2):
        lane.run_batches(1)
        assert lane.rows() == lane.expected


@pytest.mark.parametrize("computes", [True, False])
def test_function_that_has_a_batch_must_compute_it(
    spark: SparkSession, tmp_path: Path, *, computes: bool
) -> None:
    """Catches a query that is started for ever, since its sink leaves a batch out each time."""
    lane = NumberedSunk(spark, tmp_path, conf=FORMAT_2)
    lane.run_batches(2)
    _lose_the_commit(lane)
    lane.computes_all = computes

    if computes:
        lane.run_batches(2)
        assert lane.rows() == lane.expected
    else:
        with pytest.raises(StreamingQueryException) as raised:
            lane.run_batches(1)
        assert find_obstacle(raised.value) == "sink-apart"


def _refusal(lane: Sunk) -> str:
    with pytest.raises(IllegalArgumentException) as raised:
        lane.run()
    return str(raised.value)


def _delete_entries(lane: Sunk, *batches: int) -> None:
    for batch in batches:
        (lane.output / LOG / f"{batch}").unlink()
        (lane.output / LOG / f".{batch}.crc").unlink(missing_ok=True)


def test_file_sink_that_would_leave_out_rows_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches batches that a restored query runs and its sink leaves out without a word.

    And the way out of it that the page of the error tells: it names both files of an entry.
    """
    lane = FileSunk(spark, tmp_path, interval=10)
    lane.run_batches(2)
    older = Checkpoint(lane.checkpoint).savepoint(tmp_path / "older").made
    lane.run_batches(2)
    restored = tmp_path / "restored"
    older.restore(restored)
    lane.checkpoint = restored

    refused = _refusal(lane)

    assert "[sink-apart] the file sink has batches" in refused
    assert "newest_batch=3" in refused
    assert "next_batch=2" in refused
    assert not (restored / "offsets" / "2").exists()
    _delete_entries(lane, 2, 3)
    lane.run_batches(1)
    assert lane.rows() == lane.expected

    for lost in (2, 4):
        _delete_entries(lane, lost)
        assert "[sink-apart] the file sink lacks batches" in _refusal(lane)
    lane.begin_output("new")
    lane.run_batches(1)
    assert lane.rows() == lane.expected


def test_file_sink_that_has_files_and_lost_its_log_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a lost log that is taken for a new output: readers see no row of before any more.

    The entry that is left is of a batch that an operation made: it names no file.
    """
    lane = FileSunk(spark, tmp_path)
    lane.run_batches(3)
    _rescale(lane)
    lane.run_batches(1)
    log = lane.output / LOG
    whole = shutil.copytree(log, tmp_path / "whole")

    for left in ("3", "none"):
        for path in log.iterdir():
            if path.name not in (left, f".{left}.crc"):
                path.unlink()
        assert "[sink-apart] the file sink lacks batches" in _refusal(lane)
    assert not log.exists()
    refused = _refusal(lane)
    assert "[sink-apart] the file sink lacks batches" in refused
    assert re.search(r"found=file:\S+/part-", refused)
    assert not log.exists(), "an empty log hides every row"

    whole.rename(log)
    lane.run_batches(1)
    assert lane.rows() == lane.expected
    lane.begin_output("new")
    (lane.output / "checkpoint").mkdir(parents=True)
    for name in ("_SUCCESS", "README.md", "checkpoint/part-0"):
        (lane.output / name).touch()
    (lane.output / "day=1").mkdir()
    lane.run_batches(1)
    assert lane.rows() == lane.expected


def test_long_log_is_refused_as_soon_as_one_of_its_batches_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a start that reads the entry of every batch there ever was before it is refused."""
    lane = FileSunk(spark, tmp_path)
    lane.run_batches(1)
    entry = (lane.checkpoint / "offsets" / "0").read_bytes()
    for batch in range(1, 300):
        (lane.checkpoint / "offsets" / f"{batch}").write_bytes(entry)
        (lane.checkpoint / "commits" / f"{batch}").touch()
    shutil.rmtree(lane.output / LOG)
    jvm: Any = spark._jvm
    read = jvm.org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics().get("file")
    before = read.getLong("bytesRead")

    assert "missing_batch=0" in _refusal(lane)

    assert read.getLong("bytesRead") - before < 300 * len(entry)


def test_new_output_is_gone_on_with_where_its_first_batch_was_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches a query that never starts again: its output has files, and no entry that has any."""
    lane = FileSunk(spark, tmp_path)
    lane.run_batches(3)
    _restore_to_new(lane)
    lane.run_batches(1)

    _lose_the_commit_before_the_sink_has_it(lane)
    lane.run_batches(2)

    assert lane.rows() == lane.expected


@EXTENDED
def test_rescale_is_undone_after_a_start_without_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches an entry of the rescale's batch that is there before the rescale cannot go back."""
    lane = FileSunk(spark, tmp_path)
    lane.run_batches(2)
    checkpoint = Checkpoint(lane.checkpoint)
    checkpoint.rescale(6)

    lane.run()
    checkpoint.undo_rescale()
    lane.run_batches(2)

    assert lane.rows() == lane.expected


@EXTENDED
@pytest.mark.parametrize("waits", [True, False], ids=["with-a-batch-between", "at-once"])
def test_conversion_to_spark_after_an_operation_is_what_its_plan_says(
    spark: SparkSession, tmp_path: Path, *, waits: bool
) -> None:
    """Catches output that is lost without a word, a way out that is none, and a false alarm."""
    lane = FileSunk(spark, tmp_path)
    lane.run_batches(3)
    _rescale(lane)
    if waits:
        lane.run_batches(1)
    new = tmp_path / "converted"
    conversion = Checkpoint(lane.checkpoint, spark=spark).convert(new, "spark-hdfs")
    lane.checkpoint = new

    if waits:
        assert conversion.unseen == ()
        lane.run_batches(3)
        assert lane.rows() == lane.expected
        return
    assert conversion.unseen == (3,)
    assert "no sink was given batch 3" in str(conversion)
    lane.run_batches(1)
    with pytest.raises(Py4JJavaError, match=f"{LOG}/3"):
        lane.rows()
    with pytest.raises(StreamingQueryException, match="BATCH_METADATA_NOT_FOUND"):
        lane.run_batches(1)
