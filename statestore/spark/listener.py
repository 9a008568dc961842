"""Tells a program which versions of a query's state are committed."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from statestore.spark.connect import require_driver

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_LAST_EVENT_MS = 5_000
"""Milliseconds that the end of the program waits for an event that is on its way."""


class CheckpointListener:
    """Calls of a program when a version is committed or given up; subclass it and `listen`.

    A version is the number that the state stores give to what a batch leaves behind: batch ID + 1,
    over all stateful operators and partitions of the query. It is *complete* when the batch's entry
    in the checkpoint's commit log is durable; state files alone do not make it so. From then on no
    restart goes back behind it.

    Versions grow, and a later one subsumes all earlier ones: whoever keeps something to be done per
    version does, at version v, all that is kept for versions up to v. Then it does not matter that

    - a notification can be lost: the program ended between commit and notification, or Spark's
      event queue was full. The next one covers it, at the latest the one after a restart;
    - a version can be notified again after a restart: the first notification of a run is the
      newest complete version, whoever made it.

    Within a run versions are strictly increasing, with gaps or without. No notification is early.

    Methods are called one at a time for each run: first in the thread that calls `listen`, then in
    a thread of Spark's event bus, behind the query, which does not wait for them; the last call of
    a run and the first of the next may overlap. What a method raises is logged and forgotten:
    neither the version nor the query is undone, and the next notification comes.
    """

    def notify_checkpoint_complete(self, version: int) -> None:
        """Do what had to wait until this version, and thereby all before it, was durable.

        Args:
            version: Batch ID + 1 of the newest complete batch that is known, at least 1.
        """

    def notify_checkpoint_aborted(self, version: int) -> None:
        """Clean up early, if there is anything: this version was begun and not completed.

        Called at most once a run, at its end, when the query failed or was stopped within a batch;
        not when the next run began before this one's end was known. Nothing must be given up for
        good: the next run makes the version with the same number from the same input, and completes
        it or a later one.

        Args:
            version: Batch ID + 1 of the batch that was in the offset log, but not in the commit
                log, when the query ended; at least 1.
        """


def listen(query: StreamingQuery, listener: CheckpointListener) -> None:
    """Notify a listener of the versions that a running query completes, until the query ends.

    To be called once for each start; inside the `start_query` of `run`, so that every restart has
    its listener.

    Args:
        query: The handle that `start()` returned.
        listener: Is notified of the newest complete version before this returns, if there is one.

    Raises:
        InvalidArgumentError: The query is one of Spark Connect, which shows no commit log (kind
            spark-connect).

    Guarantee: a raise of the listener or of the storage that the logs are on goes to the log
    (`statestore.spark.listener`), with query, version and listener, and nowhere else. A program
    that ends while the query runs waits for the call that is under way, at most 5 seconds.
    """
    require_driver(
        query,
        "listen",
        "call it in the driver's own Python process, or ask `statestore list` which versions are "
        "committed",
    )
    _Notifier(query, query._jsq, listener).attach()  # noqa: SLF001


class _Events:
    """What Spark calls, of every query: other runs cost three calls, and progress is not read.

    A listener of PySpark's reads each progress whole, which takes longer the more metrics it has.
    """

    def __init__(self, notifier: _Notifier) -> None:
        self._notifier = notifier

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the run had started before."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: an idle query commits nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """See `_Notifier.progressed`."""
        progress = event.progress()
        if progress.runId().toString() == self._notifier.run_id:
            self._notifier.progressed(int(progress.batchId()))

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """See `_Notifier.end`."""
        if event.runId().toString() == self._notifier.run_id:
            self._notifier.end()

    class Java:
        """What py4j is told."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


class _Notifier:
    """Looks into a run's commit log whenever the run reports progress; ends with the run."""

    def __init__(self, query: StreamingQuery, handle: Any, listener: CheckpointListener) -> None:
        from pyspark import SparkContext  # which a client of Spark Connect does not have
        from pyspark.java_gateway import ensure_callback_server_started

        self.run_id = str(query.runId)
        self._query = query
        self._listener = listener
        execution = handle.streamingQuery()
        self._commit_log, self._offset_log = execution.commitLog(), execution.offsetLog()
        session = handle.sparkSession()
        gateway: Any = SparkContext._gateway  # noqa: SLF001
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        self._manager = session.streams()
        wrapper = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        self._events = wrapper(_Events(self))
        self._active_runs = session.sharedState().activeStreamingQueries()
        self._bus = session.sparkContext().listenerBus()
        self._query_id = handle.id()
        self._lock = threading.RLock()
        self._version = 0  # newest that was notified
        self._ended = False

    def attach(self) -> None:
        """Begin to listen, and notify of the newest complete version."""
        _attached[self] = None
        self._manager.addListener(self._events)
        self._complete(lambda: _newest(self._commit_log))
        if not self._query.isActive:  # it may have ended before there was a listener
            self.end()

    def progressed(self, batch: int) -> None:
        """Notify of the batch that ended, once its entry is in the commit log."""
        self._complete(lambda: batch if self._commit_log.get(batch).isDefined() else None)

    def _complete(self, read_batch: Callable[[], int | None]) -> None:
        """Notify of a complete batch, if there is one, unless it or a later one was."""
        with self._lock:
            version = self._read(read_batch)
            if version is not None and version > self._version and not self._ended:
                self._version = version
                self._notify(self._listener.notify_checkpoint_complete, version)

    def end(self) -> None:
        """Notify of what no progress was reported of, and of the batch that was not completed."""
        with self._lock:
            if self._ended:
                return
            self._complete(lambda: self._unless_superseded(_newest(self._commit_log)))
            self._ended = True
            aborted = self._read(lambda: self._unless_superseded(self._incomplete_batch()))
            if aborted is not None:
                self._notify(self._listener.notify_checkpoint_aborted, aborted)
        self.leave()

    def leave(self) -> None:
        """Be told no more."""
        _attached.pop(self, None)
        self._manager.removeListener(self._events)

    def wait(self) -> None:
        """Wait for an event that is on its way."""
        self._bus.waitUntilEmpty(_LAST_EVENT_MS)

    def _incomplete_batch(self) -> int | None:
        committed, begun = _newest(self._commit_log), _newest(self._offset_log)
        return begun if begun != committed else None

    def _unless_superseded(self, batch: int | None) -> int | None:
        """Return a batch read before, or None when the next run may already have made it."""
        active = self._active_runs.get(self._query_id)
        return batch if active is None or str(active.runId()) == self.run_id else None

    def _read(self, read_batch: Callable[[], int | None]) -> int | None:
        """Return the version of a batch that is read from a log; None when it cannot be read."""
        try:
            batch = read_batch()
        except Exception:  # noqa: BLE001, the storage below a log raises whatever it likes
            _log.exception(
                "log of the checkpoint cannot be read, a notification is skipped: run_id=%s, "
                "listener=%r",
                self.run_id,
                self._listener,
            )
            return None
        return None if batch is None else batch + 1

    def _notify(self, method: Callable[[int], None], version: int) -> None:
        try:
            method(version)
        except Exception:  # noqa: BLE001, nothing of it may reach the query
            _log.exception(
                "checkpoint listener failed: query_id=%s, run_id=%s, version=%d, listener=%r, "
                "method=%s",
                self._query.id,
                self.run_id,
                version,
                self._listener,
                method.__name__,
            )


_attached: dict[_Notifier, None] = {}


@atexit.register
def _leave_all() -> None:
    """Be told no more: the JVM outlives the program, and logs a call that nobody answers."""
    there = [*_attached]
    for notifier in there:
        with suppress(Exception):  # its JVM, or its session, may have ended
            notifier.leave()
    with suppress(Exception):
        there[-1].wait()  # one bus is that of all


def _newest(log: Any) -> int | None:
    """Return the newest batch ID in a metadata log of Spark's, None when it is empty."""
    batch = log.getLatestBatchId()
    return int(batch.get()) if batch.isDefined() else None
