"""Elements of a stateful source are dealt out to tasks, and wrong settings refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from statestore import keyed
from statestore.core.errors import InvalidArgumentError, ProtocolError, StateStoreError

pytestmark = pytest.mark.skipif(
    not hasattr(DataSourceStreamReader, "getDefaultReadLimit"), reason="Spark 4.2 or later"
)


class Numbers(keyed.StatefulSource):
    def initialize_state(self) -> list[Any]:
        return [0, 0, 0]

    def snapshot_state(self, elements: list[Any]) -> list[Any]:
        return [*(each + 1 for each in elements), 9]

    def read(self, split: keyed.Split) -> Iterator[tuple[int]]:
        yield (split.index,)


class ToAll(Numbers):
    redistribution = "union"


class ToNobody(Numbers):
    redistribution = "broadcast"  # type: ignore[assignment]


def _splits(kind: type[Numbers], parallelism: int) -> list[list[Any]]:
    reader: Any = kind({"parallelism": str(parallelism)}).streamReader(StructType())
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    splits = reader.partitions(start, end)
    assert {split.parallelism for split in splits} == {parallelism}
    assert [split.index for split in splits] == [*range(len(splits))]
    return [split.elements for split in splits]


def test_every_element_comes_to_one_task_in_turn() -> None:
    """Catches an element that no task reads, or two; and a task that has nothing to read."""
    one, two, three, new = (0, 1), (0, 1), (0, 1), (None, 9)

    assert _splits(Numbers, 1) == [[one, two, three, new]]
    assert _splits(Numbers, 3) == [[one, new], [two], [three]]
    assert _splits(Numbers, 7) == [[one], [two], [three], [new]]


def test_every_element_comes_to_all_tasks_of_a_union() -> None:
    """Catches a union that is split."""
    assert _splits(ToAll, 2) == [[(0, 1), (0, 1), (0, 1), (None, 9)]] * 2


@pytest.mark.parametrize("parallelism", ["0", "-1", "two"])
def test_refused_when_the_parallelism_is_out_of_range(parallelism: str) -> None:
    """Catches a source that plans no task, and so skips rows."""
    with pytest.raises(InvalidArgumentError, match="parallelism of a source is out of range"):
        Numbers({"parallelism": parallelism}).streamReader(StructType())


def test_refused_when_elements_go_nowhere() -> None:
    """Catches a redistribution that is guessed."""
    with pytest.raises(StateStoreError, match="the redistribution of elements is unknown"):
        ToNobody({}).streamReader(StructType())


class Listing(Numbers):
    """Begins with what is there when it is asked."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.found = 0

    def initialize_state(self) -> list[Any]:
        self.found += 1
        return [self.found] * self.found


def test_first_batch_is_read_from_where_it_was_planned() -> None:
    """Catches rows that are in no batch, between two answers of a source in one run."""
    reader: Any = Listing({}).streamReader(StructType())

    end = reader.latestOffset(reader.initialOffset(), None)
    (planned,) = reader.partitions(reader.initialOffset(), end)

    assert planned.elements == [(1, 2), (None, 9)]


def test_first_batch_that_begins_with_more_elements_than_it_was_planned_with_is_refused() -> None:
    """Catches a query that never starts again, for an error from the inside."""
    reader: Any = Listing({}).streamReader(StructType())
    reader.initialOffset()

    with pytest.raises(
        InvalidArgumentError, match=r"elements_before=1, elements=0.*initialize_state"
    ):
        reader.partitions(reader.initialOffset(), {"elements": []})


class Losing(Numbers):
    def snapshot_state(self, elements: list[Any]) -> list[Any]:
        return elements[1:]


class LosingInPlace(Numbers):
    def snapshot_state(self, elements: list[Any]) -> list[Any]:
        elements.pop()
        return elements


@pytest.mark.parametrize("kind", [Losing, LosingInPlace])
def test_source_that_loses_elements_is_refused_before_that_is_planned(kind: type[Numbers]) -> None:
    """Catches a batch that is planned and that no start can run, nor go back behind."""
    reader: Any = kind({}).streamReader(StructType())

    with pytest.raises(
        InvalidArgumentError, match=r"elements_before=3, elements=2.*snapshot_state"
    ):
        reader.latestOffset(reader.initialOffset(), None)


def test_reader_of_another_release_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a task that reads a source by code of another release."""
    reader: Any = Numbers({"parallelism": "2"}).streamReader(StructType())
    same = cloudpickle.loads(cloudpickle.dumps(reader))  # type: ignore[no-untyped-call]
    assert same.initialOffset() == reader.initialOffset()
    monkeypatch.setattr("statestore.keyed.source.__version__", "0.0.9")

    with pytest.raises(ProtocolError, match="version-apart"):
        cloudpickle.loads(cloudpickle.dumps(reader))  # type: ignore[no-untyped-call]
