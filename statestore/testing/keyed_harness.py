"""Functions of keyed state, and processors of `transformWithState`, in plain Python: no Spark runs.

    harness = KeyedHarness(CountWindowAverage(), "key")
    assert harness.batch([Row(key=1, value=3), Row(key=1, value=5)]) == [Row(_1=1, _2=4)]
    assert harness.state("average") == {}

After Flink's `KeyedOneInputStreamOperatorTestHarness`, but by batches, as Spark runs them: each
batch opens a copy of the function as it was given, and a batch that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.functions import RichFunction
from statestore.keyed.processor import KeyedProcessor, copy_of, keyed_processor
from statestore.keyed.runtime import TimeMode
from statestore.testing.keyed_store import (
    TIMERS,
    Handle,
    Key,
    KeyedStore,
    StateToBeginWith,
    as_spark,
    delivered,
    grouped,
    identity,
    microseconds,
    shown_key,
)


class KeyedHarness:
    """Runs batches of rows through a function, and keeps its state in dicts.

    Args:
        function: A function of keyed state, as `statestore.keyed.process` takes, or a
            `StatefulProcessor` of rows, as `DataFrame.transformWithState` takes. A copy is
            kept, and it has to be one that can be pickled.
        key: Name of the grouping column, or names.
        output: As of `process`; of a function only.
        time_mode: As of `process`.
        event_time: Column of the rows' time, a datetime: with time mode `EventTime` a row that is
            not later than the watermark of the batch before is dropped, as Spark does. None drops
            no row.
        state: A `Checkpoint` or `Savepoint`. The first batch begins with its newest state: the
            state variables by their names, what is left of their time to live, and the timers; not
            its watermark, which `batch` is given. It is read now and when a state is taken, and
            never written. None begins without state.
        operator: The operator of `state` that is meant, where several have state variables.

    Attributes:
        at_ms: Processing time of the last batch, milliseconds since 1970.
        watermark_ms: Watermark of the last batch; 0 before there is one.

    Raises:
        InvalidArgumentError: As `process`; the function is of no kind, `state` is neither a
            checkpoint nor a savepoint, or there is no such time mode.

    What a state is given is checked as in `statestore.keyed`. Spark checks nothing that a
    StatefulProcessor gives; here a value that is not of the column's type is refused, where Spark
    would keep NULL or another number.
    """

    def __init__(
        self,
        function: RichFunction | StatefulProcessor,
        key: str | Sequence[str],
        *,
        output: Any = None,
        time_mode: TimeMode = "None",
        event_time: str | None = None,
        state: StateToBeginWith | None = None,
        operator: int | None = None,
    ) -> None:
        if time_mode != "None" and time_mode not in TIMERS:
            raise InvalidArgumentError(
                "the time mode is unknown",
                to_fix=f"use one of {', '.join(('None', *TIMERS))}",
                time_mode=time_mode,
            )
        if not isinstance(state, StateToBeginWith | None):
            raise InvalidArgumentError(
                "`state` is neither a Checkpoint nor a Savepoint",
                to_fix="give one of them, such as Checkpoint(directory)",
                state=state,
            )
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._time_mode = time_mode
        self._event_time = event_time
        self._store = KeyedStore(state, operator, time_mode)
        self._num_batches = 0
        self.at_ms = self.watermark_ms = 0
        self.restart(function, output=output)

    def restart(self, function: RichFunction | StatefulProcessor, *, output: Any = None) -> None:
        """Go on with another function on the state that there is, as a query after a restart.

        Raises:
            InvalidArgumentError: As the constructor.
        """
        if isinstance(function, StatefulProcessor):
            processor = function
        else:
            processor = keyed_processor(function, output, self._time_mode)
        self._columns = processor.states if isinstance(processor, KeyedProcessor) else {}
        cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
        self._processor = copy_of(processor)

    def batch(
        self,
        rows: Iterable[Row | Mapping[str, Any]] = (),
        *,
        at_ms: int | None = None,
        watermark_ms: int | None = None,
    ) -> list[Row]:
        """Run a batch: the rows, key by key, and then the timers that are due.

        Args:
            rows: Spark's rows, or dicts of their columns. A key's rows come in this order. Within
                a column a struct is given as a Row, and a map as a dict; the function is handed
                what Spark makes of them: a dict, and a list of pairs.
            at_ms: When the batch begins, by processing time: as the batch before or later. As
                before when left out.
            watermark_ms: Its watermark, likewise.

        Returns:
            What the function returned.

        Raises:
            InvalidArgumentError: A time goes back, or is no whole number; a row is none, lacks a
                column, or has an event time that is no datetime, or a key that is a map; a
                StatefulProcessor does what ends a query on Spark.
            Exception: What the function raised.

        Guarantee: after a raise, state, timers and times are those before the batch.
        """
        new_at_ms = _not_back("at_ms", at_ms, self.at_ms)
        new_watermark_ms = _not_back("watermark_ms", watermark_ms, self.watermark_ms)
        by_key = self._by_key(rows)
        now = TimerValues(
            -1 if self._time_mode == "None" else new_at_ms,
            new_watermark_ms if self._time_mode == "EventTime" else -1,
        )
        with self._store.or_as_before(), _task(self._num_batches):
            returned = [*self._run(by_key, now)]
        self.at_ms, self.watermark_ms = new_at_ms, new_watermark_ms
        self._num_batches += 1
        return returned

    def state(self, name: str) -> dict[Any, Any]:
        """Return what each key has of a state, at the time of the last batch.

        Args:
            name: Of a state that the function has taken.

        Returns:
            By the key, its value where it is one column, else the tuple; a tuple also for an array
            or a struct, and bytes for a binary. Of a value or reducing state it has the value, of
            an aggregating state the accumulator, of a list state a list, of a map state a dict,
            whose keys are shown as the key is where they cannot be hashed. A StatefulProcessor's
            values are tuples of columns.

        Raises:
            InvalidArgumentError: No state has the name; names those there are.
        """
        variable = self._store.variables.get(name)
        if variable is None:
            raise InvalidArgumentError(
                "no state has the name, or no batch has taken it yet",
                to_fix="run a batch, or take one of those there are",
                state=name,
                there_are=sorted(self._store.variables),
            )
        converts = [each.from_row for each in self._columns.get(name, ())]
        shown = {
            shown_key(of_key.key): variable.show(of_key, converts)
            for of_key in variable.entries.values()
        }
        return {key: value for key, value in shown.items() if value is not None}

    def timers(self) -> set[tuple[int, Any]]:
        """Return the timers: when each is due, milliseconds since 1970, and its key."""
        return {(at_ms, shown_key(key)) for (_, at_ms), key in self._store.timers.items()}

    def _by_key(self, rows: Iterable[Row | Mapping[str, Any]]) -> list[tuple[Key, list[Row]]]:
        """Return each key with its rows, without those that are late."""
        wanted = self._key if self._event_time is None else (*self._key, self._event_time)
        by_key: dict[Any, tuple[Key, list[Row]]] = {}
        for given in rows:
            if not isinstance(given, Row | Mapping):
                raise InvalidArgumentError(
                    "a row of the input is neither a Row nor a dict",
                    to_fix="give a list of Spark's rows, or of dicts",
                    row=given,
                )
            row = given if isinstance(given, Row) else Row(**given)
            if missing := [name for name in wanted if name not in row]:
                raise InvalidArgumentError(
                    "a row lacks a column",
                    to_fix="give each row all columns of the input",
                    column=missing[0],
                    row=row,
                )
            if self._is_late(row):
                continue
            key = tuple(grouped(row[name]) for name in self._key)
            try:
                _, together = by_key.setdefault(identity(key), (key, []))
            except TypeError as error:
                raise InvalidArgumentError(
                    "Spark groups by no map", to_fix="group by its entries, as an array", row=row
                ) from error
            together.append(Row(*row.__fields__)(*map(delivered, row)))
        return [*by_key.values()]

    def _is_late(self, row: Row) -> bool:
        at = None if self._event_time is None else row[self._event_time]
        if not isinstance(at, datetime | None):
            raise InvalidArgumentError(
                "the time of a row is not a datetime",
                to_fix="give one, or None",
                column=self._event_time,
                row=row,
            )
        if at is None or self._time_mode != "EventTime":
            return False
        return microseconds(at) <= self.watermark_ms * 1000

    def _run(self, by_key: Sequence[tuple[Key, list[Row]]], now: TimerValues) -> Iterator[Row]:
        """Yield what a task returns."""
        store, processor = self._store, copy_of(self._processor)
        handle = Handle(store, self._time_mode, now)
        processor.init(handle)  # type: ignore[arg-type]
        handle.is_open = True
        for key, rows in by_key:
            store.key = key
            handed = tuple(map(delivered, key))
            yield from _returned(processor.handleInputRows(handed, iter(rows), now))
        until_ms = now.getCurrentWatermarkInMs()
        if self._time_mode == "ProcessingTime":
            until_ms = now.getCurrentProcessingTimeInMs()
        due = [timer for timer in store.timers.items() if timer[0][1] <= until_ms]
        for place, key in sorted(due, key=lambda timer: timer[0][1]):
            store.key = key
            returned = processor.handleExpiredTimer(
                key=tuple(map(as_spark, key)),
                timerValues=now,
                expiredTimerInfo=ExpiredTimerInfo(place[1]),
            )
            yield from _returned(returned)
            store.timers.pop(place, None)  # Spark's does, also where it was registered again.
        processor.close()


def _not_back(name: str, given: int | None, before: int) -> int:
    fields: dict[str, Any] = {name: given, "before": before}
    if type(given) not in (int, type(None)):
        to_fix = "give milliseconds since 1970, a whole number"
        raise InvalidArgumentError(f"`{name}` is not a time", to_fix=to_fix, **fields)
    if given is not None and given < before:
        raise InvalidArgumentError("time does not go back", to_fix="give a later time", **fields)
    return before if given is None else given


def _returned(rows: Any) -> Any:
    if rows is None:
        raise InvalidArgumentError(
            "a processor returned no iterator, which ends the query on Spark",
            to_fix="have handleInputRows and handleExpiredTimer return iter([]) for no rows",
            returned=rows,
        )
    return rows


@contextmanager
def _task(batch: int) -> Iterator[None]:
    """Have a task of a batch, which a function may ask `TaskContext` for."""
    context = cast("Any", TaskContext)
    before = context.get()
    context._taskContext = None  # noqa: SLF001
    context._getOrCreate()._localProperties = {"streaming.sql.batchId": str(batch)}  # noqa: SLF001
    try:
        yield
    finally:
        context._taskContext = before  # noqa: SLF001
