"""Reads of state in the application that runs the query, and handles that outlive theirs."""

import shutil
import threading
from pathlib import Path

import pytest

from statestore.io.local import LocalFileIO
from tests.shim import Engine, RocksDBShim, Shim, in_view, rows

NUM_VERSIONS = 12


def reader_of(shim):
    """The same store for who is no query."""
    reader = type(shim)(shim.directory, **shim.options)
    reader.store = {**shim.store, "provider": "reader"}
    reader.parent = shim.parent
    return reader


def read(engine, reader, version):
    """The reply to a load for which no query runs."""
    return engine.call("load", **reader.load(version, num_partitions=None))


def hold_a_file(s3_server):
    """Hold up the first file of the next load; returns what is set then, and what lets it go on."""
    reached, go_on = threading.Event(), threading.Event()

    def hold():
        reached.set()
        go_on.wait(60)

    # The placement and the trailer are read, and then each file of the version.
    s3_server.fail("GET", None, times=2)
    s3_server.fail("GET", hold)
    return reached, go_on


class FetchingIO(LocalFileIO):
    """The local disk; knows how many bytes were fetched."""

    fetched_bytes = 0

    def fetch(self, path):
        """See FileIO."""
        self.fetched_bytes += Path(path).stat().st_size
        return super().fetch(path)


@pytest.fixture
def io():
    return FetchingIO()


@pytest.fixture
def query(tmp_path, io):
    """A query's store of the rocksdb backend, and the engine that committed all its versions."""
    shim = RocksDBShim(tmp_path, min_versions_to_retain=100, rocksdb_merge_min_files=100)
    shim.store["provider"] = "query"
    engine = Engine(f"{tmp_path}/engine", io)
    Path(shim.scratch).mkdir()
    for number in range(1, NUM_VERSIONS + 1):
        shim.commit(engine, rows(number))
    return engine, shim


def test_readers_of_older_versions_cost_the_query_no_fetch(query, io):
    """Catches a query that fetches all of its state again since somebody read old versions."""
    engine, shim = query
    reader = reader_of(shim)

    for version in range(1, 6):
        assert len(in_view(read(engine, reader, version))) == version
    assert io.fetched_bytes > 0
    io.fetched_bytes = 0

    shim.commit(engine, rows(NUM_VERSIONS + 1))
    assert len(in_view(engine.call("load", **shim.load()))) == NUM_VERSIONS + 1
    assert io.fetched_bytes == 0


@pytest.mark.parametrize("storage", ["disk", "s3"])
@pytest.mark.parametrize("reads", ["load", "changes"])
def test_files_of_a_reader_stay_until_it_closes(reads, storage, tmp_path, s3_server, bucket):
    """Catches a read beside a query that fails since a commit has let its copies go."""
    options = {"min_versions_to_retain": 2, "snapshot_max_chain_length": 2}
    if storage == "s3":
        options |= {**s3_server.options(fetch_cache_bytes=0), "root": f"s3://{bucket}/ck/state"}
    shim = Shim(tmp_path, **options)
    shim.store["provider"] = "query"
    engine = Engine(f"{tmp_path}/engine")
    Path(shim.scratch).mkdir()
    for number in range(1, 4):
        shim.commit(engine, rows(number))
    reader = reader_of(shim)
    if reads == "load":
        paths = [file["path"] for file in read(engine, reader, 3)["files"]]
    else:
        fields = {"store": reader.store, "backend": reader.backend, "options": reader.options}
        fields["directory"] = f"{shim.scratch}/changes-1"
        found = engine.call("changes", **fields, start_version=2, end_version=3)
        paths = [file["path"] for file in found["files"]]

    def go_on(number):
        shim.commit(engine, rows(number))
        engine.settle()
        clean = {"snapshot": False, "cleanup": True, "wait_ms": 0}
        engine.call("maintain", **{**shim.load(), **clean})
        engine.call("load", **shim.load())  # copies that nobody holds go

    for number in range(4, 12):
        go_on(number)
    assert paths
    assert [path for path in paths if not Path(path).exists()] == []

    engine.call("close", store=reader.store, backend=reader.backend, options=reader.options)
    go_on(12)
    assert [path for path in paths if Path(path).exists()] == []


def test_reader_of_the_newest_version_takes_what_the_query_has(query, io):
    """Catches a second copy of a large state for a look at what the query just committed."""
    engine, shim = query
    reader = reader_of(shim)

    newest = read(engine, reader, NUM_VERSIONS)

    assert newest["bytes_read"] == 0
    assert len(in_view(newest)) == NUM_VERSIONS
    shim.commit(engine, rows(NUM_VERSIONS + 1))
    assert engine.call("load", **shim.load())["bytes_read"] == 0
    assert io.fetched_bytes == 0


def test_what_was_fetched_for_readers_goes_with_the_last_of_them(query, tmp_path):
    """Catches a copy of the state that stays on the local disk as long as the query runs."""
    engine, shim = query
    reader = reader_of(shim)

    def copies():
        return [path.name for path in tmp_path.rglob("*-read") if path.is_dir()]

    read(engine, reader, 3)
    assert len(copies()) == 1

    engine.call("close", store=reader.store, backend="rocksdb")

    assert copies() == []
    assert len(in_view(read(engine, reader, 3))) == 3
    assert engine.call("load", **shim.load())["bytes_read"] == 0


def test_what_was_fetched_for_readers_goes_when_a_query_begins(query, tmp_path):
    """Catches a copy of the state that a notebook has left to the query it starts next."""
    _, shim = query
    reader = reader_of(shim)
    engine = Engine(f"{tmp_path}/other")
    for version in range(3, 7):
        read(engine, reader, version)
    engine.call("close", store=reader.store, backend="rocksdb")
    assert list((tmp_path / "other").rglob("*-read/view-*"))

    engine.call("load", **shim.load())

    assert not list((tmp_path / "other").rglob("*-read"))


def test_view_stays_while_three_others_are_made_for_readers(query):
    """Catches a reader whose view goes with the next read, before it is opened."""
    engine, shim = query
    reader = reader_of(shim)

    views = [read(engine, reader, version) for version in range(3, 7)]

    assert [len(in_view(view)) for view in views] == [3, 4, 5, 6]


def test_reader_that_comes_back_without_a_query_finds_what_it_fetched(query, tmp_path, io):
    """Catches a notebook that fetches all of the state for each look at it."""
    _, shim = query
    reader = reader_of(shim)
    engine = Engine(f"{tmp_path}/other", io)

    for number in range(2):
        io.fetched_bytes = 0
        reader.store = {**reader.store, "provider": f"reader {number}"}
        assert len(in_view(read(engine, reader, 7))) == 7
        assert (io.fetched_bytes > 0) == (number == 0)
        engine.call("close", store=reader.store, backend="rocksdb")


def test_query_does_not_wait_for_a_read_that_was_given_up(tmp_path, s3_server, bucket):
    """Catches a query that starts when what a cancelled read restores is there."""
    options = s3_server.options(rocksdb_merge_min_files=100)
    shim = RocksDBShim(tmp_path, root=f"s3://{bucket}/ck/state", **options)
    Path(shim.scratch).mkdir()
    before = Engine(f"{tmp_path}/before")
    for number in range(1, 4):
        shim.commit(before, rows(number))
    engine, reader = Engine(f"{tmp_path}/engine"), reader_of(shim)
    reached, go_on = hold_a_file(s3_server)
    reading = threading.Thread(target=lambda: read(engine, reader, 3))
    reading.start()
    try:
        assert reached.wait(30)
        engine.call("close", store=reader.store, backend="rocksdb", options=options)
        assert engine.call("load", **shim.load())["version"] == 3
        assert reading.is_alive()
    finally:
        go_on.set()
        reading.join()


@pytest.mark.parametrize("make", [Shim, RocksDBShim], ids=["filesystem", "rocksdb"])
def test_commit_does_not_wait_for_a_reader(make, tmp_path, s3_server, bucket):
    """Catches a query whose batches stand still while somebody reads old state."""
    options = s3_server.options(snapshot_replay_ratio=100.0, rocksdb_merge_min_files=100)
    shim = make(tmp_path, root=f"s3://{bucket}/ck/state", **options)
    engine = Engine(f"{tmp_path}/engine")
    Path(shim.scratch).mkdir()
    for number in range(1, 4):
        shim.commit(engine, rows(number))
    reader = reader_of(shim)
    reader.store = {**shim.store, "provider": "reader"}
    reached, go_on = hold_a_file(s3_server)
    found = []
    reading = threading.Thread(target=lambda: found.append(read(engine, reader, 2)))
    reading.start()
    assert reached.wait(30)
    shim.commit(engine, rows(4))
    assert found == []
    go_on.set()
    reading.join(60)

    assert found[0]["num_keys"] == 2


def test_handle_that_outlives_its_provider_opens_no_store(query):
    """Catches a store that stays open for good since a task of an ended run called once more."""
    engine, shim = query
    request = shim.request(rows(NUM_VERSIONS + 1))
    engine.call("close", store=shim.store, backend="rocksdb")
    assert engine.call("status")["stores"] == 0

    shim.committed(request, engine.call("commit", **request))
    shim.view(engine)

    assert engine.call("status")["stores"] == 0
    shim.store["provider"] = "of the next run"
    assert len(in_view(engine.call("load", **shim.load()))) == NUM_VERSIONS + 1
    assert engine.call("status")["stores"] == 1
    shutil.rmtree(shim.scratch)
