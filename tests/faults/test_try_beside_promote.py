"""A `try` beside a promote: no step of it takes a promote back that a query may have seen."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from itertools import count

import pytest

from statestore import Checkpoint, Trial
from statestore.api.try_job import _Attempt
from statestore.checkpoint import lease_watch
from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.io.local import LocalFileIO
from statestore.operations.trial.record import State, read_record, write_record
from statestore.operations.trial.rule import Rule
from tests.faults.promoting import World
from tests.faults.steps import Stepped
from tests.made_trials import tried_with_rows


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A directory with a checkpoint and a trial, and their rows; who is refused waits for nobody.

    Both are in this process, so the lease of one of them never ends while the other waits.
    """
    monkeypatch.setattr(lease_watch, "_DROP_MS", 0)
    monkeypatch.setattr(lease_watch, "_POLL_MS", 1)
    return tried_with_rows(tmp_path / "original", 1)


class _DeathError(Exception):
    """The promote ends here."""


class Trying:
    """A call of `try_job` that goes on with a trial, done one step at a time.

    It has no batch to repeat, so it starts no job; it ends at the first step that is refused.
    """

    def __init__(self, world):
        checkpoint = Checkpoint(world.root / "checkpoint")
        self._attempt = _Attempt(world.trial, checkpoint, {}, {"job": "job.py"})
        self._record = None
        self._steps = [
            lambda _: self._attempt.begin({}, 1),
            lambda record: self._attempt.run(record, 3, (), {}),
            lambda record: self._attempt.compare(record, Rule()),
        ]

    def step(self):
        """Do the next step, if there is one."""
        if not self._steps:
            return
        try:
            self._record = self._steps.pop(0)(self._record)
        except StateStoreError:
            self._steps = []


def _check_end(world, old, new, *, drops):
    """Check that the old or the new is had from what a promote and a try have left."""
    stood = world.stands
    assert stood in (old, new, "refused")
    if drops:
        world.trial.drop()
        assert world.stands == (new if stood == new else old)
        assert not (world.root / "trial").exists()
    else:
        try:
            world.trial.promote(world.root / "before", accept=True)
        except InvalidArgumentError as error:
            assert "cannot be promoted before" in str(error)  # noqa: PT017 (others count as well)
            assert stood == world.stands == old
        else:
            assert world.stands == new
    world.check_whole()


def _die_at(number):
    """Return what ends a promote before one of its changes."""

    def before(change):
        if change == number:
            raise _DeathError

    return before


@pytest.mark.parametrize("is_planned_anew", [False, True])
def test_try_begins_anew_where_its_last_batch_was_planned_anew(made, tmp_path, is_planned_anew):
    """Catches a trial that goes on for ever and is never promoted: a repair took its batch back."""
    original, *_ = made
    world = World(original, tmp_path / "world")
    entry = world.root / "checkpoint" / "offsets" / "2"
    if is_planned_anew:
        version, fields, *rest = entry.read_text().split("\n")
        fields = json.loads(fields) | {"batchTimestampMs": 7}
        entry.write_text("\n".join([version, json.dumps(fields), *rest]))

    record = _Attempt(
        world.trial, Checkpoint(world.root / "checkpoint"), {}, {"job": "job.py"}
    ).begin({}, 1)

    assert record.state is (State.BRANCHED if is_planned_anew else State.COMPARED)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(1, 20))]
)
def test_no_step_of_a_try_takes_a_promote_back(made, tmp_path, seed):
    """Catches a record that says less than was done: neither the old nor the new can be had."""
    original, old, new = made
    rng = random.Random(seed)
    stood, ends = set(), set()
    whole = World(original, tmp_path / "world")
    disk = Stepped(lambda _: None)
    whole.promote(disk)
    for first in range(disk.num_changes):
        world = World(original, tmp_path / "world")
        trying = Trying(world)
        # The first step of the try before one change of the promote, the others before later ones.
        later = sorted(first + rng.choice([0, 0, 1, 4, 9]) for _ in range(3))
        at = [first if rng.random() < 0.5 else -1, *later[:2]]
        dies = later[2] if rng.random() < 0.7 else None
        if first == 0:  # all of it between the look at the record and the lease
            at, dies = [0, 0, 0], None

        def before(number, at=at, trying=trying, dies=dies):
            for _ in range(at.count(number)):
                trying.step()
            if number == dies:
                raise _DeathError

        before(-1)
        try:
            world.promote(Stepped(before))
            ends.add("done")
        except _DeathError:
            ends.add("dead")
        except StateStoreError:
            ends.add("refused")
        world.end_process()
        stood.add("refused" if world.stands == "refused" else "whole")
        _check_end(world, old, new, drops=rng.random() < 0.5)
    assert stood == {"refused", "whole"}
    assert ends == {"done", "dead", "refused"}


def test_trial_whose_record_lost_the_savepoint_is_not_dropped(made, tmp_path):
    """Catches the branch that goes, where it alone is whole and known."""
    original, _, new = made
    for step in count():
        world = World(original, tmp_path / "world")
        with pytest.raises(_DeathError):
            world.promote(Stepped(_die_at(step)))
        world.end_process()
        if world.stands == "refused":
            break
    io, directory = LocalFileIO(), str(world.root / "trial")
    record = read_record(io, directory)
    write_record(io, directory, record, state=State.RUN, savepoint="")

    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match=r"unfinished-operation.*field savepoint"):
            world.trial.drop(dry_run=dry_run)
    assert world.trial.branch.verify(deep=True).findings == ()
    write_record(io, directory, record, state=State.RUN)
    with suppress(InvalidArgumentError):
        Trial(world.root / "trial").promote()
    assert world.stands == "refused"
    assert world.trial.drop(dry_run=True).puts_back
    write_record(io, directory, record)
    world.trial.promote()

    assert world.stands == new
