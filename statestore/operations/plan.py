"""Plan: what an operation is going to do, or did, with the same verbs for every operation."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, Self, TypeVar

from statestore.core.errors import InvalidArgumentError

Result = TypeVar("Result", covariant=True)

Progress = Callable[[int, int], None]
"""Called with what is done and the total, in bytes where its user does not say otherwise."""


def no_progress(_done: int, _total: int) -> None:
    """Take no notice of progress."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something that an operation changes.

    Attributes:
        verb: What happens to it: write, for what is made or replaced, move or delete.
        path: The file or directory: below the checkpoint directory, a path on its storage, or as
            the caller named it.
    """

    verb: Literal["write", "move", "delete"]
    path: str

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


@dataclass(frozen=True, repr=False)
class Plan(ABC, Generic[Result]):
    """What an operation is going to do, or did: nothing has changed until `run`."""

    _runner: Callable[[Progress], Result] | None = field(default=None, compare=False, kw_only=True)

    @abstractmethod
    def describe(self) -> str:
        """Return what it does in words, for people: the text that the command line prints."""

    @property
    @abstractmethod
    def size_bytes(self) -> int | None:
        """Bytes of state files that it copies, writes anew or deletes; None where unknown.

        Those that it only links, moves or refers to do not count.
        """

    @property
    @abstractmethod
    def changes(self) -> tuple[Change, ...]:
        """Everything that it changes, in the order in which it does, but for lease and history."""

    def run(self, progress: Progress | None = None) -> Result:
        """Do it. What has to be known for that is read again: the plan may be old.

        Args:
            progress: Called with what is done and the total, in a unit of the operation's.

        Returns:
            What the operation of the same name returns.

        Raises:
            InvalidArgumentError: The plan was not made by a method `plan_…`, but tells what was
                done.
            StateStoreError: As the operation of the same name.
        """
        if self._runner is None:
            raise InvalidArgumentError(
                "the plan tells what was done already",
                plan=type(self).__name__,
                to_fix="plan the operation again",
            )
        return self._runner(progress or no_progress)

    def fields(self) -> dict[str, Any]:
        """Return the plan's attributes by name, those of what is in it likewise: for JSON."""
        of = asdict(self)
        del of["_runner"]
        return of

    def run_by(self, runner: Callable[[Progress], Any]) -> Self:
        """Return the plan with what `run` calls."""
        return replace(self, _runner=runner)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.describe().partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.describe())}</pre>"
