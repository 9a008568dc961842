"""What a life does to its checkpoint: operations with random arguments, and what they must do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .child import Call
from .columns import plain
from .conditions import Condition, draw_condition
from .families import Family, Key, Rows, State, keys_table
from .typed_files import write_keys
from .world import LEASE, Directory, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator


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
        forgotten: Grouping keys that no file may hold afterwards, by the rows before.
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


def _family(world: World, rng: Generator) -> Family:
    families = [one for one in world.operator.families if one.variable != "internal"]
    return families[rng.integers(len(families))]


def _cli(*words: Any) -> Call:
    return Call(argv=tuple(map(str, words)))


def _api(directory: Directory, method: str, *arguments: Any, **keywords: Any) -> Call:
    return Call(
        directory=str(directory.path),
        is_savepoint=directory.is_savepoint,
        method=method,
        arguments=arguments,
        keywords=keywords,
        options=LEASE,
    )


def _options() -> list[str]:
    return [word for key, value in LEASE.items() for word in ("--storage-option", f"{key}={value}")]


def read(world: World, rng: Generator) -> Step:
    """Read with a condition."""
    family = _family(world, rng)
    condition = draw_condition(rng, family, world.current.state[family.name])
    call = _api(
        world.current,
        "read",
        operator=family.operator,
        store=family.store,
        column_family=family.column_family,
        filter=condition.sql,
    )

    def check(state: State, table: Any) -> None:
        found, expected = family.rows_of(table), select(family, state, condition)
        assert found == expected, f"{condition.sql} selects {found}, expected {expected}"

    return Step("read", call, check=check, **_expected(condition))


def _expected(condition: Condition) -> dict[str, bool]:
    return {
        "must_be_refused": condition.expected == "refused",
        "may_be_refused": condition.expected == "either",
    }


def select(family: Family, state: State, condition: Condition) -> Rows:
    """Return the rows for which a condition holds."""
    if family.kind == "list":
        chosen = {
            key: tuple(one for one in values if condition.holds(key, one))
            for key, values in state[family.name].items()
        }
        return {key: values for key, values in chosen.items() if values}
    rows = state[family.name]
    return {key: value for key, value in rows.items() if condition.holds(key, value)}


def _draw_keys(world: World, rng: Generator, family: Family, number: int) -> list[Key]:
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
    more = family.keys[len(world.operator.keys) :]
    return (*world.operator.draw_key(rng), *(plain(column.draw(rng, 0)) for column in more))


def _without(family: Family, state: State, keys: Any) -> State:
    gone = set(keys)
    rows = {key: value for key, value in state[family.name].items() if key not in gone}
    return {**state, family.name: rows}


def edit(world: World, rng: Generator) -> Step:
    """Delete by a condition or by keys, and put rows; in place or as a savepoint."""
    family = _family(world, rng)
    rows = world.current.state[family.name]
    how = rng.random()
    expected = {"must_be_refused": False, "may_be_refused": False}
    delete: Any = None
    words: list[Any] = []
    condition = None
    keys: list[Key] = []
    if how < 0.45:
        condition = draw_condition(rng, family, rows)
        expected = _expected(condition)
        delete, words = condition.sql, ["--where", condition.sql]
    elif how < 0.85:
        keys = _draw_keys(world, rng, family, int(rng.integers(1, 5)))
    put: Rows = {}
    if how >= 0.85 or rng.random() < 0.2:
        for key in _draw_keys(world, rng, family, int(rng.integers(1, 4))):
            if key not in keys:
                value = world.operator.draw_state_value(rng, family)
                put[key] = (value,) if family.kind == "list" else value
    chosen = set(select(family, world.current.state, condition)) if condition else set(keys)
    if condition is not None and put:
        put = {key: value for key, value in put.items() if key not in chosen}
    found = chosen & rows.keys()
    is_all = bool(rows) and len(found) == len(rows)
    if delete is not None or keys:
        # What finds no row is refused; whatever that does, it deletes nothing.
        expected["may_be_refused"] |= not found
    in_place = bool(rng.random() < 0.6)
    by_words = not put and bool(rng.random() < 0.5)
    if by_words and keys:
        path = world.root / f"keys-{world.num_files_written()}"
        file, is_sure = write_keys(rng, path, family.keys, keys)
        words = ["--delete", file]
        expected["may_be_refused"] |= not is_sure
    elif keys:
        delete = keys_table(family.keys, keys)

    def apply(state: State) -> State:
        gone = select(family, state, condition) if condition else keys
        after = _without(family, state, gone)
        return {**after, family.name: after[family.name] | put}

    target = None if in_place else _savepoint_at(world)
    keywords: dict[str, Any] = {"operator": family.operator, "name": family.variable}
    keywords |= {} if delete is None else {"delete": delete}
    keywords |= {"upsert": family.table(put, structs=bool(rng.random() < 0.5))} if put else {}
    if by_words:
        name = [] if family.variable is None else ["--name", family.variable]
        where = ["--in-place"] if target is None else [target.path]
        every = ["--all"] if is_all else []
        call = _cli(
            "edit", world.current.path, *where, "--operator", family.operator, *name, *words,
            *every, "--yes", *_options(),
        )  # fmt: skip
    else:
        keywords |= {"all_rows": True} if is_all else {}
        if target is None:
            call = _api(world.current, "edit_in_place", **keywords)
        else:
            call = _api(world.current, "edit", str(target.path), **keywords)
    name = "edit in place" if in_place else "edit to a savepoint"
    return Step(name, call, apply=apply, target=target, **expected)


def forget(world: World, rng: Generator) -> Step | None:
    """Forget grouping keys by a condition or by keys."""
    family = world.operator.families[0]
    grouping = family.grouping
    known = list(grouping_keys(world, world.current.state))
    condition = None
    keys: list[Key] = []
    path = world.root / f"certificate-{world.num_files_written()}.json"
    words: list[Any] = ["--certificate", path]
    expected = {"must_be_refused": False, "may_be_refused": False}
    keywords: dict[str, Any] = {"operator": family.operator}
    if rng.random() < 0.4:
        condition = draw_condition(rng, family, world.current.state[family.name], only_keys=True)
        expected = _expected(condition)
        words += ["--where", condition.sql]
        keywords["where"] = condition.sql
    else:
        for _ in range(int(rng.integers(1, 4))):
            is_known = known and rng.random() < 0.85
            keys.append(
                known[rng.integers(len(known))] if is_known else world.operator.draw_key(rng)
            )
        keys = list(dict.fromkeys(keys))
        keywords["keys"] = keys_table(grouping, keys)

    def chosen(state: State) -> set[Key]:
        if condition is None:
            return set(keys)
        return {key for key in grouping_keys(world, state) if condition.holds(key, ())}

    found = chosen(world.current.state) & set(known)
    is_all = bool(known) and len(found) == len(known)
    by_words = bool(rng.random() < 0.5)
    if by_words:
        if keys:
            file, is_sure = write_keys(rng, path.with_name(f"{path.stem}-keys"), grouping, keys)
            words += ["--keys", file]
            expected["may_be_refused"] |= not is_sure
        every = ["--all"] if is_all else []
        call = _cli(
            "forget", world.current.path, "--operator", family.operator, *words, *every, "--yes",
            *_options(),
        )  # fmt: skip
    else:
        keywords |= {"all_rows": True} if is_all else {}
        call = _api(world.current, "forget", **keywords)
    # Of a key that no file has there is nothing to certify.
    expected["may_be_refused"] |= not found

    def apply(state: State) -> State:
        gone = chosen(state)
        number = len(world.operator.keys)
        return {
            name: {key: value for key, value in rows.items() if key[:number] not in gone}
            for name, rows in state.items()
        }

    def note(directory: Directory) -> None:
        directory.versions = {directory.version: directory.state}

    return Step("forget", call, apply=apply, note=note, forgotten=chosen, **expected)


def grouping_keys(world: World, state: State) -> set[Key]:
    """Return the grouping keys that have rows."""
    number = len(world.operator.keys)
    return {key[:number] for rows in state.values() for key in rows}


def _savepoint_at(world: World) -> Directory:
    return world.current.at(world.new_path(), is_savepoint=True)


def rescale(world: World, rng: Generator) -> Step:
    """Change the number of state partitions."""
    number = int(rng.choice([1, 2, 3, 4, 5, 6, 8]))
    before = world.current.num_partitions
    words = bool(rng.random() < 0.5)
    call = (
        _cli("rescale", world.current.path, "--num-partitions", number, "--yes", *_options())
        if words
        else _api(world.current, "rescale", number)
    )

    def note(directory: Directory) -> None:
        directory.before_rescale = None if number == before else before
        directory.num_partitions = number

    return Step("rescale", call, note=note, may_be_refused=number == before)


def undo(world: World, rng: Generator) -> Step:
    """Take a rescale back, where the newest batch is one."""
    before = world.current.before_rescale
    call = (
        _cli("rescale", world.current.path, "--undo", "--yes", *_options())
        if rng.random() < 0.5
        else _api(world.current, "undo_rescale")
    )

    def note(directory: Directory) -> None:
        directory.num_partitions = before or directory.num_partitions

    return Step("undo", call, note=note, must_be_refused=before is None)


def savepoint(world: World, rng: Generator) -> Step:
    """Take a savepoint."""
    form = str(rng.choice(["canonical", "native"]))
    target = _savepoint_at(world)
    call = (
        _cli("savepoint", world.current.path, target.path, "--form", form, *_options())
        if rng.random() < 0.5
        else _api(world.current, "savepoint", str(target.path), form=form)
    )
    return Step(f"savepoint, {form}", call, target=target)


def branch(world: World, rng: Generator) -> Step:
    """Branch, and go on from the branch half of the time."""
    target = world.current.at(world.new_path())
    call = (
        _cli("branch", world.current.path, target.path, "--yes", *_options())
        if rng.random() < 0.5
        else _api(world.current, "branch", str(target.path))
    )
    return Step("branch", call, target=target, goes_on=bool(rng.random() < 0.5))


def restore(world: World, rng: Generator) -> Step | None:
    """Restore a savepoint, as it was or with another shape, and go on from there."""
    savepoints = [one for one in world.others if one.is_savepoint]
    if not savepoints:
        return None
    source = savepoints[rng.integers(len(savepoints))]
    keywords: dict[str, Any] = {}
    words: list[Any] = []
    backend, number = source.backend, source.num_partitions
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
    target = source.at(world.new_path(), is_savepoint=False, backend=backend, num_partitions=number)
    call = (
        _cli("restore", source.path, target.path, *words, "--yes", *_options())
        if rng.random() < 0.5
        else _api(source, "restore", str(target.path), **keywords)
    )
    return Step("restore", call, source=source, target=target, goes_on=True)


def compact(world: World, rng: Generator) -> Step:
    """Compact."""
    call = (
        _cli("compact", world.current.path, "--yes", *_options())
        if rng.random() < 0.5
        else _api(world.current, "compact")
    )
    return Step("compact", call)


def expire(world: World, rng: Generator) -> Step:
    """Expire all but some versions."""
    keep = int(rng.integers(2, 5))
    call = (
        _cli("expire", world.current.path, "--keep", keep, "--yes", *_options())
        if rng.random() < 0.5
        else _api(world.current, "expire", keep)
    )

    def note(directory: Directory) -> None:
        oldest = directory.version - keep + 1
        directory.versions = {v: rows for v, rows in directory.versions.items() if v >= oldest}

    return Step("expire", call, note=note)


def diff(world: World, rng: Generator) -> Step | None:
    """Compare two versions."""
    family = _family(world, rng)
    versions = sorted(world.current.versions)
    if len(versions) < 2 or family.kind == "list":
        return None
    old, new = (int(v) for v in sorted(rng.choice(versions, 2, replace=False)))
    call = _api(
        world.current,
        "diff",
        old_version=old,
        new_version=new,
        operator=family.operator,
        store=family.store,
        column_family=family.column_family,
    )
    before = world.current.versions[old][family.name]
    after = world.current.versions[new][family.name]

    def check(state: State, table: Any) -> None:
        found: dict[Key, Any] = {}
        for row in table.to_pylist():
            key = tuple(plain(row["key"][column.name]) for column in family.keys)
            sides = [
                row[side] and tuple(plain(row[side][column.name]) for column in family.values)
                for side in ("old_value", "new_value")
            ]
            found[key] = tuple(sides)
        if not family.values:  # of a dedup
            assert found.keys() == before.keys() ^ after.keys()
            return
        expected = {
            key: (before.get(key), after.get(key))
            for key in before.keys() | after.keys()
            if before.get(key) != after.get(key)
        }
        assert found == expected, f"diff {old}..{new}: {found}, expected {expected}"

    return Step("diff", call, check=check)


OPERATIONS: dict[str, tuple[Callable[[World, Any], Step | None], int]] = {
    "read": (read, 6),
    "edit": (edit, 6),
    "forget": (forget, 4),
    "rescale": (rescale, 4),
    "undo": (undo, 2),
    "savepoint": (savepoint, 3),
    "restore": (restore, 4),
    "branch": (branch, 2),
    "compact": (compact, 1),
    "expire": (expire, 1),
    "diff": (diff, 2),
}
"""How a step of each operation is drawn, and how often one is."""


def draw_step(world: World, rng: Generator) -> Step:
    """Draw the next step."""
    names = list(OPERATIONS)
    weights = [OPERATIONS[name][1] for name in names]
    while True:
        name = str(rng.choice(names, p=[weight / sum(weights) for weight in weights]))
        step = OPERATIONS[name][0](world, rng)
        if step is not None:
            return step if step.source is not None else replace(step, source=world.current)
