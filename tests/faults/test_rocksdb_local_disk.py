"""The local databases of the rocksdb backend: full, failing, closed, removed, gone back to."""

import errno
import gc
import os
import resource
import shutil
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import MAX_WAITING, LocalDatabase
from statestore.backends.rocksdb.view import View
from statestore.codec.rows import PUT, Row
from statestore.core.clock import ManualClock
from statestore.core.errors import StorageError
from statestore.core.options import StateStoreOptions
from statestore.engine.sessions import LEFT_MS, MAX_CLOSED_STORES
from statestore.io.counting import CountingFileIO
from statestore.io.forwarding import ForwardingFileIO
from statestore.io.local import LocalFileIO
from tests.engine_process import EngineProcess
from tests.fault_io import Fault, FaultFileIO
from tests.own_disk import small_disk
from tests.seams import at
from tests.shim import Engine, G, RocksDBShim, Shim, in_view, rows

OPTIONS = StateStoreOptions(fsync_enabled=False, rocksdb_merge_min_files=4)


def load(root, version):
    """Rows of a version by a handle that has nothing on its local disk."""
    with at(root, options=OPTIONS).open_store(version=version) as store:
        return list(store.scan())


def put(store, number):
    """Commit a version of one row and return its delta."""
    batch = store.begin()
    batch.put(b"%d" % number, b"")
    batch.commit()
    return store._head


@contextmanager
def two_handles(tmp_path, **seams):
    """Yield two handles of a store, of which the first has committed 3 versions, and the version
    that is on the local disk of the second."""
    checkpoint = at(tmp_path, options=OPTIONS, **seams)
    with (
        checkpoint.open_store(backend="rocksdb") as there,
        checkpoint.open_store(backend="rocksdb") as here,
    ):
        for number in range(1, 4):
            put(there, number)
        yield there, here, here._versions.load(3, None, None, OPTIONS)


def test_local_disk_that_is_full_is_named_and_left(tmp_path):
    """Catches a full disk of the executor taking a version with it, or ending the engine."""
    shim = RocksDBShim(tmp_path)
    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, rows(*range(10)))
        big = [Row(n % G, 0, PUT, b"k%08d" % n, os.urandom(200)) for n in range(5000)]
        request = shim.request(big)
        # No file of the engine may grow beyond this: what a disk without space does to it.
        pid = engine.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, limits[1]))

        with pytest.raises(AssertionError, match=r"\[storage\]|\[storage-full\]"):
            engine.call("commit", **request)

        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        assert len(in_view(engine.call("load", **shim.load(1)))) == 10
        shim.committed(request, engine.call("commit", **request))
        assert len(in_view(engine.call("load", **shim.load()))) == 5010


def test_commit_is_answered_when_the_local_database_cannot_follow(tmp_path):
    """Catches a version that is durable and reported as failed, for the sake of a cache."""
    shim = RocksDBShim(tmp_path, rocksdb_compact_on_commit=True)

    def commit(engine, number):
        keys = range(number, 2400, 8)
        shim.commit(engine, [Row(n % G, 0, PUT, b"%08d" % n, os.urandom(200)) for n in keys])

    with EngineProcess(shim.scratch) as engine:
        for number in range(4):
            commit(engine, number)
        # Room for what a commit writes, and not for the whole state.
        pid = engine.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (150_000, limits[1]))
        commit(engine, 4)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        commit(engine, 5)
        shutil.rmtree(tmp_path / "statestore-scratch-1/engine-0/rocksdb")
        commit(engine, 6)
        commit(engine, 7)

        assert len(in_view(shim.view(engine))) == 2400
    assert len(load(tmp_path / "ck", 7)) == 2100


def test_load_fetches_only_what_the_local_disk_does_not_hold(tmp_path):
    """Catches a whole download after a failed batch, a restarted engine or a moved store."""
    here, there = RocksDBShim(tmp_path), RocksDBShim(tmp_path)
    other_scratch = str(tmp_path / "statestore-scratch-2")
    with EngineProcess(here.scratch) as engine:
        for number in range(4):
            here.commit(engine, rows(number))
        assert engine.call("load", **here.load())["files_read"] == 0
        before = engine.call("load", **here.load(3))
        assert (before["files_read"], len(in_view(before))) == (0, 3)

        engine.process.kill()
        engine.process.wait()

    with EngineProcess(here.scratch) as engine, EngineProcess(other_scratch) as other:
        assert engine.call("load", **here.load())["files_read"] == 0
        there.parent, there.num_keys = here.parent, here.num_keys
        assert other.call("load", **here.load())["files_read"] == 4
        for number in (4, 5):
            there.commit(other, rows(number))
        moved = engine.call("load", **there.load())

        assert (moved["files_read"], len(in_view(moved))) == (2, 6)


def test_store_closed_beside_its_commits_keeps_every_row(tmp_path):
    """Catches a provider of an older run closing the database under a commit of the next one."""
    shim = RocksDBShim(tmp_path)
    is_over = threading.Event()
    num_closed = []

    def close():
        while not is_over.wait(0.001):
            engine.call("close", store=shim.store, backend="rocksdb")
            num_closed.append(1)

    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, rows(*range(100)))
        closer = threading.Thread(target=close)
        closer.start()
        try:
            while not num_closed:
                time.sleep(0.001)
            for number in range(100, 140):
                shim.commit(engine, rows(number))
                assert len(in_view(shim.view(engine))) == number + 1
        finally:
            is_over.set()
            closer.join()


@pytest.mark.parametrize("fault", [Fault(1, calls=("read_tail",)), Fault(0, calls=("fetch",))])
def test_outage_of_the_storage_leaves_the_local_database(tmp_path, fault):
    """Catches a whole download after a request that failed."""
    io = FaultFileIO(LocalFileIO())
    with two_handles(tmp_path, io=io) as (there, here, held):
        there.snapshot()
        put(there, 4)

        io.arm(fault)
        with pytest.raises(StorageError, match="injected"):
            here._versions.load(4, None, None, OPTIONS)
        io.arm(None)

        assert Path(held.view).exists()
        assert len(here._versions.load(4, None, None, OPTIONS).refs) == 1
        here.load(4)
        assert list(here.scan()) == list(there.scan())


def test_local_disk_without_hard_links_is_gone_on_with(tmp_path, monkeypatch):
    """Catches a whole download for each batch that is made again, where a volume has no links."""

    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    io = FaultFileIO(LocalFileIO())
    io.arm(Fault(10**9))
    with two_handles(tmp_path, io=io) as (there, here, _):
        put(there, 4)
        here._versions.load(4, None, None, OPTIONS)
        before = here._versions._head_to_load(3, None, None, OPTIONS)
        num_calls = len(io.trace)
        monkeypatch.setattr(Path, "hardlink_to", refuse)

        database = here._versions._local.stand_at(before, OPTIONS)

        assert database.at == before.trailer.version_ref
        assert not [call for call in io.trace[num_calls:] if call.startswith("fetch")]


def test_view_that_cannot_be_opened_is_named(tmp_path):
    """Catches a text of a library without a cause or a fix, of a disk or its limits."""
    with pytest.raises(StorageError, match="open the local database"):
        View(str(tmp_path / "gone"))


def test_full_disk_leaves_the_local_database_and_no_copies(tmp_path, monkeypatch):
    """Catches a whole download, which takes more space, and copies that stay until the end."""
    with two_handles(tmp_path) as (there, here, held):
        for number in range(4, 6):
            put(there, number)
        extract, calls = sst.extract_sst, []

        def full(file, path):
            calls.append(path)
            extract(file, path)
            if len(calls) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return path

        monkeypatch.setattr(sst, "extract_sst", full)
        with pytest.raises(StorageError, match="no space left"):
            here._versions.load(5, None, None, OPTIONS)
        monkeypatch.undo()

        assert Path(held.view).exists()
        assert not list(Path(held.view).parent.glob(".tmp-*"))
        assert len(here._versions.load(5, None, None, OPTIONS).refs) == 2
        here.load(5)
        assert list(here.scan()) == list(there.scan())


@pytest.mark.parametrize("has_near", [False, True])
def test_disk_that_was_full_is_gone_on_with(tmp_path, monkeypatch, has_near):
    """Catches a store that never loads again for what is on the disk and of no use to it."""
    with two_handles(tmp_path) as (there, here, held):
        for number in range(4, 8):
            put(there, number)
        if not has_near:
            there.snapshot()
        extract, failures = sst.extract_sst, [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]

        def full_once(file, path):
            if failures:
                raise failures.pop()
            return extract(file, path)

        monkeypatch.setattr(sst, "extract_sst", full_once)
        if has_near:
            with pytest.raises(StorageError, match="no space left"):
                here._versions.load(7, None, None, OPTIONS)
            assert Path(held.view).exists()
        here.load(7)
        assert list(here.scan()) == list(there.scan())


def test_version_that_a_full_disk_keeps_from_being_opened_stays(tmp_path, monkeypatch):
    """Catches a version that is let go of and fetched again, while it stays on the disk."""
    with two_handles(tmp_path) as (there, here, held):
        put(there, 4)
        here._versions.forget_heads()
        opens, failures = LocalDatabase._open, [Exception("IO error: No space left on device")]

        def full_once(database, path):
            if failures:
                raise failures.pop()
            opens(database, path)

        monkeypatch.setattr(LocalDatabase, "_open", full_once)
        with pytest.raises(StorageError, match="no space left"):
            here._versions.load(4, None, None, OPTIONS)

        assert Path(held.view).exists()
        assert len(here._versions.load(4, None, None, OPTIONS).refs) == 1


def test_merge_holds_nothing_but_the_file_while_it_is_sent(tmp_path):
    """Catches a local disk that needs three times what is merged, as long as an upload takes."""
    shares = []

    class Watched(ForwardingFileIO):
        def publish(self, local_path, path, *, sync, overwrite):
            if ".snapshot." in path or ".merged." in path:
                beside = Path(local_path).parent
                size = sum(each.stat().st_size for each in beside.rglob("*") if each.is_file())
                shares.append(size / Path(local_path).stat().st_size)
            return super().publish(local_path, path, sync=sync, overwrite=overwrite)

    checkpoint = at(tmp_path, options=OPTIONS, io=Watched(LocalFileIO()))
    with checkpoint.open_store(backend="rocksdb") as store:
        for number in range(4):
            batch = store.begin()
            for key in range(2000):
                batch.put(b"%d-%d" % (number, key), os.urandom(100))
            batch.commit()
        store.snapshot()

    assert shares
    assert max(shares) < 1.1, shares


def test_closed_stores_do_not_fill_the_local_disk(tmp_path):
    """Catches the copies of state partitions that moved away, kept for ever and counted as open."""
    shims = [RocksDBShim(tmp_path, partition=n) for n in range(MAX_CLOSED_STORES + 4)]
    closed = shims[1:]
    with EngineProcess(shims[0].scratch) as engine:
        for shim in shims:
            shim.commit(engine, rows(1, 2))
        for shim in closed:
            engine.call("close", store=shim.store, backend="rocksdb")

        reply = shims[0].commit(engine, rows(3))
        status = engine.call("status")
        assert status["stores"] == 1
        assert reply["rss_share_bytes"] > status["rss_bytes"] / 2
        assert 0 < reply["rocksdb_share_bytes"] < reply["rss_share_bytes"]
        views = list(Path(shims[0].scratch).glob("engine-*/rocksdb/*/view-*"))
        assert len(views) == MAX_CLOSED_STORES
        reads = [engine.call("load", **shim.load())["files_read"] for shim in closed]
        assert reads == [1] * 3 + [0] * MAX_CLOSED_STORES


def test_copies_of_closed_stores_give_way_where_the_disk_is_full(tmp_path):
    """Catches a query that fails for want of space which copies that nobody needs take."""
    shims = [RocksDBShim(tmp_path, partition=n) for n in range(8)]
    with EngineProcess(shims[0].scratch) as engine:
        for shim in shims:
            shim.commit(
                engine, [Row(n % G, 0, PUT, b"%08d" % n, os.urandom(200)) for n in range(10_000)]
            )
    with small_disk(tmp_path, 12) as small, EngineProcess(str(small)) as engine:
        for shim in shims:
            assert len(in_view(engine.call("load", **shim.load()))) == 10_000
            engine.call("close", store=shim.store, backend="rocksdb")
        for shim in shims[:3]:
            engine.call("load", **shim.load())
        # Those that are in use stay.
        calls = (engine.call("load", **shim.load()) for shim in shims[3:])
        with pytest.raises(AssertionError, match="storage-full"):
            list(calls)


def test_commit_takes_the_place_of_closed_stores_where_the_disk_is_full(tmp_path):
    """Catches a batch that never commits for want of space which copies of closed stores take."""
    closed, store = RocksDBShim(tmp_path), RocksDBShim(tmp_path, partition=1)
    Path(store.scratch).mkdir()  # for the deltas, which are on a disk with space

    def some(num_rows):
        return [Row(n % G, 0, PUT, b"%08d" % n, os.urandom(200)) for n in range(num_rows)]

    with small_disk(tmp_path, 48) as small, EngineProcess(str(small)) as engine:
        closed.commit(engine, some(40_000))
        engine.call("close", store=closed.store, backend="rocksdb")
        ballast = shutil.disk_usage(small).free - 1_000_000
        Path(small, "ballast").write_bytes(bytes(ballast))

        store.commit(engine, some(10_000))

        assert len(in_view(store.view(engine))) == 10_000


@pytest.mark.parametrize("how", ["close", "maintain"])
def test_databases_of_an_engine_that_died_wait_for_their_stores_and_go(tmp_path, how):
    """Catches a disk that every engine that dies fills with those of stores that moved away."""
    shims = [RocksDBShim(tmp_path, partition=n) for n in range(3)]
    with EngineProcess(shims[0].scratch) as died:
        for shim in shims:
            shim.commit(died, rows(1))
            died.call("load", **shim.load())
        died.process.kill()
        died.process.wait()
    clock = ManualClock()
    engine = Engine(shims[0].scratch, clock=clock)

    def databases():
        return len(list(Path(shims[0].scratch).glob("engine-*/rocksdb/*")))

    def read(shim):
        return engine.call("load", **shim.load())["files_read"]

    assert (read(shims[0]), databases()) == (0, 3)
    engine.call("close", store=shims[0].store, backend="rocksdb")
    assert (read(shims[1]), databases()) == (0, 3)
    clock.advance(LEFT_MS)
    if how == "close":
        engine.call("close", store=shims[1].store, backend="rocksdb")
    else:
        request = {"version": 1, "snapshot": False, "cleanup": False, "options": shims[0].options}
        engine.call("maintain", store=shims[0].store, backend="rocksdb", **request)
    assert databases() == 2
    assert [read(shim) for shim in shims] == [0, 0, 1]
    assert databases() == 3


def test_closed_stores_are_forgotten(tmp_path):
    """Catches a long-lived application that remembers every checkpoint it ever ran."""
    others = _storages()  # of tests before, which may go meanwhile
    service = Engine(str(tmp_path / "scratch"))
    for number in range(3 * MAX_CLOSED_STORES):
        (tmp_path / str(number)).mkdir()
        shim = Shim(tmp_path / str(number), checkpoint_storage=f"file:{tmp_path}/elsewhere")
        Path(shim.scratch).mkdir(parents=True)
        shim.store["run"] = str(number)
        shim.commit(service, rows(1))
        service.call("close", store=shim.store, backend="filesystem", options=shim.options)

    kept = _storages().keys() - others.keys()
    assert 0 < len(kept) <= 2 * MAX_CLOSED_STORES


def _storages():
    """The storages of this process, by their IDs; held, so that none is used again."""
    gc.collect()
    return {id(found): found for found in gc.get_objects() if isinstance(found, CountingFileIO)}


def test_view_can_be_read_when_its_directory_is_gone(tmp_path):
    """Catches a reader of a version that fails when the engine removes it."""
    shim = RocksDBShim(tmp_path)
    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, rows(*range(1000)))
        view = View(shim.view(engine)["view"])
        directories = []
        for number in range(8):
            shim.commit(engine, rows(1000 + number))
            directories.append(shim.view(engine)["view"])

        assert sum(Path(path).exists() for path in directories) < 8
        assert len(list(view.scan(0, b""))) == 1000


def test_versions_that_nobody_read_can_be_gone_back_to(tmp_path):
    """Catches a commit that the local database took in too late, twice, or on the wrong version."""
    shim = RocksDBShim(tmp_path)
    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, rows(*range(10)))
        for number in range(10, 10 + 3 * MAX_WAITING):
            before = {"parent": shim.parent, "num_keys": shim.num_keys}
            shim.commit(engine, rows(number, 1000 + number))
            if number % 4 == 1:
                # The batch failed elsewhere: it is made again from the version before.
                loaded = engine.call("load", **shim.load(before["parent"]["version"]))
                assert loaded["files_read"] == 0
                assert len(in_view(loaded)) == before["num_keys"]
                shim.parent, shim.num_keys = before["parent"], before["num_keys"]
                shim.commit(engine, rows(number, 2000 + number))
        found = in_view(shim.view(engine))
        assert len(found) == shim.num_keys
        redone = {n for n in range(10, 10 + 3 * MAX_WAITING) if n % 4 == 1}
        assert {int(key) - 2000 for key in found if int(key) >= 2000} == redone


def damage_blocks(scratch):
    """Damage a block in the middle of every SST of a local database, in place."""
    for path in Path(scratch).rglob("*.sst"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(bytes(64))


def test_damaged_local_block_is_not_taken_for_the_end_of_the_rows(tmp_path):
    """Catches rows left out of a version, or of what is read, behind a block of a bad disk.

    Also a disk that stays in the way: what is on it is removed, and built anew.
    """
    many = [Row(n % G, 0, PUT, b"k%08d" % n, os.urandom(200)) for n in range(5000)]
    shim = RocksDBShim(tmp_path, rocksdb_incremental=False)
    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, many)
        view = shim.view(engine)["view"]
        damage_blocks(shim.scratch)

        for read in (View(view).count, lambda: list(View(view).scan(0, b""))):
            with pytest.raises(StorageError, match="block checksum mismatch"):
                read()
        with pytest.raises(StorageError, match="block checksum mismatch"):
            list(View(view).batches())
        engine.call("distrust", store=shim.store, backend=shim.backend, options=shim.options)
        assert len(in_view(engine.call("load", **shim.load()))) == len(many)

        damage_blocks(shim.scratch)
        with pytest.raises(AssertionError, match=r"\[storage\].*block checksum mismatch"):
            engine.call("commit", **shim.request(rows(1)))
        shim.commit(engine, rows(1))
        assert len(in_view(shim.view(engine))) == len(many) + 1


def test_limit_of_open_files_leaves_the_local_database(tmp_path):
    """Catches a whole download, at each attempt, for a limit of the machine."""
    here, there = RocksDBShim(tmp_path), RocksDBShim(tmp_path)
    with (
        EngineProcess(here.scratch) as engine,
        EngineProcess(str(tmp_path / "statestore-scratch-2")) as other,
    ):
        for number in range(4):
            here.commit(engine, rows(number))
        there.parent, there.num_keys = here.parent, here.num_keys
        engine.call("close", store=here.store, backend="rocksdb")
        for number in range(4, 6):
            there.commit(other, rows(number))
        pid = engine.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        num_open = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        told = set()
        for more in range(12):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_open + more, limits[1]))
            reply = engine.request("load", **there.load())
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            if "error" in reply:
                told.add(reply["error"]["kind"])
                assert "Too many open files" in reply["error"]["message"]

        assert told == {"storage"}
        assert engine.call("load", **there.load())["files_read"] == 2
