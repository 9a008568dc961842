"""A model of a store, with a dict per version, and Hypothesis strategies for rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

Rows = dict[bytes, bytes]


@dataclass
class StoreModel:
    """A store as dicts: one per committed version, and one being written.

    Attributes:
        versions: Rows of each committed version; version 0 is empty.
        version: The version the handle is open at.
        working: Rows as the open batch leaves them.
    """

    versions: dict[int, Rows] = field(default_factory=lambda: {0: {}})
    version: int = 0
    working: Rows = field(default_factory=dict)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        self.working[key] = value

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.working.pop(key, None)

    def merge(self, key: bytes, value: bytes) -> None:
        """Append to a key."""
        self.working[key] = self.working.get(key, b"") + value

    def commit(self) -> int:
        """Make the working rows the next version; versions behind it are forgotten."""
        self.version += 1
        self.versions = {v: rows for v, rows in self.versions.items() if v < self.version}
        self.versions[self.version] = dict(self.working)
        return self.version

    def load(self, version: int) -> None:
        """Go to a committed version."""
        self.version = version
        self.working = dict(self.versions[version])

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Return the working rows with a prefix, in key order."""
        return sorted(item for item in self.working.items() if item[0].startswith(prefix))


def keys() -> st.SearchStrategy[bytes]:
    """Keys that collide often, share prefixes, and hold the bytes 00 and ff."""
    return st.lists(st.sampled_from([b"\x00", b"a", b"b", b"\xff"]), max_size=4).map(b"".join)


def values() -> st.SearchStrategy[bytes]:
    """Short values, the empty one among them."""
    return st.binary(max_size=12)


def rank(key_group, max_parallelism):
    """The place of a key group in file order, bit by bit."""
    num_bits = (max_parallelism & -max_parallelism).bit_length() - 1
    reversed_bits, rest = 0, key_group
    for _ in range(num_bits):
        reversed_bits = reversed_bits << 1 | rest & 1
        rest >>= 1
    return reversed_bits * (max_parallelism >> num_bits) + rest
