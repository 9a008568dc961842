"""Reading state as typed Arrow columns, without Spark and without a JVM."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from statestore.codec.byte_ranges import ByteRanges, bits, buffer, unpack
from statestore.codec.evolution import decode_value_rows, decode_values
from statestore.codec.key_bytes import decode_keys, key_type, split_values, value_type
from statestore.codec.rows import MAX_BLOCK_BYTES, from_numpy, no_rows, parts_by_bytes
from statestore.operations.reading.lookup import Asked, look_up
from statestore.operations.result import no_progress
from statestore.operations.states import of_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Iterator

    from statestore.codec.byte_ranges import Int64s
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.result import Progress
    from statestore.operations.states import FoundRows
    from statestore.operations.store_state import States

COLUMNS = ("key", "value", "partition_id")
"""Of what is read, in order."""
NUM_THREADS = 2
"""Threads that decode; as many batches again wait for the reader."""


def read_batches(
    rows: FoundRows,
    *,
    partitions: Iterable[int] | None = None,
    columns: Collection[str] = COLUMNS,
    asked: Asked | None = None,
    progress: Progress = no_progress,
) -> Generator[pa.RecordBatch, None, None]:
    """Read rows batch by batch, for state that does not fit memory; errors as of `Rows`.

    Args:
        rows: Which rows.
        partitions: Only these state partitions, None for all.
        columns: Only these of COLUMNS; what is left out is not decoded.
        asked: Values that rows must have; others may be left out, and where their key groups follow
            from these, only those are read.
        progress: Called with the rows read so far and the total, of all column families of the
            store.

    Yields:
        Record batches, a few MiB each, with the columns of `Rows.read`; the first one always, if
        empty. A version stays readable while it is read unless the query expires it or it is
        pinned.
    """
    family, states = rows.family, rows.states
    if partitions is not None:
        states = of_partitions(states, partitions)
    yield no_rows(row_schema(family, columns))
    key_group = None
    if asked:
        place = look_up(asked.of_key(), states, family)
        key_group = place.key_group
        for wanted in (place.partitions, asked.partitions):
            if wanted is not None:
                states = {name: state for name, state in states.items() if name.partition in wanted}
    raw = _raw_batches(states, family, key_group, progress)
    yield from _run_all(
        decode
        for batch, partition in raw
        for decode in _decoders(batch, family, partition, columns)
    )


def row_schema(family: ColumnFamily, columns: Collection[str] = COLUMNS) -> pa.Schema:
    """Return the schema of what `read_batches` yields of a column family."""
    fields: list[pa.Field[Any]] = [
        pa.field("key", key_type(family).arrow),
        pa.field("value", value_type(family).arrow),
        pa.field("partition_id", pa.int32()),
    ]
    return pa.schema([field for field in fields if field.name in columns])


def decode_batch(
    batch: pa.RecordBatch, family: ColumnFamily, partition: int
) -> Iterator[pa.RecordBatch]:
    """Decode rows of one column family and state partition into the columns of `read_batches`.

    Those of a multi-value family become a row a value, in record batches of a few MiB: the key is
    in each row.

    Yields:
        Record batches, at least one.

    Raises:
        CorruptionError, IncompatibleError: As `decode_keys`.
    """
    for decode in _decoders(batch, family, partition, COLUMNS):
        yield decode()


def _decoders(
    batch: pa.RecordBatch, family: ColumnFamily, partition: int, columns: Collection[str]
) -> Iterator[Callable[[], pa.RecordBatch]]:
    """Yield what decodes rows, each function some of them, in whatever thread."""
    keys, values = batch.column("key"), batch.column("value")
    schema = row_schema(family, columns)

    def typed(num_rows: int, **decode: Callable[[], pa.Array[Any]]) -> pa.RecordBatch:
        found = {name: make() for name, make in decode.items() if name in columns}
        found["partition_id"] = from_numpy(np.full(num_rows, partition, np.int32), pa.int32())
        return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)

    if not family.multi_values:
        yield partial(
            typed,
            len(keys),
            key=partial(decode_keys, keys, family),
            value=partial(decode_values, values, family),
        )
        return
    rows, owners = split_values(values)
    sizes = ByteRanges.of_column(keys).sizes[owners] + rows.sizes
    for part in parts_by_bytes(sizes, MAX_BLOCK_BYTES):
        some = ByteRanges(rows.data, rows.starts[part], rows.sizes[part])
        yield partial(
            typed,
            len(some),
            key=partial(_decode_repeated, keys, owners[part], family),
            value=partial(decode_value_rows, some, family),
        )


def _decode_repeated(keys: pa.Array[Any], owners: Int64s, family: ColumnFamily) -> pa.Array[Any]:
    """Decode the key of each row, where `owners` are their numbers, ascending."""
    first, end = (int(owners[0]), int(owners[-1]) + 1) if len(owners) else (0, 0)
    decoded = decode_keys(keys.slice(first, end - first), family)
    return decoded.take(from_numpy(owners - first, pa.int64()))


def decode_by_key(values: pa.Array[Any], family: ColumnFamily) -> pa.Array[Any]:
    """Decode values, one for one; those of a multi-value family become a list each."""
    if not family.multi_values:
        return decode_values(values, family)
    rows, owners = split_values(values)
    counts = np.bincount(owners, minlength=len(values))
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    buffers: list[pa.Buffer | None] = [bits(~unpack(values.is_null())), buffer(offsets)]
    decoded = decode_value_rows(rows, family)
    return pa.Array.from_buffers(pa.list_(decoded.type), len(values), buffers, children=[decoded])


def _raw_batches(
    states: States, family: ColumnFamily, key_group: int | None, progress: Progress
) -> Iterator[tuple[pa.RecordBatch, int]]:
    total = sum(state.most_rows for state in states.values())
    before = 0
    for store, state in states.items():
        num_rows, num_read = state.most_rows, 0
        for batch in state.rows(family.name, key_group):
            num_read += batch.num_rows
            progress(before + min(num_read, num_rows), total)
            if batch.num_rows:
                yield batch, store.partition
        before += num_rows
        progress(before, total)


def _run_all(decoders: Iterator[Callable[[], pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Decode in threads while the next batches are read, in order and a few at a time.

    They are read in a thread, too: while the caller writes those that it was given.
    """
    with (
        ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="statestore-decode") as pool,
        ThreadPoolExecutor(1, thread_name_prefix="statestore-read") as reader,
    ):
        waiting: list[Future[pa.RecordBatch]] = []
        ahead = reader.submit(next, decoders, None)
        while (decode := ahead.result()) is not None:
            ahead = reader.submit(next, decoders, None)
            waiting.append(pool.submit(decode))
            if len(waiting) > 2 * NUM_THREADS:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
