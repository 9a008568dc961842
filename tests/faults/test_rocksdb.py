"""The rocksdb backend when something dies or is damaged; what it merges, cleans up and writes."""

import os
import shutil
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database_memory import TABLE_FORMAT, DatabaseMemory
from statestore.backends.rocksdb.merging import merge_files, read_file
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.rescaling import plan_rescale, write_rescaled_version
from statestore.codec.references import StoreName
from statestore.codec.rows import DELETE, Row
from statestore.codec.sealed_file import MappedFile, SealedFile, cannot_be_read
from statestore.codec.trailer import RowCounts
from statestore.core.clock import SystemClock
from statestore.core.errors import (
    CorruptionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
)
from statestore.core.options import StateStoreOptions
from statestore.engine.session import Session
from statestore.engine.sessions import MAX_CLOSED_STORES
from statestore.io.local import LocalFileIO
from tests.checkpoints import files_below
from tests.engine_process import EngineProcess
from tests.fault_io import FaultFileIO
from tests.peak_memory import measured_growth
from tests.seams import at
from tests.shim import Engine, G, RocksDBShim, in_view, rows, write_sst

OPTIONS = StateStoreOptions(fsync_enabled=False, rocksdb_merge_min_files=4)


def load(root, version, **where):
    """Rows of a version by a handle that has nothing on its local disk."""
    with at(root, options=OPTIONS).open_store(version=version, **where) as store:
        return list(store.scan())


@pytest.fixture
def checkpoint(tmp_path):
    """Versions 1 to 7, of which 5 names a merged file; returns (root, rows of each version)."""
    versions = {}
    with at(tmp_path, options=OPTIONS).open_store(backend="rocksdb") as store:
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


def test_tables_have_the_format_that_every_executor_reads(checkpoint):
    """Catches what a newer library merges, and no executor can read, durable by then."""
    root, _ = checkpoint
    tables = [SealedFile(str(path)).block_bytes(0) for path in root.rglob("*.sst")]
    # Behind it is the magic number of the table.
    found = {int.from_bytes(table.to_pybytes()[-12:-8], "little") for table in tables}
    assert len(tables) > 7
    assert found == {TABLE_FORMAT}


@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damaged_merged_file_is_replaced_when_its_files_are_merged_again(checkpoint, how):
    """Catches a file that a load put aside, and that the next commit names all the same."""
    root, versions = checkpoint
    (path,) = (root / "state/0/0").glob("4_*.sst")
    damage(path, how)

    with at(root, options=OPTIONS).open_store(version=4) as store:
        assert list(store.scan()) == versions[4]
        store.snapshot()
        put(store, 5)
        rows_of_5 = list(store.scan())

    assert [ref.path for ref in store._head.trailer.files] == [path.name]
    assert load(root, 5) == rows_of_5


def test_merged_file_that_the_disk_does_not_give_is_not_replaced(checkpoint, monkeypatch):
    """Catches versions whose file is another one, for a storage that was away for a moment."""
    root, versions = checkpoint
    (path,) = (root / "state/0/0").glob("4_*.sst")
    data = path.read_bytes()

    def read_in(file, piece, offset):
        if file._name == str(path):
            raise cannot_be_read(file._name, offset, piece.size)

    monkeypatch.setattr(MappedFile, "_read_in", read_in)
    with at(root, options=OPTIONS).open_store(version=4) as store:
        assert list(store.scan()) == versions[4]
        with pytest.raises(CorruptionError, match="cannot be read"):
            store.snapshot()
    monkeypatch.undo()

    assert path.read_bytes() == data
    assert load(root, 7) == versions[7]


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
    checkpoint = at(tmp_path, options=options, io=io)
    how = {"backend": "rocksdb", "checkpoint_format": 2}
    with checkpoint.open_store(**how) as store:
        for number in range(1, 6):
            put(store, number)
    # This one must read about the versions before its first.
    with checkpoint.open_store(**how) as store:
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
    with checkpoint.open_store(version=8, **how) as other:
        assert list(other.scan()) == expected


@pytest.mark.parametrize("incremental", [True, False])
def test_newest_merged_file_is_known_after_a_restart(tmp_path, incremental):
    """Catches a store that Spark counts as lagging, and has rewrite its state, for no reason."""
    options = StateStoreOptions(fsync_enabled=False, rocksdb_incremental=incremental)
    checkpoint, how = at(tmp_path, options=options), {"backend": "rocksdb"}
    with checkpoint.open_store(**how) as store:
        for number in range(1, 5):
            put(store, number)
        store.snapshot()
        put(store, 5)
        before = store._versions.snapshot_status
    with checkpoint.open_store(**how) as store:
        after = store._versions.snapshot_status

    assert after.version == before.version == (4 if incremental else 5)
    assert after.num_bytes == before.num_bytes > 0


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


def test_row_that_a_rescaled_store_would_not_show_is_refused(tmp_path):
    """Catches a row that is counted, and that no read finds."""
    options = replace(OPTIONS, max_parallelism=8)

    def open_store(partition, num_partitions):
        return at(tmp_path, options=options).open_store(
            partition=partition, num_partitions=num_partitions, backend="rocksdb"
        )

    with open_store(0, 1) as store:
        batch = store.begin()
        for key_group in range(8):
            batch.put(b"%d" % key_group, b"v", key_group=key_group)
        batch.commit()
        plan = plan_rescale({0: store._head}, 2)
    location = replace(location_of(tmp_path), store=StoreName(0, 1, "default"))
    write_rescaled_version(location, plan[1], str(tmp_path), clock=SystemClock())

    with open_store(1, 2) as store:
        batch = store.begin()
        batch.put(b"new", b"v", key_group=0)
        with pytest.raises(InvalidArgumentError, match="num_partitions=2"):
            batch.commit()
        batch.abort()
        batch = store.begin()
        batch.put(b"new", b"v", key_group=1)
        batch.commit()
        assert [key for key, _ in store.scan()] == [b"1", b"3", b"5", b"7", b"new"]
    assert [key for key, _ in load(tmp_path, 3, partition=1)] == [b"1", b"3", b"5", b"7", b"new"]


def test_store_opened_while_its_closed_one_is_forgotten_is_one_store(tmp_path, monkeypatch):
    """Catches a second session of the store, and a first one that nothing closes any more."""
    others = [RocksDBShim(tmp_path, partition=n + 1) for n in range(MAX_CLOSED_STORES)]
    shim = RocksDBShim(tmp_path)
    engine = Engine(shim.scratch)
    shim.store["provider"] = "first"
    engine.call("load", **shim.load(0))
    engine.call("close", store=shim.store, backend="rocksdb")
    shim.store["provider"] = "second"
    forget = Session.forget_local

    def forget_slowly(session):
        is_forgotten = forget(session)
        if session.versions.location.store.partition == 0:
            monkeypatch.undo()
            engine.call("load", **shim.load(0))
        return is_forgotten

    monkeypatch.setattr(Session, "forget_local", forget_slowly)
    for other in others:
        engine.call("load", **other.load(0))
        engine.call("close", store=other.store, backend="rocksdb")

    shim.commit(engine, rows(1))
    assert engine.call("status")["stores"] == 1
    engine.call("close", store=shim.store, backend="rocksdb")
    assert engine.call("status")["stores"] == 0


def test_store_that_was_forgotten_comes_back_to_the_same_directory(tmp_path):
    """Catches a local database that the engine after a killed one does not find."""
    others = [RocksDBShim(tmp_path, partition=n + 1) for n in range(MAX_CLOSED_STORES)]
    shim = RocksDBShim(tmp_path)
    engine = Engine(shim.scratch)
    shim.commit(engine, rows(1))
    (path,) = Path(shim.scratch).glob("engine-*/rocksdb/*")
    for used in (shim, *others):
        engine.call("load", **used.load(used.parent["version"] if used.parent else 0))
        engine.call("close", store=used.store, backend="rocksdb")
    assert not path.exists()

    engine.call("load", **shim.load())

    assert path.exists()


def location_of(root):
    """The store of a checkpoint that `open_store` makes."""
    location = StoreLocation(LocalFileIO(), str(root / "state"), StoreName(0, 0, "default"))
    return replace(location, body="sst")


def merge_all_but_the_first(root, head):
    """Merge the files of a version but for the oldest, so that deletes are passed on."""
    return merge_files(
        location_of(root),
        head,
        (*head.trailer.files[1:], head.ref),
        is_whole=False,
        scratch_directory=str(root),
        sst_options=DatabaseMemory(1 << 20).options(OPTIONS),
        sync=False,
    )


def test_wrong_number_of_keys_is_caught_before_a_merge_is_published(checkpoint):
    """Catches a metric that drifts from the rows, and a merge that loses some."""
    root, versions = checkpoint
    with at(root, options=OPTIONS).open_store(version=3) as store:
        head = store._head
    wrong = replace(head, trailer=replace(head.trailer, num_keys=len(versions[3]) + 1))
    before = files_below(root)

    def merge(head):
        return merge_files(
            location_of(root), head, head.chain, is_whole=True, scratch_directory=str(root),
            sst_options=DatabaseMemory(1 << 20).options(OPTIONS), sync=False,
        )  # fmt: skip

    with pytest.raises(InternalError, match="not as many"):
        merge(wrong)

    assert files_below(root) == before
    assert merge(head).trailer.rows.put == len(versions[3])


def test_file_that_was_checked_and_copied_is_not_in_memory(tmp_path):
    """Catches an engine that is killed for the files it restores: all of them stay mapped."""
    with at(tmp_path, options=OPTIONS).open_store(backend="rocksdb") as store:
        batch = store.begin()
        for number in range(150):
            batch.put(b"%d" % number, os.urandom(1 << 20))
        batch.commit()
    (path,) = tmp_path.rglob("*.delta.sst")
    assert path.stat().st_size > 150 << 20

    with measured_growth() as grown:
        file = SealedFile(str(path))
        file.verify()
        copy = sst.extract_sst(file, str(tmp_path / "copy.sst"))

    assert Path(copy).stat().st_size == file.trailer.blocks[0].length
    assert Path(copy).read_bytes() == path.read_bytes()[: Path(copy).stat().st_size]
    assert grown.resident < 40 << 20
    before = len(list(Path("/proc/self/fd").iterdir()))
    mapped = [SealedFile(str(path)) for _ in range(50)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before, f"{len(mapped)} files stay open"


def test_store_goes_on_where_its_local_database_was_cleaned_up(tmp_path):
    """Catches a query that ends at its first batch after days: a cleaner of /tmp was there."""
    shim = RocksDBShim(tmp_path)
    engine = Engine(shim.scratch)
    shim.commit(engine, rows(1))
    (database,) = Path(shim.scratch).glob("engine-*/rocksdb/*")
    shutil.rmtree(database)

    shim.commit(engine, rows(2))

    assert in_view(shim.view(engine)) == {row.key: row.value for row in rows(1, 2)}


def test_merge_holds_few_rows_where_they_are_large(tmp_path):
    """Catches an engine that is killed for the memory of a merge, at each start of the query."""
    with at(tmp_path, options=OPTIONS).open_store(backend="rocksdb") as store:
        for _ in range(2):
            batch = store.begin()
            for number in range(100):
                batch.put(b"%03d" % number, os.urandom(1 << 20))
            batch.commit()
        head = store._head

    tracemalloc.start()
    try:
        merged = merge_files(
            location_of(tmp_path), head, (*head.trailer.files, head.ref), is_whole=True,
            scratch_directory=str(tmp_path), sst_options=DatabaseMemory(1 << 20).options(OPTIONS),
            sync=False,
        )  # fmt: skip
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert merged.trailer.rows.put == 100
    assert peak < 24 << 20


@pytest.mark.extended
def test_merge_needs_no_memory_for_each_deleted_key(tmp_path):
    """Catches a merge that holds every deleted key, of which a queue has more than rows.

    It holds a block of each of two sources, and one that it writes: 49,152 keys.
    """
    num_keys = 100_000
    keys = [b"key-%012d" % number for number in range(num_keys)]
    with at(tmp_path, options=OPTIONS).open_store(backend="rocksdb") as store:
        batch = store.begin()
        for key in keys:
            batch.put(key, b"")
        batch.commit()
        for deleted in (keys[::2], keys[1::2]):
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
        merged = merge_all_but_the_first(tmp_path, head)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 40 * num_keys
    assert merged.trailer.rows == RowCounts(put=1, delete=num_keys - 1)
    found = list(sst.read_deletes(SealedFile(location_of(tmp_path).path(merged.ref.path))))
    assert found == [sst.encode_key(0, key) for key in keys if key != keys[20]]


@pytest.mark.parametrize("seed", range(6))
def test_merged_file_has_what_its_files_say_last_of_each_key(tmp_path, seed):
    """Catches a row or a delete that is lost, old or out of order where many alternate."""
    random = Random(seed)
    space = random.choice([30, 300, 3_000])
    said = {}
    options = replace(OPTIONS, rocksdb_merge_min_files=100)
    with at(tmp_path, options=options).open_store(backend="rocksdb") as store:
        put(store, 1)
        for version in range(4):
            batch = store.begin()
            share = random.choice([0.0, 0.1, 0.5, 0.9])
            for key in {b"%06d" % random.randrange(space) for _ in range(random.choice([5, 900]))}:
                if random.random() >= share:
                    said[key] = b"%d of %d" % (version, space)
                    batch.put(key, said[key])
                elif key in said:  # of one that was never there nothing is written
                    said[key] = None
                    batch.delete(key)
            batch.commit()
        head = store._head

    merged = merge_all_but_the_first(tmp_path, head)

    file = SealedFile(location_of(tmp_path).path(merged.ref.path))
    batches = list(read_file(file, str(tmp_path), OPTIONS, DatabaseMemory(1 << 20)))
    found = [row for batch in batches for row in batch.to_pylist()]
    puts = [(row["key"], row["value"]) for row in found if row["op"] != DELETE]
    deletes = [row["key"] for row in found if row["op"] == DELETE]
    assert puts == sorted((key, value) for key, value in said.items() if value is not None)
    assert deletes == sorted(key for key, value in said.items() if value is None)
    assert merged.trailer.rows == RowCounts(put=len(puts), delete=len(deletes))


@pytest.mark.parametrize("incremental", [True, False])
def test_bytes_of_a_commit(tmp_path, incremental):
    """Catches a commit that writes more than its batch, and a full one that leans on others."""
    options = StateStoreOptions(fsync_enabled=False, rocksdb_incremental=incremental)
    num_keys, num_updates = 40_000, 2_000
    root = str(tmp_path)
    with at(root, options=options).open_store(backend="rocksdb") as store:
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
    with at(tmp_path, options=OPTIONS).open_store() as store:
        batch = store.begin()
        batch.put(b"a", b"1")
        batch.commit()

    with pytest.raises(StateStoreError, match="backend-changed"):
        at(tmp_path, options=OPTIONS).open_store(version=1, backend="rocksdb")


def test_merge_does_not_hold_up_commits(tmp_path):
    """Catches a commit that waits for the merging of durable files: all of them are made first."""
    shim, io = RocksDBShim(tmp_path, rocksdb_merge_min_files=2), FaultFileIO(LocalFileIO())
    engine = Engine(shim.scratch, io)
    io.held_calls = ("publish 2_",)
    io.gate.clear()
    try:
        shim.commit(engine, rows(*range(100)))
        request = shim.request(rows(999_999_99))
        request["force_snapshot"] = True
        shim.committed(request, engine.call("commit", **request))
        for number in range(5):
            shim.commit(engine, rows(200_000 + number))
        wait_for(lambda: io.num_held)
        assert engine.call("status")["snapshots_in_flight"] == 1
    finally:
        io.gate.set()
        engine.settle()
    assert engine.call("status")["snapshots_in_flight"] == 0
    shim.commit(engine, rows(300_000))
    assert len(in_view(shim.view(engine))) == 107


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
