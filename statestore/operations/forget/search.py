"""The search for keys in every byte of a checkpoint.

Twice, since neither way finds all: rows of state files are read, whatever compresses them, deleted
ones too; and the bytes of every file are searched as they are.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from statestore.checkpoint.layout import parse_state_file_name
from statestore.checkpoint.trailers import read_trailer
from statestore.codec.sealed_file import map_file
from statestore.core.text import format_bytes
from statestore.operations.forget.files import files_of, files_of_operator, rows_of_file
from statestore.operations.plan import no_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.forget.wanted import Wanted
    from statestore.operations.plan import Report

Where = Literal["row", "key", "value", "file"]
"""A row of the key, whatever its bytes; bytes of a row's key, of its value, of the file."""


_MOST_LINES = 20


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a key was found.

    Attributes:
        file: Path of the file.
        where: row, key, value or file.
    """

    file: str
    where: Where


@dataclass(frozen=True, slots=True)
class KeySearch:
    """What a search found.

    Attributes:
        num_keys: Keys that were looked for.
        num_plain_keys: Those of them that are next to nothing but zeros, such as small numbers:
            looked for as keys of rows, not in other bytes.
        num_files: Files that were searched: every file of the checkpoint.
        num_bytes: Their bytes.
        num_rows: Rows of state files that were read, in whatever version.
        num_row_bytes: Bytes of those rows' keys and values, decompressed.
        hits: What was found, each file and place once.
    """

    num_keys: int
    num_plain_keys: int
    num_files: int
    num_bytes: int
    num_rows: int
    num_row_bytes: int
    hits: tuple[Hit, ...]

    def describe(self) -> str:
        """Return it in words."""
        found = f"found in {len({hit.file for hit in self.hits})} files" if self.hits else "none"
        searched = (
            f"{self.num_keys} keys searched in {self.num_files} files, "
            f"{format_bytes(self.num_bytes)}, and {self.num_rows:,} rows of them, "
            f"{format_bytes(self.num_row_bytes)}: {found}"
        )
        plain = [
            f"{self.num_plain_keys} keys are too plain for a search of bytes; no row has them."
        ]
        return "\n".join(
            [
                *(f"{hit.where} in {hit.file}" for hit in self.hits[:_MOST_LINES]),
                searched,
                *(plain if self.num_plain_keys and not self.hits else ()),
            ]
        )

    def fields(self) -> dict[str, Any]:
        """Return the attributes by name: for JSON."""
        return asdict(self)


def search(checkpoint: OpenCheckpoint, operator: int, wanted: Wanted) -> KeySearch:
    """Look for keys in every file of a checkpoint; nothing is changed.

    Args:
        checkpoint: The checkpoint.
        operator: Operator ID.
        wanted: The keys; those that a condition finds are noted there.

    Raises:
        InvalidArgumentError, CorruptionError, IncompatibleError, NotFoundError, StorageError: As
            `find_rows`, and where a file cannot be read.
    """
    hits: dict[Hit, None] = {}
    for file in [one for one in files_of_operator(checkpoint, operator) if one.is_state][:1]:
        wanted.prepare(
            file.location.store.name, read_trailer(file.location, file.info.name).trailer
        )
    if not wanted.encoded:
        # What is searched for is known only when the rows were read once.
        hits = dict.fromkeys(
            Hit(path, "row") for path, _ in find_rows(checkpoint, operator, wanted)
        )
    needles = wanted.bytes_to_search
    pattern = re.compile(b"|".join(map(re.escape, needles))) if needles else None
    stores = {file.path: file.location.store for file in files_of_operator(checkpoint, operator)}
    num_files = num_bytes = num_rows = num_row_bytes = 0
    for io, path in files_of(checkpoint):
        local_path = io.fetch(path)
        data = _mapped(local_path)
        num_files += 1
        num_bytes += len(data)
        if pattern is not None and pattern.search(data):
            hits[Hit(path, "file")] = None
        if parse_state_file_name(path.rpartition("/")[2]) is None:
            continue
        for trailer, batch in rows_of_file(checkpoint, path, local_path):
            num_rows += batch.num_rows
            if path in stores and wanted.find_any(batch, stores[path].name, trailer):
                hits[Hit(path, "row")] = None
            columns: tuple[tuple[Where, pa.Array[Any]], ...] = (
                ("key", batch.column(3)),
                ("value", batch.column(4)),
            )
            for where, column in columns:
                held = _bytes_of(column)
                num_row_bytes += len(held)
                if pattern is not None and pattern.search(held):
                    hits[Hit(path, where)] = None
    return KeySearch(
        len(wanted.encoded),
        wanted.num_plain,
        num_files,
        num_bytes,
        num_rows,
        num_row_bytes,
        tuple(hits),
    )


def find_rows(
    checkpoint: OpenCheckpoint, operator: int, wanted: Wanted, report: Report = no_report
) -> Iterator[tuple[str, int]]:
    """Yield the state files of an operator that have rows of keys, and how many.

    Args:
        checkpoint: The checkpoint.
        operator: Operator ID.
        wanted: The keys, which are noted there.
        report: Called with the files read and their number.

    Raises:
        InvalidArgumentError: There is no such operator, or what is given is no key of it.
        CorruptionError, IncompatibleError, NotFoundError, StorageError: A file cannot be read.
    """
    files = [file for file in files_of_operator(checkpoint, operator) if file.is_state]
    for number, file in enumerate(files):
        num_found = 0
        local_path = file.location.io.fetch(file.path)
        for trailer, batch in rows_of_file(checkpoint, file.path, local_path):
            num_found += wanted.find_any(batch, file.location.store.name, trailer)
        report(number + 1, len(files))
        if num_found:
            yield file.path, num_found


def _mapped(local_path: str) -> memoryview:
    from pathlib import Path

    # An empty file cannot be mapped.
    return memoryview(map_file(local_path)) if Path(local_path).stat().st_size else memoryview(b"")


def _bytes_of(column: pa.Array[Any]) -> memoryview:
    """Return the bytes of a binary column's values, one after the other."""
    _, offsets, data = column.buffers()
    if data is None or offsets is None or not len(column):
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]
