"""The rocksdb backend when something dies, is damaged or is full; what it fetches and writes."""

import gc
import os
import resource
import shutil
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

import statestore
from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import MAX_WAITING
from statestore.backends.rocksdb.merging import merge_files
from statestore.backends.rocksdb.view import View
from statestore.checkpoint.layout import StoreLocation
from statestore.codec.rows import DELETE, PUT, Row
from statestore.codec.sealed_file import SealedFile
from statestore.codec.trailer import RowCounts, StoreName
from statestore.core.errors import CorruptionError, NotFoundError, StateStoreError, StorageError
from statestore.core.options import StateStoreOptions
from statestore.engine.service import MAX_CLOSED_STORES
from statestore.io.counting import CountingFileIO
from statestore.io.local import LocalFileIO
from statestore.testing.engine_process import EngineProcess
from statestore.testing.fault_io import Fault, FaultFileIO
from tests.shim import Engine, G, RocksDBShim, Shim, in_view, rows, write_sst

OPTIONS = StateStoreOptions(fsync_enabled=False, rocksdb_merge_min_files=4)


def load(root, version):
    """Rows of a version by a handle that has nothing on its local disk."""
    with statestore.open_store(str(root), version=version, options=OPTIONS) as store:
        return list(store.scan())


@pytest.fixture
def checkpoint(tmp_path):
    """Versions 1 to 7, of which 5 names a merged file; returns (root, rows of each version)."""
    versions = {}
    with statestore.open_store(str(tmp_path), options=OPTIONS, backend="rocksdb") as store:
        for number in range(1, 8):
            batch = store.begin()
            batch.put(b"n", b"%d" % number)
            batch.put(b"%d" % number, os.urandom(200))
            batch.delete(b"%d" % (number - 2))
            batch.commit()
            versions[number] = list(store.scan())
            if number == 4:
                store.snapshot()
    return tmp_path, versions


def damage(path, how):
    """Damage a file."""
    raw = bytearray(path.read_bytes())
    if how == "flip":
        raw[len(raw) // 3] ^= 0x10
        path.write_bytes(raw)
    elif how == "cut":
        path.write_bytes(raw[:-30])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["flip", "cut", "delete"])
@pytest.mark.parametrize("pattern", ["6.delta.sst", "4_*.sst"])
def test_damaged_sst_is_named_and_never_read(checkpoint, pattern, how):
    """Catches a wrong or missing row where an SST is not what was written."""
    root, versions = checkpoint
    (path,) = (root / "state/0/0").glob(pattern)
    damage(path, how)

    with pytest.raises(NotFoundError if how == "delete" else CorruptionError) as raised:
        load(root, 7)

    assert str(path) in str(raised.value)
    # A version before it is made of other files.
    assert load(root, 3) == versions[3]


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
        shutil.rmtree(tmp_path / "statestore-scratch-1/rocksdb")
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
            for number in range(100, 140):
                shim.commit(engine, rows(number))
                assert len(in_view(shim.view(engine))) == number + 1
        finally:
            is_over.set()
            closer.join()
        assert num_closed


def put(store, number):
    """Commit a version of one row and return its delta."""
    batch = store.begin()
    batch.put(b"%d" % number, b"")
    batch.commit()
    return store._head


def wait_for(condition):
    """Wait until something is so."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_cleanup_beside_commits_keeps_a_merged_file_that_was_just_named(tmp_path):
    """Catches a cleanup that knows neither the merge nor the newer version that names its file."""
    io = FaultFileIO(LocalFileIO())
    options = StateStoreOptions(fsync_enabled=False, orphan_age_ms=0, min_versions_to_retain=6)
    how = {"backend": "rocksdb", "checkpoint_format": 2, "options": options, "io": io}
    with statestore.open_store(str(tmp_path), **how) as store:
        for number in range(1, 6):
            put(store, number)
    # This one must read about the versions before its first.
    with statestore.open_store(str(tmp_path), **how) as store:
        versions = store._versions
        sixth, seventh = put(store, 6), put(store, 7)
        merged = versions.take_snapshot(sixth, str(tmp_path), options)
        io.held_calls = ("read_tail 2_",)
        io.gate.clear()
        cleanup = threading.Thread(target=versions.clean_up, args=(seventh, options))
        cleanup.start()
        try:
            wait_for(lambda: io.num_held)
            eighth = put(store, 8)
            versions.take_snapshot(eighth, str(tmp_path), options)
        finally:
            io.gate.set()
            cleanup.join()

        assert merged.ref in eighth.trailer.files
        expected = list(store.scan())
    with statestore.open_store(str(tmp_path), version=8, **how) as other:
        assert list(other.scan()) == expected


@pytest.mark.parametrize("fault", [Fault(1, calls=("read_tail",)), Fault(0, calls=("fetch",))])
def test_outage_of_the_storage_leaves_the_local_database(tmp_path, fault):
    """Catches a whole download after a request that failed."""
    io = FaultFileIO(LocalFileIO())
    how = {"backend": "rocksdb", "options": OPTIONS, "io": io}
    with (
        statestore.open_store(str(tmp_path), **how) as there,
        statestore.open_store(str(tmp_path), **how) as here,
    ):
        for number in range(1, 4):
            put(there, number)
        held = here._versions.load(3, None, None, OPTIONS)
        there.snapshot()
        put(there, 4)

        io.arm(fault)
        with pytest.raises(StorageError, match="injected"):
            here._versions.load(4, None, None, OPTIONS)
        io.arm(None)

        assert Path(held.view).exists()
        assert here._versions.load(4, None, None, OPTIONS).files_read == 1
        here.load(4)
        assert list(here.scan()) == list(there.scan())


@pytest.mark.parametrize("incremental", [True, False])
def test_newest_merged_file_is_known_after_a_restart(tmp_path, incremental):
    """Catches a store that Spark counts as lagging, and has rewrite its state, for no reason."""
    options = StateStoreOptions(fsync_enabled=False, rocksdb_incremental=incremental)
    how = {"backend": "rocksdb", "options": options}
    with statestore.open_store(str(tmp_path), **how) as store:
        for number in range(1, 5):
            put(store, number)
        store.snapshot()
        put(store, 5)
        before = store._versions.snapshot_status
    with statestore.open_store(str(tmp_path), **how) as store:
        after = store._versions.snapshot_status

    assert after.version == before.version == (4 if incremental else 5)
    assert after.num_bytes == before.num_bytes > 0


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
        views = list(Path(shims[0].scratch).glob("rocksdb/*/view-*"))
        assert len(views) == MAX_CLOSED_STORES
        reads = [engine.call("load", **shim.load())["files_read"] for shim in closed]
        assert reads == [1] * 3 + [0] * MAX_CLOSED_STORES


def test_store_stays_open_when_a_provider_of_an_ended_run_closes_it(tmp_path):
    """Catches a restarted query whose store loses its local database to the run before it."""
    others = [RocksDBShim(tmp_path, partition=n + 1) for n in range(MAX_CLOSED_STORES + 1)]
    shim = RocksDBShim(tmp_path)
    with EngineProcess(shim.scratch) as engine:
        shim.store["provider"] = "of the first run"
        shim.commit(engine, rows(1))
        before = dict(shim.store)
        shim.store["provider"] = "of the second run"
        shim.commit(engine, rows(2))
        engine.call("close", store=before, backend="rocksdb")
        for other in others:
            other.commit(engine, rows(1))
            engine.call("close", store=other.store, backend="rocksdb")

        assert engine.call("status")["stores"] == 1
        assert engine.call("load", **shim.load())["files_read"] == 0
        engine.call("close", store=shim.store, backend="rocksdb")
        assert engine.call("status")["stores"] == 0


def test_closed_stores_are_forgotten(tmp_path):
    """Catches a long-lived application that remembers every checkpoint it ever ran."""
    service = Engine(str(tmp_path / "scratch"))
    for number in range(3 * MAX_CLOSED_STORES):
        (tmp_path / str(number)).mkdir()
        shim = Shim(tmp_path / str(number), checkpoint_storage=f"file:{tmp_path}/elsewhere")
        Path(shim.scratch).mkdir(parents=True)
        shim.store["run"] = str(number)
        shim.commit(service, rows(1))
        service.call("close", store=shim.store, backend="filesystem", options=shim.options)

    gc.collect()
    kept = [found for found in gc.get_objects() if isinstance(found, CountingFileIO)]
    assert len(kept) <= 2 * MAX_CLOSED_STORES


@pytest.mark.extended
def test_merge_needs_no_memory_for_each_deleted_key(tmp_path):
    """Catches a merge that holds every deleted key, of which a queue has more than rows."""
    num_keys = 60_000
    keys = [b"key-%012d" % number for number in range(num_keys)]
    location = StoreLocation(LocalFileIO(), str(tmp_path / "state"), StoreName(0, 0, "default"))
    location = replace(location, body="sst")
    with statestore.open_store(str(tmp_path), options=OPTIONS, backend="rocksdb") as store:
        put(store, 1)
        for deleted in (keys[:-10], keys[10:]):
            batch = store.begin()
            for key in deleted:
                batch.delete(key)
            batch.commit()
        batch = store.begin()
        batch.put(keys[20], b"again")
        batch.commit()
        head = store._head

    tracemalloc.start()
    try:
        merged = merge_files(
            location,
            head,
            (*head.trailer.files[1:], head.ref),
            is_whole=False,
            scratch_directory=str(tmp_path),
            sst_options=sst.Memory(1 << 20).options(OPTIONS),
            sync=False,
        )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 40 * num_keys
    assert merged.trailer.rows == RowCounts(put=1, delete=num_keys - 1)
    found = list(sst.read_deletes(SealedFile(location.path(merged.ref.path))))
    assert found == [sst.encode_key(0, key) for key in keys if key != keys[20]]


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


@pytest.mark.parametrize("incremental", [True, False])
def test_bytes_of_a_commit(tmp_path, incremental):
    """Catches a commit that writes more than its batch, and a full one that leans on others."""
    options = StateStoreOptions(fsync_enabled=False, rocksdb_incremental=incremental)
    num_keys, num_updates = 40_000, 2_000
    root = str(tmp_path)
    with statestore.open_store(root, options=options, backend="rocksdb") as store:
        batch = store.begin()
        for number in range(num_keys):
            batch.put(b"key-%012d" % number, os.urandom(100))
        batch.commit()
        batch = store.begin()
        for number in range(0, num_keys, num_keys // num_updates):
            batch.put(b"key-%012d" % number, os.urandom(100))
        batch.commit()
        expected = list(store.scan())
    first, second = (SealedFile(f"{root}/state/0/0/{version}.delta.sst") for version in (1, 2))
    changed = num_updates * (16 + 100)

    if incremental:
        assert second.size <= 1.1 * changed + 4096
        assert second.size <= 0.1 * first.size
        assert [ref.version for ref in second.trailer.files] == [1]
    else:
        assert second.size >= 0.9 * first.size
        assert second.trailer.files == ()
        Path(first.path).unlink()
    assert load(root, 2) == expected


def test_commit_of_another_backends_checkpoint_is_refused(tmp_path):
    """Catches one backend going on where another one stopped, with half of the state."""
    with statestore.open_store(str(tmp_path), options=OPTIONS) as store:
        batch = store.begin()
        batch.put(b"a", b"1")
        batch.commit()

    with pytest.raises(StateStoreError, match="backend-changed"):
        statestore.open_store(str(tmp_path), version=1, options=OPTIONS, backend="rocksdb")


def test_merge_does_not_hold_up_commits(tmp_path):
    """Catches a commit that waits for the merging of durable files: all of them are made first."""
    shim = RocksDBShim(tmp_path, rocksdb_merge_min_files=2)
    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, [Row(n % G, 0, PUT, b"%08d" % n, b"w" * 50) for n in range(150_000)])
        request = shim.request(rows(999_999_99))
        request["force_snapshot"] = True
        shim.committed(request, engine.call("commit", **request))
        in_flight = 0
        for number in range(5):
            shim.commit(engine, rows(200_000 + number))
            in_flight += engine.call("status")["snapshots_in_flight"]
        assert in_flight > 0, "the merge was over before a commit: the test tests nothing"
        wait_for(lambda: not engine.call("status")["snapshots_in_flight"])
        shim.commit(engine, rows(300_000))
        assert len(in_view(shim.view(engine))) == 150_007


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


def sst_request(shim, puts, deletes=()):
    """A commit of rows that are handed over as an SST, as the shim makes it."""
    gone = [Row(key[-1] % G, 0, DELETE, key, None) for key in deletes]
    request = shim.request([*puts, *gone])
    request["num_keys"] = shim.num_keys + len(puts) - len(gone)
    request["delta"] = write_sst(f"{request['delta']['path']}.sst", [*puts, *gone])
    return request


def test_rows_handed_over_as_an_sst(tmp_path):
    """Catches an SST of the shim that is not durable, lost with its engine, or without deletes."""
    shim = RocksDBShim(tmp_path, rocksdb_merge_min_files=2)
    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, rows(*range(20)))
        expected = {row.key: row.value for row in rows(*range(5, 24))}
        request = sst_request(shim, rows(*range(20, 24)), [b"%08d" % n for n in range(5)])
        first = engine.call("commit", **request)
        # The reply was lost.
        again = engine.call("commit", **request)
        assert again["lineage"] == first["lineage"]
        shim.committed(request, again)
        assert in_view(shim.view(engine)) == expected
        assert dict(load(tmp_path / "ck", 2)).keys() == expected.keys()

        # A merge passes on what the SST deletes.
        engine.call("maintain", **{**shim.load(), "snapshot": True, "cleanup": False})
        shim.commit(engine, rows(30))
        assert len(load(tmp_path / "ck", 3)) == 20

        request = sst_request(shim, rows(40))
        request["delta"]["length"] += 1
        with pytest.raises(AssertionError, match="not as long as it was announced"):
            engine.call("commit", **request)
        request["delta"]["length"] -= 1
        engine.process.kill()
        engine.process.wait()

    with EngineProcess(shim.scratch) as engine:
        shim.committed(request, engine.call("commit", **request))
        assert len(in_view(shim.view(engine))) == 21
