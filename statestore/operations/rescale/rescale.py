"""Rescale: change the number of state partitions of a query that is stopped, or go back.

State first, Spark's logs last: `commits/<batch>` is the moment from which the new state partitions
count. A crash leaves, by how far it came,

    rescaled versions, no entry of a log     the old state; the query starts on it
    `offsets/<batch>`                        Spark refuses to start: finish or undo the rescale
    `commits/<batch>`                        the new state; the query starts on it

and to do the rescale again finishes it. An undo goes the same way back and takes the rescaled
versions away while Spark still refuses to start.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from statestore.checkpoint import rescaling
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY
from statestore.codec.joined_trailers import add_counts
from statestore.codec.partition_key import is_single
from statestore.codec.references import StoreName
from statestore.codec.rows import to_numpy
from statestore.core.errors import InvalidArgumentError, require_whole
from statestore.core.key_groups import check_not_chosen, check_range, default_max_parallelism
from statestore.operations.batches import find_rescale, read_own_batch
from statestore.operations.by_key import check_keys, check_strict
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE
from statestore.operations.in_use import is_query_running
from statestore.operations.rehashing import (
    not_where_they_belong,
    rehash,
    rehash_effort,
    rehash_store,
)
from statestore.operations.rescale.results import Rescale, StoreRescale, UndoRescale, Way
from statestore.operations.rescale.undo import UNDO, Undo
from statestore.operations.result import no_progress
from statestore.operations.states import read_rows
from statestore.operations.step import step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.operations.batches import OwnBatch
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.result import Progress
    from statestore.operations.step import Step


def rescale(
    checkpoint: OpenCheckpoint,
    num_partitions: int,
    *,
    count_rows: bool = False,
    dry_run: bool = False,
    progress: Progress = no_progress,
    reason: str | None = None,
) -> Rescale:
    """Change the number of state partitions of a query that does not run.

    Arguments, guarantee and errors as `Checkpoint.rescale`; `reason` is what the history says of
    why.
    """
    num_partitions = require_whole("num_partitions", num_partitions)
    of = _Rescaling(checkpoint, num_partitions, is_running=dry_run and is_query_running(checkpoint))
    if dry_run:
        return of.result(of.changes(), count_rows=count_rows, done=False)
    with step(checkpoint, "rescale", num_partitions=num_partitions) as one:
        if reason is not None:
            one.result["reason"] = reason
        return of.run(one, progress, count_rows=count_rows)


def begun_rescale(checkpoint: OpenCheckpoint) -> int | None:
    """Return the number of state partitions of a rescale that was planned and not committed.

    None where there is none.

    Raises:
        NotFoundError, CorruptionError, StorageError: The logs cannot be read.
    """
    found = read_own_batch(checkpoint, checkpoint.newest_version)
    return found.num_partitions if found is not None and found.kind == "rescale" else None


def numbers_by_reference(checkpoint: OpenCheckpoint, numbers: Iterable[int]) -> list[int]:
    """Return those of some numbers of state partitions for which no row is read; any query may run.

    Raises:
        InvalidArgumentError: The query has no state, or its state is one whatever the number.
        IncompatibleError: As `Checkpoint.rescale`.
        NotFoundError, CorruptionError, StorageError: State or logs cannot be read.
    """
    check_rescalable(checkpoint)
    stores = _heads_by_store(checkpoint)
    key_groups = {
        heads[min(heads)].trailer.max_parallelism
        for store, heads in stores.items()
        if not _is_single(store[1], heads)
    }
    if not key_groups:
        raise InvalidArgumentError(
            "all state of the query is in one state partition, whatever their number",
            checkpoint=checkpoint.uri,
            to_fix="leave the number as it is",
        )
    common = math.gcd(*key_groups)
    return [number for number in numbers if common % number == 0]


def _heads_by_store(checkpoint: OpenCheckpoint) -> dict[tuple[int, str], dict[int, PublishedFile]]:
    """Return the files of the newest version: by operator and store, then by state partition.

    Raises:
        IncompatibleError: State has another key than Spark partitions by (kind not-rescalable).
    """
    found: dict[tuple[int, str], dict[int, PublishedFile]] = {}
    for store, head in checkpoint.heads(checkpoint.newest_version).items():
        found.setdefault((store.operator, store.name), {})[store.partition] = head
    for (operator, name), heads in found.items():
        families = {family for head in heads.values() for family in head.trailer.column_families}
        check_keys(checkpoint, operator, name, families)
    return found


def _is_single(name: str, heads: Mapping[int, PublishedFile]) -> bool:
    return is_single(name, heads[min(heads)].trailer.column_families, heads)


def undo_rescale(checkpoint: OpenCheckpoint, *, dry_run: bool = False) -> UndoRescale:
    """Go back to the state partitions before the newest rescale, finished or not.

    Arguments, guarantee and errors as `Checkpoint.undo_rescale`.
    """
    undo = Undo(checkpoint)
    if dry_run:
        return undo.result
    with step(checkpoint, UNDO) as one:
        undo.run(one)
    return replace(undo.result, done=True)


@dataclass(frozen=True, slots=True)
class _StoreChange:
    """A store with what it is made of now and then; `made_of` is None where it is rehashed."""

    operator: int
    operator_name: str
    name: str
    heads: Mapping[int, PublishedFile]
    way: Way
    max_parallelism: int
    made_of: rescaling.RescaledStores | None


class _Rescaling:
    """One rescale of an open checkpoint; of one whose query runs only a dry run."""

    def __init__(
        self, checkpoint: OpenCheckpoint, num_partitions: int, *, is_running: bool
    ) -> None:
        self._checkpoint = checkpoint
        self._num_partitions = num_partitions
        self._is_running = is_running
        check_range("num_partitions", num_partitions)
        self._backend = checkpoint.backend
        planned = checkpoint.newest_version
        if is_running and planned in checkpoint.planned_batches:
            # It is the query's, unless a rescale began it and the query is about to be refused.
            own = read_own_batch(checkpoint, planned)
            found = own if own is not None and own.kind == "rescale" else None
        else:
            found = find_rescale(checkpoint)
        check_rescalable(checkpoint)
        self._begun = None if found is None or found.is_committed else found
        if self._begun is not None and self._begun.num_partitions != num_partitions:
            raise _begun_with_another(checkpoint, self._begun, num_partitions)
        self._is_needed = self._begun is not None or checkpoint.num_partitions != num_partitions
        self._batch = checkpoint.newest_version - (not self._is_needed)

    def result(self, changes: Sequence[_StoreChange], *, count_rows: bool, done: bool) -> Rescale:
        """Return the result, or the plan."""
        stores = list(map(self._describe, changes))
        if count_rows:
            stores = list(map(self._counted, stores, changes))
        return Rescale(
            checkpoint=self._checkpoint.uri,
            backend=self._backend,
            batch=self._batch,
            num_partitions_before=self._checkpoint.num_partitions,
            num_partitions=self._num_partitions,
            is_begun=self._begun is not None,
            is_needed=self._is_needed,
            is_running=self._is_running,
            stores=tuple(stores),
            done=done,
        )

    def run(self, step: Step, progress: Progress, *, count_rows: bool) -> Rescale:
        """Do it."""
        step.to_version = self._batch + 1
        step.result["num_partitions_before"] = self._checkpoint.num_partitions
        changes = self.changes()
        result = self.result(changes, count_rows=count_rows, done=True)
        if not self._is_needed:
            return result
        step.commit(
            self._batch,
            "rescale",
            self._write_state(changes, progress),
            is_begun=self._begun is not None,
            num_partitions=self._num_partitions,
        )
        return result

    def changes(self) -> list[_StoreChange]:
        """Return the change of each store."""
        if not self._is_needed:
            return []
        return [self._change(*key, of) for key, of in _heads_by_store(self._checkpoint).items()]

    def _change(self, operator: int, name: str, heads: dict[int, PublishedFile]) -> _StoreChange:
        trailer = heads[min(heads)].trailer
        is_single = _is_single(name, heads)
        way: Way = "whole" if is_single else "key-groups"
        max_parallelism = trailer.max_parallelism
        made_of = None
        if not is_single and max_parallelism % self._num_partitions:
            way, max_parallelism = "rehash", default_max_parallelism(self._num_partitions)
            for head in heads.values():
                if not head.trailer.rescalable:
                    raise not_where_they_belong(head.trailer)
        else:
            made_of = rescaling.plan_rescale(heads, self._num_partitions, is_single=is_single)
        check_not_chosen(self._checkpoint.options.max_parallelism, max_parallelism)
        operator_name = self._checkpoint.operator(operator).name
        return _StoreChange(operator, operator_name, name, heads, way, max_parallelism, made_of)

    def _describe(self, change: _StoreChange) -> StoreRescale:
        files: dict[str, int] = {}
        for head in change.heads.values():
            location = self._checkpoint.location(head.trailer.store)
            refs = (ref for ref in head.chain if ref.rows)
            files |= {location.path(ref.path): ref.size for ref in refs}
        made_of = change.made_of
        rows = [] if made_of is None else [made_of.num_keys(partition) for partition in made_of]
        known = tuple(count for count in rows if count is not None)
        return StoreRescale(
            change.operator,
            change.operator_name,
            change.name,
            change.way,
            change.max_parallelism,
            num_files=len(files),
            num_bytes=sum(files.values()),
            num_rows=add_counts(head.trailer.num_keys for head in change.heads.values()),
            partition_rows=known if known and len(known) == len(rows) else None,
        )

    def _counted(self, store: StoreRescale, change: _StoreChange) -> StoreRescale:
        """Return it with the rows of every new state partition, after reading them all."""
        num_partitions = 1 if change.way == "whole" else self._num_partitions
        num_rows = np.zeros(num_partitions, np.int64)
        for head in change.heads.values():
            for batch in read_rows(self._checkpoint, head):
                if change.way == "rehash":
                    batch = rehash(batch, head.trailer, change.max_parallelism)
                owners = to_numpy(batch.column(0), np.uint16) % num_partitions
                num_rows += np.bincount(owners, minlength=num_partitions)
        rows = tuple(num_rows.tolist())
        return replace(store, num_rows=sum(rows), partition_rows=rows)

    def _write_state(
        self, changes: Sequence[_StoreChange], progress: Progress
    ) -> dict[StoreName, PublishedFile]:
        """Make the rescaled version of every store."""
        made: dict[StoreName, PublishedFile] = {}
        jobs = [
            (StoreName(change.operator, partition, change.name), made_of)
            for change in changes
            for partition, made_of in (change.made_of or {}).items()
        ]
        to_rehash = [change for change in changes if change.made_of is None]
        total = len(jobs) + sum(rehash_effort(change.heads.values()) for change in to_rehash)
        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            for published in pool.map(self._write, *zip(*jobs, strict=True)) if jobs else ():
                made[published.trailer.store] = published
                progress(len(made), total)
        done = len(jobs)
        for change in to_rehash:

            def progress_of_rows(num_rows: int, before: int = done) -> None:
                progress(before + num_rows, total)

            made |= rehash_store(
                self._checkpoint, change.heads, self._num_partitions, progress_of_rows
            )
            done += rehash_effort(change.heads.values())
        return made

    def _write(self, store: StoreName, made_of: rescaling.RescaledStore) -> PublishedFile:
        return rescaling.write_rescaled_version(
            self._checkpoint.location(store),
            made_of,
            self._checkpoint.scratch_directory,
            clock=self._checkpoint.clock,
            home=self._checkpoint.home(store),
        )


def check_rescalable(checkpoint: OpenCheckpoint) -> None:
    """Check that the rows of every operator are where Spark's partition function puts them.

    Raises:
        IncompatibleError: The query does not pin the strict distribution (kind not-rescalable).
        NotFoundError: An operator has state and no metadata.
        InvalidArgumentError: The query has no stateful operator.
    """
    check_strict(checkpoint, checkpoint.conf)
    checkpoint.require_metadata(checkpoint.newest_version)
    if not checkpoint.operators:
        raise InvalidArgumentError(
            "the query has no state to rescale",
            checkpoint=checkpoint.uri,
            to_fix=f"start the query with another {NUM_PARTITIONS_KEY}; without state nothing "
            "keeps the old one",
        )


def _begun_with_another(
    checkpoint: OpenCheckpoint, begun: OwnBatch, num_partitions: int
) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a rescale to another number of state partitions was begun and not finished",
        kind="unfinished-operation",
        checkpoint=checkpoint.uri,
        batch=begun.batch,
        begun=begun.num_partitions,
        asked=num_partitions,
        to_fix=f"finish it by a rescale to {begun.num_partitions}, or take it back (--undo, "
        "undo_rescale), before you rescale again",
    )
