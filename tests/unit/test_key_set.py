"""Many keys, and bytes looked for in bytes: against Python's own sets and `in`."""

import random

import numpy as np
import pyarrow as pa
import pytest

from statestore.operations.forget.needles import Needles
from statestore.operations.key_set import KeySet, _mixed, hash_bytes


def test_keys_are_found_as_a_set_finds_them():
    """Catches a length, a chunk or a sliced column that is looked up as something else."""
    rng = random.Random(random.getrandbits(64))
    for _ in range(100):
        known = [rng.randbytes(rng.choice([0, 1, 7, 8, 9, 16, 24, 31])) for _ in range(40)]
        known += [bytes(rng.randint(0, 20)) for _ in range(5)]
        cut = rng.randint(0, len(known))
        keys = KeySet([pa.array(known[:cut], pa.binary()), pa.array(known[cut:], pa.binary())])
        asked = [*rng.sample(known, 20), *(rng.randbytes(rng.randint(0, 2)) for _ in range(20))]
        column = pa.array([b"in front", *asked, b"behind"], pa.binary()).slice(1, len(asked))

        assert keys.has(column).tolist() == [key in {*known} for key in asked]
    assert not KeySet([]).has(pa.array([b""], pa.binary())).any()
    assert not KeySet([pa.array([], pa.binary())])


def test_keys_of_one_hash_are_told_apart():
    """Catches a hash that decides: another user's key would go."""
    rng = random.Random(random.getrandbits(64))
    first = rng.randbytes(16)
    begins = np.array([16], np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    same = [first]
    for _ in range(3):
        # Another first word, and the second one that leads to the same hash.
        word = np.frombuffer(rng.randbytes(8), "<u8")
        states = [_mixed(begins, one) for one in (np.frombuffer(first[:8], "<u8"), word)]
        second = np.frombuffer(first[8:], "<u8") ^ states[0] ^ states[1]
        same.append(word.tobytes() + second.tobytes())
    assert len({*hash_bytes(pa.array(same, pa.binary())).tolist()}) == 1

    for known in (same[:1], same[:2], same[:3]):
        found = KeySet([pa.array(known, pa.binary())]).has(pa.array(same, pa.binary()))
        assert found.tolist() == [key in known for key in same]


@pytest.mark.parametrize("num_needles", [0, 1, 16, 17, 400])
@pytest.mark.parametrize("are_words", [False, True])
def test_needles_are_found_wherever_they_lie(num_needles, are_words):
    """Catches one at the beginning, the end, or across two pieces, few or many of them."""
    rng = random.Random(random.getrandbits(64))
    needles = {rng.randbytes(rng.randint(4, 12)).hex().encode() for _ in range(num_needles)}
    found = Needles(needles, are_words=are_words)
    hay = bytes(rng.choice(b".,;:") for _ in range(rng.randint(0, 3000)))
    assert not found.is_in(memoryview(hay))
    for needle in sorted(needles)[:20]:
        at = rng.choice([0, len(hay), rng.randint(0, len(hay))])
        assert found.is_in(memoryview(hay[:at] + needle + hay[at:]))
        inside = hay[:at] + b"x" + needle + b"y" + hay[at:]
        assert found.is_in(memoryview(inside)) != are_words
