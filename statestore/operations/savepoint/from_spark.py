"""A checkpoint of Spark's own providers, made one of this package's; no Spark runs for it.

The rows are read as `read` reads them and written as full states. Keys and values keep their bytes
where both sides keep them alike: UnsafeRows. Avro, and the keys of the HDFS-backed provider that
have a prefix, are decoded and encoded again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from statestore.checkpoint.commit import NewVersion
from statestore.codec.column_family import DEFAULT_FAMILY, NO_DEFAULT
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.codec.merge import merge_runs
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.rows import MERGE, PUT, SCHEMA, from_numpy, to_numpy
from statestore.codec.sorting import sort_into_runs
from statestore.codec.trailer import RowCounts
from statestore.core.errors import IncompatibleError
from statestore.io.local import named_errors
from statestore.operations.committed_version import find_version
from statestore.operations.copying import Copy
from statestore.operations.full_state import MAX_STATES_AT_ONCE, write_full_state
from statestore.operations.in_use import same_batches
from statestore.operations.new_directory import check_target, query_metadata
from statestore.operations.operator_map import OperatorMap
from statestore.operations.passes import Pass
from statestore.operations.reading.read import decode_pairs
from statestore.operations.spark_states import find_versions, state_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from statestore.backends.form import Work
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.references import StoreName
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.copying import MadeFiles
    from statestore.operations.passes import NewState, Store
    from statestore.operations.store_state import StoreState

_INDEXES = ("$ttl", "$min", "$count", "$rowCounter")
"""What Spark keeps beside a state variable: expiries of rows, and of a list its length."""


@dataclass(frozen=True, eq=False)
class FromSpark(Pass):
    """The rows of a store that a provider of Spark's wrote.

    Attributes:
        states: The version that passes, by state partition.
    """

    states: tuple[StoreState, ...]

    @property
    def words(self) -> str:
        """What becomes of the files."""
        return "written anew"

    @property
    def own_bytes(self) -> int:
        """Bytes of Spark's files."""
        return sum(state.full_bytes for state in self.states)

    def write(self, stores: Sequence[Store], state: NewState) -> dict[StoreName, PublishedFile]:
        """Write them, each state partition by itself."""
        del stores

        def write_one(given: StoreState) -> PublishedFile:
            families = tuple(map(_own_family, given.column_families))
            if DEFAULT_FAMILY not in {family.name for family in families}:
                families = (NO_DEFAULT, *families)
            new = NewVersion(
                version=state.version.version,
                parent=None,
                checkpoint_id=state.target.ids.new_id(),
                checkpoint_format=state.checkpoint_format,
                rows=RowCounts(),
                num_keys=0,
                max_parallelism=given.max_parallelism,
                num_partitions=given.num_partitions,
                rescalable=given.rescalable,
                column_families=families,
                backend=state.backend,
            )
            with TemporaryDirectory(dir=state.work.scratch_directory) as own:
                work = replace(state.work, scratch_directory=own)
                file = write_full_state(
                    state.location(given.store), new, _own_rows(given, work), work
                )
            state.progress.add(given.full_bytes)
            return file

        with ThreadPoolExecutor(MAX_STATES_AT_ONCE) as pool:
            return {file.trailer.store: file for file in pool.map(write_one, self.states)}


def decide_from_spark(checkpoint: OpenCheckpoint, target: Place, backend: str) -> Copy[MadeFiles]:
    """Decide how the newest version of a checkpoint of Spark's becomes one of this package's.

    Nothing is written. The query goes on under its ID, with as many state partitions. `Copy.run`
    also raises InUseError where the query has run a batch meanwhile.

    Args:
        checkpoint: The checkpoint, of a query that does not run.
        target: The new checkpoint, which must not be there.
        backend: Its state backend.

    Raises:
        InvalidArgumentError: As `check_target`.
        NotFoundError, CorruptionError, StorageError: As `find_versions`.
        IncompatibleError: A store has rows of a column family that its newest schemas do not have;
            or as `find_versions`.
    """
    check_target(target, "convert", checkpoint.uri)
    version = find_version(checkpoint, has_heads=False)
    version.check_sources()
    states: dict[Store, list[StoreState]] = {}
    for store, found in find_versions(checkpoint, version.version).items():
        names = {family.name for family in found.families}
        ids = {} if found.snapshot is None else found.snapshot.family_ids
        removed = {*ids} - names - {DEFAULT_FAMILY}
        removed -= {name for name in removed if _is_index_without_state(name, names)}
        if removed:
            raise IncompatibleError(
                "a store has a column family that its newest schemas do not have",
                checkpoint=checkpoint.uri,
                store=str(store),
                column_families=", ".join(sorted(removed)),
                to_fix="stay with the provider that it has: nothing tells what the rows are",
            )
        state = state_of(checkpoint, version.version, found)
        states.setdefault((store.operator, store.name), []).append(state)
    query_id = version.query_id or ""
    require_same = same_batches(checkpoint)

    def becomes(made: MadeFiles) -> tuple[str, MadeFiles]:
        # A query over Spark's providers holds no lease: nothing kept it away.
        require_same()
        return query_metadata(query_id), made

    return Copy(
        operation="convert",
        version=version,
        target=target,
        passes={store: FromSpark(tuple(of)) for store, of in states.items()},
        becomes=becomes,
        backend=backend,
        num_partitions=version.num_partitions,
        checkpoint_format=version.checkpoint_format,
        operators=OperatorMap().resolve([operator.id for operator in checkpoint.operators]),
        query_id=query_id,
    )


def _is_index_without_state(name: str, names: Collection[str]) -> bool:
    """Whether a column family is an index of a state variable that is gone.

    Spark's `deleteIfExists` deletes the variable and leaves its indexes.
    """
    index, _, variable = name.partition("_")
    return index in _INDEXES and variable not in names


def _own_family(family: ColumnFamily) -> ColumnFamily:
    """Return a column family as this package keeps it."""
    prefix = family.num_prefix_columns
    encoder = "prefix" if prefix and family.encoder == "no-prefix" else family.encoder
    return replace(family, encoder=encoder, avro=False)


def _own_rows(given: StoreState, work: Work) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a state partition as this package keeps them, each key once."""
    before = {family.id: family for family in given.column_families}
    after = {number: _own_family(family) for number, family in before.items()}
    if before == after:
        yield from given.rows(None)
        return

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in given.rows(None):
            number = int(to_numpy(batch.column(1), np.uint16)[0])  # one column family at a time
            if before[number] == after[number]:
                yield batch
            else:
                name = given.store.name
                yield _encoded(batch, before[number], after[number], name, given.max_parallelism)

    with (
        named_errors("sort rows in the scratch directory", work.scratch_directory),
        TemporaryDirectory(dir=work.scratch_directory) as directory,
    ):
        # Values of a list come by themselves, and are its value again when they are merged.
        runs = sort_into_runs(rows(), given.max_parallelism, directory)
        yield from merge_runs(runs, given.max_parallelism)


def _encoded(
    batch: pa.RecordBatch,
    before: ColumnFamily,
    after: ColumnFamily,
    store: str,
    max_parallelism: int,
) -> pa.RecordBatch:
    keys, values = decode_pairs(batch.column(3), batch.column(4), before)
    encoded = encode_keys(keys, after)
    count = len(encoded)
    columns = [
        from_numpy(compute_key_groups(encoded, store, after, max_parallelism), pa.uint16()),
        from_numpy(np.full(count, after.id, np.uint16), pa.uint16()),
        from_numpy(np.full(count, MERGE if after.multi_values else PUT, np.uint8), pa.uint8()),
        encoded,
        encode_values(values, after),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
