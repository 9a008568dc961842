"""Sessions: snapshots run beside commits, one at a time, and learn from each other."""

import errno
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from statestore.backends.filesystem.versions import FilesystemVersions
from statestore.checkpoint import commit
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.trailers import read_trailer
from statestore.codec.references import StoreName, VersionRef
from statestore.codec.rows import DELETE, PUT, Row
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.errors import NotFoundError, StorageError
from statestore.core.ids import CountingIds
from statestore.core.liveness import Steps, watched
from statestore.core.options import StateStoreOptions
from statestore.engine import session
from statestore.engine.session import CATCH_UP_S, CatchUp, Session, snapshot_pool
from statestore.io import local
from statestore.io.local import LocalFileIO
from statestore.testing.deltas import new_version, write_stream
from tests.fault_io import Fault, FaultFileIO
from tests.shim import Engine

G = 8
OPTIONS = StateStoreOptions(
    fsync_enabled=False, snapshot_max_chain_length=3, min_versions_to_retain=2
)


class SessionBench:
    """Commits small versions through a session."""

    def __init__(self, directory):
        self.directory = directory
        self.io = FaultFileIO(LocalFileIO())
        self.location = StoreLocation(self.io, f"{directory}/state", StoreName(0, 0))
        self.pool = snapshot_pool()
        self.ids = CountingIds()
        self.parent = None
        self.session = self.new_session()

    def new_session(self):
        """A session that knows nothing."""
        versions = FilesystemVersions(self.location, SystemClock())
        session = Session(versions, self.pool, str(self.directory), CatchUp(SystemClock()))
        session.providers.add("bench")
        return session

    def commit(self, rows=None, *, num_keys=1, options=OPTIONS, force_snapshot=False):
        """Commit the next version."""
        version = (self.parent.version if self.parent else 0) + 1
        rows = rows or [Row(1, 0, PUT, b"k", b"%d" % version)]
        checkpoint_id = self.ids.new_id()
        path = f"{self.directory}/{checkpoint_id}.arrows"
        length = write_stream(path, rows, G)
        new = new_version(version, self.parent, checkpoint_id, rows, num_keys)
        published, status = self.session.commit(
            new, path, length, options, force_snapshot=force_snapshot
        )
        self.parent = VersionRef(version, checkpoint_id, published.trailer.lineage)
        return published, status

    def wait_for_snapshot(self, version):
        """Wait until the session knows a snapshot of at least this version."""
        deadline = time.monotonic() + 40
        while version > 0 and self.session.versions.snapshot_status.version < version:
            assert time.monotonic() < deadline
            time.sleep(0.005)


@pytest.fixture
def bench(tmp_path):
    """A session bench whose threads end with the test."""
    found = SessionBench(tmp_path)
    yield found
    found.io.gate.set()
    found.pool.shutdown()


def test_commits_go_on_while_a_snapshot_is_stuck(bench):
    """Catches a commit that waits for the snapshot writer's storage."""
    bench.io.held_calls = ("publish 3_",)
    bench.io.gate.clear()
    for _ in range(12):
        published, status = bench.commit()

    assert published.trailer.version == 12
    assert status.version == -1
    assert bench.session.is_snapshot_in_flight
    assert len(published.trailer.files) == 11

    bench.io.gate.set()
    bench.wait_for_snapshot(3)
    assert bench.io.num_held == 1


def test_commit_and_load_stand_where_no_thread_takes_a_snapshot(bench, monkeypatch):
    """Catches a durable version, or state that was loaded, that is told as a failure."""

    def lack(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bench.pool, "_adjust_thread_count", lack)
    for _ in range(5):
        published, _ = bench.commit(force_snapshot=True)
    loaded = bench.new_session().load(5, None, 1, OPTIONS, None)

    assert published.trailer.version == loaded.head.trailer.version == 5
    assert bench.session.versions.snapshot_status.version == -1
    monkeypatch.undo()
    bench.commit(force_snapshot=True)
    bench.wait_for_snapshot(6)
    names = [info.name for info in bench.location.io.list(bench.location.directory)]
    assert sum(".snapshot." in name for name in names) == 1


def test_snapshot_is_written_where_its_directory_was_cleaned_up(tmp_path):
    """Catches a chain that grows for ever: cleaners of /tmp take a directory that is not used."""
    bench = SessionBench(tmp_path)
    versions = FilesystemVersions(bench.location, SystemClock())
    bench.session = Session(versions, bench.pool, f"{tmp_path}/unfinished", CatchUp(SystemClock()))
    for _ in range(4):
        bench.commit()

    bench.wait_for_snapshot(3)
    bench.pool.shutdown()


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            pa.ArrowMemoryError("malloc of size 64 failed"),
            "the engine has no memory left: reason='ArrowMemoryError: malloc",
        ),
        (RuntimeError("can't start new thread"), "the engine gets no thread: reason="),
    ],
)
def test_lack_of_memory_or_threads_in_an_engine_is_told_as_such(tmp_path, raised, told):
    """Catches a user who is asked to report a bug, and whose executors need a higher limit."""
    engine = Engine(str(tmp_path / "scratch"))

    def lack(_request):
        raise raised

    engine._operations["status"] = lack
    error = engine.request("status")["error"]

    assert (error["class"], error["kind"]) == ("StorageError", "storage")
    assert told in error["message"]


def test_commit_that_waits_for_a_snapshot_shows_signs_of_life(bench, monkeypatch):
    """Catches an engine that is killed as hung while its store catches up."""
    bench.commit()
    before, waiting = Steps(), Steps()
    with watched(before):
        bench.commit()
    monkeypatch.setattr(session, "CATCH_UP_S", 1.5)
    bench.session._catching_up = Future()

    with watched(waiting):
        bench.commit()

    assert waiting.steps >= before.steps + 3


def test_commits_of_a_run_wait_no_longer_together_than_one_may():
    """Catches a restart that takes a minute more for each state partition: all outran theirs."""
    clock = ManualClock()
    catch_up = CatchUp(clock)

    assert catch_up.rest_s("run") == CATCH_UP_S
    clock.advance(40_000)
    assert catch_up.rest_s("run") == CATCH_UP_S - 40
    assert catch_up.rest_s("another") == CATCH_UP_S
    clock.advance(30_000)
    assert (catch_up.rest_s("run"), catch_up.rest_s("another")) == (0, CATCH_UP_S - 30)


def test_maintenance_waits_no_longer_than_it_may(bench, caplog):
    """Catches a healthy engine that counts as hung while snapshots of other stores take turns."""
    options = replace(OPTIONS, snapshot_max_chain_length=100)
    for _ in range(4):
        bench.commit(options=options)
    release = threading.Event()
    bench.pool.submit(release.wait, 60)

    bench.session.maintain(4, None, OPTIONS, snapshot=True, cleanup=False, wait_s=0.05)

    assert bench.session.is_snapshot_in_flight
    assert bench.session.versions.snapshot_status.version == -1
    release.set()
    bench.wait_for_snapshot(4)

    for _ in range(4):
        bench.commit(options=options)
    release.clear()
    bench.pool.submit(release.wait, 60)
    bench.io.arm(Fault(0, calls=("publish",)))
    bench.session.maintain(8, None, OPTIONS, snapshot=True, cleanup=False, wait_s=0.05)
    release.set()
    bench.pool.submit(lambda: None).result()
    assert "snapshot failed" in caplog.text


def test_cleanups_of_stores_that_moved_away_do_not_queue(bench):
    """Catches commits that wait for cleanups of stores which the engine has forgotten."""
    manual = replace(OPTIONS, snapshot_max_chain_length=100)
    for _ in range(4):
        bench.commit(options=manual)
    release = threading.Event()
    bench.pool.submit(release.wait, 60)
    for _ in range(40):
        session = bench.new_session()
        session.load(4, None, 1, manual, None)
        session.providers.clear()
        assert session.forget_local()
    last = bench.new_session()
    last.load(4, None, 1, manual, None)
    bench.io.arm(None)
    release.set()
    bench.pool.submit(lambda: None).result()

    assert bench.io.trace.count("list 0") == 1


def test_snapshot_stuck_in_reading_does_not_hold_up_commits(bench):
    """Catches a lock that spans the reading of a snapshot's files."""
    bench.io.held_calls = ("fetch",)
    bench.io.gate.clear()
    for _ in range(8):
        bench.commit()

    assert bench.session.is_snapshot_in_flight


def test_later_commits_start_from_the_finished_snapshot(bench):
    """Catches chains that grow although snapshots are taken."""
    for _ in range(3):
        bench.commit()
    bench.wait_for_snapshot(3)
    published, status = bench.commit()

    assert [ref.kind for ref in published.trailer.files] == ["snapshot"]
    assert (status.version, status.num_taken) == (3, 1)
    assert status.num_bytes > 0


def test_snapshot_in_flight_counts_when_it_lands_late(bench):
    """Catches deltas committed during the snapshot being forgotten in the chain."""
    bench.io.held_calls = ("publish 3_",)
    bench.io.gate.clear()
    for _ in range(5):
        bench.commit()
    bench.io.gate.set()
    bench.wait_for_snapshot(3)
    published, _ = bench.commit()

    assert [ref.version for ref in published.trailer.files][:3] == [3, 4, 5]


def test_failed_snapshot_is_tried_again(bench, caplog):
    """Catches a single failure that ends snapshots for good."""
    bench.io.arm(Fault(3, calls=("publish",)))
    for _ in range(3):
        bench.commit()
    deadline = time.monotonic() + 40
    while "snapshot failed" not in caplog.text:  # said after the flight has ended
        assert time.monotonic() < deadline
        time.sleep(0.005)
    bench.io.arm(None)

    bench.commit()

    bench.wait_for_snapshot(4)


def test_forced_snapshot_is_taken_at_once(bench):
    """Catches Spark's request for a snapshot being ignored."""
    bench.commit(force_snapshot=True)

    bench.wait_for_snapshot(1)


def test_repeated_commit_answers_the_same_from_a_new_session(bench):
    """Catches an engine restart that loses or doubles a version."""
    rows = [Row(1, 0, PUT, b"k", b"v")]
    path = f"{bench.directory}/delta.arrows"
    length = write_stream(path, rows, G)
    new = new_version(1, None, "ab" * 16, rows, 1)

    first, _ = bench.session.commit(new, path, length, OPTIONS, force_snapshot=False)
    again, _ = bench.new_session().commit(new, path, length, OPTIONS, force_snapshot=False)
    same, _ = bench.session.commit(new, path, length, OPTIONS, force_snapshot=False)

    assert first == again == same


def test_commit_whose_delta_is_gone_is_a_named_error(bench):
    """Catches answering success for a version that was never published."""
    new = new_version(1, None, "ab" * 16, [], 0)

    with pytest.raises(StorageError, match="delta to commit is gone"):
        bench.session.commit(new, "/nonexistent", 10, OPTIONS, force_snapshot=False)


def test_full_scratch_disk_is_a_named_error_and_the_commit_can_be_repeated(bench, monkeypatch):
    """Catches an internal error, or a delta spoilt for the next attempt."""
    rows = [Row(1, 0, PUT, b"k", b"v")]
    path = f"{bench.directory}/delta.arrows"
    length = write_stream(path, rows, G)
    new = new_version(1, None, "ab" * 16, rows, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(commit, "append_trailer", full)
    with pytest.raises(StorageError) as caught:
        bench.session.commit(new, path, length, OPTIONS, force_snapshot=False)
    monkeypatch.undo()

    assert caught.value.kind == "storage-full"
    bench.session.commit(new, path, length, OPTIONS, force_snapshot=False)


def test_wrong_number_of_keys_is_caught_before_a_snapshot_is_published(bench, caplog):
    """Catches a metric that drifts from the rows, and a merge that loses some."""
    bench.commit([Row(1, 0, PUT, b"a", b"1"), Row(2, 0, PUT, b"b", b"2")], num_keys=2)
    bench.commit([Row(1, 0, DELETE, b"a", None)], num_keys=2, force_snapshot=True)

    deadline = time.monotonic() + 40
    while "not as many" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert bench.session.versions.snapshot_status.version == -1
    assert not list(bench.directory.rglob("*.snapshot.*"))


def test_maintenance_takes_a_due_snapshot_and_expires(bench):
    """Catches maintenance that does nothing after an engine restart."""
    manual = StateStoreOptions(fsync_enabled=False, snapshot_max_chain_length=1000)
    for _ in range(6):
        bench.commit(options=manual)
    session = bench.new_session()

    session.maintain(6, None, OPTIONS, snapshot=True, cleanup=True)
    bench.session = session
    bench.commit(options=manual)
    bench.commit(options=manual)
    bench.commit(options=manual)
    session.maintain(9, None, OPTIONS, snapshot=True, cleanup=False)
    bench.commit(options=manual)
    bench.commit(options=manual)
    cleanup = session.maintain(11, None, OPTIONS, snapshot=False, cleanup=True)

    assert session.versions.snapshot_status.version == 9
    assert cleanup.num_files == 6
    assert session.versions.load(10, None, 1, OPTIONS).refs[0].version == 9
    with pytest.raises(NotFoundError):
        session.versions.load(5, None, 1, OPTIONS)


def test_cleanup_waits_for_another_no_longer_than_it_may(bench):
    """Catches maintenance that waits without an end, and whose engine is taken for hung."""
    manual = StateStoreOptions(fsync_enabled=False, snapshot_max_chain_length=1000)
    for snapshot in (6, 9, 11):
        while not bench.parent or bench.parent.version < snapshot:
            bench.commit(options=manual)
        bench.session.maintain(snapshot, None, OPTIONS, snapshot=True, cleanup=False)
    bench.io.held_calls = ("delete ",)
    bench.io.gate.clear()

    def clean_up(wait_s):
        return bench.session.maintain(
            11, None, OPTIONS, snapshot=False, cleanup=True, wait_s=wait_s
        )

    with ThreadPoolExecutor() as threads:
        first = threads.submit(clean_up, None)
        while not bench.io.num_held and not first.done():
            time.sleep(0.01)
        second = clean_up(0.05)
        bench.io.gate.set()

    assert (second.num_files, second.num_left) == (0, 1)
    assert first.result().num_files > 0
    assert clean_up(None).num_left == 0


def test_cleanup_leaves_what_a_commit_is_writing(bench, monkeypatch):
    """Catches a commit that fails where orphans go at once: its copy is one until it is moved."""
    at_once = replace(OPTIONS, orphan_age_ms=0)
    bench.commit(options=at_once)
    move, cleanups = local._move, []

    def move_across_disks(source, path, *, overwrite):
        if local.TEMPORARY_PREFIX not in source:
            raise OSError(errno.EXDEV, "cross-device link")
        cleanups.append(
            bench.session.maintain(1, None, at_once, snapshot=False, cleanup=True).num_files
        )
        move(source, path, overwrite=overwrite)

    monkeypatch.setattr(local, "_move", move_across_disks)
    bench.commit(options=at_once)

    assert cleanups == [0]


def test_loaded_files_stay_until_the_next_load(bench):
    """Catches retention taking files away while a shim still reads them."""
    for _ in range(9):
        bench.commit(options=replace(OPTIONS, min_versions_to_retain=100))
        bench.wait_for_snapshot(bench.parent.version // 3 * 3)
    restored = bench.session.load(1, None, 1, OPTIONS, None)
    bench.session.maintain(9, None, OPTIONS, snapshot=False, cleanup=True)

    assert [file.path for file in restored.files if not _exists(file.path)] == []
    bench.session.load(9, None, 1, OPTIONS, None)
    bench.session.maintain(9, None, OPTIONS, snapshot=False, cleanup=True)
    assert not _exists(restored.files[0].path)


def test_change_feed_has_one_delta_a_version(bench, tmp_path):
    """Catches a change feed that starts at a snapshot instead of the deltas."""
    for _ in range(7):
        bench.commit()
        bench.wait_for_snapshot(bench.parent.version // 3 * 3)

    _, files = bench.session.versions.changes(2, 7, None, str(tmp_path))

    assert [file.trailer.version for file in files] == [2, 3, 4, 5, 6, 7]
    assert all(file.trailer.kind == "delta" for file in files)


def test_restore_from_an_exact_snapshot(bench):
    """Catches fine-grained replay that starts somewhere else."""
    for _ in range(7):
        bench.commit()
        bench.wait_for_snapshot(bench.parent.version // 3 * 3)

    restored = bench.session.load(7, None, 1, OPTIONS, from_snapshot=(3, None))

    assert [(ref.kind, ref.version) for ref in restored.refs] == [
        ("snapshot", 3), ("delta", 4), ("delta", 5), ("delta", 6), ("delta", 7),
    ]  # fmt: skip
    with pytest.raises(NotFoundError, match="no snapshot of that version"):
        bench.session.load(7, None, 1, OPTIONS, from_snapshot=(4, None))


def test_closed_session_serves_on_and_knows_its_snapshot(bench):
    """Catches a snapshot every batch when Spark unloads stores after each commit."""
    bench.commit(force_snapshot=True)
    bench.wait_for_snapshot(1)

    bench.session.close()
    published, status = bench.commit()

    assert status.version == 1
    assert published.trailer.files[0].kind == "snapshot"


def test_stores_do_not_wait_for_each_other(tmp_path):
    """Catches one lock for all stores of an engine."""
    one, two = SessionBench(tmp_path / "a"), SessionBench(tmp_path / "b")
    for bench in (one, two):
        bench.directory.mkdir()
    one.io.held_calls = ("publish",)
    one.io.gate.clear()
    stuck = threading.Thread(target=one.commit)
    stuck.start()

    two.commit()

    assert stuck.is_alive()
    one.io.gate.set()
    stuck.join()
    for bench in (one, two):
        bench.pool.shutdown()


def _exists(path):
    from pathlib import Path

    return Path(path).exists()


def test_version_tells_what_the_commit_before_took(bench):
    """Catches times of another version, and times that nobody measured."""
    first, _ = bench.commit()
    second, _ = bench.commit()
    bench.session = bench.new_session()
    third, _ = bench.commit()

    told = [
        read_trailer(bench.location, file.ref.path).trailer.parent_commit
        for file in (first, second, third)
    ]
    assert told[0] is told[2] is None
    assert told[1].to_json() == first.commit.to_json()
    assert told[1].total_ms > 0
