"""A promote and a copy of the checkpoint, each begun while the other is at work."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager, suppress
from itertools import count

import pytest

from statestore import Checkpoint, Savepoint
from statestore.core.errors import FencedError, IncompatibleError, InUseError, NotFoundError
from statestore.io import storage
from statestore.io.local import LocalFileIO
from statestore.operations import copied_files, dealing
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.metadata_file import unfinished_operation
from statestore.operations.writing.decide import decide_edit
from statestore.testing.checkpoints import read_checkpoint
from tests.checkpoints import files_below
from tests.faults.promoting import FAULTS, World
from tests.faults.steps import counted
from tests.made_trials import tried_with_rows
from tests.seams import at, place_of


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.extended)])
def made(request, tmp_path):
    """A directory with a checkpoint and a trial, and their rows."""
    return tried_with_rows(tmp_path / "original", request.param)


def copy_beside(world, how, monkeypatch, meanwhile):
    """Copy the checkpoint; when the files of state partition 0 are copied, do something once."""
    monkeypatch.setattr(copied_files, "_MAX_COPIES_AT_ONCE", 1)
    acts = [meanwhile]

    class Acting(LocalFileIO):
        def fetch(self, path):
            self._act(path)
            return super().fetch(path)

        def link(self, path, new_path, *, sync):
            self._act(path)
            super().link(path, new_path, sync=sync)

        def _act(self, path):
            if "/checkpoint/state/0/1/" in path and ".delta." in path and acts:
                acts.pop()()

    source, new = at(str(world.root / "checkpoint"), io=Acting()), world.root / "copy"
    try:
        if how == "branch":
            source.branch(at(str(new), io=Acting()))
        else:
            source.savepoint(new, form=how)
    finally:
        assert not acts


@pytest.mark.parametrize("how", ["native", "branch"])
def test_copy_that_a_promote_overtakes_is_never_half_of_each(made, tmp_path, monkeypatch, how):
    """Catches a savepoint of old and new rows, finished and found whole by `verify`."""
    original, old, new = made
    world = World(original, tmp_path / "world")

    def promote():  # as where the storage takes no pins
        for pin in (world.root / "checkpoint").rglob("*.pin"):
            pin.unlink()
        world.trial.promote(world.root / "before")

    if how == "branch":
        with pytest.raises((FencedError, NotFoundError), match=r"lineage-broken|file-not-found"):
            copy_beside(world, how, monkeypatch, promote)
        assert unfinished_operation(LocalFileIO(), str(world.root / "copy")) == "branch"
    else:  # a savepoint is begun anew, as after an expiry
        copy_beside(world, how, monkeypatch, promote)
        assert read_checkpoint(str(world.root / "copy")) == new

    assert world.stands == new
    assert read_checkpoint(str(world.root / "before")) == old


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
def test_rows_that_are_read_beside_a_promote_are_never_half_of_each(tmp_path, monkeypatch, backend):
    """Catches a savepoint of old rows of one state partition, and new ones of the next."""
    original, old, new = tried_with_rows(tmp_path / "original", 1, backend)
    world, acts = World(original, tmp_path / "world"), [True]
    monkeypatch.setattr(dealing, "states_at_once", lambda: 1)

    class Acting(LocalFileIO):
        def fetch(self, path):
            file = super().fetch(path)
            if "/checkpoint/state/0/0/" in path and "3.delta." in path and acts:
                acts.pop()
                for pin in (world.root / "checkpoint").rglob("*.pin"):
                    pin.unlink()  # as where the storage takes none
                world.trial.promote(world.root / "before")
            return file

    source = at(str(world.root / "checkpoint"), io=Acting())
    source.savepoint(world.root / "copy", form="canonical")

    assert not acts
    assert Savepoint(world.root / "copy").verify(deep=True).findings == ()
    assert read_checkpoint(str(world.root / "copy")) == new
    assert read_checkpoint(str(world.root / "before")) == old


@pytest.mark.parametrize("how", ["native", "branch"])
def test_promote_is_refused_while_a_copy_is_made(made, tmp_path, monkeypatch, how):
    """Catches a copy that fails since the files that it holds back are deleted."""
    original, old, new = made
    world = World(original, tmp_path / "world")

    def promote():
        for dry_run in (True, False):
            with pytest.raises(InUseError, match="somebody reads the files"):
                world.trial.promote(world.root / "before", dry_run=dry_run)

    copy_beside(world, how, monkeypatch, promote)

    assert read_checkpoint(str(world.root / "copy")) == world.stands == old
    world.trial.promote(world.root / "before")
    assert world.stands == new


def test_edit_that_was_decided_before_a_promote_is_refused(made, tmp_path):
    """Catches a version on top of files that are gone: the promoted one has the same number."""
    original, _, new = made
    world = World(original, tmp_path / "world")
    with open_checkpoint(place_of(str(world.root / "checkpoint"))) as opened:
        edit = decide_edit(
            opened,
            "0",
            delete="key.k < 5",
            upsert=None,
            watermark_ms=None,
            expire=None,
            older_than=None,
            all_rows=False,
        )
        world.trial.promote(world.root / "before")

        with pytest.raises(InUseError, match="operation='promote'"):
            edit.run()

    assert world.stands == new
    assert Checkpoint(world.root / "checkpoint").verify(deep=True).findings == ()


class Beside(LocalFileIO):
    """A local disk that does something once, before the call of a number, from 0."""

    def __init__(self, number, act):
        super().__init__()
        self._num_left, self._act = number, act
        self._lock = threading.Lock()

    @property
    def has_acted(self):
        return self._act is None

    def count(self):
        with self._lock:
            self._num_left -= 1
            if self._act is None or self._num_left >= 0:
                return
            act, self._act = self._act, None
        act()


for _name in (*FAULTS, "list", "list_tree", "read_tail", "read_range", "fetch", "fetch_slices"):
    setattr(Beside, _name, counted(_name))


@contextmanager
def on_disk(monkeypatch, disk):
    """Have every local disk of a block be one; yield it."""
    with monkeypatch.context() as patched:
        patched.setattr(storage, "LocalFileIO", lambda **_: disk)
        yield disk


def copied(world, how):
    """Copy the checkpoint; return the rows of the copy, None where it is refused, or has ended."""
    checkpoint, new = Checkpoint(world.root / "checkpoint"), world.root / "copy"
    try:
        if how == "branch":
            checkpoint.branch(new)
        else:
            checkpoint.savepoint(new, form=how)
    except (FencedError, IncompatibleError, InUseError, NotFoundError):
        is_marked = new.exists() and unfinished_operation(LocalFileIO(), str(new)) is not None
        assert is_marked or not files_below(str(new))
        return None
    kind = Checkpoint if how == "branch" else Savepoint
    assert kind(new).verify(deep=True).findings == ()
    return read_checkpoint(str(new))


HOW = ["native", pytest.param("canonical", marks=pytest.mark.extended), "branch"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.extended)])
def test_promote_before_any_call_of_a_copy_is_refused_or_seen(
    made, tmp_path, monkeypatch, how, every
):
    """Catches a copy of old and new rows, or a promote that is refused when no copy is made."""
    original, old, new = made
    for number in count(random.randrange(every), every):
        world, promoted = World(original, tmp_path / "world"), []

        def promote(world=world, promoted=promoted):
            with suppress(InUseError):
                world.trial.promote(world.root / "before")
                promoted.append(True)

        with on_disk(monkeypatch, Beside(number, promote)) as disk:
            rows = copied(world, how)
        assert rows in ((old, new, None) if promoted else (old,))
        assert world.stands == (new if promoted else old)
        if not promoted:
            world.trial.promote(world.root / "before")
        assert world.stands == new
        assert read_checkpoint(str(world.root / "before")) == old
        world.check_whole()
        if not disk.has_acted:
            break


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.extended)])
def test_copy_before_any_call_of_a_promote_is_refused_or_whole(
    made, tmp_path, monkeypatch, how, every
):
    """Catches a copy of a promote that is half done, or a promote that a copy lets fail."""
    original, old, new = made
    seen = []
    for number in count(random.randrange(every), every):
        world, rows = World(original, tmp_path / "world"), []
        copying = Beside(number, lambda world=world, rows=rows: rows.append(copied(world, how)))
        with on_disk(monkeypatch, copying) as disk:
            world.trial.promote(world.root / "before")
        assert world.stands == new
        assert read_checkpoint(str(world.root / "before")) == old
        world.check_whole()
        if not disk.has_acted:
            break
        seen.append([old, None, new].index(*rows))
    assert seen == sorted(seen)
