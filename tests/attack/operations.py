"""Which operations a life draws its steps from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .copying import copy
from .editing import edit, expire_rows, forget, set_watermark
from .making import (
    bootstrap,
    branch,
    convert,
    restore,
    savepoint,
    to_format_4,
    transform,
    write_savepoint,
)
from .retained import retain, two_schedules
from .scaling import ask_partitions, scale
from .trials import drop, promote, try_code
from .upkeep import compact, diff, expire, read, repair, rescale, undo

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from .steps import Step
    from .world import World

OPERATIONS: dict[str, tuple[Callable[[World, Any], Step | None], int]] = {
    "read": (read, 6),
    "edit": (edit, 8),
    "expire rows": (expire_rows, 2),
    "watermark": (set_watermark, 1),
    "forget": (forget, 6),
    "rescale": (rescale, 4),
    "undo": (undo, 2),
    "savepoint": (savepoint, 3),
    "restore": (restore, 5),
    "branch": (branch, 2),
    "transform": (transform, 3),
    "to format 4": (to_format_4, 3),
    "write_savepoint": (write_savepoint, 1),
    "bootstrap": (bootstrap, 1),
    "convert": (convert, 1),
    "compact": (compact, 1),
    "expire": (expire, 1),
    "repair": (repair, 2),
    "diff": (diff, 2),
    "ask partitions": (ask_partitions, 1),
    "scale": (scale, 2),
    "by hand": (copy, 3),
    "retain": (retain, 5),
    "two schedules": (two_schedules, 1),
    "try": (try_code, 4),
    "promote": (promote, 12),
    "drop": (drop, 3),
}
"""How a step of each operation is drawn, and how often one is; promote and drop, of a trial."""
OF_TRIAL = 0.8
"""Share of steps that end a trial, where there is one."""
ALONE = (
    "repair", "bootstrap", "convert", "try", "promote", "drop", "retain", "ask partitions", "scale",
    "by hand", "two schedules",
)  # fmt: skip
"""What is not done while another one is under way."""
MOST_DRAWS = 10_000
OF_SPARK = ("read", "diff", "restore", "restore")
"""What is done to a checkpoint of Spark's own provider."""


def draw_step(world: World, rng: Generator, *, beside: bool = False) -> Step:
    """Draw the next step; `beside` another, which is under way."""
    names = list(world.plan.operations or OPERATIONS)
    weights = [OPERATIONS[name][1] for name in names]
    for _ in range(MOST_DRAWS):
        name = str(rng.choice(names, p=[weight / sum(weights) for weight in weights]))
        tried = world.tried
        if tried is not None and tried.of is world.current and rng.random() < OF_TRIAL:
            name = str(rng.choice(["promote", "promote", "promote", "drop"]))
        if world.current.backend == "spark-rocksdb":
            name = str(rng.choice(OF_SPARK))
        if beside and name in ALONE:
            name = "read"
        step = OPERATIONS[name][0](world, rng)
        if step is not None:
            return step if step.source is not None else replace(step, source=world.current)
    raise RuntimeError(f"none of these can be done here: --operation {', '.join(names)}")
