"""A search for bytes in every file of a directory that knows nothing of the package's formats.

It knows what anybody would try: the bytes as they lie, Zstandard frames, and RocksDB's tables.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import rocksdict
import zstandard

from .columns import NASTY

if TYPE_CHECKING:
    from collections.abc import Iterator


ZSTD = b"\x28\xb5\x2f\xfd"
TABLE_END = bytes.fromhex("f7cff4857741e288")
"""The last bytes of a table of RocksDB."""
MIN_BYTES = 8
LARGE = 1 << 40
"""Smaller numbers are found by chance."""
TOP = (1 << 63) - 1
"""As its edges are."""


def find_bytes(directory: Path, needles: set[bytes]) -> list[str]:
    """Return the files that hold one of some bytes, and which."""
    found = []
    for path in sorted(directory.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        for how, piece in _pieces(data):
            found += [f"{path}: {needle!r} ({how})" for needle in needles if needle in piece]
    return found


def _pieces(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "as it lies", data
    at = data.find(ZSTD)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            piece = zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
            yield "in a Zstandard frame", piece
        at = data.find(ZSTD, at + 1)
    at = data.find(TABLE_END)
    while at >= 0:
        yield "in a table", b"\0".join(_table(data[: at + len(TABLE_END)]))
        at = data.find(TABLE_END, at + 1)


def _table(data: bytes) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as work:
        file = Path(work, "table.sst")
        file.write_bytes(data)
        database = rocksdict.Rdict(f"{work}/database", rocksdict.Options(raw_mode=True))
        try:
            database.ingest_external_file([str(file)])
            for row in cast("Iterator[tuple[bytes, bytes]]", database.items()):
                yield from row
        finally:
            database.close()


def needles_of(values: Any) -> set[bytes]:
    """Return the bytes that a search knows values by, of those that are not found by chance."""
    if isinstance(values, tuple):
        return {needle for value in values for needle in needles_of(value)}
    if isinstance(values, str):
        found = b"" if values in NASTY else values.encode()
    elif isinstance(values, bytes):
        found = values
    elif isinstance(values, int) and not isinstance(values, bool) and LARGE < abs(values) < TOP:
        found = values.to_bytes(8, "little", signed=True)
    else:
        return set()
    return {found} if len(found) >= MIN_BYTES else set()
