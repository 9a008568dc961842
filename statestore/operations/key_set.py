"""Many keys as bytes, of which each batch of rows is asked whether it has some.

Arrow's `is_in` hashes all keys anew for every batch, which is quadratic. Here keys are hashed once
and sorted by that; where a hash is found the bytes are compared, so a hash decides nothing alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import ByteRanges
from statestore.codec.rows import from_numpy, to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from statestore.codec.byte_ranges import Int64s

    Hashes = npt.NDArray[np.uint64]

_PRIMES = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_WORD = 8
_PIECE_BYTES = 1 << 19
"""Of values that are hashed at once, since that takes several times as much memory."""
_HALF = np.uint64(32)


class KeySet:
    """Keys, which are held in memory; asking is done in time that hardly depends on their number.

    Args:
        keys: Binary, without nulls; a key may be there more than once.
    """

    def __init__(self, keys: Iterable[pa.Array[Any]]) -> None:
        self._parts = [_Part(part) for part in _joined(keys)]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def has(self, keys: pa.Array[Any]) -> npt.NDArray[np.bool_]:
        """Return for each of some keys whether it is one of these.

        Args:
            keys: Binary, length n, without nulls.
        """
        found = np.zeros(len(keys), bool)
        if not self._parts or not len(keys):
            return found
        hashes = hash_bytes(keys)
        # Sorted, for the search of the next one to begin where that of the last one ended.
        order = np.argsort(hashes)
        for part in self._parts:
            part.look_up(keys, hashes[order], order, found)
        return found


class _Part:
    """Keys of which the bytes are in one Arrow array."""

    def __init__(self, keys: pa.Array[Any]) -> None:
        hashes = hash_bytes(keys)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        self._keys = keys
        self._order = order
        # Different keys of one hash, of which only the first one is compared.
        self._others = {
            other
            for first, second in zip(order[same].tolist(), order[same + 1].tolist(), strict=True)
            if (other := keys[second].as_py()) != keys[first].as_py()
        }

    def look_up(
        self,
        keys: pa.Array[Any],
        hashes: Hashes,
        order: npt.NDArray[np.int64],
        found: npt.NDArray[np.bool_],
    ) -> None:
        """Mark the keys that are here: `hashes` are theirs in that order."""
        # Imported here because it takes long, and only what writes rows needs it.
        import pyarrow.compute as pc

        places = np.searchsorted(self._hashes, hashes)
        places[places == len(self._hashes)] = 0
        at = np.flatnonzero(self._hashes[places] == hashes)
        if not len(at):
            return
        asked = keys.take(from_numpy(order[at], pa.int64()))
        known = self._keys.take(from_numpy(self._order[places[at]], pa.int64()))
        is_equal = to_numpy(pc.equal(asked, known).cast(pa.uint8()), np.uint8).astype(bool)
        if self._others:
            for place in np.flatnonzero(~is_equal).tolist():
                is_equal[place] = asked[place].as_py() in self._others
        found[order[at[is_equal]]] = True


def hash_bytes(column: pa.Array[Any]) -> Hashes:
    """Return a hash of each value of a binary column, the same for the same bytes.

    Args:
        column: Binary, length n, without nulls.
    """
    ranges = ByteRanges.of_column(column)
    hashes = ranges.sizes.astype(np.uint64) * _PRIMES[0]
    for offset in range(_WORD - 1):
        own = np.flatnonzero((ranges.sizes < _WORD) & (ranges.sizes > offset))
        found = ranges.read("u1", ranges.starts[own] + offset).astype(np.uint64)
        hashes[own] = _mixed(hashes[own], found)
    own = np.flatnonzero((ranges.sizes >= _WORD) & (ranges.sizes <= _PIECE_BYTES))
    piece = np.cumsum(ranges.sizes[own]) // _PIECE_BYTES
    for part in np.split(own, np.flatnonzero(np.diff(piece)) + 1):
        if len(part):
            counts = -(-ranges.sizes[part] // _WORD)
            firsts = np.cumsum(counts) - counts
            places = np.arange(counts.sum()) - np.repeat(firsts, counts)
            words = _hashed_words(ranges, np.repeat(part, counts), places)
            hashes[part] += np.add.reduceat(words, firsts)
    for long in np.flatnonzero(ranges.sizes > _PIECE_BYTES):
        count = -(-int(ranges.sizes[long]) // _WORD)
        for first in range(0, count, _PIECE_BYTES // _WORD):
            places = np.arange(first, min(first + _PIECE_BYTES // _WORD, count))
            hashes[long : long + 1] += _hashed_words(ranges, long, places).sum()
    return hashes


def _hashed_words(ranges: ByteRanges, of: Int64s | np.intp, places: Int64s) -> Hashes:
    """Return the hashes of words of values by their places; the last of a value may overlap.

    Args:
        ranges: The values.
        of: The value that each word is of.
        places: Of the words, from 0 on in each value.
    """
    starts, ends = ranges.starts[of], ranges.starts[of] + ranges.sizes[of]
    at = np.minimum(starts + places * _WORD, ends - _WORD)
    return _mixed(places.astype(np.uint64) * _PRIMES[1], ranges.read("<u8", at))


def _mixed(hashes: Hashes, words: Hashes) -> Hashes:
    mixed = (hashes ^ words) * _PRIMES[0]
    mixed ^= mixed >> _HALF
    return mixed * _PRIMES[1]


def _joined(keys: Iterable[pa.Array[Any]]) -> list[pa.Array[Any]]:
    """Return the keys in as few arrays as hold them, 2 GiB each."""
    table = pa.table({"key": pa.chunked_array(list(keys), pa.binary())})
    return [batch.column(0) for batch in table.combine_chunks().to_batches() if batch.num_rows]
