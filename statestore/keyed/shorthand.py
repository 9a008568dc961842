"""Stateful map and flat map by a plain function of row and state, as Flink's Scala API has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, get_args

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.annotations import element_of, hints_of
from statestore.keyed.descriptors import ValueStateDescriptor
from statestore.keyed.functions import RichFlatMapFunction
from statestore.keyed.processor import process
from statestore.keyed.runtime import RuntimeContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, GroupedData

WithState = Callable[[Any, Any], tuple[Any, Any]]


def map_with_state(
    grouped: GroupedData, function: WithState, *, name: str = "state", output_mode: str = "Append"
) -> DataFrame:
    """Return a row for each row, by a function that is handed the state of the key and returns it.

    Args:
        grouped: A streaming frame by its key.
        function: Takes a row, and the state or None; returns a row, and the new state or None,
            which clears it. Annotated so: `tuple[Row, State | None]`.
        name: Of the state variable.
        output_mode: `Append` or `Update`, the query's.

    Raises:
        InvalidArgumentError: What the function returns is not annotated as a pair.
        IncompatibleError: As of `process`.
    """
    row, state = _pair(function)
    mapped = _WithState(
        lambda value, before: ((rows := function(value, before))[:1], rows[1]), name, state
    )
    return process(grouped, mapped, row, output_mode=output_mode)


def flat_map_with_state(
    grouped: GroupedData, function: WithState, *, name: str = "state", output_mode: str = "Append"
) -> DataFrame:
    """Return any number of rows for each row; else as `map_with_state`.

    The function returns an iterable of rows, and the state: `tuple[list[Row], State | None]`.
    """
    rows, state = _pair(function)
    mapped = _WithState(function, name, state)
    return process(grouped, mapped, element_of(rows), output_mode=output_mode)


class _WithState(RichFlatMapFunction):
    def __init__(self, function: WithState, name: str, kind: Any) -> None:
        self._function = function
        self._descriptor = ValueStateDescriptor(name, kind)

    def open(self, runtime: RuntimeContext) -> None:
        self._state = runtime.get_state(self._descriptor)

    def flat_map(self, value: Any) -> Iterable[Any]:
        rows, state = self._function(value, self._state.value())
        self._state.update(state)
        return rows  # type: ignore[no-any-return]


def _pair(function: WithState) -> tuple[Any, ...]:
    pair = get_args(hints_of(function).get("return"))
    if len(pair) != 2:
        raise InvalidArgumentError(
            "the types of row and state are not known",
            to_fix="annotate that the function returns tuple[Row, State | None]",
            function=function,
        )
    return pair
