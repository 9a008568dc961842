"""Restore: a new checkpoint made of a savepoint or a checkpoint, from which a query goes on.

State files are copied as they are where the new checkpoint keeps its state the same way, and else
written anew. What a query wrote with Spark's own providers is written anew, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.checkpoint.operator_metadata import JOIN_OPERATOR
from statestore.checkpoint.query_log import JOIN_FORMAT_KEY
from statestore.codec import partition_key
from statestore.core.errors import IncompatibleError, InvalidArgumentError, require_whole
from statestore.core.key_groups import check_not_chosen, check_range, default_max_parallelism
from statestore.core.providers import IN_DRIVER_MEMORY, PROVIDERS, SUCCESSORS
from statestore.io.storage import is_within
from statestore.operations.by_key import check_keys, check_strict
from statestore.operations.copying import Copy, source_of
from statestore.operations.in_use import require_not_in_use, same_batches
from statestore.operations.metadata_file import new_query_id, query_metadata
from statestore.operations.new_directory import not_apart
from statestore.operations.operator_map import (
    JOIN_FORMAT_OF_STORES,
    JOIN_STORES,
    OperatorMap,
    ResolvedOperators,
    store_names_of,
)
from statestore.operations.passes import Copied, Dealt, Linked, Rehashed
from statestore.operations.savepoint.from_spark import FromSpark, find_spark_states
from statestore.operations.states import state_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.copying import MadeFiles
    from statestore.operations.passes import Pass, StoreId
    from statestore.operations.savepoint.savepoint import SavepointInfo
    from statestore.operations.store_state import StoreState


def decide_restore(
    savepoint: SavepointInfo | None,
    source: OpenCheckpoint,
    target: Place,
    *,
    version: int | None,
    backend: str | None,
    num_partitions: int | None,
    operators: OperatorMap,
    claims: bool,
    keeps_query_id: bool,
) -> Copy:
    """Decide how a savepoint or a checkpoint becomes a new checkpoint; nothing is written.

    Args:
        savepoint: What the savepoint says about itself; None for a checkpoint.
        source: Its files; of a query that does not run. `Copy.run` raises InUseError where that
            query has run a batch meanwhile.
        target: The new checkpoint. Its options also say where state is kept, and the form of files.
        version: As `Directory.restore`.
        backend: As `Directory.restore`.
        num_partitions: As `Directory.restore`.
        operators: Which operators of the source become which of the query.
        claims: Whether the savepoint is moved, and gone afterwards.
        keeps_query_id: Whether the query goes on under its ID; else it is a new query.

    Errors as `Directory.restore`.
    """
    elsewhere = target.options.checkpoint_storage
    is_sparks = savepoint is None and source.is_of_spark
    found = source_of("restore", source, target, version, has_heads=not is_sparks)
    if elsewhere and is_within(elsewhere, source.uri):
        raise not_apart(elsewhere, source.uri)
    if savepoint is None:
        _check_checkpoint(source, claims=claims)
    elif claims and operators.dropped:
        raise InvalidArgumentError(
            "a claimed savepoint is deleted, and with it the state of an operator that is dropped",
            savepoint=source.uri,
            drop_operators=", ".join(map(str, sorted(operators.dropped))),
            to_fix="restore without claiming, and delete the savepoint when the query runs",
        )
    require_same = same_batches(source)
    kept_by = source.kept_by if savepoint is None else savepoint.backend
    to_backend = backend or SUCCESSORS.get(kept_by, kept_by)
    _check_backend(to_backend, target)
    to_partitions = found.num_partitions
    if num_partitions is not None:
        to_partitions = require_whole("num_partitions", num_partitions)
    check_range("num_partitions", to_partitions)
    kept = operators.resolve([operator.id for operator in source.operators])
    conf = _conf_of_join(found, kept)
    max_parallelism: int | None = None
    if is_sparks:
        wanted = target.options.max_parallelism
        states, max_parallelism = find_spark_states(found, to_partitions, wanted)
    else:
        states = {store: state_of(source, head) for store, head in found.heads.items()}
    same = (
        to_backend == source.kept_by
        and to_backend not in IN_DRIVER_MEMORY
        and to_partitions == found.num_partitions
        and all(old == new for old, new in kept.kept.items())
    )
    as_is: Pass = Copied()
    if claims:
        as_is = Linked.between(found, target, state_uri=elsewhere, is_moved=True)
    passes = _passes_of(
        _by_store(states.values(), kept.kept),
        found,
        target,
        to_partitions,
        spark_max_parallelism=max_parallelism,
        unhashed=as_is if same else Dealt(),
    )
    found_id = found.query_id if savepoint is None else savepoint.query_id
    query_id = (found_id or "") if keeps_query_id else ""
    metadata = query_metadata(query_id or new_query_id(target.ids))

    def becomes(_: MadeFiles) -> str:
        # Of a query over Spark's providers no lease tells that it began meanwhile.
        require_same()
        if savepoint is None:
            require_not_in_use(source)
        return metadata

    return Copy(
        operation="restore",
        version=found,
        target=target,
        passes=passes,
        becomes=becomes,
        backend=to_backend,
        num_partitions=to_partitions,
        checkpoint_format=found.checkpoint_format,
        operators=kept,
        query_id=query_id,
        state_uri=elsewhere,
        claims=claims,
        conf=conf,
    )


def _conf_of_join(version: CommittedVersion, operators: ResolvedOperators) -> dict[str, str]:
    """Return what to pin so that Spark begins a join that is added: the format with four stores.

    One with one store it begins in batch 0 of a query alone, as a transformWithState.

    Raises:
        InvalidArgumentError: Another join of the query has one store.
    """
    pinned = version.offsets[version.batch].conf
    has_stores = store_names_of(JOIN_OPERATOR, pinned) == JOIN_STORES
    if JOIN_OPERATOR not in operators.added.values() or has_stores:
        return {}
    joins = [
        operator.id
        for operator in version.checkpoint.operators
        if operator.name == JOIN_OPERATOR and operator.id in operators.kept
    ]
    if joins:
        raise InvalidArgumentError(
            "Spark begins a join of this state format in batch 0 of a query alone, and the query "
            "has another such join",
            operator=", ".join(map(str, joins)),
            join_format=pinned[JOIN_FORMAT_KEY],
            to_fix="start the query of the new code with a new checkpoint",
        )
    return {JOIN_FORMAT_KEY: JOIN_FORMAT_OF_STORES}


def _check_checkpoint(source: OpenCheckpoint, *, claims: bool) -> None:
    """Check that what is no savepoint can be restored from: no query runs, and it stays."""
    if claims:
        raise InvalidArgumentError(
            "only a savepoint can be claimed",
            checkpoint=source.uri,
            to_fix="restore without claiming, and delete the checkpoint when the query runs",
        )
    require_not_in_use(source)


def _passes_of(
    states: Mapping[StoreId, tuple[StoreState, ...]],
    version: CommittedVersion,
    target: Place,
    num_partitions: int,
    *,
    spark_max_parallelism: int | None,
    unhashed: Pass,
) -> dict[StoreId, Pass]:
    """Return which way the state of each store goes, by what its state partitions have.

    State of Spark's own providers gets `spark_max_parallelism` key groups, which is None where it
    is this package's. What keeps its key groups goes the way `unhashed`.

    Raises:
        IncompatibleError: The number of state partitions changes, and rows of a store do not follow
            their keys (kind not-rescalable).
        InvalidArgumentError: As `check_not_chosen`.
        NotFoundError, CorruptionError, StorageError: Spark's schemas of a store cannot be read.
    """
    passes: dict[StoreId, Pass] = {}
    checkpoint = version.checkpoint
    for store, of in states.items():
        partitions = [state.store.partition for state in of]
        is_single = partition_key.is_single(store[1], of[0].column_families, partitions)
        if not is_single and num_partitions != version.num_partitions:
            check_strict(checkpoint, version.offsets[version.batch].conf)
            families = {family for state in of for family in state.column_families}
            check_keys(checkpoint, *store, families)
            _check_rescalable(of)
        if spark_max_parallelism is not None:
            num_taking = 1 if is_single else num_partitions
            passes[store] = FromSpark(of, num_taking, spark_max_parallelism)
            continue
        found = of[0].max_parallelism
        is_rehashed = not is_single and found % num_partitions > 0
        if is_rehashed:
            found = default_max_parallelism(num_partitions)
        check_not_chosen(target.options.max_parallelism, found)
        passes[store] = Rehashed() if is_rehashed else unhashed
    return passes


def _by_store(
    states: Iterable[StoreState], kept: Mapping[int, int]
) -> dict[StoreId, tuple[StoreState, ...]]:
    """Return the states of operators that are kept, those of a store by state partition."""
    found: dict[StoreId, tuple[StoreState, ...]] = {}
    for state in sorted(states, key=lambda state: state.store.partition):
        if state.store.operator in kept:
            of = state.store.operator, state.store.name
            found[of] = (*found.get(of, ()), state)
    return found


def _check_backend(backend: str, target: Place) -> None:
    if backend not in PROVIDERS:
        raise InvalidArgumentError(
            "unknown state backend", backend=backend, to_fix=f"use one of {', '.join(PROVIDERS)}"
        )
    if backend in IN_DRIVER_MEMORY and target.memory is None:
        raise InvalidArgumentError(
            "the heap backend keeps state in the memory of the query's driver",
            backend=backend,
            to_fix="give spark=session in the driver's own Python program, or restore to the "
            "filesystem or rocksdb backend",
        )


def _check_rescalable(states: Iterable[StoreState]) -> None:
    for state in states:
        if not state.rescalable:
            raise IncompatibleError(
                "the rows of a store do not follow their key groups",
                kind="not-rescalable",
                store=str(state.store),
                num_partitions=state.num_partitions,
                to_fix=f"restore with {state.num_partitions} state partitions",
            )
