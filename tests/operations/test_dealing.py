"""Rows dealt out by processes, beside what one process makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statestore import Checkpoint, Savepoint
from statestore.core.errors import CorruptionError, NotFoundError, ProtocolError
from statestore.operations import dealing, processes
from statestore.operations.processes import map_in_processes
from statestore.testing.checkpoints import MadeCheckpoint, read_checkpoint
from statestore.testing.stores import OPERATORS
from tests.damaged import flip

KEYS = 3_000


@pytest.fixture(name="query", scope="module", params=["filesystem", "rocksdb"])
def _query(request, tmp_path_factory):
    made = MadeCheckpoint(
        tmp_path_factory.mktemp("query") / "it",
        num_partitions=4,
        backend=request.param,
        checkpoint_format=2,
        operators=OPERATORS,
    )
    for first, step in ((0, 1), (0, 3), (100, 7)):
        made.run_batch({key: first + key for key in range(first, KEYS, step)})
    made.run_batch(dict.fromkeys(range(0, KEYS, 11)))
    return made


@pytest.fixture(name="counts")
def _counts(monkeypatch):
    """Shares of each work that processes did; all work is much, on a machine with two cores."""
    counts = []
    monkeypatch.setattr(processes, "_MIN_ROWS", 1)
    monkeypatch.setattr(processes, "num_processes", lambda: 2)
    monkeypatch.setattr(
        dealing,
        "map_in_processes",
        lambda function, shares: counts.append(len(shares)) or map_in_processes(function, shares),
    )
    return counts


def _described(path):
    found = Checkpoint(path).verify()
    assert found.findings == ()
    return found.num_files


def test_processes_make_what_threads_do(query, tmp_path, request):
    """Catches a state partition that is lost on the way from a process, or written elsewhere."""
    sums = {}

    def copies(name):
        reports = []
        directory = tmp_path / name
        savepoint = directory / "savepoint"
        Checkpoint(query.path).savepoint(savepoint, progress=lambda *done: reports.append(done))
        made = [str(savepoint)]
        for backend, num_partitions, storage in (
            ("filesystem", 2, ""),
            ("rocksdb", 8, str(directory / "elsewhere")),
        ):
            to = str(directory / f"{backend}-{num_partitions}")
            options = {"checkpointStorage": storage} if storage else {}
            Savepoint(savepoint, storage_options=options).restore(
                to, backend=backend, num_partitions=num_partitions
            )
            made.append(to)
        sums[name] = [(read_checkpoint(path), _described(path)) for path in made]
        return reports[-1], [path.name for path in savepoint.iterdir()]

    in_threads = copies("threads")
    counts = request.getfixturevalue("counts")
    in_processes = copies("processes")

    assert len(counts) >= 3
    assert sums["threads"] == sums["processes"]
    assert sums["threads"][0][0] == query.expected()
    assert in_threads[0] == in_processes[0]
    assert sorted(in_threads[1]) == sorted(in_processes[1])


def test_few_files_are_open_however_many_state_partitions_there_are(query, tmp_path):
    """Catches a restore that has a file open, and rows in memory, for each state partition."""
    code = """
import resource, sys
from statestore import Savepoint
Savepoint(sys.argv[1])  # what it imports is open by now
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
Savepoint(sys.argv[1]).restore(sys.argv[2], backend="filesystem", num_partitions=512)
"""
    savepoint, restored = str(tmp_path / "savepoint"), str(tmp_path / "restored")
    Checkpoint(query.path).savepoint(savepoint)

    subprocess.run([sys.executable, "-c", code, savepoint, restored], check=True)

    assert read_checkpoint(restored) == query.expected()
    assert Checkpoint(restored).verify(deep=True).findings == ()


@pytest.mark.usefixtures("counts")
def test_damage_that_a_process_finds_is_an_error(query, tmp_path):
    """Catches a savepoint that lacks what a process could not read."""
    damaged = next(Path(query.path).glob("state/0/2/4*.delta.*"))
    flip(damaged)
    try:
        with pytest.raises(CorruptionError, match=damaged.name):
            Checkpoint(query.path).savepoint(tmp_path / "savepoint")
        with pytest.raises(NotFoundError, match="begun and not finished"):
            _ = Savepoint(tmp_path / "savepoint").info
    finally:
        flip(damaged)

    Checkpoint(query.path).savepoint(tmp_path / "savepoint")

    assert read_checkpoint(str(tmp_path / "savepoint")) == query.expected()


def test_process_of_another_release_is_refused_by_name(monkeypatch):
    """Catches arguments of one release read by another, once a wheel was upgraded meanwhile."""
    monkeypatch.setattr(processes, "__version__", "0.0.9")

    with pytest.raises(ProtocolError, match="start the program again") as caught:
        list(map_in_processes(abs, [-1, -2]))

    assert caught.value.kind == "version-apart"


def wait_long(path):
    """Work of a process; tells which one it is."""
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path):
    """Catches a process that writes on into a directory that another run has begun anew."""
    paths = [str(tmp_path / name) for name in ("one", "two")]
    script = (
        "from tests.operations.test_dealing import map_in_processes, wait_long\n"
        f"list(map_in_processes(wait_long, {paths}))\n"
    )
    started = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_for(lambda: all(Path(path).exists() and Path(path).read_text() for path in paths))
    finally:
        started.kill()
        started.wait()
    pids = [int(Path(path).read_text()) for path in paths]

    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def wait_for(holds):
    """Wait until it holds, two minutes at most."""
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_alive(pid):
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_has_not_begun_is_not_written_when_the_caller_gives_up(tmp_path, monkeypatch):
    """Catches an operation that was given up, and writes every state partition all the same."""
    written = []
    write = dealing._write

    def noting(*arguments, **named):
        written.append(1)
        return write(*arguments, **named)

    def give_up(done, total):
        raise SystemExit

    monkeypatch.setattr(dealing, "_write", noting)
    query = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch", num_partitions=32)
    query.run_batch({number: number for number in range(200)})
    with pytest.raises(SystemExit):
        Checkpoint(query.path).savepoint(tmp_path / "savepoint", progress=give_up)

    assert 0 < len(written) < 32
