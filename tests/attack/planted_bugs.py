"""Bugs to be planted in an operation's process: the lane must find each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Bug:
    """A bug.

    Attributes:
        plant: Plants it in this process.
        shown_as: What the lane says of it.
        wanted: Fields of the lives that look for it.
        num_lives: How many of them must suffice.
    """

    plant: Callable[[], None]
    shown_as: str
    wanted: Mapping[str, Any] = field(default_factory=dict)
    num_lives: int = 6


BUGS: dict[str, Bug] = {}


def plant(name: str) -> None:
    """Plant a bug of BUGS in this process."""
    BUGS[name].plant()
