"""The leases of the query runs that this engine's JVM has stores of."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import parse_lease_name
from statestore.checkpoint.lease import INTERVALS, FoundLease, Holder, Lease, Leases, QueryProgress
from statestore.checkpoint.placement import require_own_state
from statestore.core.errors import InUseError, ProtocolError, StateStoreError, StorageError
from statestore.core.process import find_process
from statestore.engine.storages import checkpoint_uri

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.core.clock import Clock
    from statestore.engine.requests import Request
    from statestore.engine.storages import Storages
    from statestore.io.file_io import FileInfo

logger = logging.getLogger(__name__)

_DROP_TIMEOUT_S = (
    1.2  # with the last writes less than the shim waits for an engine that it asked to end
)


class QueryLeases:
    """Takes, renews and drops leases on calls of the shim. Thread-safe.

    Args:
        storages: Where the checkpoints are.
        clock: Source of time.
        application: ID of the Spark application that holds them.
        executor: ID of its executor.
    """

    def __init__(self, storages: Storages, clock: Clock, application: str, executor: str) -> None:
        self._storages = storages
        self._clock = clock
        self._application = application
        self._executor = executor
        self._lock = threading.Lock()
        self._held: dict[str, Lease] = {}

    def serve(self, request: Request) -> None:
        """Answer a call `lease`; see docs/protocol.md.

        Raises:
            InUseError: An operation is changing the checkpoint (kind checkpoint-under-operation);
                the lease was dropped.
            IncompatibleError: The checkpoint names the state of another (kind other-checkpoint), or
                the lease of an operation is of a newer format (kind newer-format); the lease was
                dropped.
            CorruptionError, StorageError: A lease, or the file that names the place of the state,
                cannot be read; the storage failed. One that was to be taken was dropped.
        """
        lease_id = request.get("id", str)
        progress = QueryProgress.from_json(request.get_optional("query", dict))
        match request.get("action", str):
            case "take":
                self._take(request, self._lease(request, lease_id), progress)
            case "renew":
                self._lease(request, lease_id).renew(progress)
            case "drop":
                lease = self._lease(request, lease_id)
                with self._lock:
                    self._held.pop(lease_id, None)
                lease.drop()
            case action:
                raise ProtocolError(
                    "a call for a lease has an unknown action",
                    action=action,
                    to_fix="use the shim and the package of one version",
                )

    def drop_all(self) -> None:
        """Drop all leases, if that takes little time: no thread can write any more.

        Never raises; the remaining leases expire.
        """
        dropping = threading.Thread(target=self._drop_all, name="drop-leases", daemon=True)
        dropping.start()
        dropping.join(_DROP_TIMEOUT_S)

    def _drop_all(self) -> None:
        with self._lock:
            leases = list(self._held.values())
            self._held.clear()
        for lease in leases:
            try:
                lease.drop()
            except StateStoreError as error:
                logger.warning("a lease is left to expire: error=%s", error)

    def _lease(self, request: Request, lease_id: str) -> Lease:
        """Return a lease, whichever engine took it."""
        with self._lock:
            known = self._held.get(lease_id)
        if known is not None:
            return known
        io, root = self._storages.open_checkpoint(request)
        holder = Holder(
            find_process(request.get("pid", int)),
            application=self._application,
            executor=self._executor,
            run=request.run(),
        )
        interval_ms = request.options().lease_interval_ms
        made = Lease(io, root, lease_id, holder, interval_ms, self._clock)
        with self._lock:
            return self._held.setdefault(lease_id, made)

    def _take(self, request: Request, lease: Lease, progress: QueryProgress | None) -> None:
        try:
            files = lease.take(progress)
            now_ms = files[lease.name].modified_ms if lease.name in files else self._clock.now_ms()
            self._require_no_operation(lease, files, now_ms)
            elsewhere = self._storages.open_state_elsewhere(request)
            if elsewhere is not None:
                require_own_state(
                    checkpoint_uri(request),
                    *elsewhere,
                    lambda uri: (
                        lease.name in Leases(*self._storages.open_directory(uri, request)).list()
                    ),
                )
        except StateStoreError:
            with self._lock:
                self._held = {name: held for name, held in self._held.items() if held is not lease}
            with suppress(StorageError):  # it expires
                lease.drop()
            raise
        with suppress(StorageError):  # a day's dead ones: another engine may delete them
            lease.leases.forget_old(files, now_ms)

    def _require_no_operation(
        self, lease: Lease, files: Mapping[str, FileInfo], now_ms: int
    ) -> None:
        for name, info in files.items():
            if parse_lease_name(name) != "operation":
                continue
            found = lease.leases.read(name)
            if found is None:
                raise _under_operation(lease, None, 0.0)
            age_ms = now_ms - info.modified_ms
            is_gone = found.holder.process.state() == "gone"
            if not is_gone and not found.has_expired(age_ms):
                raise _under_operation(lease, found, age_ms)


def _under_operation(lease: Lease, found: FoundLease | None, age_ms: float) -> InUseError:
    # Also where it ended this very moment: the query was planned before.
    holder = {} if found is None else found.holder.describe()
    wait_s = 0 if found is None else INTERVALS * found.interval_ms // 1000
    return InUseError(
        "an operation is changing the checkpoint",
        kind="checkpoint-under-operation",
        **holder,
        renewed_ms_ago=int(age_ms),
        lease=lease.leases.directory if found is None else found.path,
        to_fix="start the query again when the operation has ended; one that died counts as "
        f"ended {wait_s} s after its last renewal",
    )
