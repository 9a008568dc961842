"""Savepoints that are taken one after the other: the newest stay, and nothing else is deleted."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from uuid import UUID

import pytest

from statestore import Checkpoint, Every, Savepoint
from statestore.core.clock import ManualClock
from statestore.core.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.core.options import StateStoreOptions
from statestore.io.memory import MemoryFileIO
from statestore.operations.metadata_file import metadata_fields
from statestore.operations.upkeep import retained_savepoints
from tests.cases_of_ci import IS_LONG
from tests.checkpoints import OPTIONS, files_below, make_query, query_of, read_rows, restore
from tests.fault_io import Fault, FaultFileIO
from tests.seams import Meanwhile, at

HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000


class Query:
    """A query, its savepoints, and what they have to be."""

    def __init__(self, root, io=None, clock=None):
        self.clock = clock or ManualClock(START_MS)
        self.io = io or MemoryFileIO(str(root), self.clock)
        self.made = query_of("/query", io=self.io, num_partitions=2, clock=self.clock)
        self.num_batches = 0

    def commit(self):
        self.made.run_batch({f"key-{self.num_batches % 7}": f"{self.num_batches}"})
        self.num_batches += 1

    def at(self, path, kind=Checkpoint):
        return at(path, kind=kind, options=OPTIONS, io=self.io, clock=self.clock)

    def retain(self, **how):
        return self.at("/query").retain_savepoint(self.at("/kept"), **how)

    def there(self):
        """Directories in /kept, whole or not."""
        return {f"/kept/{name}" for name in self.io.list_directories("/kept")}

    def whole(self):
        """Savepoints in /kept."""
        found = []
        for uri in self.there():
            with suppress(NotFoundError):
                savepoint = self.at(uri, Savepoint)
                assert savepoint.info
                found.append(savepoint)
        return found

    def status(self):
        return json.loads(self.io.read_tail("/kept/status.json", 1 << 16)[0])


@pytest.mark.parametrize("seed", range(8))
def test_savepoints_are_those_of_a_plain_list(tmp_path, seed):
    """Catches a savepoint that goes too early, one that stays, and one of the user's that goes."""
    random, query = Random(seed), Query(tmp_path)
    kept: list[tuple[int, str, int]] = []  # when, where, version
    users: set[str] = set()
    committed_ms = 0
    for step in range(25):
        query.clock.advance(random.choice([1_000, 60_000, HOUR_MS, 30 * HOUR_MS]))
        what = random.choice(["commit", "commit", "retain", "retain", "retain", "user"])
        if what == "commit" or not query.num_batches:
            query.commit()
            committed_ms = query.clock.now_ms()
            continue
        if what == "user":
            name = (
                f"/kept/{random.choice(['before-upgrade', 'savepoint', 'savepoint-2026'])}-{step}"
            )
            query.at("/query").savepoint(query.at(name))
            users.add(name)
            continue
        keep = random.choice([1, 2, 3])
        max_age = random.choice([None, None, 3_600, 100_000])
        is_new = not kept or kept[-1][0] < committed_ms
        expected = kept
        if is_new:
            expected = [*kept, (query.clock.now_ms(), "new", query.num_batches)]
        stays = [
            one
            for one in expected[-keep:]
            if max_age is None
            or query.clock.now_ms() - one[0] <= max_age * 1000
            or one is expected[-1]
        ]
        before = query.there()

        planned = query.retain(keep=keep, max_age=max_age, dry_run=True)
        assert query.there() == before
        result = query.retain(keep=keep, max_age=max_age)

        assert (result.taken is not None) == is_new
        for what_of in ("version", "deleted", "left_over"):
            assert getattr(planned, what_of) == getattr(result, what_of), what_of
        assert (planned.taken is None) == (result.taken is None)
        unchanged = [uri for uri in result.kept if uri != result.taken]
        assert [uri for uri in planned.kept if uri != planned.taken] == unchanged
        assert [one for _, one, _ in kept if one in result.deleted] == [*result.deleted]
        kept = [(at_ms, result.taken if uri == "new" else uri, v) for at_ms, uri, v in stays]
        assert [*result.kept] == [uri for _, uri, _ in kept]
        assert query.there() == {*result.kept} | users
        for _, uri, version in kept:
            savepoint = query.at(uri, Savepoint)
            assert savepoint.verify(deep=True).findings == ()
            assert savepoint.info.version == version
        status = query.status()
        assert (status["newest"], status["num_kept"]) == (kept[-1][1], len(kept))
        assert (status["error"], status["taken"]) == (None, result.taken)
    assert len(kept) >= 1


def at_rest(root, io=None, clock=None):
    """A query of four versions with savepoints of two of them."""
    query = Query(root, io, clock)
    for number in range(4):
        query.commit()
        query.clock.advance(HOUR_MS)
        if number in (1, 2):
            query.retain()
    return query


def test_a_savepoint_is_whole_whatever_call_is_the_last(tmp_path):
    """Catches a moment at which the old savepoints are gone and the new one is not there."""
    clock = ManualClock(START_MS)
    io = FaultFileIO(MemoryFileIO(tempfile.mkdtemp(dir=tmp_path), clock))
    query = at_rest(tmp_path, io, clock)
    io.arm(Fault(10**9))
    query.retain(keep=1)
    writes, reads = [], []
    for index, call in enumerate(io.trace):
        if not call.endswith(".pin"):  # without which it goes on
            (reads if call.startswith(("read", "list", "fetch")) else writes).append(index)
    assert len(writes) > 20
    # None of what is above a directory, which need not be readable.
    faults = [(index, False) for index in (*(writes if IS_LONG else writes[::2]), *reads[2::20])]
    for index, happens in [*faults, *((index, True) for index in writes[::5])]:
        clock = ManualClock(START_MS)
        io = FaultFileIO(MemoryFileIO(tempfile.mkdtemp(dir=tmp_path), clock))
        query = at_rest(tmp_path, io, clock)
        io.arm(Fault(index, happens=happens))
        with pytest.raises(StateStoreError):
            query.retain(keep=1)
        io.arm(None)

        whole = query.whole()
        assert max(one.info.version for one in whole) >= 3, io.trace[index]
        assert [one.verify(deep=True).findings for one in whole] == [()] * len(whole)

        query.clock.advance(2 * HOUR_MS)
        result = query.retain(keep=1)
        assert query.there() == {*result.kept}
        assert query.at(result.kept[0], Savepoint).info.version == 4
        assert query.status()["error"] is None


def test_what_an_attempt_left_goes_when_nobody_writes_it(tmp_path):
    """Catches a savepoint under way that is deleted, and one that was killed and stays for ever."""
    query = at_rest(tmp_path)
    mark = metadata_fields(unfinished="savepoint", attempt="a").encode()
    query.io.write(
        "/kept/savepoint-20260101T000000Z-0000000a/metadata", mark, sync=False, overwrite=True
    )
    users = {"/kept/savepoint-mine", "/kept/x-20260101T000000Z"}
    for one in users:
        query.io.write(f"{one}/metadata", mark, sync=False, overwrite=True)
    query.io.write(
        "/kept/savepoint-20260102T000000Z-0000000a/other", b"", sync=False, overwrite=True
    )
    query.clock.advance(HOUR_MS - 1_000)

    assert query.retain().left_over == ()
    query.clock.advance(2_000)
    assert query.retain().left_over == ("/kept/savepoint-20260101T000000Z-0000000a",)

    assert users | {"/kept/savepoint-20260102T000000Z-0000000a"} <= query.there()
    assert "/kept/savepoint-20260101T000000Z-0000000a" not in query.there()


LEFT = "/kept/savepoint-20260101T000000Z-0000000a"


def _beside_what_is_left(root):
    """A query with a new version, and what an attempt of two hours ago has left."""
    query = at_rest(root)
    mark = metadata_fields(unfinished="savepoint", attempt="a").encode()
    query.io.write(f"{LEFT}/metadata", mark, sync=False, overwrite=True)
    query.clock.advance(2 * HOUR_MS)
    query.commit()
    return query


def test_what_an_attempt_left_goes_before_the_next_one_fails(tmp_path):
    """Catches a full disk that stays full, or one that fills up, of savepoints that failed."""
    query = _beside_what_is_left(tmp_path)
    damaged = "/query/state/0/0/5.delta.arrows"
    query.io.write(damaged, query.io.read(damaged)[:-7], sync=False, overwrite=True)

    with pytest.raises(CorruptionError):
        query.retain()

    assert LEFT not in query.there()


def _fill_up(io, space, monkeypatch):
    """Have the directories of savepoints take so many files, and no more."""
    num_files, write = itertools.count(), io.write

    def write_if_it_fits(path, *data, **how):
        if path.startswith("/kept/savepoint-") and next(num_files) >= space:
            raise StorageError("no space left", kind="storage-full", file=path, to_fix="free some")
        write(path, *data, **how)

    monkeypatch.setattr(io, "write", write_if_it_fits)


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_nothing_stays_of_a_savepoint_that_does_not_fit(tmp_path, monkeypatch, form):
    """Catches a disk that stays full, also for the query, and that each attempt fills anew."""
    for space in itertools.count(step=1 if IS_LONG else 3):
        query = _beside_what_is_left(tempfile.mkdtemp(dir=tmp_path))
        before = query.there() - {LEFT}
        _fill_up(query.io, space, monkeypatch)
        with suppress(StorageError):
            query.retain(form=form)
            break
        assert query.there() == before, space
        assert len(query.whole()) == len(before)
        assert "no space left" in query.status()["error"]
    assert space > 10


def test_savepoint_is_taken_beside_what_cannot_be_deleted(tmp_path, monkeypatch):
    """Catches backups that end for ever, since a directory of another account is in their way."""
    query = _beside_what_is_left(tmp_path)
    before = query.there()

    def delete_tree(directory, *_):
        raise StorageError("no permission", directory=directory, to_fix="ask")

    monkeypatch.setattr(query.io, "delete_tree", delete_tree)
    with pytest.raises(StorageError, match="no permission"):
        query.retain()

    (taken,) = query.there() - before
    assert query.at(taken, Savepoint).verify(deep=True).ok


def test_a_run_lists_no_savepoint_that_is_whole_or_half_deleted(tmp_path, monkeypatch):
    """Catches a run that costs as many requests as the savepoints have files, twice."""
    clock = ManualClock(START_MS)
    io = FaultFileIO(MemoryFileIO(tempfile.mkdtemp(dir=tmp_path), clock))
    query = at_rest(tmp_path, io, clock)
    whole = query.retain().kept
    assert len(whole) == 3
    mark = metadata_fields(unfinished="delete").encode()
    io.write(f"{LEFT}/metadata", mark, sync=False, overwrite=True)
    io.write(f"{LEFT}/state/0/0/1.delta.arrows", b"", sync=False, overwrite=True)
    read, reads = retained_savepoints.read_savepoint, []
    monkeypatch.setattr(
        retained_savepoints, "read_savepoint", lambda *of: reads.append(of) or read(*of)
    )
    io.arm(None)

    result = query.retain()

    assert (result.kept, result.left_over, query.there()) == (whole, (LEFT,), {*whole})
    assert [call for call in io.trace if call.startswith("list_tree savepoint-")] == []
    assert len(reads) == 3 * len(whole) + 1  # before, afterwards, and for the status


def test_an_empty_directory_goes_when_its_name_is_old(tmp_path):
    """Catches a directory that a kill before the first file, or after the last, leaves for ever."""
    query = make_query(tmp_path / "query")
    kept = tmp_path / "kept"
    clock = ManualClock(START_MS)  # 2027-01-15 08:00
    empty = {f"savepoint-20270115T06{minute}00Z-0000000a" for minute in ("00", "59")}
    stays = {"savepoint-20270115T070100Z-0000000a", "savepoint-20270115T060000Z", "mine"}
    for name in empty | stays:
        (kept / name / "state").mkdir(parents=True)
    (kept / min(empty) / ".tmp-0123").write_text("{")

    for dry_run in (True, False):
        result = at(query.path, clock=clock).retain_savepoint(
            at(kept, clock=clock), dry_run=dry_run
        )
        assert {*result.left_over} == {f"{kept}/{name}" for name in empty}

    there = {one.name for one in kept.iterdir()}
    assert there == stays | {result.taken.rpartition("/")[2], "status.json"}


def test_a_run_within_another_leaves_both_their_savepoints(tmp_path):
    """Catches two runs of one second that write one directory, or delete each other's."""
    query = at_rest(tmp_path)
    before = query.there()
    inner = []

    outer = query.retain(keep=1, progress=Meanwhile(lambda: inner.append(query.retain(keep=1))))

    assert inner[0].deleted == tuple(sorted(before))
    assert outer.deleted == ()
    assert query.there() == {inner[0].taken, outer.taken}
    assert [one.verify(deep=True).findings for one in query.whole()] == [()] * 2
    assert len(query.retain(keep=1).kept) == 1


@pytest.mark.parametrize("seed", range(4))
def test_runs_at_once_leave_whole_savepoints_of_the_newest_version(tmp_path, seed):
    """Catches a run that fails for another one, and two that delete all that there is."""
    random, query = Random(seed), make_query(tmp_path / "query")
    checkpoint = Checkpoint(query.path)
    for _ in range(4):
        query.run_batch({"a": "b"})
        keep = random.choice([1, 2])
        with ThreadPoolExecutor(4) as runs:
            taken = [
                runs.submit(checkpoint.retain_savepoint, tmp_path / "kept", keep=keep)
                for _ in range(random.choice([2, 4]))
            ]
            results = [each.result() for each in taken]
        whole = checkpoint.savepoints(tmp_path / "kept")
        assert whole[-1].info.version == checkpoint.info.newest_version
        assert all(one.verify(deep=True).findings == () for one in whole)
        assert len(whole) <= keep + len(results)
    assert len(checkpoint.retain_savepoint(tmp_path / "kept", keep=1).kept) == 1


def test_version_that_came_after_a_restore_is_taken(tmp_path):
    """Catches a savepoint that is left out because another history had its number."""
    query = at_rest(tmp_path)
    assert query.retain().size_bytes == query.status()["newest_bytes"]
    newest = query.status()["newest"]
    assert query.retain().taken is None
    query.clock.advance(HOUR_MS)
    query.io.write(  # the batch of the same number, committed by another run
        "/query/commits/3", query.io.read_tail("/query/commits/3", 1000)[0], sync=False,
        overwrite=True,
    )  # fmt: skip
    query.clock.advance(HOUR_MS)

    assert query.retain().taken not in (None, newest)


def test_directory_of_another_query_is_refused(tmp_path):
    """Catches a query whose savepoints another one's schedule deletes."""
    one, other = make_query(tmp_path / "one"), make_query(tmp_path / "other")
    Checkpoint(one.path).retain_savepoint(tmp_path / "kept")
    branch = Checkpoint(other.path).branch(tmp_path / "branch").made  # it has an ID of its own
    before = files_below(tmp_path / "kept")

    with pytest.raises(InvalidArgumentError, match="savepoints of another query"):
        branch.retain_savepoint(tmp_path / "kept", keep=1)

    assert files_below(tmp_path / "kept") == before


@pytest.mark.parametrize("where", ["query", "query/kept", "", "savepoint/kept"])
def test_directory_that_is_not_apart_is_refused(tmp_path, where):
    """Catches a status, or a savepoint, in a checkpoint."""
    query = make_query(tmp_path / "query")
    Checkpoint(query.path).savepoint(tmp_path / "savepoint")
    before = files_below(tmp_path)

    with pytest.raises(InvalidArgumentError, match="inside another checkpoint"):
        Checkpoint(query.path).retain_savepoint(tmp_path / where)

    assert files_below(tmp_path) == before


def test_new_savepoint_stays_beside_one_of_a_clock_that_is_ahead(tmp_path):
    """Catches a savepoint that goes as soon as it is taken, for an older one."""
    query = at_rest(tmp_path)
    ahead = ManualClock(query.clock.now_ms() + 100 * HOUR_MS)
    at("/query", options=OPTIONS, io=query.io, clock=ahead).retain_savepoint(
        at("/kept", options=OPTIONS, io=query.io, clock=ahead)
    )
    query.commit()

    result = query.retain(keep=1)

    assert query.there() == {result.taken}
    assert query.at(result.taken, Savepoint).info.version == 5


def test_savepoint_of_a_clock_that_was_wrong_is_the_first_to_go(tmp_path):
    """Catches one that stays for ever, beside which the same version is taken again and again."""
    query = at_rest(tmp_path)
    clock = ManualClock(query.clock.now_ms() + 10_000 * HOUR_MS)
    ahead = at("/query", options=OPTIONS, io=query.io, clock=clock).retain_savepoint(
        at("/kept", options=OPTIONS, io=query.io, clock=clock), keep=1
    )
    assert query.there() == {ahead.taken}
    taken = []
    for _ in range(2):
        query.clock.advance(HOUR_MS)
        query.commit()
        taken.append(query.retain(keep=2).taken)
        assert query.status()["newest"] == taken[-1]
        query.clock.advance(HOUR_MS)
        assert query.retain(keep=2).taken is None

    assert query.there() == {*taken}


def test_schedule_shows_itself():
    """Catches a notebook that ends in an error where a name was to be shown."""
    assert repr(Every(90, "/kept", keep=3)) == "Every(90, '/kept', keep=3)"


def test_savepoint_is_due_whatever_a_clock_said_that_was_wrong(tmp_path):
    """Catches a schedule that waits for a year that was wrong, and says nothing."""
    query = make_query(tmp_path / "query")
    kept = str(tmp_path / "kept")
    now, ahead = ManualClock(START_MS), ManualClock(START_MS + 10_000 * HOUR_MS)
    at(query.path, clock=ahead).retain_savepoint(at(kept, clock=ahead))
    every = Every(60, kept, clock=now)

    assert every.due_in_ms(Checkpoint(query.path)) == 0
    (tmp_path / "file").write_text("no directory")
    assert Every(60, tmp_path / "file", clock=now).due_in_ms(Checkpoint(query.path)) == 0
    at(query.path, clock=now).retain_savepoint(at(kept, clock=now))
    query.run_batch({"a": "b"})
    at(query.path, clock=now).retain_savepoint(at(kept, clock=now))
    assert every.due_in_ms(Checkpoint(query.path)) == 60_000


def test_time_in_which_the_machine_was_suspended_counts(tmp_path):
    """Catches a laptop whose daily savepoint comes after 24 hours awake."""
    clock, slept = ManualClock(START_MS), []
    every = Every(24 * 3600, tmp_path, clock=clock)

    def sleep(seconds):
        slept.append(seconds)
        clock.advance(20 * HOUR_MS)

    every.wait(HOUR_MS, lambda seconds: slept.append(seconds) or len(slept) == 3)
    assert slept == [60, 60, 60]
    every.wait(24 * HOUR_MS, sleep)
    assert slept[3:] == [60, 60]
    every.wait(0, pytest.fail)


def test_status_of_somebody_else_stays(tmp_path):
    """Catches a file of the user's that the status replaces."""
    query = make_query(tmp_path / "query")
    (tmp_path / "kept").mkdir()
    for text in ("", "[]", '{"status": "ready"}', "\x00"):
        (tmp_path / "kept" / "status.json").write_text(text)
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match="somebody else's file"):
                Checkpoint(query.path).retain_savepoint(tmp_path / "kept", dry_run=dry_run)
        assert [one.name for one in (tmp_path / "kept").iterdir()] == ["status.json"]
        assert (tmp_path / "kept" / "status.json").read_text() == text


@pytest.mark.parametrize("is_gone", [False, True])
def test_schedules_of_two_checkpoints_of_a_query_take_a_directory_each(tmp_path, is_gone):
    """Catches a schedule that deletes the savepoints of the checkpoint that the query moved to, and
    one that refuses the directory for a checkpoint that is no more."""
    old, kept = make_query(tmp_path / "old"), tmp_path / "kept"
    taken = Checkpoint(old.path).retain_savepoint(kept, keep=1).taken
    moved = Savepoint(taken).restore(tmp_path / "new").made
    before = files_below(kept)
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="another checkpoint of the query") as raised:
            moved.retain_savepoint(kept, keep=1, dry_run=dry_run)
        assert raised.value.fields["its_checkpoint"] == old.path
        assert files_below(kept) == before

    if is_gone:
        shutil.rmtree(old.path)
    else:
        (kept / "status.json").unlink()
    newest = moved.retain_savepoint(kept, keep=1)

    assert newest.deleted == (taken,)
    with pytest.raises(StateStoreError, match=r"another checkpoint of the query|no checkpoint"):
        Checkpoint(old.path).retain_savepoint(kept, keep=1)
    assert [one.uri for one in moved.savepoints(kept)] == [newest.taken]
    (tmp_path / "link").symlink_to(moved.uri)
    assert Checkpoint(tmp_path / "link").retain_savepoint(kept, keep=1).taken is None


def test_status_says_that_the_checkpoint_is_gone(tmp_path):
    """Catches a status that goes on saying that all is well, and one of another query replaced."""
    query, other = make_query(tmp_path / "query"), make_query(tmp_path / "other")
    (tmp_path / "other" / "metadata").write_text(json.dumps({"id": str(UUID(int=7))}))
    kept, clock = str(tmp_path / "kept"), ManualClock(START_MS)

    def status():
        return json.loads((tmp_path / "kept" / "status.json").read_text())

    taken = at(query.path, clock=clock).retain_savepoint(at(kept, clock=clock)).taken
    well = status()
    clock.advance(HOUR_MS)
    with pytest.raises(InvalidArgumentError, match="another query"):
        at(other.path, clock=clock).retain_savepoint(at(kept, clock=clock))
    shutil.rmtree(query.path)
    with pytest.raises(NotFoundError):
        at(query.path, clock=clock).retain_savepoint(at(kept, clock=clock), dry_run=True)
    assert status() == well
    every = Every(2 * 3600, kept, clock=clock)
    assert every.due_in_ms(Checkpoint(query.path)) == 0

    with pytest.raises(NotFoundError) as raised:
        at(query.path, clock=clock).retain_savepoint(at(kept, clock=clock))

    attempt = {"attempted_ms": START_MS + HOUR_MS, "error": str(raised.value)}
    assert status() == {**well, **attempt, "taken": None}
    assert status()["newest"] == taken
    assert Savepoint(taken).verify().findings == ()


def test_two_savepoints_of_one_second_have_names_of_their_own(tmp_path):
    """Catches a savepoint that is refused for the name of the one before."""
    query = Query(tmp_path)
    taken = []
    for _ in range(3):
        query.commit()
        taken.append(query.retain().taken)

    assert len({*taken}) == 3
    assert [*query.retain(keep=2).kept] == taken[1:]


@pytest.mark.parametrize("keep", [1, 5])
def test_nothing_is_deleted_when_the_newest_is_damaged(tmp_path, keep):
    """Catches good savepoints that go for one that cannot be restored, and a damage unsaid."""
    query = Query(tmp_path)
    for _ in range(2):
        query.commit()
        query.clock.advance(HOUR_MS)
        newest = query.retain().taken
    damaged = f"{newest}/state/0/0/2.delta.arrows"
    query.io.write(damaged, query.io.read(damaged)[:-7], sync=False, overwrite=True)
    before = query.there()
    assert len(before) == 2

    with pytest.raises(CorruptionError, match="no other one is deleted") as raised:
        query.retain(keep=keep)
    # A command of a shell would be wrong for a path with a space, and for S3.
    assert raised.value.to_fix == "delete this directory, or wait for a newer savepoint"

    assert query.there() == before
    assert "damaged" in query.status()["error"]
    query.clock.advance(HOUR_MS)
    query.commit()
    query.clock.advance(HOUR_MS)
    assert [*query.retain(keep=1).kept] == [query.status()["newest"]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep", 0),
        ("keep", 1.5),
        ("keep", "3"),
        ("keep", None),
        ("keep", True),
        ("form", "native "),
        ("max_age", 0),
        ("max_age", 0.5),
        ("max_age", math.nan),
        ("max_age", "7d"),
    ],
)
def test_refused_what_would_delete_the_newest(tmp_path, name, value):
    """Catches a number by which no savepoint stays, also of a schedule, at which nobody looks."""
    query = at_rest(tmp_path)

    with pytest.raises(InvalidArgumentError, match=f"{name}={value!r}"):
        query.retain(**{name: value})
    with pytest.raises(InvalidArgumentError, match=f"{name}={value!r}"):
        Every(60, tmp_path, **{name: value})


def test_schedule_without_a_directory_is_refused():
    """Catches a query that runs for weeks, and whose log alone says that it has no savepoint."""
    with pytest.raises(InvalidArgumentError, match="no directory is named"):
        Every(60, "")


def test_savepoints_are_kept_on_s3(tmp_path, s3_server, bucket):
    """Catches a deletion that leaves objects, or a listing that S3 does not have."""
    query = make_query(tmp_path / "query")
    options = StateStoreOptions(**s3_server.options())
    checkpoint = at(query.path, options=options)
    for _ in range(2):
        result = checkpoint.retain_savepoint(f"s3://{bucket}/kept", keep=1, form="native")
        query.run_batch({"a": "b"})

    assert {key.split("/")[1] for key in s3_server.keys(bucket) if key.startswith("kept/")} == {
        result.taken.rpartition("/")[2],
        "status.json",
    }
    taken = at(result.taken, kind=Savepoint, options=options)
    assert taken.verify(deep=True).findings == ()


def test_savepoint_that_was_kept_is_restored(tmp_path):
    """Catches a savepoint that is not one."""
    query = make_query(tmp_path / "query")
    taken = Checkpoint(query.path).retain_savepoint(tmp_path / "kept").taken

    restore(taken, tmp_path / "again")

    assert read_rows(tmp_path / "again") == query.expected()
