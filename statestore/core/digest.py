"""Digests that tell contents and places apart: lineages, IDs, names of local files."""

import hashlib


def digest_of(data: bytes, num_bytes: int = 16) -> str:
    """Return the first bytes of the SHA-256 of data, as hex.

    Every Python has SHA-256; in FIPS mode BLAKE2 is not there, or takes no size.
    """
    return hashlib.sha256(data).hexdigest()[: 2 * num_bytes]
