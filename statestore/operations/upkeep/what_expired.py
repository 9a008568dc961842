"""Which versions are gone because retention took them, and which because something broke.

Retention takes the oldest deltas of a store, so what is left are always its newest: a version made
of a delta that is missing before all of them was expired, one made of a delta that is missing
between two others is damaged. Snapshots and merged files say nothing: one may stay long after the
delta of its version has gone.
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
"""Errors about files themselves. All others are about reaching them."""
ABOUT_THE_READER = ("driver-lost", "newer-format", "other-provider", "storage-changed")
"""Kinds of them that say who cannot read the files, or where they are not looked for."""


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


def is_let_go(ref: FileRef, names: Iterable[str]) -> bool:
    """Return whether a file is not there because retention took it.

    Args:
        ref: Reference to the file.
        names: Names of the files in its directory.
    """
    found = [name for name in map(parse_state_file_name, names) if name is not None]
    oldest = min((name.version for name in found if name.kind == "delta"), default=None)
    if oldest is None or ref.version + 1 < oldest:
        return True
    if ref.kind == "delta":
        return ref.version < oldest
    # Its version needs no delta that is left. The next version goes on from another summary of it,
    # or from one of its own.
    return ref.version < oldest and any(
        name.version in (ref.version, oldest) and name.kind != "delta" for name in found
    )
