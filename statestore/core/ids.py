"""Checkpoint IDs and other unique names: the only module that makes UUIDs."""

from __future__ import annotations

import itertools
import re
import uuid
from typing import Protocol

CHECKPOINT_ID = re.compile(r"[0-9a-f]{32}")
"""32 lower-case hex digits; a lineage is as many."""


class IdSource(Protocol):
    """Source of unique IDs. Implementations are thread-safe."""

    def new_id(self) -> str:
        """Return 32 lower-case hex digits that were never returned before."""
        ...


class RandomIds:
    """IDs of 122 random bits."""

    def new_id(self) -> str:
        """Return a random ID."""
        return uuid.uuid4().hex


class CountingIds:
    """IDs that count up from 1; for tests and golden files."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def new_id(self) -> str:
        """Return the next number as 32 hex digits."""
        return f"{next(self._next):032x}"


def is_checkpoint_id(text: str) -> bool:
    """Return whether the text is 32 lower-case hex digits."""
    return CHECKPOINT_ID.fullmatch(text) is not None
