"""What a commit costs the engine, as counts: files, syncs, memory, and what RocksDB is asked."""

import os
import sys
import threading
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from statestore.backends.rocksdb import database
from statestore.checkpoint import trailers
from statestore.codec.rows import PUT, Row
from tests.shim import Engine, G, RocksDBShim, Shim, rows

NO_SNAPSHOTS = {"snapshot_max_chain_length": 1_000, "snapshot_replay_ratio": 100.0}
watched: tuple[int, Path, Counter[str]] | None = None


def count_opened(event, arguments):
    """An audit hook: it cannot be taken away again, so it counts only while somebody asks."""
    if event == "open" and watched is not None and isinstance(arguments[0], str):
        thread, below, counts = watched
        path = Path(arguments[0])
        if threading.get_ident() == thread and path.is_relative_to(below):
            counts[path.suffix] += 1


sys.addaudithook(count_opened)


@pytest.fixture
def synced(monkeypatch):
    """A list that grows by one with each fsync of this thread."""
    calls = []
    fsync, thread = os.fsync, threading.get_ident()

    def counted(descriptor):
        if threading.get_ident() == thread:
            calls.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    return calls


@contextmanager
def opened_files(below):
    """Count the files below a directory that this thread opens, by suffix."""
    global watched
    counts = Counter()
    watched = (threading.get_ident(), below, counts)
    try:
        yield counts
    finally:
        watched = None


@pytest.mark.parametrize("num_rows", [0, 100])
def test_files_and_syncs_of_a_commit_do_not_grow_with_the_chain(tmp_path, synced, num_rows):
    """Catches a commit that opens the files of its chain, or syncs more than file and directory."""
    shim = Shim(tmp_path, **NO_SNAPSHOTS, fsync_enabled=True)
    engine = Engine(shim.scratch)
    for version in range(40):
        request = shim.request(rows(*range(version * num_rows, (version + 1) * num_rows)))
        synced.clear()
        with opened_files(tmp_path) as opened:
            reply = engine.call("commit", **request)
        shim.committed(request, reply)
        if version:  # the first one makes the store's directory, too
            # The delta as it was handed over, as it was staged and as it was published; the
            # directory, which is synced; and the lease of the query.
            assert opened == {".arrows": 3, "": 1, ".json": 1}
            assert len(synced) == 2


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_trailer_of_the_parent_is_taken_apart_only_where_it_is_news(
    tmp_path, monkeypatch, checkpoint_format
):
    """Catches a commit that decodes what this engine wrote just before."""
    decoded = []
    decode, thread = trailers.decode_trailer, threading.get_ident()

    def noted(*given):
        if threading.get_ident() == thread:
            decoded.append(given)
        return decode(*given)

    monkeypatch.setattr(trailers, "decode_trailer", noted)
    shim = Shim(tmp_path, checkpoint_format, **NO_SNAPSHOTS)
    engine = Engine(shim.scratch)
    for number in range(4):
        shim.commit(engine, rows(number))
    assert not decoded

    shim.commit(Engine(f"{tmp_path}/another"), rows(4))
    assert len(decoded) == 1


def test_memory_of_a_commit_without_rows(tmp_path):
    """Catches a commit that copies the names of its chain many times over."""
    shim = Shim(tmp_path, **NO_SNAPSHOTS)
    engine = Engine(shim.scratch)

    def peak():
        request = shim.request([])
        engine.settle()  # all threads are measured
        tracemalloc.start()
        try:
            reply = engine.call("commit", **request)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        shim.committed(request, reply)
        return taken

    for number in range(20):
        shim.commit(engine, rows(number))
    short = min(peak() for _ in range(8))
    for number in range(20, 120):
        shim.commit(engine, rows(number))
    long = min(peak() for _ in range(8))

    assert short <= 64 << 10
    assert (long - short) / 100 <= 2_000


@pytest.fixture
def asked(monkeypatch):
    """What RocksDB was asked for, counted where it is called."""
    counts = Counter()

    def counted(name):
        called = getattr(database, name)

        def call(*arguments, **named):
            counts[name] += bool(arguments[-1])  # the files to take in may be none
            return called(*arguments, **named)

        monkeypatch.setattr(database, name, call)

    for name in ("Rdict", "Checkpoint", "ingest_files"):
        counted(name)
    return counts


@pytest.mark.parametrize("is_read", [False, True], ids=["not read", "read"])
def test_rocksdb_is_asked_only_for_what_is_read(tmp_path, asked, is_read):
    """Catches a database opened anew, and rows taken in although nobody reads them."""
    shim = RocksDBShim(tmp_path, rocksdb_merge_min_files=64)
    engine = Engine(shim.scratch)
    num_commits = 3 * database.MAX_WAITING
    for number in range(num_commits):
        shim.commit(engine, rows(number))
        if is_read:
            shim.view(engine)
    engine.settle()

    # Where nobody reads, what waits is taken in by eights.
    takes = num_commits if is_read else 2
    assert asked == {"Rdict": 1, "Checkpoint": takes, "ingest_files": takes}


@pytest.mark.parametrize(
    ("made", "most", "most_in_summaries"), [(Shim, 1.18, 1.9), (RocksDBShim, 1.16, 1.45)]
)
def test_bytes_written_are_those_that_changed(tmp_path, made, most, most_in_summaries):
    """Catches a commit, or a summary, that writes what its batch did not change."""
    num_rows, value_bytes = 500, 100
    shim = made(tmp_path, snapshot_max_chain_length=8, rocksdb_merge_min_files=8)
    engine = Engine(shim.scratch)
    random = Random(3)
    changed, deltas, summaries, keys = 0, 0, Counter(), set()
    for _ in range(64):
        batch = [
            Row(number % G, 0, PUT, b"%08d" % number, random.randbytes(value_bytes))
            for number in random.sample(range(num_rows * 20), num_rows)
        ]
        changed += num_rows * (8 + value_bytes)
        keys.update(row.key for row in batch)
        shim.num_keys = len(keys) - num_rows  # to which it adds those of the batch
        deltas += shim.commit(engine, batch)["size"]
        engine.settle()
        for path in (tmp_path / "ck").rglob("*_*.*.*"):
            summaries[path.name] = path.stat().st_size

    # Beside the rows: their key groups, an index or offsets, and the trailer.
    assert 1.0 <= deltas / changed <= most
    # Snapshots hold all of the state, up to 10,000 rows; merged files hold eight deltas and more.
    assert len(summaries) == 64 // 8
    assert 1.0 <= sum(summaries.values()) / changed <= most_in_summaries


def test_a_lookup_asks_few_files_however_many_versions_there_were(tmp_path):
    """Catches compactions that wait behind all else, or are not made: a view of ever more files."""
    shim = RocksDBShim(tmp_path, rocksdb_merge_min_files=4)
    engine = Engine(shim.scratch)
    version, num_files = 0, 0
    while version < 64 or num_files > 4:  # until the test's time is over
        shim.commit(engine, rows(*range(version, 20_000, 1_000)))
        view = shim.view(engine)
        num_files = len(list(Path(view["view"]).glob("*.sst")))
        version += 1
    engine.settle()

    threads = [task for task in Path("/proc/self/task").iterdir() if is_compacting(task)]
    assert {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in threads} == {
        os.getpriority(os.PRIO_PROCESS, os.getpid())
    }


def is_compacting(task):
    """Return whether a thread of this process is one of those in which RocksDB compacts."""
    return (task / "comm").read_text() == "rocksdb:low\n"
