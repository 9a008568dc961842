"""Damage to bytes: what a disk, a copy that ended early, or a hand in the wrong directory does."""

NUM_BITS = 8


def damage(rng, data, others):
    """Return what was done, and the damaged bytes, which differ from the whole ones.

    Args:
        rng: A `random.Random`.
        data: The bytes of a file.
        others: The bytes of other files, of this and another checkpoint.
    """
    while True:
        what = rng.choice(KINDS)
        found = what(rng, data, others)
        if found != data:
            return what.__name__, found


def flip(rng, data, _others):
    """Bits of one to four bytes."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 4)) if data else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(NUM_BITS)
    return bytes(found)


def overwrite(rng, data, _others):
    """A stretch is anything."""
    start, end = _stretch(rng, data)
    return data[:start] + rng.randbytes(end - start) + data[end:]


def truncate(rng, data, _others):
    """The end is gone, or all of it."""
    return data[: rng.choice((0, rng.randrange(len(data) + 1), max(len(data) - 1, 0)))]


def cut_out(rng, data, _others):
    """A stretch is gone."""
    start, end = _stretch(rng, data)
    return data[:start] + data[end:]


def swap(rng, _data, others):
    """The bytes of another file: another version, state partition, store or checkpoint."""
    return rng.choice(others)


def splice(rng, data, others):
    """A stretch is another file's."""
    start, end = _stretch(rng, data)
    return data[:start] + rng.choice(others)[start:end] + data[end:]


def duplicate(rng, data, _others):
    """A stretch is there twice, or all of it."""
    start, end = rng.choice((_stretch(rng, data), (0, len(data))))
    return data[:end] + data[start:]


def zero_fill(rng, data, _others):
    """A stretch, mostly the end, is zeros."""
    start, end = _stretch(rng, data)
    end = rng.choice((end, len(data)))
    return data[:start] + bytes(end - start) + data[end:]


def _stretch(rng, data):
    start = rng.randrange(len(data) + 1)
    length = rng.choice((1, 4, 16, 512, len(data)))
    return start, min(len(data), start + rng.randint(1, length or 1))


KINDS = (flip, flip, flip, overwrite, truncate, cut_out, swap, splice, duplicate, zero_fill)
