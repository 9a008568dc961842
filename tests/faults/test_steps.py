"""Every operation in place ends at any step: by a fault of the storage, kill -9, loss of power.

Done again it gives the rows and files of one undisturbed run, and its history is true.
"""

from itertools import count, product

import pytest

from statestore.core.errors import InvalidArgumentError, NotFoundError, StorageError
from statestore.io.local import LocalFileIO
from tests.crash_io import CrashFileIO
from tests.fault_io import Fault, FaultFileIO
from tests.faults.steps import (
    CHANGES,
    OPERATIONS,
    copied,
    end_process,
    into_memory,
    is_killed,
    opened,
    original_of,
    standing,
    tree,
)


def marked(files):
    """The files where a kill behind the commit has left an edit's batch as it was planned.

    Then it stands as a batch of the query's: see `operations/batches.py`.
    """
    planned, committed = (f'"statestore.edit":"{word}"'.encode() for word in ("edit", "edited"))
    return {name: data.replace(planned, committed) for name, data in files.items()}


class Undisturbed:
    """What an operation starts from, and what one run of it makes of that."""

    def __init__(self, name, tmp_path):
        self.operation = OPERATIONS[name]
        self.path = original_of(name, tmp_path)
        self.num_entries = len(opened(self.path).history())
        self.before, self.tree_before = standing(self.path), tree(self.path)
        done = copied(self.path, tmp_path / "done")
        self.operation.run(opened(done))
        self.after, self.tree_after = standing(done), tree(done)
        assert self.tree_after != self.tree_before
        self.seen = []

    def check(self, path, io, step):
        """Check where an operation ended, and that it goes on or back from there."""
        end_process(path, io)
        self._note(path, io)
        if self.operation.take_back is not None and step % 2:
            self._take_back(path, io)
        else:
            self._repeat(path, io)
        assert opened(path, io).verify(deep=True).findings == ()

    def check_sides(self, *, in_order=True):
        """Check that it stood on every side: first as before, at last as after."""
        order = [self.before, "refused", self.after]
        assert self.before in self.seen
        assert self.after in self.seen
        numbers = [order.index(found) for found in self.seen]
        assert numbers == sorted(numbers) or not in_order

    def _note(self, path, io):
        found, files, entries = standing(path, io), tree(path, io), self._entries(path, io)
        self.seen.append(found)
        assert found in (self.before, "refused", self.after)
        assert len(entries) <= 1
        if files != self.tree_before:
            assert [entry.status for entry in entries] in (["begun"], ["done"])
        if [entry.status for entry in entries] == ["done"]:
            assert (found, files) == (self.after, self.tree_after)

    def _repeat(self, path, io):
        stood = self.seen[-1]
        try:
            self.operation.run(opened(path, io))
        except (InvalidArgumentError, NotFoundError):
            # It has been done: nothing is there to be done again.
            assert stood == self.after != self.before
        else:
            assert [entry.status for entry in self._entries(path, io)][:1] == ["done"]
        assert standing(path, io) == self.after
        if not self.operation.is_another:
            assert marked(tree(path, io)) == self.tree_after
            assert len(self._entries(path, io)) == 1

    def _take_back(self, path, io):
        try:
            self.operation.take_back(opened(path, io))
        except InvalidArgumentError:
            # Nothing of it is there to be taken back.
            assert self.seen[-1] == self.before
        assert standing(path, io) == self.before
        left = tree(path, io)
        assert {name: left.get(name) for name in self.tree_before} == self.tree_before
        # A reference file that nobody needs waits for the next cleanup.
        assert all(name.endswith(".ref") for name in left.keys() - self.tree_before.keys())

    def _entries(self, path, io):
        entries = opened(path, io).history()
        return entries[: len(entries) - self.num_entries]


@pytest.fixture(params=OPERATIONS)
def undisturbed(request, tmp_path):
    """An operation, and one run of it."""
    made = Undisturbed(request.param, tmp_path)
    made.name = request.param
    return made


@pytest.mark.parametrize(
    ("calls", "happens"),
    [
        pytest.param(CHANGES, True, id="reply-of-a-change-lost"),
        pytest.param((), False, id="any-call-fails", marks=pytest.mark.extended),
    ],
)
def test_step_that_a_fault_ends_is_true_and_can_be_repeated(undisturbed, tmp_path, calls, happens):
    """Catches a call after whose failure rows are half changed, or nobody knows or can go on."""
    for step in count():
        copy = copied(undisturbed.path, tmp_path / "copy")
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(step, happens, calls))
        try:
            undisturbed.operation.run(opened(copy, io))
        except StorageError:
            assert io.has_failed
        if not io.has_failed:
            break
        undisturbed.check(copy, LocalFileIO(), step)
    # How many files are read first, several at a time, is not the same in each run.
    undisturbed.check_sides(in_order=calls == CHANGES)


OTHERS = ("rescale-to-one", "edit-v2", "repair-behind-a-rescale")
KILLED = [
    pytest.param(name, marks=pytest.mark.extended) if name in OTHERS else name
    for name in OPERATIONS
]


@pytest.mark.parametrize("undisturbed", KILLED, indirect=True)
@pytest.mark.few(4)
def test_step_that_is_killed_is_true_and_can_be_repeated(undisturbed, tmp_path):
    """Catches a step that only an orderly end completes: the process dies by signal 9."""
    for step in count():
        copy = copied(undisturbed.path, tmp_path / "copy")
        if not is_killed(undisturbed.name, copy, step):
            break
        undisturbed.check(copy, LocalFileIO(), step)
    undisturbed.seen.append(standing(copy))
    undisturbed.check_sides()


ADDING = [name for name, operation in OPERATIONS.items() if not operation.deletes]


@pytest.mark.parametrize(
    ("undisturbed", "keeps_deletes"),
    [*product(ADDING, [False]), *product(OPERATIONS, [True])],
    indirect=["undisturbed"],
)
@pytest.mark.few(6)
def test_step_that_loses_power_is_true_and_can_be_repeated(undisturbed, tmp_path, keeps_deletes):
    """Catches an entry of a log that reaches the disk before the state it stands for, and what is
    deleted before what stands for it is there."""
    for step in count():
        cache = tmp_path / f"cache-{step}"
        cache.mkdir()
        memory = CrashFileIO(str(cache), keeps_deletes=keeps_deletes)
        path = into_memory(undisturbed.path, memory)
        io = FaultFileIO(memory)
        io.arm(Fault(step, happens=True, calls=CHANGES))
        try:
            undisturbed.operation.run(opened(path, io))
        except StorageError:
            assert io.has_failed
        if not io.has_failed:
            break
        memory.crash()
        undisturbed.check(path, memory, step)
    undisturbed.check_sides()
