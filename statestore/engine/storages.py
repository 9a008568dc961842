"""The storage of a call's store, and its requests, counted."""

from __future__ import annotations

import posixpath
import threading
from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from statestore.checkpoint.layout import BODIES, StoreLocation, placeholder_path, placement_path
from statestore.checkpoint.placement import (
    Placement,
    lost_placement,
    make_placement,
    read_placement,
)
from statestore.checkpoint.query_log import QueryLog
from statestore.core.errors import IncompatibleError, InvalidArgumentError, ProtocolError
from statestore.core.providers import IN_DRIVER_MEMORY
from statestore.engine.write_gate import WriteGate
from statestore.io.counting import CountingFileIO, RequestCounts
from statestore.io.fetch_cache import FetchCache
from statestore.io.hadoop import HadoopFileIO, split_hadoop_uri
from statestore.io.local import LocalFileIO
from statestore.io.s3_settings import S3Settings
from statestore.io.storage import (
    AllStorages,
    memory_root,
    open_s3,
    place_uri,
    resolve_path,
    scheme_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions
    from statestore.engine.requests import Request
    from statestore.io.checkpoint_memory_address import CheckpointMemoryAddress
    from statestore.io.file_io import FileIO
    from statestore.io.hadoop import HadoopFiles

_NUM_REMEMBERED = 256
_UNUSED_S3 = 16


@dataclass(slots=True)
class _Checkpoint:
    """Placement of a checkpoint as one query run knows it; guarded by its lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    is_read: bool = False
    placement: Placement | None = None


class Storages:
    """The storages of one engine, by checkpoint. Thread-safe.

    Args:
        fetched_directory: Local directory; files fetched from remote storage go below it.
        clock: Source of time.
        io: Storage in place of the local disk, for tests; None for the local disk.
        hadoop: File systems of all other schemes; None refuses them.
    """

    def __init__(
        self,
        fetched_directory: str,
        clock: Clock,
        io: FileIO | None = None,
        hadoop: HadoopFiles | None = None,
    ) -> None:
        self._fetched_directory = fetched_directory
        self.requests = RequestCounts()
        """Requests made to all of them."""
        self.lease_requests = RequestCounts()
        """Those for leases, which are no store's."""
        self.write_gate = WriteGate()
        """Passed by writes for stores, but not for leases."""
        self._local = io or LocalFileIO(clock=clock)
        self._lock = threading.Lock()
        self._hadoop = hadoop
        self._memory: tuple[CheckpointMemoryAddress, FileIO] | None = None
        self._cache: FetchCache | None = None
        self._s3: WeakValueDictionary[S3Settings, FileIO] = WeakValueDictionary()
        self._last_s3: deque[FileIO] = deque(maxlen=_UNUSED_S3)
        self._hadoop_ios: dict[tuple[str, str], FileIO] = {}
        self._checkpoints: dict[tuple[str, str], _Checkpoint] = {}
        self._locations: dict[StoreLocation, StoreLocation] = {}

    def locate(self, request: Request) -> StoreLocation:
        """Return the location of a call's store; the same object for the same place.

        Reads the checkpoint's placement once for each query run.

        Raises:
            InvalidArgumentError: A URI is of a scheme that is not supported.
            IncompatibleError: The option checkpointStorage differs from the checkpoint's (kind
                storage-changed).
            CorruptionError, StorageError: The placement cannot be read.
        """
        options = request.options()
        home = self._home(request, options)
        if _is_in_memory(request):
            return self._locate_in_memory(request, home)
        placement = self._placement(request, home, options).placement
        if placement is None:
            # Version 0 is nowhere yet: the first commit decides where the state will be.
            if options.checkpoint_storage:
                self._open(options.checkpoint_storage, request, options)
                if request.get_or("version", int, 0) > 0:
                    raise _is_at_home(home, request)
            return home
        _check_same(placement, request)
        io, path = self._open(placement.storage, request, options)
        return self._counted(replace(home, io=io, root=placement.directory(path)))

    def home(self, request: Request) -> StoreLocation:
        """Return the location of a call's store in its checkpoint's own directory."""
        return self._home(request, request.options())

    def open_checkpoint(self, request: Request) -> tuple[FileIO, str]:
        """Return the storage of a call's checkpoint for leases, and its `state` directory there.

        Raises:
            InvalidArgumentError: Its URI is of a scheme that is not supported.
        """
        io, root = self._open(request.root(), request, request.options(), is_encoded=False)
        return self._of_leases(io), root

    def open_directory(self, uri: str, request: Request) -> tuple[FileIO, str]:
        """Return the storage of a URI for leases, as a call's query reaches it, and the path there.

        Raises:
            InvalidArgumentError: The URI is of a scheme that is not supported.
        """
        io, path = self._open(uri, request, request.options())
        return self._of_leases(io), path

    def open_state_elsewhere(self, request: Request) -> tuple[Placement, FileIO, str] | None:
        """Return a checkpoint's placement, storage and directory of its state; None: with it.

        Raises:
            InvalidArgumentError, IncompatibleError, CorruptionError, StorageError: As `locate`.
        """
        placement = read_placement(*self.open_checkpoint(request))
        if placement is None:
            return None
        io, path = self._open(placement.storage, request, request.options())
        return placement, self._of_leases(io), placement.directory(path)

    def claim(self, request: Request) -> None:
        """Prepare the first commit of a store with its state outside of its checkpoint.

        Guarantee: the checkpoint's placement is durable, and Spark's state reader finds the store's
        state partition. Does nothing if state stays in the checkpoint.

        Raises:
            InvalidArgumentError, IncompatibleError, CorruptionError, StorageError: As `locate`.
        """
        if _is_in_memory(request):
            return
        options = request.options()
        home = self._home(request, options)
        checkpoint = self._placement(request, home, options)
        with checkpoint.lock:
            if checkpoint.placement is None:
                if not options.checkpoint_storage:
                    return
                if request.get("version", int) > 1:
                    raise _is_at_home(home, request)
                io, path = self._open(options.checkpoint_storage, request, options)
                checkpoint.placement = make_placement(
                    home,
                    checkpoint_uri(request),
                    io,
                    path,
                    options.checkpoint_storage,
                    sync=options.fsync_enabled,
                )
        _check_same(checkpoint.placement, request)
        placeholder = placeholder_path(home.root, home.store)
        home.io.make_directory(posixpath.dirname(placeholder))
        home.io.write(placeholder, b"", sync=False, overwrite=True)

    @contextmanager
    def fetched_stay(self) -> Iterator[None]:
        """Keep fetched files while a load runs that may need them."""
        with nullcontext() if self._cache is None else self._cache.keep():
            yield

    def take_requests(self, location: StoreLocation) -> dict[str, int]:
        """Return the requests made for a store since the last call, by kind."""
        return location.io.counts.take() if isinstance(location.io, CountingFileIO) else {}

    def forget(self, location: StoreLocation) -> None:
        """Forget an unused store, in its checkpoint's directory and elsewhere."""
        with self._lock:
            self._locations = {
                raw: known
                for raw, known in self._locations.items()
                if known.commits is not location.commits
            }

    def _home(self, request: Request, options: StateStoreOptions) -> StoreLocation:
        # Spark hands its providers what Hadoop's Path.toString returns, which is not encoded.
        io, root = self._open(request.root(), request, options, is_encoded=False)
        body = BODIES.get(request.get_or("backend", str, ""), "arrows")
        return self._counted(StoreLocation(io, root, request.store_name(), body))

    def _locate_in_memory(self, request: Request, home: StoreLocation) -> StoreLocation:
        """Return the location, in the driver's memory, of the store with this home."""
        # Imported here because no other backend needs it.
        from statestore.io.checkpoint_memory import CheckpointMemoryFileIO

        address = request.memory()
        if address is None:
            raise ProtocolError(
                "a call for the heap backend lacks the address of the driver's memory",
                store=str(home.store),
                to_fix="use the shim and the package of one version",
            )
        if request.options().checkpoint_storage:
            raise InvalidArgumentError(
                "the heap backend keeps its checkpoints in the driver's memory",
                kind="invalid-option",
                key="spark.sql.streaming.stateStore.checkpointStorage",
                value=request.options().checkpoint_storage,
                to_fix="leave the option out, or use the filesystem or rocksdb backend",
            )
        with self._lock:
            cache = self._shared_cache(request.options().fetch_cache_bytes)
            if self._memory is None or self._memory[0] != address:
                self._memory = address, CheckpointMemoryFileIO(address, cache)
            io = self._memory[1]
        # Its storage is one for checkpoints of all file systems: the path alone would name several.
        root = root_in_memory(request)
        return self._counted(StoreLocation(io, root, home.store, commits=home.commits))

    def _placement(
        self, request: Request, home: StoreLocation, options: StateStoreOptions
    ) -> _Checkpoint:
        """Return the checkpoint's placement, reading it if need be."""
        key = request.root(), request.run()
        checkpoint = _Checkpoint()
        # Another run may find another checkpoint under the same path, and without a run nothing
        # tells when; reads of state are rare.
        if request.run():
            with self._lock:
                checkpoint = self._checkpoints.setdefault(key, checkpoint)
                while len(self._checkpoints) > _NUM_REMEMBERED:
                    del self._checkpoints[next(iter(self._checkpoints))]
        with checkpoint.lock:
            # Where there is none but shall be one, another executor may have made it meanwhile.
            is_awaited = checkpoint.placement is None and bool(options.checkpoint_storage)
            if is_awaited or not checkpoint.is_read:
                checkpoint.placement = read_placement(home.io, home.root)
                checkpoint.is_read = True
        return checkpoint

    def _open(
        self, uri: str, request: Request, options: StateStoreOptions, *, is_encoded: bool = True
    ) -> tuple[FileIO, str]:
        return _OfCall(self, request.root(), options).open(uri, is_encoded=is_encoded)

    def open_local(self) -> FileIO:
        """Return the local disk."""
        return self._local

    def open_s3(self, settings: S3Settings) -> FileIO:
        """Return S3, which all queries share whose settings are the same."""
        with self._lock:
            found = self._s3.get(settings)
            if found is None:
                cache = self._shared_cache(settings.cache_bytes)
                self._s3[settings] = found = open_s3(cache.directory, settings, cache)
            # Each new session token makes another one. It ends, with its threads, once it is in no
            # store's location and none of the last that were asked for.
            if found in self._last_s3:
                self._last_s3.remove(found)
            self._last_s3.append(found)
            return found

    def open_hadoop(self, file_system: str, root: str, cache_bytes: int) -> FileIO:
        """Return a file system of Hadoop's as a checkpoint reaches it."""
        if self._hadoop is None:
            raise InvalidArgumentError(
                "storage of this scheme is opened by the JVM of a query, and there is none",
                kind="unsupported-scheme",
                uri=file_system,
                to_fix="give an absolute path, or a file: or s3: URI",
            )
        with self._lock:
            key = file_system, root
            if key not in self._hadoop_ios:
                cache = self._shared_cache(cache_bytes)
                self._hadoop_ios[key] = HadoopFileIO(self._hadoop, *key, cache)
            return self._hadoop_ios[key]

    def _shared_cache(self, max_bytes: int) -> FetchCache:
        """Return the copies of all storages, with at least the limit of the calling query."""
        if self._cache is None:
            # Perhaps it has some copies of an earlier engine.
            directory = f"{self._fetched_directory}/shared"
            Path(directory).mkdir(parents=True, exist_ok=True)
            self._cache = FetchCache(directory, max_bytes)
        self._cache.allow(max_bytes)
        return self._cache

    def _of_leases(self, io: FileIO) -> FileIO:
        with self._lock:
            is_s3 = io in self._s3.values()
        return CountingFileIO(io, self.lease_requests, self.requests, is_counted_inside=is_s3)

    def _counted(self, location: StoreLocation) -> StoreLocation:
        with self._lock:
            if location not in self._locations:
                io = CountingFileIO(
                    location.io,
                    RequestCounts(),
                    self.requests,
                    is_counted_inside=location.io in self._s3.values(),
                    write_gate=self.write_gate.write,
                )
                # Of the checkpoint, also where its state is kept elsewhere.
                log = location.commits or QueryLog(io, posixpath.dirname(location.root), "commits")
                counted = replace(location, io=io, commits=log)
                self._locations[location] = counted
            return self._locations[location]


@dataclass(frozen=True, slots=True)
class _OfCall(AllStorages["FileIO"]):
    """The storages of an engine, as the query of a call reaches them."""

    engine: Storages
    root: str
    options: StateStoreOptions

    def local(self) -> FileIO:
        return self.engine.open_local()

    def s3(self) -> FileIO:
        return self.engine.open_s3(S3Settings.from_options(self.options))

    def hadoop(self, file_system: str) -> FileIO:
        return self.engine.open_hadoop(file_system, self.root, self.options.fetch_cache_bytes)


def checkpoint_uri(request: Request) -> str:
    """Return the `state` directory of a call's checkpoint, as `place_uri` does."""
    return place_uri(request.root(), is_encoded=False)


def root_in_memory(request: Request) -> str:
    """Return the `state` directory of a call's checkpoint in checkpoint memory."""
    return memory_root(request.root(), is_encoded=False)


def _is_in_memory(request: Request) -> bool:
    return request.get_or("backend", str, "") in IN_DRIVER_MEMORY


def _is_at_home(home: StoreLocation, request: Request) -> IncompatibleError:
    return lost_placement(home) or IncompatibleError(
        "the checkpoint keeps its state in its own directory",
        kind="storage-changed",
        checkpoint=checkpoint_uri(request),
        query=request.options().checkpoint_storage,
        to_fix="leave out spark.sql.streaming.stateStore.checkpointStorage, or start the query "
        "with a new checkpoint directory",
    )


def _check_same(placement: Placement, request: Request) -> None:
    wanted, home = request.options().checkpoint_storage, checkpoint_uri(request)
    if wanted and _identity(wanted) != _identity(placement.storage):
        raise IncompatibleError(
            "the checkpoint keeps its state on another storage",
            kind="storage-changed",
            directory=home,
            checkpoint=placement.storage,
            query=wanted,
            to_fix="leave out spark.sql.streaming.stateStore.checkpointStorage, or set it to "
            f"{placement.storage}; or, if the state was moved to {wanted}, write that as `storage` "
            f"into {placement_path(home)}",
        )


def _identity(uri: str) -> tuple[str, str]:
    scheme = scheme_of(uri)
    return (scheme, resolve_path(uri)) if scheme in ("file", "s3") else split_hadoop_uri(uri)
