"""History: which operations changed a checkpoint, a file of JSON lines that only grows.

An operation adds a line `begun` before its first change, and a line `done` after its last. So every
change was begun, and whatever is done was done whole. An operation that was begun and is not done
is running, failed, or was killed. No line holds a key or a value of a row.
"""

from __future__ import annotations

import getpass
import json
import math
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from statestore.checkpoint.layout import history_path
from statestore.core.clock import LAST_MS
from statestore.core.errors import NotFoundError
from statestore.core.ids import CHECKPOINT_ID
from statestore.core.json_fields import MalformedError, parse_fields
from statestore.core.text import to_cell, to_time
from statestore.core.version import WRITER
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from statestore.io.file_io import FileIO

FORMAT_VERSION = 1
_MOST_LEVELS = 20


def user_name() -> str | None:
    """Return the name of the user of this process, None where the system knows none."""
    # As in a container.
    with suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return None


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the history.

    Attributes:
        id: Of the operation, 32 hex digits, the same in all its lines.
        operation: Its name, as in its lease.
        at_ms: When, milliseconds since the Unix epoch, by the clock of the machine.
        from_version: Newest version before it, 0 for none.
        to_version: The version that it makes or goes back to; `from_version` where it changes none.
        event: begun or done.
        options: Its arguments; plain JSON, and no key or value of a row.
        result: Its result, likewise; empty in a line `begun`.
        user: User, by the system's name; None where it knows none.
        host: Machine.
        writer: Release of the package.
    """

    id: str
    operation: str
    at_ms: int
    from_version: int
    to_version: int
    event: Literal["begun", "done"] = "begun"
    options: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    user: str | None = field(default_factory=user_name)
    host: str = field(default_factory=socket.gethostname)
    writer: str = WRITER

    @classmethod
    def parse(cls, line: bytes) -> Event:
        """Read a line.

        Raises:
            MalformedError: It is none, or of a newer format.
        """
        fields = parse_fields(line)
        _check_plain(fields.all)
        fields.integer("format_version", 1, FORMAT_VERSION)
        event = fields.text("event")
        if event not in ("begun", "done"):
            raise MalformedError(f"unknown event {event}")
        return cls(
            fields.text("id", CHECKPOINT_ID),
            fields.text("operation"),
            fields.integer("at_ms", 0, LAST_MS),
            fields.integer("from_version"),
            fields.integer("to_version"),
            cast("Literal['begun', 'done']", event),
            fields.object("options").all,
            fields.object("result").all,
            fields.text("user") if fields.has("user") else None,
            fields.text("host"),
            fields.text("writer"),
        )

    def encode(self) -> bytes:
        """Return the line, with its end; `?` for what is not UTF-8."""
        fields = {"format_version": FORMAT_VERSION, **asdict(self)}
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
        return text.encode(errors="replace") + b"\n"


def _check_plain(value: Any, level: int = 0) -> None:
    """Check that a value can be shown: its numbers are finite, and it is not nested deep."""
    if level > _MOST_LEVELS:
        raise MalformedError("nested too deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise MalformedError("a number that JSON does not have")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_plain(inner, level + 1)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An operation on a checkpoint, or a line of the history that cannot be read.

    Attributes:
        status: begun: it is running, failed or was killed; done; or damaged, a line that cannot be
            read.
        operation: Its name; None where damaged, as all that follows.
        from_version: Newest version before it, 0 for none.
        to_version: The version that it made or went back to; `from_version` where it changes none.
        begun_ms: When it began, milliseconds since the Unix epoch; None also where the line is
            lost.
        done_ms: When it was done; None where it is not.
        user: User, by the system's name; None also where it knows none.
        host: Machine.
        writer: Release of the package.
        options: Its arguments.
        result: Its result; empty where it is not done. That of `forget` has the certificate, with
            the numbers of files in place of their lists, and its SHA-256.
        taken_back_by: The later operation that went back behind its version, or None.
        text: The line, where it is damaged.
    """

    status: Literal["begun", "done", "damaged"]
    operation: str | None = None
    from_version: int | None = None
    to_version: int | None = None
    begun_ms: int | None = None
    done_ms: int | None = None
    user: str | None = None
    host: str | None = None
    writer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    taken_back_by: str | None = None
    text: str | None = None

    @property
    def makes_version(self) -> bool:
        """Whether it makes a version, so that one can go back behind it."""
        return (self.to_version or 0) > (self.from_version or 0)

    @property
    def begun_at(self) -> datetime | None:
        """When it began, as a time in UTC; None where unknown."""
        return None if self.begun_ms is None else to_time(self.begun_ms)

    @property
    def at_ms(self) -> int | None:
        """When it began, or was done where only that is known; None where neither is."""
        return self.done_ms if self.begun_ms is None else self.begun_ms

    @property
    def is_damaged(self) -> bool:
        """Whether it is a line that cannot be read."""
        return self.status == "damaged"

    @property
    def details(self) -> str:
        """Options and result in words: `keep=2, num_files=14`; of a damaged line its text.

        What was not asked for is left out, and the parts of a document.
        """
        if self.text is not None:
            return self.text
        found = {**self.options, **self.result}
        return ", ".join(
            f"{name}={'…' if isinstance(value, dict) else to_cell(value)}"
            for name, value in found.items()
            if value is not None and value is not False
        )

    def brief(self) -> HistoryEntry:
        """Return it without the certificate of a `forget`."""
        result = {name: of for name, of in self.result.items() if name != "certificate"}
        return replace(self, result=result)


def append(io: FileIO, directory: str, event: Event) -> None:
    """Add a line to the history of a checkpoint; one process at a time may do so.

    Args:
        io: Storage of the checkpoint.
        directory: The checkpoint directory there, which exists.
        event: The line.

    Guarantee: durable on return. After a raise the history is as before, or has the line. Older
    lines stay as they are, also damaged ones.

    Raises:
        StorageError: The storage failed.
    """
    before = _read_bytes(io, directory)
    end = b"" if not before or before.endswith(b"\n") else b"\n"
    data = before + end + event.encode()
    io.write(history_path(directory), data, sync=True, overwrite=True)


def newest_line(io: FileIO, directory: str) -> bytes:
    """Return the last line of a history, whatever it is; empty where there is none.

    Raises:
        StorageError: The storage failed.
    """
    return (_lines(_read_bytes(io, directory)) or [b""])[-1]


def event_of(line: bytes) -> Event | None:
    """Return what a line says; None where it cannot be read, or there is none."""
    with suppress(MalformedError):
        return Event.parse(line)
    return None


def read_history(io: FileIO, directory: str) -> tuple[HistoryEntry, ...]:
    """Return the operations on a checkpoint in the order in which they began.

    Args:
        io: Storage of the checkpoint.
        directory: The checkpoint directory there.

    Raises:
        StorageError: The storage failed. A line that cannot be read is an entry.
    """
    return entries_of(_read_bytes(io, directory))


def entries_of(data: bytes) -> tuple[HistoryEntry, ...]:
    """Return the entries of a history's bytes, whatever they are, as `read_history`."""
    found: dict[str, HistoryEntry] = {}
    for number, line in enumerate(_lines(data)):
        try:
            event = Event.parse(line)
        except MalformedError:
            text = line.decode(errors="backslashreplace")
            found[f"line {number}"] = HistoryEntry("damaged", text=text)
            continue
        if event.event == "begun":
            found[event.id] = replace(_entry(event), begun_ms=event.at_ms)
        else:
            begun_ms = found[event.id].begun_ms if event.id in found else None
            found[event.id] = replace(_entry(event), begun_ms=begun_ms, done_ms=event.at_ms)
    return _with_takers(list(found.values()))


def _lines(data: bytes) -> list[bytes]:
    """Return the lines of a history, without the blank ones of an editor."""
    return [line for line in data.splitlines() if line.strip()]


def _with_takers(entries: list[HistoryEntry]) -> tuple[HistoryEntry, ...]:
    """Return entries; if a later one went back behind an entry's version, with that operation."""
    standing: list[tuple[int, int]] = []  # versions in ascending order, and whose they are
    for number, entry in enumerate(entries):
        if entry.to_version is None:
            continue
        while standing and standing[-1][0] > entry.to_version:
            _, taken = standing.pop()
            entries[taken] = replace(entries[taken], taken_back_by=entry.operation)
        if entry.makes_version:
            standing.append((entry.to_version, number))
    return tuple(entries)


def _entry(event: Event) -> HistoryEntry:
    return HistoryEntry(
        event.event,
        event.operation,
        event.from_version,
        event.to_version,
        user=event.user,
        host=event.host,
        writer=event.writer,
        options=event.options,
        result=event.result,
    )


def _read_bytes(io: FileIO, directory: str) -> bytes:
    path = history_path(directory)
    try:
        with named_errors("read the history", path):
            return Path(io.fetch(path)).read_bytes()
    except NotFoundError:
        return b""
