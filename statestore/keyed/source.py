"""A source whose offset is its state, over Spark's Python data sources.

State of an operator that has no key is a list of elements in Flink, dealt out anew when the
parallelism changes. Spark's operators have none. Its sources do: the elements are the offset that
the query's checkpoint keeps of the source, in `offsets/`, and they go with the rows of the batch:

    offset of batch n ──snapshot_state──▶ offset of batch n + 1   in the driver, before the batch
    elements ──even-split or union──▶ splits ──read──▶ rows       in tasks

A batch is planned first, then read. What it ends with is therefore decided without its rows, and a
batch that runs again reads the same elements again: nothing has to be locked.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.core.version import __version__, unpickled

Element = Any
_REDISTRIBUTIONS = ("even-split", "union")


@dataclass
class Split(InputPartition):
    """The part of a batch that one task reads.

    Attributes:
        elements: Pairs of an element at the start of the batch and at its end. The first is None
            for an element that this batch adds.
        index: Number of the task, from 0.
        parallelism: Number of tasks.
    """

    elements: list[tuple[Element, Element]]
    index: int
    parallelism: int


class StatefulSource(DataSource):
    """A data source with a list of elements for its state; subclass it and register it.

    A subclass says its `name()` and `schema()` as every data source of Python, and the four methods
    below. It is instantiated in the driver, and pickled to tasks; what a program gives it are
    `options`. The option `parallelism` is the number of tasks a batch, 1 or more, 1 when not given;
    another one after a restart deals the elements out anew.

    An element is a value of JSON. An element keeps its place in the list: `snapshot_state` may add
    elements at its end, and takes none away.
    """

    redistribution: ClassVar[Literal["even-split", "union"]] = "even-split"
    """How elements come to tasks: each to one, in turn, or all of them to every task."""

    @abstractmethod
    def initialize_state(self) -> list[Element]:
        """Return the elements that a query without a checkpoint starts from.

        Asked once in a run, and again after a restart as long as no batch is committed. It must
        return the same then: Spark does not keep what the first batch starts from.
        """

    @abstractmethod
    def snapshot_state(self, elements: list[Element]) -> list[Element]:
        """Return the elements at the end of the next batch; the same where there is nothing new.

        Args:
            elements: Those that the batch before ended with; of its checkpoint after a restart.
        """

    @abstractmethod
    def read(self, split: Split) -> Iterable[tuple[Any, ...]]:
        """Yield the rows of a split; the same ones whenever it is read again.

        Called in a task, which may be one of several attempts.
        """

    def notify_checkpoint_complete(self, elements: list[Element]) -> None:
        """Let go of what is before the elements: no restart of this checkpoint goes behind them.

        A savepoint that is restored, a repair to an older version, and a branch do: keep what the
        oldest savepoint that may be restored needs. Called in the driver when a later batch is
        planned; so not for the last batch of a run.
        """

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader that Spark drives.

        Raises:
            InvalidArgumentError: `parallelism` is out of range, or there is no such redistribution.
            IncompatibleError: Spark 4.0 or 4.1, which do not tell a source where it starts (kind
                wrong-spark).
        """
        if not hasattr(DataSourceStreamReader, "getDefaultReadLimit"):
            raise IncompatibleError(
                "this Spark does not tell a source of Python where a batch starts",
                kind="wrong-spark",
                spark=pyspark.__version__,
                to_fix="take Spark 4.2 or later",
            )
        if self.redistribution not in _REDISTRIBUTIONS:
            raise InvalidArgumentError(
                "the redistribution of elements is unknown",
                to_fix=f"use one of {', '.join(_REDISTRIBUTIONS)}",
                redistribution=self.redistribution,
            )
        return _Reader(self, _parallelism(self.options.get("parallelism", "1")))


class _Reader(DataSourceStreamReader):
    """Spark's offset is the list of elements. A worker of another release refuses it."""

    def __init__(self, source: StatefulSource, parallelism: int) -> None:
        self._source = source
        self._parallelism = parallelism

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (__version__, type(self)), self.__dict__

    @cached_property
    def _initial(self) -> list[Element]:
        return self._source.initialize_state()  # Spark asks to plan the first batch, and to read it

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"elements": self._initial}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002, N802
        before = start["elements"]
        after = self._source.snapshot_state(deepcopy(before))  # which it may change in place
        to_fix = "have snapshot_state return each element that it is given, as it is now, and new "
        _require_all(before, after, to_fix + "ones behind them")
        return {"elements": after}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = start["elements"], end["elements"]
        to_fix = "have initialize_state return what it did when the first batch was planned"
        _require_all(before, after, to_fix)
        added = [None] * (len(after) - len(before))
        pairs = list(zip([*before, *added], after, strict=True))
        return split(pairs, self._parallelism, self._source.redistribution)

    def read(self, partition: InputPartition) -> Any:
        return self._source.read(partition)  # type: ignore[arg-type]

    def commit(self, end: dict[str, Any]) -> None:
        self._source.notify_checkpoint_complete(end["elements"])


def _require_all(before: list[Element], after: list[Element], to_fix: str) -> None:
    if len(after) < len(before):
        raise InvalidArgumentError(
            "the source has fewer elements than before, which are in no batch any more",
            elements_before=len(before),
            elements=len(after),
            to_fix=to_fix,
        )


def split(
    pairs: list[tuple[Element, Element]], parallelism: int, redistribution: str
) -> list[Split]:
    """Deal the elements of a batch out to its tasks.

    Returns:
        A split for each task; of even-split those that have an element.
    """
    if redistribution == "union":
        return [Split(pairs, index, parallelism) for index in range(parallelism)]
    dealt = (Split(pairs[index::parallelism], index, parallelism) for index in range(parallelism))
    return [each for each in dealt if each.elements]


def _parallelism(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgumentError(
            "the parallelism of a source is out of range",
            to_fix="give a whole number from 1",
            parallelism=text,
        )
    return int(text)
