"""Two commands that make one directory at once: the later has it, the earlier says so."""

import json
from pathlib import Path

import pytest

from statestore import Checkpoint, Savepoint
from statestore.core.errors import FencedError, StorageError
from statestore.io.local import LocalFileIO
from statestore.testing.checkpoints import QUERY_ID, read_checkpoint
from tests.checkpoints import OPTIONS, make_query, read_rows, restore
from tests.damaged import make_small
from tests.fault_io import Fault, FaultFileIO
from tests.faults.steps import Still
from tests.seams import Meanwhile, at


def save(query, target, form, report):
    at(query.path, options=OPTIONS).savepoint(target, form=form, progress=report)


def restore_from(savepoint, target, num_partitions, report):
    at(savepoint, kind=Savepoint, options=OPTIONS).restore(
        target, num_partitions=num_partitions, progress=report
    )


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("form", ["canonical", "native"])
def test_earlier_savepoint_is_fenced_when_another_begins_there(tmp_path, backend, form):
    """Catches an error about files of ours that the other command deleted."""
    query = make_query(tmp_path / "query", num_partitions=16, backend=backend)
    target = str(tmp_path / "savepoint")

    with pytest.raises(FencedError, match="begun anew by another process"):
        save(query, target, form, Meanwhile(lambda: save(query, target, form, lambda *_: None)))

    assert Checkpoint(target).verify(deep=True).findings == ()
    restore(target, tmp_path / "again")
    assert read_rows(tmp_path / "again") == query.expected()


@pytest.mark.parametrize("num_partitions", [16, 8, 6], ids=["same", "by key groups", "rehashed"])
def test_earlier_restore_is_fenced_when_another_begins_there(tmp_path, num_partitions):
    """Catches the advice to look for whoever deletes files, where it was this command."""
    made = make_small(tmp_path, 3, num_partitions=16)
    savepoint, target = str(tmp_path / "savepoint"), str(tmp_path / "again")
    at(made.path, options=OPTIONS).savepoint(savepoint)

    def again():
        restore_from(savepoint, target, num_partitions, lambda *_: None)

    with pytest.raises(FencedError, match="begun anew by another process"):
        restore_from(savepoint, target, num_partitions, Meanwhile(again))

    assert Checkpoint(target).verify(deep=True).findings == ()
    assert read_checkpoint(target) == made.expected()


class LateMetadata(LocalFileIO):
    """The disk of a process that stands still in the write that makes a directory whole."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def write(self, path, data, *, sync, overwrite):
        if path.endswith("/again/metadata") and b"unfinished" not in data:
            self.act()
        super().write(path, data, sync=sync, overwrite=overwrite)


def test_claimed_savepoint_stays_when_another_restore_has_cleared_what_was_made(tmp_path):
    """Catches a savepoint that is deleted, and of the restored checkpoint nothing is left."""
    made = make_small(tmp_path, 3, num_partitions=2)
    savepoint, target = str(tmp_path / "savepoint"), str(tmp_path / "again")
    at(made.path, options=OPTIONS).savepoint(savepoint)

    def clear():
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(0, happens=False, calls=("publish",)))
        with pytest.raises(StorageError):
            at(savepoint, kind=Savepoint, options=OPTIONS).restore(at(target, io=io))

    late = at(target, io=LateMetadata(clear))
    with pytest.raises(FencedError, match="begun anew by another process"):
        at(savepoint, kind=Savepoint, options=OPTIONS).restore(late, claim=True)

    assert Checkpoint(savepoint).verify(deep=True).findings == ()


def test_restore_that_begins_while_another_ends_clears_nothing(tmp_path):
    """Catches a whole checkpoint that loses its state to one who found it unfinished."""
    made = make_small(tmp_path, 3, num_partitions=2)
    savepoint, target = str(tmp_path / "savepoint"), str(tmp_path / "again")
    at(made.path, options=OPTIONS).savepoint(savepoint)
    whole = []

    class Between(LocalFileIO):
        """Where the write of another process lands behind the mark that it is begun anew."""

        def write(self, path, data, *, sync, overwrite):
            super().write(path, data, sync=sync, overwrite=overwrite)
            if path == f"{target}/metadata" and whole:
                Path(path).write_bytes(whole[0])

    def begin_another():
        metadata = Path(target, "metadata")
        before = metadata.read_bytes()
        whole.append(json.dumps({"id": QUERY_ID}).encode())
        with pytest.raises(FencedError, match="begun anew by another process"):
            at(savepoint, kind=Savepoint, options=OPTIONS).restore(at(target, io=Between()))
        metadata.write_bytes(before)
        whole.clear()

    late = at(target, io=LateMetadata(begin_another))
    at(savepoint, kind=Savepoint, options=OPTIONS).restore(late)

    assert Checkpoint(target).verify(deep=True).findings == ()
    assert read_checkpoint(target) == made.expected()


def test_earlier_branch_is_fenced_when_another_begins_there(tmp_path):
    """Catches a branch that is finished by two commands."""
    query = make_query(tmp_path / "query")
    target = str(tmp_path / "branch")

    def branch(report):
        at(query.path, options=OPTIONS).branch(target, progress=report)

    with pytest.raises(FencedError, match="begun anew by another process"):
        branch(Meanwhile(lambda: branch(lambda *_: None)))

    assert Checkpoint(target).verify(deep=True).findings == ()
    assert read_rows(target) == query.expected()


def kill(act, fault, target):
    """Let an operation end at a fault; its directory is begun, and to be cleared."""
    killed = FaultFileIO(LocalFileIO())
    killed.arm(fault)
    with pytest.raises(StorageError):
        act(killed)
    Path(target, "left").write_bytes(b"")  # to be cleared last


@pytest.mark.parametrize("step", Still.STEPS)
def test_restore_that_stood_still_clears_nothing_of_one_that_ended(tmp_path, step):
    """Catches a checkpoint that loses its state when the savepoint that it was made of is gone."""
    made = make_small(tmp_path, 3, num_partitions=8)
    savepoint, target = str(tmp_path / "savepoint"), str(tmp_path / "again")
    at(made.path, options=OPTIONS).savepoint(savepoint)

    def claim(io=None):
        at(savepoint, kind=Savepoint, options=OPTIONS).restore(at(target, io=io), claim=True)

    kill(claim, Fault(5, happens=False, calls=("link",)), target)

    still = Still(target, step, claim)
    with pytest.raises(FencedError, match="begun anew"):
        claim(still)

    assert not still.act
    assert not Path(savepoint).exists()
    assert Checkpoint(target).verify(deep=True).findings == ()
    assert read_checkpoint(target) == made.expected()


@pytest.mark.parametrize("step", Still.STEPS)
def test_savepoint_that_stood_still_clears_nothing_of_one_that_ended(tmp_path, step):
    """Catches a savepoint that was whole, and has no state when it is needed."""
    made = make_small(tmp_path, 3, num_partitions=8)
    target = str(tmp_path / "savepoint")

    def save(io=None):
        at(made.path, options=OPTIONS).savepoint(at(target, io=io))

    kill(save, Fault(6, happens=False, calls=("publish",)), target)

    still = Still(target, step, save)
    with pytest.raises(FencedError, match="begun anew"):
        save(still)

    assert not still.act
    assert Checkpoint(target).verify(deep=True).findings == ()
    assert read_checkpoint(target) == made.expected()


def test_claimed_savepoint_stays_while_another_restore_clears_what_was_made(tmp_path):
    """Catches a savepoint that is deleted, where the state is cleared and the logs not yet."""
    made = make_small(tmp_path, 3, num_partitions=2)
    savepoint, target = str(tmp_path / "savepoint"), str(tmp_path / "again")
    at(made.path, options=OPTIONS).savepoint(savepoint)

    def clear_one():
        delta = next(Path(target).glob("state/0/1/*.delta.*"))
        delta.unlink()

    late = at(target, io=LateMetadata(clear_one))
    with pytest.raises(FencedError, match="begun anew by another process"):
        at(savepoint, kind=Savepoint, options=OPTIONS).restore(late, claim=True)

    assert Checkpoint(savepoint).verify(deep=True).findings == ()
