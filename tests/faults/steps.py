"""Every operation that changes a checkpoint in place, and what is found where it ended early."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from statestore import Checkpoint
from statestore.checkpoint.layout import lease_directory
from statestore.core.errors import StateStoreError
from statestore.io.file_io import unasked
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.testing.checkpoints import read_checkpoint
from tests.checkpoints import OPTIONS, query_of
from tests.damaged import NOW, deltas, flip
from tests.rescaled import KEYED, MUTATIONS, make
from tests.seams import at, place_of

KEY = 5
CHANGES = (*MUTATIONS, "delete_files")
_ID = re.compile(rb"[0-9a-f]{32}|\d{13}")
processes = multiprocessing.get_context("forkserver")
"""Of those that are killed: each begins with everything imported, and takes milliseconds."""
processes.set_forkserver_preload(["tests.attack.preloaded", "tests.faults.test_copies"])


@dataclass(frozen=True)
class Operation:
    """An operation, and the checkpoint it is tried on.

    Attributes:
        run: Does it.
        prepare: Changes a checkpoint of three batches first.
        checkpoint_format, num_partitions: Of the checkpoint.
        take_back: Does the opposite, from wherever it ended; None where nothing does.
        is_another: Whether it is refused, or makes one version more, when it is done again after
            it counted and before its end: what is left to do then is not done.
        deletes: Whether it deletes files: those may be there again when power is lost.
    """

    run: Callable
    prepare: Callable = lambda _made: None
    checkpoint_format: int = 1
    num_partitions: int = 2
    take_back: Callable | None = None
    is_another: bool = False
    deletes: bool = False


def _rescaled(made):
    Checkpoint(made.path).rescale(3)


def _damaged(made):
    for number in range(2):
        made.run_batch({number: 77})
    flip(deltas(made, 4)[0])


def _damaged_after_a_rescale(made):
    Checkpoint(made.path).rescale(4)
    made.run_batch({1: 77})
    rescaled = deltas(made, 4)[-1]  # after its reference files
    rescaled.write_bytes(rescaled.read_bytes()[:-9] + bytes(9))


def rescale(to):
    """A rescale, which an undo takes back."""
    return {"run": lambda found: found.rescale(to), "take_back": Checkpoint.undo_rescale}


OPERATIONS = {
    "rescale-by-key-groups": Operation(**rescale(4)),
    "rescale-to-one": Operation(**rescale(1), checkpoint_format=2),
    "rescale-by-rehash": Operation(**rescale(3)),
    "undo": Operation(
        Checkpoint.undo_rescale,
        _rescaled,
        checkpoint_format=2,
        take_back=lambda found: found.rescale(3),
        deletes=True,
    ),
    "edit": Operation(lambda found: found.edit(delete=pa.table({"key.k": [KEY]}), watermark_ms=7)),
    "edit-v2": Operation(
        lambda found: found.edit(delete=pa.table({"key.k": [KEY]})), checkpoint_format=2
    ),
    "forget": Operation(
        lambda found: found.forget(f"k = {KEY}"), checkpoint_format=2, is_another=True, deletes=True
    ),
    "repair": Operation(Checkpoint.repair, _damaged, deletes=True),
    "repair-behind-a-rescale": Operation(Checkpoint.repair, _damaged_after_a_rescale, deletes=True),
    "compact": Operation(Checkpoint.compact, checkpoint_format=2),
    "expire": Operation(lambda found: found.expire(2), deletes=True),
}


def original_of(name, tmp_path):
    """Make the checkpoint on which an operation is tried; return its directory."""
    operation = OPERATIONS[name]
    if name == "expire":
        query = query_of(tmp_path / "checkpoint", num_partitions=2, options=OPTIONS)
        for number in range(7):
            query.run_batch({f"key {key}": number for key in range(40)}, snapshot=number in (3, 5))
        return query.path
    made = make(
        tmp_path,
        operators=KEYED,
        num_partitions=operation.num_partitions,
        checkpoint_format=operation.checkpoint_format,
    )
    operation.prepare(made)
    return made.path


def opened(path, io=None):
    """The checkpoint as an operation sees it."""
    return at(str(path), io=io or LocalFileIO(), options=NOW)


def tree(path, io=None):
    """Every file that counts by name, and the bytes of those that are no state file.

    IDs of attempts and times are left out, and so are the history and what is being written.
    """
    io = io or LocalFileIO()
    found = {}
    for info in io.list_tree(str(path)):
        name = info.name
        if name.startswith(("statestore-leases", "statestore-history")) or ".tmp-" in name:
            continue
        is_state = name.startswith("state/") and "_metadata" not in name
        data = b"" if is_state else io.read_tail(f"{path}/{name}", 1 << 30)[0]
        found[_ID.sub(b"ID", name.encode()).decode()] = _ID.sub(b"ID", data)
    return found


def standing(path, io=None):
    """What a query goes on from: state partitions and rows; or that it is refused, or damaged."""
    with open_checkpoint(place_of(str(path), io=io)) as checkpoint:
        planned, version = checkpoint.newest_planned, checkpoint.newest_version
        num_partitions = checkpoint.num_partitions_at(version)
        is_planned = planned != checkpoint.newest_committed
        if is_planned and checkpoint.num_partitions_at(planned + 1) != num_partitions:
            return "refused"
    try:
        return num_partitions, read_checkpoint(str(path), io=io)
    except StateStoreError:
        return "damaged"


def copied(original, copy):
    """Put a fresh copy of a checkpoint in place of one that was tried on."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    return copy


class Still(LocalFileIO):
    """The disk of a process that stands still at a step of beginning a directory anew.

    Attributes:
        act: What happens meanwhile; None where it has happened.
    """

    STEPS = ("look", "mark", "clear 0", "clear 1", "clear 7", "last")

    def __init__(self, directory, step, act):
        super().__init__()
        self._directory = directory
        self._step = step
        self._num_asked = 0
        self.act = act

    def _reach(self, step):
        if step == self._step and self.act:
            act, self.act = self.act, None
            act()

    def make_directory(self, directory):
        """See FileIO."""
        if directory == self._directory:
            self._reach("look")
        super().make_directory(directory)

    def delete(self, path):
        """See FileIO."""
        if path == f"{self._directory}/.metadata.crc":
            self._reach("mark")
        super().delete(path)

    def delete_tree(self, directory, ask=unasked):
        """See TreeFileIO."""

        def stand_still():
            self._reach(f"clear {self._num_asked}")
            self._num_asked += 1
            ask()

        super().delete_tree(directory, stand_still)

    def list(self, directory):
        """See FileIO."""
        found = super().list(directory)
        if directory == self._directory and self._num_asked:
            self._reach("last")
        return found


class Stepped(LocalFileIO):
    """A local disk that calls a function before each of its changes, with their number."""

    def __init__(self, before):
        super().__init__()
        self.num_changes = 0
        self._before = before

    def count(self):
        """Call the function."""
        self.num_changes += 1
        self._before(self.num_changes - 1)


def counted(name):
    """Return a call of a local disk that is counted before."""

    def call(self, *args, **named):
        self.count()
        return getattr(LocalFileIO, name)(self, *args, **named)

    return call


for _name in CHANGES:
    setattr(Stepped, _name, counted(_name))


class Killer(Stepped):
    """A local disk whose process dies before one of its changes."""

    def __init__(self, lives):
        super().__init__(self._die)
        self._lives = lives

    def _die(self, number):
        if number >= self._lives:
            os.kill(os.getpid(), signal.SIGKILL)


def _run_and_die(name, path, lives):
    OPERATIONS[name].run(opened(path, Killer(lives)))


def is_killed(name, path, lives):
    """Do an operation in a process that dies after some changes; whether it came to that."""
    process = processes.Process(target=_run_and_die, args=(name, str(path), lives))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def end_process(path, io):
    """Let the lease of an operation that failed go, as the end of its process does."""
    directory = lease_directory(f"{path}/state")
    for info in io.list(directory):
        io.delete(f"{directory}/{info.name}")


def into_memory(original, io):
    """Put a checkpoint on a storage in memory."""
    for file in Path(original).rglob("*"):
        if file.is_file():
            name = file.relative_to(original)
            io.write(f"/ck/{name}", file.read_bytes(), sync=True, overwrite=True)
    return "/ck"
