"""The engine as a process: handshake, calls, kill -9, the end of its JVM."""

import fcntl
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from contextlib import closing, suppress
from pathlib import Path

import pytest

from statestore.core.clock import SystemClock
from statestore.core.version import __version__
from statestore.engine.scratch import NAME_PATTERN, EngineDirectory
from statestore.io.fetch_cache import FetchCache
from statestore.io.local import TEMPORARY_PREFIX
from statestore.io.scratch import LOCK_NAME, ScratchDirectory
from tests.engine_process import (
    EngineConnection,
    EngineGoneError,
    EngineProcess,
    EngineRefusedError,
)
from tests.shim import FAMILIES, OPTIONS, RocksDBShim, Shim, changes_in, rows

IN_FIPS_MODE = """
import hashlib, runpy

def refuse(*arguments, **options):
    raise ValueError("unsupported hash type blake2b")

hashlib.blake2b = refuse
runpy.run_module("statestore.engine", run_name="__main__")
"""


@pytest.fixture
def shim(tmp_path):
    """A shim with an empty checkpoint."""
    return Shim(tmp_path)


@pytest.fixture
def engine(shim):
    """A running engine."""
    with EngineProcess(shim.scratch) as process:
        yield process


def test_ready_line_says_who_answers(engine):
    """Catches a handshake the shim cannot check."""
    assert engine.ready["version"] == __version__
    assert engine.ready["protocol"] == 1
    assert engine.ready["pid"] == engine.process.pid
    assert set(engine.ready) == {"port", "pid", "version", "protocol", "python", "pyarrow"}


def test_calls_of_a_query(shim, engine):
    """Catches a reply without a field the shim reads."""
    empty = engine.call("load", **shim.load(0))
    assert (empty["version"], empty["max_parallelism"], empty["files"]) == (0, 32768, [])
    assert empty["rescalable"]
    for number in range(1, 8):
        reply = shim.commit(engine, rows(number))
        assert set(reply) == {
            "checkpoint_id", "lineage", "size", "publish_ms", "sync_ms", "snapshot", "requests",
            "version_bytes", "rss_share_bytes", "rocksdb_share_bytes",
        }  # fmt: skip
        assert not Path(f"{shim.scratch}/0-{number}.arrows").exists()

    loaded = engine.call("load", **shim.load())
    assert set(loaded) == {
        "version", "checkpoint_id", "lineage", "max_parallelism", "num_partitions", "rescalable",
        "num_keys", "num_internal_keys", "column_families", "files", "view", "key_group_filter",
        "files_read", "bytes_read", "requests",
    }  # fmt: skip
    assert loaded["num_keys"] == 7
    assert loaded["column_families"][0]["key_schema"] == "{}"
    assert all(Path(file["path"]).is_file() for file in loaded["files"])

    newest = {"store": shim.store, "version": 7, "checkpoint_id": None, "options": OPTIONS}
    maintained = engine.call("maintain", **newest, snapshot=True, cleanup=True)
    assert set(maintained) == {"snapshot", "files_left"}
    feed = {"start_version": 6, "end_version": 7, "directory": f"{shim.scratch}/changes-1"}
    changes = engine.call("changes", store=shim.store, **feed)
    assert [(file["version"], file["sst"]) for file in changes["files"]] == [(6, None), (7, None)]
    assert [len(changes_in(file)) for file in changes["files"]] == [1, 1]
    status = engine.call("status")
    assert status["calls"] == {"load": 2, "commit": 7, "maintain": 1, "changes": 1, "status": 1}
    assert (status["stores"], status["pid"]) == (1, engine.process.pid)
    assert status["requests"]["put"] >= 7
    assert engine.call("close", store=shim.store) == {}
    assert engine.call("load", **shim.load())["num_keys"] == 7


@pytest.mark.parametrize("make", [Shim, RocksDBShim])
def test_attempt_of_equal_rows_is_known_and_built_on_without_a_load(tmp_path, make):
    """Catches an attempt taken for another one's rows, and one that each commit reads anew."""
    shim = make(tmp_path, checkpoint_format=2, run="run")

    def attempt(letter, numbers):
        request = {**shim.request(rows(*numbers)), "checkpoint_id": letter * 32}
        reply = engine.call("commit", **request)
        return {"version": 2, "checkpoint_id": letter * 32, "lineage": reply["lineage"]}

    def same(version, lineage):
        asked = {**version, "lineage": lineage}
        reply = engine.call(
            "same", store=shim.store, backend=shim.backend, version=asked, options=shim.options
        )
        return reply["same"]

    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, rows(1))
        other = attempt("c", [3])
        first, second = attempt("a", [2]), attempt("b", [2])
        assert same(first, second["lineage"])
        assert not same(other, second["lineage"])
        gone = {**first, "checkpoint_id": "d" * 32}
        with pytest.raises(AssertionError, match="version-not-found"):
            same(gone, second["lineage"])
        assert same(first, second["lineage"])
        shim.parent, shim.num_keys = first, 2
        before = engine.call("status")["requests"]["get"]
        shim.commit(engine, rows(4))
        num_gets = engine.call("status")["requests"]["get"] - before
        assert num_gets == 0
        assert engine.call("load", **shim.load())["num_keys"] == 3


@pytest.mark.parametrize("make", [Shim, RocksDBShim])
def test_engine_needs_no_digest_that_fips_mode_lacks(tmp_path, make):
    """Catches an engine that fails with each commit where OpenSSL has what FIPS 140 allows."""
    shim = make(tmp_path)

    with EngineProcess(shim.scratch, command=("-c", IN_FIPS_MODE)) as engine:
        shim.commit(engine, rows(1, 2))
        shim.commit(engine, rows(3))

        assert engine.call("load", **shim.load())["num_keys"] == 3


@pytest.mark.parametrize("checkpoint_format", [1, 2])
def test_killed_engine_is_replaced_without_losing_or_doubling_a_version(
    tmp_path, checkpoint_format
):
    """Catches a restarted engine that cannot go on where the killed one was."""
    shim = Shim(tmp_path, checkpoint_format)
    with EngineProcess(shim.scratch) as first:
        shim.commit(first, rows(1))
        published = shim.request(rows(2))
        answer = first.call("commit", **published)
        first.kill()
        with pytest.raises(EngineGoneError):
            first.call("status")

    with EngineProcess(shim.scratch) as second:
        repeated = second.call("commit", **published)
        shim.committed(published, repeated)
        shim.commit(second, rows(3))
        loaded = second.call("load", **shim.load())

    same = ("checkpoint_id", "lineage", "size")
    assert [repeated[name] for name in same] == [answer[name] for name in same]
    assert (loaded["version"], loaded["num_keys"], loaded["files_read"]) == (3, 3, 3)


def test_engine_killed_while_sealing_leaves_a_delta_that_can_be_repeated(shim, engine):
    """Catches a repeated commit stumbling over the half-written trailer of the first."""
    request = shim.request(rows(1))
    with Path(request["delta"]["path"]).open("ab") as file:
        file.write(b"half a trailer")

    shim.committed(request, engine.call("commit", **request))

    assert engine.call("load", **shim.load())["num_keys"] == 1


def test_engine_ends_with_its_stdin_and_takes_its_scratch_along(shim):
    """Catches engines and scratch files that outlive their application."""
    engine = EngineProcess(shim.scratch)
    shim.commit(engine, rows(1))

    assert engine.end_stdin() == 0

    assert not Path(shim.scratch).exists()
    assert Path(shim.directory, "ck/state/0/0/1.delta.arrows").exists()


@pytest.mark.parametrize(
    ("backend", "op", "pattern"),
    [
        ("filesystem", "maintain", "*.snapshot.arrows"),
        ("rocksdb", "maintain", "merge-*"),
        ("rocksdb", "commit", "*body*"),
    ],
)
def test_killed_engine_leaves_no_unfinished_files(tmp_path, backend, op, pattern):
    """Catches a local disk that every engine death fills a little more."""
    for attempt in range(5):
        shim = Shim(tmp_path / f"{attempt}")
        shim.backend = backend
        if killed_when_seen(shim, op, pattern):
            break
    else:
        pytest.fail("the run proved nothing: no call was seen under way")

    with EngineProcess(shim.scratch) as engine:
        if op == "commit":
            Path(shim.scratch, GIVEN_UP).unlink(missing_ok=True)  # the kill may have come behind
            shim.commit(engine, rows(*range(1, 60_000)))
        else:
            engine.call(op, **maintenance(shim))
        assert engine.call("load", **shim.load())["num_keys"] == 60_000
        assert not list(Path(shim.scratch).rglob(pattern))
        (own,) = Path(shim.scratch).glob("engine-*")
        kept = {path.relative_to(own).parts[0] for path in own.rglob("*") if path.is_file()}
        assert kept - {"rocksdb"} == {"starts"}
        left = {path.name for path in Path(shim.scratch).iterdir()}
        assert left == {LOCK_NAME, own.name}


GIVEN_UP = "given-up"


def maintenance(shim):
    """A call that summarises what is there."""
    return {**shim.load(), "snapshot": True, "cleanup": False}


def killed_when_seen(shim, op, pattern):
    """Kill an engine in a call when a file of a pattern is there; whether one was seen."""
    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, rows(0))
        request = shim.request(rows(*range(1, 60_000)))
        if op == "maintain":
            shim.committed(request, engine.call("commit", **request))
            shim.options |= {"snapshot_max_chain_length": 1, "rocksdb_merge_min_files": 2}
            request = maintenance(shim)
        else:
            # Of an attempt that is given up.
            delta = Path(request["delta"]["path"]).rename(f"{shim.scratch}/{GIVEN_UP}")
            request["delta"]["path"] = str(delta)

        def call():
            with suppress(EngineGoneError):
                engine.request(op, **request)

        caller = threading.Thread(target=call)
        caller.start()
        is_seen = False
        while caller.is_alive() and not is_seen:
            time.sleep(0.001)
            with suppress(OSError):  # a directory that goes meanwhile
                is_seen = any(Path(shim.scratch).rglob(pattern))
        engine.kill()
        caller.join()
        return is_seen


def test_fetched_files_outlive_the_engine_that_fetched_them(tmp_path):
    """Catches a load, too long for one call, that begins anew each time its engine is killed."""
    own = EngineDirectory(str(tmp_path), "0")
    own.begin()
    directory = f"{own.fetched}/1"
    Path(directory).mkdir()
    first = FetchCache(directory, 25)
    for name in "abc":
        first.get(name, 10, lambda path: Path(path).write_bytes(b"x" * 10))
    Path(directory, f"{TEMPORARY_PREFIX}half").write_bytes(b"x")
    taken = {path.name for path in Path(directory).iterdir()} - {f"{TEMPORARY_PREFIX}half"}

    own.begin()
    second = FetchCache(directory, 25)

    assert {path.name for path in Path(directory).iterdir()} == taken
    assert len(taken) == 2
    for name in taken:
        second.get(name, 10, lambda path: pytest.fail(f"fetched again: {path}"))
    second.get("d", 1 << 20, lambda path: Path(path).write_bytes(b"x" * (1 << 20)))
    assert [path.name for path in Path(directory).iterdir()] == ["d"]


def test_fetched_file_costs_nothing_by_the_copies_that_are_there(tmp_path):
    """Catches an engine that is slower with each file that it has fetched in its life."""
    visited = []

    class Counted(OrderedDict):
        def __iter__(self):
            visited.append("each")
            return super().__iter__()

        def items(self):
            for item in super().items():
                visited.append("one")
                yield item

        def values(self):
            visited.append("all")
            return super().values()

    cache = FetchCache(str(tmp_path), 100)
    cache._sizes = Counted()
    for number in range(100):
        cache.get(f"{number}", 1, lambda path: Path(path).write_bytes(b"x"))
    assert visited == []

    held = cache.get("1", 1, pytest.fail)
    cache.get("more", 2, lambda path: Path(path).write_bytes(b"xx"))

    assert visited == ["one"] * 3
    there = {path.name for path in tmp_path.iterdir()}
    assert there == {"more", *map(str, range(100))} - {"0", "2"}
    assert Path(held).exists()


def test_ctrl_c_does_not_end_an_engine(shim, engine):
    """Catches Ctrl-C in a PySpark shell killing every engine."""
    engine.process.send_signal(signal.SIGINT)

    assert engine.call("status")["pid"] == engine.process.pid


def test_wrong_token_is_refused(engine):
    """Catches any process of the machine being able to write state."""
    with pytest.raises(PermissionError):
        EngineConnection(engine.ready["port"], token="0" * 64)
    with socket.create_connection(("127.0.0.1", engine.ready["port"])) as stranger:
        stranger.sendall(b'c\nt\ncall\ns{"op": "status"}\ne\n')
        with suppress(ConnectionResetError):
            assert stranger.recv(100) == b"!xn\n"

    assert engine.call("status")["calls"] == {"status": 1}


def test_strangers_take_no_memory_no_threads_and_no_log(shim, tmp_path):
    """Catches any user of the machine being able to fill an executor, or its log."""
    log = tmp_path / "log"
    with log.open("wb") as stderr, EngineProcess(shim.scratch, stderr=stderr) as engine:
        address = "127.0.0.1", engine.ready["port"]
        threads = Path(f"/proc/{engine.ready['pid']}/task")
        before = engine.call("status")["rss_bytes"], len([*threads.iterdir()])
        for end in (b"", b"\n"):
            with socket.create_connection(address) as stranger, suppress(OSError):
                stranger.sendall(b"x" * 64_000_000 + end)
        silent = [socket.create_connection(address) for _ in range(100)]
        try:
            # Those that make room end within half a second.
            assert len([*threads.iterdir()]) <= before[1] + 70
            assert engine.call("status")["rss_bytes"] < before[0] + 10_000_000
            # On a connection of its own, which comes behind all of these.
            with closing(EngineConnection(engine.ready["port"])) as known:
                assert "ok" in known.request({"op": "status"})
        finally:
            for stranger in silent:
                stranger.close()

    assert log.read_text().count("without the token") == 1
    assert log.stat().st_size < 10_000


@pytest.mark.parametrize(
    ("claim", "text"),
    [({"version": "9.9.9"}, "jar='9.9.9'"), ({"protocol": 2}, "jar_protocol=2")],
)
def test_other_version_is_refused_with_both_named(shim, claim, text):
    """Catches a jar talking to a package that means something else."""
    with pytest.raises(EngineRefusedError, match=text) as caught:
        EngineProcess(shim.scratch, **claim)

    assert caught.value.refusal["class"] == "ProtocolError"
    assert caught.value.refusal["kind"] == "version-apart"
    assert f"package='{__version__}'" in str(caught.value)


@pytest.mark.parametrize("stdin", [b"", b"short\n{}\n", b"a" * 64 + b"\nnot json\n"])
def test_engine_started_by_hand_says_so(stdin):
    """Catches a traceback, or an engine that waits for ever."""
    done = subprocess.run(
        [sys.executable, "-m", "statestore.engine"],
        input=stdin,
        capture_output=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )

    assert done.returncode == 3
    assert done.stdout.startswith(b"FAILED ")
    assert json.loads(done.stdout[7:])["class"] == "ProtocolError"
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("op", "fields", "error_class", "text"),
    [
        ("fly", {}, "ProtocolError", "known='load, commit"),
        ("load", {"version": "1"}, "ProtocolError", "field='version'"),
        ("load", {"version": 9}, "NotFoundError", "version=9"),
        ("load", {"backend": "tape"}, "IncompatibleError", "query='tape'"),
        ("load", {"options": {"x": 1}}, "InvalidArgumentError", "nearest="),
        ("load", {"store": {"root": "ftp://b/c", "operator": 0, "partition": 0}},
         "ProtocolError", "[files-not-offered]"),
    ],
)  # fmt: skip
def test_bad_calls_are_answered_with_named_errors(shim, engine, op, fields, error_class, text):
    """Catches an engine that dies or answers nonsense on a bad call."""
    error = engine.request(op, **{**shim.load(0), **fields})["error"]

    assert error["class"] == error_class
    assert text in error["message"]
    assert set(error) == {"class", "kind", "message", "fields", "traceback"}
    assert engine.call("status")["pid"] == engine.process.pid


@pytest.mark.parametrize("checkpoint_format", [1, 2])
@pytest.mark.parametrize("make", [Shim, RocksDBShim], ids=["filesystem", "rocksdb"])
def test_every_partition_names_a_changed_number_of_partitions(
    tmp_path, make, checkpoint_format, engine
):
    """Catches a task of a partition that never was, first to fail, that speaks of expired files."""
    first = make(tmp_path, checkpoint_format)
    first.commit(engine, rows(1))
    never = make(tmp_path, checkpoint_format, partition=1)
    known = {"version": 1, "checkpoint_id": f"{9:032x}" if checkpoint_format == 2 else None}

    refusals = [
        engine.request("load", **call)["error"]
        for call in (
            first.load(num_partitions=2),
            never.load(**known, num_partitions=2),
            never.load(**known, num_partitions=1),
        )
    ]

    changed = "num-partitions-changed"
    assert [refusal["kind"] for refusal in refusals] == [changed, changed, "version-not-found"]
    assert "statestore rescale CHECKPOINT --num-partitions 2 --yes" in refusals[1]["message"]


def test_messages_above_8_kb_are_not_held_up(shim, engine):
    """Catches a socket without TCP_NODELAY: 40 ms more for every long chain."""
    long_schema = "x" * 20_000
    request = shim.request(rows(1))
    request["column_families"] = [{**FAMILIES[0], "key_schema": long_schema}]
    shim.committed(request, engine.call("commit", **request))
    engine.call("load", **shim.load())

    round_trips_s = []
    for _ in range(20):
        start_s = time.perf_counter()
        reply = engine.call("load", **shim.load())
        round_trips_s.append(time.perf_counter() - start_s)
        assert reply["column_families"][0]["key_schema"] == long_schema
    assert min(round_trips_s) < 0.04


def test_stores_are_served_in_parallel(tmp_path, engine):
    """Catches one connection or one lock for all tasks of an executor."""
    failures = []

    def run(partition):
        shim = Shim(tmp_path, partition=partition)
        try:
            for number in range(1, 6):
                shim.commit(engine, rows(number))
            assert engine.call("load", **shim.load())["num_keys"] == 5
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(partition,)) for partition in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert engine.call("status")["stores"] == 8


def test_scratch_directory_of_another_machine_is_not_swept(tmp_path):
    """Catches files of a live executor, removed on a disk that machines share without its locks."""
    marks = {
        "own": None,
        "booted": f"{socket.gethostname()}\nboot before",
        "other": "host of another\nboot of another",
    }
    for name, mark in marks.items():
        directory = ScratchDirectory(f"{tmp_path}/statestore-scratch-{name}")
        directory.release()
        lock = Path(directory.path, LOCK_NAME)
        if mark is not None:
            lock.write_text(mark)
        os.utime(lock, (0, 0))

    own = ScratchDirectory(f"{tmp_path}/disk-2/statestore-scratch-new")

    assert own.sweep_beside(NAME_PATTERN, SystemClock()) == 0
    # The last is a disk that cannot even be looked at.
    disks = [str(tmp_path), f"{tmp_path}/disk-2", f"{tmp_path}/gone", f"{tmp_path}/{'x' * 300}"]
    assert own.sweep_beside(NAME_PATTERN, SystemClock(), disks) == 2
    assert [path.name for path in tmp_path.glob("statestore-*")] == ["statestore-scratch-other"]
    assert Path(own.path).exists()


def test_scratch_directory_is_locked_as_cleaners_of_tmp_ask(tmp_path):
    """Catches files that systemd-tmpfiles deletes after ten days, under an engine that lives."""
    own = ScratchDirectory(f"{tmp_path}/statestore-scratch-own")
    asked = os.open(own.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(asked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        own.release()
        fcntl.flock(asked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(asked)


def test_stale_scratch_directories_are_swept_and_used_ones_are_not(tmp_path):
    """Catches scratch files filling the disk, or a live executor losing its deltas."""
    stale, used, fresh, bare = (tmp_path / f"statestore-scratch-{n}" for n in "abcd")
    for directory in (stale, used, fresh, bare):
        directory.mkdir()
        (directory / "1.arrows").write_bytes(b"x")
        if directory != bare:
            (directory / LOCK_NAME).touch()
    for directory in (stale, used):
        os.utime(directory / LOCK_NAME, (0, 0))
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'r+');"
         "fcntl.lockf(f, fcntl.LOCK_SH); print('held', flush=True); sys.stdin.read()",
         str(used / LOCK_NAME)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout.readline() == b"held\n"

    with EngineProcess(str(tmp_path / "statestore-scratch-own")) as engine:
        deadline = time.monotonic() + 40
        while stale.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        engine.call("status")
        left = sorted(path.name[-1] for path in tmp_path.iterdir())

    holder.communicate()
    assert left == ["b", "c", "d", "n"]
    with (tmp_path / "statestore-scratch-own" / LOCK_NAME).open("r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_engine_outlives_a_lack_of_file_descriptors(shim, engine):
    """Catches an engine that answers no new connection for ever, because one was refused."""
    pid = engine.process.pid
    engine.call("status")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    num_open = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_open, limits[1]))
    with socket.create_connection(("127.0.0.1", engine.ready["port"])):
        time.sleep(0.5)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)

    with closing(EngineConnection(engine.ready["port"])) as late:
        assert "ok" in late.request({"op": "status"})


def test_many_connections_at_once_are_all_answered(engine):
    """Catches connections that find no place in the queue, and are tried again after seconds."""
    os.kill(engine.process.pid, signal.SIGSTOP)
    try:
        waiting = [socket.socket() for _ in range(60)]
        for one in waiting:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(("127.0.0.1", engine.ready["port"]))
        time.sleep(0.2)
        refused = [one for one in waiting if not select.select([], [one], [], 0)[1]]
    finally:
        os.kill(engine.process.pid, signal.SIGCONT)
        for one in waiting:
            one.close()

    assert refused == []
