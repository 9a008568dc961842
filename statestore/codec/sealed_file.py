"""Sealed files on the local disk: a body of any kind with a trailer behind it.

Writing: the body is complete; `append_trailer` seals the file. Reading: `SealedFile` maps it and
checks the CRC32C of every block.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa

from statestore.codec.trailer import (
    END_LENGTH,
    TAIL_BYTES,
    Block,
    Trailer,
    decode_trailer,
    encode_trailer,
    trailer_length,
)
from statestore.core.errors import CorruptionError
from statestore.core.liveness import STEP_BYTES, step

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_POPULATE_READ = 22  # Python has no name for it
_TRIES = 3
_PAUSE_S = 1.0


def append_trailer(path: str, trailer: Trailer) -> bytes:
    """Seal a file whose body is complete; bytes behind the body are cut off.

    Guarantee: on return the file is whole but not yet durable. After a raise it can be sealed
        again.

    Returns:
        The appended bytes, the last ones of the file.

    Raises:
        CorruptionError: A reader would refuse the trailer.
        OSError: The file cannot be written.
    """
    encoded = encode_trailer(trailer)
    # A trailer that readers refuse is refused before it is published.
    decode_trailer(encoded, trailer.body_length + len(encoded), path)
    with Path(path).open("r+b", buffering=0) as file:
        if file.seek(0, os.SEEK_END) != trailer.body_length:
            # An engine killed between sealing and publishing left an older trailer here.
            file.truncate(trailer.body_length)
            file.seek(trailer.body_length)
        left = memoryview(encoded)
        while left:  # a disk that gets full takes a part, and refuses the next
            left = left[file.write(left) :]
    return encoded


class MappedFile:
    """A file of the local disk, mapped for reading.

    The mapping lives as long as any view of it; deleting the file meanwhile is harmless. What
    `pieces` has read counts no longer as memory of this process: of a file of gigabytes all would
    stay with it as long as the mapping, and be counted by whoever limits a container.

    Args:
        path: The file.
        name: That by which errors name it; `path` by default.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str, name: str | None = None) -> None:
        self._name = path if name is None else name
        self.bytes = pa.py_buffer(b"")
        """All of them."""
        if Path(path).stat().st_size:  # else there is nothing to map
            # Arrow would encode a text as UTF-8, whatever the locale does.
            encoded: Any = os.fsencode(path)
            # It holds no descriptor of the file, as Python's own mapping would.
            with pa.memory_map(encoded) as mapped:
                self.bytes = mapped.read_buffer()
        self.size = self.bytes.size

    def pieces(self, offset: int, length: int) -> Iterator[pa.Buffer]:
        """Yield a part, at most `STEP_BYTES` at a time, each a step of progress.

        Raises:
            CorruptionError: The system cannot read it, nor within two seconds (kind storage).
        """
        for start in range(offset, offset + length, STEP_BYTES):
            piece = self.bytes.slice(start, min(STEP_BYTES, offset + length - start))
            self._read_in(piece, start)
            yield piece
            # Of a mapped file: what is read once more comes from the system's cache.
            _madvise(self.bytes.address, self.size, mmap.MADV_DONTNEED)
            step()

    def checksum(self, offset: int, length: int) -> int:
        """Return the CRC32C of a part; errors as `pieces`."""
        return functools.reduce(google_crc32c.extend, self.pieces(offset, length), 0)

    def _read_in(self, piece: pa.Buffer, offset: int) -> None:
        """Have the system read a piece before its bytes are touched.

        Of a page that cannot be read it tells here; a touch would end the process. It still
        does where Linux is older than 5.14 and does not know the advice.
        """
        before = piece.address % mmap.PAGESIZE
        start, length = piece.address - before, piece.size + before
        for tries_left in reversed(range(_TRIES)):  # the storage of a network may be away
            if not _madvise(start, length, _POPULATE_READ) or ctypes.get_errno() != errno.EFAULT:
                return
            if tries_left:
                time.sleep(_PAUSE_S)
        raise cannot_be_read(self._name, offset, piece.size)


def cannot_be_read(path: str, offset: int, length: int) -> CorruptionError:
    """Return the error for a part of a file that the disk does not give.

    Whoever has another way takes it, as where a file is damaged. But the file may be whole: it is
    not replaced, and the query is worth a restart.
    """
    return CorruptionError(
        "a part of a file cannot be read",
        kind="storage",
        file=path,
        offset=offset,
        expected=f"{length} bytes",
        found="an error of the disk",
        to_fix="check the disk, of the local copy where the file is on another storage; then "
        "restore the file from a copy, or go back to an older version",
    )


def map_file(path: str) -> pa.Buffer:
    """Return a file's bytes, mapped; see `MappedFile`."""
    return MappedFile(path).bytes


def read_file(path: str) -> pa.Buffer:
    """Return a file's bytes, mapped, after the system has read them all once.

    Raises:
        OSError: The file cannot be opened.
        CorruptionError: A part of it cannot be read.
    """
    file = MappedFile(path)
    for _ in file.pieces(0, file.size):
        pass
    return file.bytes


class SealedFile:
    """A sealed file mapped for reading, as `MappedFile`.

    Not thread-safe while blocks are first verified; reads of verified blocks are.
    """

    def __init__(self, path: str, name: str | None = None) -> None:
        """Map a local file and check its trailer.

        Args:
            path: The local file.
            name: Its name in errors: the path of the file that this one is a copy of; None for
                `path`.

        Raises:
            CorruptionError, IncompatibleError: As `decode_trailer`; or the system cannot read its
                end.
            OSError: The file cannot be opened.
        """
        self.path = path
        self.name = path if name is None else name
        self._file = MappedFile(path, self.name)
        self.size = self._file.size
        end = self._end(min(TAIL_BYTES, self.size))
        needed = trailer_length(end, self.size, self.name) + END_LENGTH
        if needed > len(end):
            end = self._end(needed)
        self.trailer = decode_trailer(end, self.size, self.name)

    def verify(self) -> None:
        """Check every block of the file.

        Raises:
            CorruptionError: The CRC32C of a block differs, or the system cannot read it; names
                file, offset, expected, found.
        """
        for block in self.trailer.blocks:
            self._verify_block(block)

    def block_bytes(self, index: int) -> pa.Buffer:
        """Return the bytes of a block, mapped and unchecked."""
        block = self.trailer.blocks[index]
        return self._file.bytes.slice(block.offset, block.length)

    def block_pieces(self, index: int) -> Iterator[pa.Buffer]:
        """Yield the bytes of a block, unchecked; all as `MappedFile.pieces`."""
        block = self.trailer.blocks[index]
        return self._file.pieces(block.offset, block.length)

    def _end(self, length: int) -> bytes:
        pieces = self._file.pieces(self.size - length, length)
        return b"".join(piece.to_pybytes() for piece in pieces)

    def _verify_block(self, block: Block) -> None:
        found = self._file.checksum(block.offset, block.length)
        if found != block.crc32c:
            raise CorruptionError(
                "a block of a state file does not match its checksum",
                kind="checksum-mismatch",
                file=self.name,
                offset=block.offset,
                expected=f"{block.crc32c:08x}",
                found=f"{found:08x}",
                to_fix="restore the file from a copy, or go back to an older version",
            )
