"""Edits in place and forgotten keys that end at any step: a fault of the storage, kill -9."""

import json
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import Checkpoint
from statestore.core.errors import NotFoundError, StorageError
from statestore.io.local import LocalFileIO
from statestore.testing.checkpoints import read_checkpoint, unsafe_row
from statestore.testing.fault_io import Fault, FaultFileIO
from tests.rescaled import KEYED, MUTATIONS, end_process, listing, make, newest
from tests.seams import at

EXTENDED = pytest.mark.extended
OTHERS = [("edit", 2), ("forget", 1)]
KEY = 5
STEPS = (*MUTATIONS, "delete_files")
OPERATIONS = {
    "edit": lambda checkpoint: checkpoint.edit_in_place(
        delete=pa.table({"key.k": [KEY]}), watermark_ms=7
    ),
    "forget": lambda checkpoint: checkpoint.forget(f"k = {KEY}"),
}


def is_edited(copy, expected):
    """Whether the next batch goes on from edited rows; any other state is neither."""
    found = read_checkpoint(str(copy))
    if found == expected:
        return False
    rest = {name: dict(rows) for name, rows in expected.items()}
    for rows in rest.values():
        rows.pop(unsafe_row(KEY))
    assert found == rest
    assert newest(copy, "offsets") == newest(copy, "commits")
    return True


@pytest.mark.parametrize(
    ("operation", "checkpoint_format"),
    [("edit", 1), ("forget", 2), *(pytest.param(*one, marks=EXTENDED) for one in OTHERS)],
)
@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
def test_fault_at_every_step_leaves_old_or_edited_rows(
    tmp_path, operation, checkpoint_format, happens
):
    """Catches a step after whose failure rows are half edited, or that cannot be repeated."""
    made = make(tmp_path, checkpoint_format=checkpoint_format, operators=KEYED, num_partitions=2)
    expected = made.expected()
    copy = tmp_path / "copy"
    seen = []
    for index in range(200):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made.path, copy)
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(index, happens, STEPS))
        try:
            OPERATIONS[operation](at(str(copy), io=io))
        except StorageError:
            assert io.has_failed
        if not io.has_failed:
            break
        end_process(copy)
        seen.append(is_edited(copy, expected))
        # Again; unless every file that had the key was deleted.
        with suppress(NotFoundError) if seen[-1] else nullcontext():
            OPERATIONS[operation](Checkpoint(copy))
        assert is_edited(copy, expected)
        if operation == "forget":
            keys = pa.table({"key.k": [KEY]})
            found = Checkpoint(copy).search_keys(keys)
            assert found.is_forgotten, found.describe()
    assert seen == sorted(seen)
    assert {*seen} == {False, True}


def paths_in(records, copy):
    """Paths of a certificate's files below a checkpoint."""
    return {Path(record["path"]).relative_to(copy).as_posix() for record in records}


def test_fault_at_every_step_leaves_a_certificate_of_what_was_begun(tmp_path):
    """Catches files that are gone and in no certificate, and one that cannot be completed."""
    made = make(tmp_path, operators=KEYED, num_partitions=2)
    keys = pa.table({"key.k": [KEY]})
    copy, file = tmp_path / "copy", tmp_path / "certificate.json"
    statuses = set()
    for index in range(200):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made.path, copy)
        file.unlink(missing_ok=True)
        before = {name for name in listing(copy) if name.endswith(".arrows")}
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(index, True, STEPS))
        with suppress(StorageError):
            at(str(copy), io=io).forget(keys=keys, certificate=file)
        if not io.has_failed:
            break
        end_process(copy)
        left = {*listing(copy)}
        status = json.loads(file.read_text())["status"] if file.exists() else None
        statuses.add(status)
        assert status or before <= left

        if status != "complete":
            done = Checkpoint(copy).forget(keys=keys, certificate=file)
            assert done.is_forgotten, done.describe()
        document = json.loads(file.read_text())
        assert document["status"] == "complete"
        assert document["num_rows"] == 1
        state = {name for name in listing(copy) if name.endswith(".arrows")}
        assert before - state <= paths_in(document["removed"], copy)
        assert state == paths_in(document["written"], copy)
    # The lease is taken before the certificate, and dropped behind it.
    assert {None, "begun"} <= statuses


KILLED = """
import os, signal, sys
from statestore.io.local import LocalFileIO
from tests.faults.test_edit_crash import OPERATIONS
from tests.seams import at

class Killer(LocalFileIO):
    calls = -int(sys.argv[2])

def counted(name):
    def call(self, *args, **named):
        Killer.calls += 1
        if Killer.calls > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(LocalFileIO, name)(self, *args, **named)
    return call

for name in ("publish", "write", "delete", "delete_files"):
    setattr(Killer, name, counted(name))
OPERATIONS[sys.argv[3]](at(sys.argv[1], io=Killer()))
"""


@pytest.mark.parametrize("operation", ["edit", pytest.param("forget", marks=EXTENDED)])
def test_kill_at_every_step_leaves_old_or_edited_rows(tmp_path, operation):
    """Catches a step that only an orderly end completes: the process dies by signal 9."""
    made = make(tmp_path, operators=KEYED, num_partitions=1)
    expected = made.expected()
    copy = tmp_path / "copy"
    seen = []
    for step in range(60):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made.path, copy)
        command = [sys.executable, "-c", KILLED, str(copy), str(step), operation]
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2]
        )
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        seen.append(is_edited(copy, expected))
    assert seen == sorted(seen)
    assert {*seen} == {False, True}
    assert is_edited(copy, expected)
