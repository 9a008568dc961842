"""Two attempts of one version in checkpoint format v1, and which of them counts."""

from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.codec.rows import PUT, Row
from statestore.core.errors import CorruptionError, FencedError
from tests.shim import Engine, RocksDBShim, Shim


def row(value):
    """The row that attempts differ in."""
    return [Row(3, 0, PUT, b"key", value)]


class Attempts:
    """Two executors that hold version 1 of a store, each with an engine of its own."""

    def __init__(self, directory, shim_class, **options):
        self.checkpoint = directory / "ck"
        Path(self.checkpoint / "commits").mkdir(parents=True)
        executors = [directory / name for name in ("winner", "late")]
        for executor in executors:
            executor.mkdir()
        root = f"file:{self.checkpoint}/state"
        self.shims = [shim_class(path, root=root, run="1", **options) for path in executors]
        self.engines = [Engine(shim.scratch) for shim in self.shims]
        self.engines[0].call("load", **self.shims[0].load(0))
        self.shims[0].commit(self.engines[0], row(b"first"))
        self.shims[1].parent, self.shims[1].num_keys = self.shims[0].parent, 1
        self.engines[1].call("load", **self.shims[1].load())

    def commit(self, index, value):
        """Commit version 2 by one of them and return the whole reply."""
        shim = self.shims[index]
        request = {**shim.request(row(value)), "num_keys": 1, "checkpoint_id": f"{index + 7:032x}"}
        reply = self.engines[index].request("commit", **request)
        if "ok" in reply:
            shim.committed(request, reply["ok"])
        return reply

    def end_batch(self, batch):
        """Do what Spark's driver does when all tasks of a batch have ended."""
        (self.checkpoint / "commits" / str(batch)).write_text("v1\n{}")

    def value(self):
        """The row of version 2 as a restart reads it."""
        with Checkpoint(self.checkpoint).open_store(version=2) as store:
            return store.get(b"key")


@pytest.fixture(params=[Shim, RocksDBShim], ids=["filesystem", "rocksdb"])
def shim_class(request):
    """Whose calls are made."""
    return request.param


@pytest.fixture(params=["in-checkpoint", "elsewhere"])
def attempts(request, tmp_path, shim_class):
    """Two attempts; the state is in the checkpoint directory, or on another storage."""
    elsewhere = {"checkpoint_storage": f"file:{tmp_path}/elsewhere"}
    return Attempts(tmp_path, shim_class, **(elsewhere if request.param == "elsewhere" else {}))


def test_committed_version_keeps_its_rows_when_a_late_attempt_commits_others(attempts):
    """Catches a late attempt whose rows replace those that the query's sink has."""
    assert "ok" in attempts.commit(0, b"winner")
    attempts.end_batch(1)

    error = attempts.commit(1, b"late")["error"]

    assert (error["class"], error["kind"]) == ("FencedError", "fenced")
    assert "committed_batch=1" in error["message"]
    assert "To fix: " in error["message"]
    assert attempts.value() == b"winner"
    # The one whose rows count goes on.
    attempts.shims[0].commit(attempts.engines[0], row(b"next"))


def test_committed_version_keeps_its_rows_when_its_entry_was_purged(attempts):
    """Catches a guard that ends with the entry, which Spark deletes before the files go."""
    assert "ok" in attempts.commit(0, b"winner")
    attempts.end_batch(5)

    assert attempts.commit(1, b"late")["error"]["class"] == "FencedError"
    assert attempts.value() == b"winner"


def test_late_attempt_with_equal_rows_is_harmless_when_the_batch_is_committed(attempts):
    """Catches a deterministic query that is told of rows which nobody changed."""
    assert "ok" in attempts.commit(0, b"same")
    attempts.end_batch(1)

    assert "ok" in attempts.commit(1, b"same")

    for index in (0, 1):
        attempts.shims[index].commit(attempts.engines[index], row(b"next"))


def test_version_is_replaced_when_its_batch_runs_again(attempts):
    """Catches a batch that failed after a store had committed, and can never be run again."""
    assert "ok" in attempts.commit(0, b"failed")
    attempts.end_batch(0)

    assert "ok" in attempts.commit(1, b"again")
    assert attempts.value() == b"again"


def test_store_opened_without_spark_keeps_a_committed_version(attempts):
    """Catches a guard that only the engine has."""
    with Checkpoint(attempts.checkpoint).open_store(version=1) as store:
        batch = store.begin()
        batch.put(b"key", b"late")
        assert "ok" in attempts.commit(0, b"winner")
        attempts.end_batch(1)

        with pytest.raises(FencedError, match="committed_batch=1"):
            batch.commit()
        assert store.version == 1
    assert attempts.value() == b"winner"


def test_file_that_an_attempt_published_twice_is_read_whichever_came_last(tmp_path, shim_class):
    """Catches a store that is lost when the upload of an engine that died ends after all."""
    shim = shim_class(tmp_path)
    died = Engine(shim.scratch)
    shim.commit(died, row(b"first"))
    died.call("commit", **{**shim.request(row(b"second")), "num_keys": 1})
    (path,) = (tmp_path / "ck/state/0/0").glob("2.delta.*")
    late = path.read_bytes()
    path.unlink()
    died.end()

    other = Engine(f"{shim.scratch}-other")
    request = {**shim.request(row(b"second")), "num_keys": 1}
    shim.committed(request, other.call("commit", **request))
    assert len(late) != path.stat().st_size, "the run proved nothing about sizes"
    shim.commit(other, [Row(4, 0, PUT, b"other", b"third")])
    path.write_bytes(late)

    with Checkpoint(tmp_path / "ck").open_store(version=3) as store:
        assert list(store.scan()) == [(b"key", b"second"), (b"other", b"third")]
        store.snapshot()
    path.write_bytes(late[:-1])
    with (
        pytest.raises(CorruptionError, match="truncated"),
        Checkpoint(tmp_path / "ck").open_store(version=2),
    ):
        pass


def begun(directory, shim_class, data):
    """A query whose first batch has left a damaged delta, its shim, and the delta."""
    shim = shim_class(directory, run="1")
    body = "sst" if shim_class is RocksDBShim else "arrows"
    path = directory / f"ck/state/0/0/1.delta.{body}"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    engine = Engine(shim.scratch)
    engine.call("load", **shim.load(0))
    return shim, engine, path


@pytest.mark.parametrize("data", [b"", b"half of a file"])
def test_damaged_first_version_is_replaced_when_its_batch_runs_again(tmp_path, shim_class, data):
    """Catches a query that no start brings on, for what a power failure left of its first batch."""
    shim, engine, _ = begun(tmp_path, shim_class, data)

    shim.commit(engine, row(b"again"))

    with Checkpoint(tmp_path / "ck").open_store(version=1) as store:
        assert store.get(b"key") == b"again"


def test_damaged_first_version_stays_when_its_batch_is_committed(tmp_path, shim_class):
    """Catches rows of a late attempt under a version whose own rows a repair might bring back."""
    shim, engine, path = begun(tmp_path, shim_class, b"half of a file")
    (tmp_path / "ck/commits").mkdir()
    (tmp_path / "ck/commits/0").write_text("v1\n{}")

    error = engine.request("commit", **shim.request(row(b"late")))["error"]

    assert error["class"] == "CorruptionError"
    assert path.read_bytes() == b"half of a file"
