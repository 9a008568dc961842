"""Many keys, and bytes looked for in bytes: against Python's own sets and `in`."""

import random
import re

import pyarrow as pa
import pytest

from statestore.codec.byte_ranges import ByteRanges
from statestore.operations import key_set
from statestore.operations.forget.needles import Needles
from statestore.operations.key_set import KeySet, hash_bytes


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
    primes = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F

    def mixed(place: int, word: int) -> int:
        """Return what a word adds to the hash by its place: it is that of another one alone."""
        alone = (word ^ place * primes[1] % 2**64).to_bytes(8, "little")
        return (int(hash_bytes(pa.array([alone], pa.binary()))[0]) - 8 * primes[0]) % 2**64

    def second_word(of: int) -> int:
        """Return the word in the second place that is hashed to this."""
        of = of * pow(primes[1], -1, 2**64) % 2**64
        of = (of ^ of >> 32) * pow(primes[0], -1, 2**64) % 2**64
        return of ^ primes[1]

    words = [rng.getrandbits(64) for _ in range(4)]
    total = rng.getrandbits(64)
    # Of each another first word, and the second one that leads to the same sum.
    pairs = [(word, second_word((total - mixed(0, word)) % 2**64)) for word in words]
    same = [first.to_bytes(8, "little") + second.to_bytes(8, "little") for first, second in pairs]
    assert len({*hash_bytes(pa.array(same, pa.binary())).tolist()}) == 1

    for known in (same[:1], same[:2], same[:3]):
        found = KeySet([pa.array(known, pa.binary())]).has(pa.array(same, pa.binary()))
        assert found.tolist() == [key in known for key in same]


def test_passes_of_hashing_do_not_depend_on_how_many_lengths_there_are(monkeypatch):
    """Catches a pass for each length, which made a search of text take a second a megabyte."""
    reads = []
    read = ByteRanges.read
    monkeypatch.setattr(ByteRanges, "read", lambda *given: reads.append(1) or read(*given))

    def num_reads(sizes):
        reads.clear()
        hash_bytes(pa.array([bytes(size) for size in sizes], pa.binary()))
        return len(reads)

    assert num_reads(range(2000)) <= num_reads([1000] * 2000) + 1


@pytest.mark.parametrize("piece_bytes", [8, 24, 100])
def test_a_value_has_one_hash_however_it_is_cut(monkeypatch, piece_bytes):
    """Catches a key that is found or not by its neighbours, and memory that grows with a value."""
    rng = random.Random(random.getrandbits(64))
    values = [rng.randbytes(rng.randrange(130)) for _ in range(300)]
    whole = hash_bytes(pa.array(values, pa.binary()))

    monkeypatch.setattr(key_set, "_PIECE_BYTES", piece_bytes)

    assert hash_bytes(pa.array(values, pa.binary())).tolist() == whole.tolist()
    alone = [hash_bytes(pa.array([value], pa.binary()))[0] for value in values]
    assert alone == whole.tolist()


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


@pytest.mark.parametrize("num_others", [0, 30])
def test_needles_are_words_though_others_begin_or_overlap_them(num_others: int) -> None:
    """Catches a key that is overlooked because a shorter one, asked for with it, is its begin."""
    rng = random.Random(random.getrandbits(64))
    others = {rng.randbytes(9).hex().encode() for _ in range(num_others)}
    for _ in range(300):
        needles = {
            bytes(rng.choices(b"ab-", k=rng.randint(4, 7))) for _ in range(rng.randint(1, 4))
        }
        hay = bytes(rng.choices(b"ab-", k=rng.randint(0, 60)))
        words = re.compile(
            b"|".join(rb"(?<![\w])%s(?![\w])" % re.escape(each) for each in sorted(needles))
        )

        found = Needles(needles | others, are_words=True).is_in(memoryview(hay))

        assert found == (words.search(hay) is not None), (needles, hay)
        assert Needles(needles | others).is_in(memoryview(hay)) == any(n in hay for n in needles)


def test_lookups_of_needles_do_not_depend_on_how_many_lengths_there_are() -> None:
    """Catches a lookup for each length at each place, which made a search of logs take hours."""
    asked = []

    class Counting(frozenset[bytes]):
        def __contains__(self, needle: object) -> bool:
            asked.append(needle)
            return super().__contains__(needle)

    begins = [b"%04d" % number for number in range(500)]
    found = Needles(begin + b"x" * (number + 1) for number, begin in enumerate(begins))
    found._needles = Counting(found._needles)

    assert not found.is_in(memoryview(b" ".join(begins)))
    assert len(asked) == len(begins)
