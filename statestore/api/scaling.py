"""A query that scales by itself: its number of state partitions follows its load."""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Any

from statestore.api.checkpoint import Checkpoint
from statestore.core.durations import Duration, require_duration
from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.core.key_groups import check_range
from statestore.core.options import PREFIX
from statestore.core.scaling import Load, Scaler
from statestore.operations.rescale.rescale import begun_rescale, numbers_by_reference, rescale
from statestore.spark.batch_end import stop_after_batch
from statestore.spark.driver_session import checkpoint_of, session_of
from statestore.spark.failures import LASTING_KINDS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from statestore.core.clock import Clock
    from statestore.core.scaling import Decision

_log = logging.getLogger(__name__)
_POLL_S = 0.5
_PARTITIONS = f"{PREFIX}partitions"
_LATER = ("unfinished-batch", "checkpoint-in-use", "checkpoint-under-operation")
"""Kinds of errors of a change that is tried again: a batch began as the query was told to end, its
lease was not dropped in time, or another operation is under way."""
_BY_HAND = "leave `scale` out; `statestore rescale` changes the number while the query is stopped"


def _checkpoint_of(query: StreamingQuery) -> Checkpoint:
    directory = checkpoint_of(query, "run(…, scale=…)", _BY_HAND)
    return Checkpoint(directory, spark=session_of(query))


class Between:
    """Two numbers of state partitions, between which a query is scaled: `run(…, scale=Between(…))`.

    Of the numbers between them those are chosen that divide the number of key groups, so that no
    row is read. `core/scaling.py` has the rules.

    Args:
        least: At least so many state partitions, 1 to 32768.
        most: At most so many, `least` to 32768. Tasks for which there is no core wait.
        cool_down: From one change to the next at least, a timedelta or seconds, at least 1 s. So
            long the load has to be low before the number falls.

    Raises:
        InvalidArgumentError: A number or the duration is out of range.

    What can be known of a change is checked before the query is stopped for it. Where a change is
    refused or fails, that is logged, and the query goes on as it is. It is not scaled any more, by
    this program, where the refusal lasts, or the rescale itself failed. A rescale that found the
    checkpoint in use is tried again after a cool-down; after any other refusal the next try may be
    at once, and the refusal is logged once.
    """

    def __init__(self, least: int, most: int, *, cool_down: Duration = 300.0) -> None:
        check_range("least", least)
        check_range("most", most)
        if least > most:
            raise InvalidArgumentError(
                "the least number of state partitions is above the most",
                least=least,
                most=most,
                to_fix="give the smaller one first",
            )
        self._numbers = range(least, most + 1)
        self._cool_down_ms = require_duration("cool_down", cool_down)

    def __repr__(self) -> str:
        least, most = self._numbers[0], self._numbers[-1]
        return f"Between({least}, {most}, cool_down={self._cool_down_ms / 1000:g})"

    def begin(
        self, clock: Clock, of: Callable[[StreamingQuery], Checkpoint] = _checkpoint_of
    ) -> Scaling:
        """Return the scaling of one query, over all of its runs.

        Args:
            clock: Measures the cool-down.
            of: Returns the checkpoint of a query; another one is a seam for tests.
        """
        return Scaling(self._numbers, self._cool_down_ms, clock, of)


class Scaling:
    """Scales one supervised query; made by `Between.begin`.

    Attributes:
        clock: Measures the cool-down.
        is_off: Whether the query is not scaled any more.
    """

    def __init__(
        self,
        numbers: range,
        cool_down_ms: int,
        clock: Clock,
        of: Callable[[StreamingQuery], Checkpoint],
    ) -> None:
        self._wanted = numbers
        self._cool_down_ms = cool_down_ms
        self.clock = clock
        self._checkpoint_of = of
        self.is_off = False
        self._said: set[str] = set()
        self._scaler: Scaler | None = None
        self._of_scaler: tuple[list[int], int] | None = None

    def watch(self, query: StreamingQuery) -> Callable[[threading.Event], bool]:
        """Return a function that waits for the end of a run, as `supervision.Scaling.watch`.

        Raises:
            InvalidArgumentError: The query has no trigger with a processing time: nothing tells how
                long a batch may take. Its session sets the option `partitions`. Or it is one of
                Spark Connect (kind spark-connect).
        """
        checkpoint = self._checkpoint_of(query)
        trigger = query._jsq.streamingQuery().trigger()
        name = trigger.getClass().getSimpleName()
        interval_ms = int(trigger.intervalMs()) if name == "ProcessingTimeTrigger" else 0
        if interval_ms <= 0:
            raise InvalidArgumentError(
                "nothing tells how long a batch of the query may take",
                checkpoint=checkpoint.uri,
                trigger=str(trigger.toString()),
                to_fix='start it with trigger(processingTime="10 seconds"), or what your rows may '
                "wait, or leave `scale` out",
            )
        asked = query._jsq.sparkSession().conf().get(_PARTITIONS, "0")
        if asked != "0":
            raise InvalidArgumentError(
                "the query asks for a fixed number of state partitions, so it cannot be scaled",
                key=_PARTITIONS,
                value=asked,
                to_fix="leave out the key, or `scale`",
            )
        if self._scaler is not None:
            self._scaler.started(self.clock.elapsed_ms())
        return _Run(self, query, checkpoint, interval_ms).wait

    def scaler(self, checkpoint: Checkpoint, interval_ms: int) -> tuple[Scaler, int]:
        """Return the scaler of a query that has run a batch, and its number of state partitions.

        Raises:
            InvalidArgumentError: No number is allowed.
            As `numbers_by_reference`.
        """
        with checkpoint._reach.checkpoint() as found:
            numbers = numbers_by_reference(found, self._wanted)
            now = found.num_partitions
        if not numbers:
            raise InvalidArgumentError(
                "every number of state partitions within the bounds needs all rows to be read",
                checkpoint=checkpoint.uri,
                least=self._wanted[0],
                most=self._wanted[-1],
                now=now,
                to_fix="take bounds with a divisor of the number of key groups between them; "
                "`statestore inspect` shows it",
            )
        if self._scaler is None or self._of_scaler != (numbers, interval_ms):
            now_ms = self.clock.elapsed_ms()
            self._scaler = Scaler(numbers, interval_ms, self._cool_down_ms, now_ms)
            self._of_scaler = numbers, interval_ms
        return self._scaler, now

    @property
    def has_run(self) -> bool:
        """Whether a batch of the query was seen: without one no checkpoint tells a number."""
        return self._scaler is not None

    def give_up(self, error: StateStoreError) -> None:
        """Scale the query no more."""
        self.is_off = True
        _log.warning("the query goes on, and is not scaled any more: %s", error)

    def pass_over(self, error: Exception) -> None:
        """Scale the query no more where an error lasts; else say it once."""
        kind = error.kind if isinstance(error, StateStoreError) else type(error).__name__
        if isinstance(error, StateStoreError) and kind in LASTING_KINDS.difference(_LATER):
            self.give_up(error)
        elif kind not in self._said:
            self._said.add(kind)
            _log.warning("the query goes on, and is not scaled for now: %s", error)


class _Run:
    """One run of the query."""

    def __init__(
        self, of: Scaling, query: StreamingQuery, checkpoint: Checkpoint, interval_ms: int
    ) -> None:
        self._of = of
        self._query = query
        self._checkpoint = checkpoint
        self._interval_ms = interval_ms
        self._batch: int | None = None
        self._scaler: Scaler | None = None
        self._num_partitions = 0

    def wait(self, is_left: threading.Event) -> bool:
        """Wait for the end of the run, or end it; return whether to start the query again.

        Args:
            is_left: Set when nobody would start it again.
        """
        try:
            while not self._query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
                if is_left.is_set():
                    return False
                if not self._of.is_off and self._scale(is_left):
                    return True
            # The last batch of a query that was told to end may still run, and fail.
            self._query.awaitTermination()
        except Exception:
            # As Spark refuses to start what a killed program has begun to rescale.
            if not is_left.is_set() and self._finish():
                return True
            raise
        return False

    def _scale(self, is_left: threading.Event) -> bool:
        """Look at the query, and scale it where that is due; return whether it was stopped."""
        try:
            decision = self._decide()
            if decision is None:
                return False
            with self._checkpoint._reach.checkpoint() as found:
                rescale(found, decision.num_partitions, dry_run=True)
        except Exception as error:  # noqa: BLE001, whatever it is, the query is well
            self._of.pass_over(error)
            return False
        if is_left.is_set():
            return False
        is_alone = stop_after_batch(self._query, goes_on=True)
        self._query.awaitTermination()  # raises where the last batch has failed
        if is_left.is_set():
            return False
        if not is_alone:
            _log.info("the query was stopped by somebody else, and does not go on: %s", decision)
            return False
        self._rescale(decision)
        return True

    def _decide(self) -> Decision | None:
        load = self._newest_load()
        if load is None and not (self._of.has_run and self._is_idle()):
            return None
        if self._scaler is None:
            self._scaler, self._num_partitions = self._of.scaler(
                self._checkpoint, self._interval_ms
            )
        now_ms = self._of.clock.elapsed_ms()
        if load is not None:
            self._scaler.note(load)
        elif self._batch is None and not self._scaler.is_silent(now_ms):
            return None  # what the run before has told may be true no more
        return self._scaler.decide(self._num_partitions, now_ms)

    def _is_idle(self) -> bool:
        return not self._query.status["isTriggerActive"]

    def _newest_load(self) -> Load | None:
        """Return the load of the batch that has ended, None where it was told before."""
        progress = newest_progress(self._query)
        # Now and then Spark reports that it is idle, with the number of the batch to come.
        if progress is None or "addBatch" not in progress["durationMs"]:
            return None
        if progress["batchId"] == self._batch:
            return None
        self._batch = progress["batchId"]
        return load_of(progress, self._of.clock.elapsed_ms())

    def _rescale(self, decision: Decision) -> None:
        assert self._scaler is not None, "it has decided"  # noqa: S101
        before, number = self._num_partitions, decision.num_partitions
        try:
            with self._checkpoint._reach.checkpoint() as found:
                rescale(found, number, reason=decision.reason)
        except StateStoreError as error:
            if error.kind not in _LATER:
                self._of.give_up(error)
                return
            _log.warning("the query is scaled later, after a cool-down: %s", error)
            self._scaler.changed(before, before, self._of.clock.elapsed_ms())
            return
        self._scaler.changed(number, before, self._of.clock.elapsed_ms())
        _log.info(
            "the query is scaled: checkpoint=%s, num_partitions_before=%d, num_partitions=%d, "
            "reason=%r",
            self._checkpoint.uri,
            before,
            number,
            decision.reason,
        )

    def _finish(self) -> bool:
        """Finish a rescale that was begun; return whether there was one.

        Raises:
            StateStoreError: It can be finished later. Until then Spark refuses the query.
        """
        number = None
        try:
            with self._checkpoint._reach.checkpoint() as found:
                number = begun_rescale(found)
                if number is None:
                    return False
                finished = rescale(found, number, reason="finishes one that did not end")
        except StateStoreError as error:
            if number is not None and error.kind not in LASTING_KINDS:
                raise error from None  # the refusal, as its cause, would count as lasting
            _log.warning("no unfinished rescale was finished: %s", error)
            return False
        _log.warning("a rescale that did not end was finished: %r", finished)
        return True


def newest_progress(query: StreamingQuery) -> dict[str, Any] | None:
    """Return the newest progress report of a query as Spark's JSON has it; None before the first.

    PySpark's `lastProgress` tells the offsets in a text that depends on its version.
    """
    told = query._jsq.lastProgress()
    return None if told is None else dict(json.loads(told.json()))


def load_of(progress: Mapping[str, Any], now_ms: float) -> Load:
    """Return a query's load, as a progress report of Spark's tells.

    Args:
        progress: As `newest_progress` returns it; Spark leaves out rates that are no numbers.
        now_ms: When it was seen.
    """
    rates = [progress.get(f"{name}RowsPerSecond") for name in ("input", "processed")]
    arriving, processed = (rate if math.isfinite(rate or 0) else None for rate in rates)
    if progress["numInputRows"] and not arriving:
        arriving = None  # of the first batch of a run, of which Spark says 0
    waiting = [_waiting(source) for source in progress["sources"]]
    known = [rows for rows in waiting if rows is not None]
    return Load(
        now_ms,
        progress["batchDuration"],
        arriving,
        processed or 0.0,
        sum(known) if known else None,
    )


def _waiting(source: Any) -> int | None:
    """Return how many rows of a source wait, where it tells as Kafka does: by topic and partition.

    Others tell nothing, or what does not count rows.
    """
    try:
        end, latest = source["endOffset"], source["latestOffset"]
        waiting = 0
        for topic, partitions in latest.items():
            for partition, newest in partitions.items():
                waiting += int(newest) - int(end[topic][partition])
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
    return waiting
