"""Arrow streams as the form of state files, of the filesystem and heap backends."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.backends.filesystem.versions import FilesystemVersions
from statestore.backends.form import FileForm
from statestore.checkpoint.commit import Body, describe_delta
from statestore.checkpoint.load import load_files
from statestore.codec.merge import interleave, merge_runs
from statestore.codec.rows import (
    MAX_BLOCK_BYTES,
    SCHEMA,
    pick,
    rows_in,
    split_for_blocks,
    to_numpy,
    write_options,
)
from statestore.codec.sorting import gather, sort_into_runs
from statestore.codec.state_file import StateFile
from statestore.codec.trailer import compute_lineage
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


class ArrowForm(FileForm):
    """Rows in file order: by key group, column family and key, in blocks of an Arrow stream."""

    is_by_key = False

    def rows(
        self,
        location: StoreLocation,
        head: PublishedFile,
        work: Work,
        family: int | None = None,
        key_group: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a version in file order; of a key group only its blocks are read."""
        del work
        max_parallelism = head.trailer.max_parallelism
        wanted = None if key_group is None else KeyGroupSet(max_parallelism, key_group)
        for batch in merge_runs(_runs(location, head, wanted), max_parallelism):
            # A damaged snapshot is replaced by files of which more was read.
            found = batch if wanted is None else rows_in(batch, wanted)
            yield found if family is None else _of_family(found, family)

    def runs(self, location: StoreLocation, head: PublishedFile, work: Work) -> Sequence[SortedRun]:
        """Return the files of a version, each a run."""
        del work
        return _runs(location, head, None)

    def rows_of_file(
        self, path: str, local_path: str, work: Work
    ) -> Iterator[tuple[Trailer, pa.RecordBatch]]:
        """Yield its blocks."""
        del work
        with named_errors("open a file", local_path):
            file = StateFile(local_path, name=path)
        for index in range(file.num_batches):
            yield file.trailer, file.batch(index)

    def sorted_rows(
        self, rows: Iterator[pa.RecordBatch], max_parallelism: int, work: Work
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows in file order, sorted on the local disk."""
        directory = tempfile.mkdtemp(prefix="runs-", dir=work.scratch_directory)
        with named_errors("sort rows in the scratch directory", directory):
            runs = sort_into_runs(rows, max_parallelism, directory)
        return merge_runs(runs, max_parallelism)

    def stream_compression(self, options: StateStoreOptions) -> str:
        """Return the file's: the stream is the body."""
        return options.file_compression

    def full_body(self, new: NewVersion, path: str, work: Work) -> Body:
        """Return the stream itself."""
        del work
        blocks = describe_delta(new, path)
        return Body(path, blocks, new.rows, compute_lineage(None, blocks))

    def write_changes(
        self,
        puts: Sequence[pa.RecordBatch],
        deletes: Iterable[pa.RecordBatch],
        path: str,
        max_parallelism: int,
        work: Work,
    ) -> Callable[[NewVersion], Body]:
        """Write them in file order, sorted on the local disk if there are both."""
        options = write_options(work.options.file_compression)
        with (
            tempfile.TemporaryDirectory(prefix="deletes-", dir=work.scratch_directory) as own,
            ipc.new_stream(path, SCHEMA, options=options) as stream,
        ):
            rows = deletes
            if puts:
                runs: list[SortedRun] = [*sort_into_runs(deletes, max_parallelism, own)]
                rows = interleave([*runs, _Held(puts)], max_parallelism)
            # Rows to delete come in file order, as they are read.
            for batch in gather(rows, MAX_BLOCK_BYTES):
                for block in split_for_blocks(batch):
                    stream.write_batch(block)
        return partial(_body_of_changes, path)

    def versions(
        self, location: StoreLocation, clock: Clock, backend: str, scratch_directory: str
    ) -> FilesystemVersions:
        """Return the versions of a store."""
        del scratch_directory
        return FilesystemVersions(location, clock, backend)


def _runs(
    location: StoreLocation, head: PublishedFile, wanted: KeyGroupSet | None
) -> Sequence[SortedRun]:
    """Open the files of a version, of which only the blocks of the wanted key groups are read."""
    refs = head.chain
    if wanted is not None:
        clips = [wanted if ref.clip is None else ref.clip & wanted for ref in refs]
        refs = tuple(
            replace(ref, clip=clip)
            for ref, clip in zip(refs, clips, strict=True)
            if clip is not None
        )
    return load_files(location, head, refs).files if refs else ()


def _body_of_changes(path: str, new: NewVersion) -> Body:
    blocks = describe_delta(new, path)
    return Body(path, blocks, new.rows, compute_lineage(new.parent, blocks))


def _of_family(batch: pa.RecordBatch, family: int) -> pa.RecordBatch:
    return pick(batch, to_numpy(batch.column(1), np.uint16) == family)


class _Held:
    """Rows in memory, in file order, as a run."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self.num_batches = len(self._batches)

    def batch(self, index: int) -> pa.RecordBatch:
        """Return one record batch."""
        return self._batches[index]
