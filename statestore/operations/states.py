"""The rows of a store at a version as bytes, whoever wrote it: record batches of puts.

What reading, diff and inspection stand on. A version of this package's is restored the way an
engine does it, into the scratch directory of the opened checkpoint, and passes by in bounded
memory; `spark_states` does the same for Spark's own providers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from statestore.codec.joined_trailers import join_schemas
from statestore.core.errors import InvalidArgumentError, NotFoundError, require_whole
from statestore.operations import spark_states
from statestore.operations.addresses import NO_SUCH_ROWS, find_place, operator_of
from statestore.operations.store_state import StoreState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.addresses import Address
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.store_state import States, VersionKind


def most_rows(head: PublishedFile) -> int:
    """Return the rows of a version, or where they are not known all that its files have; not 0."""
    known = head.trailer.num_keys
    return max(1, sum(ref.rows for ref in head.chain) if known is None else known)


def find_states(
    checkpoint: OpenCheckpoint,
    version: int,
    *,
    operator: int | None = None,
    name: str | None = None,
) -> States:
    """Return a committed version of every store in every state partition that has it.

    Arguments and errors as `OpenCheckpoint.heads`; of Spark's own providers as
    `spark_states.find_states`.
    """
    if checkpoint.is_of_spark:
        return spark_states.find_states(checkpoint, version, operator=operator, name=name)
    heads = checkpoint.heads(version, operator=operator, name=name)
    return {store: state_of(checkpoint, head) for store, head in heads.items()}


def state_of(checkpoint: OpenCheckpoint, head: PublishedFile) -> StoreState:
    """Return a version of a store of this package's, by the delta that makes it."""
    trailer = head.trailer
    kind: VersionKind = "incremental" if trailer.files else "full"
    if trailer.files and trailer.parent is None:
        kind = "rescaled"
    return StoreState(
        store=trailer.store,
        num_partitions=trailer.num_partitions,
        max_parallelism=trailer.max_parallelism,
        rescalable=trailer.rescalable,
        num_keys=trailer.num_keys,
        most_rows=most_rows(head),
        column_families=trailer.column_families,
        kind=kind,
        own_bytes=head.ref.size,
        full_bytes=sum(ref.size for ref in head.chain),
        num_files=1 + len(trailer.files),
        num_taken_over=sum(ref.is_foreign for ref in trailer.files),
        deltas=tuple(ref for ref in trailer.files if ref.kind == "delta"),
        contents=(trailer.lineage, trailer.files),
        is_by_key=checkpoint.work.form(checkpoint.body).is_by_key,
        rows=partial(read_rows, checkpoint, head),
        key_group_rows=trailer.key_group_rows,
        parent_commit=trailer.parent_commit,
    )


def find_store(
    checkpoint: OpenCheckpoint, operator: int, store: str, version: int | None = None
) -> States:
    """Return a version of a store, one a state partition.

    Args:
        checkpoint: The checkpoint.
        operator: Operator ID.
        store: Name of a store that the operator has.
        version: State version, which is batch + 1; None for the newest committed.

    Raises:
        NotFoundError: No batch is committed, or the version was expired.
        IncompatibleError, CorruptionError, FencedError, StorageError: As `find_states`.
    """
    version = checkpoint.newest_version if version is None else version
    check_committed(checkpoint, version)
    return find_states(checkpoint, version, operator=operator, name=store)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """A column family of a store at a version, in all its state partitions.

    Attributes:
        states: The store's versions.
        name: Name of the column family.
    """

    states: States
    name: str

    @property
    def family(self) -> ColumnFamily:
        """The column family.

        Raises:
            InvalidArgumentError: The version has none of that name; names those it has.
        """
        known = families_of(self.states)
        if self.name not in known:
            raise InvalidArgumentError(
                "the store has no such column family",
                column_family=self.name,
                known=", ".join(known),
                to_fix="use one of these",
            )
        return known[self.name]


def rows_at(checkpoint: OpenCheckpoint, address: Address, version: int | None) -> FoundRows:
    """Return the rows of an address at a version.

    Raises:
        InvalidArgumentError: As `find_place`.
        NotFoundError, IncompatibleError, CorruptionError, FencedError, StorageError: As
            `find_store`.
    """
    at = checkpoint.newest_version if version is None else version
    check_committed(checkpoint, at)
    operators = checkpoint.operators_at(at)
    if operator_of(address) not in {one.id for one in operators}:
        checkpoint.require_operators(at)  # it may be one that nobody knows of
    stores = cache(partial(find_store, checkpoint, version=version))
    place = find_place(
        address,
        operators,
        lambda operator, store: families_of(stores(operator, store)).values(),
    )
    return FoundRows(stores(place.operator, place.store), place.family)


def rows_of_both(
    old: OpenCheckpoint,
    new: OpenCheckpoint,
    address: Address,
    versions: tuple[int | None, int | None],
) -> tuple[FoundRows, FoundRows]:
    """Return the rows of an address at a version of each of two checkpoints.

    Where one of them has none of that name, but the same store, it has no rows: it is from before
    the state variable was made.

    Raises:
        As `rows_at`.
    """
    found: list[FoundRows | InvalidArgumentError] = []
    for checkpoint, version in zip((old, new), versions, strict=True):
        try:
            found.append(rows_at(checkpoint, address, version))
        except InvalidArgumentError as error:
            found.append(error)
    for at, checkpoint in enumerate((old, new)):
        one, other = found[at], found[1 - at]
        if isinstance(one, InvalidArgumentError):
            is_absent = address is not None and one.problem == NO_SUCH_ROWS
            if not is_absent or isinstance(other, InvalidArgumentError) or not other.states:
                raise one
            store = next(iter(other.states))
            operators = [info for info in checkpoint.operators if info.id == store.operator]
            if store.name not in [info.name for each in operators for info in each.stores]:
                raise one
            states = find_store(checkpoint, store.operator, store.name, versions[at])
            found[at] = FoundRows(states, other.name)
    return found[0], found[1]  # type: ignore[return-value]


def check_committed(checkpoint: OpenCheckpoint, version: int) -> None:
    """Check that a version was committed; it may have been expired since.

    Raises:
        InvalidArgumentError: It is no whole number.
        NotFoundError: It was not committed.
    """
    if not checkpoint.newest_version:
        raise NotFoundError(
            "no batch of the query is committed yet",
            kind="version-not-found",
            checkpoint=checkpoint.uri,
            planned_batch=checkpoint.newest_planned,
            to_fix="wait until the query has ended its first batch; when it is stopped, start it",
        )
    if require_whole("version", version) not in range(1, checkpoint.newest_version + 1):
        raise NotFoundError(
            "the version is not committed",
            kind="version-not-found",
            checkpoint=checkpoint.uri,
            version=version,
            newest_version=checkpoint.newest_version,
            to_fix="ask for a version from 1 to the newest; batch b makes version b + 1",
        )


def of_partitions(states: States, partitions: Iterable[int]) -> States:
    """Return those of some state partitions.

    Raises:
        InvalidArgumentError: There is no such state partition.
    """
    wanted = set(partitions)
    num_partitions = next(iter(states.values())).num_partitions
    unknown = wanted - set(range(num_partitions))
    if unknown:
        raise InvalidArgumentError(
            "there is no such state partition",
            partitions=", ".join(map(str, sorted(unknown))),
            num_partitions=num_partitions,
            to_fix=f"use numbers from 0 to {num_partitions - 1}",
        )
    return {store: state for store, state in states.items() if store.partition in wanted}


def families_of(states: States) -> dict[str, ColumnFamily]:
    """Return the column families of all state partitions together, by name."""
    found: dict[str, ColumnFamily] = {}
    for state in states.values():
        for family in state.column_families:
            found[family.name] = join_schemas(found.get(family.name, family), family)
    return found


def read_rows(
    checkpoint: OpenCheckpoint,
    head: PublishedFile,
    column_family: str | None = None,
    key_group: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a store's version.

    Args:
        checkpoint: The checkpoint.
        head: The delta of the version.
        column_family: Name of the column family, None for all.
        key_group: The only wanted key group, None for all.

    Yields:
        Record batches of the state file schema, puts only, each key once and only keys of the
        store's own state partition. In file order, of the rocksdb backend in order of column family
        and key.

    Raises:
        NotFoundError, CorruptionError, FencedError, IncompatibleError, StorageError: As
            `load_files`.
    """
    of = head.trailer
    # State partitions number their column families by themselves.
    ids = {family.name: family.id for family in of.column_families}
    family = None if column_family is None else ids.get(column_family)
    if family is None and column_family is not None:
        return
    location = checkpoint.location(of.store)
    work = checkpoint.work
    yield from work.form(location.body).rows(location, head, work, family, key_group)
