"""A savepoint or restore whose process is killed with -9: either side is whole."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statestore import Savepoint
from statestore.core.errors import StateStoreError
from statestore.io.local import LocalFileIO
from statestore.operations.savepoint.savepoint import open_savepoint
from statestore.testing.fault_io import Fault, FaultFileIO
from tests.checkpoints import OPTIONS, files_below, query_of, read_rows
from tests.seams import at, place_of

CHILD = """
import os, signal, sys
from statestore.io.local import LocalFileIO
from statestore.testing.fault_io import FaultFileIO
from tests.faults.test_savepoint_kill import OPERATIONS

class Killer(FaultFileIO):
    def _run(self, call, path, action):
        if len(self.trace) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._run(call, path, action)

OPERATIONS[sys.argv[1]](sys.argv[2], Killer(LocalFileIO()))
"""


def savepoint(root, io):
    """Take a savepoint."""
    at(f"{root}/query", options=OPTIONS, io=LocalFileIO()).savepoint(
        at(f"{root}/new", options=OPTIONS, io=io)
    )


def restore(root, io):
    """Restore one, on another state backend and parallelism."""
    plan = at(f"{root}/savepoint", kind=Savepoint, options=OPTIONS, io=LocalFileIO()).plan_restore(
        at(f"{root}/new", options=OPTIONS, io=io), backend="rocksdb", num_partitions=4
    )
    plan.run()


OPERATIONS = {"savepoint": savepoint, "restore": restore}


@pytest.mark.parametrize("name", OPERATIONS)
def test_either_side_is_whole_when_the_process_is_killed(tmp_path, name):
    """Catches what only an end without any cleaning up leaves: half a directory taken for whole."""
    query = query_of(tmp_path / "query", num_partitions=2)
    for batch in range(2):
        query.run_batch({f"key-{number}": str(batch) for number in range(20)})
    at(query.path, options=OPTIONS).savepoint(tmp_path / "savepoint")
    before = {part: files_below(tmp_path / part) for part in ("query", "savepoint")}
    counted = FaultFileIO(LocalFileIO())
    counted.arm(Fault(10**9))
    # All in one place: how many calls are made depends on the directories above it.
    root = tmp_path / "root"
    root.mkdir()
    for part in ("query", "savepoint"):
        (root / part).symlink_to(tmp_path / part)
    OPERATIONS[name](root, counted)
    num_calls = len(counted.trace)

    for call in (2, num_calls // 3, num_calls // 2, num_calls - 1):
        # One that was begun takes other calls than were counted.
        shutil.rmtree(root / "new", ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-c", CHILD, name, str(root), str(call)],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        with pytest.raises(StateStoreError):
            read_rows(root / "new")
        with pytest.raises(StateStoreError), open_savepoint(place_of(root / "new")):
            pass

    OPERATIONS[name](root, FaultFileIO(LocalFileIO()))
    assert read_rows(root / "new") == query.expected()
    assert not [name for name in files_below(root / "new") if "/.tmp-" in f"/{name}"]
    after = {part: files_below(tmp_path / part) for part in before}
    pins = [path for path in after["query"] if path.endswith(".pin")]
    assert bool(pins) == (name == "savepoint")  # of the killed ones: they expire
    for path in pins:
        del after["query"][path]
    assert after == before
