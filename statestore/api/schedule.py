"""Savepoints of a query at intervals, from the shell or beside the query in its driver."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from statestore.api.checkpoint import Checkpoint, Directory
from statestore.api.stopping import BY_HAND
from statestore.core.clock import Clock, SystemClock
from statestore.core.defaults import SAVEPOINTS_KEPT
from statestore.core.durations import Duration, require_duration
from statestore.core.errors import StateStoreError
from statestore.io.storage import absolute_uri
from statestore.operations.upkeep.retained_savepoints import Retention
from statestore.spark.driver_session import checkpoint_of, session_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from statestore.api.checkpoint import DirectoryLike
    from statestore.operations.result import Progress
    from statestore.operations.savepoint.savepoint import SavepointForm
    from statestore.operations.upkeep.retained_savepoints import RetainedSavepoints

_log = logging.getLogger(__name__)
_LEAST_MS = 1000
_NAP_MS = 60_000
_BEFORE_THE_FIRST_BATCH = ("checkpoint-not-found", "version-not-found")
"""Kinds of errors of a query that has committed nothing yet."""


def _checkpoint_of(query: StreamingQuery) -> Checkpoint:
    directory = checkpoint_of(query, "run(…, savepoints=…)", BY_HAND)
    return Checkpoint(directory, spark=session_of(query))


class Every:
    """Savepoints at intervals, of which the newest stay: `run(start_query, savepoints=Every(…))`.

    Args:
        interval: From one savepoint to the next, a timedelta or seconds, at least 1 s. It counts
            from the newest one in the directory, also over restarts of the program.
        destination: Directory of the savepoints, of this query alone; a path is reached by the
            options of the query's session.
        keep: As `Checkpoint.retain_savepoint`, and so are the others.
        max_age: Likewise.
        form: Likewise.
        clock: Measures the interval; the machine's when None.

    Raises:
        InvalidArgumentError: The interval is shorter, no directory is named, or as
            `Checkpoint.retain_savepoint` of the others.

    Attributes:
        interval_ms: Milliseconds from one savepoint to the next.

    A savepoint that fails is logged, `status.json` says why, unless it is that of another
    checkpoint of the query, and it is tried again after a tenth of the interval. The query goes on.
    """

    def __init__(
        self,
        interval: Duration,
        destination: DirectoryLike,
        *,
        keep: int = SAVEPOINTS_KEPT,
        max_age: Duration | None = None,
        form: SavepointForm = "canonical",
        clock: Clock | None = None,
    ) -> None:
        self.interval_ms = require_duration("interval", interval)
        self._destination = destination
        # Refused here: where a savepoint is due, the query goes on, and a log alone has the error.
        self._retention = Retention(keep, max_age, form)
        if not isinstance(destination, Directory):
            absolute_uri(os.fspath(destination))
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        kept = f"keep={self._retention.keep}"
        return f"Every({self.interval_ms / 1000:g}, {str(self._destination)!r}, {kept})"

    @property
    def retry_ms(self) -> int:
        """Milliseconds from a failure to the next attempt: a tenth of the interval, or 1 s."""
        return max(_LEAST_MS, self.interval_ms // 10)

    def take(self, checkpoint: Checkpoint, progress: Progress | None = None) -> RetainedSavepoints:
        """Take a savepoint now, and delete those that are not to stay.

        Guarantee and errors as `Checkpoint.retain_savepoint`.
        """
        stays = self._retention
        return checkpoint.retain_savepoint(
            self._destination,
            form=stays.form,
            keep=stays.keep,
            max_age=stays.max_age,
            progress=progress,
        )

    def due_in_ms(self, checkpoint: Checkpoint) -> int:
        """Return milliseconds until a savepoint is due, 0 where there is none yet.

        One whose time is still to come, by a clock that was wrong, is none. Where they cannot be
        looked for, one is due: the attempt says why in its status.
        """
        now_ms = self._clock.now_ms()
        try:
            taken = [one.info.created_ms for one in checkpoint.savepoints(self._destination)]
        except StateStoreError:
            return 0
        newest_ms = max((each for each in taken if each <= now_ms), default=None)
        return 0 if newest_ms is None else max(0, newest_ms + self.interval_ms - now_ms)

    def wait(self, wait_ms: int, sleep: Callable[[float], object]) -> None:
        """Return after so many milliseconds by the time of day, or of `sleep`, what comes first.

        A thread's sleep stands still while the machine is suspended.

        Args:
            wait_ms: Milliseconds, at least 0.
            sleep: Sleeps for seconds, and returns whether to wait no longer.
        """
        until_ms = self._clock.now_ms() + wait_ms
        while wait_ms > 0 and self._clock.now_ms() < until_ms:
            nap_ms = min(wait_ms, _NAP_MS)
            if sleep(nap_ms / 1000):
                return
            wait_ms -= nap_ms

    @contextmanager
    def beside(
        self, of: Callable[[StreamingQuery], Checkpoint] = _checkpoint_of
    ) -> Iterator[Callable[[StreamingQuery], None]]:
        """Take savepoints of a query within a block, over all of its starts.

        Yields a function that is called with the query after each start. The first call begins a
        thread; the others do not wait for a savepoint that is under way. The function raises
        InvalidArgumentError for a query of Spark Connect (kind spark-connect), and where options or
        session of the destination contradict the query's.

        At the end of the block none is begun any more, and one that is under way is waited for. An
        exception that leaves the block does not wait: that savepoint is given up with the state
        files that are being written, and is deleted as one that was killed.

        Args:
            of: Returns the checkpoint of a query; another one is a seam for tests.
        """
        started: list[Checkpoint] = []  # one: of the newest start, whose session may be another
        ended, is_given_up = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=self._take_until,
            args=(started, ended, is_given_up),
            name="savepoints",
            daemon=True,
        )

        def follow(query: StreamingQuery) -> None:
            checkpoint = of(query)
            checkpoint._reach.with_new(self._destination)  # refused here, as by the constructor
            started[:] = [checkpoint]
            if thread.ident is None:
                thread.start()

        try:
            yield follow
            ended.set()
            if thread.ident is not None:
                thread.join()
        except BaseException:
            is_given_up.set()
            raise
        finally:
            ended.set()

    def _take_until(
        self, started: list[Checkpoint], ended: threading.Event, is_given_up: threading.Event
    ) -> None:
        def go_on(_done: int, _total: int) -> None:
            if is_given_up.is_set():  # the end of the program would wait for all files to come
                raise SystemExit

        wait_ms = 0
        while True:
            self.wait(wait_ms, ended.wait)
            if ended.is_set():
                return
            (checkpoint,) = started
            try:
                wait_ms = self.due_in_ms(checkpoint)
                if not wait_ms:
                    self.take(checkpoint, go_on)
                    wait_ms = self.interval_ms
            except SystemExit:  # of `go_on`
                return
            except Exception as error:  # noqa: BLE001, whatever it is, the next one is tried
                is_early = getattr(error, "kind", None) in _BEFORE_THE_FIRST_BATCH
                level = logging.DEBUG if is_early else logging.WARNING
                is_known = isinstance(error, StateStoreError)
                _log.log(
                    level,
                    "no savepoint was taken, and the query goes on: %s",
                    error,
                    exc_info=not is_known,
                )
                wait_ms = self.retry_ms
