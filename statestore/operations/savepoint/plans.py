"""What a savepoint, a restore or a branch is going to do; nothing that does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from statestore.core.text import format_bytes, format_fields
from statestore.operations.plan import Change, Plan

SavepointForm = Literal["canonical", "native"]
StateFiles = Literal["copied", "moved", "written anew", "hashed anew"]
"""What becomes of a savepoint's state files."""


@dataclass(frozen=True, repr=False)
class SavepointPlan(Plan[Any]):
    """What taking a savepoint does.

    Attributes:
        checkpoint: URI of the checkpoint.
        destination: Directory of the savepoint, as the caller named it.
        version: State version that is copied.
        form: canonical or native.
        state_bytes: Bytes of the state files that are read.
    """

    checkpoint: str
    destination: str
    version: int
    form: SavepointForm
    state_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the state files that are read; those of a canonical savepoint may be fewer."""
        return self.state_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """The new directory."""
        return (Change("write", self.destination),)

    def describe(self) -> str:
        """Return what is copied, and where to."""
        return format_fields(
            [
                ("checkpoint", self.checkpoint),
                ("savepoint", self.destination),
                ("version", self.version),
                ("form", self.form),
                ("state", format_bytes(self.state_bytes)),
            ]
        )


@dataclass(frozen=True, repr=False)
class RestorePlan(Plan[Any]):
    """What a restore does.

    Attributes:
        savepoint: URI of the savepoint.
        checkpoint: The new checkpoint, as the caller named it.
        version: State version.
        query_id: ID that the query goes on under; None for a new one.
        backend: State backend of the new checkpoint.
        num_partitions: Number of its state partitions.
        operators: New ID of every operator that is kept, by its old one.
        dropped_operators: Old IDs of those that are left behind.
        added_operators: Spark's short name by new ID, of operators that begin with empty state.
        state_files: What becomes of the savepoint's state files.
        state_bytes: Bytes of those that are read.
        claim: Whether the savepoint is gone afterwards.
    """

    savepoint: str
    checkpoint: str
    version: int
    query_id: str | None
    backend: str
    num_partitions: int
    operators: dict[int, int]
    dropped_operators: tuple[int, ...]
    added_operators: dict[int, str]
    state_files: StateFiles
    state_bytes: int
    claim: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the state files that are read; moved ones may only be linked."""
        return self.state_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """The new checkpoint; and the savepoint where it is claimed."""
        made = Change("write", self.checkpoint)
        return (made, Change("delete", self.savepoint)) if self.claim else (made,)

    def describe(self) -> str:
        """Return what is made of the savepoint."""
        how = self.state_files
        return format_fields(
            [
                ("savepoint", self.savepoint),
                ("checkpoint", self.checkpoint),
                ("version", self.version),
                ("query ID", self.query_id or "new"),
                ("backend", self.backend),
                ("state partitions", self.num_partitions),
                *(
                    (f"operator {old}", "keeps its number" if new == old else f"becomes {new}")
                    for old, new in self.operators.items()
                ),
                *((f"operator {old}", "dropped") for old in self.dropped_operators),
                *(
                    (f"new operator {new}", f"{name}, empty")
                    for new, name in self.added_operators.items()
                ),
                (
                    "state files",
                    "written anew, every row hashed anew" if how == "hashed anew" else how,
                ),
                ("state", format_bytes(self.state_bytes)),
                ("afterwards", f"the savepoint {'is deleted' if self.claim else 'stays'}"),
            ]
        )


@dataclass(frozen=True, repr=False)
class BranchPlan(Plan[Any]):
    """What a branch does.

    Attributes:
        checkpoint: URI of the checkpoint.
        new: The new checkpoint, as the caller named it.
        version: State version that is branched off.
        state_bytes: Bytes of its state files.
        is_shared: Whether its storage shares them, so that none is copied through here.
    """

    checkpoint: str
    new: str
    version: int
    state_bytes: int
    is_shared: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the state files, 0 where they are shared."""
        return 0 if self.is_shared else self.state_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """The new checkpoint."""
        return (Change("write", self.new),)

    def describe(self) -> str:
        """Return what is branched off, and where to."""
        how = "shared" if self.is_shared else "copied"
        return format_fields(
            [
                ("checkpoint", self.checkpoint),
                ("new", self.new),
                ("version", self.version),
                ("state", f"{format_bytes(self.state_bytes)}, {how}"),
            ]
        )
