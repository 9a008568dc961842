"""Plans: which lives a seed makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .all_operators import OPERATORS

BACKENDS = ("filesystem", "rocksdb")


@dataclass(frozen=True)
class LifePlan:
    """A life: a query on a checkpoint, which operations attack.

    Attributes:
        seed: The run's and the life's number: what all its choices come from.
        operator: Name of the operator.
        backend: State backend that it begins on.
        checkpoint_format: 1 or 2.
        num_partitions: State partitions that it begins with.
        num_steps: Operations.
        real_time: Whether its sessions are made for real-time mode, which gives it its provider in
            another way.
        elsewhere: Whether the state of its first checkpoint is not in that.
        operations: Names of those that are drawn from; all when empty.
        disturbances: What may happen to one; all when empty.
    """

    seed: tuple[int, int]
    operator: str
    backend: str
    checkpoint_format: int
    num_partitions: int
    num_steps: int
    real_time: bool = False
    elsewhere: bool = False
    operations: tuple[str, ...] = ()
    disturbances: tuple[str, ...] = ()


def make_plan(seed: int, number: int, **wanted: Any) -> LifePlan:
    """Return a life of a seed; `wanted` are fields that are not left to chance.

    Lives go through all combinations of operator and state backend in turn.
    """
    rng = np.random.default_rng([seed, number])
    combinations = [(operator, backend) for operator in OPERATORS for backend in BACKENDS]
    order = np.random.default_rng(seed).permutation(len(combinations))
    operator, backend = combinations[order[number % len(combinations)]]
    fields = {
        "operator": operator,
        "backend": backend,
        "checkpoint_format": int(rng.integers(1, 3)),
        "num_partitions": int(rng.integers(1, 5)),
        "num_steps": int(rng.integers(6, 13)),
    }
    fields["real_time"] = fields["checkpoint_format"] == 2 and bool(rng.random() < 0.3)
    fields["elsewhere"] = bool(rng.random() < 0.3)
    return LifePlan(seed=(seed, number), **{**fields, **wanted})
