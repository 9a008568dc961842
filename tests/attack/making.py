"""Steps that make another directory, of a checkpoint or a savepoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statestore import Checkpoint

from .conditions import draw_condition
from .families import State, difference, select
from .joins import Join
from .steps import (
    Step,
    by_call,
    by_words,
    draw_address,
    draw_family,
    draw_keys,
    draw_rows,
    new_savepoint,
    storage_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from .world import World


def savepoint(world: World, rng: Generator) -> Step:
    """Take a savepoint, at times of an older version."""
    form = str(rng.choice(["canonical", "native"]))
    state, words, keywords, changes = _draw_version(world, rng)
    target = world.current.at(world.new_path(), is_savepoint=True, **changes)
    call = (
        by_words(
            "savepoint", world.current.path, target.path, "--form", form, *words, *storage_words()
        )
        if rng.random() < 0.5
        else by_call(world.current, "savepoint", str(target.path), form=form, **keywords)
    )  # fmt: skip
    return Step(f"savepoint, {form}", call, apply=state, target=target)


def branch(world: World, rng: Generator) -> Step:
    """Branch, at times of an older version, and go on from the branch half of the time."""
    state, words, keywords, changes = _draw_version(world, rng)
    target = world.current.at(world.new_path(), **changes)
    call = (
        by_words("branch", world.current.path, target.path, *words, *storage_words())
        if rng.random() < 0.5
        else by_call(world.current, "branch", str(target.path), **keywords)
    )
    goes_on = bool(rng.random() < 0.5)
    return Step("branch", call, apply=state, target=target, goes_on=goes_on)


def _draw_version(
    world: World, rng: Generator
) -> tuple[Callable[[State], State], list[Any], dict[str, Any], dict[str, Any]]:
    """Draw the version that something is made of.

    Returns:
        Its state, by that of the newest; words and keywords that ask for it; and what is other in a
        directory of it. Nothing of the last three for the newest one.
    """
    directory = world.current
    older = [version for version in directory.versions if version < directory.version]
    if not older or rng.random() < 0.7:
        return (lambda state: state), [], {}, {}
    version = older[rng.integers(len(older))]
    number = world.partitions_of(directory, version - 1)
    state = directory.versions[version]
    changes = {"num_partitions": number, "batch": version - 1}
    return (lambda _: state), ["--version", version], {"version": version}, changes


def restore(world: World, rng: Generator) -> Step:
    """Restore a savepoint or the checkpoint, as it was or otherwise, and go on from there.

    The checkpoint may be one of Spark's own provider.
    """
    savepoints = [one for one in world.others if one.is_savepoint]
    is_sparks = world.current.backend == "spark-rocksdb"
    is_checkpoint = is_sparks or not savepoints or rng.random() < 0.2
    source = world.current if is_checkpoint else savepoints[rng.integers(len(savepoints))]
    keywords: dict[str, Any] = {}
    words: list[Any] = []
    backend = "rocksdb" if source.backend == "spark-rocksdb" else source.backend
    number = source.num_partitions
    if rng.random() < 0.5:
        backend = str(rng.choice(["filesystem", "rocksdb"]))
        keywords["backend"] = backend
        words += ["--backend", backend]
    if rng.random() < 0.4:
        number = int(rng.integers(1, 7))
        keywords["num_partitions"] = number
        words += ["--num-partitions", number]
    if rng.random() < 0.3:
        keywords["new_query_id"] = True
        words += ["--new-query-id"]
    if world.plan.elsewhere and rng.random() < 0.5:
        words += ["--storage-option", f"checkpointStorage={world.states}"]
    target = source.at(world.new_path(), is_savepoint=False, backend=backend, num_partitions=number)
    call = (
        by_words("restore", source.path, target.path, *words, *storage_words())
        if rng.random() < 0.5
        else by_call(source, "restore", str(target.path), **keywords)
    )
    return Step("restore", call, source=source, target=target, goes_on=True)


def transform(world: World, rng: Generator) -> Step:
    """Make other rows of those there are, by SQL or a function."""
    family: Any = draw_family(world, rng)
    target = new_savepoint(world)
    apply: Callable[[State], State] = lambda state: state  # noqa: E731
    long = [one for one in family.values if one.path == ("count",) and family.kind == "value"]
    chance = rng.random()
    made: Any = "SELECT * FROM state"
    if chance < 0.3:
        made = unchanged
    elif not family.is_edited:
        pass
    elif chance < 0.6 and long:
        tops = dict.fromkeys(one.path[0] for one in family.values if one not in long)
        others = (f"'{top}': value.\"{top}\"" for top in tops)
        fields = ", ".join(["'count': value.count + 1", *others])
        made = f"SELECT key, {{{fields}}} AS value FROM state"

        def apply(state: State) -> State:
            at = family.values.index(long[0])
            rows = {
                key: (*value[:at], value[at] + 1, *value[at + 1 :])
                for key, value in state[family.name].items()
            }
            return {**state, family.name: rows}
    else:
        rows = world.current.state[family.name]
        condition = draw_condition(rng, family, rows, only_paths=True)
        if condition.expected == "works":
            made = f"SELECT * FROM state WHERE {condition.sql}"
            apply = lambda state: {**state, family.name: select(family, state, condition)}  # noqa: E731
    if isinstance(made, str) and rng.random() < 0.5:
        call = by_words(
            "transform", world.current.path, target.path, "--sql", f"{family.address}={made}",
            *storage_words(),
        )  # fmt: skip
    else:
        call = by_call(
            world.current, "transform", str(target.path), {draw_address(world, rng, family): made}
        )
    return Step("transform", call, apply=apply, target=target)


def to_format_4(world: World, rng: Generator) -> Step | None:
    """Let a join be of state format 4, look at its rows there, and go on with what there was."""
    if not isinstance(world.operator, Join) or world.operator.conf:
        return None
    path = world.new_path()
    families = world.operator.lists_in_format_4()

    def check(before: State, _: Any) -> None:
        for name, family in families.items():
            wrong = difference(family.read(path), before[name])
            assert not wrong, f"{path}, {family.name}:\n{wrong}"
        found = Checkpoint(path).verify(deep=True)
        assert not found.findings, found.describe()

    call = (
        by_words("transform", world.current.path, path, "--join-format", 4, *storage_words())
        if rng.random() < 0.5
        else by_call(world.current, "transform", str(path), join_format=4)
    )
    return Step("to format 4", call, check=check)


def unchanged(rows: Any) -> Any:
    """Return rows as they are: a function for `transform`."""
    return rows


def draw_state(world: World, rng: Generator) -> State:
    """Draw rows for each family, which need not go with one another."""
    state: State = {}
    for family in world.operator.families:
        before = world.current.state[family.name]
        if family.is_edited:
            keys = draw_keys(world, rng, family, int(rng.integers(0, 12)))
            state[family.name] = draw_rows(world, rng, family, keys)
        else:
            state[family.name] = before
    return state


def write_savepoint(world: World, rng: Generator) -> Step | None:
    """Give all rows."""
    if not all(family.is_edited for family in world.operator.families):
        return None
    state = draw_state(world, rng)
    target = new_savepoint(world)
    call = by_call(
        world.current, "write_savepoint", str(target.path), rows=_as_given(world, state, rng)
    )
    return Step("write_savepoint", call, apply=lambda before: state, target=target)


def _as_given(world: World, state: State, rng: Generator) -> Any:
    structs = bool(rng.random() < 0.5)
    return {
        draw_address(world, rng, family): family.table(state[family.name], structs=structs)
        for family in world.operator.families
    }


def bootstrap(world: World, rng: Generator) -> Step | None:
    """Begin a new query with a history: the input until now is taken for read."""
    if not all(family.is_edited for family in world.operator.families):
        return None
    state = draw_state(world, rng)
    target = world.current.at(world.new_path())
    given = _as_given(world, state, rng)

    def run() -> None:
        import statestore

        frame = world.frame(world.session(target.backend))
        captured = statestore.capture_query(
            frame, str(world.new_path()), output_mode=world.operator.mode
        )
        savepoint = statestore.write_savepoint(
            str(world.new_path()), like=captured, rows=given
        ).made
        savepoint.restore(str(target.path))

    call = by_call(world.current, "bootstrap", str(target.path), given)
    target.num_partitions = world.plan.num_partitions
    return Step(
        "bootstrap", call, apply=lambda before: state, target=target, goes_on=True, in_process=run
    )


def convert(world: World, rng: Generator) -> Step:
    """Go on with Spark's own provider."""
    del rng
    backend = "spark-rocksdb"
    source = world.current
    target = source.at(world.new_path(), backend=backend)

    def run() -> None:
        session = world.session(source.backend)
        Checkpoint(source.path, spark=session).convert(str(target.path), backend)

    call = by_call(source, "convert", str(target.path), backend)
    # Spark has no way in for some state variables.
    is_unsure = any(family.column_family != "default" for family in world.operator.families)
    return Step(
        "convert", call, target=target, goes_on=True, in_process=run, may_be_refused=is_unsure
    )
