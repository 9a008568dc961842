"""A step of a life: an operation with its arguments, and what it must do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from .child import Call
from .families import Family, Key, Rows, State
from .world import LEASE, Directory, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from .child import Child
    from .conditions import Condition


def _same(state: State) -> State:
    return state


@dataclass
class Step:
    """An operation with its arguments.

    Attributes:
        name: What is counted.
        call: What is called.
        apply: Rows of the checkpoint, or of what is made, after it; of those before.
        must_be_refused: Whether it may not be done.
        may_be_refused: Whether it may, by an error of the package.
        target: What it makes, if anything; the query goes on from it where `goes_on`.
        source: What it works on.
        note: Called with the directory when it is done: what becomes of older versions.
        check: Called with the rows before and what the call returned: raises where that is wrong.
        serve: Called again and again while it runs: does what it asks this application for.
        in_process: Does it in this process, where it needs Spark; in place of the call.
        forgotten: Grouping keys that no file may hold afterwards, by the rows before.
        look: Looks at what it left where it was killed: raises where that is wrong.
        instead: Takes back what it left where it was killed, and the checkpoint may be unfinished.
    """

    name: str
    call: Call
    apply: Callable[[State], State] = _same
    must_be_refused: bool = False
    may_be_refused: bool = False
    source: Directory = field(default=None)  # type: ignore[assignment]
    target: Directory | None = None
    goes_on: bool = False
    note: Callable[[Directory], None] | None = None
    check: Callable[[State, Any], None] | None = None
    forgotten: Callable[[State], set[Key]] | None = None
    serve: Callable[[Child], None] | None = None
    in_process: Callable[[], Any] | None = None
    look: Callable[[], None] | None = None
    instead: Step | None = None


def draw_family(world: World, rng: Generator, *, is_edited: bool = False) -> Family | None:
    """Draw a family, of those whose rows may change alone where `is_edited`; None without any."""
    families = [one for one in world.operator.families if one.is_edited or not is_edited]
    return families[rng.integers(len(families))] if families else None


def draw_rows(world: World, rng: Generator, family: Family, keys: list[Key]) -> Rows:
    """Draw what may be put for keys."""
    rows = world.current.state[family.name]
    drawn = {key: world.operator.draw_value_of(rng, family, key, rows.get(key)) for key in keys}
    return {key: value for key, value in drawn.items() if value is not None}


def by_words(*words: Any) -> Call:
    return Call(argv=tuple(map(str, words)))


def by_call(directory: Directory, method: str, *arguments: Any, **keywords: Any) -> Call:
    return Call(
        directory=str(directory.path),
        is_savepoint=directory.is_savepoint,
        method=method,
        arguments=arguments,
        keywords=keywords,
        options=LEASE,
    )


def draw_address(world: World, rng: Generator, family: Family) -> str | int | None:
    """Return the address of rows in one of the ways in which people write it."""
    return family.draw_address(rng, is_alone=len(world.operator.families) == 1)


def rows_words(address: str | int | None) -> list[str]:
    """Return an address as an option."""
    return [] if address is None else ["--rows", str(address)]


def storage_words() -> list[str]:
    return [word for key, value in LEASE.items() for word in ("--storage-option", f"{key}={value}")]


class Expected(TypedDict):
    """Whether a step must or may be refused: as keywords of it."""

    must_be_refused: bool
    may_be_refused: bool


def expected_of(condition: Condition) -> Expected:
    return {
        "must_be_refused": condition.expected == "refused",
        "may_be_refused": condition.expected == "either",
    }


def draw_keys(world: World, rng: Generator, family: Family, number: int) -> list[Key]:
    """Draw keys of which most have rows."""
    known = list(world.current.state[family.name])
    keys = []
    for _ in range(number):
        if known and rng.random() < 0.8:
            keys.append(known[rng.integers(len(known))])
        else:
            keys.append(draw_key(world, rng, family))
    return list(dict.fromkeys(keys))


def draw_key(world: World, rng: Generator, family: Family) -> Key:
    """Draw a key of a family."""
    return world.operator.draw_key_of(rng, family)


def without(family: Family, state: State, keys: Any) -> State:
    gone = set(keys)
    rows = {key: value for key, value in state[family.name].items() if key not in gone}
    return {**state, family.name: rows}


def grouping_keys(world: World, state: State) -> set[Key]:
    """Return the grouping keys that have rows."""
    number = len(world.operator.keys)
    return {key[:number] for rows in state.values() for key in rows}


def new_savepoint(world: World) -> Directory:
    return world.current.at(world.new_path(), is_savepoint=True)
