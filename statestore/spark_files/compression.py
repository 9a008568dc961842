"""Files of Spark's compression codecs, decompressed piece by piece.

    lz4     LZ4Block, method and level u8, compressed bytes, bytes, checksum u32 LE | bytes; again
    snappy  a header of 16 bytes, then length u32 BE | bytes; again
    zstd    frames of zstd

Source: LZ4BlockOutputStream of lz4-java, SnappyOutputStream of snappy-java, and the names that
Spark's CompressionCodec takes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

from statestore.codec.sealed_file import read_file
from statestore.codec.xxhash32 import xxhash32
from statestore.core.errors import CorruptionError, IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LZ4_MAGIC = b"LZ4Block"
_LZ4_HEADER = struct.Struct("<8sBiiI")
_LZ4_RAW, _LZ4_COMPRESSED = 0x10, 0x20
_LZ4_SEED = 0x9747B28C
_LZ4_CHECKED_BITS = 0x0FFFFFFF
_LZ4_BLOCKS = 64
"""Blocks whose checksums are computed side by side; Spark's are of 32 KiB."""
_LZ4_BYTES = 16 * 1024 * 1024
"""Bytes after which no further block is added to those."""
_SNAPPY_MAGIC = b"\x82SNAPPY\0"
_SNAPPY_HEADER_BYTES = 16
_PIECE_BYTES = 1024 * 1024
_MAX_BLOCK_BYTES = 64 * 1024 * 1024
"""The formats allow larger blocks, and no Spark writes them."""


def decompressed(local_path: str, codec: str, path: str) -> Iterator[bytes]:
    """Yield the decompressed bytes, a few MiB at a time.

    Args:
        local_path: The file.
        codec: Spark's name of the codec, or the class that it stands for.
        path: Name of the file in errors.

    Raises:
        CorruptionError: It is not of the codec, or a block does not match its checksum; or the
            system cannot read the file.
        IncompatibleError: The codec is not one of these.
    """
    short = codec.rpartition(".")[2].removesuffix("CompressionCodec").lower()
    read = _READERS.get(short)
    if read is None:
        raise IncompatibleError(
            "state is compressed by a codec that cannot be read",
            file=path,
            codec=codec,
            expected=", ".join(_READERS),
            to_fix="read the state by Spark's state reader; a query whose state has another codec "
            "begins with a new checkpoint",
        )
    yield from read(read_file(local_path), path)


def _lz4(data: pa.Buffer, path: str) -> Iterator[bytes]:
    codec = pa.Codec("lz4_raw")
    position = 0
    while position < data.size:
        blocks: list[bytes] = []
        checksums: list[int] = []
        start, num_bytes = position, 0
        while position < data.size and len(blocks) < _LZ4_BLOCKS and num_bytes < _LZ4_BYTES:
            if data.size - position < _LZ4_HEADER.size:
                raise _damaged(path, position, "the header of a block", "the end of the file")
            magic, token, held, size, checksum = _LZ4_HEADER.unpack(
                data[position : position + _LZ4_HEADER.size]
            )
            method = token & 0xF0
            if magic != _LZ4_MAGIC or method not in (_LZ4_RAW, _LZ4_COMPRESSED):
                raise _damaged(path, position, "LZ4Block", repr(magic))
            if not 0 <= size <= _MAX_BLOCK_BYTES or held < 0 or (size == 0) != (held == 0):
                raise _damaged(path, position, "sizes of a block", f"{held} and {size}")
            position += _LZ4_HEADER.size
            if held > data.size - position:
                raise _damaged(path, position, f"{held} bytes", f"{data.size - position}")
            block = data[position : position + held]
            if size:
                num_bytes += size
                blocks.append(_block(block, size, method, codec, path, position))
                checksums.append(checksum)
            position += held
        found = xxhash32(blocks, _LZ4_SEED) & _LZ4_CHECKED_BITS
        if found.tolist() != checksums:
            raise CorruptionError(
                "a block does not match its checksum",
                kind="checksum-mismatch",
                file=path,
                offset=start,
                expected=checksums,
                found=found.tolist(),
                to_fix=_TO_FIX,
            )
        yield b"".join(blocks)


def _block(
    block: pa.Buffer, size: int, method: int, codec: pa.Codec, path: str, position: int
) -> bytes:
    if method == _LZ4_RAW:
        if block.size != size:
            raise _damaged(path, position, f"{size} bytes", f"{block.size}")
        return block.to_pybytes()
    return _in_memory(codec, block, size, path, position)


def _in_memory(codec: pa.Codec, block: pa.Buffer, size: int, path: str, position: int) -> bytes:
    try:
        found: bytes = codec.decompress(block, size, asbytes=True)
    except MemoryError:  # pa.ArrowMemoryError is a pa.ArrowException
        raise
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, position, f"a block of {codec.name}", str(error)) from error
    return found


def _snappy(data: pa.Buffer, path: str) -> Iterator[bytes]:
    codec = pa.Codec("snappy")
    position = 0
    while position < data.size:
        if data[position : position + len(_SNAPPY_MAGIC)].to_pybytes() == _SNAPPY_MAGIC:
            position += _SNAPPY_HEADER_BYTES
            continue
        held = int.from_bytes(data[position : position + 4].to_pybytes())
        position += 4
        if position == 4 or not 0 < held <= data.size - position:
            raise _damaged(path, position, "a block of snappy", f"{held} bytes")
        block = data[position : position + held]
        yield _in_memory(codec, block, _snappy_size(block, path, position), path, position)
        position += held


def _snappy_size(block: pa.Buffer, path: str, position: int) -> int:
    """Return a block's uncompressed bytes: a number of 7 bits a byte."""
    size = 0
    for place, byte in enumerate(block[:5].to_pybytes()):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80 and size <= _MAX_BLOCK_BYTES:
            return size
    raise _damaged(path, position, f"at most {_MAX_BLOCK_BYTES} bytes", f"{size}")


def _zstd(data: pa.Buffer, path: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        while True:
            try:
                piece = stream.read(_PIECE_BYTES)
            except MemoryError:
                raise
            except (OSError, pa.ArrowException) as error:
                raise _damaged(path, 0, "frames of zstd", str(error)) from error
            if not piece:
                return
            yield piece


_TO_FIX = "put the file back from a copy; or read an older version"


def _damaged(path: str, offset: int, expected: str, found: str) -> CorruptionError:
    return CorruptionError(
        "a file is not compressed as Spark does",
        file=path,
        offset=offset,
        expected=expected,
        found=found,
        to_fix=_TO_FIX,
    )


_READERS: dict[str, Callable[[pa.Buffer, str], Iterator[bytes]]] = {
    "lz4": _lz4,
    "snappy": _snappy,
    "zstd": _zstd,
}
