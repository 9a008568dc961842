"""What a rescale, or the undo of one, is going to do or did; nothing that does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Way = Literal["key-groups", "whole", "rehash"]
"""How a store is rescaled: by files it has already, each new state partition taking its key groups
of them; not at all, because its state is one; or row by row."""


@dataclass(frozen=True, slots=True)
class StoreRescale:
    """What a rescale does with one store of a stateful operator.

    Attributes:
        operator, operator_name, name: Which store.
        way: How it is rescaled.
        max_parallelism: Number of key groups afterwards; another one only where it is re-hashed.
        num_files, num_bytes: The files that its state is in until now. The query reads them, each
            state partition its key groups of them, when it starts; a re-hash reads them itself.
        num_rows: Rows of its state; None where only reading them would tell.
        partition_rows: Rows of every new state partition that has state, in their order; None
            where only reading them would tell.
    """

    operator: int
    operator_name: str
    name: str
    way: Way
    max_parallelism: int
    num_files: int
    num_bytes: int
    num_rows: int | None
    partition_rows: tuple[int, ...] | None

    @property
    def skew(self) -> float | None:
        """Rows of the largest new state partition by those of the mean; None where unknown."""
        rows = self.partition_rows or ()
        return max(rows) * len(rows) / sum(rows) if any(rows) else None


@dataclass(frozen=True, slots=True)
class RescalePlan:
    """What a rescale does, or did.

    Attributes:
        checkpoint: URI of the checkpoint.
        backend: Its state backend.
        batch: The batch that stands for the rescale in Spark's logs; the query goes on with the
            next one.
        num_partitions_before: Number of state partitions until now.
        num_partitions: Number of state partitions afterwards.
        is_begun: Whether the batch is planned already, by a rescale that did not end or by Spark's
            own repartition, which refuses other providers after that.
        is_done: Whether the checkpoint has that number of state partitions already, so that there
            is nothing to do.
        stores: What is done with each store.
    """

    checkpoint: str
    backend: str
    batch: int
    num_partitions_before: int
    num_partitions: int
    is_begun: bool
    is_done: bool
    stores: tuple[StoreRescale, ...]


@dataclass(frozen=True, slots=True)
class UndoPlan:
    """What the undo of a rescale does, or did.

    Attributes:
        checkpoint: URI of the checkpoint.
        batch: The rescale's batch, None where the rescale was killed before it planned one.
        was_committed: Whether the rescale was finished.
        num_partitions_before: Number of state partitions until now; that of the rescale.
        num_partitions: Number of state partitions afterwards.
    """

    checkpoint: str
    batch: int | None
    was_committed: bool
    num_partitions_before: int
    num_partitions: int
