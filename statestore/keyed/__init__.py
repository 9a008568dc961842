"""Keyed state of Flink on `transformWithState` of Spark: descriptors, handles, functions, sources.

`process` runs a function over the rows of each key; `open` takes the handles of its state. Names
resolve on first use: functions and descriptors need no pyspark, what runs them does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statestore.keyed.descriptors import (
        AggregateFunction,
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateTtlConfig,
        ValueStateDescriptor,
    )
    from statestore.keyed.functions import (
        Checkpointed,
        KeyedProcessFunction,
        RichFlatMapFunction,
        RichMapFunction,
    )
    from statestore.keyed.processor import process
    from statestore.keyed.runtime import Context, RuntimeContext, TimerService
    from statestore.keyed.shorthand import flat_map_with_state, map_with_state
    from statestore.keyed.source import Split, StatefulSource
    from statestore.keyed.states import (
        AggregatingState,
        ListState,
        MapState,
        ReducingState,
        ValueState,
    )

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "Checkpointed",
    "Context",
    "KeyedProcessFunction",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "ReducingState",
    "ReducingStateDescriptor",
    "RichFlatMapFunction",
    "RichMapFunction",
    "RuntimeContext",
    "Split",
    "StateTtlConfig",
    "StatefulSource",
    "TimerService",
    "ValueState",
    "ValueStateDescriptor",
    "flat_map_with_state",
    "map_with_state",
    "process",
]

_HOMES = {
    "AggregateFunction": "descriptors",
    "AggregatingState": "states",
    "AggregatingStateDescriptor": "descriptors",
    "Checkpointed": "functions",
    "Context": "runtime",
    "KeyedProcessFunction": "functions",
    "ListState": "states",
    "ListStateDescriptor": "descriptors",
    "MapState": "states",
    "MapStateDescriptor": "descriptors",
    "ReducingState": "states",
    "ReducingStateDescriptor": "descriptors",
    "RichFlatMapFunction": "functions",
    "RichMapFunction": "functions",
    "RuntimeContext": "runtime",
    "Split": "source",
    "StateTtlConfig": "descriptors",
    "StatefulSource": "source",
    "TimerService": "runtime",
    "ValueState": "states",
    "ValueStateDescriptor": "descriptors",
    "flat_map_with_state": "shorthand",
    "map_with_state": "shorthand",
    "process": "processor",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"statestore.keyed.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
