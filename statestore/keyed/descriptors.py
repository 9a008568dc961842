"""What a program says of its keyed state: name, type, default, time to live.

A descriptor becomes a state variable of `transformWithState` under its name. What is stored is
found by that name: `Checkpoint.rows(name).read()`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

from statestore.core.errors import InvalidArgumentError
from statestore.keyed.annotations import hints_of

IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


@dataclass(frozen=True)
class StateTtlConfig:
    """How long an entry lives: a value, an element of a list, an entry of a map.

    An entry that expired is never returned. Spark removes it with the batch after it expired. The
    clock is the processing time of the batch, so the query needs `time_mode="ProcessingTime"`.

    Args:
        ttl: Time to live, 1 ms or more.
        update_type: Whether every write starts it anew, or also every read. A read then writes the
            value once more, of a list all of its elements: state that is only looked at costs as
            much as state that changes.
    """

    ttl: timedelta
    update_type: Literal["OnCreateAndWrite", "OnReadAndWrite"] = "OnCreateAndWrite"

    def __post_init__(self) -> None:
        if not isinstance(self.ttl, timedelta) or self.ttl < timedelta(milliseconds=1):
            raise InvalidArgumentError(
                "the time to live is not a timedelta of at least 1 ms",
                to_fix="give one, such as timedelta(hours=1)",
                ttl=self.ttl,
            )
        if self.update_type not in ("OnCreateAndWrite", "OnReadAndWrite"):
            raise InvalidArgumentError(
                "the update type of a time to live is unknown",
                to_fix="use OnCreateAndWrite or OnReadAndWrite",
                update_type=self.update_type,
            )

    @property
    def ttl_ms(self) -> int:
        """The time to live in milliseconds."""
        return self.ttl // timedelta(milliseconds=1)

    @property
    def is_on_read(self) -> bool:
        """Whether a read starts it anew."""
        return self.update_type == "OnReadAndWrite"


@dataclass(frozen=True)
class StateDescriptor(ABC):
    """Base of all descriptors: a name and a time to live.

    Args:
        name: Name of the state variable, its own among those of the function.
        ttl: How long an entry lives; for ever when None.
    """

    name: str
    ttl: StateTtlConfig | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        name = self.name
        is_text = isinstance(name, str) and bool(name) and name == name.strip()
        if not is_text or name.startswith("$") or name == "default":
            raise InvalidArgumentError(
                "the name of a state variable is no text, empty, or Spark's, as 'default', '$…'",
                to_fix="give another name, such as 'count', without spaces around it",
                name=self.name,
            )
        if not isinstance(self.ttl, StateTtlConfig | None):
            raise InvalidArgumentError(
                "the ttl of a state variable is not a StateTtlConfig",
                to_fix="give a StateTtlConfig(timedelta(…)), or None",
                ttl=self.ttl,
            )

    @property
    @abstractmethod
    def types(self) -> tuple[Any, ...]:
        """Types that are stored: one, or those of keys and values of a map."""


@dataclass(frozen=True)
class ValueStateDescriptor(StateDescriptor):
    """A value of each key.

    Args:
        type: Type of the value, see `statestore.keyed.columns`, or the DDL of its columns.
        default: What `value()` returns of a key that has none; each time a new one, where it can be
            changed.
    """

    type: Any
    default: Any = None

    @property
    def types(self) -> tuple[Any, ...]:  # noqa: D102, of the base
        return (self.type,)


@dataclass(frozen=True)
class ListStateDescriptor(StateDescriptor):
    """A list of each key.

    Args:
        type: Type of an element.
    """

    type: Any

    @property
    def types(self) -> tuple[Any, ...]:  # noqa: D102, of the base
        return (self.type,)


@dataclass(frozen=True)
class MapStateDescriptor(StateDescriptor):
    """A map of each key.

    Args:
        key_type: Type of the map's keys.
        value_type: Type of the map's values.
    """

    key_type: Any
    value_type: Any

    @property
    def types(self) -> tuple[Any, ...]:  # noqa: D102, of the base
        return self.key_type, self.value_type


class AggregateFunction(ABC, Generic[IN, ACC, OUT]):
    """How an aggregating state combines what is added to it.

    Flink's `merge` is for windows that grow together, which state of a key never does.
    """

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Return the accumulator of nothing. The annotation is the type that is stored."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Return the accumulator with a value more."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """Return the result for `get` of the state."""


@dataclass(frozen=True)
class ReducingStateDescriptor(StateDescriptor):
    """One value of each key: what all added values were reduced to.

    Args:
        reduce: Combines two values to one of their type.
        type: Type of the value; what `reduce` is annotated to return when None.
    """

    reduce: Callable[[Any, Any], Any]
    type: Any = None

    @property
    def types(self) -> tuple[Any, ...]:  # noqa: D102, of the base
        return (_returned(self.reduce) if self.type is None else self.type,)


@dataclass(frozen=True)
class AggregatingStateDescriptor(StateDescriptor):
    """An accumulator of each key. What Flink's folding state did is one with `add` as the fold.

    Args:
        aggregate: Combines.
        type: Type of the accumulator; what `create_accumulator` is annotated to return when None.
    """

    aggregate: AggregateFunction[Any, Any, Any]
    type: Any = None

    @property
    def types(self) -> tuple[Any, ...]:  # noqa: D102, of the base
        made = self.aggregate.create_accumulator
        return (_returned(made) if self.type is None else self.type,)


def _returned(function: Callable[..., Any]) -> Any:
    returned = hints_of(function).get("return")
    if returned is None:
        raise InvalidArgumentError(
            "the type of the state is not known",
            to_fix="annotate what the function returns, or give the descriptor a type",
            function=function,
        )
    return returned
