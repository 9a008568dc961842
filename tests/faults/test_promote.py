"""A promote ends before any of its changes: the old or the new is what a query goes on from.

Between, no query starts; done again, it is the new, and dropped, the old. Both are whole always.
"""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from itertools import count

import pytest

from statestore import Checkpoint, Savepoint, Trial, upgrade
from statestore.checkpoint.layout import lease_directory
from statestore.core.errors import (
    FencedError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.io import storage
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import exclusive_use
from statestore.operations.new_directory import unfinished_operation
from statestore.operations.trial.record import (
    HISTORY,
    Compared,
    read_record,
    write_record,
)
from statestore.operations.trial.replacing import put_back, replace_by_branch
from statestore.testing.checkpoints import QUERY_ID, read_checkpoint
from statestore.testing.fault_io import Fault, FaultFileIO
from tests.faults.steps import CHANGES, Killer, processes
from tests.made_trials import tried
from tests.seams import place_of

FAULTS = (*CHANGES, "delete_tree", "link", "make_directory")


class World:
    """A checkpoint and its trial in a directory that is copied for each death.

    Attributes:
        root: The directory.
    """

    def __init__(self, original, root):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(original, root)
        self.root = root
        self.trial = Trial(root / "trial")
        io, record = LocalFileIO(), read_record(LocalFileIO(), str(root / "trial"))
        write_record(io, str(root / "trial"), record, checkpoint=str(root / "checkpoint"))

    def promote(self, io):
        """Do what a promote does before it tidies up, on a storage."""
        directory = str(self.root / "trial")
        replace_by_branch(
            read_record(LocalFileIO(), directory),
            place_of(str(self.root / "checkpoint"), io=io),
            place_of(f"{directory}/checkpoint", io=io),
            (io, directory),
            place_of(str(self.root / "before"), io=io),
        )

    def put_back(self, io):
        """Do what a drop does to a checkpoint whose promote did not end."""
        directory = str(self.root / "trial")
        put_back(
            read_record(LocalFileIO(), directory),
            place_of(str(self.root / "checkpoint"), io=io),
            place_of(str(self.root / "before"), io=io),
            (self.root / "trial" / HISTORY).read_bytes(),
        )

    def end_process(self):
        """Let the leases of an operation that failed go, as the end of its process does."""
        for name in ("checkpoint", "trial/checkpoint"):
            shutil.rmtree(lease_directory(str(self.root / name / "state")), ignore_errors=True)

    @property
    def stands(self):
        """What a query goes on from: its rows, or "refused"."""
        path = str(self.root / "checkpoint")
        if unfinished_operation(LocalFileIO(), path) is not None:
            return "refused"
        return read_checkpoint(path)

    def check_whole(self, version=3):
        """Check the checkpoint: a query's, whole, with its history."""
        ck = Checkpoint(self.root / "checkpoint")
        assert ck.verify(deep=True).findings == ()
        assert ck.info.newest_version == version
        with open_checkpoint(place_of(ck.uri)) as opened:
            assert opened.query_id == QUERY_ID
            assert opened.is_between_batches
        assert "compact" in [entry.operation for entry in ck.history()]


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.extended)])
def made(request, tmp_path):
    """A directory with a checkpoint and a trial, and their rows."""
    original = tmp_path / "original"
    original.mkdir()
    ck, trial = tried(original, request.param)
    return original, read_checkpoint(ck.uri), read_checkpoint(trial.checkpoint.uri)


def _promote_and_die(world, lives):
    world.promote(Killer(lives))


def _put_back_and_die(world, lives):
    world.put_back(Killer(lives))


def _on_dying_disk(lives):
    """Have every local disk of this process, which was forked for it, die after some changes."""
    killer = Killer(lives)
    storage.LocalFileIO = lambda **_: killer


def _begin_and_die(world, lives):
    _on_dying_disk(lives)
    with suppress(InvalidArgumentError):
        upgrade(world.root / "checkpoint", world.root / "job.py", trial=world.root / "new")


def _drop_and_die(world, lives):
    _on_dying_disk(lives)
    Trial(world.root / "trial").drop()


def is_killed(target, world, lives):
    """Do it in a process that dies after some changes; whether it came to that."""
    process = processes.Process(target=target, args=(world, lives))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.extended)])
def test_promote_that_is_killed_is_old_or_new_and_goes_on_or_back(made, tmp_path, every):
    """Catches a death that loses the old, the new or the history, or after which nobody goes on."""
    original, old, new = made
    seen = []
    for step in count(0, every):
        world = World(original, tmp_path / "world")
        was_killed = is_killed(_promote_and_die, world, step)
        world.end_process()
        stood = world.stands
        seen.append(["old", "refused", "new"][[old, "refused", new].index(stood)])
        if step % 2 and stood != new:
            Trial(world.root / "trial").drop()
            assert world.stands == old
            assert not (world.root / "trial").exists()
        else:
            Trial(world.root / "trial").promote(world.root / "before")
            assert world.stands == new
            assert Trial(world.root / "trial").result.state == "promoted"
            kept = Savepoint(world.root / "before")
            assert kept.verify(deep=True).findings == ()
            assert read_checkpoint(kept.uri) == old
        world.check_whole()
        if not was_killed:
            break
    assert seen[0] == "old"
    assert seen[-1] == "new"
    order = ["old", "refused", "new"]
    assert seen == sorted(seen, key=order.index)
    assert set(seen) == set(order)


def test_old_that_is_put_back_when_killed_is_put_back_or_promoted(made, tmp_path):
    """Catches a way back that ends half way, and cannot be gone on either side."""
    original, old, _ = made
    half = World(original, tmp_path / "half")
    for step in count():
        half = World(original, tmp_path / "half")
        assert is_killed(_promote_and_die, half, step)
        if half.stands == "refused":
            break
    half.end_process()
    for step in count(0, 7):
        world = World(half.root, tmp_path / "world")
        record = read_record(LocalFileIO(), str(world.root / "trial"))
        savepoint = str(world.root / "before")
        write_record(LocalFileIO(), str(world.root / "trial"), record, savepoint=savepoint)
        was_killed = is_killed(_put_back_and_die, world, step)
        world.end_process()
        assert world.stands in ("refused", old)
        Trial(world.root / "trial").drop()
        assert world.stands == old
        world.check_whole()
        if not was_killed:
            break


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.extended)])
def test_promote_that_a_fault_ends_is_repeated(made, tmp_path, happens, every):
    """Catches a call whose failure, or lost reply, leaves something that nobody goes on from."""
    original, old, new = made
    for step in count(0, every):
        world = World(original, tmp_path / "world")
        io = FaultFileIO(LocalFileIO())
        io.arm(Fault(step, happens, FAULTS))
        try:
            world.promote(io)
        except (StorageError, FencedError):  # a directory whose last reply was lost is another's
            assert io.has_failed
        world.end_process()
        assert world.stands in (old, "refused", new)
        Trial(world.root / "trial").promote(world.root / "before")
        assert world.stands == new
        world.check_whole()
        if not io.has_failed:
            break


def test_promote_is_refused_while_something_is_at_the_checkpoint(made, tmp_path):
    """Catches a checkpoint that is replaced below a query or another operation."""
    original, old, _ = made
    world = World(original, tmp_path / "world")
    place = place_of(str(world.root / "checkpoint"))

    with (
        open_checkpoint(place) as checkpoint,
        exclusive_use(checkpoint, "rescale"),
        pytest.raises(InUseError),
    ):
        world.trial.promote(world.root / "before")

    assert world.stands == old
    assert world.trial.result.state == "compared"


def test_promote_is_refused_when_the_checkpoint_has_gone_on(made, tmp_path):
    """Catches rows that the sink has and the promoted state has not, and others twice."""
    original, _, _ = made
    world = World(original, tmp_path / "world")
    Checkpoint(world.root / "checkpoint").edit(delete="k = 5")

    with pytest.raises(InvalidArgumentError, match="gone on since"):
        world.trial.promote(world.root / "before")

    assert not (world.root / "before").exists()
    with pytest.raises(NotFoundError, match="no trial"):
        Trial(world.root / "checkpoint").promote()


def test_trial_that_differs_is_promoted_only_when_that_is_accepted(made, tmp_path):
    """Catches code with a bug that goes live, and an approval that cannot be given."""
    original, old, new = made
    world = World(original, tmp_path / "world")
    directory = str(world.root / "trial")
    record = read_record(LocalFileIO(), directory)
    write_record(LocalFileIO(), directory, record, compared=(Compared("batch 2", is_same=False),))

    with pytest.raises(InvalidArgumentError, match=r"trial-failed.*batch 2"):
        world.trial.promote(world.root / "before")
    assert world.stands == old
    plan = world.trial.promote(world.root / "before", accept=True, dry_run=True)
    assert not plan.done
    assert world.stands == old
    world.trial.promote(world.root / "before", accept=True)

    assert world.stands == new


def test_trial_that_is_killed_while_it_begins_or_goes_is_begun_or_gone(made, tmp_path):
    """Catches a directory that no command takes up any more, and a checkpoint that has suffered."""
    original, old, _ = made
    (original / "job.py").write_text("")
    for target, every in ((_begin_and_die, 4), (_drop_and_die, 6)):
        for step in count(0, every):
            world = World(original, tmp_path / "world")
            trial = world.root / ("new" if target == _begin_and_die else "trial")
            was_killed = is_killed(target, world, step)
            world.end_process()
            assert world.stands == old
            if target == _begin_and_die:
                with pytest.raises(InvalidArgumentError, match="starts no query"):
                    upgrade(world.root / "checkpoint", world.root / "job.py", trial=trial)
                it = Trial(trial)
                assert it.result.state == "branched"
                assert it.checkpoint.verify(deep=True).findings == ()
                it.drop()
            elif trial.exists():
                Trial(trial).drop()
            assert not trial.exists()
            world.check_whole()
            if not was_killed:
                break
