"""Changes of some rows of a store as its next version, as a batch of the query would commit them.

The version is a delta on top of the one before: rows that stay are not written again.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.checkpoint.commit import Body, NewVersion, describe_delta, publish_delta
from statestore.checkpoint.key_group_rows import count_classes
from statestore.codec.merge import merge_runs
from statestore.codec.rows import (
    DELETE,
    SCHEMA,
    from_numpy,
    split_for_blocks,
    to_numpy,
    write_options,
)
from statestore.codec.sorting import join_batches, sort_into_runs, sort_rows
from statestore.codec.trailer import Block, RowCounts, compute_lineage
from statestore.core.errors import InvalidArgumentError
from statestore.operations.rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.full_state import Work
    from statestore.operations.writing.family_rows import FamilyRows
    from statestore.operations.writing.shape import StoreShape

KeysByFamily = dict[int, "pa.Array[Any]"]
"""Keys as bytes, by the ID of their column family."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What becomes other in a state partition of a store.

    Attributes:
        puts: Rows that it gets, each key once.
        gone: Rows that it has and that go, or get another value.
    """

    puts: pa.RecordBatch
    gone: pa.RecordBatch


def is_among(batch: pa.RecordBatch, keys: Mapping[int, pa.Array[Any]]) -> npt.NDArray[np.bool_]:
    """Return for each row of the state file schema whether its key is among those given."""
    # Imported here because it takes long, and only what writes rows needs it.
    import pyarrow.compute as pc

    families = to_numpy(batch.column(1), np.uint16)
    found = np.zeros(batch.num_rows, bool)
    for family, of_family in keys.items():
        is_in = pc.is_in(batch.column(3), value_set=of_family).cast(pa.uint8())
        found |= (families == family) & to_numpy(is_in, np.uint8).astype(bool)
    return found


def pick(batch: pa.RecordBatch, mask: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows of a batch for which a mask holds."""
    return batch if mask.all() else batch.take(from_numpy(np.flatnonzero(mask), pa.int64()))


def changes_of(
    checkpoint: OpenCheckpoint,
    shape: StoreShape,
    rows: Iterable[FamilyRows],
    scratch_directory: str,
) -> Iterator[Changes]:
    """Yield what becomes other in each state partition of a store; reads all of its rows.

    Args:
        checkpoint: The checkpoint.
        shape: The store.
        rows: What some of its column families get and lose, held in memory.
        scratch_directory: Local directory.

    Raises:
        InvalidArgumentError: Rows do not fit, or a key is given twice (kind duplicate-key).
        NotFoundError, CorruptionError, FencedError, IncompatibleError, StorageError: As
            `read_rows`.
    """
    rows = list(rows)
    keys: KeysByFamily = {of.family.id: of.without for of in rows if of.without is not None}
    puts = _puts(shape, rows, scratch_directory)
    partitions = to_numpy(puts.column(0), np.uint16) % shape.num_states
    for head in shape.heads:
        own = pick(puts, partitions == head.trailer.store.partition)
        batches = read_rows(checkpoint, head) if rows else ()
        gone = (pick(batch, is_among(batch, keys)) for batch in batches)
        yield Changes(own, join_batches([_nothing(), *gone]))


def _puts(shape: StoreShape, rows: Iterable[FamilyRows], scratch_directory: str) -> pa.RecordBatch:
    """Return the rows that a store gets; elements of a list become its value."""
    max_parallelism = shape.new.max_parallelism
    lists = [one.id for one in shape.new.column_families if one.multi_values]
    num_given = 0

    def given(scratch: str) -> Iterator[pa.RecordBatch]:
        nonlocal num_given
        for of in rows:
            if of.given is not None:
                for batch in of.columns.encode(of.given.batches(scratch), max_parallelism):
                    num_given += 0 if of.family.id in lists else batch.num_rows
                    yield batch

    with tempfile.TemporaryDirectory(prefix="puts-", dir=scratch_directory) as own:
        runs = sort_into_runs(given(own), max_parallelism, own)
        merged = join_batches([_nothing(), *merge_runs(runs, max_parallelism)])
    num_found = int((~np.isin(to_numpy(merged.column(1), np.uint16), lists)).sum())
    if num_found != num_given:
        raise InvalidArgumentError(
            "a key is there more than once",
            kind="duplicate-key",
            operator=shape.operator,
            store=shape.name,
            num_rows_too_many=num_given - num_found,
            to_fix="give one row a key, such as by GROUP BY key",
        )
    return merged


def write_changes(
    location: StoreLocation,
    head: PublishedFile,
    changes: Changes,
    new_id: str,
    work: Work,
) -> PublishedFile:
    """Publish the next version of a store in a state partition; without a change it has no rows.

    Args:
        location: The store.
        head: Its version.
        changes: What becomes other.
        new_id: Checkpoint ID of the new one.
        work: Options, clock, scratch directory and RocksDB's memory.

    Guarantee: as `publish_delta`; the version before stays readable.

    Raises:
        StorageError: The storage or the local disk failed.
    """
    of = head.trailer
    rows, num_deletes = _rows(changes, of.max_parallelism)
    internal = [family.id for family in of.column_families if family.internal]
    new = NewVersion(
        version=of.version + 1,
        parent=of.version_ref,
        checkpoint_id=new_id,
        checkpoint_format=of.checkpoint_format,
        rows=RowCounts(put=rows.num_rows - num_deletes, delete=num_deletes),
        num_keys=_grown(of.num_keys, changes.puts.num_rows - changes.gone.num_rows),
        num_internal_keys=_grown(
            of.num_internal_keys,
            _count(changes.puts, internal) - _count(changes.gone, internal),
        ),
        key_group_growth=tuple(
            (
                count_classes(_groups(changes.puts), of.num_partitions)
                - count_classes(_groups(changes.gone), of.num_partitions)
            ).tolist()
        ),
        max_parallelism=of.max_parallelism,
        num_partitions=of.num_partitions,
        rescalable=of.rescalable,
        column_families=of.column_families,
        backend=of.backend,
    )
    with tempfile.TemporaryDirectory(prefix="change-", dir=work.scratch_directory) as own:
        body = _body(location, new, rows, replace(work, scratch_directory=own))
        return publish_delta(
            location,
            new,
            head,
            (*of.files, head.ref),
            body,
            sync=work.options.fsync_enabled,
            clock=work.clock,
        )


def _rows(changes: Changes, max_parallelism: int) -> tuple[pa.RecordBatch, int]:
    """Return puts and deletes in file order, and how many of them are deletes."""
    families = set(to_numpy(changes.puts.column(1), np.uint16).tolist())
    put = {
        family: pick(changes.puts, to_numpy(changes.puts.column(1), np.uint16) == family).column(3)
        for family in families
    }
    deleted = pick(changes.gone, ~is_among(changes.gone, put))
    count = deleted.num_rows
    deletes = pa.RecordBatch.from_arrays(
        [
            deleted.column(0),
            deleted.column(1),
            from_numpy(np.full(count, DELETE, np.uint8), pa.uint8()),
            deleted.column(3),
            pa.nulls(count, pa.binary()),
        ],
        schema=SCHEMA,
    )
    return sort_rows(join_batches([changes.puts, deletes]), max_parallelism), count


def _body(location: StoreLocation, new: NewVersion, rows: pa.RecordBatch, work: Work) -> Body:
    path = f"{work.scratch_directory}/rows"
    compression = "none" if location.body == "sst" else work.options.file_compression
    with ipc.new_stream(path, SCHEMA, options=write_options(compression)) as stream:
        for block in split_for_blocks(rows):
            stream.write_batch(block)
    length = Path(path).stat().st_size
    if location.body == "arrows":
        blocks = describe_delta(new, path, length)
        return Body(path, blocks, new.rows, compute_lineage(new.parent, blocks))
    # Known to be there: it made the memory.
    from statestore.backends.rocksdb import sst

    given = sst.read_delta(path, length)
    body = sst.write_body(given.rows, f"{path}-body", work.rocksdb.options(work.options))
    # Of the rows, not of the file: an SST tells when and where it was written.
    of_rows = Block(0, length, 0, given.checksum, -1, -1)
    return Body(body.path, body.blocks, body.rows, compute_lineage(new.parent, (of_rows,)))


def _nothing() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=SCHEMA)


def _groups(rows: pa.RecordBatch) -> npt.NDArray[np.uint16]:
    found: npt.NDArray[np.uint16] = to_numpy(rows.column(0), np.uint16)
    return found


def _count(rows: pa.RecordBatch, families: list[int]) -> int:
    return int(np.isin(to_numpy(rows.column(1), np.uint16), families).sum())


def _grown(before: int | None, growth: int) -> int | None:
    return None if before is None else before + growth
