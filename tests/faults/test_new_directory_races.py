"""Two commands that make one directory at once: the later has it, the earlier says so."""

import pytest

from statestore import Checkpoint, Savepoint
from statestore.core.errors import FencedError
from statestore.testing.checkpoints import read_checkpoint
from tests.checkpoints import OPTIONS, make_query, read_rows, restore
from tests.damaged import make_small
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
