"""What writing state as data is going to do; nothing that does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statestore.codec.spark_types import parse_schema
from statestore.core.text import format_bytes, format_fields
from statestore.operations.plan import Change, Plan


@dataclass(frozen=True, slots=True)
class FamilyPlan:
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
        """Return what is shown of it: its name and what becomes of it, and keys that go."""
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
class WritePlan(Plan[Any]):
    """What writing a savepoint does.

    Attributes:
        like: URI of the checkpoint or savepoint whose shape it has.
        destination: Directory of the savepoint, as the caller named it.
        version: State version.
        families: Column families with rows that are written.
        state_bytes: Bytes of the state files that are read.
    """

    like: str
    destination: str
    version: int
    families: tuple[FamilyPlan, ...]
    state_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the state files that are read."""
        return self.state_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """The new directory."""
        return (Change("write", self.destination),)

    def describe(self) -> str:
        """Return which rows are written, and where to."""
        return format_fields(
            [
                ("like", self.like),
                ("savepoint", self.destination),
                ("version", self.version),
                *(field for family in self.families for field in family.fields()),
                ("all other rows", "as they are"),
                ("state", format_bytes(self.state_bytes)),
            ]
        )


@dataclass(frozen=True, repr=False)
class EditPlan(Plan["EditPlan"]):
    """What an edit of a checkpoint in place does, or did.

    Attributes:
        checkpoint: URI of the checkpoint.
        backend: Its state backend.
        batch: The batch that stands for the edit in Spark's logs; the query goes on with the next.
        version: The version that it makes.
        is_begun: Whether an edit that did not end has planned the batch.
        families: Column families with rows that change.
        watermark_ms: Watermark from now on, milliseconds since the Unix epoch; None where it stays.
        state_bytes: Bytes of the state files that are read.
        directories: Store directories, below the checkpoint, that get a file.
    """

    checkpoint: str
    backend: str
    batch: int
    version: int
    is_begun: bool
    families: tuple[FamilyPlan, ...]
    watermark_ms: int | None
    state_bytes: int
    directories: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the state files that are read."""
        return self.state_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """A file for every store, then Spark's logs."""
        logs = (f"offsets/{self.batch}", f"commits/{self.batch}")
        return tuple(Change("write", path) for path in (*self.directories, *logs))

    def describe(self) -> str:
        """Return which rows change, and as which version."""
        watermark = [] if self.watermark_ms is None else [("watermark", f"{self.watermark_ms} ms")]
        return format_fields(
            [
                ("checkpoint", self.checkpoint),
                ("new version", f"{self.version}, batch {self.batch} of the query"),
                *(field for family in self.families for field in family.fields()),
                *watermark,
                ("all other rows", "as they are"),
                ("versions before", "keep their rows, until they expire"),
                ("state", format_bytes(self.state_bytes)),
            ]
        )
