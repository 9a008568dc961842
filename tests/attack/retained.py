"""Savepoints that are taken one after the other into a directory, of which some stay."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import statestore
from statestore import Every, FixedDelay, Savepoint, StateStoreError

from .audit import audit, read_state, require
from .child import run
from .driver import EVERY
from .steps import Step, by_call, by_words, storage_words
from .world import NO_WORKER, NUM_TRIES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.random import Generator

    from statestore.operations.savepoint.savepoint import SavepointForm

    from .families import State
    from .world import Directory, World

LEAST_ROUNDS = 3
"""So often a second schedule takes a savepoint at least, beside that of the driver."""
AT_ONCE = ("file-not-found", "directory-gone", "version-not-found", "fenced", "checkpoint-in-use")
"""Kinds of errors by which one of two schedules may end."""


@dataclass
class Retained:
    """The savepoints of a checkpoint.

    Attributes:
        path: Where they are.
        known: Those that are whole, by name.
    """

    path: Path
    known: dict[str, Directory] = field(default_factory=dict)

    def look(
        self, world: World, directory: Directory, states: Mapping[int, State] | None
    ) -> list[str]:
        """Compare what is there, and return the names of what is whole, oldest first.

        Args:
            world: Whose it is.
            directory: The checkpoint.
            states: What a savepoint that is new must hold, by version; None for what it has.
        """
        before, created = set(self.known), {}
        for path in self.path.glob("savepoint-*"):
            try:
                info = Savepoint(path).info
            except StateStoreError:
                continue
            created[path.name] = info.created_ms
            if path.name not in self.known:
                made = directory.at(path, is_savepoint=True, batch=info.version - 1)
                known = states is None or info.version in states
                require(known, "a savepoint is of no version", f"{path}, version {info.version}")
                made.state = read_state(world, made) if states is None else states[info.version]
                made.versions = {made.version: made.state}
                made.num_partitions = info.num_partitions
                self.known[path.name] = made
            audit(world, self.known[path.name])
        names = sorted(created, key=lambda name: created[name])
        self.known = {name: self.known[name] for name in names}
        require(names or not before, "no savepoint is whole any more", f"before: {before}")
        return names


def retain(world: World, rng: Generator) -> Step:
    """Take a savepoint where there is a new batch, and delete old ones."""
    directory = world.current
    path = directory.path.with_name(f"{directory.path.name}-kept")
    kept = world.retained.setdefault(path, Retained(path))
    before = kept.look(world, directory, None)
    keep = int(rng.integers(1, 4))
    form = str(rng.choice(["canonical", "native"]))
    in_words = bool(rng.random() < 0.5)
    is_short = in_words and bool(rng.random() < 0.2)
    restores = bool(rng.random() < 0.3)
    call = (
        by_words(
            "savepoint", directory.path, path, "--keep", keep, "--form", form,
            *["--max-age", "1s"] * is_short, *storage_words(),
        )
        if in_words
        else by_call(directory, "retain_savepoint", str(path), keep=keep, form=form)
    )  # fmt: skip

    def look() -> None:
        kept.look(world, directory, {directory.version: directory.state})

    def check(state: State, _: object) -> None:
        known = [*before, *kept.known]
        names = kept.look(world, directory, {directory.version: state})
        newest = kept.known[names[-1]]
        require(newest.state == state, "the newest savepoint is not of now", names[-1])
        wrong = f"{names} of {known} and new ones, keep={keep}"
        stays = [*dict.fromkeys([*known, *names])][-keep:]
        require(names == stays or (is_short and set(names) <= set(stays)), "retained", wrong)
        if restores:
            made = newest.at(world.new_path(), is_savepoint=False)
            Savepoint(newest.path).restore(str(made.path))
            audit(world, made)

    return Step(f"retain, {form}", call, check=check, look=look)


def two_schedules(world: World, rng: Generator) -> Step | None:
    """Run a query with a schedule in its driver, and one from outside, at times killed."""
    directory = world.current
    if world.has_planned_batch(directory):
        return None
    path = directory.path.with_name(f"{directory.path.name}-kept")
    kept = world.retained.setdefault(path, Retained(path))
    kept.look(world, directory, None)
    of_driver, of_others = (int(keep) for keep in rng.integers(1, 4, 2))
    forms: list[SavepointForm] = rng.choice(["canonical", "native"], 2).tolist()
    kills = [int(at) if at < 60 else None for at in rng.integers(0, 120, 200)]
    world.feed(rng, int(rng.integers(2, 5)))
    call = by_call(directory, "retain_savepoint", str(path), keep=of_others, form=forms[1])

    def take_both() -> None:
        handles: list[Any] = []
        wrong: list[str] = []

        def start() -> Any:
            handles.append(world.start(directory, every=EVERY))
            return handles[-1]

        def take() -> None:
            number = 0
            while runs.is_set() and not (number >= LEAST_ROUNDS and world.has_read_all(directory)):
                at = kills[number % len(kills)]
                outcome = run(call, "" if at is None else "kill", at or 0, world.bug)
                is_right = outcome.ending in ("done", "killed") or outcome.kind in AT_ONCE
                wrong.extend([] if is_right else [outcome.text])
                number += 1
            while runs.is_set():
                for handle in handles[-1:]:
                    handle.stop()
                time.sleep(0.2)

        runs = threading.Event()
        runs.set()
        taking = threading.Thread(target=take)
        taking.start()
        schedule = Every(1, path, keep=of_driver, form=forms[0])
        try:
            past = statestore.run(start, FixedDelay(NUM_TRIES, 0.1), savepoints=schedule)
        finally:
            runs.clear()
            taking.join()
            world.absorb(directory)
        wrong += [str(one) for one in past.failures if NO_WORKER not in str(one)]
        require(not wrong, "one of two schedules, or their query, has failed", str(wrong))
        kept.look(world, directory, directory.versions)
        last = run(call, bug=world.bug)
        require(last.ending == "done", "no savepoint was taken after two schedules", last.text)
        names = kept.look(world, directory, directory.versions)
        is_now = kept.known[names[-1]].state == directory.state
        require(is_now, "the newest savepoint is not of now", names[-1])
        require(len(names) <= of_others, "retained", f"{names}, keep={of_others}")

    return Step("retain, two schedules", call, in_process=take_both)
