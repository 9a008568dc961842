"""The operators that lives have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .groups import Groups
from .joins import Join, JoinByTime
from .operators import Aggregation, Dedup, DedupThenCount, Operator
from .sessions import Sessions
from .timers import Timers
from .variables import Variables

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

OPERATORS: dict[str, Callable[[Generator], Operator]] = {
    "aggregation": Aggregation,
    "dedup": Dedup,
    "dedup, then count": DedupThenCount,
    "groups": Groups,
    "variables": Variables,
    "timers": Timers,
    "sessions": Sessions,
    "join": Join,
    "join by time": JoinByTime,
}


def make_operator(name: str, seed: tuple[int, ...]) -> Operator:
    """Return an operator of OPERATORS with the columns of a seed."""
    return OPERATORS[name](np.random.default_rng(seed))
