"""Small files of a checkpoint, most of them Spark's: which a path is, read and written whole."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from statestore.core.errors import CorruptionError, NotFoundError
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.io.file_io import FileIO

SparkFile = Literal["query-id", "offsets", "commits", "sources", "operator", "schema"]
"""The query's ID, an entry of either log, a file of a source, the metadata of an operator, a state
schema."""

_MAX_BYTES = 64 * 1024 * 1024
_VERSION = re.compile("v[1-9][0-9]*")
_SPARK_FILES: tuple[tuple[re.Pattern[str], SparkFile], ...] = (
    (re.compile(r"/offsets/[0-9]+$"), "offsets"),
    (re.compile(r"/commits/[0-9]+$"), "commits"),
    (re.compile(r"/_metadata/(metadata$|v2/)"), "operator"),
    (re.compile(r"/(_stateSchema/|_metadata/schema$)"), "schema"),
    (re.compile(r"^sources/"), "sources"),
    (re.compile(r"(^|/)metadata$"), "query-id"),
)
"""The first that is found in a path says what it is. A source's is named from the checkpoint on."""


def spark_file_of(path: str) -> SparkFile | None:
    """Return which of Spark's files of a checkpoint a path is, None for none of them."""
    return next((kind for form, kind in _SPARK_FILES if form.search(path)), None)


def read_text(io: FileIO, path: str) -> str:
    """Return a small text file.

    Raises:
        NotFoundError: It is not there.
        CorruptionError: It is no text.
        StorageError: The storage failed.
    """
    data = read_bytes(io, path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise damaged(path, data.decode(errors="backslashreplace"), error.start) from error


def read_bytes(io: FileIO, path: str) -> bytes:
    """Return a file as it is, in one request if it is small; errors as `read_text`, but for damage.

    Spark's compacted log of a source has a line for each file that it ever read.
    """
    data, size = io.read_tail(path, _MAX_BYTES)
    if len(data) == size:
        return data
    with named_errors("read a file of the checkpoint", path):
        return Path(io.fetch(path)).read_bytes()


def try_read_bytes(io: FileIO, path: str) -> bytes | None:
    """Return a file as it is, None where there is none; errors as `read_bytes`."""
    try:
        return read_bytes(io, path)
    except NotFoundError:
        return None


def write_text(io: FileIO, path: str, text: str, *, overwrite: bool) -> None:
    """Write one of Spark's text files, durably and whole.

    The hidden checksum file that Hadoop keeps beside a local file is deleted first, even if its
    file is gone: it would not match, and Hadoop reads a file without one.

    Raises:
        FencedError: A file is there and overwrite is False.
        StorageError: The storage failed.
    """
    write_bytes(io, path, text.encode(), overwrite=overwrite)


def write_bytes(io: FileIO, path: str, data: bytes, *, overwrite: bool) -> None:
    """Write one of Spark's files as `write_text` does, of any bytes."""
    if overwrite or not _exists(io, path):
        io.delete(checksum_path(path))
    io.make_directory(posixpath.dirname(path))
    io.write(path, data, sync=True, overwrite=overwrite)


def delete_file(io: FileIO, path: str) -> None:
    """Delete one of Spark's files, if it is there; its checksum never outlives it."""
    io.delete(checksum_path(path))
    io.delete(path)


def _exists(io: FileIO, path: str) -> bool:
    try:
        io.read_tail(path, 1)
    except NotFoundError:
        return False
    return True


def checksum_path(path: str) -> str:
    """Return the path of the checksum file that Hadoop keeps beside a local file."""
    directory, name = posixpath.split(path)
    return f"{directory}/.{name}.crc"


def lines_of(text: str, path: str) -> list[str]:
    """Return the lines of one of Spark's files: the version of its form, and at least one more.

    Raises:
        CorruptionError: It has none, or no version.
    """
    lines = text.rstrip("\n").split("\n")
    if len(lines) < 2 or _VERSION.fullmatch(lines[0]) is None:
        raise damaged(path, text)
    return lines


def compact(fields: Mapping[str, Any]) -> str:
    """Return a JSON object as Spark writes it, in one line."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def damaged(path: str, text: str, offset: int = 0) -> CorruptionError:
    """Return the error for one of these files with wrong content."""
    return CorruptionError(
        "a file of the checkpoint is not in Spark's form",
        file=path,
        offset=offset,
        expected="a JSON object, in a log after a version line",
        found=text[:100],
        to_fix=to_fix_file(path),
    )


def to_fix_file(path: str) -> str:
    """Return the fix for such a file that is missing or damaged.

    Where an operator's metadata is in version 1, Spark writes it anew; of version 2 it needs what
    was there.
    """
    copied = "put the file back from a copy"
    kind = spark_file_of(path)
    if kind in ("offsets", "commits"):
        return f"{copied}; or take out a log's entry and all later ones with `statestore repair`"
    if kind == "operator" and path.endswith("/_metadata/metadata"):
        return (
            f"{copied}; else delete what there is of it, on a local disk also .metadata.crc beside "
            "it, and run a batch of the query, which writes it, as the first one after a restore "
            "with --add-operator does"
        )
    return copied
