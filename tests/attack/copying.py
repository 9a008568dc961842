"""Steps in which somebody copies, links or moves the directory of a checkpoint, without a command.

Where the state is elsewhere, a copy names that of the original: it may be read, and nothing may
change it. Else the copy is a checkpoint of its own.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from .audit import audit, require
from .child import run
from .editing import edit, forget
from .making import branch, restore, savepoint
from .steps import Step, by_call
from .upkeep import compact, expire, read, rescale, undo
from .world import QueryFailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from numpy.random import Generator

    from .world import Directory, World

REFUSAL = "other-checkpoint"
DONE_TO_IT = (
    edit, forget, compact, expire, rescale, undo, read, savepoint, branch, restore, "query", "both",
)  # fmt: skip


def copy(world: World, rng: Generator) -> Step:
    """Copy, link or move it; then use it under the new name, and the original."""
    directory, path = world.current, world.new_path()
    how = str(rng.choice(["copy", "copy", "link", "move"]))
    done = DONE_TO_IT[rng.integers(len(DONE_TO_IT))]
    world.feed(rng, 1)

    def act() -> None:
        _wait_for_end(directory)
        if how == "copy":
            _copied(world, rng, directory, path, done)
        else:
            (_linked if how == "link" else _moved)(world, directory, path)
        world.run_query(directory)

    what = "" if how != "copy" else f", {done}" if isinstance(done, str) else ", operation"
    call = by_call(directory, how, str(path), getattr(done, "__name__", done))
    return Step(f"by hand: {how}{what}", call, in_process=act)


def _wait_for_end(directory: Directory) -> None:
    """Wait until no query is at it: a lease that is moved or copied is not dropped any more."""
    until = time.monotonic() + 30
    while list(directory.path.glob("statestore-leases/query-*")) and time.monotonic() < until:
        time.sleep(0.05)


def _copied(world: World, rng: Generator, directory: Directory, path: Path, done: Any) -> None:
    shutil.copytree(directory.path, path)
    twin = replace(directory.at(path), versions=dict(directory.versions))
    is_others = directory.elsewhere is not None
    if done == "both":
        _both(world, directory, twin, is_others)
    elif isinstance(done, str):
        _query(world, twin, is_others)
    else:
        _operate(world, rng, twin, done, is_others)
    audit(world, directory)
    shutil.rmtree(path)


def _query(world: World, directory: Directory, is_refused: bool) -> None:
    """Run the query; it must be refused, or its rows right."""
    try:
        world.run_query(directory)
    except QueryFailedError as error:
        require(is_refused and REFUSAL in str(error), "the query of a copy failed", str(error))
        return
    require(not is_refused, "a copy's query took the state of the original", str(directory.path))
    audit(world, directory)


def _both(world: World, directory: Directory, twin: Directory, is_refused: bool) -> None:
    """Start the query of the original, and that of the copy beside it: Spark ends the first."""
    handles = []
    for one in (directory, twin):
        try:
            handles.append(world.start(one))
        except Exception as error:  # noqa: BLE001 - Spark's, of many classes
            require("CONCURRENT" in str(error), "a query did not start", str(error))
    for handle in handles:
        try:
            handle.awaitTermination(60)
        except StreamingQueryException as error:
            require(is_refused and REFUSAL in str(error), "one of two queries failed", str(error))
        handle.stop()
    for one in (directory, twin):
        world.absorb(one)


def _operate(
    world: World,
    rng: Generator,
    twin: Directory,
    draw: Callable[[World, Generator], Step | None],
    is_refused: bool,
) -> None:
    """Do something to the copy: what changes it must be refused, or be right."""
    original, others = world.current, world.others
    world.current, world.others = twin, []
    try:
        step = draw(world, rng)
        if step is None:
            return
        outcome = run(step.call, bug=world.bug)
        require(outcome.ending in ("done", "refused"), "an operation failed", outcome.text)
        if step.target is not None:
            if outcome.ending == "done":
                step.target.batch = world.newest_version(step.target) - 1
                step.target.state = step.apply(twin.state)
                step.target.versions = {}
                audit(world, step.target)
            shutil.rmtree(step.target.path, ignore_errors=True)
        elif is_refused:
            is_right = step.name == "read" or outcome.ending == "refused"
            wrong = "the state of the original was changed"
            require(is_right, wrong, f"{step.call.describe()}: {outcome.text}")
        elif outcome.ending == "done" and step.name != "read":
            twin.note(step.apply(twin.state), batch=world.newest_version(twin) - 1)
            if step.note is not None:
                step.note(twin)
            audit(world, twin)
    finally:
        world.current, world.others = original, others


def _linked(world: World, directory: Directory, path: Path) -> None:
    """Run the query by another name of the same directory."""
    path.symlink_to(directory.path)
    own, directory.path = directory.path, path
    try:
        world.run_query(directory)
        audit(world, directory)
        _wait_for_end(directory)
    finally:
        directory.path = own
    path.unlink()


def _moved(world: World, directory: Directory, path: Path) -> None:
    """Move it for good, and do what the refusal says."""
    elsewhere = directory.elsewhere
    directory.path.rename(path)
    directory.path, world.tried = path, None
    if elsewhere is None:
        return
    _query(world, directory, is_refused=True)
    owner = elsewhere / "checkpoint.json"
    fields = json.loads(owner.read_text())
    owner.write_text(json.dumps({**fields, "checkpoint": f"{path}/state"}))
