"""Checksum files beside Spark's files, checked where present.

    .<file>.crc   Hadoop's, on a local disk only: crc, 0 | bytes u32 BE | CRC32 u32 BE of each so
                  many bytes of the file
    <file>.crc    Spark's own, in checkpoint format v2: JSON with the CRC32C of the whole file

Source: Hadoop's ChecksumFileSystem, and ChecksumCheckpointFileManager of Spark 4.1 and later.
"""

from __future__ import annotations

import struct
import zlib

from statestore.codec.sealed_file import MappedFile, read_file
from statestore.core.errors import CorruptionError
from statestore.core.json_fields import MalformedError, parse_fields

_HADOOP = struct.Struct(">4sI")
_HADOOP_MAGIC = b"crc\0"


def check_hadoop(local_path: str, checksums: bytes, path: str, name: str) -> None:
    """Check a file by Hadoop's checksum file.

    Args:
        local_path: The file.
        checksums: Content of the checksum file.
        path: Name of the file in errors.
        name: Name of the checksum file there.

    Raises:
        CorruptionError: It does not match; or the checksum file is none.
    """
    data = read_file(local_path)
    magic, step = _HADOOP.unpack(checksums[: _HADOOP.size].ljust(_HADOOP.size, b"\0"))
    num_sums = -(-data.size // step) if step else 0
    if not step or magic != _HADOOP_MAGIC or len(checksums) != _HADOOP.size + 4 * num_sums:
        expected_sums = f"{num_sums} checksums of {step} bytes"
        raise _mismatch(path, name, 0, expected_sums, f"{len(checksums)} bytes")
    view = memoryview(data)
    for place, expected in enumerate(struct.unpack_from(f">{num_sums}I", checksums, _HADOOP.size)):
        found = zlib.crc32(view[place * step : (place + 1) * step])
        if found != expected:
            raise _mismatch(path, name, place * step, expected, found)


def check_spark(local_path: str, checksums: bytes, path: str, name: str) -> None:
    """Check a file by Spark's own checksum file; arguments and errors as `check_hadoop`."""
    try:
        fields = parse_fields(checksums)
        if fields.text("algorithm") != "CRC32C":
            return
        expected = fields.integer("value", -(1 << 31)) & 0xFFFFFFFF
        size = fields.integer("mainFileSize")
    except MalformedError as error:
        raise _mismatch(path, name, 0, "a checksum file", str(error)) from error
    file = MappedFile(local_path)
    found = file.checksum(0, file.size)
    if (file.size, found) != (size, expected):
        raise _mismatch(path, name, 0, f"{size} bytes, {expected}", f"{file.size} bytes, {found}")


def _mismatch(
    path: str, name: str, offset: int, expected: object, found: object
) -> CorruptionError:
    return CorruptionError(
        "a file does not match its checksum file",
        kind="checksum-mismatch",
        file=path,
        checksum_file=name,
        offset=offset,
        expected=expected,
        found=found,
        to_fix="where the query has since run without such files, under an older Spark or on "
        "another storage, delete the checksum file; else put both files back from a copy, or read "
        "an older version",
    )
