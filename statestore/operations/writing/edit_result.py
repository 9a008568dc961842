"""What an edit in place did or would do."""

from __future__ import annotations

from dataclasses import dataclass

from statestore.core.text import format_bytes, format_fields
from statestore.operations.copy_result import FamilyChange
from statestore.operations.result import Change, Result


@dataclass(frozen=True, repr=False)
class Edit(Result):
    """What an edit of a checkpoint in place did, or would do.

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
    families: tuple[FamilyChange, ...]
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

    def __str__(self) -> str:
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
