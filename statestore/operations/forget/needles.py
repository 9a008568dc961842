"""Bytes that are looked for in other bytes, in one pass however many they are."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FEW = 16
"""Up to so many a regular expression is faster."""
MIN_BYTES = 4
"""Of what is looked for; less is everywhere."""
_PIECE_BYTES = 16 * 1024 * 1024
_TABLE_BITS = 24
_IN_TEXT = "surrogateescape"
_WORD = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
_END = b"(?![0-9A-Z_a-z])"


class Needles:
    """Byte strings that are looked for.

    Args:
        needles: Bytes, each of `MIN_BYTES` or more.
        are_words: Whether a letter, digit or underscore before or behind makes it something else.
    """

    def __init__(self, needles: Iterable[bytes], *, are_words: bool = False) -> None:
        self._needles = frozenset(needles)
        self._are_words = are_words
        self._pattern = None
        if 0 < len(self._needles) <= _FEW:
            found = b"|".join(map(re.escape, sorted(self._needles)))
            # Of a needle that begins another one the longer is tried as well.
            self._pattern = re.compile(b"(?:%s)%s" % (found, _END if are_words else b""))
        # There may be very many lengths, but few of needles that begin alike.
        self._lengths = {
            begin: tuple({*map(len, of)})
            for begin, of in groupby(sorted(self._needles), lambda one: one[:MIN_BYTES])
        }
        self._begins = np.zeros(0, bool)
        if len(self._needles) > _FEW:
            self._begins = np.zeros(1 << _TABLE_BITS, bool)
            first = b"".join(needle[:MIN_BYTES] for needle in self._needles)
            self._begins[_places(np.frombuffer(first, "<u4"))] = True

    def __bool__(self) -> bool:
        return bool(self._needles)

    def is_in(self, data: memoryview) -> bool:
        """Return whether one of them is in some bytes."""
        if self._pattern is not None:
            match = self._pattern.search(data)
            while match and not self._is_whole(data, match.start(), match.end()):
                match = self._pattern.search(data, match.start() + 1)
            return match is not None
        return any(
            bytes(data[start : start + length]) in self._needles
            and self._is_whole(data, start, start + length)
            for start in self._candidates(data)
            for length in self._lengths.get(bytes(data[start : start + MIN_BYTES]), ())
        )

    def _candidates(self, data: memoryview) -> Iterator[int]:
        for begin in range(0, len(data) - MIN_BYTES + 1 if self._needles else 0, _PIECE_BYTES):
            piece = data[begin : begin + _PIECE_BYTES + MIN_BYTES - 1]
            # A number begins at every byte.
            numbers = np.ndarray((len(piece) - MIN_BYTES + 1,), "<u4", piece, strides=(1,))
            yield from (np.flatnonzero(self._begins[_places(numbers)]) + begin).tolist()

    def _is_whole(self, data: memoryview, start: int, end: int) -> bool:
        if not self._are_words:
            return True
        before = start > 0 and data[start - 1] in _WORD
        return not before and not (end < len(data) and data[end] in _WORD)


class ShortNeedles:
    """Texts of any length that are looked for as whole words.

    Args:
        needles: Texts, none empty.
        behind: What they stand behind, a regular expression; it begins a word itself.
        until: What they end before, one as well.
    """

    def __init__(self, needles: Iterable[bytes], behind: str = "", until: str = r"(?!\w)") -> None:
        self._needles = {needle.decode(errors=_IN_TEXT) for needle in needles}
        self._lengths = sorted(set(map(len, self._needles)))
        first = "|".join(sorted({re.escape(needle[0]) for needle in self._needles}))
        self._begins = re.compile(rf"(?<!\w){behind}(?={first})")
        self._ends = re.compile(until)

    def is_in(self, data: memoryview) -> bool:
        """Return whether one of them is in some bytes."""
        if not self._needles:
            return False
        text = str(data, errors=_IN_TEXT)
        begins = (match.end() for match in self._begins.finditer(text))
        return any(
            text[start : start + length] in self._needles
            and self._ends.match(text, start + length) is not None
            for start in begins
            for length in self._lengths
        )


def _places(
    numbers: np.ndarray[tuple[int], np.dtype[np.uint32]],
) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    mixed: np.ndarray[tuple[int], np.dtype[np.uint32]] = (
        numbers * np.uint32(2654435761)
    ) >> np.uint32(32 - _TABLE_BITS)
    return mixed
