"""Which versions are gone because retention took them, and which because something broke.

Retention takes the oldest versions of a store, so what is left are always its newest: a version
that is missing before all of them was expired, one that is missing between two others was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.checkpoint.layout import parse_state_file_name
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    StateStoreError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.codec.references import FileRef

DAMAGE = (CorruptionError, FencedError, IncompatibleError, NotFoundError)
"""What is wrong with files. Every other error is about reaching them, and tells nothing of them."""
ABOUT_THE_READER = ("driver-lost", "newer-format", "other-provider")
"""Kinds of them that say who cannot read the files."""


def is_damage(error: StateStoreError) -> bool:
    """Return whether an error is about state, and not about who reads it.

    Nor is it damage where metadata of operators is missing (kind not-found), which the next batch
    writes.
    """
    return isinstance(error, DAMAGE) and error.kind not in (*ABOUT_THE_READER, "not-found")


def is_expiry(error: StateStoreError, version: int) -> bool:
    """Return whether a version is missing since its store keeps later ones only."""
    oldest = error.fields.get("oldest_version")
    return isinstance(oldest, int) and version < oldest


def is_before_all(ref: FileRef, names: Iterable[str]) -> bool:
    """Return whether a file is of a version before all that its store has.

    Args:
        ref: Reference to the file, which is not there.
        names: Names of the files in its directory.
    """
    versions = [name.version for name in map(parse_state_file_name, names) if name is not None]
    return ref.version < min(versions, default=0)
