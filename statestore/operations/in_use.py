"""Whether a checkpoint is in use by a running query, and how an operation keeps queries away.

What is known of this package's queries is known by their leases (`checkpoint/lease_watch.py`).
Queries over Spark's own providers have none: `same_batches` tells afterwards whether one ran.
"""

from __future__ import annotations

import logging
import posixpath
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from statestore.checkpoint.history import event_of, newest_line
from statestore.checkpoint.layout import parse_lease_name, parse_pin_name
from statestore.checkpoint.lease import INTERVALS, Holder, Lease, Leases
from statestore.checkpoint.lease_watch import await_end
from statestore.checkpoint.pins import is_held
from statestore.checkpoint.placement import require_own_state
from statestore.checkpoint.query_log import QueryLog
from statestore.core.clock import SystemClock
from statestore.core.errors import InUseError, StateStoreError
from statestore.core.ids import RandomIds
from statestore.core.options import StateStoreOptions
from statestore.core.process import find_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from statestore.checkpoint.lease import QueryProgress
    from statestore.core.clock import Clock
    from statestore.io.file_io import FileInfo, FileIO
    from statestore.operations.checkpoint import OpenCheckpoint

logger = logging.getLogger(__name__)

_MOST_LEASES_READ = 16
"""Of those of a query with many executors: each is one request."""
_LONG_AGO_MS = 60_000
"""A lease that was last written so long before the newest one may have been left behind."""


@contextmanager
def exclusive_use(checkpoint: OpenCheckpoint, operation: str) -> Iterator[ExclusiveUse]:
    """Keep queries and other operations away from a checkpoint while a block changes it.

    May wait: a few seconds for a query that was just stopped; for one whose executors died on other
    machines, until their leases have expired.

    Args:
        checkpoint: The checkpoint. What it remembers of the logs is still true when the block
            begins, and of the history where it was told to `decide_from_here`.
        operation: What is done, in a word, for whoever is refused meanwhile.

    Guarantee: no query run of this package loads or commits a state version between the beginning
    of the block and its end, unless this process stood still for longer than its lease lasts. Then
    `ExclusiveUse.require_held` raises from there on. After a raise from here nothing has changed.

    Raises:
        InUseError: A query or another operation is at it; `fields` say who, and how that is known.
        InvalidArgumentError: It is a savepoint.
        IncompatibleError: It is another provider's (kind other-provider), its state is another
            checkpoint's (kind other-checkpoint), or a lease is of a newer format (kind
            newer-format).
        CorruptionError, StorageError: A lease cannot be read; the storage failed.
    """
    checkpoint.check_of_query()
    checkpoint.require_own()  # of another provider's checkpoint nothing is touched
    batches = checkpoint.planned_batches, checkpoint.committed_batches
    with exclusive_directory(
        checkpoint.io,
        checkpoint.path,
        operation,
        interval_ms=checkpoint.options.lease_interval_ms,
        clock=checkpoint.clock,
    ) as use:
        _require_batches(checkpoint, *batches)
        for line in checkpoint.decided_after[:1]:
            _require_line(checkpoint, line)
        if checkpoint.placement is not None:
            open_other = partial(
                checkpoint.place.open_other, cache_directory=checkpoint.scratch_directory
            )
            require_own_state(
                checkpoint.place.state_uri,
                checkpoint.placement,
                checkpoint.state_io,
                checkpoint.state_root,
                lambda uri: use.lease_name in Leases(*open_other(uri)).list(),
            )
        yield use


@contextmanager
def exclusive_directory(
    io: FileIO,
    path: str,
    operation: str,
    *,
    interval_ms: int | None = None,
    clock: Clock | None = None,
) -> Iterator[ExclusiveUse]:
    """Do what `exclusive_use` does for a checkpoint directory that need not be there yet.

    Args:
        io: Its storage.
        path: The checkpoint directory there; made if it is not.
        operation: As `exclusive_use`.
        interval_ms: How often the lease is renewed; as the option says when None.
        clock: Source of time, the machine's when None.

    Raises:
        InUseError, IncompatibleError, CorruptionError, StorageError: As `exclusive_use`.
    """
    clock = clock or SystemClock()
    interval_ms = interval_ms or StateStoreOptions().lease_interval_ms
    root = f"{path.rstrip('/')}/state"
    holder = Holder(find_process(), operation=operation)
    lease = Lease(io, root, RandomIds().new_id(), holder, interval_ms, clock)
    try:
        with ExclusiveUse(lease, interval_ms, clock) as use:
            files = dict(lease.take())
            own = files.pop(lease.name, None)
            now_ms = clock.now_ms() if own is None else own.modified_ms
            for name in await_end(lease.leases, files, now_ms, path, clock):
                lease.leases.delete(name)
            yield use
    finally:
        # One that stays expires; what the block did or raised counts more.
        with suppress(StateStoreError):
            lease.drop()


class ExclusiveUse:
    """A lease of an operation's, renewed by a thread of its own while the block runs."""

    def __init__(self, lease: Lease, interval_ms: int, clock: Clock) -> None:
        self._lease = lease
        self._interval_ms = interval_ms
        self._clock = clock
        self._renewed = self._now()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    @property
    def lease_name(self) -> str:
        """File name of the lease."""
        return self._lease.name

    def __enter__(self) -> ExclusiveUse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def require_held(self) -> None:
        """Raise unless the lease was renewed in time: to be called before what cannot be undone.

        Raises:
            InUseError: The lease has expired, a query may have started (kind checkpoint-in-use).
        """
        age_ms = self._age_ms()
        if self._is_lost(age_ms):
            raise InUseError(
                "the operation's lease on the checkpoint has expired",
                lease=self._lease.leases.path(self._lease.name),
                renewed_ms_ago=int(age_ms),
                lasts_ms=INTERVALS * self._interval_ms,
                to_fix="see that no query writes the checkpoint, and do the operation again",
            )

    def _age_ms(self) -> float:
        """Return how long ago the lease was renewed.

        The monotonic clock stands still while the machine is suspended, the other one may be set
        back: the one that says more counts.
        """
        ages = zip(self._now(), self._renewed, strict=True)
        return max(now - renewed for now, renewed in ages)

    def _now(self) -> tuple[float, float]:
        """Return milliseconds of both clocks."""
        return self._clock.elapsed_ms(), float(self._clock.now_ms())

    def _is_lost(self, age_ms: float) -> bool:
        return age_ms > INTERVALS * self._interval_ms

    def _renew(self) -> None:
        while not self._is_over.wait(self._interval_ms / 1000):
            began = self._now()
            if self._is_lost(self._age_ms()):
                # Somebody else may be at it since: a lease that was lost is not taken again.
                logger.warning("the lease has expired: lease=%s", self._lease.name)
                return
            try:
                self._lease.renew()
            except StateStoreError as error:
                logger.warning("the lease was not renewed: error=%s", error)
            else:
                self._renewed = began


def require_not_in_use(checkpoint: OpenCheckpoint) -> None:
    """Raise if a query is writing a checkpoint, or an operation changes it; nothing is written.

    Raises:
        As `exclusive_use`; what begins afterwards is not kept away.
    """
    require_directory_not_in_use(checkpoint.io, checkpoint.path, checkpoint.clock)


def require_directory_not_in_use(io: FileIO, path: str, clock: Clock) -> None:
    """Do what `require_not_in_use` does for a checkpoint directory that may be unfinished."""
    leases = Leases(io, f"{path}/state")
    await_end(leases, leases.list(), 0, path, clock)


def require_no_pins(
    checkpoint: OpenCheckpoint, files: Iterable[FileInfo], but: tuple[str, ...] = ()
) -> None:
    """Check that nobody reads files that are to be deleted, as far as pins tell.

    Args:
        checkpoint: The checkpoint.
        files: What is listed of it, with pins of versions whose files are to be deleted.
        but: Beginnings of IDs of pins that are passed over, as `pins_for`.

    Raises:
        InUseError: Somebody does.
    """
    now_ms = checkpoint.clock.now_ms()
    pins = [info for info in files if parse_pin_name(posixpath.basename(info.name)) is not None]
    for info in pins:
        passed_over = info.name.split(".")[-2].startswith(but)
        if is_held(info, now_ms) and not passed_over:
            raise InUseError(
                "somebody reads the files: a copy that is being made, SQL, or a trial",
                checkpoint=checkpoint.uri,
                pin=info.name,
                to_fix="wait for it; where its process has died, an hour",
            )


@dataclass(frozen=True, slots=True)
class Users:
    """Who is at a checkpoint.

    Attributes:
        is_query_running: Whether a query holds a lease.
        progress: What the driver of that query says in its lease; None where it says nothing.
        operation: Name of an operation that holds a lease; None where none does.
    """

    is_query_running: bool = False
    progress: QueryProgress | None = None
    operation: str | None = None


def find_users(checkpoint: OpenCheckpoint) -> Users:
    """Find who holds a lease on a checkpoint, at a glance; nobody is waited for.

    Never a query over Spark's own providers, which has none. A query on another machine that died a
    moment ago still counts, until its lease has expired. Of many leases only some are read.

    Raises:
        CorruptionError, IncompatibleError, StorageError: A lease cannot be read, or is of a newer
            format; the storage failed.
    """
    leases = Leases(checkpoint.io, checkpoint.state_directory)
    now_ms = checkpoint.clock.now_ms()
    users = Users()
    # The driver's says more than those of executors, so it is the longest. Drivers that were killed
    # leave theirs, which nobody renews.
    files = sorted(leases.list().items(), key=lambda item: (-item[1].size, -item[1].modified_ms))
    newest_ms = max((info.modified_ms for _, info in files), default=0)
    since_ms = newest_ms - _LONG_AGO_MS
    recent = [file for file in files if file[1].modified_ms >= since_ms]
    others = [file for file in files if file[1].modified_ms < since_ms]
    for name, info in (*recent[:_MOST_LEASES_READ], *others[:_MOST_LEASES_READ]):
        found = leases.read(name)
        if found is None:
            continue
        state = found.holder.process.state()
        is_fresh = not found.has_expired(now_ms - info.modified_ms)
        if state == "alive" or (state == "unknown" and is_fresh):
            if parse_lease_name(name) == "operation":
                users = replace(users, operation=found.holder.operation or None)
            else:
                progress = users.progress or found.progress
                users = replace(users, is_query_running=True, progress=progress)
    return users


def is_query_running(checkpoint: OpenCheckpoint) -> bool:
    """Return whether a query holds a lease on a checkpoint, as `find_users` finds it."""
    return find_users(checkpoint).is_query_running


def same_batches(checkpoint: OpenCheckpoint) -> Callable[[], None]:
    """Return a check that no batch was planned or committed since the checkpoint was first asked.

    For reading what a query over another provider wrote, which holds no lease: what was read while
    it ran may be of no one version. The check raises InUseError where there is another batch (kind
    checkpoint-in-use), StorageError where the storage failed.

    Raises:
        StorageError: The storage failed.
    """
    batches = checkpoint.planned_batches, checkpoint.committed_batches
    return lambda: _require_batches(checkpoint, *batches)


def _require_line(checkpoint: OpenCheckpoint, known: bytes) -> None:
    """Check that no operation has written the history: a promote keeps the batches of the logs.

    Bytes are compared: this release cannot read every line of a later one.
    """
    found = newest_line(checkpoint.io, checkpoint.path)
    if found != known:
        event = event_of(found)
        raise InUseError(
            "a query or an operation has written the checkpoint since it was opened",
            checkpoint=checkpoint.path,
            known_by="a new line in its history of operations",
            operation=None if event is None else event.operation,
            to_fix="do it again: what was decided is of the state before",
        )


def _require_batches(
    checkpoint: OpenCheckpoint, planned: tuple[int, ...], committed: tuple[int, ...]
) -> None:
    for log, known in ((checkpoint.offsets, planned), (checkpoint.commits, committed)):
        newest = max(known, default=-1)
        found = QueryLog(log.io, log.checkpoint, log.name).newest()
        if found != newest:
            raise InUseError(
                "a query or an operation has written the checkpoint since it was opened",
                checkpoint=checkpoint.path,
                known_by=f"a new entry in its log {log.name}",
                batch_then=newest,
                batch_now=found,
                to_fix="stop the query, where one runs, and try again",
            )
