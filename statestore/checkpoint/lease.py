"""Lease: the file by which who writes into a checkpoint says so, for as long as they do.

A running query holds one for each executor, an operation one of its own. Its holder renews a lease
by writing it again and drops it at the end; one that was not renewed for `lasts_ms` has expired,
whoever held it.

Whoever takes a lease writes it first and looks for those of others then: of two that come at the
same time, at least one sees the other. How old a lease is says the storage alone, which dates all
of them: clocks of machines are not compared.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import LeaseKind, lease_directory, lease_name, parse_lease_name
from statestore.core.errors import CorruptionError, IncompatibleError, NotFoundError
from statestore.core.json_fields import Fields, MalformedError, parse_fields
from statestore.core.process import Process
from statestore.core.version import WRITER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.core.clock import Clock
    from statestore.io.file_io import FileInfo, FileIO

FORMAT_VERSION = 1
INTERVALS = 3
"""A lease that missed so many renewals has expired."""
_RESOLUTION_MS = 2_000  # an object store dates its objects by whole seconds
_FORGOTTEN_MS = 24 * 3600 * 1000
_MAX_BYTES = 64 * 1024
_MAX_PID = (1 << 31) - 1
_MOST_NAME = 1000
"""Characters of a query's name that are kept."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lease, a query by one of its executors or an operation.

    Attributes:
        process: The executor's JVM, or the process that carries out the operation.
        application: Spark application ID, empty for an operation.
        executor: ID of the executor in it, empty for an operation.
        run: ID of the query run, empty for an operation.
        operation: Name of the operation, empty for a query.
    """

    process: Process
    application: str = ""
    executor: str = ""
    run: str = ""
    operation: str = ""

    @classmethod
    def from_json(cls, fields: Fields) -> Holder:
        """Read the JSON form."""
        process = fields.object("process")
        return cls(
            Process(
                process.text("host"),
                process.text("machine"),
                process.integer("pid", 1, _MAX_PID),
                process.integer("started"),
            ),
            **{name: fields.text(name) for name in ("application", "executor", "run", "operation")},
        )

    @property
    def kind(self) -> LeaseKind:
        """Query or operation."""
        return "operation" if self.operation else "query"

    def describe(self) -> dict[str, object]:
        """Return its fields for an error, without empty ones."""
        fields = {"host": self.process.host, "pid": self.process.pid, **asdict(self)}
        return {name: value for name, value in fields.items() if name != "process" and value != ""}


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """Progress of a running query, as its driver tells: it is in no other file of the checkpoint.

    Attributes:
        name: Name of the query; None where it has none.
        batch: Newest batch that it has reported; None before the first.
        rows: Input rows of the batch.
        input_rows_per_second, processed_rows_per_second: As Spark has them in its progress; None
            where it does not know.
        began_ms: When the driver's lease was taken, soon after its run began, by its clock; None
            where nobody knows: another engine took it.
    """

    name: str | None = None
    batch: int | None = None
    rows: int | None = None
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    began_ms: int | None = None

    @classmethod
    def from_json(cls, found: object) -> QueryProgress | None:
        """Read the JSON form; what is not as it should be is left out: nothing depends on it."""
        if not isinstance(found, dict):
            return None
        name = found.get("name")
        return cls(
            name[:_MOST_NAME] if isinstance(name, str) else None,
            _to_count(found.get("batch")),
            _to_count(found.get("rows")),
            _to_rate(found.get("input_rows_per_second")),
            _to_rate(found.get("processed_rows_per_second")),
            _to_count(found.get("began_ms")),
        )


def _to_count(found: object) -> int | None:
    return found if type(found) is int and found >= 0 else None


def _to_rate(found: object) -> float | None:
    is_rate = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_rate and 0 <= found <= sys.float_info.max else None  # type: ignore[operator,arg-type]


@dataclass(frozen=True, slots=True)
class FoundLease:
    """A lease as it was read.

    Attributes:
        path: Its file.
        holder: Who holds it.
        interval_ms: How often it is renewed.
        lasts_ms: How long it lasts when it is not.
        progress: What a driver says of its query; None in other leases.
    """

    path: str
    holder: Holder
    interval_ms: int
    lasts_ms: int
    progress: QueryProgress | None = None

    def has_expired(self, age_ms: float) -> bool:
        """Return whether it counts no more, by the time since it was renewed."""
        return age_ms > self.lasts_ms + _RESOLUTION_MS

    def is_overdue(self, watched_ms: float) -> bool:
        """Return whether a holder that lives would have renewed it in a time it was watched."""
        return watched_ms > self.lasts_ms / INTERVALS + _RESOLUTION_MS


class Leases:
    """The leases of one checkpoint.

    Args:
        io: Storage of the checkpoint.
        root: Its `state` directory there.
    """

    def __init__(self, io: FileIO, root: str) -> None:
        self._io = io
        self.directory = lease_directory(root)

    def path(self, name: str) -> str:
        """Return the path of a lease by its file name."""
        return f"{self.directory}/{name}"

    def list(self) -> dict[str, FileInfo]:
        """Return the file of every lease by its name; one listing, nothing is read.

        Raises:
            StorageError: The storage failed.
        """
        return {
            info.name: info
            for info in self._io.list(self.directory)
            if parse_lease_name(info.name) is not None
        }

    def read(self, name: str) -> FoundLease | None:
        """Return a lease by its file name, None when it was dropped meanwhile.

        Raises:
            CorruptionError: It is damaged.
            IncompatibleError: It is of a newer format (kind newer-format): whether its holder still
                writes, that release tells.
            StorageError: The storage failed.
        """
        path = self.path(name)
        try:
            data, _ = self._io.read_tail(path, _MAX_BYTES)
        except NotFoundError:
            return None
        try:
            fields = parse_fields(data)
            fields.require_format(FORMAT_VERSION, path)
            holder = Holder.from_json(fields.object("holder"))
            interval_ms, lasts_ms = (
                fields.integer("interval_ms", 1),
                fields.integer("lasts_ms", 1, _FORGOTTEN_MS),
            )
        except IncompatibleError as error:
            error.to_fix += "; or delete the file, if nothing writes into the checkpoint"
            raise
        except MalformedError as error:
            raise CorruptionError(
                "a lease cannot be read",
                file=path,
                offset=0,
                expected=f"a lease of format version {FORMAT_VERSION}",
                found=data[:200].decode(errors="replace"),
                to_fix="delete it, if nothing writes into the checkpoint",
            ) from error
        progress = QueryProgress.from_json(fields.all.get("query"))
        return FoundLease(path, holder, interval_ms, lasts_ms, progress)

    def forget_old(self, files: Mapping[str, FileInfo], now_ms: float) -> None:
        """Delete leases that were not renewed for a day: their holders died unseen.

        Args:
            files: As `list` returned them.
            now_ms: The storage's time.

        Raises:
            StorageError: The storage failed.
        """
        for name, info in files.items():
            if now_ms - info.modified_ms > _FORGOTTEN_MS:
                self.delete(name)

    def delete(self, name: str) -> None:
        """Delete a lease by its file name, if it is there."""
        self._io.delete(self.path(name))


class Lease:
    """A lease of this process's, or of the JVM it serves. Thread-safe.

    Args:
        io: Storage of the checkpoint.
        root: Its `state` directory there.
        lease_id: 32 hex digits that no other lease has.
        holder: Who holds it.
        interval_ms: How often its owner is going to renew it.
        clock: Source of time.
    """

    def __init__(
        self, io: FileIO, root: str, lease_id: str, holder: Holder, interval_ms: int, clock: Clock
    ) -> None:
        self.leases = Leases(io, root)
        self.name = lease_name(holder.kind, lease_id)
        self._io = io
        self._holder = holder
        self._interval_ms = interval_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._is_dropped = False
        self._taken_ms: int | None = None

    def take(self, progress: QueryProgress | None = None) -> Mapping[str, FileInfo]:
        """Write the lease, as `renew`, and return the files of all leases, this one among them.

        Listed before and after: where a file is replaced in two steps, one listing may miss it.

        Guarantee: whoever takes a lease after this returned finds it.

        Raises:
            StorageError: The storage failed; the lease may be there.
        """
        self._io.make_directory(self.leases.directory)
        before = self.leases.list()
        if self._taken_ms is None and self.name not in before:  # else one that expired
            self._taken_ms = self._clock.now_ms()
        self.renew(progress)
        return {**before, **self.leases.list()}

    def renew(self, progress: QueryProgress | None = None) -> None:
        """Write the lease again, unless it was dropped.

        Args:
            progress: What a driver says of its query.

        Raises:
            StorageError: The storage failed.
        """
        fields: dict[str, object] = {
            "format_version": FORMAT_VERSION,
            "writer": WRITER,
            "holder": asdict(self._holder),
            "interval_ms": self._interval_ms,
            "lasts_ms": INTERVALS * self._interval_ms,
            "renewed_ms": self._clock.now_ms(),
        }
        if progress is not None:
            fields["query"] = asdict(replace(progress, began_ms=self._taken_ms))
        data = json.dumps(fields, indent=2).encode()
        with self._lock:
            if not self._is_dropped:
                # Not synced: after a power failure the writer is gone.
                self._io.write(self.leases.path(self.name), data, sync=False, overwrite=True)

    def drop(self) -> None:
        """Delete the lease for good.

        Raises:
            StorageError: The storage failed; the lease expires.
        """
        with self._lock:
            self._is_dropped = True
            self.leases.delete(self.name)
