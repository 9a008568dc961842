"""The engine's entry point: one method, JSON in and out, a thread per calling thread of the JVM."""

from __future__ import annotations

import json
import logging
import os
import threading
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from statestore.codec.commit_times import CommitTimes
from statestore.core.clock import Clock, SystemClock
from statestore.core.errors import (
    InternalError,
    NotFoundError,
    ProtocolError,
    StateStoreError,
    StorageError,
)
from statestore.core.liveness import Steps, watched
from statestore.core.version import __version__
from statestore.engine.memory import EngineMemory, resident_bytes
from statestore.engine.query_leases import QueryLeases
from statestore.engine.requests import Request
from statestore.engine.scratch import EngineDirectory
from statestore.engine.session import Session, snapshot_pool
from statestore.engine.sessions import Sessions
from statestore.engine.storages import Storages
from statestore.engine.telemetry import Telemetry
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore.checkpoint.snapshot import SnapshotStatus
    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.state_file import StateFile
    from statestore.io.file_io import FileIO
    from statestore.io.shim_files import ShimFiles

logger = logging.getLogger(__name__)

Reply = dict[str, Any]

_LAST_WRITES_S = 0.5
"""Time for the last writes when the JVM is gone; operations wait as long for an engine's end."""


class EngineService:
    """Serves the calls of docs/protocol.md.

    Args:
        scratch_directory: Shared with the shim; local databases go below it.
        io: Storage in place of the local disk; None for the local disk.
        clock: Source of time; the machine's when None.
        hadoop: File systems that only the shim can open; none when None.
        name: Name of this engine among those of the scratch directory.

    Raises:
        StorageError: The scratch directory cannot be written.
    """

    def __init__(
        self,
        scratch_directory: str,
        io: FileIO | None = None,
        clock: Clock | None = None,
        hadoop: ShimFiles | None = None,
        name: str = "0",
        application: str = "",
        executor: str = "",
    ) -> None:
        self._clock = clock or SystemClock()
        self._memory = EngineMemory(self._clock.elapsed_ms)
        own = EngineDirectory(scratch_directory, name)
        with named_errors("use the scratch directory", scratch_directory):
            self._restarts = own.begin()
        self._storages = Storages(own.fetched, self._clock, io, hadoop)
        self._hadoop = hadoop
        self._leases = QueryLeases(self._storages, self._clock, application, executor)
        self._sessions = Sessions(
            self._storages, self._clock, own.databases, own.unfinished, snapshot_pool()
        )
        self._telemetry = Telemetry(
            self._gauges,
            self._totals,
            **{"spark.app.id": application, "spark.executor.id": executor},
        )
        self._making_room = threading.Lock()
        self._times_room_was_made = 0
        self._lock = threading.Lock()
        self._running: dict[int, Steps] = {}
        """Calls under way, by the number that the shim gave them."""
        self._calls: Counter[str] = Counter()
        self._operations = {
            "load": self._in_room(self._load),
            "commit": self._in_room(self._commit),
            "view": self._in_room(self._view),
            "same": self._same,
            "maintain": self._maintain,
            "changes": self._changes,
            "distrust": self._distrust,
            "room": self._room,
            "close": self._close,
            "lease": self._lease,
            "progress": self._progress,
            "status": self._status,
        }

    def end(self) -> bool:
        """Write nothing more, and release all that others can see: no call comes any more.

        Returns:
            Whether all writes have ended; else the leases stay to expire, and the process must end
            at once. Never raises.
        """
        is_quiet = self._storages.write_gate.close(_LAST_WRITES_S)
        if is_quiet:
            self._leases.drop_all()
        self._telemetry.end()
        return is_quiet

    def call(self, request: str) -> str:
        """Answer one call; never raises.

        Args:
            request: `{"op": ..., ...}` as JSON.

        Returns:
            `{"ok": {...}}` or `{"error": {...}}` as JSON.
        """
        try:
            return json.dumps({"ok": self._dispatch(request)})
        except StateStoreError as error:
            reply = _error(error, error)
            logger.info("call failed: error=%s", error)
        except MemoryError as error:
            wrapped: StateStoreError = StorageError(
                "the engine has no memory left",
                reason=f"{type(error).__name__}: {error}",
                to_fix="give executors more memory (spark.executor.memoryOverhead), or the query "
                "more state partitions",
            )
            reply = _error(wrapped, error)
            logger.exception("call failed")
        except Exception as error:
            wrapped = _no_thread(error) or InternalError(
                "the engine failed",
                error=f"{type(error).__name__}: {error}",
                to_fix="report it with the traceback",
            )
            reply = _error(wrapped, error)
            logger.exception("call failed")
        return json.dumps({"error": reply})

    def _dispatch(self, request: str) -> Reply:
        fields = json.loads(request)
        op = fields.get("op") if isinstance(fields, dict) else None
        operation = self._operations.get(str(op))
        if operation is None:
            raise ProtocolError(
                "the engine does not know this call",
                op=op,
                known=", ".join(self._operations),
                to_fix="use the shim and the package of one version",
            )
        with self._lock:
            self._calls[str(op)] += 1
        read = Request(fields)
        call, steps = read.get_optional("call", int), Steps()
        if call is None:
            return self._answer(operation, read)
        with self._lock:
            self._running[call] = steps
        try:
            with watched(steps):
                return self._answer(operation, read)
        finally:
            with self._lock:
                del self._running[call]

    def _answer(self, operation: Callable[[Request], Reply], read: Request) -> Reply:
        if self._hadoop is not None and read.get_optional("files", dict) is not None:
            offer = read.child("files")
            self._hadoop.listens_at(offer.get("port", int), offer.get("token", str))
        return operation(read)

    def _in_room(self, operation: Callable[[Request], Reply]) -> Callable[[Request], Reply]:
        """Return an operation that takes the place of closed stores where the disk is full."""

        def run(request: Request) -> Reply:
            before = self._times_room_was_made
            try:
                return operation(request)
            except StorageError as error:
                if error.kind != "storage-full":
                    raise
                # Calls beside this one may have met the same disk: one makes room for all.
                if self._make_room() == before:
                    raise
                logger.info("the copies of closed stores are given up: error=%s", error)
                return operation(request)

        return run

    def _make_room(self) -> int:
        """Give up the copies of closed stores; return how often there were some."""
        with self._making_room:
            self._times_room_was_made += self._sessions.forget_closed(keep=0)
            return self._times_room_was_made

    def _requests(self, session: Session) -> dict[str, int]:
        return self._storages.take_requests(session.versions.location)

    def _gauges(self) -> dict[str, int]:
        """Return what is true now, by the names of docs/metrics.md."""
        return {
            "engineRssBytes": resident_bytes(),
            "enginesRunning": 1,
            "engineRestarts": self._restarts,
            "snapshotsInFlight": self._sessions.num_snapshots_in_flight,
        }

    def _totals(self) -> dict[str, int]:
        """Return what was counted since the start, by the names of docs/metrics.md."""
        requests = self._storages.requests.total()
        return {f"storage{kind.capitalize()}s": number for kind, number in requests.items()}

    def _load(self, request: Request) -> Reply:
        start_ms = self._clock.elapsed_ms()
        options = request.options()
        self._telemetry.begin(options.engine_otlp_endpoint)
        version = request.get("version", int)
        num_partitions = request.get_optional("num_partitions", int)
        session = self._sessions.of(request, is_reader=num_partitions is None)
        if version == 0:
            max_parallelism = session.load_empty(num_partitions or 1, options)
            return _empty_reply(max_parallelism, self._requests(session))
        from_snapshot = None
        if request.get_optional("from_snapshot", dict) is not None:
            asked = request.child("from_snapshot")
            from_snapshot = asked.get("version", int), asked.get_optional("checkpoint_id", str)
        checkpoint_id = request.get_optional("checkpoint_id", str)
        try:
            with self._storages.fetched_stay():
                if num_partitions is None:
                    restored = session.read(version, checkpoint_id, options, from_snapshot)
                else:
                    restored = session.load(
                        version, checkpoint_id, num_partitions, options, from_snapshot
                    )
        except NotFoundError as error:
            # A reader of state, for which no query runs, is never told that there is none.
            is_accepted = options.heap_on_driver_loss == "empty" and num_partitions is not None
            if error.kind != "driver-lost" or not is_accepted:
                raise
            logger.warning("the query goes on from empty state: error=%s", error)
            max_parallelism = session.load_empty(num_partitions or 1, options)
            return _empty_reply(max_parallelism, self._requests(session)) | {"version": version}
        self._telemetry.loaded(self._clock.elapsed_ms() - start_ms, restored.bytes_read)
        head = restored.head.trailer
        return {
            "version": head.version,
            "checkpoint_id": head.checkpoint_id,
            "lineage": head.lineage,
            "max_parallelism": head.max_parallelism,
            "rescalable": head.rescalable,
            "num_keys": head.num_keys,
            "num_internal_keys": head.num_internal_keys,
            "num_partitions": head.num_partitions,
            "column_families": _families(head.column_families),
            "files": [_file(file) for file in restored.files],
            "view": restored.view or None,
            "key_group_filter": restored.owned is not None,
            "files_read": len(restored.refs),
            "bytes_read": restored.bytes_read,
            "requests": self._requests(session),
        }

    def _commit(self, request: Request) -> Reply:
        start_ms = self._clock.elapsed_ms()
        self._telemetry.begin(request.options().engine_otlp_endpoint)
        delta = request.child("delta")
        if request.get_optional("parent", dict) is None:
            self._storages.claim(request)
        session = self._sessions.of(request)
        published, snapshot = session.commit(
            request.new_version(self._memory.use()),
            delta.get("path", str),
            delta.get("length", int),
            request.options(),
            force_snapshot=request.get_or("force_snapshot", bool, False),
            run=request.run(),
        )
        times = published.commit or CommitTimes()
        if published.commit is not None:  # else an engine before this one has published it
            self._telemetry.committed(
                session.versions.location.directory,
                published.trailer.version,
                times,
                published.ref.size,
                self._clock.elapsed_ms() - start_ms,
            )
        return {
            "checkpoint_id": published.trailer.checkpoint_id,
            "lineage": published.trailer.lineage,
            "size": published.ref.size,
            "publish_ms": times.publish_ms,
            "sync_ms": times.sync_ms,
            "version_bytes": published.ref.size + sum(ref.size for ref in published.trailer.files),
            **self._memory_shares(),
            "requests": self._requests(session),
            "snapshot": _snapshot(snapshot) | {"in_flight": session.is_snapshot_in_flight},
        }

    def _view(self, request: Request) -> Reply:
        local = self._sessions.of(request).view(
            request.version_ref("version"),
            request.get("checkpoint_format", int),
            request.options(),
        )
        return {
            "view": local and local.view,
            "key_group_filter": local is not None and local.owned is not None,
            "num_partitions": local and local.head.trailer.num_partitions,
        }

    def _same(self, request: Request) -> Reply:
        return {"same": self._sessions.of(request).has_lineage(request.version_ref("version"))}

    def _memory_shares(self) -> Reply:
        """Return this process's memory divided by its open stores."""
        num_stores = max(1, self._sessions.num_open)
        return {
            "rss_share_bytes": self._memory.use().engine_bytes // num_stores,
            "rocksdb_share_bytes": self._sessions.rocksdb_bytes // num_stores,
        }

    def _maintain(self, request: Request) -> Reply:
        session = self._sessions.of(request, opens=False)
        self._sessions.forget_left()
        wait_ms = request.get_optional("wait_ms", int)
        cleanup = session.maintain(
            request.get("version", int),
            request.get_optional("checkpoint_id", str),
            request.options(),
            snapshot=request.get("snapshot", bool),
            cleanup=request.get("cleanup", bool),
            wait_s=None if wait_ms is None else wait_ms / 1000,
        )
        return {
            "snapshot": _snapshot(session.versions.snapshot_status),
            "files_left": cleanup.num_left,
        }

    def _changes(self, request: Request) -> Reply:
        versions = self._sessions.of(request, is_reader=True).versions
        head, files = versions.changes(
            request.get("start_version", int),
            request.get("end_version", int),
            request.get_optional("checkpoint_id", str),
            request.get("directory", str),
        )
        return {
            "column_families": _families(head.trailer.column_families),
            "files": [
                {
                    "version": file.trailer.version,
                    "column_families": _families(file.trailer.column_families),
                    "path": file.path,
                    "sst": file.sst_path,
                }
                for file in files
            ],
        }

    def _distrust(self, request: Request) -> Reply:
        self._sessions.of(request).distrust()
        return {}

    def _room(self, _request: Request) -> Reply:
        self._make_room()
        return {}

    def _close(self, request: Request) -> Reply:
        self._sessions.close(request)
        return {}

    def _lease(self, request: Request) -> Reply:
        self._telemetry.begin(request.options().engine_otlp_endpoint)
        self._leases.serve(request)
        return {}

    def _progress(self, request: Request) -> Reply:
        with self._lock:
            running = self._running.get(request.get("of", int))
        return {"steps": running and running.steps}

    def _status(self, _request: Request) -> Reply:
        with self._lock:
            calls = dict(self._calls)
        return {
            "pid": os.getpid(),
            "version": __version__,
            "rss_bytes": resident_bytes(),
            "stores": self._sessions.num_open,
            "calls": calls,
            "requests": self._storages.requests.total(),
            "lease_requests": self._storages.lease_requests.total(),
            "snapshots_in_flight": self._sessions.num_snapshots_in_flight,
        }

    class Java:
        """Makes this object a Java one for py4j."""

        implements: ClassVar[list[str]] = ["io.statestore.engine.EngineApi"]


def _error(reported: StateStoreError, raised: Exception) -> Reply:
    return reported.to_json() | {"traceback": "".join(traceback.format_exception(raised, limit=-8))}


def _no_thread(error: Exception) -> StorageError | None:
    """Return the error of a call that needed a thread more than there may be."""
    if not isinstance(error, RuntimeError) or "can't start new thread" not in str(error):
        return None
    return StorageError(
        "the engine gets no thread",
        reason=str(error),
        to_fix="on the machine of the executor raise the limit of threads: that of the container "
        "(pids) or of the user (ulimit -u)",
    )


def _empty_reply(max_parallelism: int, requests: dict[str, int]) -> Reply:
    return {
        "version": 0,
        "checkpoint_id": None,
        "lineage": None,
        "max_parallelism": max_parallelism,
        "rescalable": True,
        "num_keys": 0,
        "num_internal_keys": 0,
        "num_partitions": None,
        "column_families": [],
        "files": [],
        "view": None,
        "key_group_filter": False,
        "files_read": 0,
        "bytes_read": 0,
        "requests": requests,
    }


def _file(file: StateFile) -> Reply:
    return {
        "path": file.path,
        "kind": file.trailer.kind,
        "rows": file.trailer.rows.total,
        "clip": file.clip and [file.clip.modulus, file.clip.remainder],
        "slices": file.slices,
    }


def _families(families: tuple[ColumnFamily, ...]) -> list[Reply]:
    return [family.to_json() for family in families]


def _snapshot(status: SnapshotStatus) -> Reply:
    return {
        "version": status.version,
        "bytes": status.num_bytes,
        "duration_ms": status.duration_ms,
        "taken": status.num_taken,
    }
