"""Whether leases of others count: who may still write into a checkpoint.

For a process of this machine that is known soon: a process that is gone writes nothing, nor do the
engines of a JVM that is gone. Other leases are watched until they are dropped, expire or are
renewed. A lease that a listing does not show may be just being replaced, so two listings decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.checkpoint.layout import parse_lease_name
from statestore.core.errors import InUseError

if TYPE_CHECKING:
    from statestore.checkpoint.lease import FoundLease, Leases
    from statestore.core.clock import Clock
    from statestore.io.file_io import FileInfo

_POLL_MS = 250
_MISSING_LISTINGS = 2
"""So many listings in a row without a lease say that it was dropped."""
_ENGINES_END_MS = 1_000
"""Time that engines may write on when their JVM is gone; twice what they take."""
_DROP_MS = 4_000
"""Time that the lease of a query which was just stopped may stay."""


def await_end(
    leases: Leases, files: dict[str, FileInfo], now_ms: int, checkpoint: str, clock: Clock
) -> list[str]:
    """Wait until no lease counts, and return the names of those that count no more.

    Args:
        leases: Those of the checkpoint.
        files: The files that count; later holders have seen the caller's own lease.
        now_ms: The storage's time, 0 where no lease of our own tells it.
        checkpoint: The checkpoint directory, for errors.
        clock: Source of time.

    Raises:
        InUseError: One is in use.
        CorruptionError, IncompatibleError, StorageError: As `Leases.read`.
    """
    watch = [_Watch(leases, name, info) for name, info in files.items()]
    began_ms = clock.elapsed_ms()
    present = files
    while watch:
        waited_ms = clock.elapsed_ms() - began_ms
        still = [one for one in watch if one.may_count(present, now_ms, waited_ms)]
        for one in still:
            one.require_end(checkpoint, waited_ms)
        if not still:
            break
        clock.sleep_ms(_POLL_MS)
        present = leases.list()
    return [one.name for one in watch if one.is_dead]


class _Watch:
    """A lease that is watched, and its last sight."""

    def __init__(self, leases: Leases, name: str, info: FileInfo) -> None:
        self.name = name
        self.is_dead = False
        self._leases = leases
        self._last, self._last_ms = info, 0.0
        self._found: FoundLease | None = None
        self._suspect_since_ms: float | None = None
        self._gone_since_ms: float | None = None
        self._num_missing = 0
        self._known_by = ""

    def may_count(self, present: dict[str, FileInfo], now_ms: int, waited_ms: float) -> bool:
        """Return whether its holder may still write, by its file after some time."""
        if self.is_dead:
            return False
        if self.name not in present:
            self._num_missing += 1
            return self._num_missing < _MISSING_LISTINGS
        self._num_missing = 0
        if present[self.name].modified_ms != self._last.modified_ms:
            self._last, self._last_ms = present[self.name], waited_ms
        if self._found is None:
            self._found = self._leases.read(self.name)
        if self._found is None:
            return True  # the next listing tells whether it was dropped
        state = self._found.holder.process.state()
        watched_ms = waited_ms - self._last_ms
        # The time that it was watched counts also where the storage's time is unknown.
        age_ms = max(now_ms + waited_ms - self._last.modified_ms, watched_ms)
        has_expired = self._found.has_expired(age_ms)
        # The clock may have been set: a holder that lives is given the time to renew it.
        may_renew = state == "alive" and not self._found.is_overdue(watched_ms)
        if state == "gone" and self._gone_since_ms is None:
            self._gone_since_ms = waited_ms
        end_ms = _ENGINES_END_MS if self._found.holder.kind == "query" else 0
        has_ended = self._gone_since_ms is not None and waited_ms - self._gone_since_ms >= end_ms
        if has_ended or (has_expired and not may_renew):
            self.is_dead = True
            return False
        if self._suspect_since_ms is None:
            if state == "alive" and not has_expired:
                self._suspect(waited_ms, "its process is alive on this machine")
            elif self._last_ms > 0:
                self._suspect(waited_ms, "its lease was renewed while it was watched")
        return True

    def _suspect(self, since_ms: float, known_by: str) -> None:
        self._suspect_since_ms, self._known_by = since_ms, known_by

    def require_end(self, checkpoint: str, waited_ms: float) -> None:
        """Raise when it had the time to be dropped and was not."""
        if (
            self._found is None
            or self._suspect_since_ms is None
            or waited_ms - self._suspect_since_ms < _DROP_MS
        ):
            return
        is_query = parse_lease_name(self.name) == "query"
        raise InUseError(
            "a query is writing the checkpoint"
            if is_query
            else "an operation is changing the checkpoint",
            kind="checkpoint-in-use" if is_query else "checkpoint-under-operation",
            checkpoint=checkpoint,
            **self._found.holder.describe(),
            known_by=self._known_by,
            watched_ms=int(waited_ms),
            lease=self._found.path,
            to_fix="stop the query, and try again when it has ended"
            if is_query
            else "wait for its end",
        )
