"""What a copy of a version made or would make: savepoint, restore, branch, transform and write."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.codec.spark_types import parse_schema
from statestore.core.text import format_bytes, format_fields
from statestore.operations.result import Change, Made, NewDirectoryResult


@dataclass(frozen=True, slots=True)
class FamilyChange:
    """What becomes of the rows of a column family.

    Attributes:
        operator: Operator ID.
        store: Name of the store.
        column_family: Name of the column family, of transformWithState of a state variable.
        rows: Where they come from, or what was found of them, in words.
        key_schema, value_schema: Spark's JSON afterwards; None where they stay.
        keys: Some of the keys whose rows are deleted, as JSON.
    """

    operator: int
    store: str
    column_family: str
    rows: str
    key_schema: str | None
    value_schema: str | None
    keys: tuple[str, ...] = ()

    def fields(self) -> list[tuple[str, str]]:
        """Return lines for people: its name and what becomes of it, and keys that go."""
        names = [name for name in (self.store, self.column_family) if name != "default"]
        place = " ".join([f"operator {self.operator}", *names])
        return [(place, self.describe()), *(("  key", key) for key in self.keys)]

    def describe(self) -> str:
        """Return it in words."""
        changed = [
            f"{side}s become {parse_schema(schema).arrow}"
            for side, schema in (("key", self.key_schema), ("value", self.value_schema))
            if schema is not None
        ]
        return "; ".join([self.rows, *changed])


@dataclass(frozen=True, repr=False)
class CopyResult(NewDirectoryResult[Made]):
    """What a copy of a version made or would make: a savepoint, or a checkpoint.

    Attributes:
        operation: The operation: savepoint, restore, branch, transform or write.
        source: URI of the checkpoint or savepoint that is copied.
        target: The new directory, as the caller named it.
        version: State version.
        query_id: ID that the query goes on under; None for one that is new.
        backend: State backend of the new directory's state files.
        num_partitions: Number of its state partitions.
        checkpoint_format: 1 or 2, in which it goes on.
        operators: New ID of every operator that is kept, by its old one.
        dropped_operators: Old IDs of those that are left behind.
        added_operators: Spark's short name by new ID, of operators that begin with empty state.
        families: Column families whose rows are given.
        state_files: What becomes of the version's state files: copied, shared, moved, written anew,
            hashed anew, or several of these.
        state_bytes: Bytes of those that are read.
        copied_bytes: Bytes of those that the storage does not share.
        claim: Whether the source is deleted afterwards.
    """

    operation: str
    source: str
    target: str
    version: int
    query_id: str | None
    backend: str
    num_partitions: int
    checkpoint_format: int
    operators: dict[int, int]
    dropped_operators: tuple[int, ...]
    added_operators: dict[int, str]
    families: tuple[FamilyChange, ...]
    state_files: str
    state_bytes: int
    copied_bytes: int
    claim: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the state files that are copied, or written anew, as they are now."""
        return self.copied_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """The new directory; and the source where it is claimed."""
        made = Change("write", self.target)
        return (made, Change("delete", self.source)) if self.claim else (made,)

    def __str__(self) -> str:
        kept = [
            (f"operator {old}", "keeps its number" if old == new else f"becomes {new}")
            for old, new in self.operators.items()
        ]
        # A savepoint is restored on the backend that it was taken of, not on that of its files.
        is_checkpoint = self.operation in ("restore", "branch")
        return format_fields(
            [
                ("from", f"{self.source}, version {self.version}"),
                ("to", self.target),
                ("query ID", self.query_id or "new"),
                ("backend" if is_checkpoint else "form of files", self.backend),
                ("state partitions", self.num_partitions),
                ("checkpoint format", f"v{self.checkpoint_format}"),
                *(kept if self.operation == "restore" else []),
                *((f"operator {old}", "dropped") for old in self.dropped_operators),
                *(
                    (f"new operator {new}", f"{name}, empty")
                    for new, name in self.added_operators.items()
                ),
                *(field for family in self.families for field in family.fields()),
                *(
                    [("state", f"{format_bytes(self.state_bytes)}, {self.state_files}")]
                    if self.state_files
                    else []
                ),
                *([("afterwards", "the savepoint is deleted")] if self.claim else []),
            ]
        )
