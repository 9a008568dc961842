"""Descriptors say what is stored, and refuse what cannot be."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from statestore import keyed
from statestore.core.errors import InvalidArgumentError


def add(left: int, right: int) -> int:
    return left + right


class Mean(keyed.AggregateFunction[float, tuple[int, float], float]):
    def create_accumulator(self) -> tuple[int, float]:
        return 0, 0.0

    def add(self, value: float, accumulator: tuple[int, float]) -> tuple[int, float]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, float]) -> float:
        return accumulator[1] / accumulator[0]


def test_type_is_taken_from_the_function_that_combines() -> None:
    """Catches a reducing or aggregating state that stores another type than it combines."""
    assert keyed.ReducingStateDescriptor("sum", add).types == (int,)
    assert keyed.AggregatingStateDescriptor("mean", Mean()).types == (tuple[int, float],)
    given = keyed.ReducingStateDescriptor("sum", lambda left, right: left + right, "n INT")
    assert given.types == ("n INT",)


def test_refused_when_the_type_is_not_known() -> None:
    """Catches a variable of a guessed type."""
    descriptor = keyed.ReducingStateDescriptor("sum", lambda left, right: left + right)

    with pytest.raises(InvalidArgumentError, match="type of the state is not known"):
        _ = descriptor.types


@pytest.mark.parametrize("name", ["", "$ttl_sum", "default", " sum", 7, None])
def test_refused_when_the_name_is_one_of_spark(name: Any) -> None:
    """Catches a state that Spark takes for one of its own."""
    with pytest.raises(InvalidArgumentError, match="name of a state variable"):
        keyed.ValueStateDescriptor(name, int)


@pytest.mark.parametrize(
    ("ttl", "update_type"),
    [
        (timedelta(0), "OnCreateAndWrite"),
        (timedelta(seconds=-1), "OnCreateAndWrite"),
        (timedelta(microseconds=999), "OnCreateAndWrite"),
        (3600, "OnCreateAndWrite"),
        ("5m", "OnCreateAndWrite"),
        (timedelta(seconds=1), "Disabled"),
    ],
)
def test_refused_when_no_time_to_live_is_that_way(ttl: Any, update_type: str) -> None:
    """Catches a state that expires at once, or never."""
    with pytest.raises(InvalidArgumentError, match="time to live"):
        keyed.StateTtlConfig(ttl, update_type)  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl", [timedelta(days=7), 7])
def test_refused_when_a_time_to_live_is_no_config_of_one(ttl: Any) -> None:
    """Catches an error from the inside of a task, where the state is first asked for."""
    with pytest.raises(InvalidArgumentError, match=r"ttl=.* give a StateTtlConfig"):
        keyed.ValueStateDescriptor("n", int, ttl=ttl)


def test_time_to_live_is_in_whole_milliseconds() -> None:
    """Catches a unit mistaken for another."""
    assert keyed.StateTtlConfig(timedelta(days=40, microseconds=1500)).ttl_ms == 3_456_000_001


def test_descriptors_need_no_pyspark() -> None:
    """Catches an import that takes seconds, or fails where pyspark is not installed."""
    program = (
        "import sys, statestore.keyed as keyed\n"
        "keyed.ValueStateDescriptor('sum', int), keyed.RichFlatMapFunction, keyed.Checkpointed\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_name_resolves() -> None:
    """Catches a name that is listed and not there."""
    assert {name for name in keyed.__all__ if not hasattr(keyed, name)} == set()
