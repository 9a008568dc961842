"""Stops a query between two batches, for which Spark's own `stop` does not wait."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from statestore.core.clock import SystemClock
from statestore.core.errors import InvalidArgumentError
from statestore.spark.failures import is_of_stopped

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 0.02
_AFTER_PLANNING_MS = 100
"""So long after its planning a batch has seen for the last time whether its query is to go on."""
_stops: deque[tuple[str, bool]] = deque(maxlen=256)
"""Of each of the last stops the run, and whether the query goes on in another one."""


def check_stoppable(query: StreamingQuery, jvm: Any) -> None:
    """Check that a query can be stopped after its batch, by this handle and in this thread.

    Args:
        query: A query of this driver.
        jvm: The driver's JVM.

    Raises:
        InvalidArgumentError: Another run of the query is active; or its batch waits for this
            thread, as within `foreachBatch`. Where PySpark does not pin threads, that is not told.
    """
    handle: Any = query._jsq  # noqa: SLF001
    active = handle.sparkSession().sharedState().activeStreamingQueries().get(handle.id())
    if active is not None and str(active.runId()) != str(query.runId):
        raise InvalidArgumentError(
            "the query was started again, and this is the handle of an earlier run",
            query_id=str(query.id),
            run_id=str(query.runId),
            active_run_id=str(active.runId()),
            to_fix="give the handle of the run that is active: spark.streams.get(query_id)",
        )
    if handle.streamingQuery().queryExecutionThread() == jvm.java.lang.Thread.currentThread():
        raise InvalidArgumentError(
            "the end of the batch is to be waited for within a batch of the query",
            query_id=str(query.id),
            run_id=str(query.runId),
            to_fix="call it in a thread of its own, and let the function of the batch return",
        )


def stop_after_batch(
    query: StreamingQuery, wait_s: float = math.inf, *, goes_on: bool = False
) -> bool:
    """Stop a query of this driver when the batch that it runs has ended, and begin no other.

    Args:
        query: The query; one that has ended stays as it is.
        wait_s: Longest wait for the end of the batch, in seconds; then it is interrupted.
        goes_on: Whether the query is started again after it; see `was_told_to_end`.

    Returns:
        Whether nobody else stopped it, or had it stopped, before it had ended.

    On return the query has stopped. All batches that it planned are committed, but for one that
    failed, was interrupted, or began in the very moment in which the query was told to end.
    """
    run = str(query.runId)
    _stops.append((run, goes_on))
    try:
        was_alone, planned = _await_end(query, wait_s)
        query.stop()
    except BaseException:
        if query.isActive:
            with suppress(ValueError):
                _stops.remove((run, goes_on))
        raise
    is_whole = planned is None or _is_reported(query, planned)
    return was_alone and is_whole and sum(of == run for of, _ in _stops) == 1


def was_told_to_end(query: StreamingQuery, failure: BaseException) -> bool:
    """Return whether a query was stopped, and not to go on, when its last batch failed."""
    with suppress(Exception):  # a driver that has died does not tell the run
        run = str(query.runId)
        goes_on = (run, True) in _stops
        return (run, False) in _stops or (is_of_stopped(failure) and not goes_on)
    return False


def _await_end(query: StreamingQuery, wait_s: float) -> tuple[bool, int | None]:
    """Have a query end with the batch that it runs, and wait for that.

    Returns:
        Whether it was active until then and nobody interrupted the batch, and the batch; None where
        none was to be ended. A batch may be whole though it was interrupted.
    """
    execution: Any = query._jsq.streamingQuery()  # noqa: SLF001
    clock = SystemClock()
    end_ms = clock.elapsed_ms() + wait_s * 1000
    planned: tuple[int, float] | None = None  # a batch, and when its planning was seen to be over
    was_active: bool | None = None  # as it was told to end
    is_interrupted = False
    while query.status["isTriggerActive"] and clock.elapsed_ms() < end_ms:
        running = execution.getLatestExecutionContext()
        if was_active is None and running.getDuration("queryPlanning").isDefined():
            batch = int(running.batchId())
            if planned is None or planned[0] != batch:
                planned = batch, clock.elapsed_ms()
            if clock.elapsed_ms() - planned[1] > _AFTER_PLANNING_MS:
                was_active = query.isActive
                _end(execution)
        # Spark takes the flag back where it notices.
        is_interrupted = is_interrupted or _is_interrupted(execution)
        time.sleep(_POLL_S)
    if was_active is None or planned is None:
        return query.isActive, None
    return was_active and not is_interrupted, planned[0]


def _is_interrupted(execution: Any) -> bool:
    """Return whether somebody stops the batch that runs, as Spark's own `stop` does."""
    return bool(execution.queryExecutionThread().isInterrupted())


def _is_reported(query: StreamingQuery, batch: int) -> bool:
    """Return whether a query has reported a batch: it has not where the batch was interrupted."""
    progress = query.lastProgress
    if progress is None or progress["batchId"] < batch:
        return False
    # Now and then Spark reports that it is idle, with the number of the batch to come.
    return progress["batchId"] > batch or "addBatch" in progress["durationMs"]


def _end(execution: Any) -> None:
    """Have a query end with the batch that runs, as Spark itself does where no data is left.

    Spark 4.3 interrupts a batch whose query has ended before it was planned.
    """
    state = execution.state()
    of_states = state.get().getClass()
    package = of_states.getPackageName()  # another one before Spark 4.1
    ended = of_states.getClassLoader().loadClass(f"{package}.TERMINATED$")
    state.set(ended.getField("MODULE$").get(None))
