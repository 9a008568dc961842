"""Functions over the rows of a key, in Flink's words: what a program subclasses.

An instance lives for one task: one state partition in one batch. It is pickled to the task, opened,
handed the rows of one key after the other, and closed. So state goes into handles, not into fields;
`Checkpointed` fields are the exception.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statestore.keyed.runtime import Context, RuntimeContext


class RichFunction:
    """Base of all functions: methods that are called when a task begins and ends."""

    def open(self, runtime: RuntimeContext) -> None:
        """Take handles of state, and whatever else the rows need.

        Called once in every task, and once in the driver when the query starts, which asks for
        the names and types of the state only: of a deep copy, whose handles refuse every call.
        State can be taken here and nowhere else.
        """

    def close(self) -> None:
        """Give back what `open` took; not called when the task failed."""


class RichMapFunction(RichFunction, ABC):
    """Returns one row for each row."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """Return the row that a row becomes. The annotation is the schema of the output."""


class RichFlatMapFunction(RichFunction, ABC):
    """Returns any number of rows for each row."""

    @abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """Yield the rows that a row becomes. The annotation is the schema of the output."""


class KeyedProcessFunction(RichFunction, ABC):
    """Returns any number of rows for each row, and sets timers that return more."""

    @abstractmethod
    def process_element(self, value: Any, context: Context) -> Iterable[Any] | None:
        """Yield the rows that a row becomes. The annotation is the schema of the output."""

    def on_timer(self, timestamp: int, context: Context) -> Iterable[Any] | None:  # noqa: ARG002
        """Yield rows at a timer of the current key; of the same type.

        Args:
            timestamp: What the timer was registered for, milliseconds since 1970. Later by the
                watermark, or by the batch's clock: never early.
            context: As of `process_element`.
        """
        return None


class Checkpointed(ABC):
    """Fields of a function that are state: drawn with every batch, restored before the next one.

    To be inherited beside a function. Every key has an instance of its own, a copy of the one that
    was given to `process`: what Flink keeps for each operator instance is of a key here. A batch
    copies and opens an instance for each of its keys: a handle costs less.

    The fields are a state variable `checkpointed_fields`.
    """

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int, checkpoint_timestamp: int) -> Any:
        """Return the fields; None forgets them. The annotation is the type that is stored.

        Args:
            checkpoint_id: The version that the batch makes, see `CheckpointListener`.
            checkpoint_timestamp: Processing time of the batch, milliseconds since 1970; -1 without
                a time mode.
        """

    @abstractmethod
    def restore_state(self, state: Any) -> None:
        """Take back what `snapshot_state` returned, before `open`; not called for a new key."""
