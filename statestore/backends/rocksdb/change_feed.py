"""The change feed of a store: the rows of each delta, in files that the shim reads."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
from rocksdict import Rdict

from statestore.backends.rocksdb.database import ingest_files, local_errors
from statestore.backends.rocksdb.merging import deleted_rows, lay_out, open_sst, read_file
from statestore.backends.rocksdb.sst import KEY_GROUP_BYTES, encode_key, extract_sst
from statestore.checkpoint.load import ChangeFile, check_first_change
from statestore.checkpoint.trailers import PublishedFile, read_trailer
from statestore.codec.rows import (
    MERGE,
    SCHEMA,
    Row,
    batch_from_rows,
    pick,
    split_for_blocks,
    to_numpy,
)
from statestore.core.options import StateStoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocksdict import Options

    from statestore.backends.rocksdb.database_memory import DatabaseMemory
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.references import FileRef
    from statestore.codec.trailer import Trailer
    from statestore.core.key_groups import KeyGroupSet


def write_change_feed(
    location: StoreLocation,
    deltas: tuple[FileRef, ...],
    start_version: int,
    directory: str,
    memory: DatabaseMemory,
) -> list[ChangeFile]:
    """Write the deltas of a range of versions to local files; oldest first.

    Those of a store without lists are copies of the SSTs, which the shim reads itself. Of a key
    with several values a delta has them all. If a batch only added some, the file has those as a
    merge: for that the state before the range is read too.

    Args:
        location: The store.
        deltas: Those from start_version on, oldest first.
        start_version: First version, at least 1.
        directory: Where the files go, made unless it is there; the caller removes it, also after a
            raise.
        memory: For the SSTs read.

    Raises:
        NotFoundError: One of the versions was expired.
        IncompatibleError: The first one was written whole.
        CorruptionError, FencedError, StorageError: A file cannot be read; the local disk failed.
    """
    with local_errors("write to the local disk", directory):
        Path(directory).mkdir(parents=True, exist_ok=True)
    check_first_change(location, deltas, start_version)
    files = [read_trailer(location, ref.path) for ref in deltas]
    with ExitStack() as stack:
        lists = None
        if any(family.multi_values for file in files for family in file.trailer.column_families):
            lists = stack.enter_context(_lists_before(location, files[0], memory, directory))
        return [_write(location, file, directory, memory, lists) for file in files]


class _Lists:
    """The lists before a delta, which itself has whole lists, however few values are new."""

    def __init__(self, location: StoreLocation, directory: str, options: Options) -> None:
        self._location = location
        self._directory = directory
        self._options = options
        self._database = Rdict(f"{directory}/db", options)

    def follow(self, refs: Iterable[FileRef], owned: KeyGroupSet) -> None:
        """Take in files that lead to the next version, oldest first."""
        path = f"{self._directory}/next.sst"
        for ref in refs:
            copy = lay_out(open_sst(self._location, ref), ref, owned, path, self._options)
            ingest_files(self._database, filter(None, [copy.path]))

    def without_known(self, batch: pa.RecordBatch, trailer: Trailer) -> Iterator[pa.RecordBatch]:
        """Yield rows with a put of a list that only adds values as a merge of them."""
        of_lists = [family.id for family in trailer.column_families if family.multi_values]
        is_list = np.isin(to_numpy(batch.column(1), np.uint16), of_lists)
        yield pick(batch, ~is_list)
        lists = pick(batch, is_list)
        rows = (self._without_known(Row(**row)) for row in lists.to_pylist())
        yield batch_from_rows(rows, trailer.max_parallelism)

    def _without_known(self, row: Row) -> Row:
        before = self._database.get(encode_key(row.column_family, row.key))
        known = before[KEY_GROUP_BYTES:] if before is not None else b""
        if row.value is None or not known or row.value == known or not row.value.startswith(known):
            return row
        return replace(row, op=MERGE, value=row.value[len(known) :])

    def close(self) -> None:
        self._database.close()


@contextmanager
def _lists_before(
    location: StoreLocation, delta: PublishedFile, memory: DatabaseMemory, scratch_directory: str
) -> Iterator[_Lists]:
    with tempfile.TemporaryDirectory(prefix="lists-", dir=scratch_directory) as directory:
        lists = _Lists(location, directory, memory.options(StateStoreOptions(), is_kept=True))
        try:
            lists.follow(delta.trailer.files, delta.trailer.key_groups)
            yield lists
        finally:
            lists.close()


def _write(
    location: StoreLocation,
    file: PublishedFile,
    directory: str,
    memory: DatabaseMemory,
    lists: _Lists | None,
) -> ChangeFile:
    trailer = file.trailer
    path = f"{directory}/{trailer.version}.arrows"
    with (
        local_errors("write to the local disk", path),
        tempfile.TemporaryDirectory(prefix="rows-", dir=directory) as scratch,
        ipc.new_stream(path, SCHEMA) as stream,
    ):
        sealed = open_sst(location, file.ref)
        sst_path = None
        if lists is None:
            sst_path = extract_sst(sealed, f"{directory}/{trailer.version}.sst")
            batches = deleted_rows(sealed)
        else:
            rows = read_file(sealed, scratch, StateStoreOptions(), memory)
            batches = (part for batch in rows for part in lists.without_known(batch, trailer))
        for batch in batches:
            for block in split_for_blocks(batch):
                stream.write_batch(block)
        if lists is not None:
            lists.follow([file.ref], trailer.key_groups)
    return ChangeFile(trailer, path, sst_path)
