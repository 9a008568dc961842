"""Steps that read, and that look after a checkpoint where it is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from statestore import Checkpoint

from .conditions import draw_condition
from .families import Key, State, select, taken
from .steps import (
    Step,
    by_call,
    by_words,
    draw_address,
    draw_family,
    expected_of,
    storage_words,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.random import Generator

    from .world import Directory, World


def read(world: World, rng: Generator) -> Step:
    """Read with a condition."""
    family: Any = draw_family(world, rng)
    condition = draw_condition(rng, family, world.current.state[family.name])
    call = by_call(
        world.current,
        "rows.read",
        draw_address(world, rng, family),
        None,
        filter=condition.sql,
    )

    def check(state: State, table: Any) -> None:
        found, expected = family.rows_of(table), select(family, state, condition)
        assert found == expected, f"{condition.sql} selects {found}, expected {expected}"

    return Step("read", call, check=check, **expected_of(condition))


def rescale(world: World, rng: Generator) -> Step:
    """Change the number of state partitions."""
    number = int(rng.choice([1, 2, 3, 4, 5, 6, 8]))
    before = world.current.num_partitions
    words = bool(rng.random() < 0.5)
    call = (
        by_words(
            "rescale", world.current.path, "--num-partitions", number, "--yes", *storage_words()
        )
        if words
        else by_call(world.current, "rescale", number)
    )

    def note(directory: Directory) -> None:
        if number != before:
            directory.before_rescale, directory.num_partitions = before, number

    return Step("rescale", call, note=note, may_be_refused=number == before)


def undo(world: World, rng: Generator) -> Step:
    """Take a rescale back, where the newest batch is one."""
    before = world.current.before_rescale
    call = (
        by_words("rescale", world.current.path, "--undo", "--yes", *storage_words())
        if rng.random() < 0.5
        else by_call(world.current, "undo_rescale")
    )

    def note(directory: Directory) -> None:
        directory.num_partitions = Checkpoint(directory.path).inspect()[0].num_partitions
        assert before in (None, directory.num_partitions), f"undone to another number than {before}"
        directory.was_undone = True

    return Step(
        "undo", call, note=note,
        must_be_refused=before is None and not world.current.was_undone,
        may_be_refused=before is None,
    )  # fmt: skip


def compact(world: World, rng: Generator) -> Step:
    """Compact."""
    call = (
        by_words("compact", world.current.path, "--yes", *storage_words())
        if rng.random() < 0.5
        else by_call(world.current, "compact")
    )
    return Step("compact", call)


def expire(world: World, rng: Generator) -> Step:
    """Expire all but some versions."""
    keep = int(rng.integers(2, 5))
    call = (
        by_words("expire", world.current.path, "--keep", keep, "--yes", *storage_words())
        if rng.random() < 0.5
        else by_call(world.current, "expire", keep)
    )

    def note(directory: Directory) -> None:
        oldest = directory.version - keep + 1
        directory.versions = {v: rows for v, rows in directory.versions.items() if v >= oldest}

    return Step("expire", call, note=note)


def diff(world: World, rng: Generator) -> Step | None:
    """Compare two versions."""
    family: Any = draw_family(world, rng)
    versions = sorted(world.current.versions)
    if len(versions) < 2 or family.kind != "value":
        return None
    old, new = (int(v) for v in sorted(rng.choice(versions, 2, replace=False)))
    call = by_call(
        world.current,
        "rows.diff",
        draw_address(world, rng, family),
        old,
        new,
    )
    before = world.current.versions[old][family.name]
    after = world.current.versions[new][family.name]

    def check(state: State, table: Any) -> None:
        found: dict[Key, Any] = {}
        for row in table.to_pylist():
            key = taken(row["key"], family.keys)
            sides = [
                row[side] and taken(row[side], family.values) for side in ("old_value", "new_value")
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


def repair(world: World, rng: Generator) -> Step | None:
    """Damage the newest version, and go back to the one before it."""
    directory = world.current
    version = directory.version
    earlier = directory.versions.get(version - 1)
    files = [
        path
        for path in sorted(
            (directory.elsewhere or directory.path / "state").rglob(f"{version}[._]*delta*")
        )
        if path.is_file() and path.stat().st_size > 64 and not path.name.endswith(".crc")
    ]
    if earlier is None or not files or directory.before_rescale is not None:
        return None
    chosen = files[rng.integers(len(files))]
    for path in files:
        # A call that was killed may have left a file beside the one that counts.
        if path.parent == chosen.parent:
            _damage(path)
    call = (
        by_words("repair", directory.path, "--yes", *storage_words())
        if rng.random() < 0.5
        else by_call(directory, "repair")
    )

    def note(directory: Directory) -> None:
        directory.begin_sink()  # a file sink passes over batches that it has

    return Step("repair", call, apply=lambda state: earlier, note=note)


def _damage(path: Path) -> None:
    """Change a byte of a file, but not of others that share its bytes by hard link."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    copy = path.with_name(f".tmp-{path.name}")
    copy.write_bytes(data)
    os.replace(copy, path)  # noqa: PTH105
