"""Restore: a new checkpoint made of a savepoint, from which a query goes on.

State files are copied as they are where the new checkpoint keeps its state the same way, and else
written anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.codec.references import StoreName
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.core.key_groups import check_not_chosen, check_range, default_max_parallelism
from statestore.core.providers import IN_DRIVER_MEMORY, PROVIDERS
from statestore.io.storage import is_within
from statestore.operations.copying import Copy, source_of
from statestore.operations.new_directory import new_query_id, not_apart, query_metadata
from statestore.operations.operator_map import OperatorMap
from statestore.operations.passes import Copied, Dealt, Linked, Rehashed

if TYPE_CHECKING:
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.passes import Pass, Store
    from statestore.operations.savepoint.savepoint import SavepointInfo


def decide_restore(
    savepoint: SavepointInfo,
    source: OpenCheckpoint,
    target: Place,
    *,
    backend: str | None = None,
    num_partitions: int | None = None,
    operators: OperatorMap | None = None,
    claims: bool = False,
    keeps_query_id: bool = True,
) -> Copy[None]:
    """Decide how a savepoint becomes a new checkpoint; nothing is written.

    Args:
        savepoint: The savepoint, as `open_savepoint` yields it.
        source: Its files, likewise.
        target: The new checkpoint, which must not be there; of any storage. Its options also say
            where state is kept (checkpointStorage), and the form of files.
        backend: Its state backend; that of the checkpoint the savepoint was taken of when None.
        num_partitions: Number of its state partitions, 1 to 32768; the savepoint's when None. Where
            it does not divide the number of key groups, every row is hashed anew, which needs local
            disk for the state three times.
        operators: Which operators of the savepoint become which of the query; all stay when None.
        claims: Whether the savepoint is moved, and gone afterwards.
        keeps_query_id: Whether the query goes on under its ID, so that sinks which know its batches
            by it pass over those they have; else it is a new query beside the one that was.

    Raises:
        InvalidArgumentError: The operators do not become those of a query; the number of state
            partitions or the state backend cannot be had; or as `source_of`.
        IncompatibleError: The rows of a store do not follow their key groups (kind
            not-rescalable).
        NotFoundError, CorruptionError, StorageError: As `source_of`.
    """
    elsewhere = target.options.checkpoint_storage
    version = source_of("restore", source, target)
    if elsewhere and is_within(elsewhere, source.uri):
        raise not_apart(elsewhere, source.uri)
    to_backend = backend or savepoint.backend
    _check_backend(to_backend, target)
    to_partitions = version.num_partitions if num_partitions is None else num_partitions
    kept = (operators or OperatorMap()).resolve([operator.id for operator in source.operators])
    stores = [store for store in version.stores if store[0] in kept.kept]
    _check_partitions(version, stores, to_partitions)
    same = (
        to_backend == source.backend
        and to_partitions == version.num_partitions
        and all(old == new for old, new in kept.kept.items())
    )
    as_is = Linked.between(source, target, is_moved=True) if claims else Copied()
    passes: dict[Store, Pass] = {}
    for store in stores:
        max_parallelism = _max_parallelism(version, store)
        is_rehashed = not version.is_single(*store) and max_parallelism % to_partitions > 0
        if is_rehashed:
            max_parallelism = default_max_parallelism(to_partitions)
        check_not_chosen(target.options.max_parallelism, max_parallelism)
        passes[store] = Rehashed() if is_rehashed else as_is if same else Dealt()
    query_id = savepoint.query_id if keeps_query_id else ""
    metadata = query_metadata(query_id or new_query_id(target.ids))
    return Copy(
        operation="restore",
        version=version,
        target=target,
        passes=passes,
        becomes=lambda _: (metadata, None),
        backend=to_backend,
        num_partitions=to_partitions,
        checkpoint_format=version.checkpoint_format,
        operators=kept,
        query_id=query_id,
        state_uri=elsewhere,
        claims=claims,
    )


def _check_backend(backend: str, target: Place) -> None:
    if backend not in PROVIDERS:
        raise InvalidArgumentError(
            "unknown state backend", backend=backend, to_fix=f"use one of {', '.join(PROVIDERS)}"
        )
    if backend in IN_DRIVER_MEMORY and target.memory is None:
        raise InvalidArgumentError(
            "the heap backend keeps state in the memory of the query's driver",
            backend=backend,
            to_fix="use Savepoint(…, spark=session) in the driver's own Python program, or restore "
            "to the filesystem or rocksdb backend",
        )


def _max_parallelism(version: CommittedVersion, store: Store) -> int:
    operator, name = store
    return version.heads[StoreName(operator, 0, name)].trailer.max_parallelism


def _check_partitions(version: CommittedVersion, stores: list[Store], after: int) -> None:
    before = version.num_partitions
    if before == after:
        return
    check_range("num_partitions", after)
    for operator, name in stores:
        if version.is_single(operator, name):
            continue
        for partition in range(before):
            store = StoreName(operator, partition, name)
            if not version.heads[store].trailer.rescalable:
                raise IncompatibleError(
                    "the rows of a store do not follow their key groups",
                    kind="not-rescalable",
                    store=str(store),
                    num_partitions=before,
                    to_fix=f"restore with {before} state partitions",
                )
