"""SST files as the form of state files: of the rocksdb backend."""

from __future__ import annotations

import heapq
import operator
import tempfile
from itertools import chain
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.backends.form import FileForm
from statestore.backends.rocksdb import sst
from statestore.backends.rocksdb.database import local_errors
from statestore.backends.rocksdb.database_memory import DatabaseMemory
from statestore.backends.rocksdb.merging import read_file
from statestore.backends.rocksdb.versions import RocksDBVersions
from statestore.backends.rocksdb.view import View
from statestore.checkpoint.commit import Body
from statestore.checkpoint.lineage import check_ref
from statestore.codec.merge import interleave
from statestore.codec.rows import rows_in
from statestore.codec.sealed_file import SealedFile
from statestore.codec.sorting import sort_into_runs
from statestore.codec.trailer import Block, compute_lineage
from statestore.core.key_groups import KeyGroupSet
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from statestore.backends.form import Work
    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.merge import SortedRun
    from statestore.codec.trailer import Trailer
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions


class SstForm(FileForm):
    """Rows in the order of column family and key, in a table of RocksDB.

    Args:
        options: Their `rocksdb.memoryBytes` is the memory of all databases of it.
    """

    is_by_key = True

    def __init__(self, options: StateStoreOptions) -> None:
        self._memory = DatabaseMemory(options.rocksdb_memory_bytes)

    def rows(
        self,
        location: StoreLocation,
        head: PublishedFile,
        work: Work,
        family: int | None = None,
        key_group: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a version in order of column family and key."""
        rows = self._read(location, head, work, family)
        if key_group is None:
            return rows
        wanted = KeyGroupSet(head.trailer.max_parallelism, key_group)
        return (rows_in(batch, wanted) for batch in rows)

    def _read(
        self, location: StoreLocation, head: PublishedFile, work: Work, family: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from a database in the scratch directory, gone after the last one."""
        trailer = head.trailer
        checkpoint_id = trailer.checkpoint_id if trailer.checkpoint_format >= 2 else None
        with tempfile.TemporaryDirectory(prefix="rows-", dir=work.scratch_directory) as directory:
            versions = RocksDBVersions(location, work.clock, directory, self._memory)
            try:
                local = versions.load(trailer.version, checkpoint_id, None, work.options)
                # In format 1 another attempt's file has the same name.
                check_ref(local.head.trailer, head.ref, location.path(head.ref.path))
            finally:
                # The view stays. RocksDB would go on to compact a database that is not closed.
                versions.forget_heads()
            view = View(local.view, local.owned)
            try:
                yield from view.batches(family)
            finally:
                view.close()

    def runs(self, location: StoreLocation, head: PublishedFile, work: Work) -> Sequence[SortedRun]:
        """Return the rows of a version, sorted on the local disk."""
        directory = tempfile.mkdtemp(prefix="runs-", dir=work.scratch_directory)
        with named_errors("sort rows in the scratch directory", directory):
            rows = self.rows(location, head, work)
            return sort_into_runs(rows, head.trailer.max_parallelism, directory, is_by_key=True)

    def rows_of_file(
        self, path: str, local_path: str, work: Work
    ) -> Iterator[tuple[Trailer, pa.RecordBatch]]:
        """Yield its puts, then its deletes."""
        with named_errors("open a file", local_path):
            sealed = SealedFile(local_path, path)
        sealed.verify()
        for batch in read_file(sealed, work.scratch_directory, work.options, self._memory):
            yield sealed.trailer, batch

    def sorted_rows(
        self, rows: Iterator[pa.RecordBatch], max_parallelism: int, work: Work
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as they come: RocksDB sorts them."""
        del max_parallelism, work
        return rows

    def stream_compression(self, options: StateStoreOptions) -> str:
        """Return none: the stream is read once more."""
        del options
        return "none"

    def full_body(self, new: NewVersion, path: str, work: Work) -> Body:
        """Return a table of the stream's rows, which are sorted on the local disk."""
        del new
        directory = tempfile.mkdtemp(prefix="sst-", dir=work.scratch_directory)
        options = self._memory.options(work.options)
        with (
            ipc.open_stream(pa.memory_map(path)) as stream,
            local_errors("write a full state", directory),
        ):
            runs = sort_into_runs(iter(stream), None, directory)
            rows = chain.from_iterable(map(sst.encode_rows, interleave(runs, None)))
            body = sst.write_body(rows, f"{directory}/body", options, keeps_sst=False)
        return Body(body.path, body.blocks, body.rows, compute_lineage(None, body.blocks))

    def write_changes(
        self,
        puts: Sequence[pa.RecordBatch],
        deletes: Iterable[pa.RecordBatch],
        path: str,
        max_parallelism: int,
        work: Work,
    ) -> Callable[[NewVersion], Body]:
        """Write them in the order of their keys."""
        del max_parallelism
        checksum = 0

        def summed(rows: Iterable[sst.EncodedRow]) -> Iterator[sst.EncodedRow]:
            nonlocal checksum
            for key, value in rows:
                head = b"%d %d " % (len(key), value is None)
                checksum = google_crc32c.extend(checksum, head + key)
                checksum = google_crc32c.extend(checksum, value or b"")
                yield key, value

        # Rows to delete come in the order of their keys, as the database has them.
        gone = (row for batch in deletes for row in sst.encode_rows(batch))
        put = sorted(row for batch in puts for row in sst.encode_rows(batch))
        encoded = heapq.merge(gone, put, key=operator.itemgetter(0))
        made = sst.write_body(
            summed(encoded), path, self._memory.options(work.options), keeps_sst=False
        )
        # Of the rows, not of the file: an SST tells when and where it was written.
        of_rows = Block(0, made.rows.total, 0, checksum, -1, -1)
        return lambda new: Body(
            made.path, made.blocks, made.rows, compute_lineage(new.parent, (of_rows,))
        )

    def versions(
        self, location: StoreLocation, clock: Clock, backend: str, scratch_directory: str
    ) -> RocksDBVersions:
        """Return the versions of a store, with a database of its own."""
        del backend
        directory = tempfile.mkdtemp(prefix="rocksdb-", dir=scratch_directory)
        return RocksDBVersions(location, clock, directory, self._memory)
