"""What a trial found, in text and as JSON; and what promote and drop did or would do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from statestore.core.text import Shown, format_fields, format_table
from statestore.operations.result import Change, Result
from statestore.operations.trial.record import State

if TYPE_CHECKING:
    from statestore.operations.trial.record import Compared, Record

_WIDTH = 300


@dataclass(frozen=True, slots=True)
class TrialReport(Shown):
    """A trial at a glance.

    Attributes:
        trial: URI of its directory.
        checkpoint: URI of the checkpoint that it is of.
        job: The new code.
        state: How far it is: begun, branched, run, compared, promoting, promoted, dropping.
        first_version, version: Versions that the branch began with and has reached; 0 before.
        is_same: Whether everything that was compared counts as equal.
        compared: What came of each comparison.
        savepoint: Where the old is, once the new was approved; empty before.
        error: Why the new code failed, in words; empty where it did not.
        ignored: Columns that did not count.
    """

    trial: str
    checkpoint: str
    job: str
    state: str
    first_version: int
    version: int
    is_same: bool
    compared: tuple[Compared, ...]
    savepoint: str
    error: str
    ignored: tuple[str, ...]

    @classmethod
    def of(cls, trial: str, record: Record) -> TrialReport:
        """Return the report of a trial by its record."""
        return cls(
            trial,
            record.checkpoint,
            str(record.asked.get("job", "")),
            record.state.name.lower(),
            record.first_version,
            record.version,
            record.is_same,
            record.compared,
            record.savepoint,
            record.error,
            record.ignored,
        )

    def fields(self) -> dict[str, Any]:
        """Return the attributes by name, for JSON."""
        return asdict(self)

    @property
    def result(self) -> str:
        """What came of it, in words."""
        if self.error:
            return f"failed: {self.error}"
        if not self.compared:
            return "not compared yet"
        if not self.is_same:
            return "the new code differs"
        left_out = [one.of for one in self.compared if one.why]
        return "equal" + (
            f", but for what was not compared: {', '.join(left_out)}" * bool(left_out)
        )

    @property
    def table(self) -> tuple[list[str], list[list[object]]]:
        """The comparisons: names of columns, and rows."""
        columns = ["compared", "result", "old rows", "new rows", "only old", "only new", "changed"]
        return columns, [
            [
                *(one.of, one.result, one.num_old, one.num_new),
                *([None] * 3 if one.why else [one.removed, one.added, one.changed]),
            ]
            for one in self.compared
        ]

    def about(self) -> list[tuple[str, object]]:
        """Return names and values that describe the trial."""
        batches = range(self.first_version, self.version)
        return [
            ("checkpoint", self.checkpoint),
            ("trial", self.trial),
            ("new code", self.job),
            ("repeated", f"batches {batches[0]} to {batches[-1]}" if batches else "nothing yet"),
            ("state", f"{State[self.state.upper()].value} {self.state}"),
            *([("the old", self.savepoint)] if self.savepoint else []),
            *([("ignored", ", ".join(self.ignored))] if self.ignored else []),
            ("result", self.result),
        ]

    def __str__(self) -> str:
        parts = [format_fields(self.about())]
        if self.compared:
            parts.append(format_table(*self.table))
        for one in self.compared:
            shown = [f"  column {column}" for column in one.columns]
            shown += [f"  {json.dumps(row, default=str)[:_WIDTH]}" for row in one.rows]
            if shown and not one.is_same:
                left = one.num_different - len(one.rows)
                more = [f"  and {left:,} more"] if left > 0 else []
                parts.append("\n".join([f"{one.of}:", *shown, *more]))
        return "\n\n".join(parts)


@dataclass(frozen=True, repr=False)
class Promote(Result):
    """What a promote did or would do.

    Attributes:
        trial: URI of the trial.
        checkpoint: URI of the checkpoint that becomes the branch.
        version: The version that the query goes on from.
        savepoint: Where the old is afterwards.
        is_same: Whether the new code was found equal; else its differences were accepted.
    """

    trial: str
    checkpoint: str
    version: int
    savepoint: str
    is_same: bool

    @property
    def size_bytes(self) -> None:
        """Unknown: the savepoint's, and where the storage shares no files the branch's."""
        return None

    @property
    def changes(self) -> tuple[Change, ...]:
        """The savepoint, the checkpoint, and what the trial needs no more."""
        return (
            Change("write", self.savepoint),
            Change("write", self.checkpoint),
            Change("delete", f"{self.trial}/checkpoint"),
        )

    def __str__(self) -> str:
        return format_fields(
            [
                ("checkpoint", f"{self.checkpoint} becomes the branch, version {self.version}"),
                ("the old", f"savepoint {self.savepoint}"),
                ("the next batch", self.version),
                ("differences", "none" if self.is_same else "accepted"),
            ]
        )


@dataclass(frozen=True, repr=False)
class Drop(Result):
    """What a drop did or would do.

    Attributes:
        trial: URI of the trial, which is deleted.
        checkpoint: URI of its checkpoint.
        puts_back: Whether a promote was begun and not finished, so that the old is put back.
    """

    trial: str
    checkpoint: str
    puts_back: bool

    @property
    def size_bytes(self) -> None:
        """Unknown; files that the checkpoint shares with its branch stay."""
        return None

    @property
    def changes(self) -> tuple[Change, ...]:
        """The checkpoint where the old is put back, and the trial."""
        put_back = (Change("write", self.checkpoint),) if self.puts_back else ()
        return (*put_back, Change("delete", self.trial))

    def __str__(self) -> str:
        becomes = "stays as it is"
        if self.puts_back:
            becomes = "becomes the old again, with its newest version and none before"
        return format_fields(
            [("deletes", self.trial), ("checkpoint", f"{self.checkpoint} {becomes}")]
        )
