"""Restore, decided: what a savepoint becomes, and whether it can; nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.codec.references import StoreName
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.core.key_groups import check_not_chosen, check_range, default_max_parallelism
from statestore.core.providers import PROVIDERS
from statestore.io.storage import is_within
from statestore.operations.committed_version import find_version
from statestore.operations.new_directory import check_target, not_apart
from statestore.operations.operator_map import OperatorMap
from statestore.operations.savepoint.restore import Restore

if TYPE_CHECKING:
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
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
) -> Restore:
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
        InvalidArgumentError: The checkpoint has files (kind checkpoint-exists); the operators do
            not become those of a query; the number of state partitions or the state backend cannot
            be had.
        IncompatibleError: The rows of a store do not follow their key groups (kind
            not-rescalable).
        NotFoundError, CorruptionError, StorageError: As `find_version` and `check_sources`.
    """
    check_target(target, "restore", source.uri)
    elsewhere = target.options.checkpoint_storage
    if elsewhere and is_within(elsewhere, source.uri):
        raise not_apart(elsewhere, source.uri)
    version = find_version(source)
    version.check_sources()
    restore = Restore(
        savepoint=savepoint,
        version=version,
        target=target,
        backend=backend or savepoint.backend,
        num_partitions=version.num_partitions if num_partitions is None else num_partitions,
        operators=(operators or OperatorMap()).resolve(
            [operator.id for operator in source.operators]
        ),
        claims=claims,
        keeps_query_id=keeps_query_id,
    )
    _check_backend(restore)
    _check_partitions(restore)
    _check_max_parallelism(restore)
    return restore


def _check_backend(restore: Restore) -> None:
    if restore.backend not in PROVIDERS:
        raise InvalidArgumentError(
            "unknown state backend",
            backend=restore.backend,
            to_fix=f"use one of {', '.join(PROVIDERS)}",
        )
    if restore.backend == "heap" and restore.target.memory is None:
        raise InvalidArgumentError(
            "the heap backend keeps state in the memory of the query's driver",
            backend=restore.backend,
            to_fix="use Savepoint(…, spark=session) in the driver's own Python program, or restore "
            "to the filesystem or rocksdb backend",
        )


def _check_max_parallelism(restore: Restore) -> None:
    for operator, name in restore.store_names:
        found = restore.version.heads[StoreName(operator, 0, name)].trailer.max_parallelism
        if restore.is_rehashed(operator, name):
            found = default_max_parallelism(restore.num_partitions)
        check_not_chosen(restore.options.max_parallelism, found)


def _check_partitions(restore: Restore) -> None:
    before, after = restore.version.num_partitions, restore.num_partitions
    if before == after:
        return
    check_range("num_partitions", after)
    for operator, name in restore.store_names:
        if restore.version.is_single(operator, name):
            continue
        for partition in range(before):
            store = StoreName(operator, partition, name)
            if not restore.version.heads[store].trailer.rescalable:
                raise IncompatibleError(
                    "the rows of a store do not follow their key groups",
                    kind="not-rescalable",
                    store=str(store),
                    num_partitions=before,
                    to_fix=f"restore with {before} state partitions",
                )
