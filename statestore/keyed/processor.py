"""Runs functions of keyed state as `transformWithState` of Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyspark
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.core.version import __version__, unpickled
from statestore.keyed.annotations import element_of, hints_of
from statestore.keyed.columns import Columns, columns_of
from statestore.keyed.ddl import parse_ddl
from statestore.keyed.descriptors import ValueStateDescriptor
from statestore.keyed.functions import (
    Checkpointed,
    KeyedProcessFunction,
    RichFlatMapFunction,
    RichFunction,
    RichMapFunction,
)
from statestore.keyed.runtime import Context, RuntimeContext, TimeMode, TimerService
from statestore.keyed.states import ValueState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

Rows = Iterable[Any] | None
FIELDS = "checkpointed_fields"
_TIME_MODES = ("None", "ProcessingTime", "EventTime")

T = TypeVar("T")


def process(
    grouped: GroupedData,
    function: RichFunction,
    output: Any = None,
    *,
    time_mode: TimeMode = "None",
    output_mode: str = "Append",
    event_time_column: str = "",
) -> DataFrame:
    """Run a function over the rows of each key, with state.

    Args:
        grouped: A streaming frame by its key, `frame.groupBy("key")`. Its rows come as Spark's
            `Row`; the order within a batch is that in which the shuffle delivers them.
        function: A map, a flat map or a process function; it is pickled, and not changed.
        output: Type of the rows that it returns, or the DDL of their columns; by its annotations
            when None. Fields of a plain tuple are called `_1`, `_2`, …; what is no row is `value`.
        time_mode: The time of timers; `ProcessingTime` is what a time to live needs, too. With it
            Spark runs a batch after the other, also without new rows.
        output_mode: `Append` or `Update`, the query's.
        event_time_column: The output's column that carries the watermark on.

    Returns:
        The streaming frame of all rows that the function returns.

    Raises:
        InvalidArgumentError: The function is of none of the three kinds, an annotation is missing
            or has no type of Spark, there is no such time mode, or a state has a time to live
            without the time mode that it takes.
        IncompatibleError: The Spark has no `transformWithState` of rows: 4.0 (kind wrong-spark).
        ProtocolError: In a task: its Python has another release (kind version-apart).

    Guarantee: state changes with the batch that returns the rows, or not at all. A batch that runs
    again begins with the state that the batch before left.
    """
    if not hasattr(grouped, "transformWithState"):
        raise IncompatibleError(
            "this Spark has no transformWithState of rows",
            kind="wrong-spark",
            spark=pyspark.__version__,
            to_fix="take Spark 4.1 or later, or transformWithStateInPandas",
        )
    if time_mode not in _TIME_MODES:
        raise InvalidArgumentError(
            "the time mode is unknown",
            to_fix=f"use one of {', '.join(_TIME_MODES)}",
            time_mode=time_mode,
        )
    processor = keyed_processor(function, output, time_mode)
    return grouped.transformWithState(
        processor,
        processor.columns.ddl,
        output_mode,
        time_mode,
        eventTimeColumnName=event_time_column,
    )


def keyed_processor(
    function: RichFunction, output: Any = None, time_mode: TimeMode = "None"
) -> KeyedProcessor:
    """Return the processor that `process` hands to Spark; arguments and errors as `process`."""
    if not isinstance(function, RichMapFunction | RichFlatMapFunction | KeyedProcessFunction):
        raise InvalidArgumentError(
            "the function is not an instance of a class of functions with keyed state",
            to_fix="give an instance of a class that inherits RichMapFunction, "
            "RichFlatMapFunction or KeyedProcessFunction",
            function=getattr(function, "__name__", type(function).__name__),
        )
    kind = _returned_by(function) if output is None else output
    columns = columns_of(kind, is_output=True, output_of=type(function).__name__)
    return KeyedProcessor(function, columns, _states_of(function, time_mode), time_mode)


class KeyedProcessor(StatefulProcessor):
    """Hands rows to a function, from one generator, and writes what it left in its handles.

    Args:
        function: Opened in each task.
        columns: Of what it returns.
        states: How each of its states is kept, by name.
        time_mode: The query's.

    Attributes:
        columns, states: As given.

    A worker of another release refuses it (kind version-apart).
    """

    def __init__(
        self,
        function: RichFunction,
        columns: Columns,
        states: dict[str, tuple[Columns, ...]],
        time_mode: TimeMode,
    ) -> None:
        self._function = function
        self.states = states
        self.columns = columns
        self._to_row = columns.to_row
        self._make = Row(*parse_ddl(columns.ddl).names)
        self._time_mode = time_mode

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (__version__, type(self)), self.__dict__

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the function, with the handle of the task."""
        self._modules = _modules()
        self._runtime = RuntimeContext(handle, self.states, self._time_mode)
        self._context = Context(TimerService(handle, self._time_mode))
        self._fields = _fields_of(self._function, self._runtime, None)  # its type is of `states`
        self._opened = self._open(None)

    def handleInputRows(  # noqa: N802, Spark's name
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Any]:
        """Yield the rows that the rows of a key become."""
        if self._fields is not None:
            self._restore()
        self._context.enter(key, timerValues)
        call, make, to_row = self._call, self._make, self._to_row
        for row in rows:
            for value in call(row) or ():
                yield make(*to_row(value))
        self._leave(timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        """Yield the rows that a timer of a key returns."""
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        self._context.enter(key, timerValues)
        if not self._context.timer_service().fire(at_ms):
            return
        if self._fields is not None:
            self._restore()
        if isinstance(self._opened, KeyedProcessFunction):
            for value in self._opened.on_timer(at_ms, self._context) or ():
                yield self._make(*self._to_row(value))
        self._leave(timerValues)

    def close(self) -> None:
        """Close the function."""
        self._opened.close()

    def _open(self, fields: Any) -> RichFunction:
        """Open a copy of the function, after its fields were restored where it had some."""
        function = self._function
        if self._fields is not None:
            function = copy_of(function, self._modules)
        if fields is not None:
            function.restore_state(fields)  # type: ignore[attr-defined]
        function.open(self._runtime)
        self._call = self._call_of(function)
        return function

    def _restore(self) -> None:
        """Go on to the instance of the next key."""
        self._opened.close()
        self._runtime.begin()
        self._fields = _fields_of(self._function, self._runtime, None)
        self._opened = self._open(cast("ValueState[Any]", self._fields).value())

    def _leave(self, now: TimerValues) -> None:
        if self._fields is not None:
            task, function = TaskContext.get(), cast("Checkpointed", self._opened)
            version = int((task and task.getLocalProperty("streaming.sql.batchId")) or -1) + 1
            time_ms = now.getCurrentProcessingTimeInMs()
            self._fields.update(function.snapshot_state(version, time_ms))
        for flush in self._runtime.flushes:
            flush()

    def _call_of(self, function: RichFunction) -> Callable[[Any], Rows]:
        """Return the function that is called with each row."""
        if isinstance(function, RichMapFunction):
            apply = function.map
            return lambda row: (apply(row),)
        if isinstance(function, KeyedProcessFunction):
            element, context = function.process_element, self._context
            return lambda row: element(row, context)
        return function.flat_map  # type: ignore[attr-defined, no-any-return]


def copy_of(of: T, modules: dict[int, Any] | None = None) -> T:
    """Return a deep copy; by pickling where a field has no other.

    Args:
        of: Can be pickled.
        modules: As `_modules` returns them, of a task that copies often.
    """
    try:
        return deepcopy(of, dict(modules or _modules()))
    except Exception:  # noqa: BLE001 (whatever a field raises)
        return cast("T", cloudpickle.loads(cloudpickle.dumps(of)))  # type: ignore[no-untyped-call]


def _modules() -> dict[int, Any]:
    """Return the modules there are as a memo of `deepcopy`: a copy has them as they are."""
    return {id(each): each for each in [*sys.modules.values()]}


def _states_of(function: RichFunction, time_mode: TimeMode) -> dict[str, tuple[Columns, ...]]:
    """Return how each state of a function is kept. A copy is opened: what `open` changes is its.

    Raises:
        InvalidArgumentError: Of the descriptors.
    """
    columns: dict[str, tuple[Columns, ...]] = {}
    opened, runtime = copy_of(function), RuntimeContext(None, columns, time_mode)
    if isinstance(function, Checkpointed):
        _fields_of(function, runtime, hints_of(function.snapshot_state).get("return"))
    opened.open(runtime)
    opened.close()
    return columns


def _fields_of(
    function: RichFunction, runtime: RuntimeContext, kind: Any
) -> ValueState[Any] | None:
    """Return the state of a type that a function's fields are; None when they are none."""
    if not isinstance(function, Checkpointed):
        return None
    return runtime.get_state(ValueStateDescriptor(FIELDS, kind))


def _returned_by(function: RichMapFunction | RichFlatMapFunction | KeyedProcessFunction) -> Any:
    """Return the type of the rows that a function returns, as it is annotated.

    Raises:
        InvalidArgumentError: It is not annotated.
    """
    if isinstance(function, RichMapFunction):
        returned = hints_of(function.map).get("return")
    elif isinstance(function, RichFlatMapFunction):
        returned = element_of(hints_of(function.flat_map).get("return"))
    else:
        returned = element_of(hints_of(function.process_element).get("return"))
    if returned in (None, Any):
        raise InvalidArgumentError(
            "the schema of the output is not known",
            to_fix="annotate what the function returns, Iterator[tuple[int, int]] for one, or give "
            'its columns, "name TYPE, …"',
            function=type(function).__name__,
        )
    return returned
