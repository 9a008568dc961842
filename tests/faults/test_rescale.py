"""Rescale of whole checkpoints: every layout, up and down, and a death at every step."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statestore.checkpoint.layout import lease_directory
from statestore.checkpoint.query_log import (
    NUM_PARTITIONS_KEY,
    PROVIDER_KEY,
    OffsetsEntry,
    checksum_path,
)
from statestore.codec import sorting
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.sealed_file import SealedFile
from statestore.codec.trailer import TAIL_BYTES, RowCounts
from statestore.core.errors import (
    IncompatibleError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.io.counting import CountingFileIO, RequestCounts
from statestore.io.local import LocalFileIO
from statestore.io.s3 import S3FileIO
from statestore.operations.branch import plan_branch
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import exclusive_use
from statestore.operations.repair import repair
from statestore.operations.rescale import plan_rescale, plan_undo, rescale, undo_rescale
from statestore.operations.restore import plan_restore
from statestore.operations.savepoint import take_savepoint
from statestore.testing.checkpoints import (
    OPERATORS,
    MadeCheckpoint,
    read_checkpoint,
    unsafe_row,
)
from statestore.testing.crash_io import CrashFileIO
from statestore.testing.fault_io import Fault, FaultFileIO

MUTATIONS = ("write", "publish", "delete")
KEYED = OPERATORS[:1]


def make(tmp_path, **arguments):
    """A checkpoint of three batches."""
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    made = MadeCheckpoint(str(tmp_path / "checkpoint"), scratch, **arguments)
    made.run_batch({key: key for key in range(40)})
    made.run_batch(dict.fromkeys(range(0, 40, 3)) | {50: 1})
    made.run_batch({key: -key for key in range(30, 60)})
    return made


def listing(path):
    """Every file and its bytes."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in Path(path).rglob("*")
        if file.is_file()
    }


def end_process(path, io=None):
    """Let the lease of an operation that failed go, as the end of its process does."""
    io = io or LocalFileIO()
    directory = lease_directory(f"{path}/state")
    for info in io.list(directory):
        io.delete(f"{directory}/{info.name}")


def logged_partitions(path, batch):
    """Number of state partitions that an entry of the offset log pins."""
    entry = OffsetsEntry.parse((Path(path) / "offsets" / str(batch)).read_text(), "offsets")
    return int(entry.conf[NUM_PARTITIONS_KEY])


def newest(path, log):
    """Newest batch of a log."""
    return max(int(file.name) for file in (Path(path) / log).glob("[0-9]*"))


def spark_refuses(path):
    """Whether Spark 4.3 takes the checkpoint for one with an unfinished repartition."""
    planned = newest(path, "offsets")
    return planned != newest(path, "commits") and (
        logged_partitions(path, planned) != logged_partitions(path, planned - 1)
    )


def assert_old_new_or_refused(path, expected, before, after):
    """A death at any step leaves the old or the new state whole, or a start that Spark refuses."""
    if spark_refuses(path):
        return "refused"
    assert newest(path, "offsets") == newest(path, "commits")
    num_partitions = logged_partitions(path, newest(path, "offsets"))
    assert num_partitions in (before, after)
    assert read_checkpoint(str(path)) == expected
    return num_partitions


@pytest.mark.parametrize(
    ("backend", "checkpoint_format", "operators"),
    [("filesystem", 1, OPERATORS), ("filesystem", 2, OPERATORS), ("rocksdb", 2, OPERATORS[::2])],
)
def test_query_goes_on_when_rescaled_again_and_again(
    tmp_path, backend, checkpoint_format, operators
):
    """Catches rows lost, doubled or in a wrong state partition, of any operator, up and down."""
    made = make(tmp_path, backend=backend, checkpoint_format=checkpoint_format, operators=operators)

    for num_partitions, way in ((8, "key-groups"), (2, "key-groups"), (6, "rehash"), (1, None)):
        done = rescale(made.path, num_partitions)
        assert read_checkpoint(made.path) == made.expected()
        assert [store.way for store in done.stores[-1:]] == ["whole"]
        assert way in (None, done.stores[0].way)
        made.run_batch({100 + num_partitions: 7, 31: None, 33: num_partitions})
        if num_partitions == 2:
            made.take_snapshots()
        assert read_checkpoint(made.path) == made.expected()
    rescale(made.path, 3)
    rescale(made.path, 4)
    assert read_checkpoint(made.path) == made.expected()
    made.run_batch({5: 5})

    assert read_checkpoint(made.path) == made.expected()


def test_rehash_of_more_rows_than_memory_holds(tmp_path, monkeypatch):
    """Catches rows lost between the pieces that are laid by on the local disk."""
    monkeypatch.setattr(sorting, "RUN_BYTES", 300)
    made = make(tmp_path, operators=OPERATORS[:2])

    rescale(made.path, 5)

    assert read_checkpoint(made.path) == made.expected()


@pytest.mark.parametrize("restored", [False, True], ids=["rescale", "restore"])
def test_progress_of_a_single_rehashed_store_grows(tmp_path, restored):
    """Catches a bar that stands still until all of a large store is hashed anew."""
    made = make(tmp_path, operators=KEYED)
    reports = []

    def report(done, total):
        reports.append((done, total))

    if restored:
        take_savepoint(made.path, str(tmp_path / "savepoint"))
        with plan_restore(
            str(tmp_path / "savepoint"), str(tmp_path / "copy"), num_partitions=6
        ) as plan:
            plan.run(report)
    else:
        rescale(made.path, 6, report=report)

    done = [value for value, _ in reports]
    (total,) = {total for _, total in reports}
    assert done == sorted(done)
    assert done[-1] == total
    # Of each state partition that is read and each that is written.
    assert len(set(done)) >= 4 + 6


class TrailersOnly(LocalFileIO):
    """A local disk that hands out the end of a state file and no more."""

    def read_tail(self, path, num_bytes):
        assert num_bytes <= TAIL_BYTES or not path.endswith(".arrows"), path
        return super().read_tail(path, num_bytes)

    def read_range(self, path, offset, length):
        raise AssertionError(f"a part of a file was asked for: {path}")

    def fetch(self, path):
        raise AssertionError(f"a file was asked for: {path}")

    def fetch_slices(self, path, size, slices):
        raise AssertionError(f"slices of a file were asked for: {path}")


def test_rescale_by_key_groups_reads_and_writes_no_row(tmp_path):
    """Catches a rescale whose cost grows with the state."""
    made = make(tmp_path, backend="filesystem")
    requests = RequestCounts()

    rescale(
        made.path,
        8,
        io=CountingFileIO(TrailersOnly(), requests, RequestCounts(), is_counted_inside=False),
    )

    written = [SealedFile(str(path)) for path in Path(made.path).rglob("4.delta.arrows")]
    assert len(written) == 8 * 3 + 1
    assert {file.trailer.rows for file in written} == {RowCounts()}
    assert requests.take()["get"] < 200


def test_plan_changes_nothing_and_names_every_move(tmp_path):
    """Catches a plan that writes, or that promises something else than what is done."""
    made = make(tmp_path)
    before = listing(made.path)

    plan = plan_rescale(made.path, 8)

    assert listing(made.path) == before
    assert (plan.batch, plan.num_partitions_before, plan.num_partitions) == (3, 4, 8)
    keyed, *_, whole = plan.stores
    assert [part.sources for part in keyed.partitions] == [(p % 4,) for p in range(8)]
    assert all(part.num_bytes for part in keyed.partitions)
    assert keyed.num_moves == 8
    # Each file is one block of all key groups: it says nothing of where its rows are.
    assert ([part.num_rows for part in keyed.partitions], keyed.skew) == ([None] * 8, None)
    assert (whole.way, whole.num_moves, len(whole.partitions)) == ("whole", 1, 1)
    done = rescale(made.path, 8)
    assert [store.way for store in done.stores] == [store.way for store in plan.stores]
    assert [part.sources for part in done.stores[0].partitions] == [
        part.sources for part in keyed.partitions
    ]


def rows_by_key_group(keys, num_key_groups):
    """Number of keys of the aggregation in each key group."""
    encoded = pa.array([unsafe_row(key) for key in keys], pa.binary())
    groups = compute_key_groups(encoded, "default", KEYED[0][1][0].family, num_key_groups)
    return np.bincount(groups, minlength=num_key_groups)


@pytest.mark.parametrize(("backend", "is_told"), [("filesystem", True), ("rocksdb", False)])
def test_skew_shows_a_heavy_key_group_or_is_unknown(tmp_path, backend, is_told):
    """Catches a plan that promises equal state partitions without knowing what lies in them."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = MadeCheckpoint(
        str(tmp_path / "checkpoint"), scratch, 2, backend=backend, operators=KEYED,
        options={"max_parallelism": 8}, block_rows=10,
    )  # fmt: skip
    heavy = [key for key in range(3000) if rows_by_key_group([key], 8)[5]]
    keys = {*range(100), *heavy}
    made.run_batch(dict.fromkeys(keys, 1))

    (plan,) = plan_rescale(made.path, 4).stores
    (counted,) = plan_rescale(made.path, 4, count_rows=True).stores
    (rehash,) = plan_rescale(made.path, 3).stores
    (rehash_counted,) = plan_rescale(made.path, 3, count_rows=True).stores

    by_group = rows_by_key_group(keys, 8)
    rows = [int(by_group[partition::4].sum()) for partition in range(4)]
    assert [part.num_rows for part in counted.partitions] == rows
    assert counted.skew == max(rows) * 4 / len(keys) > 2.5
    if is_told:
        assert plan.skew == pytest.approx(counted.skew, rel=0.1)
    else:
        assert (plan.partitions[1].num_rows, plan.skew) == (None, None)
    assert ({part.num_rows for part in rehash.partitions}, rehash.skew) == ({None}, None)
    by_group = rows_by_key_group(keys, rehash.max_parallelism)
    rows = [int(by_group[partition::3].sum()) for partition in range(3)]
    assert [part.num_rows for part in rehash_counted.partitions] == rows
    assert rehash_counted.skew == max(rows) * 3 / len(keys)


@pytest.mark.parametrize(("checkpoint_format", "num_partitions"), [(1, 8), (2, 2), (2, 6)])
def test_undo_takes_everything_back(tmp_path, checkpoint_format, num_partitions):
    """Catches a file, an entry or a number that an undo leaves behind."""
    made = make(tmp_path, checkpoint_format=checkpoint_format)
    before = listing(made.path)
    rescale(made.path, num_partitions)

    plan = plan_undo(made.path)
    assert (plan.batch, plan.was_committed, plan.num_partitions) == (3, True, 4)
    undo_rescale(made.path)

    assert listing(made.path) == before
    rescale(made.path, num_partitions)
    made.run_batch({1: 2})
    assert read_checkpoint(made.path) == made.expected()
    with pytest.raises(InvalidArgumentError, match="no rescale to undo"):
        undo_rescale(made.path)


@pytest.mark.parametrize(("checkpoint_format", "num_partitions"), [(1, 4), (2, 1), (1, 3)])
@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
def test_fault_at_every_step_leaves_old_or_new_state(
    tmp_path, checkpoint_format, happens, num_partitions
):
    """Catches a step after whose failure a checkpoint cannot be finished, undone, or started."""
    made = make(tmp_path, checkpoint_format=checkpoint_format, operators=KEYED, num_partitions=2)
    original, expected = listing(made.path), made.expected()
    copy = tmp_path / "copy"
    seen = set()
    for index in range(200):
        for remedy in ("finish", "undo"):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(made.path, copy)
            io = FaultFileIO(LocalFileIO())
            io.arm(Fault(index, happens, MUTATIONS))
            try:
                rescale(str(copy), num_partitions, io=io)
            except StorageError:
                assert io.has_failed
            if not io.has_failed:
                break
            end_process(copy)
            state = assert_old_new_or_refused(copy, expected, 2, num_partitions)
            seen.add(state)
            if remedy == "finish":
                rescale(str(copy), num_partitions)
                assert logged_partitions(copy, 3) == num_partitions
                assert read_checkpoint(str(copy)) == expected
                continue
            try:
                undo_rescale(str(copy))
            except InvalidArgumentError:
                assert state == 2
            stray = {name for name in listing(copy).keys() - original if ".tmp-" not in name}
            assert all(name.endswith(".ref") for name in stray), stray
            assert {name: listing(copy)[name] for name in original} == original
        if not io.has_failed:
            break
    assert seen == {2, "refused", num_partitions}


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
def test_fault_at_every_step_of_undo_can_be_gone_on_from(tmp_path, happens):
    """Catches an undo after whose failure neither side is whole."""
    made = make(tmp_path, operators=KEYED, num_partitions=2, checkpoint_format=2)
    original, expected = listing(made.path), made.expected()
    rescale(made.path, 3)
    copy = tmp_path / "copy"
    seen = set()
    for index in range(200):
        for remedy in ("undo", "finish"):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(made.path, copy)
            io = FaultFileIO(LocalFileIO())
            io.arm(Fault(index, happens, MUTATIONS))
            try:
                undo_rescale(str(copy), io=io)
            except StorageError:
                assert io.has_failed
            if not io.has_failed:
                break
            end_process(copy)
            state = assert_old_new_or_refused(copy, expected, 2, 3)
            seen.add(state)
            if remedy == "finish":
                rescale(str(copy), 3)
                assert read_checkpoint(str(copy)) == expected
            elif state != 2:
                undo_rescale(str(copy))
                assert listing(copy) == original
        if not io.has_failed:
            break
    assert seen == {3, "refused", 2}


def to_other_provider(made):
    """What a repartition of Spark's own is, on a checkpoint of its own provider."""
    edit_conf(made, **{PROVIDER_KEY: "org.apache.spark.Other"})


def to_heap(made):
    """State in the memory of a driver that is not here."""
    edit_conf(made, **{PROVIDER_KEY: "io.statestore.HeapStateStoreProvider"})


def to_converted(made):
    """What a conversion made of a checkpoint that was rescaled: full states of one version."""
    for file in Path(made.path, "state").rglob("*"):
        if file.suffix == ".ref" or file.name.startswith(("1.", "2.", "3.")):
            file.unlink()


def to_lost(made):
    """A copy without a file that only the state before the rescale is made of."""
    Path(made.path, "state/0/2/2.delta.arrows").unlink()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (to_other_provider, IncompatibleError, "another state store provider"),
        (to_heap, NotFoundError, "memory of the query's driver"),
        (to_converted, InvalidArgumentError, "no rescale to undo: its newest state was not made"),
        (to_lost, InvalidArgumentError, r"no rescale to undo: the state before.*2\.delta\.arrows"),
    ],
)
def test_undo_that_cannot_be_done_deletes_nothing(tmp_path, change, error, match):
    """Catches an undo that finds out half way, or that deletes the only state there is."""
    made = make(tmp_path, operators=KEYED)
    rescale(made.path, 8)
    change(made)
    before = listing(made.path)

    for operation in (plan_undo, undo_rescale):
        with pytest.raises(error, match=match):
            operation(made.path)

    assert listing(made.path) == before


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_undo_after_a_repair_that_left_later_files(tmp_path, checkpoint_format):
    """Catches an undo that takes files which no log names for a batch that has run."""
    made = make(tmp_path, operators=KEYED, checkpoint_format=checkpoint_format)
    expected, numbers = made.expected(), dict(made.numbers)
    rescale(made.path, 8)
    made.run_batch({1: 2, 70: 1})
    for file in Path(made.path, "state/0").glob("*/4*.delta.arrows"):
        file.write_bytes(file.read_bytes()[:-1])
    assert repair(made.path).version == 3

    assert plan_undo(made.path).was_committed is False
    undo_rescale(made.path)

    assert read_checkpoint(made.path) == expected
    made.numbers = numbers
    for number in range(3):
        made.run_batch({number: 99})
        assert read_checkpoint(made.path) == made.expected()


@pytest.mark.parametrize("copied", ["branch", "native"])
def test_copy_made_right_after_a_rescale_has_none_to_undo(tmp_path, copied):
    """Catches an undo whose state before the rescale was never copied."""
    made = make(tmp_path, operators=KEYED)
    made.run_batch({})
    rescale(made.path, 8)
    copy = str(tmp_path / "copy")
    if copied == "branch":
        with plan_branch(made.path, copy) as plan:
            plan.run()
    else:
        take_savepoint(made.path, str(tmp_path / "savepoint"), form="native")
        with plan_restore(str(tmp_path / "savepoint"), copy) as plan:
            plan.run()
    before = listing(copy)

    with pytest.raises(InvalidArgumentError, match="no rescale to undo"):
        undo_rescale(copy)

    assert listing(copy) == before
    assert read_checkpoint(copy) == made.expected()


@pytest.mark.parametrize("copied", ["branch", "canonical", "native"])
def test_copy_of_a_version_from_before_a_rescale_is_as_it_was_then(tmp_path, copied):
    """Catches operator metadata that tells the state reader of state partitions to come."""
    made = make(tmp_path)
    expected = made.expected()
    rescale(made.path, 8)
    made.run_batch({1: 2})
    copy = str(tmp_path / "copy")
    if copied == "branch":
        with plan_branch(made.path, copy, version=3) as plan:
            plan.run()
    else:
        take_savepoint(made.path, copy, version=3, form=copied)

    assert read_checkpoint(copy) == expected
    with open_checkpoint(copy) as checkpoint:
        stores = [store for operator in checkpoint.operators for store in operator.stores]
        assert [store.num_partitions for store in stores] == [4, 4, 4, 4]
    with open_checkpoint(made.path) as checkpoint:
        assert checkpoint.operators[0].stores[0].num_partitions == 8


KILLED = """
import os, signal, sys
from statestore.io.local import LocalFileIO
from statestore.operations.rescale import rescale

class Killer(LocalFileIO):
    calls = -int(sys.argv[2])
    def count(self):
        Killer.calls += 1
        if Killer.calls > 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def publish(self, *args, **named):
        self.count()
        return super().publish(*args, **named)
    def write(self, *args, **named):
        self.count()
        return super().write(*args, **named)
    def delete(self, *args, **named):
        self.count()
        return super().delete(*args, **named)

rescale(sys.argv[1], int(sys.argv[3]), io=Killer())
"""


@pytest.mark.parametrize(
    ("num_partitions", "way"),
    [(3, "rehash"), pytest.param(4, "key-groups", marks=pytest.mark.extended)],
)
def test_kill_at_every_step_leaves_old_or_new_state(tmp_path, num_partitions, way):
    """Catches a step that only an orderly end completes: the process dies by signal 9."""
    made = make(tmp_path, operators=KEYED, num_partitions=2, checkpoint_format=2)
    expected = made.expected()
    assert plan_rescale(made.path, num_partitions).stores[0].way == way
    seen = []
    for step in range(60):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made.path, copy)
        command = [sys.executable, "-c", KILLED, str(copy), str(step), str(num_partitions)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        seen.append(assert_old_new_or_refused(copy, expected, 2, num_partitions))
        if step % 2:
            rescale(str(copy), num_partitions)
        elif seen[-1] != 2:
            undo_rescale(str(copy))
        assert read_checkpoint(str(copy)) == expected
    assert seen == sorted(seen, key=[2, "refused", num_partitions].index)
    assert {2, "refused"} <= set(seen)
    assert read_checkpoint(str(copy)) == expected


def test_power_loss_at_every_step_leaves_old_or_new_state(tmp_path):
    """Catches an entry of a log that reaches the disk before the state it stands for."""
    made = make(tmp_path, operators=KEYED, num_partitions=2)
    files = listing(made.path)
    for index in range(100):
        cache = tmp_path / f"cache-{index}"
        cache.mkdir()
        memory = CrashFileIO(str(cache))
        for name, data in files.items():
            memory.write(f"/ck/{name}", data, sync=True, overwrite=True)
        io = FaultFileIO(memory)
        io.arm(Fault(index, happens=True, calls=MUTATIONS))
        try:
            rescale("/ck", 4, io=io)
        except StorageError:
            assert io.has_failed
        memory.crash()
        end_process("/ck", memory)
        with open_checkpoint("/ck", io=memory) as checkpoint:
            is_refused = not checkpoint.is_between_batches
        if not is_refused:
            assert read_checkpoint("/ck", io=memory) == made.expected()
        rescale("/ck", 4, io=memory)
        assert read_checkpoint("/ck", io=memory) == made.expected()
        if not io.has_failed:
            break
    else:
        pytest.fail("the rescale made more calls than this test knows")


def test_state_kept_elsewhere_is_rescaled_there(tmp_path):
    """Catches state written into the checkpoint, or partitions that the state reader misses."""
    elsewhere = tmp_path / "elsewhere"
    made = make(tmp_path, options={"checkpoint_storage": str(elsewhere)}, operators=KEYED)

    for num_partitions in (8, 6):
        rescale(made.path, num_partitions)
        assert read_checkpoint(made.path) == made.expected()
        placeholders = {path.parent.name for path in Path(made.path, "state/0").glob("*/.stat*")}
        assert {str(partition) for partition in range(num_partitions)} <= placeholders
    made.run_batch({7: 8})

    assert read_checkpoint(made.path) == made.expected()
    assert not list(Path(made.path).rglob("*.arrows"))


def test_checkpoint_on_s3_is_rescaled_and_undone(s3_server, bucket, tmp_path):
    """Catches a rescale that needs what only a disk can do."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "scratch").mkdir()
    io = S3FileIO(str(tmp_path / "cache"), s3_server.settings())
    path = f"/{bucket}/checkpoint"
    made = MadeCheckpoint(path, tmp_path / "scratch", 2, operators=KEYED, io=io)
    made.run_batch({key: key for key in range(20)})

    rescale(path, 4, io=io)
    assert read_checkpoint(path, io=io) == made.expected()
    undo_rescale(path, io=io)
    rescale(path, 3, io=io)
    made.run_batch({3: 4})

    assert read_checkpoint(path, io=io) == made.expected()


def stray_offsets(made, num_partitions):
    """What Spark's own repartition leaves when it finds another provider than its RocksDB's."""
    entry = OffsetsEntry.parse(Path(made.path, "offsets/2").read_text(), "offsets/2")
    changed = entry.with_conf({NUM_PARTITIONS_KEY: str(num_partitions)}).encode()
    Path(made.path, "offsets/3").write_text(changed)
    Path(made.path, "offsets/.3.crc").write_bytes(b"crc\0")


def test_stray_entry_of_sparks_repartition_is_finished_or_cleaned(tmp_path):
    """Catches a checkpoint that Spark's own tool made unusable and ours cannot help."""
    made = make(tmp_path)
    before = listing(made.path)
    stray_offsets(made, 8)

    with pytest.raises(InvalidArgumentError, match="--partitions 8") as raised:
        rescale(made.path, 2)
    assert raised.value.kind == "unfinished-operation"
    undo_rescale(made.path)
    assert listing(made.path) == before
    stray_offsets(made, 8)
    assert plan_rescale(made.path, 8).is_begun
    rescale(made.path, 8)

    made.run_batch({3: 4})
    assert read_checkpoint(made.path) == made.expected()


def test_checksum_of_an_entry_deleted_by_hand_does_not_stay(tmp_path):
    """Catches Hadoop refusing the new entry: the old one's hidden checksum was left behind."""
    made = make(tmp_path)
    Path(checksum_path(f"{made.path}/offsets/3")).write_bytes(b"crc\0stale")

    rescale(made.path, 8)

    assert not Path(checksum_path(f"{made.path}/offsets/3")).exists()


def test_uncommitted_batch_is_refused_by_name(tmp_path):
    """Catches a rescale that drops or doubles the rows of a batch that is under way."""
    made = make(tmp_path)
    entry = Path(made.path, "offsets/2").read_text()
    Path(made.path, "offsets/3").write_text(entry.replace('"logOffset":2', '"logOffset":3'))
    before = listing(made.path)

    for operation in (lambda: rescale(made.path, 8), lambda: undo_rescale(made.path)):
        with pytest.raises(InvalidArgumentError, match="planned_batch=3") as raised:
            operation()
        assert raised.value.kind == "unfinished-batch"
    assert listing(made.path) == before


def test_checkpoint_in_use_is_refused(tmp_path):
    """Catches a rescale under a query that goes on writing the old state partitions."""
    made = make(tmp_path, operators=KEYED)
    before = listing(made.path)
    with (
        open_checkpoint(made.path) as checkpoint,
        exclusive_use(checkpoint, "something else"),
        pytest.raises(InUseError, match="something else"),
    ):
        rescale(made.path, 8)

    assert listing(made.path) == before


def edit_conf(made, **changes):
    """Change the conf that the newest batch pins."""
    path = Path(made.path, f"offsets/{newest(made.path, 'offsets')}")
    entry = OffsetsEntry.parse(path.read_text(), str(path))
    path.write_text(entry.with_conf(changes).encode())


def test_state_that_does_not_follow_its_keys_is_refused(tmp_path):
    """Catches rows moved by a hash that Spark did not partition by."""
    made = make(tmp_path)
    key = "spark.sql.streaming.statefulOperator.useStrictDistribution"
    edit_conf(made, **{key: "false"})

    with pytest.raises(IncompatibleError) as raised:
        rescale(made.path, 8)

    assert raised.value.kind == "not-rescalable"
    assert newest(made.path, "offsets") == 2


def test_other_provider_is_refused(tmp_path):
    """Catches a rescale of a checkpoint whose state files are Spark's."""
    made = make(tmp_path)
    key = "spark.sql.streaming.stateStore.providerClass"
    edit_conf(made, **{key: "org.apache.spark.Other"})

    with pytest.raises(IncompatibleError, match="another state store provider"):
        rescale(made.path, 8)


def test_heap_backend_without_its_driver_is_refused(tmp_path):
    """Catches a rescale that takes a checkpoint for empty because its state is elsewhere."""
    made = make(tmp_path, operators=KEYED)
    key = "spark.sql.streaming.stateStore.providerClass"
    edit_conf(made, **{key: "io.statestore.HeapStateStoreProvider"})

    with pytest.raises(NotFoundError) as raised:
        rescale(made.path, 8)

    assert raised.value.kind == "driver-lost"
    assert newest(made.path, "offsets") == 2


def test_metadata_of_an_unknown_version_is_refused(tmp_path):
    """Catches an operator whose state would be left behind."""
    made = make(tmp_path)
    unknown = Path(made.path, "state/3/_metadata/v2/0")
    unknown.parent.mkdir(parents=True)
    unknown.write_text("v2\n{}")

    with pytest.raises(IncompatibleError, match="metadata of a version"):
        rescale(made.path, 8)


@pytest.mark.parametrize("num_partitions", [0, -1, 32_769])
def test_number_out_of_range_is_refused(tmp_path, num_partitions):
    """Catches a checkpoint without state partitions."""
    made = make(tmp_path, operators=KEYED)

    with pytest.raises(InvalidArgumentError, match="out of range"):
        rescale(made.path, num_partitions)


def test_rescale_to_the_same_number_does_nothing(tmp_path):
    """Catches a repeated command that fails, or adds a batch, after it was done."""
    made = make(tmp_path)
    rescale(made.path, 8)
    before = listing(made.path)

    again = rescale(made.path, 8)

    assert again.is_done
    assert listing(made.path) == before


def test_operator_metadata_and_logs_are_what_spark_would_write(tmp_path):
    """Catches a lost watermark, source offset or checkpoint ID."""
    made = make(tmp_path, checkpoint_format=2)

    rescale(made.path, 8)

    old, new = (Path(made.path, f"offsets/{batch}").read_text() for batch in (2, 3))
    assert new == old.replace(f'"{NUM_PARTITIONS_KEY}":"4"', f'"{NUM_PARTITIONS_KEY}":"8"')
    ids = json.loads(Path(made.path, "commits/3").read_text().split("\n")[1])["stateUniqueIds"]
    assert [len(ids[operator]) for operator in ("0", "1", "2")] == [8, 8, 1]
    assert {len(stores) for stores in ids["1"]} == {2}
    flat = [unique for stores in ids.values() for part in stores for unique in part]
    assert len(set(flat)) == len(flat)
    metadata = Path(made.path, "state/1/_metadata/metadata").read_text()
    assert metadata.count('"numPartitions":8') == 2
