"""Steps that try new code on a branch, and then promote or drop it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore import StateStoreError
from statestore.operations.trial.record import CHECKPOINT, RECORD_NAME
from statestore.spark.job_on_branch import Repeat, run_job

from .audit import audit, read_state, require
from .child import Call
from .steps import Step, by_words, storage_words
from .world import LEASE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from .child import Child
    from .families import State
    from .world import Directory, World


@dataclass
class Tried:
    """A trial.

    Attributes:
        of: The checkpoint that it is of.
        branch: Its branch, with the rows that the new code makes.
        old: What is to become of the checkpoint: a savepoint with its rows when it was tried.
        is_same: Whether the new code was found equal.
        asked: What it was tried with: whether the code loses what it reads; most batches.
    """

    of: Directory
    branch: Directory
    old: Directory
    is_same: bool
    asked: tuple[bool, int]

    @property
    def path(self) -> str:
        """The directory of the trial."""
        return str(self.branch.path.parent)


def try_code(world: World, rng: Generator) -> Step | None:
    """Try equal code, or a program that loses all that it reads; often the one of the last time."""
    directory, known = world.current, world.tried
    is_elsewhere = directory.elsewhere is not None
    if is_elsewhere and rng.random() < 0.9:
        return None
    path = world.new_path()
    loses, batches = bool(rng.random() < 0.5), int(rng.integers(1, 4))
    if known is not None and known.of is directory:
        path = known.branch.path.parent
        if rng.random() < 0.6:
            loses, batches = known.asked
    world.tried = None
    branch = directory.at(path / CHECKPOINT)
    old = directory.at(world.new_path(), is_savepoint=True)
    job, asked = (path.with_name(f"{path.name}-{name}") for name in ("job.py", "asked"))
    job.write_text(f"# {loses}")
    call = Call(
        directory=str(directory.path), method="try_job", arguments=(str(job),), options=LEASE,
        keywords={
            "trial": str(path), "batches": batches,
            "submit": [sys.executable, "-c", _ASK, str(asked)],
        },
    )  # fmt: skip

    def check(_: State, found: Any) -> None:
        branch.state = read_state(world, branch)
        branch.batch, branch.versions = directory.batch, {directory.version: branch.state}
        audit(world, branch)
        of_state = [one for one in found["compared"] if one["of"].startswith("state")]
        is_same = branch.state == directory.state
        assert found["version"] == directory.version, f"a trial ends elsewhere: {found}"
        assert of_state, f"no state was compared: {found}"
        judged = all(one["is_same"] for one in of_state)
        assert judged == is_same, f"a trial judges wrong: {found}"
        assert found["is_same"] or loses, f"equal code was found to differ: {found}"
        first = directory.versions.get(found["first_version"])
        repeated = range(found["first_version"], found["version"])
        read = [world.read_by(directory, batch) for batch in repeated]
        if loses and first is not None and not any(one.evict_ms for one in read):
            assert branch.state == first, f"code that reads nothing changed rows: {found}"
        world.tried = Tried(directory, branch, old, found["is_same"], (loses, batches))

    return Step(
        f"try, {'a bug' if loses else 'equal'}", call, check=check,
        must_be_refused=is_elsewhere, may_be_refused=True,
        serve=_serve(world, rng, branch, asked, lambda: world.start(directory, loses=loses)),
        instead=_drop(world, path),
    )  # fmt: skip


_ASK = """
import pathlib, sys, time
asked = pathlib.Path(sys.argv[1])
asked.with_suffix(".new").write_text("|".join(sys.argv[3:5]))
asked.with_suffix(".new").rename(asked)
while asked.exists():
    time.sleep(0.02)
"""
"""What a trial runs in place of `spark-submit`: it has this application do it, and waits."""


def _serve(
    world: World, rng: Generator, branch: Directory, asked: Path, start: Callable[[], Any]
) -> Callable[[Child], None]:
    """Return what repeats the batches of a trial in this application; or is killed between them.

    A batch whose version is there, and whose commit is not, is that of a query which was killed.
    """
    is_killed = [bool(rng.random() < 0.4), False]
    is_within = bool(rng.random() < 0.5)
    share = rng.random()

    def serve(child: Child) -> None:
        if not asked.exists():
            return
        request, reply = map(Path, asked.read_text().split("|"))
        repeat, answer = Repeat(**json.loads(request.read_text())), {}
        at, kills = world.newest_version(branch), is_killed.pop(0) if is_killed else False
        if kills:
            repeat = replace(repeat, version=at + round(share * (repeat.version - at)))
        try:
            run_job(repeat, start)
        except StateStoreError as error:
            # An operation's batch cannot be repeated; but the job is a good one.
            is_full = "No space left" in str(error)
            require(error.kind != "trial-failed" or is_full, "a job was not tried", str(error))
            answer = error.to_json()
        if kills:
            newest = world.newest_version(branch)
            if is_within and newest > at:
                for name in (f"{newest - 1}", f".{newest - 1}.crc"):
                    (branch.path / "commits" / name).unlink(missing_ok=True)
            child.kill()
        reply.write_text(json.dumps(answer))
        asked.unlink()

    return serve


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
    return _drop(world, tried.branch.path.parent)


def _drop(world: World, path: Path) -> Step:
    def note(_: Directory) -> None:
        left = list(path.glob("*"))
        assert not left, f"a trial was dropped, and is there: {left}"
        world.tried = None

    def look() -> None:
        if not (path / RECORD_NAME).exists():
            world.tried = None

    call = by_words("drop", path, "--yes", *storage_words())
    # Killed behind its last change it is done, and there is no trial any more.
    return Step("drop", call, note=note, look=look, source=world.current, may_be_refused=True)
