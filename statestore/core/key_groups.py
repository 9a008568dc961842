"""Key groups: the smallest unit of state that moves in a rescale.

`key_group = pmod(h, G)` where h is Spark's Murmur3 (seed 42) of the partition-key columns and G is
the max parallelism. State partition p of N owns `{g : g mod N = p}`, which is Spark's own routing
for every N that divides G. Files order rows by the rank of their key group, which puts the key
groups of a future state partition next to each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError, require_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

MAX_PARALLELISM_LIMIT = 32768


@dataclass(frozen=True, slots=True)
class KeyGroupSet:
    """The key groups g with g mod modulus = remainder.

    Those of a state partition: modulus is the number of state partitions, remainder the partition.

    Attributes:
        modulus: At least 1; divides the number of key groups.
        remainder: In [0, modulus).
    """

    modulus: int
    remainder: int

    def __contains__(self, key_group: int) -> bool:
        return key_group % self.modulus == self.remainder

    def __and__(self, other: KeyGroupSet) -> KeyGroupSet | None:
        """Return the key groups that are in both, None when none is."""
        common = math.gcd(self.modulus, other.modulus)
        if (other.remainder - self.remainder) % common:
            return None
        modulus = self.modulus // common * other.modulus
        # The Chinese remainder theorem.
        steps = (other.remainder - self.remainder) // common
        steps *= pow(self.modulus // common, -1, other.modulus // common)
        return KeyGroupSet(modulus, (self.remainder + self.modulus * steps) % modulus)


def join_sets(sets: Sequence[KeyGroupSet]) -> tuple[KeyGroupSet, ...]:
    """Return disjoint sets as one where they are one together, else as they are."""
    modulus = math.lcm(*(part.modulus for part in sets))
    size = sum(modulus // part.modulus for part in sets)
    if modulus % size:
        return tuple(sets)
    joined = KeyGroupSet(modulus // size, sets[0].remainder % (modulus // size))
    is_whole = all((part & joined) == part for part in sets)
    return (joined,) if is_whole else tuple(sets)


def check_not_chosen(max_parallelism: int, found: int) -> None:
    """Check that an operation was not asked for a number of key groups that it does not make.

    Args:
        max_parallelism: The option maxParallelism that it was given; 0 for any.
        found: Key groups that a store will have.

    Raises:
        InvalidArgumentError: They differ.
    """
    if max_parallelism not in (0, found):
        raise InvalidArgumentError(
            "the number of key groups follows from the state and its state partitions",
            key="spark.sql.streaming.stateStore.maxParallelism",
            value=max_parallelism,
            max_parallelism=found,
            to_fix="leave the option out",
        )


def default_max_parallelism(num_partitions: int) -> int:
    """Return the number of key groups of a new checkpoint: the largest N * 2^k up to 32,768.

    Args:
        num_partitions: Number of state partitions N, 1 to 32768.

    Raises:
        InvalidArgumentError: num_partitions is out of range.
    """
    check_range("num_partitions", num_partitions)
    return num_partitions << ((MAX_PARALLELISM_LIMIT // num_partitions).bit_length() - 1)


def resolve_max_parallelism(option: int, num_partitions: int) -> int:
    """Return the number of key groups of a new checkpoint.

    Args:
        option: The option maxParallelism, 0 for the default.
        num_partitions: Number of state partitions N, 1 to 32768.

    Raises:
        InvalidArgumentError: The option is not a multiple of num_partitions, so that key groups
            would not follow Spark's routing.
    """
    if option == 0:
        return default_max_parallelism(num_partitions)
    check_range("max_parallelism", option)
    check_range("num_partitions", num_partitions)
    if option % num_partitions != 0:
        raise InvalidArgumentError(
            "max parallelism is not a multiple of the number of state partitions",
            max_parallelism=option,
            num_partitions=num_partitions,
            to_fix="set spark.sql.streaming.stateStore.maxParallelism to a multiple of "
            f"{num_partitions}, or to 0 for {default_max_parallelism(num_partitions)}",
        )
    return option


@lru_cache(maxsize=16)
def rank_table(max_parallelism: int) -> npt.NDArray[np.uint16]:
    """Return the place of every key group in file order, length max_parallelism, read-only.

    With max_parallelism = 2^a * m, m odd: bit_reverse_a(g mod 2^a) * m + g div 2^a, a bijection.

    Raises:
        InvalidArgumentError: max_parallelism is out of range.
    """
    import numpy as np

    check_range("max_parallelism", max_parallelism)
    num_bits = (max_parallelism & -max_parallelism).bit_length() - 1
    odd = max_parallelism >> num_bits
    rest: npt.NDArray[np.uint32] = np.arange(max_parallelism, dtype=np.uint32)
    reversed_bits: npt.NDArray[np.uint32] = np.zeros(max_parallelism, dtype=np.uint32)
    for _ in range(num_bits):
        reversed_bits = reversed_bits << np.uint32(1) | rest & np.uint32(1)
        rest = rest >> np.uint32(1)
    table = (reversed_bits * np.uint32(odd) + rest).astype(np.uint16)
    table.setflags(write=False)
    return table


def check_range(name: str, value: int) -> None:
    """Check a number of key groups or state partitions.

    Raises:
        InvalidArgumentError: It is no whole number, or not in 1 to 32768.
    """
    if not 1 <= require_whole(name, value) <= MAX_PARALLELISM_LIMIT:
        raise InvalidArgumentError(
            f"{name.replace('_', ' ')} is out of range",
            name=name,
            value=value,
            minimum=1,
            maximum=MAX_PARALLELISM_LIMIT,
            to_fix=f"choose a number from 1 to {MAX_PARALLELISM_LIMIT}",
        )
