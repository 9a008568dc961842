"""The rocksdb backend when its engine is killed: in a commit, at its local database, in a merge."""

import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.codec.rows import PUT, Row
from tests.engine_process import EngineGoneError, EngineProcess
from tests.shim import G, RocksDBShim, in_view, rows


def moments(*few, others):
    """Delays of a kill; in the long lane there are more of them."""
    return [*few, *(pytest.param(delay, marks=pytest.mark.extended) for delay in others)]


def killed_in(engine, delay_ms):
    """Kill an engine so long after the call in the block begins; 0: before, so that it is certain.

    A thread that kills may come late on a busy machine.
    """
    gone = (EngineGoneError, OSError)
    if delay_ms == 0:
        engine.process.kill()
        return pytest.raises(gone)
    threading.Timer(delay_ms / 1000, engine.process.kill).start()
    return suppress(*gone)


def values(*numbers):
    """Values of rows, by their keys."""
    return {row.key: row.value for row in rows(*numbers)}


def load(root, version):
    """Rows of a version by a handle that has nothing on its local disk."""
    with Checkpoint(root).open_store(version=version) as store:
        return dict(store.scan())


@pytest.mark.parametrize("delay_ms", moments(0, 1, 5, 20, 80, others=(2, 10, 40)))
def test_engine_killed_in_a_commit_answers_the_repeated_one(tmp_path, delay_ms):
    """Catches half of a version in the local database, or a version applied twice."""
    shim = RocksDBShim(tmp_path)
    with EngineProcess(shim.scratch) as engine:
        shim.commit(engine, rows(*range(1000)))
        request = shim.request([Row(n % G, 0, PUT, b"%08d" % n, b"w" * 50) for n in range(20_000)])
        request["num_keys"] = 20_000
        with killed_in(engine, delay_ms):
            engine.call("commit", **request)
        engine.process.wait()

    with EngineProcess(shim.scratch) as engine:
        reply = engine.call("commit", **request)
        shim.committed(request, reply)

        model = {b"%08d" % n: b"w" * 50 for n in range(20_000)}
        assert in_view(shim.view(engine)) == model
        shim.commit(engine, rows(20_000))
        assert in_view(shim.view(engine)) == model | values(20_000)


def _has_linked_an_sst(scratch, num_known):
    return len(list(scratch.rglob("db-*/*.sst"))) > num_known


def _makes_a_view(scratch, _):
    return any(scratch.rglob(".tmp-view"))


def _compacts(scratch, _):
    return any("compaction_started" in log.read_text() for log in scratch.rglob("db-*/LOG"))


@pytest.mark.parametrize(
    "sign",
    [
        _has_linked_an_sst,
        pytest.param(_makes_a_view, marks=pytest.mark.extended),
        pytest.param(_compacts, marks=pytest.mark.extended),
    ],
)
def test_engine_killed_at_its_local_database_serves_every_version(tmp_path, sign):
    """Catches a half ingested, half compacted database that the next engine takes for whole."""
    shim = RocksDBShim(tmp_path, rocksdb_compact_on_commit=True)
    scratch, model, num_seen = Path(shim.scratch), {}, 0
    for number in range(5):
        batch = rows(*range(number * 500, number * 500 + 2000))
        model.update({row.key: row.value for row in batch})
        with EngineProcess(shim.scratch) as engine:
            if number:
                shim.view(engine)  # opens the local database
            request = {**shim.request(batch), "num_keys": len(model)}
            seen, is_over = threading.Event(), threading.Event()
            num_known = len(list(scratch.rglob("db-*/*.sst")))
            kill = threading.Thread(
                target=_kill_when,
                args=(engine, lambda known=num_known: sign(scratch, known), number, seen, is_over),
            )
            kill.start()
            with suppress(EngineGoneError, OSError):
                shim.committed(request, engine.call("commit", **request))
                shim.view(engine)
            is_over.set()
            kill.join()
            engine.process.kill()
            engine.process.wait()
        num_seen += seen.is_set()
        with EngineProcess(shim.scratch) as engine:
            if shim.parent is None or shim.parent["version"] < request["version"]:
                shim.committed(request, engine.call("commit", **request))
            assert in_view(shim.view(engine)) == model
    assert num_seen
    assert load(tmp_path / "ck", 5) == model


def _kill_when(engine, sign, wait_ms, seen, is_over):
    while not is_over.is_set():
        with suppress(OSError):  # a file that was found is gone
            if sign():
                seen.set()
                time.sleep(wait_ms / 1000)
                engine.process.kill()
                return


@pytest.mark.parametrize("delay_ms", moments(0, 1, 20, others=(5, 60)))
def test_engine_killed_in_a_merge_loses_nothing(tmp_path, delay_ms):
    """Catches a merged file that is named before it is whole, or sources deleted too early."""
    shim = RocksDBShim(tmp_path, rocksdb_merge_min_files=2)
    with EngineProcess(shim.scratch) as engine:
        for number in range(6):
            shim.commit(engine, rows(*range(number * 3000, (number + 1) * 3000)))
        arguments = {**shim.load(), "snapshot": True, "cleanup": True}
        with killed_in(engine, delay_ms):
            engine.call("maintain", **arguments)
        engine.process.wait()

    with EngineProcess(shim.scratch) as engine:
        engine.call("maintain", **arguments)
        shim.commit(engine, rows(18_000))
        assert in_view(shim.view(engine)) == values(*range(18_001))
    assert load(tmp_path / "ck", 7) == values(*range(18_001))
