"""Repair: the newest version that is whole, by name, and however often it is stopped."""

import json
import shutil
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from statestore import Checkpoint
from statestore.cli.commands import cli
from statestore.codec.sealed_file import MappedFile, cannot_be_read
from statestore.core.clock import ManualClock
from statestore.core.errors import InUseError, NotFoundError, StorageError
from statestore.core.providers import PROVIDERS
from statestore.io.local import LocalFileIO
from statestore.operations import processes
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.upkeep.repair import repair
from statestore.operations.upkeep.verify import verify
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from tests.checkpoints import make_query, query_of, read_rows
from tests.damaged import NOW, deltas, flip, make_small, make_with_snapshots, run, without_leases
from tests.fault_io import Fault, FaultFileIO
from tests.rescaled import KEYED, end_process, listing, make, newest
from tests.seams import at, place_of


def test_repair_goes_back_to_the_newest_readable_version(made):
    """Catches a repair that loses more batches than it must, or hides which."""
    before = read_checkpoint_at(made, 2)
    flip(deltas(made, 3)[0])
    logs = {name: (Path(made.path) / name).glob("[0-9]*") for name in ("offsets", "commits")}
    kept = {name: {file.name: file.read_text() for file in files} for name, files in logs.items()}

    plan = Checkpoint(made.path).repair(dry_run=True)
    assert (plan.newest_version, plan.version) == (4, 2)
    assert (plan.replayed_batch, plan.replanned_batches) == (2, (3,))
    assert {finding.version for finding in plan.findings} == {3, 4}
    code, printed = run("repair", made.path)
    assert (code, printed["done"], printed["version"]) == (1, False, 2)
    assert sorted(map(int, kept["commits"])) == [0, 1, 2, 3]
    assert Checkpoint(made.path).info.newest_version == 4

    code, printed = run("repair", made.path, "--yes")
    assert (code, printed["done"], printed["version"]) == (0, True, 2)
    info = Checkpoint(made.path).info
    assert (info.newest_version, info.uncommitted_batch) == (2, 2)
    assert read_checkpoint(made.path) == before
    aside = Path(plan.aside)
    assert (aside / "commits" / "3").read_text() == kept["commits"]["3"]
    assert (aside / "commits" / "2").read_text() == kept["commits"]["2"]
    assert (aside / "offsets" / "3").read_text() == kept["offsets"]["3"]
    again = Checkpoint(made.path).repair()
    assert (again.version, again.is_needed, again.replayed_batch) == (2, False, 2)


def test_damaged_snapshot_costs_no_batch(tmp_path):
    """Catches readable batches given up for a file that a restore can do without."""
    query, snapshots = make_with_snapshots(tmp_path, "filesystem")
    for snapshot in snapshots:
        flip(snapshot)

    found = Checkpoint(query.path).verify(versions=[3, 4], deep=True)

    assert {finding.version for finding in found.findings} == {3, 4}
    assert all(finding.is_recoverable for finding in found.findings)
    assert [found.is_readable(version) for version in (3, 4)] == [True, True]
    code, printed = run("repair", query.path, "--yes")
    assert (code, printed["is_needed"], len(printed["findings"])) == (0, False, 2)
    for snapshot in snapshots:
        snapshot.unlink()
    assert not Checkpoint(query.path).repair(deep=False).is_needed
    assert read_rows(query.path) == query.expected()
    # What the snapshot was made of is gone, too.
    for lost in Path(query.path).rglob("1.delta.*"):
        lost.unlink()
    assert not Checkpoint(query.path).verify().is_readable(4)
    with pytest.raises(NotFoundError, match="no version"):
        Checkpoint(query.path).repair()


@pytest.mark.parametrize("is_given", [True, False])
def test_damaged_snapshot_that_nothing_stands_for_costs_batches(tmp_path, monkeypatch, is_given):
    """Catches a version that counts as readable because another backend would find a way."""
    query, snapshots = make_with_snapshots(tmp_path, "rocksdb")
    if is_given:
        flip(snapshots[0])
    else:

        def read_in(file, piece, offset):
            if file._name == str(snapshots[0]):
                raise cannot_be_read(file._name, offset, piece.size)

        monkeypatch.setattr(MappedFile, "_read_in", read_in)

    assert not Checkpoint(query.path).verify(deep=True).is_readable(4)
    plan = Checkpoint(query.path).repair(dry_run=True)
    assert plan.damaged_files == (str(snapshots[0]),)
    assert f"{snapshots[0]} is deleted" in str(plan)
    assert snapshots[0].exists()
    assert Checkpoint(query.path).repair().version == 2
    # Or maintenance finds it by its version, and the versions that come are made of it again.
    assert [path for path in snapshots if not path.exists()] == [snapshots[0]]


@pytest.mark.parametrize("is_under_way", [False, True])
def test_batch_that_its_file_source_does_not_know_is_planned_anew(tmp_path, is_under_way):
    """Catches a batch that runs again as it was planned, and fails in its source each time."""
    query = make_query(tmp_path / "query")
    if is_under_way:
        query.plan()
    batch = 3 if is_under_way else 2
    (tmp_path / "query" / "sources" / "0" / f"{batch}").unlink()

    to_fix = Checkpoint(query.path).verify().to_fix
    plan = Checkpoint(query.path).repair()

    assert f"statestore repair {query.path}" in to_fix
    assert plan.is_needed
    assert (plan.version, plan.replayed_batch, plan.replanned_batches) == (batch, None, (batch,))
    assert plan.unplans == (batch,)
    assert plan.uncommits == (() if is_under_way else (batch,))
    assert Checkpoint(query.path).verify(versions="all", deep=True).ok
    assert not Checkpoint(query.path).repair().is_needed


@pytest.mark.parametrize("is_lost", [True, False])
def test_entry_before_the_newest_is_one_that_spark_starts_from(tmp_path, is_lost):
    """Catches a checkpoint that is called well, and a query that no start and no repair begins."""
    made = make_small(tmp_path, 4)
    entry = Path(made.path, "offsets", "2")
    entry.unlink() if is_lost else entry.write_text("garbage")

    (finding,) = Checkpoint(made.path).verify().findings
    plan = Checkpoint(made.path).repair()

    assert (finding.version, finding.file, finding.is_recoverable) == (4, str(entry), False)
    assert (plan.is_needed, plan.version) == (True, 2)
    assert (plan.replayed_batch, plan.replanned_batches) == (None, (2, 3))
    assert {of.version for of in plan.findings} == {3, 4}
    assert Checkpoint(made.path).verify(deep=True).ok


def test_repair_goes_back_no_further_than_spark_starts(tmp_path):
    """Catches a version that is gone back to, whose query lacks the entry before its own."""
    made = make_small(tmp_path, 4)
    made.plan()
    Path(made.path, "offsets", "2").write_text("garbage")
    Path(made.path, "offsets", "4").write_text("garbage")

    plan = Checkpoint(made.path).repair()

    assert (plan.version, plan.replayed_batch) == (2, None)
    assert {of.version for of in plan.findings} == {3, 4}
    assert Checkpoint(made.path).verify(deep=True).ok


def fetches(io, act):
    """How many files a call fetches."""
    io.arm(None)
    act()
    return sum(call.startswith("fetch") for call in io.trace)


def test_versions_are_given_up_by_the_store_that_is_damaged(tmp_path):
    """Catches a repair that reads all state once for each version with the same damaged file."""
    query = query_of(tmp_path / "query", backend="filesystem", num_partitions=4)
    for batch in range(7):
        query.run_batch({f"{key}": batch for key in range(40)})
    flip(deltas(query, 2, partition=0)[0])

    io = FaultFileIO(LocalFileIO())
    of_one_version = fetches(io, lambda: at(query.path, io=io).verify(deep=True))
    plans = []
    in_all = fetches(io, lambda: plans.append(at(query.path, io=io).repair(dry_run=True)))

    assert plans[0].version == 1
    # Of all stores for the newest version; the other files are those of version 1, once more.
    assert of_one_version < in_all < 1.5 * of_one_version


@pytest.mark.parametrize("in_processes", [False, True])
def test_each_damaged_file_is_deleted_of_whichever_version_it_is(
    tmp_path, monkeypatch, in_processes
):
    """Catches a merged file left, of a store by which its versions were not given up."""
    if in_processes:
        monkeypatch.setattr(processes, "_MIN_ROWS", 1)
    query = query_of(tmp_path / "query", backend="rocksdb", num_partitions=2)
    query.run_batch({"one": 1, "two": 2, "three": 3})
    query.run_batch({"four": 4, "two": 5})
    query.run_batch({"one": 6}, snapshot=True)
    query.run_batch({"five": 7}, snapshot=True)
    (merged,) = deltas(query, "3_*.snapshot", partition=1)
    (older,) = deltas(query, "2_*.snapshot", partition=0)
    for file in (merged, older, *deltas(query, "3.delta", partition=1)):
        flip(file)

    plan = Checkpoint(query.path).repair(dry_run=True)

    assert plan.version == 2
    assert {*plan.damaged_files} == {str(merged), str(older)}
    found = {(finding.version, finding.store.partition) for finding in plan.findings}
    assert found == {(4, 1), (3, 0), (3, 1)}


@pytest.mark.parametrize("happens", [False, True])
def test_repair_that_ends_at_any_change_is_finished_by_the_next(tmp_path, happens):
    """Catches a damaged file that stays, or logs with a gap, after a failure or a lost reply."""
    for index in count():
        query, snapshots = make_with_snapshots(tmp_path / f"{index}", "rocksdb")
        flip(snapshots[0])
        whole = snapshots[1].read_bytes()
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(index, happens=happens, calls=("write", "delete")))
        with suppress(StorageError, InUseError):
            at(query.path, io=io).repair()
        if not io.has_failed:
            break
        shutil.rmtree(Path(query.path, "statestore-leases"), ignore_errors=True)

        assert Checkpoint(query.path).repair().version == 2
        assert not snapshots[0].exists()
        assert snapshots[1].read_bytes() == whole
        assert Checkpoint(query.path).verify(deep=True).findings == ()
    assert index > 5, "the test tests nothing"


def logs_of(path):
    """The entries of Spark's logs."""
    return {
        f"{name}/{file.name}": file.read_text()
        for name in ("offsets", "commits")
        for file in (Path(path) / name).glob("[0-9]*")
    }


def damage_end(path):
    """Damage the trailer of a file."""
    path.write_bytes(path.read_bytes()[:-9] + bytes(9))


def make_rescaled(tmp_path, checkpoint_format, num_batches, damage=damage_end):
    """A checkpoint rescaled from 2 to 4, whose rescaled version, 3, is damaged afterwards."""
    made = make_small(tmp_path, 2, num_partitions=2, checkpoint_format=checkpoint_format)
    before = logs_of(made.path), read_checkpoint(made.path), dict(made.numbers)
    Checkpoint(made.path).rescale(4)
    for batch in range(num_batches):
        made.run_batch({batch: 1000 + batch})
    for partition in (0, 3):
        (rescaled,) = Path(made.path, "state", "0", str(partition)).glob("3*.delta.arrows")
        damage(rescaled)
    return made, before


@pytest.mark.parametrize("num_batches", [0, 1])
@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_repair_takes_a_rescale_back(tmp_path, checkpoint_format, num_batches):
    """Catches a checkpoint of an unfinished rescale, which Spark refuses and nobody can finish."""
    made, (logs, rows, numbers) = make_rescaled(tmp_path, checkpoint_format, num_batches)

    plan = Checkpoint(made.path).repair()

    assert (plan.version, plan.undone_rescales, plan.replayed_batch) == (2, (2,), None)
    assert plan.replanned_batches == tuple(range(3, 3 + num_batches))
    assert logs_of(made.path) == logs
    assert '"numPartitions":2' in Path(made.path, "state/0/_metadata/metadata").read_text()
    assert read_checkpoint(made.path) == rows
    assert not Checkpoint(made.path).repair(dry_run=True).is_needed
    Checkpoint(made.path).rescale(4)
    assert read_checkpoint(made.path) == rows
    made.numbers = numbers
    made.run_batch({5: 55})
    assert read_checkpoint(made.path) == made.expected()


def test_rescale_that_was_damaged_before_it_ended_is_finished(tmp_path):
    """Catches a rescale that is stopped by its own version, which nobody has counted on yet."""
    made, (_, rows, _) = make_rescaled(tmp_path, 1, 0)
    Path(made.path, "commits", "2").unlink()

    assert Checkpoint(made.path).rescale(4).is_begun

    assert read_checkpoint(made.path) == rows
    assert Checkpoint(made.path).verify(deep=True).findings == ()


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_rescale_done_again_after_a_repair_keeps_no_damaged_file(tmp_path, checkpoint_format):
    """Catches a rescaled version that is trusted by its trailer alone: its body is damaged."""
    made, (_, rows, numbers) = make_rescaled(tmp_path, checkpoint_format, 0, damage=flip)
    assert Checkpoint(made.path).repair().undone_rescales == (2,)

    Checkpoint(made.path).rescale(4)

    assert Checkpoint(made.path).verify(deep=True).findings == ()
    assert read_checkpoint(made.path) == rows
    made.numbers = numbers
    made.run_batch({5: 55})
    assert read_checkpoint(made.path) == made.expected()


@pytest.mark.parametrize("num_partitions", [4, 3])
def test_rescale_goes_on_after_a_repair(tmp_path, num_partitions):
    """Catches a rescale that what a repair has left of another history is in the way of."""
    made = make_small(tmp_path, 4, num_partitions=2)
    flip(deltas(made, 3, partition=0)[0])
    Checkpoint(made.path).repair()
    Path(made.path, "offsets", "2").unlink()
    made.numbers = dict.fromkeys(range(20), 1)
    made.run_batch({7: 77})

    Checkpoint(made.path).rescale(num_partitions)

    assert read_checkpoint(made.path) == made.expected()
    assert Checkpoint(made.path).verify(deep=True).findings == ()


class SlowStorage(LocalFileIO):
    """Storage on which an hour passes with every look at a state file."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def read_tail(self, path, num_bytes):
        """See FileIO."""
        if path.endswith(".arrows"):
            self.clock.advance(3_600_000)
        return super().read_tail(path, num_bytes)


def test_nothing_is_changed_when_the_lease_was_lost(tmp_path):
    """Catches a change of a checkpoint whose query began while a long operation read it."""
    made = make_small(tmp_path, 5, num_partitions=2)
    flip(deltas(made, 5)[0])
    before = without_leases(made)
    for operation in (Checkpoint.repair, lambda found: found.expire(2)):
        clock = ManualClock()
        io = SlowStorage(clock)
        with pytest.raises(InUseError, match="lease on the checkpoint has expired"):
            operation(at(made.path, options=NOW, io=io, clock=clock))
        assert without_leases(made) == before
    assert Checkpoint(made.path).repair().version == 4


@pytest.mark.parametrize("made", [("filesystem", 1)], indirect=True)
def test_later_repair_to_the_same_version_keeps_its_own_entries(made):
    """Catches entries that were kept aside and are overwritten by those of another history."""
    entries = []
    for _ in range(2):
        flip(deltas(made, 4)[0])
        entries.append(Path(made.path, "commits", "3").read_text())
        plan = Checkpoint(made.path).repair()
        assert Path(plan.aside, "commits", "3").read_text() == entries[-1]
        Path(made.path, "offsets", "3").unlink()
        made.run_batch({2: 2})
        commit = Path(made.path, "commits", "3")
        commit.write_text(commit.read_text().replace('Ms":3', 'Ms":4'))
    assert entries[0] != entries[1]
    first = Path(made.path, "statestore-repair", "3", "commits", "3")
    assert first.read_text() == entries[0]


def read_checkpoint_at(made, version):
    """The rows of the newest version after the batches up to one."""
    later = [
        Path(made.path) / log / str(batch)
        for batch in range(version, Checkpoint(made.path).info.newest_version)
        for log in ("offsets", "commits")
    ]
    texts = {path: path.read_text() for path in later}
    for path in later:
        path.unlink()
    try:
        return read_checkpoint(made.path)
    finally:
        for path, text in texts.items():
            path.write_text(text)


@pytest.mark.parametrize(("call", "index"), [("read_tail", 5), ("read_tail", 40), ("fetch", 3)])
def test_storage_that_fails_is_not_damage(made, call, index):
    """Catches good batches taken back because the storage could not be reached for a moment."""
    files = without_leases(made)
    for operation in (partial(verify, deep=True), partial(repair, dry_run=True), repair):
        io = FaultFileIO(LocalFileIO())
        with open_checkpoint(place_of(made.path, io=io)) as checkpoint:
            io.arm(Fault(index, calls=(call,)))
            with pytest.raises(StorageError):
                operation(checkpoint)
        assert without_leases(made) == files


def test_state_in_a_drivers_memory_is_not_damage(tmp_path):
    """Catches a repair from a shell that takes back the batches of a heap backend's query."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = MadeCheckpoint(str(tmp_path / "checkpoint"), scratch)
    made.run_batch({1: 1})
    conf = Path(made.path, "offsets", "0")
    conf.write_text(conf.read_text().replace(PROVIDERS["filesystem"], PROVIDERS["heap"]))

    for operation in (
        Checkpoint.verify,
        partial(Checkpoint.repair, dry_run=True),
        Checkpoint.repair,
    ):
        with pytest.raises(NotFoundError) as raised:
            operation(Checkpoint(made.path))
        assert raised.value.kind == "driver-lost"
    assert Path(made.path, "commits", "0").exists()


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_attempt_that_is_lost_is_not_one_that_a_repair_took_back(tmp_path, backend):
    """Catches rows of a batch that never counted, read in a format that names each attempt."""
    query = make_query(tmp_path / "query", 2, backend=backend, num_partitions=2)
    flip(deltas(query, 2)[0])
    checkpoint = Checkpoint(query.path)
    assert checkpoint.repair().version == 1
    query.checkpoint_format = 2
    query.restart()
    query.run_batch({"key-1": "again"})
    old, lost = deltas(query, 2, partition=0)
    assert old.name.startswith("2.delta")
    lost.unlink()

    for read in (
        lambda: read_rows(query.path),
        lambda: checkpoint.open_store(version=2, checkpoint_id=lost.name[2:34]),
    ):
        with pytest.raises(NotFoundError, match=f"version-not-found.*{lost.name}"):
            read()


def test_repair_of_a_checkpoint_with_nothing_readable_says_so(made):
    """Catches a repair that starts the query from nothing."""
    flip(deltas(made, 1)[0])

    with pytest.raises(NotFoundError, match="no version of the checkpoint can be read"):
        Checkpoint(made.path).repair()

    assert Checkpoint(made.path).info.newest_version == 4


def test_verify_names_repair_and_its_status_says_that_it_is_needed(made, tmp_path):
    """Catches a script that takes a checkpoint for whole, and a finding without a next step."""
    assert run("repair", made.path)[0] == 0
    savepoint = Checkpoint(made.path).savepoint(tmp_path / "savepoint").made
    for damaged in (deltas(made, 4)[0], min(Path(savepoint.uri).rglob("4[._]*.arrows"))):
        flip(damaged)

    code, printed = run("verify", made.path, "--deep")
    assert (code, printed["ok"]) == (1, False)
    assert f"statestore repair {made.path}" in printed["to_fix"]
    text = CliRunner().invoke(cli, ["verify", made.path, "--deep"]).output
    assert f"To fix: {printed['to_fix']}" in text
    of_savepoint = run("verify", savepoint.uri, "--deep")[1]
    assert of_savepoint["findings"]
    assert "from a copy" in of_savepoint["to_fix"]

    code, plan = run("repair", made.path)
    assert (code, plan["done"], plan["is_needed"]) == (1, False, True)
    assert run("repair", made.path, "--yes")[0] == 0
    assert run("repair", made.path)[0] == 0
    assert run("verify", made.path, "--deep")[1]["to_fix"] is None


@pytest.mark.parametrize("is_finished", [True, False])
def test_repair_takes_an_edit_back_and_says_so(tmp_path, is_finished):
    """Catches rows that an edit deleted, there again in silence, and its watermark that stays."""
    made = make(tmp_path, operators=KEYED)
    before = made.expected()
    log = Path(made.path) / "commits"
    watermark = json.loads((log / "2").read_text().splitlines()[1])["nextBatchWatermarkMs"]
    Checkpoint(made.path).edit(delete=pa.table({"key.k": [5]}), watermark_ms=watermark + 5000)
    flip(deltas(made, 4)[0])
    if not is_finished:
        # As an earlier repair leaves it that was killed between the logs.
        (log / "3").unlink()

    plan = Checkpoint(made.path).repair()

    assert (plan.version, plan.undone_edits, plan.replayed_batch) == (3, (3,), None)
    assert "edit of batch 3 is taken back: rows that it deleted are there again" in str(plan)
    assert "runs again as it was planned" not in str(plan)
    assert read_checkpoint(made.path) == before
    assert newest(made.path, "offsets") == newest(made.path, "commits") == 2
    assert not Checkpoint(made.path).repair().is_needed
    Checkpoint(made.path).edit(watermark_ms=watermark)  # that of before, so no step back


def test_repair_never_brings_forgotten_rows_back(tmp_path):
    """Catches files that a killed `forget` left, from which the query would go on with the key."""
    made = make(tmp_path, operators=KEYED)

    class Dying(LocalFileIO):
        def delete_files(self, directory, names):
            raise StorageError("the process has died", to_fix="nothing; a test asked for it")

    with pytest.raises(StorageError, match="has died"):
        at(made.path, io=Dying()).forget(keys=pa.table({"key.k": [5]}))
    end_process(made.path)
    assert newest(made.path, "commits") == 3
    flip(deltas(made, 4)[0])
    before = listing(made.path)

    with pytest.raises(NotFoundError, match="forgotten_by_batch=3"):
        Checkpoint(made.path).repair(dry_run=True)
    with pytest.raises(NotFoundError, match="keys were forgotten"):
        Checkpoint(made.path).repair()

    assert listing(made.path) == before


def test_repair_takes_back_a_forget_that_deleted_nothing_yet(tmp_path):
    """Catches a checkpoint that cannot be repaired for a `forget` that was only begun."""
    made = make(tmp_path, operators=KEYED)
    before = made.expected()
    io = FaultFileIO(LocalFileIO())
    io.arm(Fault(1, calls=("write",)))
    with pytest.raises(StorageError):
        at(made.path, io=io).forget(keys=pa.table({"key.k": [5]}))
    end_process(made.path)

    plan = Checkpoint(made.path).repair()

    assert plan.version == 3
    assert read_checkpoint(made.path) == before
