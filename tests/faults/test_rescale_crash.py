"""Rescale and undo that end at any step: by a fault of the storage, kill -9, loss of power."""

import shutil
import signal
import subprocess
import sys

import pytest

from statestore import Checkpoint
from statestore.core.errors import InvalidArgumentError, StorageError
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.testing.checkpoints import read_checkpoint
from statestore.testing.crash_io import CrashFileIO
from statestore.testing.fault_io import Fault, FaultFileIO
from tests.rescaled import (
    KEYED,
    MUTATIONS,
    assert_old_new_or_refused,
    end_process,
    listing,
    logged_partitions,
    make,
)
from tests.seams import at, place_of


def fails_on_copy(made, copy, fault, operation):
    """Begin an operation on a copy of a checkpoint; whether it met the fault."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(made.path, copy)
    io = FaultFileIO(LocalFileIO())
    io.arm(fault)
    try:
        operation(str(copy), io)
    except StorageError:
        assert io.has_failed
    if io.has_failed:
        end_process(copy)
    return io.has_failed


@pytest.mark.parametrize(("checkpoint_format", "num_partitions"), [(1, 4), (2, 1), (1, 3)])
@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
def test_fault_at_every_step_leaves_old_or_new_state(
    tmp_path, checkpoint_format, happens, num_partitions
):
    """Catches a step after whose failure a checkpoint cannot be finished, undone, or started."""
    made = make(tmp_path, checkpoint_format=checkpoint_format, operators=KEYED, num_partitions=2)
    original, expected = listing(made.path), made.expected()
    copy = tmp_path / "copy"
    seen = set()
    for index in range(200):
        for remedy in ("finish", "undo"):
            fault = Fault(index, happens, MUTATIONS)
            has_failed = fails_on_copy(
                made, copy, fault, lambda path, io: at(path, io=io).rescale(num_partitions)
            )
            if not has_failed:
                break
            state = assert_old_new_or_refused(copy, expected, 2, num_partitions)
            seen.add(state)
            if remedy == "finish":
                Checkpoint(copy).rescale(num_partitions)
                assert logged_partitions(copy, 3) == num_partitions
                assert read_checkpoint(str(copy)) == expected
                continue
            try:
                Checkpoint(copy).undo_rescale()
            except InvalidArgumentError:
                assert state == 2
            stray = {name for name in listing(copy).keys() - original if ".tmp-" not in name}
            assert all(name.endswith(".ref") for name in stray), stray
            assert {name: listing(copy)[name] for name in original} == original
        if not has_failed:
            break
    assert seen == {2, "refused", num_partitions}


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
def test_fault_at_every_step_of_undo_can_be_gone_on_from(tmp_path, happens):
    """Catches an undo after whose failure neither side is whole."""
    made = make(tmp_path, operators=KEYED, num_partitions=2, checkpoint_format=2)
    original, expected = listing(made.path), made.expected()
    Checkpoint(made.path).rescale(3)
    copy = tmp_path / "copy"
    seen = set()
    for index in range(200):
        for remedy in ("undo", "finish"):
            fault = Fault(index, happens, MUTATIONS)
            has_failed = fails_on_copy(
                made, copy, fault, lambda path, io: at(path, io=io).undo_rescale()
            )
            if not has_failed:
                break
            state = assert_old_new_or_refused(copy, expected, 2, 3)
            seen.add(state)
            if remedy == "finish":
                Checkpoint(copy).rescale(3)
                assert read_checkpoint(str(copy)) == expected
            elif state != 2:
                Checkpoint(copy).undo_rescale()
                assert listing(copy) == original
        if not has_failed:
            break
    assert seen == {3, "refused", 2}


KILLED = """
import os, signal, sys
from statestore.io.local import LocalFileIO
from tests.seams import at

class Killer(LocalFileIO):
    calls = -int(sys.argv[2])
    def count(self):
        Killer.calls += 1
        if Killer.calls > 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def publish(self, *args, **named):
        self.count()
        return super().publish(*args, **named)
    def write(self, *args, **named):
        self.count()
        return super().write(*args, **named)
    def delete(self, *args, **named):
        self.count()
        return super().delete(*args, **named)

at(sys.argv[1], io=Killer()).rescale(int(sys.argv[3]))
"""


@pytest.mark.parametrize(
    ("num_partitions", "way"),
    [(3, "rehash"), pytest.param(4, "key-groups", marks=pytest.mark.extended)],
)
def test_kill_at_every_step_leaves_old_or_new_state(tmp_path, num_partitions, way):
    """Catches a step that only an orderly end completes: the process dies by signal 9."""
    made = make(tmp_path, operators=KEYED, num_partitions=2, checkpoint_format=2)
    expected = made.expected()
    assert Checkpoint(made.path).plan_rescale(num_partitions).stores[0].way == way
    seen = []
    for step in range(60):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made.path, copy)
        command = [sys.executable, "-c", KILLED, str(copy), str(step), str(num_partitions)]
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        seen.append(assert_old_new_or_refused(copy, expected, 2, num_partitions))
        if step % 2:
            Checkpoint(copy).rescale(num_partitions)
        elif seen[-1] != 2:
            Checkpoint(copy).undo_rescale()
        assert read_checkpoint(str(copy)) == expected
    assert seen == sorted(seen, key=[2, "refused", num_partitions].index)
    assert {2, "refused"} <= set(seen)
    assert read_checkpoint(str(copy)) == expected


def test_power_loss_at_every_step_leaves_old_or_new_state(tmp_path):
    """Catches an entry of a log that reaches the disk before the state it stands for."""
    made = make(tmp_path, operators=KEYED, num_partitions=2)
    files = listing(made.path)
    for index in range(100):
        cache = tmp_path / f"cache-{index}"
        cache.mkdir()
        memory = CrashFileIO(str(cache))
        for name, data in files.items():
            memory.write(f"/ck/{name}", data, sync=True, overwrite=True)
        io = FaultFileIO(memory)
        io.arm(Fault(index, happens=True, calls=MUTATIONS))
        try:
            at("/ck", io=io).rescale(4)
        except StorageError:
            assert io.has_failed
        memory.crash()
        end_process("/ck", memory)
        with open_checkpoint(place_of("/ck", io=memory)) as checkpoint:
            is_refused = not checkpoint.is_between_batches
        if not is_refused:
            assert read_checkpoint("/ck", io=memory) == made.expected()
        at("/ck", io=memory).rescale(4)
        assert read_checkpoint("/ck", io=memory) == made.expected()
        if not io.has_failed:
            break
    else:
        pytest.fail("the rescale made more calls than this test knows")
