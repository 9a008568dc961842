"""Merging durable files: several SSTs of a version's chain become one, beside the commits.

`merge_files` takes these steps:

1. Each source is fetched and verified, and its SST is copied, since ingesting moves a file. Rows
   that do not count are left out of the copy where another file tells them anew (`lay_out`).
2. The copies are ingested into a database of its own, oldest first: a file that comes later hides
   what is there. RocksDB then shows the newest row of each key, and no key whose newest row is a
   delete.
3. Its rows are written as one body, in key order. A snapshot begins a chain, so it needs no
   deletes. A merged file stands in the middle of one, where files below may have the key: each key
   that a source deletes and the database does not show becomes a delete of the merged file. So
   rows and deletes have no key in common. Files that a rescale took over delete keys of other
   state partitions: they are merged as a snapshot only (`chain`).
4. The file is published, last and in one call. No version names it yet: the next commit does so in
   its trailer. Killed before, a merge leaves nothing but scratch.

Commits and reads run beside all of it, since durable files never change and the database is not
the store's. Another engine may merge the same files: the first to publish wins, and the second
takes the file that is there, unless that was made of others; it replaces a damaged one. Retention
keeps the sources as long as a version names them.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import shutil
import tempfile
from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
from rocksdict import Rdict

from statestore.backends.database_rows import MOST_ROWS, all_pieces
from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import ingest_files, local_errors
from statestore.checkpoint.layout import store_of_path
from statestore.checkpoint.lineage import check_ref, check_store
from statestore.checkpoint.snapshot import check_num_rows, publish_summary, summary_trailer
from statestore.checkpoint.trailers import PublishedFile
from statestore.codec.rows import DELETE, MAX_BLOCK_ROWS, SCHEMA, from_numpy
from statestore.codec.sealed_file import SealedFile
from statestore.core.options import StateStoreOptions
from statestore.io.fetch_cache import open_fetched
from statestore.io.file_io import existing_file
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocksdict import Options

    from statestore.backends.database_rows import Rows
    from statestore.backends.rocksdb.database_memory import DatabaseMemory
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.references import FileRef
    from statestore.core.key_groups import KeyGroupSet


def open_sst(location: StoreLocation, ref: FileRef) -> SealedFile:
    """Fetch, open and verify one referenced file, as `open_fetched`.

    Raises:
        NotFoundError, CorruptionError, FencedError, IncompatibleError, StorageError:
            As `load_files`.
    """
    path = location.path(ref.path)

    def verified(local_path: str) -> SealedFile:
        with named_errors("open a file", local_path):
            file = SealedFile(local_path, path)
        check_store(file.trailer, store_of_path(location.store, ref.path), path)
        check_ref(file.trailer, ref, path)
        file.verify()
        return file

    return open_fetched(lambda: location.io.fetch(path), verified)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The SST of a durable file as a file of its own.

    Attributes:
        path: The SST, None where it has no rows.
        is_mixed: Whether it has rows of other state partitions.
    """

    path: str | None
    is_mixed: bool = False


def lay_out(
    file: SealedFile, ref: FileRef, owned: KeyGroupSet, path: str, options: Options
) -> LaidOut:
    """Copy the SST of a durable file for a database of a state partition.

    Readers of the database skip foreign rows of a file that a rescale took over, since a row has
    its key group. Only rows of the partition itself that another file has anew, from a merge that
    passed on no deletes, are left out of the copy. Keys that the file deletes stay: files are
    ingested in the order of their versions, so a put of such a key by the partition that it moved
    to comes later.

    Args:
        file: The durable file.
        ref: How the version names it.
        owned: The key groups of the state partition.
        path: The copy.
        options: Of the SST.

    Raises:
        StorageError: The local disk failed.
    """
    has = file.trailer.key_groups
    with local_errors("write to the local disk", path):
        if ref.clip is None or has & owned == ref.clip:
            is_mixed = ref.clip is not None and ref.clip != has
            return LaidOut(sst.extract_sst(file, path), is_mixed)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=Path(path).parent) as directory:
            copy = sst.extract_sst(file, f"{directory}/1.sst")
            database = database_of([copy], directory, options)
            try:
                pieces = _with_deletes(_pieces(database, ref.clip), sst.read_deletes(file))
                rows = chain.from_iterable(pieces)
                body = sst.write_body(rows, f"{directory}/body", options)
            finally:
                database.close()
            if body.sst_path is None:
                return LaidOut(None)
            return LaidOut(str(Path(body.sst_path).rename(path)))


def read_file(
    file: SealedFile, scratch_directory: str, options: StateStoreOptions, memory: DatabaseMemory
) -> Iterator[pa.RecordBatch]:
    """Yield every row of one durable file, puts, then deletes, whose key group is 0.

    See FileForm.rows_of_file. The database is in scratch_directory, and gone after the last row.
    """
    with tempfile.TemporaryDirectory(prefix="file-", dir=scratch_directory) as directory:
        copy = sst.extract_sst(file, f"{directory}/1.sst")
        if copy is not None:
            with local_errors("open a file", directory):
                database = database_of([copy], directory, memory.options(options))
            try:
                yield from sst.decode_rows(all_pieces(database))
            finally:
                database.close()
    yield from deleted_rows(file)


def deleted_rows(file: SealedFile) -> Iterator[pa.RecordBatch]:
    """Yield the deletes of one durable file as `read_file` does."""
    deletes = sst.read_deletes(file)
    while deleted := list(islice(deletes, MAX_BLOCK_ROWS)):
        encoded = [(key, bytes(sst.KEY_GROUP_BYTES)) for key in deleted]
        (puts,) = sst.decode_rows([encoded])
        columns = [
            *puts.columns[:2],
            from_numpy(np.full(len(deleted), DELETE, np.uint8), pa.uint8()),
            puts.column(3),
            pa.nulls(len(deleted), pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def merge_files(
    location: StoreLocation,
    head: PublishedFile,
    sources: Sequence[FileRef],
    *,
    is_whole: bool,
    scratch_directory: str,
    sst_options: Options,
    sync: bool,
) -> PublishedFile:
    """Write and publish the file that stands for a run of files at the end of a version's chain.

    Args:
        location: The store.
        head: The delta of the version.
        sources: The run, oldest first.
        is_whole: Whether it is the whole chain: a snapshot, which needs to pass on no deletes.
        scratch_directory: Local directory for the file while it is written.
        sst_options: Of the SST.
        sync: Whether to wait for the disk.

    Guarantee: on return the file is durable; after a raise nothing was published, or the same file.

    Raises:
        NotFoundError, CorruptionError: A source cannot be read.
        InternalError: The rows of a snapshot are not as many as the version says.
        FencedError: The file is there already, and was made of other files.
        StorageError: The storage or the local disk failed.
    """
    trailer = head.trailer
    owned = trailer.key_groups
    internal = [family.id for family in trailer.column_families if family.internal]
    num_internal = 0

    def counted(pieces: Iterator[Rows]) -> Iterator[Rows]:
        nonlocal num_internal
        for piece in pieces:
            first, last = (sst.family_of(piece[at][0]) for at in (0, -1))
            if first == last:  # as of most pieces
                num_internal += len(piece) * (first in internal)
            else:
                num_internal += sum(sst.family_of(key) in internal for key, _ in piece)
            yield piece

    with (
        tempfile.TemporaryDirectory(prefix="merge-", dir=scratch_directory) as directory,
        local_errors("merge SSTs", directory),
    ):
        files = [open_sst(location, ref) for ref in sources]
        laid_out = [
            lay_out(file, ref, owned, f"{directory}/{number}.sst", sst_options)
            for number, (file, ref) in enumerate(zip(files, sources, strict=True))
        ]
        database = database_of([copy.path for copy in laid_out], directory, sst_options)
        try:
            is_mixed = any(copy.is_mixed for copy in laid_out)
            pieces = _pieces(database, owned if is_mixed else None)
            if is_whole and internal:
                pieces = counted(pieces)
            deletes = [] if is_whole else [file for file in files if file.trailer.rows.delete]
            rows = chain.from_iterable(_with_deletes(pieces, _deleted(deletes)))
            body = sst.write_body(rows, f"{directory}/body", sst_options, keeps_sst=False)
        finally:
            database.close()
        shutil.rmtree(f"{directory}/db")  # the upload may take long
        if is_whole:
            check_num_rows(trailer, body.rows.put)
        counts = (body.rows.put, num_internal) if is_whole else None
        return _publish(location, head, tuple(sources), body, counts, sync=sync)


def database_of(copies: Sequence[str | None], directory: str, options: Options) -> Rdict:
    """Return a database of its own that holds what SSTs make together, oldest first."""
    database = Rdict(f"{directory}/db", options)
    ingest_files(database, filter(None, copies))
    return database


def _pieces(database: Rdict, key_groups: KeyGroupSet | None) -> Iterator[Rows]:
    """Yield the rows whose key group is in a set, in key order; all where it is None."""
    pieces = all_pieces(database)
    if key_groups is None:
        return pieces
    return filter(None, (list(sst.rows_in(piece, key_groups)) for piece in pieces))


def _deleted(files: Sequence[SealedFile]) -> Iterator[bytes]:
    """Yield the keys that files delete, each once, in key order."""
    keys = heapq.merge(*map(sst.read_deletes, files))
    return (key for key, _ in itertools.groupby(keys))


def _with_deletes(
    pieces: Iterator[Rows], deleted: Iterator[bytes]
) -> Iterator[Sequence[sst.EncodedRow]]:
    """Yield rows, and a delete of each deleted key that no row has, all in key order.

    Both are taken some at a time, of which one that lies before the other passes as it is.
    """
    chunks = iter(lambda: list(islice(deleted, MOST_ROWS)), [])
    piece: Rows = next(pieces, ())
    chunk = next(chunks, [])
    while piece and chunk:
        until = min(piece[-1][0], chunk[-1])
        num_rows = bisect_right(piece, until, key=operator.itemgetter(0))
        num_keys = bisect_right(chunk, until)
        rows: dict[bytes, bytes | None] = dict.fromkeys(chunk[:num_keys])
        rows.update(piece[:num_rows])
        yield sorted(rows.items()) if num_keys else piece[:num_rows]
        piece = piece[num_rows:] or next(pieces, ())
        chunk = chunk[num_keys:] or next(chunks, [])
    if piece:
        yield piece
        yield from pieces
    for keys in chain([chunk], chunks):
        yield [(key, None) for key in keys]


def _publish(
    location: StoreLocation,
    head: PublishedFile,
    sources: tuple[FileRef, ...],
    body: sst.SstBody,
    counts: tuple[int, int] | None,
    *,
    sync: bool,
) -> PublishedFile:
    """Publish a merged file; a snapshot where the counts of all and of internal rows are given."""
    of = head.trailer
    is_whole = counts is not None
    kind: Literal["snapshot", "merged"] = "snapshot" if is_whole else "merged"
    name = location.summary_name(kind, of.version, of.checkpoint_id)
    known = counts or (of.num_keys, of.num_internal_keys)
    trailer = summary_trailer(of, kind, sources, body.blocks, body.rows, known)
    published = publish_summary(location, name, trailer, body.path, open_sst, sync=sync)
    # A snapshot replaces all files of its version, whatever it was made of.
    is_same = is_whole and published.trailer.parent == of.version_ref
    if published.trailer.files != sources and not is_same:
        raise existing_file(location.path(name))
    return published
