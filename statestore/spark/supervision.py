"""Supervises a streaming query: starts it, waits for its end, starts it again when it failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

from statestore.core.clock import Clock, SystemClock
from statestore.core.errors import InvalidArgumentError, QueryFailedError
from statestore.core.restart_strategies import ExponentialDelay, RestartStrategy
from statestore.core.restarts import Failure, Restart
from statestore.spark.batch_end import was_told_to_end
from statestore.spark.failures import find_obstacle, reason_of, text_of
from statestore.spark.partitions_asked import rescale_as_asked
from statestore.spark.sink_errors import find_sink_error

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_LOOK_S = 0.5
"""So late at most runs the handler of a signal that came just before a wait: it does not end it."""


class Savepoints(Protocol):
    """A schedule that takes savepoints of a query, as `statestore.Every` does."""

    def beside(self) -> AbstractContextManager[Callable[[StreamingQuery], None]]:
        """Take savepoints within a block, of the query that the function was last called with."""
        ...


class Scaling(Protocol):
    """A rule that changes the number of state partitions of one supervised query."""

    def watch(self, query: StreamingQuery) -> Callable[[threading.Event], bool]:
        """Return a function that waits for the end of a run as `awaitTermination`.

        It is called in another thread, and returns whether the run was ended for the query to be
        started again. Once its argument is set nobody waits for it: it begins no change, and ends.

        Raises:
            InvalidArgumentError: Nothing can be told of such a query.
        """
        ...


class Scale(Protocol):
    """Says between which numbers of state partitions a query is scaled, as `statestore.Between`."""

    def begin(self, clock: Clock) -> Scaling:
        """Return the scaling of one query, over all of its runs."""
        ...


def run(
    start_query: Callable[[], StreamingQuery],
    restart: RestartStrategy | None = None,
    *,
    savepoints: Savepoints | None = None,
    scale: Scale | None = None,
    obstacle: Callable[[BaseException], str | None] = find_obstacle,
    clock: Clock | None = None,
) -> Restart:
    """Start a streaming query, and again whenever it fails, until it ends or must not go on.

    Every start goes on from the checkpoint, so each batch counts once in the state, however often
    it was tried; a sink sees a batch again when the failure came before its commit. Each failure
    is logged with the number of the attempt, the reason and the delay.

    Args:
        start_query: Builds and starts the query, with the same `checkpointLocation` every time, and
            returns its handle. It is called once for every attempt, in the calling thread; what it
            raises counts as a failure of that attempt; unless the query asks for another number of
            state partitions by the option `partitions`: then that is changed, and it is called
            again; with `scale` it is refused.
        restart: Restart strategy; `ExponentialDelay()` when None.
        savepoints: Takes savepoints while the query runs, as `Every` does; none when None. No
            start waits for one that is under way; the return does, and an exception gives it up.
        scale: Changes the number of state partitions with the load, as `Between` does: the query is
            stopped after a batch, and started again by `start_query`; never when None.
        obstacle: Says of an error what makes a restart useless, or None when it is worth one.
        clock: Measures and waits; the machine's when None.

    Returns:
        What happened, once the query was stopped or has processed all that it was started for.

    Raises:
        InvalidArgumentError: `restart`, `savepoints` or `scale` is of another type, and the query
            was not started.
        QueryFailedError: The last failure is its cause, and the cause of that is what a
            `foreachBatch` raised: there was an obstacle (kind query-failed), such as a
            `start_query` that returned no query, or `stopped`: the last batch failed of a query
            that was stopped, also by `stop_with_savepoint`; or the strategy allows no more restarts
            (kind restarts-exhausted). Its `restart` is what would have been returned.

    Guarantee: on return, and after a QueryFailedError, the query that `start_query` returned does
    not run; where what looked at it has failed, it was told to stop, and may yet do. One that it
    started and did not return, or before it raised, is not known here, and runs on. Any other
    exception, such as KeyboardInterrupt, passes through and leaves the query as it is, or as
    PySpark's handler of Ctrl-C does; it is not scaled any more. The durable state is always that of
    the last batch in the checkpoint's commit log.
    """
    for name, given, has, to_fix in (
        ("restart", restart, "delays", "give a restart strategy, such as FixedDelay(3, 10)"),
        ("savepoints", savepoints, "beside", "give Every(timedelta(hours=6), DIRECTORY)"),
        ("scale", scale, "begin", "give Between(4, 64)"),
    ):
        if not (given is None or hasattr(given, has)):
            raise InvalidArgumentError(
                "an argument of run is of another type",
                argument=name,
                value=repr(given),
                to_fix=to_fix,
            )
    clock = clock or SystemClock()
    strategy = restart if restart is not None else ExponentialDelay()
    delays = strategy.delays(clock)
    past = Restart()
    scaling = None if scale is None else scale.begin(clock)
    beside: AbstractContextManager[Callable[[StreamingQuery], None] | None] = (
        nullcontext() if savepoints is None else savepoints.beside()
    )
    with beside as follow:
        while True:
            past.attempts += 1
            query = None
            # A query, its sources and its sinks raise whatever they like.
            try:
                query = _start(start_query, may_rescale=scaling is None)
                wait = _end_of(query, follow, scaling)
            except Exception as error:  # noqa: BLE001
                failure = error
            else:
                ended = _in_a_thread(wait)
                try:
                    if ended.result():
                        continue
                    return past
                except Exception as error:  # noqa: BLE001
                    failure = error
            if query is not None:
                _stop(query)
            if failure.__cause__ is None:
                failure.__cause__ = find_sink_error(text_of(failure))
            found = obstacle(failure)
            if found is None and query is not None and was_told_to_end(query, failure):
                found = "stopped"
            delay_ms = next(delays, None) if found is None else None
            reason = reason_of(failure)
            past.note(Failure(past.attempts, clock.now_ms(), reason, found, delay_ms))
            if delay_ms is None:
                raise _final(past, strategy) from failure
            _log.warning(
                "query failed, starting it again: attempt=%d, reason=%r, delay_ms=%d",
                past.attempts,
                reason,
                delay_ms,
            )
            clock.sleep_ms(delay_ms)


def _start(start_query: Callable[[], StreamingQuery], *, may_rescale: bool) -> StreamingQuery:
    """Start a query; where it asks for another number of state partitions, rescale it first.

    Args:
        start_query: As of `run`.
        may_rescale: Whether to rescale it; else its refusal is raised.
    """
    try:
        query = start_query()
    except Exception as error:
        if not (may_rescale and rescale_as_asked(error)):
            raise
        query = start_query()
    if query is None:
        raise InvalidArgumentError(
            "start_query returned no query; a query that it started runs on",
            returned=None,
            to_fix="return what `start()` returns",
        )
    return query


def _end_of(
    query: StreamingQuery,
    follow: Callable[[StreamingQuery], None] | None,
    scaling: Scaling | None,
) -> Callable[[threading.Event], bool]:
    """Return a function that waits for the end of a run, as `Scaling.watch` does."""

    def wait(_: threading.Event) -> bool:
        query.awaitTermination()
        return False

    if follow is not None:
        follow(query)
    return wait if scaling is None else scaling.watch(query)


def _stop(query: StreamingQuery) -> None:
    """Stop a query where what looked at it has failed, and not the query."""
    with suppress(Exception):  # it would hide what has failed
        if query.isActive:
            query.stop()


def _in_a_thread(wait: Callable[[threading.Event], bool]) -> futures.Future[bool]:
    """Return what a function in a thread of its own has returned or raised.

    Handlers of signals run in the main thread. A call into the JVM fails there while another one
    waits for its answer, so none does. What a handler raises is raised here, and is no failure of
    the query.

    Args:
        wait: Its argument is set when an exception, such as KeyboardInterrupt, has ended this call.
    """
    is_left = threading.Event()
    outcome: futures.Future[bool] = futures.Future()

    def call() -> None:
        try:
            outcome.set_result(wait(is_left))
        except BaseException as error:  # noqa: BLE001, it is raised in the other thread
            outcome.set_exception(error)

    try:
        threading.Thread(target=call, name="await-query", daemon=True).start()
        while not futures.wait([outcome], _LOOK_S).done:
            pass
    finally:
        is_left.set()
    return outcome


def _final(past: Restart, strategy: RestartStrategy) -> QueryFailedError:
    """Return the error of a query that is not started again, and log it."""
    failure = past.failures[-1]
    exhausted = failure.obstacle is None
    final = QueryFailedError(
        "the query failed as often as its restart strategy allows"
        if exhausted
        else "the query failed, and a restart would not help",
        kind="restarts-exhausted" if exhausted else "query-failed",
        attempts=past.attempts,
        reason=failure.reason,
        **({"strategy": strategy} if exhausted else {"obstacle": failure.obstacle}),
        to_fix="remove the cause and start the query again: it goes on from its checkpoint",
    )
    final.restart = past
    _log.error("%s", final)
    return final
