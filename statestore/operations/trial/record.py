"""The record of a trial: what is tried, how far it is, and what came of it, in a file of its own.

    <trial>/statestore-trial.json   this record
    <trial>/checkpoint              the branch that the new code runs on
    <trial>/new/<batch>, old/<batch>  rows that the new and the old code gave their sinks, Parquet
    <trial>/against                 the branch of the old code, where it is run once more
    <trial>/transformed             a savepoint of other rows, until the branch is made of it
    <trial>/history.jsonl           history of the checkpoint, while it is replaced

The record is replaced as a whole: a trial is always in one of its states, and the call that was
killed may be repeated.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.pins import pins_for
from statestore.checkpoint.text_files import read_text, write_text
from statestore.core.errors import CorruptionError, NotFoundError
from statestore.core.json_fields import MalformedError, parse_fields
from statestore.core.version import WRITER

if TYPE_CHECKING:
    from statestore.io.file_io import TreeFileIO

FORMAT_VERSION = 1
RECORD_NAME = "statestore-trial.json"
CHECKPOINT, AGAINST, TRANSFORMED = "checkpoint", "against", "transformed"
NEW, OLD, HISTORY = "new", "old", "history.jsonl"


class State(IntEnum):
    """How far a trial is; numbers are in files and never change.

    Attributes:
        BEGUN: The record says what is tried.
        BRANCHED: The branches are whole.
        RUN: The new code has repeated the batches, up to the version of the record.
        COMPARED: Rows and state were compared.
        PROMOTING: It was approved: a savepoint of the old is taken, then the checkpoint replaced.
        PROMOTED: The checkpoint is the branch.
        DROPPING: What the trial made is being deleted.
    """

    BEGUN = 1
    BRANCHED = 2
    RUN = 3
    COMPARED = 4
    PROMOTING = 5
    PROMOTED = 6
    DROPPING = 7


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison of the rows of a batch, or of those of state.

    Attributes:
        of: What was compared: `batch 7`, or `state` and an address.
        is_same: Whether they count as equal, by the rule.
        removed, added, changed: Rows that only the old has, that only the new has, and of state the
            keys whose values differ; ignored columns aside.
        columns: Columns that only one of them has, or that have another type, in words; without
            those that are ignored.
        rows: Some of those that differ, as JSON: `change`, of state `key`, `old`, `new`.
        why: Why it could not be compared, in words; empty where it was.
        num_old, num_new: How many rows each code made of a batch, or has in its state; null where
            it was not compared, or where only reading all rows of state would tell.
    """

    of: str
    is_same: bool
    removed: int = 0
    added: int = 0
    changed: int = 0
    columns: tuple[str, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    why: str = ""
    num_old: int | None = None
    num_new: int | None = None

    @property
    def result(self) -> str:
        """The result in a word or two."""
        if self.why:
            return self.why
        return "equal" if self.is_same else "differs"

    @property
    def num_different(self) -> int:
        """Number of rows or keys that differ."""
        return self.removed + self.added + self.changed


@dataclass(frozen=True, slots=True)
class Record:
    """A trial.

    Attributes:
        checkpoint: URI of the checkpoint that it is of.
        query_id: ID of its query; empty where it has none.
        asked: What was asked for: job, checksums of it and of its arguments. A call that asks for
            the same goes on with the trial.
        state: How far it is.
        first_version: The version that the branch was made of; 0 before.
        version: The version that the new code has reached; 0 before.
        compared: What came of the comparison.
        savepoint: Where the old is, once it was approved; empty before.
        error: Why the new code failed, in words; empty where it did not.
        ignored: Columns that did not count in the comparison.
        attempt: Random ID of the call that made the branch: no other has an equal record.
        trial: URI of its directory, which a copy keeps; empty of an earlier release.
        num_operations: How many operations the branch had seen when it was compared; -1 before.
    """

    checkpoint: str
    query_id: str
    asked: dict[str, Any]
    state: State = State.BEGUN
    first_version: int = 0
    version: int = 0
    compared: tuple[Compared, ...] = field(default=())
    savepoint: str = ""
    error: str = ""
    ignored: tuple[str, ...] = ()
    attempt: str = ""
    trial: str = ""
    num_operations: int = -1

    @property
    def is_same(self) -> bool:
        """Whether everything that was compared counts as equal."""
        return self.state >= State.COMPARED and all(one.is_same for one in self.compared)


def pins_of_trial(trial: str) -> tuple[str, ...]:
    """Return what the IDs of the pins begin with that a trial has in its checkpoint.

    Args:
        trial: Its URI, with no slash at the end.
    """
    made = (trial, *(f"{trial}/{name}" for name in (CHECKPOINT, AGAINST, TRANSFORMED)))
    return tuple(map(pins_for, made))


def read_record(io: TreeFileIO, directory: str) -> Record | None:
    """Return the record of a trial; None where there is none.

    Raises:
        CorruptionError: It is damaged.
        IncompatibleError: It is of a newer format.
        StorageError: The storage failed.
    """
    path = f"{directory}/{RECORD_NAME}"
    try:
        text = read_text(io, path)
    except NotFoundError:
        return None
    try:
        found = parse_fields(text)
        found.require_format(FORMAT_VERSION, path)
        compared = tuple(_compared(one) for one in found.items("compared"))
        return Record(
            found.text("checkpoint"),
            found.text("query_id"),
            found.object("asked").all,
            State(found.integer("state", State.BEGUN, State.DROPPING)),
            found.integer("first_version"),
            found.integer("version"),
            compared,
            found.text("savepoint"),
            found.text("error"),
            tuple(str(column) for column in found.items("ignored")),
            found.text("attempt"),
            found.text("trial") if found.has("trial") else "",
            found.integer("num_operations", -1) if found.has("num_operations") else -1,
        )
    except MalformedError as error:
        raise CorruptionError(
            "the record of a trial is damaged",
            file=path,
            offset=0,
            expected=f"the fields {', '.join(one.name for one in fields(Record))}",
            found=str(error),
            to_fix="put the file back from a copy; or delete the directory of the trial: the "
            "checkpoint is as it was, unless its `metadata` names an unfinished promote",
        ) from error


def _compared(found: Any) -> Compared:
    names = {one.name for one in fields(Compared)}
    if not isinstance(found, dict) or found.keys() != names:
        raise MalformedError(f"a comparison has the fields {', '.join(sorted(names))}")
    return Compared(**{**found, "columns": tuple(found["columns"]), "rows": tuple(found["rows"])})


def write_record(io: TreeFileIO, directory: str, record: Record, **changes: Any) -> Record:
    """Write the record of a trial with some fields changed, durably and whole; return it."""
    changed = replace(record, **changes)
    text = {"format_version": FORMAT_VERSION, "writer": WRITER, **asdict(changed)}
    data = json.dumps(text, indent=2, default=str)
    write_text(io, f"{directory}/{RECORD_NAME}", data, overwrite=True)
    return changed
