"""Counts of a state partition's rows by key group, known without reading rows.

Every delta has those of its version by key-group class: class i of C, a power of two up to 64, are
the key groups g with g div N mod C = i, N being the number of state partitions. That is g modulo N
* C, so the rows of a rescaled state partition are known where the new number divides N * C.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from statestore.codec.trailer import Trailer

NUM_CLASSES = 64
"""Classes by which a commit is told where rows came and went."""


def class_of(key_group: int, num_partitions: int) -> int:
    """Return the class of a key group, in [0, NUM_CLASSES)."""
    return key_group // num_partitions % NUM_CLASSES


def count_classes(key_groups: npt.NDArray[np.uint16], num_partitions: int) -> npt.NDArray[np.int64]:
    """Return the number of rows in each of the NUM_CLASSES classes, by their key groups."""
    classes = key_groups // num_partitions % NUM_CLASSES
    return np.bincount(classes, minlength=NUM_CLASSES)


def grown(before: Sequence[int] | None, growth: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the rows of a version by those of its parent.

    Args:
        before: The parent's by class, None where unknown; empty for the empty state.
        growth: Rows more than before, by as many classes or a multiple of them; None where unknown.

    Returns:
        Rows by class, as many classes as the parent's; None where unknown.
    """
    if before is None or growth is None:
        return None
    if not before:
        return tuple(growth)
    more = folded(growth, len(before))
    return tuple(map(operator.add, before, more))


def folded(rows: Sequence[int], num_classes: int) -> tuple[int, ...]:
    """Return rows by fewer classes, a divisor of their number."""
    return tuple(sum(rows[number::num_classes]) for number in range(num_classes))


def rescaled(
    trailers: Sequence[Trailer], num_partitions: int, partition: int
) -> tuple[int, ...] | None:
    """Return the rows of a state partition of another layout; None where unknown.

    Args:
        trailers: The versions that its key groups come from, all of one layout.
        num_partitions: State partitions of the new layout, at least 1.
        partition: The state partition.

    Returns:
        Rows by as many classes as are known, at most NUM_CLASSES.
    """
    moduli = {of.num_partitions * len(of.key_group_rows or ()) for of in trailers}
    modulus = moduli.pop() if len(moduli) == 1 else 0
    if not modulus or modulus % num_partitions:
        return None
    found: dict[int, int] = {}
    for trailer in trailers:
        for number, count in enumerate(trailer.key_group_rows or ()):
            found[trailer.store.partition + trailer.num_partitions * number] = count
    num_classes = NUM_CLASSES
    while modulus % (num_partitions * num_classes):
        num_classes //= 2
    taken = [0] * num_classes
    for remainder, count in found.items():
        if remainder % num_partitions == partition:
            taken[remainder // num_partitions % num_classes] += count
    return tuple(taken)
