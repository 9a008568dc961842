"""A checkpoint of Spark's own providers, made one of this package's; no Spark runs for it.

The rows are read as `read` reads them and written as full states. Keys and values keep their bytes
where both sides keep them alike: UnsafeRows. Avro, and the keys of the HDFS-backed provider that
have a prefix, are decoded and encoded again.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from statestore.checkpoint.commit import NewVersion
from statestore.codec.column_family import DEFAULT_FAMILY, NO_DEFAULT
from statestore.codec.joined_trailers import join_families
from statestore.codec.key_encoding import encode_keys, encode_values
from statestore.codec.merge import merge_runs
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.references import StoreName
from statestore.codec.rows import MERGE, PUT, SCHEMA, from_numpy, to_numpy
from statestore.codec.sorting import gather, sort_into_runs
from statestore.codec.trailer import RowCounts
from statestore.core.errors import IncompatibleError
from statestore.core.key_groups import (
    MAX_PARALLELISM_LIMIT,
    default_max_parallelism,
    resolve_max_parallelism,
)
from statestore.io.local import named_errors
from statestore.operations.full_state import states_at_once, write_full_state
from statestore.operations.passes import Pass
from statestore.operations.reading.read import decode_batch
from statestore.operations.rehashing import not_where_they_belong, rehash
from statestore.operations.rows_by_partition import RowsByPartition
from statestore.operations.spark_states import find_versions, state_of, without_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from statestore.backends.form import Work
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.passes import NewState, StoreId
    from statestore.operations.store_state import States, StoreState


def find_spark_states(
    version: CommittedVersion, num_partitions: int, max_parallelism: int
) -> tuple[States, int]:
    """Return a version of Spark's, and how many key groups its rows get.

    They are as many as both numbers of state partitions divide, where 32768 are enough for it: then
    one hash of a key tells where its row is and where it is to be.

    Args:
        version: A version of one of Spark's own providers.
        num_partitions: State partitions that its rows are to be in, 1 to 32768.
        max_parallelism: The option; 0 for any number of key groups.

    Returns:
        The version of every store; and the number of key groups, of which that of the states
        differs where it could not be had.

    Raises:
        InvalidArgumentError: The option does not fit the number of state partitions.
        IncompatibleError: A store has state that is not read whole, in column families whose
            state schemas are not known; or as `find_versions`.
        NotFoundError, CorruptionError, StorageError: As `find_versions`.
    """
    checkpoint = version.checkpoint
    before = version.num_partitions
    common = math.lcm(before, num_partitions)
    is_common = not max_parallelism and common <= MAX_PARALLELISM_LIMIT
    number = resolve_max_parallelism(max_parallelism, common if is_common else num_partitions)
    read_with = number if number % before == 0 else default_max_parallelism(before)
    states: States = {}
    for store, found in find_versions(
        checkpoint, version.version, max_parallelism=read_with
    ).items():
        unknown = without_schema(found)
        if unknown:
            raise IncompatibleError(
                "a store has a column family whose state schema is not known",
                checkpoint=checkpoint.uri,
                store=str(store),
                column_families=", ".join(sorted(unknown)),
                to_fix="where the program has this state variable, start the query as it is and "
                "let it end a batch, which writes its schemas anew, then restore; only for a "
                "variable that is no more, run a batch of a program that calls "
                "deleteIfExists(NAME) in its init, which deletes its rows",
            )
        states[store] = state_of(checkpoint, version.version, found)
    return states, number


@dataclass(frozen=True, eq=False)
class FromSpark(Pass):
    """The rows of a store that a provider of Spark's wrote.

    Attributes:
        states: The version that passes, one a state partition, in their order.
        num_partitions: State partitions of the store in the new directory.
        max_parallelism: Key groups there.
    """

    states: tuple[StoreState, ...]
    num_partitions: int
    max_parallelism: int

    @property
    def own_bytes(self) -> int:
        """Bytes of Spark's files."""
        return sum(state.full_bytes for state in self.states)

    def write(self, stores: Sequence[StoreId], state: NewState) -> dict[StoreName, PublishedFile]:
        """Write them: each state partition by itself, or each row where its key group belongs."""
        ((operator, name),) = stores
        first = StoreName(state.operators.new_id(operator), 0, name)
        with ThreadPoolExecutor(states_at_once()) as pool:
            if len(self.states) == self.num_partitions:
                made = list(pool.map(partial(self._write_again, state, first), self.states))
            else:
                made = self._deal(state, first, pool)
        return {file.trailer.store: file for file in made}

    def _write_again(self, state: NewState, first: StoreName, given: StoreState) -> PublishedFile:
        """Write the rows of a state partition into the same one."""
        rows = _own_rows(given, state.work)
        store = replace(first, partition=given.store.partition)
        file = self._write(state, store, _own_families([given]), rows)
        state.progress.add(given.full_bytes)
        return file

    def _deal(self, state: NewState, first: StoreName, pool: Executor) -> list[PublishedFile]:
        """Write each row into the state partition of its key group."""
        families = _own_families(self.states)

        def lay_by(given: StoreState) -> RowsByPartition:
            laid = RowsByPartition(mkdtemp(dir=directory), self.num_partitions)
            for piece in gather(_checked_rows(given, self.max_parallelism, state.work)):
                laid.lay_by(piece)
            state.progress.add(given.full_bytes // 2)
            return laid

        def write(partition: int) -> PublishedFile:
            rows = (batch for of in laid for batch in of.batches(partition))
            file = self._write(state, replace(first, partition=partition), families, rows)
            done, next_done = (
                left * number // self.num_partitions for number in (partition, partition + 1)
            )
            state.progress.add(next_done - done)
            return file

        # Where a state partition fails, others still lay rows by while the directory goes.
        scratch = state.work.scratch_directory
        with TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as directory:
            laid = list(pool.map(lay_by, self.states))
            left = self.own_bytes - sum(given.full_bytes // 2 for given in self.states)
            return list(pool.map(write, range(self.num_partitions)))

    def _write(
        self,
        state: NewState,
        store: StoreName,
        families: tuple[ColumnFamily, ...],
        rows: Iterable[pa.RecordBatch],
    ) -> PublishedFile:
        new = NewVersion(
            version=state.version.version,
            parent=None,
            checkpoint_id=state.target.ids.new_id(),
            checkpoint_format=state.checkpoint_format,
            rows=RowCounts(),
            num_keys=0,
            max_parallelism=self.max_parallelism,
            num_partitions=state.num_partitions,
            rescalable=all(given.rescalable for given in self.states),
            column_families=families,
            backend=state.backend,
        )
        return write_full_state(state.location(store), new, rows, state.work)


def _own_families(states: Sequence[StoreState]) -> tuple[ColumnFamily, ...]:
    """Return the column families of state partitions whose rows come together.

    Raises:
        IncompatibleError: As `join_families`.
    """
    families = tuple(map(_own_family, join_families(states)))
    if DEFAULT_FAMILY in {family.name for family in families}:
        return families
    return (NO_DEFAULT, *families)


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
                yield from _encoded(
                    batch, before[number], after[number], name, given.max_parallelism
                )

    with (
        named_errors("sort rows in the scratch directory", work.scratch_directory),
        TemporaryDirectory(dir=work.scratch_directory) as directory,
    ):
        # Values of a list come by themselves, and are its value again when they are merged.
        runs = sort_into_runs(rows(), given.max_parallelism, directory)
        yield from merge_runs(runs, given.max_parallelism)


def _checked_rows(given: StoreState, max_parallelism: int, work: Work) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a state partition as this package keeps them, by their new key groups.

    Raises:
        IncompatibleError: Spark has one in another state partition than its key's hash says (kind
            not-rescalable).
    """
    own = replace(given, column_families=_own_families([given]))
    for batch in _own_rows(given, work):
        owners = to_numpy(batch.column(0), np.uint16) % given.num_partitions
        for row in np.flatnonzero(owners != given.store.partition).tolist():
            number = batch.column(1)[row].as_py()
            (name,) = (family.name for family in own.column_families if family.id == number)
            raise not_where_they_belong(given, name)
        is_same = given.max_parallelism == max_parallelism
        yield batch if is_same else rehash(batch, own, max_parallelism)


def _encoded(
    batch: pa.RecordBatch,
    before: ColumnFamily,
    after: ColumnFamily,
    store: str,
    max_parallelism: int,
) -> Iterator[pa.RecordBatch]:
    op = MERGE if after.multi_values else PUT
    for rows in decode_batch(batch, before, partition=0):
        encoded = encode_keys(rows.column("key"), after)
        count = len(encoded)
        columns = [
            from_numpy(compute_key_groups(encoded, store, after, max_parallelism), pa.uint16()),
            from_numpy(np.full(count, after.id, np.uint16), pa.uint16()),
            from_numpy(np.full(count, op, np.uint8), pa.uint8()),
            encoded,
            encode_values(rows.column("value"), after),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
