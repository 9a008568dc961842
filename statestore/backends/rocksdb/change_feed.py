"""The change feed of a store: the rows of each delta, as Arrow files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.ipc as ipc

from statestore.backends.rocksdb.database import local_errors
from statestore.backends.rocksdb.merging import read_rows
from statestore.checkpoint.restore import check_first_change
from statestore.checkpoint.trailers import PublishedFile, read_trailer
from statestore.codec.rows import SCHEMA, batch_from_rows, split_for_blocks
from statestore.codec.sealed_file import append_trailer
from statestore.codec.state_file import StateFile, describe_stream
from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from statestore.backends.rocksdb.sst import Memory
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.trailer import FileRef


def write_changes(
    location: StoreLocation,
    deltas: tuple[FileRef, ...],
    start_version: int,
    directory: str,
    memory: Memory,
) -> list[tuple[int, StateFile]]:
    """Write the deltas of a range of versions as Arrow files; oldest first.

    Args:
        location: The store.
        deltas: Those from start_version on, oldest first.
        start_version: First version, at least 1.
        directory: Where the files go, made unless it is there; the caller removes it, also after a
            raise.
        memory: For the SSTs read.

    Raises:
        NotFoundError: One of the versions was expired.
        IncompatibleError: One was written whole.
        CorruptionError, FencedError, StorageError: A file cannot be read; the local disk failed.
    """
    with local_errors("write to the local disk", directory):
        Path(directory).mkdir(parents=True, exist_ok=True)
    files = [read_trailer(location, ref.path) for ref in deltas]
    for file in files:
        if file.trailer.parent is not None and not file.trailer.files:
            raise IncompatibleError(
                "a version was written whole: its changes are not known",
                store=str(location.store),
                version=file.trailer.version,
                to_fix="leave out spark.sql.streaming.stateStore.rocksdb.incremental=false for "
                "a query whose change feed is to be read",
            )
    check_first_change(location, deltas, start_version)
    return [(file.trailer.version, _write(location, file, directory, memory)) for file in files]


def _write(
    location: StoreLocation, file: PublishedFile, directory: str, memory: Memory
) -> StateFile:
    trailer = file.trailer
    path = f"{directory}/{trailer.version}.arrows"
    with local_errors("write to the local disk", path):
        rows = list(read_rows(location, file.ref, memory, directory))
        batch = batch_from_rows(rows, trailer.max_parallelism)
        with ipc.new_stream(path, SCHEMA) as stream:
            for block in split_for_blocks(batch):
                stream.write_batch(block)
    blocks = describe_stream(path, Path(path).stat().st_size, trailer.max_parallelism)
    append_trailer(path, replace(trailer, blocks=blocks))
    return StateFile(path)
