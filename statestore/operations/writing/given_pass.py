"""Given: rows of a user's beside those that stay, as the full states of a store.

They are laid by on the local disk by the state partition that Spark's hash gives them, sorted
there, and written.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from statestore.codec.merge import merge_runs
from statestore.codec.references import StoreName
from statestore.codec.rows import pick, to_numpy
from statestore.codec.sorting import gather, sort_into_runs
from statestore.core.errors import InvalidArgumentError
from statestore.operations.full_state import StateWriter, states_at_once
from statestore.operations.passes import Pass
from statestore.operations.rows_by_partition import RowsByPartition
from statestore.operations.states import read_rows
from statestore.operations.writing.family_rows import Gone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from statestore.backends.form import Work
    from statestore.checkpoint.commit import NewVersion
    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.copy_result import FamilyChange
    from statestore.operations.passes import NewState, StoreId
    from statestore.operations.writing.family_rows import FamilyRows
    from statestore.operations.writing.shape import StoreShape


@dataclass(frozen=True, eq=False)
class Given(Pass):
    """The rows of a store that stay, and those that are given.

    Attributes:
        shape: The store.
        rows: What becomes of its column families; those that are not here stay as they are.
    """

    shape: StoreShape
    rows: tuple[FamilyRows, ...]

    @property
    def families(self) -> tuple[FamilyChange, ...]:
        """What becomes of the column families, in words."""
        return tuple(of.change for of in self.rows)

    def write(self, stores: Sequence[StoreId], state: NewState) -> dict[StoreName, PublishedFile]:
        """Write them; refuse a key of one row that is there twice (kind duplicate-key)."""
        changed = {of.family.name: of.family for of in self.rows}
        families = tuple(
            changed.get(family.name, family) for family in self.shape.new.column_families
        )
        new = replace(
            self.shape.new,
            column_families=families,
            backend=state.backend,
            checkpoint_format=state.checkpoint_format,
            rescalable=True,
        )
        ((operator, name),) = stores
        partitions = range(self.shape.num_states)
        ids = [state.target.ids.new_id() for _ in partitions]
        with tempfile.TemporaryDirectory(dir=state.work.scratch_directory) as own:
            work = replace(state.work, scratch_directory=own)
            laid_by = RowsByPartition(own, self.shape.num_states)
            num_given = 0
            for piece in gather(self._all_rows(state.source, new.max_parallelism, own)):
                num_given += self._num_single(piece)
                laid_by.lay_by(piece)

            def write_one(partition: int) -> tuple[PublishedFile, int]:
                store = StoreName(operator, partition, name)
                of = replace(new, checkpoint_id=ids[partition])
                return self._write(state.location(store), of, laid_by.batches(partition), work)

            with ThreadPoolExecutor(states_at_once()) as pool:
                written = list(pool.map(write_one, partitions))
        num_doubles = num_given - sum(num_single for _, num_single in written)
        if num_doubles:
            raise InvalidArgumentError(
                "several rows have the same key",
                kind="duplicate-key",
                operator=operator,
                store=name,
                column_families=", ".join(changed),
                num_rows_too_many=num_doubles,
                to_fix="give one row a key, such as by GROUP BY key",
            )
        state.progress.add(
            state.version.state_bytes(head.trailer.store for head in self.shape.heads)
        )
        return {file.trailer.store: file for file, _ in written}

    def _all_rows(
        self, source: OpenCheckpoint, max_parallelism: int, scratch: str
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that stay, and those that are given."""
        replaced = [of for of in self.rows if of.replaced]
        if len(replaced) < len(self.shape.new.column_families):
            for head in self.shape.heads:
                is_gone = Gone(self.rows, head.trailer.store.partition)
                for batch in read_rows(source, head):
                    yield pick(batch, ~is_gone(batch))
        for of in self.rows:
            if of.given is not None:
                with closing(of.given.batches(scratch)) as given:
                    yield from of.columns.encode(given, max_parallelism)

    def _num_single(self, batch: pa.RecordBatch) -> int:
        """Return how many rows are of column families of one row a key: lists add theirs up."""
        lists = [family.id for family in self.shape.new.column_families if family.multi_values]
        return int((~np.isin(to_numpy(batch.column(1), np.uint16), lists)).sum())

    def _write(
        self,
        location: StoreLocation,
        new: NewVersion,
        batches: Iterator[pa.RecordBatch],
        work: Work,
    ) -> tuple[PublishedFile, int]:
        """Write a state partition; return what was published, and its keys of one row."""
        num_single = 0
        with tempfile.TemporaryDirectory(dir=work.scratch_directory) as own:
            writer = StateWriter(location, new, replace(work, scratch_directory=own))
            # Merged, a key that is there twice is one row.
            runs = sort_into_runs(batches, new.max_parallelism, own)
            for batch in merge_runs(runs, new.max_parallelism):
                num_single += self._num_single(batch)
                writer.add(batch)
            return writer.finish(), num_single
