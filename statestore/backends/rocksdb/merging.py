"""Merging durable files: several SSTs of a version's chain become one, beside the commits."""

from __future__ import annotations

import heapq
import operator
import tempfile
from typing import TYPE_CHECKING, cast

from rocksdict import IngestExternalFileOptions, Rdict

from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import local_errors
from statestore.checkpoint.commit import WRITER
from statestore.checkpoint.layout import store_of_ref
from statestore.checkpoint.lineage import check_ref, check_store, make_ref
from statestore.checkpoint.trailers import PublishedFile, read_trailer
from statestore.codec.rows import DELETE, PUT, Row
from statestore.codec.sealed_file import SealedFile, append_trailer
from statestore.codec.trailer import Trailer, compute_lineage
from statestore.core.errors import FencedError, InternalError
from statestore.core.options import StateStoreOptions
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocksdict import Options

    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.trailer import FileRef


def open_sst(location: StoreLocation, ref: FileRef) -> SealedFile:
    """Fetch, open and verify one referenced file.

    Raises:
        NotFoundError, CorruptionError, FencedError, IncompatibleError, StorageError:
            As `restore_version`.
    """
    path = location.path(ref.path)
    local_path = location.io.fetch(path)
    with named_errors("open a file", local_path):
        file = SealedFile(local_path)
    check_store(file.trailer, store_of_ref(location.store, ref), path)
    check_ref(file.trailer, file.size, ref, path)
    file.verify()
    return file


def read_rows(
    location: StoreLocation, ref: FileRef, memory: sst.Memory, scratch_directory: str
) -> Iterator[Row]:
    """Yield the rows of one durable file, in no order; deletes have key group 0.

    Raises:
        As `open_sst`; StorageError when the local disk failed.
    """
    file = open_sst(location, ref)
    with tempfile.TemporaryDirectory(prefix="read-", dir=scratch_directory) as directory:
        database = _database_of([file], directory, memory.options(StateStoreOptions()))
        try:
            for key, value in _own_rows(database, None, 1):
                family, short_key, group, short_value = sst.split_row(key, value)
                yield Row(group, family, PUT, short_key, short_value)
            for key in sst.read_deletes(file):
                family, short_key, group, _ = sst.split_row(key, None)
                yield Row(group, family, DELETE, short_key, None)
        finally:
            database.close()


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
    partition = trailer.store.partition if any(ref.is_foreign for ref in sources) else None
    with (
        tempfile.TemporaryDirectory(prefix="merge-", dir=scratch_directory) as directory,
        local_errors("merge SSTs", directory),
    ):
        files = [open_sst(location, ref) for ref in sources]
        database = _database_of(files, directory, sst_options)
        try:
            rows = _own_rows(database, partition, trailer.num_partitions)
            deleted = [] if is_whole else _deleted(files, database)
            if deleted:
                rows = heapq.merge(rows, deleted, key=operator.itemgetter(0))
            body = sst.write_body(rows, f"{directory}/body", sst_options)
        finally:
            database.close()
        if is_whole and body.rows.put != trailer.num_keys:
            raise InternalError(
                "the rows of a version are not as many as its trailer says",
                store=str(trailer.store),
                version=trailer.version,
                expected=trailer.num_keys,
                found=body.rows.put,
                to_fix="report it with the query's stateful operators; no snapshot was published",
            )
        return _publish(location, head, tuple(sources), body, is_whole=is_whole, sync=sync)


def _database_of(files: Sequence[SealedFile], directory: str, options: Options) -> Rdict:
    """Return a database of its own that holds what files make together, oldest first."""
    copies = [
        sst.extract_sst(file, f"{directory}/{number}.sst") for number, file in enumerate(files)
    ]
    database = Rdict(f"{directory}/db", options)
    paths = [path for path in copies if path is not None]
    if paths:
        move = IngestExternalFileOptions()
        move.set_move_files(True)
        database.ingest_external_file(paths, opts=move)
    return database


def _own_rows(
    database: Rdict, partition: int | None, num_partitions: int
) -> Iterator[sst.EncodedRow]:
    rows = cast("Iterator[tuple[bytes, bytes]]", database.items())
    if partition is None:
        return rows
    return (
        (key, value)
        for key, value in rows
        if int.from_bytes(value[: sst.KEY_GROUP_BYTES]) % num_partitions == partition
    )


def _deleted(files: Sequence[SealedFile], database: Rdict) -> list[sst.EncodedRow]:
    """Return the keys that the files delete together, in key order."""
    keys = {key for file in files for key in sst.read_deletes(file)}
    return [(key, None) for key in sorted(keys) if database.get(key) is None]


def _publish(
    location: StoreLocation,
    head: PublishedFile,
    sources: tuple[FileRef, ...],
    body: sst.SstBody,
    *,
    is_whole: bool,
    sync: bool,
) -> PublishedFile:
    of = head.trailer
    name = location.summary_name("snapshot" if is_whole else "merged", of.version, of.checkpoint_id)
    trailer = Trailer(
        kind="snapshot" if is_whole else "merged",
        writer=WRITER,
        store=of.store,
        backend=of.backend,
        version=of.version,
        checkpoint_id=of.checkpoint_id,
        checkpoint_format=of.checkpoint_format,
        parent=of.version_ref,
        lineage=compute_lineage(of.version_ref, body.blocks),
        files=sources,
        blocks=body.blocks,
        rows=body.rows,
        num_keys=of.num_keys,
        num_internal_keys=of.num_internal_keys,
        max_parallelism=of.max_parallelism,
        num_partitions=of.num_partitions,
        rescalable=of.rescalable,
        column_families=of.column_families,
    )
    size = append_trailer(body.path, trailer)
    try:
        location.io.publish(body.path, location.path(name), sync=sync, overwrite=False)
    except FencedError:
        # An engine that died, or another one, was first. Trailers may name its file already.
        existing = read_trailer(location, name)
        if existing.trailer.files != sources:
            raise
        return existing
    return PublishedFile(make_ref(name, trailer, size), trailer)
