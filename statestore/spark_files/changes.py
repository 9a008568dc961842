"""Changes of deltas and changelogs, many at a time, as a piece of them is held in memory."""

from __future__ import annotations

from statestore.codec.rows import MERGE

_ROW_BYTES = 200
"""Bytes that a row takes in memory beside its key and value."""


class Changes:
    """The last put of each key among records, None for a delete, and values merged to it since.

    Attributes:
        delimiter: Bytes between merged values, none of which is empty.
        of_keys: Value by key; of a merged key the values that are added to the one before.
        merged: Keys whose value before is not among the records.
        num_bytes: Bytes of memory that the records took, about.
    """

    def __init__(self, delimiter: bytes) -> None:
        self.delimiter = delimiter
        # No object that Python's collector would look through, again and again, for each key.
        self.of_keys: dict[bytes, bytes | bytearray | None] = {}
        self.merged: set[bytes] = set()
        self.num_bytes = 0

    def add(self, kind: int, key: bytes, value: bytes | None) -> None:
        """Add a record, newer than those before."""
        of_keys, merged = self.of_keys, self.merged
        self.num_bytes += len(key) + len(value or b"") + _ROW_BYTES
        if kind != MERGE:
            of_keys[key] = value
            merged.discard(key)
        elif key in of_keys:
            before = of_keys[key]
            # A list that many values are added to is not copied for each of them.
            if not isinstance(before, bytearray):
                of_keys[key] = before = bytearray(before or b"")
            if before:
                before += self.delimiter
            before += value or b""
        else:
            of_keys[key] = value
            merged.add(key)
