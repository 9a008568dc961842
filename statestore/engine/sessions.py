"""Sessions: the stores that this engine serves, opened for providers and kept a while after.

A store is found by the place of its files. It is open as long as a provider instance uses it. The
stores closed last keep their files on the local disk, for when they come back.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import OrderedDict
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.backends.opening import open_versions
from statestore.core.digest import digest_of
from statestore.core.options import BY_KEY
from statestore.core.providers import IN_DRIVER_MEMORY
from statestore.engine.session import CatchUp, Session
from statestore.engine.storages import root_in_memory

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from statestore.backends.rocksdb.database_memory import DatabaseMemory
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.versions import VersionsBase
    from statestore.core.clock import Clock
    from statestore.engine.requests import Request
    from statestore.engine.storages import Storages

logger = logging.getLogger(__name__)

BACKENDS = ("filesystem", "heap", "rocksdb")

_MAX_GONE = 10_000
"""Provider instances that are remembered after they closed, longer than any task outlives one."""
MAX_CLOSED_STORES = 32
"""Stores closed last that keep their files on the local disk, for when they come back."""
LEFT_MS = 3_600_000
"""How long the local databases of an engine that died are kept for the stores that it had."""


class Sessions:
    """The stores of an engine; safe to use from several threads.

    Args:
        storages: Storages of the stores' files.
        clock: Source of time.
        database_directory: Local databases go below it, where there may be those of an engine that
            died.
        work_directory: Local directory for unfinished files.
        pool: Takes snapshots.
    """

    def __init__(
        self,
        storages: Storages,
        clock: Clock,
        database_directory: str,
        work_directory: str,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._storages = storages
        self._clock = clock
        self._database_directory = database_directory
        self._work_directory = work_directory
        self._pool = pool
        self._catch_up = CatchUp(clock)
        self._lock = threading.Lock()
        self._open: dict[tuple[str, StoreLocation], Session] = {}
        self._closed: dict[tuple[str, StoreLocation], Session] = {}
        """Unused sessions, in the order in which they were closed."""
        self._gone: OrderedDict[str, None] = OrderedDict()
        """The last provider instances that closed: no new session waits for one of them."""
        self._rocksdb_memory: DatabaseMemory | None = None
        self._rocksdb_memory_asked: set[int] = set()
        self._rocksdb_directories: set[str] = set()
        """Of the local databases of the sessions."""
        self._left_until_ms: float | None = clock.elapsed_ms() + LEFT_MS
        """How long databases of an engine that died wait for their stores; None once they went."""

    @property
    def num_open(self) -> int:
        """Stores that a provider uses."""
        return len(self._open)

    @property
    def num_snapshots_in_flight(self) -> int:
        """Snapshots that are being written."""
        with self._lock:
            sessions = [*self._open.values(), *self._closed.values()]
        return sum(session.is_snapshot_in_flight for session in sessions)

    @property
    def rocksdb_bytes(self) -> int:
        """Bytes of memory that RocksDB uses for all stores."""
        memory = self._rocksdb_memory
        return 0 if memory is None else memory.used_bytes

    def of(self, request: Request, *, opens: bool = True, is_reader: bool = False) -> Session:
        """Return the session of a call's store.

        Args:
            request: The call.
            opens: Whether its provider uses the session until it closes the store.
            is_reader: Whether no query runs for it.
        """
        while True:
            # By place and not by name: a restarted query may name another storage for a store.
            location = self._storages.locate(request)
            key = request.backend(BACKENDS), location
            with self._lock:
                known = self._open.get(key) or self._closed.get(key)
            made = known or Session(
                self._open_versions(request, location),
                self._pool,
                self._work_directory,
                self._catch_up,
            )
            with self._lock:
                session = self._open.get(key) or self._closed.pop(key, None)
                if session is None and made is known:
                    continue  # forgotten meanwhile, and its directory may be another's by now
                session = session or made
                # A task that outlives its provider calls once more: nothing would close a new one.
                if opens and request.provider() not in self._gone:
                    session.providers.add(request.provider())
                    if is_reader:
                        session.readers.add(request.provider())
                (self._open if session.providers else self._closed)[key] = session
                if made not in (known, session):  # another call was first
                    self._rocksdb_directories.discard(made.versions.local_directory)
            if request.options().checkpoint_storage:
                # Where it was opened for version 0, which is nowhere yet.
                home = key[0], self._storages.home(request)
                if home != key:
                    self._leave(home, request.provider())
            return session

    def close(self, request: Request) -> None:
        """Note that a provider instance uses a store no more; the last one closes it."""
        provider = request.provider()
        if provider:
            with self._lock:
                self._gone[provider] = None
                while len(self._gone) > _MAX_GONE:
                    self._gone.popitem(last=False)
        for key in self._keys_to_close(request):
            self._leave(key, provider)
        self.forget_closed(MAX_CLOSED_STORES)
        self.forget_left()

    def _leave(self, key: tuple[str, StoreLocation], provider: str) -> None:
        """Note that a provider instance no longer uses a store at a place, if it did."""
        with self._lock:
            session = self._open.get(key)
            if session is None:
                return
            session.providers.discard(provider)
            is_unused = not session.providers
            if is_unused:
                self._closed[key] = self._open.pop(key)
        session.end_reading(provider)
        if is_unused:
            session.close()

    def _open_versions(self, request: Request, location: StoreLocation) -> VersionsBase:
        return open_versions(
            request.backend(BACKENDS),
            location,
            self._clock,
            home=lambda: self._storages.home(request),
            database=lambda: self._database(request, location),
        )

    def _database(self, request: Request, location: StoreLocation) -> tuple[str, DatabaseMemory]:
        """Return a directory for a local database, and the memory of this engine's databases."""
        # Which needs an extra.
        from statestore.backends.rocksdb.database_memory import DatabaseMemory

        asked_bytes = request.options().rocksdb_memory_bytes
        with self._lock:
            memory = self._rocksdb_memory = self._rocksdb_memory or DatabaseMemory(asked_bytes)
            is_news = asked_bytes not in {memory.budget_bytes, *self._rocksdb_memory_asked}
            self._rocksdb_memory_asked.add(asked_bytes)
        if is_news:
            logger.warning(
                "option is not followed, an engine has one memory for all queries: key=%s, "
                "value=%d, in_force=%d. To fix: set it the same for all queries of the application",
                BY_KEY["rocksdb.memoryBytes"].full_key,
                asked_bytes,
                memory.budget_bytes,
            )
        place = f"{request.options().checkpoint_storage} {request.root()} {location.directory}"
        name = digest_of(place.encode(), 8)
        with self._lock:
            # The same store by other credentials is another session, with a database of its own.
            # A new engine takes the first name, so that is where the database of its last one is.
            directories = (f"{self._database_directory}/{name}-{number}" for number in count(1))
            directory = next(path for path in directories if path not in self._rocksdb_directories)
            self._rocksdb_directories.add(directory)
        return directory, memory

    def _keys_to_close(self, request: Request) -> list[tuple[str, StoreLocation]]:
        backend = request.backend(BACKENDS)
        # A close of the heap backend comes without the address of the driver's memory.
        if backend not in IN_DRIVER_MEMORY:
            places = self._storages.locate(request), self._storages.home(request)
            return [(backend, place) for place in places]
        place = root_in_memory(request), request.store_name()
        with self._lock:
            return [
                (kind, location)
                for kind, location in self._open
                if kind in IN_DRIVER_MEMORY and (location.root, location.store) == place
            ]

    def forget_closed(self, keep: int) -> bool:
        """Remove the files of the stores that were closed longest ago from the local disk.

        Args:
            keep: So many of those closed last stay.

        Returns:
            Whether files of such a store were removed.
        """
        has_forgotten = False
        with self._lock:
            oldest = list(self._closed)[: max(0, len(self._closed) - keep)]
            sessions = [(key, self._closed.pop(key)) for key in oldest]
        for key, session in sessions:
            if session.forget_local():
                has_forgotten = True
                self._storages.forget(key[1])
                with self._lock:
                    self._rocksdb_directories.discard(session.versions.local_directory)
            else:
                with self._lock:
                    if key not in self._open:
                        self._closed.setdefault(key, session)
        return has_forgotten

    def forget_left(self) -> None:
        """Remove databases of an engine that died, of stores that have not come back to this one.

        Rows that somebody reads there are in files that he holds open.
        """
        with self._lock:
            if self._left_until_ms is None or self._clock.elapsed_ms() < self._left_until_ms:
                return
            self._left_until_ms = None
            taken = {Path(path).name for path in self._rocksdb_directories}
            left = []
            for path in Path(self._database_directory).glob("*-*"):
                if "-".join(path.name.split("-")[:2]) not in taken:
                    with suppress(OSError):
                        left.append(path.rename(Path(self._work_directory, path.name)))
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
