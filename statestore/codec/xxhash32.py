"""XXH32, the checksum of lz4-java's blocks, of many blocks at a time.

Source: the specification of xxHash by Yann Collet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_PRIMES = tuple(map(np.uint32, (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)))
_STRIPE_BYTES = 16


def xxhash32(blocks: Sequence[bytes], seed: int) -> npt.NDArray[np.uint32]:
    """Return the checksum of every block.

    Args:
        blocks: Of any lengths; those of the same length are computed side by side.
        seed: The seed, the same for all.

    Returns:
        Length n.
    """
    found = np.zeros(len(blocks), np.uint32)
    lengths = np.fromiter(map(len, blocks), np.int64, len(blocks))
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        data = np.frombuffer(b"".join(blocks[index] for index in at.tolist()), np.uint8)
        found[at] = _same_length(data.reshape(len(at), length), np.uint32(seed))
    return found


def _same_length(data: npt.NDArray[np.uint8], seed: np.uint32) -> npt.NDArray[np.uint32]:
    """Return the checksums of the rows of a matrix."""
    p1, p2, p3, p4, p5 = _PRIMES
    num_blocks, length = data.shape
    num_stripes = length // _STRIPE_BYTES
    with np.errstate(over="ignore"):
        if num_stripes:
            words = data[:, : num_stripes * _STRIPE_BYTES].copy().view("<u4")
            # A stripe after the other in memory, each the four words of all blocks.
            stripes = np.ascontiguousarray(words.reshape(num_blocks, num_stripes, 4).swapaxes(0, 1))
            lanes = np.empty((num_blocks, 4), np.uint32)
            lanes[:] = np.array([seed + p1 + p2, seed + p2, seed, seed - p1], np.uint32)
            for stripe in stripes:
                lanes += stripe * p2
                lanes = _rotated(lanes, 13) * p1
            turned = [_rotated(lanes[:, lane], by) for lane, by in enumerate((1, 7, 12, 18))]
            hashes = turned[0] + turned[1] + turned[2] + turned[3]
        else:
            hashes = np.full(num_blocks, seed + p5, np.uint32)
        hashes += np.uint32(length)
        position = num_stripes * _STRIPE_BYTES
        while position + 4 <= length:
            word: npt.NDArray[np.uint32]
            word = data[:, position : position + 4].copy().view("<u4")[:, 0]
            hashes = _rotated(hashes + word * p3, 17) * p4
            position += 4
        for place in range(position, length):
            hashes = _rotated(hashes + data[:, place].astype(np.uint32) * p5, 11) * p1
        hashes ^= hashes >> np.uint32(15)
        hashes *= p2
        hashes ^= hashes >> np.uint32(13)
        hashes *= p3
        hashes ^= hashes >> np.uint32(16)
    return hashes


def _rotated(values: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return values << np.uint32(by) | values >> np.uint32(32 - by)
