"""Rows of a stopped query's checkpoint are changed in place, and keys forgotten in every file."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pytest

from statestore import CapturedQuery, Checkpoint, Edited, write_savepoint
from statestore.checkpoint.commit import publish_delta
from statestore.checkpoint.query_log import CommitEntry, LogName
from statestore.codec.column_family import NO_DEFAULT, ColumnFamily
from statestore.core.clock import LAST_MS, ManualClock
from statestore.core.errors import (
    FencedError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.io.local import LocalFileIO
from statestore.operations import full_state
from statestore.operations.reading.condition import Condition
from statestore.operations.writing import decide
from statestore.operations.writing.found import find_rows
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import schema_of, unsafe_row
from tests.checkpoints import WordStore, files_below
from tests.fault_io import Fault, FaultFileIO
from tests.rescaled import end_process, newest
from tests.seams import at

KEYS = [0x1234_5678_9000 + number for number in range(40)]
"""Numbers whose bytes are nowhere else."""


def make(tmp_path: Path, **how: Any) -> MadeCheckpoint:
    """Make a checkpoint of an aggregation, a join, and an aggregation without a key."""
    (tmp_path / "scratch").mkdir()
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch", **how)
    made.run_batch(dict.fromkeys(KEYS, 1))
    made.run_batch(dict.fromkeys(KEYS[:20], 2))
    return made


OF_SPARK_4_2 = ("spark.sql.streaming.stateStore.rowChecksum.enabled",)
"""What the conf of a batch has since that release."""


@pytest.mark.parametrize(
    ("operator", "conf", "merges"),
    [
        ("stateStoreSave", (), True),
        ("StatefulStreamlineAggregate", (), True),
        ("sessionWindowStateStoreSaveExec", (), True),
        ("dedupe", (), False),
        ("dedupe", OF_SPARK_4_2, True),
        ("dedupeWithinWatermark", OF_SPARK_4_2, True),
        ("flatMapGroupsWithState", OF_SPARK_4_2, False),
    ],
)
def test_zeros_are_one_key_where_spark_groups_by_it(
    tmp_path: Path, operator: str, conf: tuple[str, ...], *, merges: bool
) -> None:
    """Catches a row under -0.0, which Spark never finds, in real-time mode neither."""
    family = ColumnFamily(0, "default", schema_of(d="double"), schema_of(n="long"))
    made = MadeCheckpoint(
        str(tmp_path / "query"), operators=((operator, (WordStore((family,), columns=("d",)),)),)
    )
    made.run_batch({("default", unsafe_row(0)): (1,)})  # the bits of 0.0
    entry = Path(made.path, "offsets", "0")
    version, metadata, *sources = entry.read_text().splitlines()
    fields = json.loads(metadata)
    fields["conf"] |= dict.fromkeys(conf, "false")
    entry.write_text("\n".join([version, json.dumps(fields), *sources]))

    Checkpoint(made.path).edit(0, upsert=pa.table({"key.d": [-0.0], "value.n": [2]}))

    rows = Checkpoint(made.path).rows(0).read(flatten=True)
    found = dict(zip(map(str, rows["key.d"].to_pylist()), rows["value.n"].to_pylist(), strict=True))
    assert found == ({"0.0": 2} if merges else {"0.0": 1, "-0.0": 2})


def test_an_edit_keeps_no_file_open_for_each_state_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an edit that needs as many open files as there are state partitions, and ends."""
    made = make(tmp_path, num_partitions=3)
    still_open: list[int] = []

    def count(name: str) -> None:
        opened = []
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                opened.append(descriptor.readlink().name)
        still_open.append(sum(one.startswith(name) for one in opened))

    def find(*given: Any) -> Any:
        found = find_rows(*given)
        count("gone-")
        return found

    def publish(location: Any, new: Any, *given: Any, **how: Any) -> Any:
        count(f"new-{new.checkpoint_id}")
        return publish_delta(location, new, *given, **how)

    monkeypatch.setattr(decide, "find_rows", find)
    monkeypatch.setattr(full_state, "publish_delta", publish)

    Checkpoint(made.path).edit(0, delete=f"k < {KEYS[20]}")
    assert still_open == [0]
    Checkpoint(made.path).restore(str(tmp_path / "more"), num_partitions=6)

    assert len(still_open) > 6
    assert still_open == [0] * len(still_open)


def test_an_edit_keeps_no_database_open_for_each_state_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches an edit of 200 state partitions that takes 1,600 threads, and ends.

    Each condition is a database of its own. Also one that counts cores that it may not use.
    """
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # as the limit of a container
    made = make(tmp_path, num_partitions=16)
    alive: WeakSet[Condition] = WeakSet()
    counts: list[int] = []

    def opened(text: str) -> Condition:
        condition = Condition(text)
        alive.add(condition)
        counts.append(len(alive))
        return condition

    monkeypatch.setattr(decide, "Condition", opened)
    put = pa.table({"key.k": [KEYS[3], 7], "value.value": [70, 80]})

    Checkpoint(made.path).edit(0, delete=f"k < {KEYS[2]}", upsert=put)

    assert len(counts) >= 16
    assert max(counts) <= 5  # four at least are worked on, which wait for the storage
    assert Checkpoint(made.path).rows(0).read().num_rows == 39


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.few(2)
def test_an_edit_is_the_next_version(tmp_path: Path, backend: str, checkpoint_format: int) -> None:
    """Catches a row lost or doubled, counts that no longer fit, a version before that is gone."""
    made = make(tmp_path, backend=backend, checkpoint_format=checkpoint_format)
    checkpoint = Checkpoint(made.path)
    before = files_below(tmp_path / "query")
    put = pa.table({"key.k": [KEYS[3], 7], "value.value": [70, 80]})

    plan = checkpoint.edit(0, delete=f"k < {KEYS[2]}", upsert=put, dry_run=True)
    assert f"2 rows of 40 deleted, where k < {KEYS[2]}" in str(plan)
    assert "2 rows put, in place of those of 1 key" in str(plan)
    assert f'{{"k": {KEYS[0]}}}' in str(plan)
    assert not plan.done
    assert files_below(tmp_path / "query") == before
    done = checkpoint.edit(0, delete=f"k < {KEYS[2]}", upsert=put)
    assert done == replace(plan, done=True)

    expected = made.expected()
    rows = expected[0, "default"]
    del rows[unsafe_row(KEYS[0])], rows[unsafe_row(KEYS[1])]
    rows |= {unsafe_row(KEYS[3]): unsafe_row(70), unsafe_row(7): unsafe_row(80)}
    assert read_checkpoint(made.path) == expected
    assert checkpoint.info.newest_version == 3
    assert checkpoint.verify(versions="all", deep=True).findings == ()
    assert checkpoint.rows(0, version=2).read().num_rows == 40
    # What a batch goes on from: its deltas name the edit's.
    made.numbers |= {7: 80}
    made.numbers.pop(KEYS[0])
    checkpoint.edit(0, delete=pa.table({"key.k": [KEYS[5], KEYS[5]]}))
    del rows[unsafe_row(KEYS[5])]
    assert read_checkpoint(made.path) == expected


def test_an_edit_sets_the_watermark_forward_and_never_back(tmp_path: Path) -> None:
    """Catches rows that Spark never evicts: it takes what is before the planned one to be gone."""
    made = make(tmp_path, checkpoint_format=2)
    checkpoint = Checkpoint(made.path)

    plan = checkpoint.edit(watermark_ms=5000)

    assert plan.families == ()
    assert watermark_of(made.path, "offsets", 2) == 0
    assert watermark_of(made.path, "commits", 2) == 5000
    assert read_checkpoint(made.path) == made.expected()
    with pytest.raises(InvalidArgumentError, match="watermark_ms_now=5000"):
        checkpoint.edit(watermark_ms=4999, dry_run=True)
    checkpoint.edit(0, delete=f"k = {KEYS[0]}")
    assert watermark_of(made.path, "offsets", 3) == 0
    assert watermark_of(made.path, "commits", 3) == 5000


def watermark_of(checkpoint: str | Path, log: LogName, batch: int) -> int:
    """Return the watermark in an entry of one of Spark's logs."""
    fields = json.loads((Path(checkpoint) / log / str(batch)).read_text().splitlines()[1])
    return fields["batchWatermarkMs" if log == "offsets" else "nextBatchWatermarkMs"]


@pytest.mark.parametrize("operation", ["edit", "forget"])
def test_a_batch_that_a_query_runs_in_place_of_a_killed_one_gives_its_sink_nothing(
    tmp_path: Path, operation: str
) -> None:
    """Catches rows that come out twice: what a query gave its sink no repeated edit knows."""
    made = make(tmp_path)
    Checkpoint(made.path).edit(watermark_ms=5000)

    def act(checkpoint: Checkpoint) -> None:
        if operation == "edit":
            checkpoint.edit(0, delete=f"k = {KEYS[0]}")
        else:
            checkpoint.forget(f"k = {KEYS[0]}", operator=0)

    for number in count():
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(number, calls=("write",)))
        with pytest.raises(StorageError):
            act(at(made.path, io=io))
        end_process(made.path)
        if newest(made.path, "offsets") == 3:
            break

    assert newest(made.path, "commits") == 2
    planned = [watermark_of(made.path, "offsets", batch) for batch in (2, 3)]
    assert planned[0] == planned[1]
    act(Checkpoint(made.path))
    assert watermark_of(made.path, "commits", 3) == 5000


def join_by_time(path: Path) -> MadeCheckpoint:
    """Make a checkpoint of a join as in state format 4, and set its watermark."""
    family = ColumnFamily(
        1, "left-tsWithKey", schema_of(k="long", __event_time="long"), schema_of(v="long"),
        encoder="timestamp-postfix",
    )  # fmt: skip
    stores = (WordStore((NO_DEFAULT, family)),)
    made = MadeCheckpoint(str(path), operators=(("symmetricHashJoin", stores),))
    made.run_batch({})
    Checkpoint(made.path).edit(watermark_ms=5000)
    return made


def test_rows_of_a_join_that_were_put_and_have_ended_are_evicted(tmp_path: Path) -> None:
    """Catches rows that a savepoint was given, which Spark takes to be gone and never evicts."""
    made = join_by_time(tmp_path / "query")

    def late_by(path: Path) -> None:
        entry = path / "offsets" / "1"
        entry.write_text(entry.read_text().replace('WatermarkMs":0', 'WatermarkMs":4000', 1))

    late_by(tmp_path / "query")
    row = pa.table({"key.k": [1, 2], "key.__event_time": [1_000_000] * 2, "value.v": [1, 2]})

    put = Checkpoint(made.path).transform(tmp_path / "put", {"left-tsWithKey": Edited(upsert=row)})
    there = put.made.restore(tmp_path / "restored").made
    assert watermark_of(tmp_path / "restored", "offsets", 1) == 0
    late_by(tmp_path / "restored")
    there.transform(tmp_path / "deleted", {"left-tsWithKey": Edited(delete="key.k = 1")})

    assert watermark_of(tmp_path / "deleted", "offsets", 1) == 4000
    assert watermark_of(tmp_path / "deleted", "commits", 1) == 5000


@pytest.mark.parametrize("watermark_ms", [nan, inf, 1.5, True, "7", -1, 2**70, LAST_MS + 1])
def test_what_is_no_watermark_is_refused(tmp_path: Path, watermark_ms: Any) -> None:
    """Catches a commit log that Spark cannot read, or from which all rows are late."""
    made = make(tmp_path)
    before = files_below(tmp_path / "query")
    checkpoint, captured = Checkpoint(made.path), CapturedQuery(made.path, 1)

    for act in (
        lambda: checkpoint.edit(watermark_ms=watermark_ms),
        lambda: write_savepoint(tmp_path / "s", like=captured, rows={}, watermark_ms=watermark_ms),
    ):
        with pytest.raises(InvalidArgumentError, match=r"is not a time.*watermark_ms="):
            act()

    assert files_below(tmp_path / "query") == before


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_what_an_entry_of_the_commit_log_says_of_sinks_is_kept(
    tmp_path: Path, checkpoint_format: int
) -> None:
    """Catches a sink that Spark takes for a new one after an operation."""
    made = make(tmp_path, checkpoint_format=checkpoint_format)
    query = tmp_path / "query"
    newest = query / "commits" / "1"
    entry = CommitEntry.parse(newest.read_text(), "")
    sink = {"sinkName": "out", "commitOffset": "1", "providerName": "parquet", "apiVersion": "v1"}
    sinks = {"out": sink | {"isActive": True}}
    # As Spark 4.3 writes it with queryEvolution.enableSinkEvolution.
    entry = CommitEntry("v3", {**entry.fields, "sinkMetadataMap": sinks})
    newest.write_text(entry.encode())
    checkpoint = Checkpoint(made.path)

    checkpoint.edit(0, delete=f"k = {KEYS[0]}", watermark_ms=5000)
    checkpoint.rescale(2)
    savepoint = checkpoint.savepoint(tmp_path / "savepoint").made
    restored = savepoint.restore(tmp_path / "restored", num_partitions=4).made

    for path in (query / "commits" / "2", query / "commits" / "3", *_commits_of(tmp_path)):
        kept = CommitEntry.parse(path.read_text(), "")
        assert (kept.version, kept.fields["sinkMetadataMap"]) == ("v3", sinks)
        assert bool(kept.checkpoint_ids) == (checkpoint_format == 2)
    assert restored.verify(deep=True).findings == ()


def _commits_of(root: Path) -> list[Path]:
    found = sorted(root.glob("restored/commits/[0-9]*"))
    assert found
    return found


def test_rows_of_a_join_do_not_expire_by_a_column(tmp_path: Path) -> None:
    """Catches a side of a join whose count of rows no longer fits them."""
    made = make(tmp_path)

    with pytest.raises(InvalidArgumentError, match="belong together"):
        Checkpoint(made.path).edit(
            "left-keyToNumValues", expire="value.value", older_than=timedelta(days=1), dry_run=True
        )


def test_an_edit_waits_for_the_batch_under_way(tmp_path: Path) -> None:
    """Catches an edit under a batch whose rows may be in the sink already."""
    made = make(tmp_path)
    (tmp_path / "query" / "commits" / "1").unlink()

    with pytest.raises(InvalidArgumentError, match="planned but not committed"):
        Checkpoint(made.path).edit(0, delete="k = 0", dry_run=True)
    with pytest.raises(InvalidArgumentError, match="planned but not committed"):
        Checkpoint(made.path).forget("k = 0", dry_run=True)


def test_a_stream_is_read_once_and_all_of_it_counts(tmp_path: Path) -> None:
    """Catches rows that are read to say what is done, and are then neither put nor deleted."""
    made = make(tmp_path)
    checkpoint = Checkpoint(made.path)
    put = pa.table({"key.k": [KEYS[3], 7], "value.value": [70, 80]})
    gone = pa.table({"key.k": [KEYS[0]]})

    done = checkpoint.edit(0, delete=gone.to_reader(), upsert=put.to_reader())
    assert "1 of 1 key has rows: 1 row of 40 deleted" in str(done)
    assert "2 rows put" in str(done)
    to = tmp_path / "savepoint"
    more = pa.table({"key.k": [8], "value.value": [9]}).to_reader()
    checkpoint.transform(to, {0: Edited(upsert=more)})

    rows = made.expected()[0, "default"]
    del rows[unsafe_row(KEYS[0])]
    rows |= {unsafe_row(KEYS[3]): unsafe_row(70), unsafe_row(7): unsafe_row(80)}
    assert read_checkpoint(made.path)[0, "default"] == rows
    assert read_checkpoint(str(to))[0, "default"] == rows | {unsafe_row(8): unsafe_row(9)}


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_an_edit_that_stood_still_writes_over_no_batch_of_the_query(
    tmp_path: Path, checkpoint_format: int
) -> None:
    """Catches a version that a query has committed meanwhile, under the name of the edit's."""
    made = make(tmp_path, checkpoint_format=checkpoint_format)
    clock = ManualClock()
    stood_still = []

    class Pausing(LocalFileIO):
        """Stands still before a file of state, while a query runs two batches."""

        def publish(self, local_path: str, path: str, *, sync: bool, overwrite: bool) -> float:
            if "/state/" in path and len(stood_still) < 3:
                stood_still.append(path)
                if len(stood_still) == 3:
                    clock.advance(10 * 60 * 1000)
                    made.run_batch({KEYS[0]: 7})
                    made.run_batch({KEYS[1]: 8})
            return super().publish(local_path, path, sync=sync, overwrite=overwrite)

    with pytest.raises((InUseError, FencedError), match=r"lease .* has expired|is committed"):
        at(made.path, io=Pausing(), clock=clock).edit(0, delete=f"k = {KEYS[3]}")

    assert len(stood_still) == 3
    assert read_checkpoint(made.path) == made.expected()
    assert Checkpoint(made.path).verify(versions="all", deep=True).findings == ()


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"delete": "k > 0", "older_than": timedelta(days=7)}, "older_than="),
        ({"watermark_ms": 10**13, "older_than": timedelta(days=7)}, "older_than="),
        ({"rows": 0, "watermark_ms": 10**13}, "neither `delete`, `upsert` nor `expire`"),
        ({"watermark_ms": 10**13, "all_rows": True}, "neither `delete`, `upsert` nor `expire`"),
    ],
)
def test_what_would_say_nothing_is_refused(
    tmp_path: Path, how: dict[str, Any], problem: str
) -> None:
    """Catches an age that is not looked at: more rows would go than are meant."""
    made = make(tmp_path)
    before = files_below(tmp_path / "query")

    with pytest.raises(InvalidArgumentError, match=problem):
        Checkpoint(made.path).edit(**how)

    assert files_below(tmp_path / "query") == before


BY_KEY, BY_TIME = "$procTimers_keyToTimestamp", "$procTimers_timestampToKey"
Timer = tuple[int | None, int]


def timers_of(path: Path, by: str) -> list[Timer]:
    """Read the timers of a column family."""
    keys = Checkpoint(path).rows(by).read()["key"].to_pylist()
    return sorted(((key["key"]["order"], key["expiryTimestampMs"]) for key in keys), key=repr)


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_timers_stay_the_same_by_key_and_by_time(tmp_path: Path, backend: str) -> None:
    """Catches a timer that is left in one of the column families of timers, or is put into one."""
    random = Random()
    group = json.loads(schema_of(order="long"))  # a word of SQL
    nothing = schema_of(__dummy__="void")
    families = (
        ColumnFamily(
            1, BY_KEY, schema_of(key=group, expiryTimestampMs="long"), nothing,
            encoder="prefix", num_prefix_columns=1,
        ),
        ColumnFamily(
            2, BY_TIME, schema_of(expiryTimestampMs="long", key=group), nothing,
            encoder="range", ordering_ordinals=(0,),
        ),
    )  # fmt: skip
    operators = (("transformWithStateExec", (WordStore((NO_DEFAULT, *families)),)),)
    path = tmp_path / "query"
    MadeCheckpoint(str(path), operators=operators, backend=backend).run_batch({})
    timers: set[Timer] = set()
    refused = 0
    for number in range(14):
        drawn = [
            (random.choice([None, -1, 0, 1, 2]), random.randrange(-2, 6)) for _ in range(3)
        ]  # fmt: skip
        keys = [{"key": {"order": key}, "expiryTimestampMs": time} for key, time in {*drawn}]
        table = pa.table({"key": keys})
        how: dict[str, Any] = {"upsert": table}
        after, gone = timers | {*drawn}, {*drawn}
        if random.random() < 0.5:
            how, gone = {"delete": table}, timers & {*drawn}
            if random.random() < 0.4:
                limit = random.randrange(-2, 6)
                how, gone = (
                    {"delete": f"expiryTimestampMs < {limit}"},
                    {timer for timer in timers if timer[1] < limit},
                )
            after = timers - gone
        how["all_rows"] = gone >= timers
        address = random.choice([BY_KEY, BY_TIME, f"0/{BY_KEY}"])
        if not gone:
            refused += 1
            with pytest.raises(NotFoundError, match="no row is there"):
                Checkpoint(path).edit(address, **how)
        elif random.random() < 0.6:
            Checkpoint(path).edit(address, **how)
            timers = after
        else:
            to = tmp_path / f"savepoint-{number}"
            made = Checkpoint(path).transform(to, {address: Edited(**how)}).made
            path = tmp_path / f"restored-{number}"
            made.restore(path)
            timers = after

        assert timers_of(path, BY_KEY) == timers_of(path, BY_TIME) == sorted(timers, key=repr)
    assert refused < 14
