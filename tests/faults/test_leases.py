"""Leases of query runs: the engine's calls, on S3 and on the disk, and engines that die."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.checkpoint.lease import Holder, Lease, Leases
from statestore.core.clock import SystemClock
from statestore.core.process import Process, find_process
from statestore.engine.service import EngineService
from statestore.io.local import LocalFileIO
from statestore.io.s3 import S3FileIO
from statestore.operations.in_use import exclusive_directory
from tests.engine_process import EngineGoneError, EngineProcess
from tests.shim import Shim, rows

ID = f"{7:032x}"
ELSEWHERE = Process("elsewhere", "boot namespace", 1, 1)


class Query:
    """The shim's side of a lease, and a look at the storage where it is."""

    def __init__(self, tmp_path, io, path, options):
        root = f"s3a:/{path}/state" if isinstance(io, S3FileIO) else f"file:{path}/state"
        self.shim = Shim(tmp_path, run="run-1", root=root, **options)
        self.io, self.path = io, path
        self.leases = Leases(io, f"{path}/state")

    def lease(self, action, **changes):
        """Arguments of a call."""
        return {
            "store": self.shim.store,
            "backend": "filesystem",
            "options": self.shim.options,
            "action": action,
            "id": ID,
            "pid": os.getpid(),
            **changes,
        }


@pytest.fixture(params=["local", "s3"])
def query(request, tmp_path):
    """A query with a checkpoint on a storage."""
    if request.param == "local":
        return Query(tmp_path, LocalFileIO(), f"{tmp_path}/ck", {})
    server = request.getfixturevalue("s3_server")
    io = S3FileIO(str(tmp_path), server.settings())
    return Query(tmp_path, io, f"/{request.getfixturevalue('bucket')}/ck", server.options())


@pytest.fixture
def engine(query):
    """The engine's service in this process."""
    Path(query.shim.scratch).mkdir()
    return EngineService(query.shim.scratch, application="app-1", executor="driver")


def ask(engine, op, **fields):
    """Send a call and return the whole reply."""
    return json.loads(engine.call(json.dumps({"op": op, **fields})))


def test_lease_is_there_from_take_to_drop(query, engine):
    """Catches a lease that nobody finds, says nothing of its holder, or stays."""
    assert ask(engine, "lease", **query.lease("take")) == {"ok": {}}

    (name,) = query.leases.list()
    holder = query.leases.read(name).holder
    assert holder.process == find_process()
    assert (holder.application, holder.executor, holder.run) == ("app-1", "driver", "run-1")
    assert name == f"query-{ID}.json"

    assert ask(engine, "lease", **query.lease("drop")) == {"ok": {}}
    assert query.leases.list() == {}
    # A renewal under way when it was dropped.
    assert ask(engine, "lease", **query.lease("drop")) == {"ok": {}}
    with exclusive_directory(query.io, query.path, "rescale"):
        pass


def test_what_a_driver_says_is_in_its_lease_until_it_says_otherwise(query, engine):
    """Catches a name or rates that stay from before, and one that spoils the lease."""
    ask(engine, "lease", **query.lease("take"))
    (name,) = query.leases.list()
    assert query.leases.read(name).progress is None
    said = {"name": "é <b>" * 900, "batch": 7, "rows": 12, "input_rows_per_second": 1.5}
    assert ask(engine, "lease", **query.lease("renew", query=said)) == {"ok": {}}
    told = query.leases.read(name).progress
    assert told.name == said["name"][:1000]
    assert (told.batch, told.rows, told.input_rows_per_second) == (7, 12, 1.5)
    assert told.processed_rows_per_second is None
    began_ms = told.began_ms
    assert 0 <= time.time() * 1000 - began_ms < 600_000
    ask(engine, "lease", **query.lease("renew", query={"name": None}))
    assert query.leases.read(name).progress.batch is None
    assert query.leases.read(name).progress.began_ms == began_ms
    # Another engine does not know when the run began.
    other = EngineService(query.shim.scratch, application="app-1", executor="driver")
    for action in ("renew", "take"):
        ask(other, "lease", **query.lease(action, query={"name": None}))
        assert query.leases.read(name).progress.began_ms is None
    ask(engine, "lease", **query.lease("renew"))
    assert query.leases.read(name).progress is None


def test_requests_for_leases_are_counted_apart(query, engine):
    """Catches a lease that costs every store or every batch a request."""
    ask(engine, "lease", **query.lease("take"))
    ask(engine, "lease", **query.lease("renew"))
    ask(engine, "lease", **query.lease("renew"))
    reply = ask(engine, "commit", **query.shim.request(rows(1)))["ok"]

    counted = ask(engine, "status")["ok"]["lease_requests"]
    # The get asks, once, whether the state lies elsewhere.
    assert counted == {"put": 3, "get": 1, "head": 0, "list": 2, "delete": 0}
    assert (reply["requests"]["put"], reply["requests"]["list"]) == (1, 0)


def test_query_does_not_start_during_an_operation(query, engine):
    """Catches a query that starts from a checkpoint that is half changed."""
    with exclusive_directory(query.io, query.path, "rescale"):
        error = ask(engine, "lease", **query.lease("take"))["error"]
        assert [name.split("-")[0] for name in query.leases.list()] == ["operation"]

    assert (error["class"], error["kind"]) == ("InUseError", "checkpoint-under-operation")
    assert error["fields"]["operation"] == "rescale"
    assert error["fields"]["pid"] == os.getpid()
    assert "ok" in ask(engine, "lease", **query.lease("take"))


def test_query_does_not_start_beside_a_lease_of_a_newer_format(query, engine):
    """Catches a query beside an operation of a later release, and one that deletes its lease."""
    path = query.leases.path(f"operation-{1:032x}.json")
    query.io.make_directory(query.leases.directory)
    query.io.write(path, b'{"format_version": 2}', sync=False, overwrite=True)

    error = ask(engine, "lease", **query.lease("take"))["error"]

    assert (error["class"], error["kind"]) == ("IncompatibleError", "newer-format")
    assert [query.leases.path(name) for name in query.leases.list()] == [path]


def test_query_starts_after_an_operation_that_was_killed(query, engine):
    """Catches an operation that was killed and locks the checkpoint for ever."""
    write_lease(query, "operation", replace(find_process(), started=1))

    assert "ok" in ask(engine, "lease", **query.lease("take"))


@pytest.mark.parametrize("query", ["local"], indirect=True)
def test_query_starts_when_the_lease_of_an_operation_has_expired(query, engine):
    """Catches an operation that died on another machine and locks the checkpoint for ever."""
    path = write_lease(query, "operation", ELSEWHERE)
    age(path, 35)

    assert "ok" in ask(engine, "lease", **query.lease("take"))


def test_query_does_not_start_when_an_operation_elsewhere_may_be_alive(query, engine):
    """Catches a verdict about a process of another machine."""
    write_lease(query, "operation", ELSEWHERE)

    error = ask(engine, "lease", **query.lease("take"))["error"]

    assert (error["kind"], error["fields"]["host"]) == ("checkpoint-under-operation", "elsewhere")
    assert "30 s" in error["message"]


def write_lease(query, kind, process):
    """Leave a lease behind; return its path."""
    holder = Holder(process, operation="rescale" if kind == "operation" else "", run="r")
    lease = Lease(query.io, f"{query.path}/state", f"{9:032x}", holder, 10_000, SystemClock())
    lease.take()
    return lease.leases.path(lease.name)


def age(path, age_s):
    """Make a local file older."""
    then = time.time() - age_s
    os.utime(path, (then, then))


@pytest.mark.parametrize("query", ["local"], indirect=True)
def test_leases_of_yesterday_are_deleted(query, engine):
    """Catches a file for every executor that was ever killed."""
    age(write_lease(query, "query", ELSEWHERE), 25 * 3600)

    ask(engine, "lease", **query.lease("take"))

    assert list(query.leases.list()) == [f"query-{ID}.json"]


@pytest.mark.parametrize("query", ["local"], indirect=True)
def test_renewal_does_not_bring_a_deleted_checkpoint_back(query, engine, tmp_path):
    """Catches a directory that appears again after its checkpoint was deleted."""
    ask(engine, "lease", **query.lease("take"))
    for path in (Path(query.leases.directory) / f"query-{ID}.json", query.leases.directory):
        Path(path).unlink() if Path(path).is_file() else Path(path).rmdir()
    (tmp_path / "ck").rmdir()

    error = ask(engine, "lease", **query.lease("renew"))["error"]

    assert (error["class"], error["kind"]) == ("StorageError", "directory-gone")
    assert not (tmp_path / "ck").exists()


def test_lease_goes_with_the_jvm(query):
    """Catches a lease that stays when application or executor ended, however that came."""
    with EngineProcess(query.shim.scratch) as engine:
        engine.call("lease", **query.lease("take"))
        assert query.leases.list()

        assert engine.end_stdin() == 0

        assert query.leases.list() == {}


@pytest.mark.parametrize("query", ["local"], indirect=True)
def test_nothing_is_written_when_the_lease_of_a_jvm_that_ended_is_gone(query, tmp_path):
    """Catches commits that go on while an engine takes its time to remove its scratch files."""
    # Whose deltas are not below the scratch directory, which goes.
    shim = Shim(tmp_path / "deltas", root=query.shim.store["root"], run="run-1")
    Path(shim.scratch).mkdir(parents=True)
    with EngineProcess(query.shim.scratch) as engine:
        engine.call("lease", **query.lease("take"))
        kept = Path(query.shim.scratch) / "kept"
        kept.mkdir()
        for number in range(40_000):
            (kept / str(number)).touch()
        stored = tmp_path / "ck/state/0/0"

        def commit_on():
            with suppress(EngineGoneError):
                reply = {"ok": {}}
                while "ok" in reply:
                    request = shim.request(rows(1))
                    reply = engine.request("commit", **request)
                    if "ok" in reply:
                        shim.committed(request, reply["ok"])

        task = threading.Thread(target=commit_on)
        task.start()
        while len(list(stored.glob("*"))) < 3:
            time.sleep(0.01)
        engine.process.stdin.close()
        while query.leases.list():
            time.sleep(0.001)
        before = sorted(stored.iterdir())
        assert engine.process.wait() == 0
        task.join()

    assert sorted(stored.iterdir()) == before


@pytest.mark.parametrize("query", ["local"], indirect=True)
def test_engine_writes_nothing_when_its_parent_is_gone(query):
    """Catches a commit between the death of a JVM and the news of it on the engine's stdin."""
    shell = ("-c", "import os, subprocess, sys; "
             "subprocess.Popen([sys.executable, '-m', 'statestore.engine']).wait()")  # fmt: skip
    with EngineProcess(query.shim.scratch, command=shell) as engine:
        query.shim.commit(engine, rows(1))
        pid = engine.ready["pid"]
        engine.process.kill()
        engine.process.wait()
        # The test still holds the pipe that is the engine's stdin.
        error = engine.request("commit", **query.shim.request(rows(2)))["error"]
        assert engine.request("status")["ok"]["pid"] == pid
        engine.process.stdin.close()

    assert "application has ended" in error["message"]
    assert len(list(Path(query.path).rglob("*.delta.*"))) == 1


@pytest.mark.parametrize("query", ["local"], indirect=True)
def test_lease_survives_its_engine(query):
    """Catches a query that looks stopped because an engine was killed."""
    with EngineProcess(query.shim.scratch) as first:
        first.call("lease", **query.lease("take"))
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
    (before,) = query.leases.list().values()

    with EngineProcess(query.shim.scratch) as second:
        second.call("lease", **query.lease("renew"))
        (after,) = query.leases.list().values()
        assert after.modified_ms > before.modified_ms
        second.call("lease", **query.lease("drop"))

    assert query.leases.list() == {}
