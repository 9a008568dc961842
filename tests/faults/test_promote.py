"""A promote ends before any of its changes: the old or the new is what a query goes on from.

Between, no query starts; done again, it is the new, and dropped, the old. Both are whole always.
"""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from statestore import Checkpoint, Savepoint, Trial, try_job
from statestore.api.try_job import _Attempt
from statestore.checkpoint.layout import pin_name
from statestore.checkpoint.pins import pin_id_for
from statestore.core.clock import ManualClock
from statestore.core.errors import (
    FencedError,
    InUseError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.ids import RandomIds
from statestore.io import storage
from statestore.io.local import LocalFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import exclusive_use
from statestore.operations.metadata_file import mark_unfinished
from statestore.operations.trial.record import (
    HISTORY,
    Compared,
    read_record,
    write_record,
)
from statestore.operations.trial.rule import Rule
from statestore.testing.checkpoints import read_checkpoint
from tests.checkpoints import files_below
from tests.fault_io import Fault, FaultFileIO
from tests.faults.promoting import FAULTS, World
from tests.faults.steps import Killer, Stepped, Still, processes
from tests.made_trials import tried_with_rows
from tests.seams import Meanwhile, place_of


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.extended)])
def made(request, tmp_path):
    """A directory with a checkpoint and a trial, and their rows."""
    return tried_with_rows(tmp_path / "original", request.param)


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
        try_job(world.root / "checkpoint", world.root / "job.py", trial=world.root / "trial")


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


def test_refused_while_an_edit_of_the_checkpoint_is_begun(made, tmp_path):
    """Catches a promote that no drop takes back: its savepoint of the old has a planned batch."""
    original, *_ = made
    world = World(original, tmp_path / "world")
    Checkpoint(world.root / "checkpoint").edit(delete="k = 1")
    (world.root / "checkpoint" / "commits" / "3").unlink()

    with pytest.raises(InvalidArgumentError) as caught:
        world.trial.promote(world.root / "before")

    assert caught.value.kind == "unfinished-batch"
    assert not (world.root / "before").exists()


def test_refused_while_a_batch_of_the_query_is_planned(made, tmp_path):
    """Catches the advice to take back a rescale that was never begun."""
    original, *_ = made
    world = World(original, tmp_path / "world")
    offsets = world.root / "checkpoint" / "offsets"
    shutil.copy(offsets / "2", offsets / "3")

    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError) as caught:
            world.trial.promote(world.root / "before", dry_run=dry_run)
        assert caught.value.kind == "unfinished-batch"
        assert "start the query" in caught.value.to_fix
        assert "--undo" not in caught.value.to_fix


def test_refused_while_a_rescale_of_the_checkpoint_is_begun(made, tmp_path):
    """Catches the advice to start a query that Spark refuses to start."""
    original, *_ = made
    world = World(original, tmp_path / "world")
    ck = Checkpoint(world.root / "checkpoint")
    ck.rescale(4)
    (world.root / "checkpoint" / "commits" / "3").unlink()

    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match=r"--undo.*then promote") as caught:
            world.trial.promote(world.root / "before", dry_run=dry_run)
        assert caught.value.kind == "unfinished-operation"
    assert not (world.root / "before").exists()
    ck.undo_rescale()
    assert world.trial.promote(world.root / "before").done


def test_refused_where_the_branch_was_changed_since_it_was_compared(made, tmp_path):
    """Catches the state of a trial of the branch, promoted there, that is never compared."""
    original, *_ = made
    world = World(original, tmp_path / "world")
    ck, directory = Checkpoint(world.root / "checkpoint"), str(world.root / "trial")

    def compare():
        record = read_record(LocalFileIO(), directory)
        _Attempt(world.trial, ck, {}, {}).compare(record, Rule())

    compare()
    assert not world.trial.promote(world.root / "before", accept=True, dry_run=True).done
    nested = world.root / "nested"
    world.trial.branch.branch(nested / "checkpoint")
    record = read_record(LocalFileIO(), directory)
    record = replace(record, checkpoint=world.trial.branch.uri, trial=str(nested))
    write_record(LocalFileIO(), str(nested), record, num_operations=1)
    assert Trial(nested).promote(world.root / "before-nested", accept=True).done

    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="since it was compared"):
            world.trial.promote(world.root / "before", accept=True, dry_run=dry_run)
    assert not (world.root / "before").exists()
    compare()
    assert world.trial.promote(world.root / "before", accept=True).done


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
            assert not list((world.root / "checkpoint").glob(".tmp-*"))
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
    original, old, new = made
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
        if step % 2 and world.stands == "refused":
            Trial(world.root / "trial").promote()
            assert world.stands == new
        else:
            Trial(world.root / "trial").drop()
            assert world.stands == old
        world.check_whole()
        if not was_killed:
            break
    assert step


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
    assert step > 5


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


def test_trial_that_was_promoted_puts_nothing_back_and_is_not_begun_anew(made, tmp_path):
    """Catches the state of long ago, put back where another operation is at the checkpoint."""
    original, _, new = made
    world = World(original, tmp_path / "world")
    world.promote(LocalFileIO())  # it is killed before it tidies up
    (world.root / "job.py").write_text("")

    with pytest.raises(InUseError, match="a promote of the trial"):
        try_job(world.root / "checkpoint", world.root / "job.py", trial=world.root / "trial")
    mark_unfinished(LocalFileIO(), str(world.root / "checkpoint"), "restore")
    left = files_below(world.root / "checkpoint")
    assert not world.trial.drop(dry_run=True).puts_back
    world.trial.drop()

    assert files_below(world.root / "checkpoint") == left
    assert not (world.root / "trial").exists()
    assert read_checkpoint(str(world.root / "before")) != new


def test_trial_that_is_killed_while_it_begins_or_goes_is_begun_or_gone(made, tmp_path):
    """Catches a directory that no command takes up any more, and a checkpoint that has suffered."""
    original, old, _ = made
    (original / "job.py").write_text("")
    for target, every in ((_begin_and_die, 4), (_drop_and_die, 6)):
        for step in count(0, every):
            world = World(original, tmp_path / "world")
            trial = world.root / "trial"
            if target == _begin_and_die:
                shutil.rmtree(trial)
            was_killed = is_killed(target, world, step)
            world.end_process()
            assert world.stands == old
            if target == _begin_and_die:
                with pytest.raises(InvalidArgumentError, match="starts no query"):
                    try_job(world.root / "checkpoint", world.root / "job.py", trial=trial)
                it = Trial(trial)
                assert it.result.state == "branched"
                assert it.branch.verify(deep=True).findings == ()
                it.drop()
            elif trial.exists():
                Trial(trial).drop()
            assert not trial.exists()
            world.check_whole()
            if not was_killed:
                break
        assert step


def test_what_is_not_of_the_query_stays_where_it_is_in_the_checkpoint(made, tmp_path):
    """Catches another query's checkpoint that goes, or becomes that of the time of the trial."""
    original, _, new = made
    world = World(original, tmp_path / "world")
    query, branch = (world.root / name for name in ("checkpoint", "trial/checkpoint"))
    for batch in range(3):
        for directory in (query, branch)[: 2 - batch // 2]:
            (directory / "enrich" / "offsets").mkdir(parents=True, exist_ok=True)
            (directory / "enrich" / "offsets" / str(batch)).write_text(f"{directory.parent.name}")
    (branch / "enrich" / "deleted").write_text("")
    before = files_below(query / "enrich")

    world.trial.promote(world.root / "before")

    assert world.stands == new
    assert files_below(query / "enrich") == before
    world.check_whole()


def test_trial_that_was_killed_before_is_promoted(made, tmp_path):
    """Catches an hour for which the query stands still, since a dead try pins what it compared."""
    original, old, new = made
    world = World(original, tmp_path / "world")
    other = RandomIds().new_id()
    for pin_id in (pin_id_for(f"file:{world.trial.uri}", RandomIds()), other):
        (world.root / "checkpoint/state/0/0" / pin_name(3, pin_id)).write_text("")

    with pytest.raises(InUseError, match=f"a trial.*{other}"):
        world.trial.promote(world.root / "before")
    assert world.stands == old
    (world.root / "checkpoint/state/0/0" / pin_name(3, other)).unlink()
    world.trial.promote(world.root / "before")

    assert world.stands == new
    world.check_whole()


def test_trial_whose_first_try_died_while_it_branched_is_promoted(made, tmp_path):
    """Catches the same hour after a try that was killed before its branch was whole."""
    original, _, new = made
    (original / "job.py").write_text("")
    num_left = 0
    for step in count(0, 3):
        world = World(original, tmp_path / "world")
        trial = (world.root / "trial").rename(world.root / "new")
        was_killed = is_killed(_begin_and_die, world, step)
        world.end_process()
        shutil.rmtree(world.root / "trial", ignore_errors=True)
        trial.rename(world.root / "trial")  # a second try has come to its end
        num_left += len(list((world.root / "checkpoint").rglob("*.pin")))

        world.trial.promote(world.root / "before")

        assert world.stands == new
        world.check_whole()
        if not was_killed:
            break
    assert num_left


def test_checkpoint_that_is_named_by_an_encoded_uri_is_tried(made, tmp_path):
    """Catches a refusal of a directory that nobody has named, which a query would find."""
    original, *_ = made
    world = World(original, tmp_path / "the world")
    (world.root / "job.py").write_text("")

    with pytest.raises(InvalidArgumentError, match="starts no query"):
        try_job((world.root / "checkpoint").as_uri(), world.root / "job.py")

    assert Trial(world.root / "checkpoint-trial").result.state == "branched"


def test_copy_of_a_trial_leaves_the_checkpoint_of_the_original(made, tmp_path):
    """Catches a checkpoint that is replaced by a trial of its copy: the record names the first."""
    original, old, new = made
    world = World(original, tmp_path / "world")
    (world.root / "job.py").write_text("")
    with pytest.raises(InvalidArgumentError, match="starts no query"):
        try_job(world.root / "checkpoint", world.root / "job.py")
    io, directory = LocalFileIO(), str(world.root / "trial")
    made_by_try = read_record(io, f"{world.root}/checkpoint-trial").trial
    assert made_by_try == f"{world.root}/checkpoint-trial"
    write_record(io, directory, read_record(io, directory), trial=directory)
    shutil.copytree(world.root, tmp_path / "copy")
    copy = Trial(tmp_path / "copy" / "trial")
    (tmp_path / "link").symlink_to(world.root)

    for change in (
        copy.promote,
        copy.drop,
        lambda: try_job(tmp_path / "copy" / "checkpoint", world.root / "job.py", trial=copy.uri),
    ):
        with pytest.raises(InvalidArgumentError, match="the trial is a copy of another"):
            change()

    assert world.stands == old
    Trial(tmp_path / "link" / "trial").promote()
    assert world.stands == new


def test_savepoint_of_the_old_may_not_go_with_the_trial(made, tmp_path):
    """Catches the only copy of the old, made where a promote tidies up, and gone with that."""
    original, old, _ = made
    world = World(original, tmp_path / "world")

    for place in ("trial", "trial/before", "trial/new", "trial/checkpoint/before", "."):
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match="inside another checkpoint"):
                world.trial.promote(world.root / place, dry_run=dry_run)

    assert world.stands == old
    assert world.trial.result.state == "compared"


@pytest.mark.parametrize("dry_run", [True, False])
def test_savepoint_of_an_empty_name_is_refused(made, tmp_path, dry_run):
    """Catches a variable of the shell that is not set, for which the default is taken."""
    original, old, _ = made
    world = World(original, tmp_path / "world")

    with pytest.raises(InvalidArgumentError, match="no directory is named"):
        world.trial.promote("", dry_run=dry_run)

    assert world.stands == old


def test_what_a_user_put_into_the_trial_stays(made, tmp_path):
    """Catches a page, or a savepoint, of the user's that goes with the trial."""
    original, old, _ = made
    world = World(original, tmp_path / "world")
    Checkpoint(world.root / "checkpoint").savepoint(world.root / "trial" / "mine")
    world.trial.report(world.root / "trial" / "trial.html")

    world.trial.promote(world.root / "before")
    world.trial.drop()

    left = sorted(path.name for path in (world.root / "trial").iterdir())
    assert left == ["mine", "trial.html"]
    assert read_checkpoint(str(world.root / "trial" / "mine")) == old
    with pytest.raises(NotFoundError, match="no trial"):
        world.trial.drop()


def test_what_a_disk_check_has_found_is_not_dropped(made, tmp_path):
    """Catches a trial at the top of a disk whose end takes along what is nobody's."""
    original, _, _ = made
    world = World(original, tmp_path / "world")
    found = world.root / "trial" / "lost+found" / "file"
    found.parent.mkdir()
    found.write_text("found")

    Trial(world.root / "trial").drop()

    assert found.read_text() == "found"
    assert list((world.root / "trial").iterdir()) == [found.parent]


def test_trial_behind_a_link_is_dropped(made, tmp_path):
    """Catches a drop that fails for ever at a link."""
    original, _, _ = made
    world = World(original, tmp_path / "world")
    (world.root / "link").symlink_to(world.root / "trial")

    Trial(world.root / "link").drop()

    assert list((world.root / "trial").iterdir()) == []


def _end(world, trial, *, is_drop):
    """Drop a trial, or begin it anew."""
    if is_drop:
        trial.drop()
    else:
        try_job(world.root / "checkpoint", world.root / "job.py", trial=trial.uri)


def test_trial_that_is_promoted_is_not_dropped_or_begun_anew_meanwhile(made, tmp_path):
    """Catches a branch that goes, or is made anew, between its check and the checkpoint's end."""
    original, old, new = made
    (original / "job.py").write_text("")
    for is_drop in (True, False):
        world = World(original, tmp_path / "world")
        refused = []

        def end(world=world, is_drop=is_drop, refused=refused):
            with pytest.raises(InUseError) as error:
                _end(world, Trial(world.root / "trial"), is_drop=is_drop)
            refused.append(error.value.fields["operation"])

        world.trial.promote(world.root / "before", progress=Meanwhile(end))

        assert refused == ["promote"]
        assert world.stands == new
        assert read_checkpoint(str(world.root / "before")) == old


def test_branch_that_changed_since_it_was_looked_at_is_not_promoted(made, tmp_path):
    """Catches state of another version that takes the checkpoint's place."""
    original, old, _ = made
    world = World(original, tmp_path / "world")

    def edit():  # by a process that did not see the lease
        world.end_process()
        Checkpoint(world.root / "trial" / "checkpoint").edit(delete="k = 7")

    with pytest.raises(InvalidArgumentError, match=r"branch .* gone on since.*statestore drop "):
        world.trial.promote(world.root / "before", progress=Meanwhile(edit))

    assert world.stands == old
    assert world.trial.result.state == "compared"


def test_wrong_place_for_the_savepoint_is_told_by_the_plan_and_may_be_mended(made, tmp_path):
    """Catches a place that was mistyped once, and that every later promote insists on."""
    original, old, new = made
    world = World(original, tmp_path / "world")
    (world.root / "full").mkdir()
    (world.root / "full" / "file").write_text("")

    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="checkpoint-exists"):
            world.trial.promote(world.root / "full", dry_run=dry_run)
    assert world.stands == old
    world.trial.promote(world.root / "before")

    assert world.stands == new
    assert read_checkpoint(str(world.root / "before")) == old


def test_old_of_a_second_promote_is_kept_too(made, tmp_path):
    """Catches a savepoint of other rows, of the same version, that is taken for that of the old."""
    original, old, new = made
    world = World(original, tmp_path / "world")
    shutil.copytree(world.root / "trial", world.root / "second")
    world.trial.promote()
    second = Trial(world.root / "second")

    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="another savepoint"):
            second.promote(dry_run=dry_run)
    second.promote(world.root / "other")

    assert read_checkpoint(f"{world.root / 'checkpoint'}-before-3") == old
    assert read_checkpoint(str(world.root / "other")) == new


def test_promote_of_another_trial_is_not_taken_for_ones_own(made, tmp_path):
    """Catches a trial that says it was promoted, where another one was after it was killed."""
    original, _, new = made
    for step in count():
        world = World(original, tmp_path / "world")
        shutil.copytree(world.root / "trial", world.root / "second")
        assert is_killed(_promote_and_die, world, step)
        world.end_process()
        if (world.root / "trial" / HISTORY).exists():
            break
    Trial(world.root / "second").promote(world.root / "other")
    assert world.stands == new
    Checkpoint(world.root / "checkpoint").edit(delete="k = 7")

    with pytest.raises(InvalidArgumentError, match="gone on since"):
        world.trial.promote(world.root / "before")

    assert world.trial.result.state == "promoting"


class _DeathError(Exception):
    """The promote ends here."""


def killed_when(original, root, is_there):
    """A world whose promote ends before its first change after which something is so."""
    world = World(original, root)

    def before(_):
        if is_there(world):
            raise _DeathError

    with pytest.raises(_DeathError):
        world.promote(Stepped(before))
    world.end_process()
    return world


def is_promoting(world):
    """Whether a promote is to change the checkpoint next, or has."""
    return (world.root / "trial" / HISTORY).exists() and world.trial.result.state == "promoting"


def test_drop_says_whether_the_old_came_back(made, tmp_path):
    """Catches a drop that says the checkpoint is the old, where the promote had ended or not begun.

    The record says PROMOTING in all three.
    """
    original, old, new = made
    for stands, puts_back in ((new, False), ("refused", True), (old, False)):
        world = killed_when(
            original,
            tmp_path / "world",
            lambda world, stands=stands: is_promoting(world) and world.stands == stands,
        )
        plan = world.trial.drop(dry_run=True)
        done = world.trial.drop()

        assert plan.puts_back is done.puts_back is puts_back
        assert ("becomes the old again, with its newest version" in str(done)) is puts_back
        if puts_back:
            assert len(Checkpoint(world.root / "checkpoint").versions()) == 1
        assert world.stands == (new if stands == new else old)
        world.check_whole()


def test_promote_that_was_begun_is_another_trials_to_end(made, tmp_path):
    """Catches a checkpoint that is set back by a trial of long ago, killed before it changed it."""
    original, old, new = made
    world = killed_when(original, tmp_path / "world", is_promoting)
    assert world.stands == old
    half = killed_when(original, tmp_path / "half", lambda it: it.stands == "refused")
    stale = half.root / "stale"
    shutil.copytree(world.root / "trial", stale)
    record = read_record(LocalFileIO(), str(stale))
    of_another = {"attempt": "0" * 32, "checkpoint": str(half.root / "checkpoint")}
    write_record(LocalFileIO(), str(stale), record, **of_another)
    left = files_below(half.root / "checkpoint")

    with pytest.raises(NotFoundError, match="unfinished-operation") as error:
        Trial(stale).promote()
    assert error.value.fields["trial"] == half.trial.uri
    assert half.trial.uri in str(error.value)
    assert not Trial(stale).drop(dry_run=True).puts_back
    Trial(stale).drop()
    assert files_below(half.root / "checkpoint") == left
    half.trial.promote()

    assert half.stands == new


def test_restore_that_was_killed_is_no_promote(made, tmp_path):
    """Catches a new checkpoint of the user's that a promote or drop takes for its own."""
    original, old, _ = made
    world = killed_when(original, tmp_path / "world", is_promoting)
    checkpoint = world.root / "checkpoint"
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    mark_unfinished(LocalFileIO(), str(checkpoint), "restore")

    with pytest.raises(NotFoundError, match=r"unfinished-operation.*operation='restore'"):
        world.trial.promote()
    assert not world.trial.drop().puts_back

    assert world.stands == "refused"
    assert read_checkpoint(str(world.root / "before")) == old


@pytest.mark.parametrize("checkpoint", ["s3://bucket", "s3a://bucket/"])
def test_nothing_is_put_into_a_bucket_of_a_like_name(made, checkpoint):
    """Catches state that goes to somebody else's bucket, for a name that was made up."""
    original, _, _ = made
    with pytest.raises(InvalidArgumentError, match="no place beside"):
        try_job(checkpoint, original / "job.py")

    io, directory = LocalFileIO(), str(original / "trial")
    write_record(io, directory, read_record(io, directory), checkpoint=checkpoint)
    with pytest.raises(InvalidArgumentError, match="no place beside"):
        Trial(directory).promote()
    with pytest.raises(InvalidArgumentError, match="inside another"):
        Trial(directory).promote(f"{directory}/old")


def test_way_back_is_not_begun_without_the_old(made, tmp_path):
    """Catches a drop after which neither the old nor the new can be had."""
    original, _, new = made
    for step in count():
        world = World(original, tmp_path / "world")
        assert is_killed(_promote_and_die, world, step)
        world.end_process()
        if world.stands == "refused":
            break
    shutil.rmtree(world.root / "before")

    with pytest.raises(NotFoundError):
        Trial(world.root / "trial").drop()
    Trial(world.root / "trial").promote()

    assert world.stands == new


def test_batches_that_were_not_compared_are_not_promoted(tmp_path):
    """Catches a trial whose code was run on since it was compared: new rows nobody has seen."""
    folder, old, _ = tried_with_rows(tmp_path / "original", 1)
    world = World(folder, tmp_path / "world")
    io, directory = LocalFileIO(), str(world.root / "trial")
    write_record(io, directory, read_record(io, directory), version=2)

    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="tried_version=2"):
            world.trial.promote(dry_run=dry_run)

    assert world.stands == old


def killed_while_it_clears(original, tmp_path):
    """A world whose promote was killed: the checkpoint is begun, and to be cleared."""
    world = World(original, tmp_path / "world")
    killed = FaultFileIO(LocalFileIO())
    killed.arm(Fault(3, happens=False, calls=("link",)))
    with pytest.raises(StorageError):
        world.promote(killed)
    world.end_process()
    return world


@pytest.mark.parametrize("step", Still.STEPS)
@pytest.mark.parametrize("does", [World.promote, World.put_back])
def test_one_that_stood_still_clears_nothing_of_a_promote_that_ended(made, tmp_path, does, step):
    """Catches a checkpoint that is cleared under the query, by one whose lease has expired."""
    original, _, new = made
    world = killed_while_it_clears(original, tmp_path)
    checkpoint = world.root / "checkpoint"
    (checkpoint / "left").write_bytes(b"")  # to be cleared last
    clock = ManualClock()

    def end():
        clock.advance(3_600_000)
        world.end_process()
        world.promote(LocalFileIO())

    still = Still(str(checkpoint), step, end)
    with pytest.raises((FencedError, InUseError), match=r"begun anew|has expired"):
        does(world, still, clock)

    assert not still.act
    assert world.stands == new
    world.check_whole()


@pytest.mark.parametrize("does", [World.promote, World.put_back])
def test_one_whose_lease_has_expired_clears_no_more(made, tmp_path, does):
    """Catches a checkpoint that is cleared while somebody else may be at it."""
    original, _, _ = made
    world = killed_while_it_clears(original, tmp_path)
    clock, seen = ManualClock(), []

    def expire():
        clock.advance(3_600_000)
        seen.append(files_below(world.root / "checkpoint"))

    with pytest.raises(InUseError, match="has expired"):
        does(world, Still(str(world.root / "checkpoint"), "clear 1", expire), clock)

    world.end_process()
    (before,) = seen
    left = files_below(world.root / "checkpoint")
    assert {path for path in before if not path.startswith("statestore-leases")} == set(left)


def test_what_repairs_have_set_aside_stays(made, tmp_path):
    """Catches log entries that a repair keeps, and that a promote or its way back deletes."""
    original, old, new = made
    entry = "checkpoint/statestore-repair/3/commits/3"
    (original / entry).parent.mkdir(parents=True)
    (original / entry).write_text("v1")

    seen = set()
    for step in count(0, 3):
        world = World(original, tmp_path / "world")
        was_killed = is_killed(_promote_and_die, world, step)
        world.end_process()
        seen.add(world.stands == "refused")
        if world.stands == "refused":
            assert (world.root / entry).read_text() == "v1"
            Trial(world.root / "trial").drop()
            assert world.stands == old
        else:
            Trial(world.root / "trial").promote(world.root / "before")
            assert world.stands == new
        assert (world.root / entry).read_text() == "v1"
        if not was_killed:
            break
    assert seen == {True, False}
