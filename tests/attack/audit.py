"""Whether a directory holds what it must: rows, damage, and bytes of keys that were forgotten."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from numpy.random import default_rng

from statestore import Checkpoint, StateStoreError
from statestore.core.text import to_json
from statestore.operations.reading.tables import quoted
from tests.lives import ProblemError

from .bytes_search import find_bytes, needles_of
from .conditions import draw_condition
from .families import WrongRowsError, difference, select

if TYPE_CHECKING:
    from numpy.random import Generator

    from .families import State
    from .world import Directory, World


def require(is_so: object, problem: str, details: str) -> None:
    """Raise unless something is so.

    Raises:
        ProblemError: It is not.
    """
    if not is_so:
        raise ProblemError(problem, details)


def read_state(world: World, directory: Directory, version: int | None = None) -> State:
    """Return all rows of a directory, through the package.

    Raises:
        ProblemError: A key is there twice.
        StateStoreError: It cannot be read.
    """
    try:
        return {one.name: one.read(directory.path, version) for one in world.operator.families}
    except WrongRowsError as error:
        raise ProblemError("rows are doubled", str(error)) from error


def audit(world: World, directory: Directory, rng: Generator | None = None) -> int:
    """Compare a directory with what it must hold, and verify every byte of it.

    Args:
        world: Whose directory it is.
        directory: The directory.
        rng: Chooses what else is looked at: an older version, all versions, SQL, Spark's
            own reader.

    Returns:
        Rows that were compared.

    Raises:
        ProblemError: Something is wrong.
    """
    chance = rng.random(3) if rng is not None else [0.5] * 3
    expected: dict[int | None, State] = {None: directory.state}
    if rng is not None and chance[0] < 0.4:
        version = int(rng.choice(sorted(directory.versions)))
        expected[version] = directory.versions[version]
    num_rows = 0
    for at, state in expected.items():
        num_rows += _compare(world, directory, state, at)
        if chance[2] > 0.7:
            num_rows += _compare_by_sql(world, directory, state, at, rng)
        if rng is not None and chance[1] > 0.6:
            _compare_by_key(world, directory, state, at, default_rng(int(chance[1] * 2**32)))
    which: Any = "all" if chance[1] < 0.3 else None
    found = Checkpoint(directory.path).verify(versions=which, deep=True)
    require(not found.findings, "verify finds damage", found.describe())
    stores = Checkpoint(directory.path).inspect()
    partitions = {store.num_partitions for store in stores}
    require(
        partitions == {directory.num_partitions},
        "the number of state partitions is another one",
        f"{partitions}, expected {directory.num_partitions}",
    )
    if chance[2] < 0.2 and not directory.is_savepoint:
        num_rows += _compare_in_spark(world, directory)
    return num_rows


def _compare(world: World, directory: Directory, state: State, version: int | None) -> int:
    try:
        found = read_state(world, directory, version)
    except StateStoreError as error:
        what = f"version {version} of {directory.path}"
        raise ProblemError("state cannot be read", f"{what}: {error}") from error
    for name, rows in state.items():
        wrong = difference(found[name], rows)
        require(
            not wrong, "rows are wrong", f"{directory.path}, {name}, version {version}:\n{wrong}"
        )
    return sum(map(len, state.values()))


def _compare_by_sql(
    world: World, directory: Directory, state: State, version: int | None, rng: Generator | None
) -> int:
    """Compare with what SQL selects, in which the elements of a list have no order."""
    at = "" if version is None else f"@{version}"
    for family in world.operator.families:
        table = quoted(f"{family.address}{at}")
        where, expected = "", state[family.name]
        if rng is not None and rng.random() < 0.5:
            condition = draw_condition(rng, family, expected, only_paths=True)
            if condition.expected == "works":
                where, expected = f" WHERE {condition.sql}", select(family, state, condition)
        found = Checkpoint(directory.path).sql(f"SELECT value, key FROM {table}{where}").read()
        rows = [family.rows_of(found), expected]
        if family.kind == "list":
            rows = [
                {key: tuple(sorted(values, key=repr)) for key, values in of.items()} for of in rows
            ]
        wrong = difference(*rows)
        require(not wrong, "SQL selects other rows", f"{directory.path}, {table}{where}:\n{wrong}")
    return sum(map(len, state.values()))


def _compare_by_key(
    world: World, directory: Directory, state: State, version: int | None, rng: Generator
) -> None:
    """Find rows by all or some columns of a key, from Python and as the command line prints it."""
    for family in world.operator.families:
        rows, names = state[family.name], list(dict.fromkeys(one.path[0] for one in family.keys))
        if not rows or not names:
            continue
        key = [*rows][rng.integers(len(rows))]
        given = names[: rng.integers(1, len(names) + 1)]
        values = [column[0].as_py() for column in family.key_columns(key)[: len(given)]]
        places = [at for at, one in enumerate(family.keys) if one.path[0] in given]
        expected = {
            other: value
            for other, value in rows.items()
            if all(other[at] == key[at] for at in places)
        }
        it = Checkpoint(directory.path).rows(family.address, version=version)
        for typed in (values, json.loads(to_json(values), parse_float=Decimal)):
            try:
                wrong = difference(family.rows_of(it.find(typed)), expected)
            except StateStoreError as error:
                wrong = str(error)
            where = f"{directory.path}, {family.name}, version {version}, {typed}"
            require(not wrong, "a key finds other rows", f"{where}:\n{wrong}")


def _compare_in_spark(world: World, directory: Directory) -> int:
    """Compare with Spark's own state reader, by the name of a table."""
    number = 0
    for family in world.operator.families:
        is_default = family.store == family.column_family == "default"
        # Arrow has no struct with two fields of a name, as Spark's reader would give.
        if not is_default or any(column.name.endswith("_2") for column in family.values):
            continue
        session = world.session(directory.backend)
        session.conf.set("spark.sql.catalog.state", "io.statestore.StateCatalog")
        frame = session.table(f"state.`{directory.path}`.`{family.address}`")
        found = family.rows_of(frame.select("key", "value").toArrow())
        wrong = difference(found, directory.state[family.name])
        require(not wrong, "Spark reads other rows", f"{directory.path}, {family.name}:\n{wrong}")
        number += len(found)
    return number


def forgotten_bytes(world: World, directory: Directory) -> list[str]:
    """Return where bytes of forgotten keys are found in a directory."""
    living = {
        needle
        for rows in directory.state.values()
        for item in rows.items()
        for needle in needles_of(item)
    }
    needles = {needle for key in directory.gone for needle in needles_of(key)} - living
    places = [directory.path, directory.elsewhere] if needles else []
    return [found for place in places if place for found in find_bytes(place, needles)]
