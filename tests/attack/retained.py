"""Savepoints that are taken one after the other into a directory, of which some stay."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from statestore import Savepoint, StateStoreError

from .audit import audit, read_state, require
from .steps import Step, by_call, by_words, storage_words

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.random import Generator

    from .families import State
    from .world import Directory, World


@dataclass
class Retained:
    """The savepoints of a checkpoint.

    Attributes:
        path: Where they are.
        known: Those that are whole, by name.
    """

    path: Path
    known: dict[str, Directory] = field(default_factory=dict)

    def look(self, world: World, directory: Directory, state: State | None) -> list[str]:
        """Compare what is there, and return the names of what is whole, oldest first.

        Args:
            world: Whose it is.
            directory: The checkpoint.
            state: What a savepoint that is new must hold; None for what it has.
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
                made.state = read_state(world, made) if state is None else state
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
        kept.look(world, directory, directory.state)

    def check(state: State, _: object) -> None:
        known = [*before, *kept.known]
        names = kept.look(world, directory, state)
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
