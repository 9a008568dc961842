"""A savepoint of rows: those that are given, and of what is not named those that are there.

Every store with given rows is written anew: rows are laid by on the local disk by the state
partition that Spark's hash gives them, sorted there, and written as full states. Stores without are
copied as a canonical savepoint has them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from statestore.backends.spark.schemas import replace_schemas
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.query_log import PROVIDER_KEY, read_bytes, write_bytes
from statestore.codec.merge import merge_runs
from statestore.codec.references import StoreName
from statestore.codec.rows import to_numpy
from statestore.codec.sorting import gather, sort_into_runs
from statestore.core.errors import InvalidArgumentError
from statestore.core.providers import PROVIDERS
from statestore.operations.batches import checkpoint_ids_of
from statestore.operations.committed_version import copy_spark_files, write_logs
from statestore.operations.full_state import (
    MAX_STATES_AT_ONCE,
    StateWriter,
    Work,
    open_memory,
    write_states,
)
from statestore.operations.new_directory import begin_directory, check_target
from statestore.operations.plan import no_report
from statestore.operations.rehashing import RowsByPartition
from statestore.operations.rows import read_rows
from statestore.operations.savepoint.conversion import schemas_of
from statestore.operations.savepoint.savepoint import (
    CANONICAL_BACKEND,
    SavepointInfo,
    finish_savepoint,
)
from statestore.operations.writing.changes import pick
from statestore.operations.writing.family_rows import Gone
from statestore.operations.writing.plans import WritePlan

if TYPE_CHECKING:
    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.io.place import Place
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.new_directory import NewDirectory
    from statestore.operations.plan import Report
    from statestore.operations.writing.family_rows import FamilyRows
    from statestore.operations.writing.shape import StoreShape


@dataclass(frozen=True)
class SavepointOfRows:
    """A savepoint that was decided and is not yet written.

    Attributes:
        operation: The command that writes it.
        version: What it is like: logs, Spark's files, and the rows that stay.
        query_id: ID of the query that goes on; empty for a new one.
        checkpoint_format: 1 or 2.
        shapes: All stores.
        rows: Column families with rows that are written.
        destination: Where to.
    """

    operation: str
    version: CommittedVersion
    query_id: str
    checkpoint_format: int
    shapes: tuple[StoreShape, ...]
    rows: tuple[FamilyRows, ...]
    destination: Place

    def check(self) -> None:
        """Check that it can be written, without writing anything.

        Raises:
            InvalidArgumentError: There are files at the destination; or as `check_target`.
            IncompatibleError: Rows cannot be routed by their keys.
        """
        check_target(self.destination, self.operation, self.version.checkpoint.uri)
        for of in self.rows:
            of.shape.require_by_key()

    @property
    def plan(self) -> WritePlan:
        """What it does."""
        return WritePlan(
            like=self.version.checkpoint.uri,
            destination=self.destination.uri,
            version=self.version.version,
            families=tuple(of.plan for of in self.rows),
            state_bytes=self.version.state_bytes(),
        )

    def run(self, report: Report = no_report) -> SavepointInfo:
        """Write it.

        Args:
            report: Called with the stores done and their number.

        Guarantee: on return the savepoint is whole and durable. After a raise, or when the process
        is killed, the destination is not taken for a savepoint, and the call may be repeated; what
        it is like is as it was.

        Raises:
            InvalidArgumentError: Rows do not fit, or a key is there twice (kind duplicate-key).
            NotFoundError, CorruptionError, IncompatibleError, FencedError, StorageError: What is
                there cannot be read, or a storage failed.
        """
        source = self.version.checkpoint.uri
        with ExitStack() as stack:
            if self.version.heads:
                stack.enter_context(self.version.pinned(self.destination.ids))
            target = stack.enter_context(begin_directory(self.destination, self.operation, source))
            self._copy_spark_files(target)
            written: dict[StoreName, PublishedFile] = {}
            for number, shape in enumerate(self.shapes):
                written |= self._write_store(shape, target)
                report(number + 1, len(self.shapes))
            self.version.copy_operators(target)
            self._write_logs(target, written)
            savepoint = SavepointInfo(
                form="canonical",
                backend=self.version.checkpoint.backend,
                query_id=self.query_id,
                version=self.version.version,
                num_partitions=self.version.num_partitions,
                checkpoint_format=self.checkpoint_format,
                created_ms=target.clock.now_ms(),
                num_stores=len(written),
                num_rows=sum(file.trailer.rows.put for file in written.values()),
                state_bytes=sum(file.ref.size for file in written.values()),
                operators=tuple(operator.name for operator in self.version.checkpoint.operators),
            )
            finish_savepoint(target, savepoint)
            return savepoint

    def _copy_spark_files(self, target: NewDirectory) -> None:
        files = self._schema_files()
        copy_spark_files(self.version, target, lambda path: None if path in files else path)
        for path, data in files.items():
            write_bytes(target.io, f"{target.path}/{path}", data, overwrite=True)

    def _schema_files(self) -> dict[str, bytes]:
        """Return Spark's files of state schemas that change, by their path."""
        changed: dict[str, dict[str, ColumnFamily]] = {}
        for of in self.rows:
            if of.plan.key_schema is None and of.plan.value_schema is None:
                continue
            operator = self.version.checkpoint.operator(of.shape.operator)
            store = next(store for store in operator.stores if store.name == of.shape.name)
            path = f"state/{operator.id}/{schemas_of(store)[-1]}"
            changed.setdefault(path, {})[of.family.name] = of.family
        source = self.version.checkpoint
        return {
            path: replace_schemas(read_bytes(source.io, f"{source.path}/{path}"), path, families)
            for path, families in changed.items()
        }

    def _write_store(
        self, shape: StoreShape, target: NewDirectory
    ) -> dict[StoreName, PublishedFile]:
        rows = [of for of in self.rows if of.shape == shape]
        source = self.version.checkpoint
        memory = open_memory(self.destination.options) if source.body == "sst" else None
        work = Work(target.scratch_directory, self.destination.options, target.clock, memory)
        root = f"{target.path}/state"
        locations = [
            StoreLocation(target.io, root, StoreName(shape.operator, partition, shape.name))
            for partition in range(shape.num_states)
        ]
        with ThreadPoolExecutor(MAX_STATES_AT_ONCE) as pool:
            if rows or not shape.heads:
                ids = [target.ids.new_id() for _ in locations]
                files = _StoreWriter(self, shape, rows, work).write(locations, ids, pool)
            else:
                copy = partial(_copy_state, self.version, work)
                files = list(pool.map(copy, locations, shape.heads))
        return {file.trailer.store: file for file in files}

    def _write_logs(self, target: NewDirectory, written: Mapping[StoreName, PublishedFile]) -> None:
        provider = {PROVIDER_KEY: PROVIDERS[CANONICAL_BACKEND]}
        offsets = {
            batch: entry.with_conf(provider) for batch, entry in self.version.offsets.items()
        }
        commits = dict(self.version.commits)
        if self.checkpoint_format >= 2:
            ids = checkpoint_ids_of(self.version.checkpoint.operators, written)
            batch = self.version.batch
            commits[batch] = commits[batch].with_checkpoint_ids(ids)
        write_logs(target, offsets, commits)


def _copy_state(
    version: CommittedVersion, work: Work, location: StoreLocation, head: PublishedFile
) -> PublishedFile:
    trailer = head.trailer
    giver = (version.checkpoint.location(trailer.store), head)
    taker = {location: trailer.checkpoint_id}
    written = write_states([giver], taker, trailer.num_partitions, CANONICAL_BACKEND, work)
    return written[location]


@dataclass
class _StoreWriter:
    """Writes a store with given rows in all state partitions."""

    of: SavepointOfRows
    shape: StoreShape
    rows: list[FamilyRows]
    work: Work
    num_puts: int = field(default=0, init=False)

    def write(
        self, locations: list[StoreLocation], ids: list[str], pool: ThreadPoolExecutor
    ) -> list[PublishedFile]:
        changed = {of.family.name: of.family for of in self.rows}
        families = tuple(
            changed.get(family.name, family) for family in self.shape.new.column_families
        )
        new = replace(
            self.shape.new,
            column_families=families,
            backend=CANONICAL_BACKEND,
            checkpoint_format=self.of.checkpoint_format,
            rescalable=True,
        )
        with tempfile.TemporaryDirectory(prefix="rows-", dir=self.work.scratch_directory) as own:
            laid_by = RowsByPartition(own, self.shape.num_states)
            for piece in gather(self._all_rows(new.max_parallelism, own)):
                laid_by.lay_by(piece)

            def write_one(location: StoreLocation, new_id: str) -> tuple[PublishedFile, int]:
                batches = laid_by.batches(location.store.partition)
                return self._write_state(location, replace(new, checkpoint_id=new_id), batches)

            written = list(pool.map(write_one, locations, ids))
        num_doubles = self.num_puts - sum(num_puts for _, num_puts in written)
        if num_doubles:
            raise InvalidArgumentError(
                "a key is there more than once",
                kind="duplicate-key",
                operator=self.shape.operator,
                store=self.shape.name,
                column_families=", ".join(changed),
                num_rows_too_many=num_doubles,
                to_fix="give one row a key, such as by GROUP BY key",
            )
        return [file for file, _ in written]

    def _all_rows(self, max_parallelism: int, scratch: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows that stay and those that are given; count those of one row a key."""
        lists = [one.id for one in self.shape.new.column_families if one.multi_values]
        for batch in self._with_given(max_parallelism, scratch):
            families = to_numpy(batch.column(1), np.uint16)
            self.num_puts += int((~np.isin(families, lists)).sum())
            yield batch

    def _with_given(self, max_parallelism: int, scratch: str) -> Iterator[pa.RecordBatch]:
        yield from self._staying()
        for of in self.rows:
            if of.given is not None:
                yield from of.columns.encode(of.given.batches(scratch), max_parallelism)

    def _staying(self) -> Iterator[pa.RecordBatch]:
        if len([of for of in self.rows if of.replaced]) == len(self.shape.new.column_families):
            return
        for head in self.shape.heads:
            is_gone = Gone(self.rows, head.trailer.store.partition)
            for batch in read_rows(self.of.version.checkpoint, head):
                yield pick(batch, ~is_gone(batch))

    def _write_state(
        self, location: StoreLocation, new: NewVersion, batches: Iterator[pa.RecordBatch]
    ) -> tuple[PublishedFile, int]:
        """Write a state partition; return what was published, and its keys of one row."""
        lists = [family.id for family in new.column_families if family.multi_values]
        num_puts = 0
        with tempfile.TemporaryDirectory(prefix="state-", dir=self.work.scratch_directory) as own:
            writer = StateWriter(location, new, replace(self.work, scratch_directory=own))
            runs = sort_into_runs(batches, new.max_parallelism, own)
            for batch in merge_runs(runs, new.max_parallelism):
                families = to_numpy(batch.column(1), np.uint16)
                num_puts += int((~np.isin(families, lists)).sum())
                writer.add(batch)
            return writer.finish(), num_puts
