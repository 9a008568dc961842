"""What a rescale, or the undo of one, did or would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from statestore.checkpoint.layout import store_directory
from statestore.codec.references import StoreName
from statestore.core.text import format_bytes, format_count, format_table
from statestore.operations.result import Change, Result

Way = Literal["key-groups", "whole", "rehash"]
"""How a store is rescaled: by files it has already, each new state partition taking its key groups
of them; not at all, because its state is one; or row by row."""


_WAYS = {
    "key-groups": "state files stay as they are, each state partition reads its key groups of them",
    "whole": "stays whole in state partition 0",
    "rehash": "every row is read, hashed anew and written",
}
_MOST_LINES, _LARGEST = 40, 10


@dataclass(frozen=True, slots=True)
class StoreRescale:
    """What a rescale does with one store of a stateful operator.

    Attributes:
        operator, operator_name, name: Which store.
        way: How it is rescaled.
        max_parallelism: Number of key groups afterwards; another one only where its rows are hashed
            anew.
        num_files, num_bytes: The files that its state is in until now. The query reads them, each
            state partition its key groups of them, when it starts; where rows are hashed anew, the
            rescale reads them.
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

    def describe(self) -> str:
        """Return its way and its rows in the new state partitions, in words."""
        lines = [
            f"Operator {self.operator} ({self.operator_name}), store {self.name}: "
            f"{_WAYS[self.way]}.",
            f"{self._summary()}.",
            *self._describe_partitions(),
        ]
        return "\n".join(lines)

    def _summary(self) -> str:
        files = f"{format_count(self.num_files, 'file')} of {format_bytes(self.num_bytes)}"
        if self.num_rows is not None:
            files = f"{format_count(self.num_rows, 'row')} in {files}"
        parts = [files]
        if self.partition_rows is None:
            parts.append("skew unknown (--count-rows reads every row to know it)")
        elif self.skew is not None:
            parts.append(f"skew {self.skew:.2f}")
        if self.way == "rehash":
            parts.append(f"{self.max_parallelism} key groups afterwards")
        return ", ".join(parts)

    def _describe_partitions(self) -> list[str]:
        """Return the rows of every state partition, or of the largest where there are many."""
        num_rows = self.partition_rows or ()
        partitions = list(range(len(num_rows)))
        lines = []
        if len(num_rows) > _MOST_LINES:
            partitions = sorted(partitions, key=lambda number: -num_rows[number])[:_LARGEST]
            lines.append(f"The {_LARGEST} largest of {len(num_rows)}:")
        rows = [[number, num_rows[number]] for number in partitions]
        return [*lines, *([format_table(["partition", "rows"], rows)] if rows else [])]


@dataclass(frozen=True, repr=False)
class Rescale(Result):
    """What a rescale did, or would do.

    Attributes:
        checkpoint: URI of the checkpoint.
        backend: Its state backend.
        batch: The batch that stands for the rescale in Spark's logs; the query goes on with the
            next one.
        num_partitions_before: Number of state partitions until now.
        num_partitions: Number of state partitions afterwards.
        is_begun: Whether the batch is planned already, by a rescale that did not end or by Spark's
            own repartition, which refuses other providers after that.
        is_needed: Whether the checkpoint has another number of state partitions until now, or has
            them only of an unfinished rescale.
        is_running: Whether the query runs: it has to be stopped first, and the numbers are those of
            its newest committed version.
        stores: The change of each store.
    """

    checkpoint: str
    backend: str
    batch: int
    num_partitions_before: int
    num_partitions: int
    is_begun: bool
    is_needed: bool
    is_running: bool
    stores: tuple[StoreRescale, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the state that is hashed anew; else files are only referred to."""
        return sum(store.num_bytes for store in self.stores if store.way == "rehash")

    @property
    def changes(self) -> tuple[Change, ...]:
        """The new state partitions of every store, then Spark's logs."""
        if not self.is_needed:
            return ()
        directories = [
            store_directory("state", StoreName(store.operator, partition, store.name))
            for store in self.stores
            for partition in range(1 if store.way == "whole" else self.num_partitions)
        ]
        operators = dict.fromkeys(f"state/{store.operator}/_metadata" for store in self.stores)
        offsets = () if self.is_begun else (f"offsets/{self.batch}",)
        paths = (*directories, *offsets, *operators, f"commits/{self.batch}")
        return tuple(Change("write", path) for path in paths)

    def __str__(self) -> str:
        if not self.is_needed:
            return f"The checkpoint has {self.num_partitions} state partitions already."
        lines = [
            f"From {self.num_partitions_before} to {self.num_partitions} state partitions as batch "
            f"{self.batch}, {self.backend} backend."
        ]
        if self.is_begun:
            lines.append(
                "It was begun before, by a rescale or by Spark's own repartition: to finish it."
            )
        if self.is_running:
            lines.append(
                "The query is running: stop it first. The numbers are those of its newest "
                "committed version."
            )
        return "\n\n".join(["\n".join(lines), *(store.describe() for store in self.stores)])

    def fields(self) -> dict[str, Any]:
        """Return the attributes, and the skew of every store."""
        of = super().fields()
        for fields, store in zip(of["stores"], self.stores, strict=True):
            fields["skew"] = store.skew
        return of


@dataclass(frozen=True, repr=False)
class UndoRescale(Result):
    """What the undo of a rescale did, or would do.

    Attributes:
        checkpoint: URI of the checkpoint.
        batch: The rescale's batch, None where the rescale was killed before it planned one, or an
            undo of it behind its last change.
        was_committed: Whether the rescale was finished.
        num_partitions_before: Number of state partitions until now; that of the rescale.
        num_partitions: Number of state partitions afterwards.
        version: The rescaled version.
        stores: The stores that lose it, each of one state partition.
    """

    checkpoint: str
    batch: int | None
    was_committed: bool
    num_partitions_before: int
    num_partitions: int
    version: int
    stores: tuple[StoreName, ...]

    @property
    def size_bytes(self) -> int:
        """0: state files that the rescale did not make stay as they are."""
        return 0

    @property
    def changes(self) -> tuple[Change, ...]:
        """The way back: the commit, the rescaled versions, the metadata, the plan of the batch."""
        stores = tuple(Change("delete", store_directory("state", store)) for store in self.stores)
        if self.batch is None:
            return stores
        operators = dict.fromkeys(store.operator for store in self.stores)
        return (
            *([Change("delete", f"commits/{self.batch}")] if self.was_committed else []),
            *stores,
            *(Change("write", f"state/{operator}/_metadata") for operator in operators),
            Change("delete", f"offsets/{self.batch}"),
        )

    def __str__(self) -> str:
        if not self.changes:
            return (
                "The rescale was taken back before, by an undo that did not end; the checkpoint "
                f"has {self.num_partitions} state partitions. With --yes its entry in the history "
                "is completed; an undo after that takes back the rescale before."
            )
        if self.batch is None:
            return (
                "Takes away the state files of a rescale that was killed before it planned its "
                "batch, or that `repair` took back; the checkpoint has "
                f"{self.num_partitions} state partitions."
            )
        kind = "finished" if self.was_committed else "unfinished"
        return (
            f"Takes back the {kind} rescale of batch {self.batch}: from "
            f"{self.num_partitions_before} to {self.num_partitions} state partitions."
        )
