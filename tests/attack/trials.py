"""Steps that try new code on a branch, and then promote or drop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore import StateStoreError, upgrade
from statestore.operations.trial.record import CHECKPOINT

from .audit import audit, read_state, require
from .steps import Step, by_call, by_words, storage_words
from .world import LEASE

if TYPE_CHECKING:
    from typing import Any

    from numpy.random import Generator

    from .world import Directory, World


@dataclass
class Tried:
    """A trial.

    Attributes:
        of: The checkpoint that it is of.
        branch: Its branch, with the rows that the new code makes.
        old: What is to become of the checkpoint: a savepoint with its rows when it was tried.
        is_same: Whether the new code was found equal.
    """

    of: Directory
    branch: Directory
    old: Directory
    is_same: bool

    @property
    def path(self) -> str:
        """The directory of the trial."""
        return str(self.branch.path.parent)


def try_code(world: World, rng: Generator) -> Step:
    """Try equal code, or a program that loses all that it reads."""
    directory, known = world.current, world.tried
    loses = bool(rng.random() < 0.5)
    is_again = known is not None and known.of is directory
    path = known.branch.path.parent if known is not None and is_again else world.new_path()
    branch = directory.at(path / CHECKPOINT)
    old = directory.at(world.new_path(), is_savepoint=True)
    keywords: dict[str, Any] = {"trial": str(path), "batches": int(rng.integers(1, 4))}

    def run() -> None:
        world.tried = None
        try:
            trial = upgrade(
                str(directory.path), lambda: world.start(directory, loses=loses),
                storage_options=LEASE, **keywords,
            )  # fmt: skip
        except StateStoreError as error:
            # An operation's batch cannot be repeated; but the job is a good one.
            require(error.kind != "trial-failed", "a job could not be tried", str(error))
            raise
        branch.state = read_state(world, branch)
        branch.batch, branch.versions = directory.batch, {directory.version: branch.state}
        audit(world, branch)
        of_state = [one for one in trial.result.compared if one.of.startswith("state")]
        is_same = branch.state == directory.state
        found = trial.result
        require(found.version == directory.version, "a trial ends elsewhere", str(found))
        require(of_state, "no state was compared", str(found))
        require(all(one.is_same for one in of_state) == is_same, "a trial judges wrong", str(found))
        require(trial.is_same or loses, "equal code was found to differ", str(found))
        first = directory.versions.get(found.first_version)
        batches = range(found.first_version, found.version)
        read = [world.read_by(directory, batch) for batch in batches]
        if loses and first is not None and not any(one.evict_ms for one in read):
            require(branch.state == first, "code that reads nothing changed rows", str(found))
        world.tried = Tried(directory, branch, old, trial.is_same)

    call = by_call(directory, f"try{' with a bug' * loses}", **keywords)
    name = f"try, {'a bug' if loses else 'equal'}"
    return Step(name, call, in_process=run, may_be_refused=True)


def promote(world: World, rng: Generator) -> Step | None:
    """Have the branch take the place of its checkpoint; or, where that is killed, drop it."""
    tried, directory = world.tried, world.current
    if tried is None or tried.of is not directory:
        return None
    accept = bool(rng.random() < 0.7)
    call = by_words(
        "promote", tried.path, "--savepoint", tried.old.path, *["--accept"] * accept, "--yes",
        *storage_words(),
    )  # fmt: skip

    def check(*_: object) -> None:
        audit(world, tried.old)

    def note(directory: Directory) -> None:
        directory.versions = {directory.version: directory.state}
        world.others.append(tried.old)
        world.tried = None

    return Step(
        "promote", call, apply=lambda _: tried.branch.state, check=check, note=note,
        must_be_refused=directory.version != tried.old.version
        or not (accept or tried.is_same),
        # A batch that was taken back, and run once more, is as good as the one that was tried.
        may_be_refused=directory.state is not tried.old.state,
        instead=drop(world, rng),
    )  # fmt: skip


def drop(world: World, rng: Generator) -> Step | None:
    """Delete the trial, and put the old back where a promote was killed."""
    del rng
    tried = world.tried
    if tried is None or tried.of is not world.current:
        return None

    def note(_: Directory) -> None:
        left = list(tried.branch.path.parent.glob("*"))
        assert not left, f"a trial was dropped, and is there: {left}"
        world.tried = None

    call = by_words("drop", tried.path, "--yes", *storage_words())
    # Killed behind its last change it is done, and there is no trial any more.
    return Step("drop", call, note=note, source=world.current, may_be_refused=True)
