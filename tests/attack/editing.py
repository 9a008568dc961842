"""Steps that edit rows where they are or to a savepoint, and that forget keys."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from statestore import Edited

from .bytes_search import find_bytes, needles_of
from .conditions import draw_condition
from .families import Key, Rows, State, keys_table, select
from .steps import (
    Expected,
    Step,
    by_call,
    by_words,
    draw_address,
    draw_family,
    draw_keys,
    draw_rows,
    expected_of,
    grouping_keys,
    new_savepoint,
    rows_words,
    storage_words,
    without,
)
from .typed_files import write_keys, write_rows

if TYPE_CHECKING:
    from numpy.random import Generator

    from .world import Directory, World


def edit(world: World, rng: Generator) -> Step | None:
    """Delete by a condition or by keys, and put rows; in place or as a savepoint."""
    family = draw_family(world, rng, is_edited=True)
    if family is None:
        return None
    rows = world.current.state[family.name]
    how = rng.random()
    expected: Expected = {"must_be_refused": False, "may_be_refused": False}
    delete: Any = None
    words: list[Any] = []
    condition = None
    keys: list[Key] = []
    if how < 0.45:
        condition = draw_condition(rng, family, rows)
        expected = expected_of(condition)
        delete, words = condition.sql, ["--where", condition.sql]
    elif how < 0.85:
        keys = draw_keys(world, rng, family, int(rng.integers(1, 5)))
    put: Rows = {}
    if how >= 0.85 or rng.random() < 0.2:
        drawn = draw_keys(world, rng, family, int(rng.integers(1, 4)))
        put = draw_rows(world, rng, family, [key for key in drawn if key not in keys])
    chosen = set(select(family, world.current.state, condition)) if condition else set(keys)
    if condition is not None and put:
        put = {key: value for key, value in put.items() if key not in chosen}
    found = chosen & rows.keys()
    is_all = bool(rows) and len(found) == len(rows)
    if delete is None and not keys and not put:
        return None
    if not put:
        # What finds no row is refused.
        expected["must_be_refused"] |= not found
    in_place = bool(rng.random() < 0.6)
    in_words = bool(rng.random() < 0.5)
    if in_words:
        path = world.root / f"typed-{world.num_files_written()}"
        if keys:
            typed = write_keys(rng, path.with_name(f"{path.name}-keys"), family.keys, keys)
            words, expected = ["--delete", typed.path], typed.expected(expected)
        if put:
            typed = write_rows(rng, path, family, put)
            words, expected = [*words, "--upsert", typed.path], typed.expected(expected)
    elif keys:
        delete = keys_table(family.keys, keys)

    def apply(state: State) -> State:
        gone = select(family, state, condition) if condition else keys
        after = without(family, state, gone)
        return {**after, family.name: after[family.name] | put}

    target = None if in_place else new_savepoint(world)
    address = draw_address(world, rng, family)
    changes: dict[str, Any] = {} if delete is None else {"delete": delete}
    changes |= {"upsert": family.table(put, structs=bool(rng.random() < 0.5))} if put else {}
    if in_words:
        every = ["--all"] if is_all else []
        what = [*rows_words(address), *words, *every, *storage_words()]
        if target is None:
            call = by_words("edit", world.current.path, *what, "--yes")
        else:
            call = by_words("transform", world.current.path, target.path, *what)
    else:
        changes |= {"all_rows": True} if is_all else {}
        if target is None:
            call = by_call(world.current, "edit", address, **changes)
        else:
            edited = {address: Edited(**changes)}
            call = by_call(world.current, "transform", str(target.path), edited)
    name = "edit" if in_place else "transform, edited"
    return Step(name, call, apply=apply, target=target, **expected)


TIMES = ("date", "timestamp", "local")


def expire_rows(world: World, rng: Generator) -> Step | None:
    """Delete rows by a time that they have."""
    families = [
        (family, side, number, column)
        for family in world.operator.families
        for side, columns in (("key", family.keys), ("value", family.values))
        for number, column in enumerate(columns)
        if column.type_name in TIMES and column.name.isidentifier() and not column.within
    ]
    if not families or len(world.operator.families) > 1:
        return None
    family, side, number, column = families[rng.integers(len(families))]

    def time_of(key: Key, value: Key) -> datetime | None:
        found = (key if side == "key" else value)[number]
        if isinstance(found, date) and not isinstance(found, datetime):
            return datetime(found.year, found.month, found.day, tzinfo=UTC)
        return found and found.replace(tzinfo=UTC)

    rows = world.current.state[family.name]
    times = [time for key, value in rows.items() if (time := time_of(key, value)) is not None]
    if not times:
        return None
    limit = times[rng.integers(len(times))]

    def expired(state: State) -> list[Key]:
        chosen = state[family.name].items()
        return [k for k, v in chosen if (time := time_of(k, v)) is not None and time < limit]

    gone = expired(world.current.state)
    every = {"all_rows": True} if len(gone) == len(rows) else {}
    call = by_call(
        world.current, "edit", draw_address(world, rng, family),
        expire=f"{side}.{column.name}", older_than=limit, **every,
    )  # fmt: skip
    return Step(
        "edit, by a time", call,
        apply=lambda state: without(family, state, expired(state)),
    )  # fmt: skip


def set_watermark(world: World, rng: Generator) -> Step | None:
    """Set the watermark, at times back, which is refused."""
    directory = world.current
    before_ms = world.next_watermark_ms(directory)
    if not before_ms or world.has_planned_batch(directory):
        return None
    to_ms = before_ms + int(rng.integers(-5_000, 60_000))
    call = (
        by_words(
            "edit", directory.path, "--watermark-ms", to_ms, "--yes", *storage_words()
        )
        if rng.random() < 0.5
        else by_call(directory, "edit", watermark_ms=to_ms)
    )  # fmt: skip
    return Step(
        "edit, watermark",
        call,
        must_be_refused=to_ms < before_ms,
        may_be_refused=to_ms == before_ms,
    )


def forget(world: World, rng: Generator) -> Step | None:
    """Forget grouping keys by a condition or by keys."""
    family = world.operator.families[0]
    grouping = family.grouping
    of_operator = [one.name for one in world.operator.families if one.operator == family.operator]
    state = world.current.state
    known = list(grouping_keys(world, {name: state[name] for name in of_operator}))
    condition = None
    keys: list[Key] = []
    path = world.root / f"certificate-{world.num_files_written()}.json"
    words: list[Any] = ["--certificate", path]
    expected: Expected = {"must_be_refused": False, "may_be_refused": False}
    keywords: dict[str, Any] = {"operator": family.operator}
    if rng.random() < 0.4:
        condition = draw_condition(rng, family, world.current.state[family.name], only_keys=True)
        expected = expected_of(condition)
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
    in_words = bool(rng.random() < 0.5)
    if in_words:
        if keys:
            typed = write_keys(rng, path.with_name(f"{path.stem}-keys"), grouping, keys)
            words, expected = [*words, "--keys", typed.path], typed.expected(expected)
        every = ["--all"] if is_all else []
        call = by_words(
            "forget", world.current.path, "--operator", family.operator, *words, *every, "--yes",
            "--output", "json", *storage_words(),
        )  # fmt: skip
    else:
        keywords |= {"all_rows": True} if is_all else {}
        call = by_call(world.current, "forget", **keywords)
    # Of a key that no file has there is nothing to certify. An older version may have it.
    expected["may_be_refused"] |= not found
    holds = condition.holds if condition is not None else lambda key, _: key in keys
    expected["must_be_refused"] |= not any(holds(key, ()) for key in world.ever)

    def apply(state: State) -> State:
        gone = chosen(state)
        number = len(world.operator.keys)
        return state | {
            name: {key: value for key, value in state[name].items() if key[:number] not in gone}
            for name in of_operator
        }

    def check(before: State, value: Any) -> None:
        certificate = (value if isinstance(value, dict) else json.loads(value))["certificate"]
        verdicts = {one["verdict"] for one in certificate["search"]["outcomes"]}
        needles = {needle for key in chosen(before) for needle in needles_of(key)}
        if verdicts == {"forgotten"} and needles:
            current = world.current
            found = find_bytes(current.elsewhere or current.path, needles)
            assert not found, f"certified, but there: {found[:5]}"

    def note(directory: Directory) -> None:
        directory.versions = {directory.version: directory.state}

    is_alone = len(of_operator) == len(world.operator.families)
    return Step(
        "forget", call, apply=apply, note=note, check=check,
        forgotten=chosen if is_alone else None, **expected,
    )  # fmt: skip
