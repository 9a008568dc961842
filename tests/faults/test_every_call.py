"""Every storage call of a commit, a snapshot and a cleanup fails, before and after it happened."""

import pytest

from statestore.core.errors import StateStoreError, StorageError, StoreClosedError
from statestore.core.options import StateStoreOptions
from statestore.io.local import LocalFileIO
from statestore.io.memory import MemoryFileIO
from statestore.store.table import Table
from tests.crash_io import CrashFileIO
from tests.fault_io import Fault, FaultFileIO
from tests.seams import at
from tests.shim import Engine, Shim, rows

OPTIONS = StateStoreOptions(fsync_enabled=False, min_versions_to_retain=2, orphan_age_ms=0)
MOST_CALLS = 40


def open_store(io, root, checkpoint_format, version=None, checkpoint_id=None):
    """A fresh handle, which knows nothing."""
    return at(root, options=OPTIONS, io=io).open_store(
        version=version, checkpoint_id=checkpoint_id, checkpoint_format=checkpoint_format
    )


def fill(store, num_versions):
    """Commit versions that overwrite, append and delete."""
    for number in range(1, num_versions + 1):
        batch = store.begin()
        batch.put(b"n", b"%d" % number)
        batch.merge(b"m", b"%d," % number)
        batch.put(b"k%d" % number, b"")
        batch.delete(b"k%d" % (number - 2))
        batch.commit()


def rows_of(store):
    """Every row."""
    return list(store.scan())


@pytest.fixture(params=["local", "memory"])
def io(request, tmp_path):
    """Storage that fails on purpose."""
    if request.param == "local":
        return FaultFileIO(LocalFileIO())
    (tmp_path / "cache").mkdir()
    return FaultFileIO(MemoryFileIO(str(tmp_path / "cache")))


@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize("happens", [False, True], ids=["fails", "loses-its-reply"])
@pytest.mark.parametrize("first_version", [1, 4])
def test_commit_survives_a_fault_at_every_call(
    io, tmp_path, checkpoint_format, happens, first_version
):
    """Catches a call after whose failure a commit is half there, or cannot be repeated."""
    num_faults = 0
    for index in range(MOST_CALLS):
        root = tmp_path / f"ck{index}"
        store = open_store(io, root, checkpoint_format)
        fill(store, first_version - 1)
        before = (store.version, store.checkpoint_id, rows_of(store))
        batch = store.begin()
        batch.put(b"new", b"row")

        io.arm(Fault(index, happens))
        try:
            batch.commit()
            failed = False
        except StorageError:
            failed = True
        io.arm(None)

        if failed:
            num_faults += 1
            assert (store.version, store.checkpoint_id, rows_of(store)) == before
            assert batch.commit() == before[0] + 1
        asked = store.checkpoint_id if checkpoint_format == 2 else None
        with open_store(io, root, checkpoint_format, first_version, asked) as again:
            assert rows_of(again) == sorted([*before[2], (b"new", b"row")])
        store.close()
        if not failed:
            break
    assert num_faults >= (2 if first_version == 1 else 1)


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_batch_takes_no_more_writes_after_a_commit_that_failed(io, tmp_path, checkpoint_format):
    """Catches rows that are told as durable, and are not in the file that the first try made."""
    with open_store(io, tmp_path, checkpoint_format) as store:
        batch = store.begin()
        batch.put(b"a", b"1")
        io.arm(Fault(0, happens=True, calls=("publish",)))
        with pytest.raises(StorageError):
            batch.commit()
        io.arm(None)

        for write in (
            lambda: batch.put(b"b", b"2"),
            lambda: batch.merge(b"a", b"2"),
            lambda: batch.delete(b"a"),
            lambda: batch.create_column_family("more"),
        ):
            with pytest.raises(StoreClosedError, match="commit the batch again"):
                write()
        assert list(batch.scan()) == [(b"a", b"1")]
        assert batch.commit() == 1

    with open_store(io, tmp_path, checkpoint_format) as again:
        assert (rows_of(again), len(again)) == ([(b"a", b"1")], 1)


def test_store_without_memory_for_a_commit_is_as_before(io, tmp_path, monkeypatch):
    """Catches a store whose version is the next one, and whose rows are those of before."""
    with open_store(io, tmp_path, 1) as store:
        fill(store, 3)
        before = rows_of(store)
        batch = store.begin()
        batch.put(b"new", b"row")

        def fail(*_):
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(Table, "apply", fail)
            with pytest.raises(MemoryError):
                batch.commit()

        assert (store.version, rows_of(store)) == (3, before)
        assert batch.commit() == 4
        assert rows_of(store) == sorted([*before, (b"new", b"row")])


def check_loads(io, root, checkpoint_format, retained):
    """Check that versions load with their rows, given with their checkpoint IDs."""
    for version, (expected, checkpoint_id) in retained.items():
        asked = checkpoint_id if checkpoint_format == 2 else None
        with open_store(io, root, checkpoint_format, version, asked) as store:
            assert rows_of(store) == expected


@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize("happens", [False, True], ids=["fails", "loses-its-reply"])
@pytest.mark.few(4)
def test_snapshot_and_cleanup_survive_a_fault_at_every_call(
    io, tmp_path, checkpoint_format, happens
):
    """Catches a failed snapshot or cleanup after which a retained version does not load."""
    num_faults = 0
    for index in range(MOST_CALLS):
        root = tmp_path / f"ck{index}"
        store = open_store(io, root, checkpoint_format)
        fill(store, 3)
        store.snapshot()
        fill(store, 4)
        retained = {7: (rows_of(store), store.checkpoint_id)}
        fill(store, 1)
        retained[8] = rows_of(store), store.checkpoint_id

        io.arm(Fault(index, happens))
        failed = False
        for work in (store.snapshot, store.clean_up):
            try:
                work()
            except StateStoreError:
                failed = True
        reached = io.has_failed
        io.arm(None)

        num_faults += failed
        check_loads(io, root, checkpoint_format, retained)
        fill(store, 1)
        store.snapshot()
        store.clean_up()
        del retained[7]
        retained[9] = rows_of(store), store.checkpoint_id
        check_loads(io, root, checkpoint_format, retained)
        store.close()
        if not reached:
            break
    assert num_faults > 5


def test_commit_asks_the_storage_for_exactly_this(tmp_path):
    """Catches a call more on the hot path: v1 re-reads the parent's trailer, v2 reads nothing."""
    traces = {}
    for checkpoint_format in (1, 2):
        io = FaultFileIO(LocalFileIO())
        store = open_store(io, tmp_path / f"v{checkpoint_format}", checkpoint_format)
        fill(store, 2)
        io.arm(None)
        fill(store, 1)
        traces[checkpoint_format] = [call.split("_", 2)[0] for call in io.trace]
        name = io.trace[-1]
        assert name.startswith("publish 3")
        assert name.endswith(".delta.arrows")
        store.close()

    assert traces == {1: ["read", "publish 3.delta.arrows"], 2: ["publish 3"]}


def test_restore_lists_no_directory(tmp_path):
    """Catches a listing on the way to a named version: object stores make it slow."""
    io = FaultFileIO(LocalFileIO())
    store = open_store(io, tmp_path, 1)
    fill(store, 3)
    store.snapshot()
    fill(store, 2)
    io.arm(None)
    store.load(5)
    store.close()

    assert not [call for call in io.trace if call.startswith("list")]
    assert len([call for call in io.trace if call.startswith("fetch")]) == 3


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_power_failure_keeps_a_version_that_its_engine_did_not_wait_for(tmp_path, backend):
    """Catches a repeated commit that answers ok for a file which never reached the disk."""
    (tmp_path / "cache").mkdir()
    io = CrashFileIO(str(tmp_path / "cache"))
    shim = Shim(tmp_path / "shim", root="file:/ck/state", fsync_enabled=False)
    shim.backend = backend
    first = Engine(shim.scratch, io)
    request = shim.request(rows(1))
    # Published, and dead before it waited for the disk.
    first.call("commit", **request)
    request["options"] = {**request["options"], "fsync_enabled": True}

    reply = Engine(f"{shim.scratch}-second", io).call("commit", **request)
    io.crash()

    loaded = Engine(f"{shim.scratch}-third", io).call("load", **shim.load(1))
    assert loaded["lineage"] == reply["lineage"]


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("keeps_deletes", [True, False])
def test_power_failure_after_a_cleanup_keeps_what_is_retained(tmp_path, backend, keeps_deletes):
    """Catches files that are deleted before what stands for them has reached the disk."""
    (tmp_path / "cache").mkdir()
    io = CrashFileIO(str(tmp_path / "cache"), keeps_deletes=keeps_deletes)
    safe = StateStoreOptions(
        fsync_enabled=True, min_versions_to_retain=2, orphan_age_ms=0, rocksdb_merge_min_files=4
    )
    retained = {}
    with at(tmp_path, options=safe, io=io).open_store(backend=backend) as store:
        for version in range(1, 11):
            fill(store, 1)
            retained[version] = rows_of(store)
            if version % 4 == 0:
                store.snapshot()
            if version == 10:
                assert store.clean_up().num_files > 0
    io.crash()

    for version in (9, 10):
        with at(tmp_path, options=safe, io=io).open_store(version=version) as again:
            assert rows_of(again) == retained[version]


@pytest.mark.parametrize("sync", [True, False])
def test_power_failure_keeps_what_was_synced(tmp_path, sync):
    """Catches a commit that returns before its bytes are safe, or harms an older version."""
    (tmp_path / "cache").mkdir()
    io = CrashFileIO(str(tmp_path / "cache"))
    safe = StateStoreOptions(fsync_enabled=True)
    store = at(tmp_path, options=safe, io=io).open_store()
    fill(store, 2)
    expected = rows_of(store)
    store.close()

    later = at(tmp_path, options=StateStoreOptions(fsync_enabled=sync), io=io).open_store()
    fill(later, 1)
    after = rows_of(later)
    later.close()
    io.crash()

    with at(tmp_path, io=io).open_store() as again:
        assert again.version == (3 if sync else 2)
        assert rows_of(again) == (after if sync else expected)
