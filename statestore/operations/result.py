"""Result: what an operation did or would do, with the same words for every operation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from statestore.core.errors import InvalidArgumentError
from statestore.core.text import Shown

Made = TypeVar("Made")

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
class Result(Shown, ABC):
    """What an operation did; of a dry run what it would do. Its text is what the shell prints.

    Attributes:
        done: Whether it was done; else nothing was changed.
    """

    done: bool = field(kw_only=True)
    makes_new: ClassVar[bool] = False
    """Whether it makes a new directory: a shell does that at once, where others want `--yes`."""

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

    @abstractmethod
    def __str__(self) -> str: ...

    def fields(self) -> dict[str, Any]:
        """Return the attributes by name, those of what is in it likewise: for JSON.

        An object that was made, or a certificate, is not among them.
        """
        private = [each.name for each in fields(self) if each.name.startswith("_")]
        without: dict[str, Any] = dict.fromkeys(private)
        of = asdict(replace(self, **without))
        return {name: value for name, value in of.items() if name not in private}

    def __repr__(self) -> str:
        how = "" if self.done else ", dry run"
        return f"<{type(self).__name__}{how}: {str(self).partition(chr(10))[0]}>"


@dataclass(frozen=True, repr=False)
class NewDirectoryResult(Result, Generic[Made]):
    """What an operation did or would do that makes a new directory of a version."""

    makes_new: ClassVar[bool] = True
    _made: Made | None = field(default=None, kw_only=True, compare=False)

    @property
    def made(self) -> Made:
        """The savepoint or checkpoint that was made.

        Raises:
            InvalidArgumentError: It was a dry run.
        """
        if self._made is None:
            raise InvalidArgumentError(
                "a dry run makes nothing", result=repr(self), to_fix="leave out dry_run=True"
            )
        return self._made

    def done_with(self, made: Made) -> Self:
        """Return it as done."""
        return replace(self, done=True, _made=made)
