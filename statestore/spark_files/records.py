"""Records of Spark's files: the puts and removes of a delta, a snapshot or a changelog.

    HDFS-backed, changelog v1   key | value, again and again | -1
    changelog v3                text v3 | lineage | as v1
    changelog v2                text v2 | (type u8 | key | value), again and again | type 0
    changelog v4                text v4 | lineage | as v2

Key, value and text have their length before them: i32 big-endian, of a text u16. A value of length
-1 removes the key. The lineage, in checkpoint format v2, is JSON that names the versions before, up
to a snapshot, and their checkpoint IDs. Source: Spark's HDFSBackedStateStoreProvider and
StateStoreChangelog, releases 4.0 to 4.3.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.codec.rows import DELETE, MERGE, PUT
from statestore.core.errors import CorruptionError, IncompatibleError
from statestore.core.json_fields import Fields, MalformedError, parse_json, to_items

if TYPE_CHECKING:
    from collections.abc import Iterator

Record = tuple[int, bytes, bytes | None]
"""Operation (PUT, DELETE, MERGE), key, value; no value for a delete."""

_INT = struct.Struct(">i")
_HEAD = re.compile(rb"\x00\x02v([2-9])", re.DOTALL)
_TYPES = {0x01: PUT, 0x10: DELETE, 0x11: MERGE}
_END = 0
_DELETE_RANGE = 0x20
"""Of releases 4.2 and later, in which no operator writes it."""
_ID = re.compile("[0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A version that a changelog is built on, by its checkpoint ID."""

    version: int
    checkpoint_id: str


class Records:
    """The records of one file, read once.

    Args:
        pieces: The bytes of the file, decompressed.
        path: Name of the file in errors.
        is_changelog: Whether it is a changelog, which may begin with its form.
        most_bytes: No key or value is longer. Without a bound a small file that somebody made
            could unpack to one of 2 GiB, which is held in memory.

    Attributes:
        lineage: Versions before, as a changelog of checkpoint format v2 names them; empty in
            others.

    Raises:
        CorruptionError: The file is not of its form; so does every method.
        IncompatibleError: An unknown form of changelog.
    """

    def __init__(
        self, pieces: Iterator[bytes], path: str, *, is_changelog: bool, most_bytes: int
    ) -> None:
        self._pieces = pieces
        self._path = path
        self._most_bytes = most_bytes
        self._held = b""
        self._position = 0
        self._before = 0
        self._has_types = False
        self.lineage: tuple[Ancestor, ...] = ()
        self._fill(4)
        if not self._held:
            raise self._damaged("records", "nothing", kind="truncated")
        head = _HEAD.match(self._held[:4]) if is_changelog else None
        if head is not None:
            self._take(4)
            form = int(head[1])
            if form > 4:
                raise self._unknown("a changelog", f"v{form}")
            self._has_types = form in (2, 4)
            if form > 2:
                self.lineage = self._read_lineage()

    def __iter__(self) -> Iterator[Record]:
        while True:
            yield from self._puts_held()
            kind = PUT
            if self._has_types:
                code = self._take(1)[0]
                if code == _END:
                    return
                if code == _DELETE_RANGE:
                    to_fix = "let the query make a newer snapshot of the store, and ask again"
                    raise self._unknown("a range of keys that was deleted", str(code), to_fix)
                if code not in _TYPES:
                    raise self._unknown("a record", str(code))
                kind = _TYPES[code]
            key_size = self._integer()
            if key_size == -1 and not self._has_types:
                return
            key = self._bytes(key_size)
            value_size = self._integer()
            if value_size == -1 and (kind == DELETE or not self._has_types):
                yield DELETE, key, None
            elif kind == DELETE:
                raise self._damaged("-1", str(value_size))
            else:
                yield kind, key, self._bytes(value_size)

    def _puts_held(self) -> Iterator[Record]:
        """Yield puts and merges up to a record of another kind, or that is not held whole.

        Nearly all records: checked and cut with one look at each length.
        """
        held, end, kind = self._held, len(self._held), PUT
        has_types, start, length = self._has_types, self._position, _INT.unpack_from
        while start + 9 <= end:
            key = start + 4
            if has_types:
                kind = _TYPES.get(held[start], DELETE)
                key += 1
            after_key = key + length(held, key - 4)[0]
            if kind == DELETE or not key <= after_key <= end - 4:
                break
            value = after_key + 4
            after = value + length(held, after_key)[0]
            if not value <= after <= end:
                break
            self._position = start = after
            yield kind, held[key:after_key], held[value:after]

    def _read_lineage(self) -> tuple[Ancestor, ...]:
        text = self._take(int.from_bytes(self._take(2)))
        try:
            items = map(Fields, to_items(parse_json(text)))
            found = [
                Ancestor(item.integer("version", 1), item.text("checkpointUniqueId", _ID))
                for item in items
            ]
        except MalformedError as error:
            raise self._damaged("the lineage of a version", str(error)) from error
        return tuple(found)

    def _integer(self) -> int:
        found: int = _INT.unpack(self._take(4))[0]
        return found

    def _bytes(self, size: int) -> bytes:
        if not 0 <= size <= self._most_bytes:
            raise self._damaged(f"a length of at most {self._most_bytes}", str(size))
        return self._take(size)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._held):
            self._fill(size)
            end = size
            if end > len(self._held):
                raise self._damaged(f"{size} bytes", f"{len(self._held)}", kind="truncated")
        found = self._held[self._position : end]
        self._position = end
        return found

    def _fill(self, size: int) -> None:
        """Buffer `size` bytes at position 0, or all that are left."""
        held = [self._held[self._position :]]
        self._before += self._position
        num_bytes = len(held[0])
        while num_bytes < size and (piece := next(self._pieces, b"")):
            held.append(piece)
            num_bytes += len(piece)
        self._held, self._position = b"".join(held), 0

    def _damaged(self, expected: str, found: str, kind: str | None = None) -> CorruptionError:
        return CorruptionError(
            "a file of Spark's does not hold its records",
            kind=kind,
            file=self._path,
            offset=self._before + self._position,
            expected=expected,
            found=found,
            to_fix="put the file back from a copy; or read an older version",
        )

    def _unknown(
        self, what: str, found: str, to_fix: str = "use a later release of statestore"
    ) -> IncompatibleError:
        return IncompatibleError(
            f"{what} has an unknown form",
            kind="newer-format",
            file=self._path,
            found=found,
            to_fix=to_fix,
        )
