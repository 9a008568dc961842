"""The change feed of the rocksdb backend: which changes are known, and whose files it leaves."""

import shutil
from pathlib import Path

import pytest

from statestore.testing.engine_process import EngineProcess
from tests.shim import RocksDBShim, rows


def test_changes_of_versions_written_whole_are_refused(tmp_path):
    """Catches a change feed that shows the state as changes."""
    shim = RocksDBShim(tmp_path, rocksdb_incremental=False)
    with EngineProcess(shim.scratch) as engine:
        for number in range(3):
            shim.commit(engine, rows(number))
        with pytest.raises(AssertionError, match="written whole"):
            engine.call(
                "changes",
                store=shim.store,
                backend="rocksdb",
                start_version=1,
                end_version=3,
                directory=f"{shim.scratch}/changes-1",
                options=shim.options,
            )


def test_changes_leave_files_only_where_the_reader_removes_them(tmp_path):
    """Catches a change feed that leaves something on the local disk, done, failed or killed."""
    shim = RocksDBShim(tmp_path)
    directory = Path(shim.scratch, "changes-1")

    def changes(first):
        return engine.request(
            "changes",
            store=shim.store,
            backend="rocksdb",
            start_version=first,
            end_version=3,
            directory=str(directory),
            options=shim.options,
        )

    with EngineProcess(shim.scratch) as engine:
        for number in range(3):
            shim.commit(engine, rows(number))
        before = set(Path(shim.scratch).rglob("*"))
        assert changes(0)["error"]["class"] == "NotFoundError"
        shutil.rmtree(directory)
        assert set(Path(shim.scratch).rglob("*")) == before
        files = changes(2)["ok"]["files"]
        engine.kill()
    with EngineProcess(shim.scratch) as engine:
        repeated = changes(2)["ok"]["files"]
        left = set(Path(shim.scratch).rglob("*")) - before

    assert [file["version"] for file in files] == [2, 3]
    assert repeated == files
    assert left == {directory, *(Path(file["path"]) for file in files)}
