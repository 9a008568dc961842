"""What a conversion to one of Spark's own providers did or would do; nothing is written here."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.operator_metadata import OperatorInfo
from statestore.codec.partition_key import is_single
from statestore.core.errors import (
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
)
from statestore.core.providers import IN_DRIVER_MEMORY, PROVIDERS, SPARK_PROVIDERS
from statestore.core.text import format_table
from statestore.operations.batches import is_of_operation
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE
from statestore.operations.committed_version import spark_files_of
from statestore.operations.metadata_file import read_metadata
from statestore.operations.new_directory import check_target
from statestore.operations.result import Change, Made, NewDirectoryResult
from statestore.operations.source_logs import check_sources
from statestore.operations.states import find_states

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint

CONVERT = "convert"
"""Name of the operation in `metadata` of the new directory, until it is whole."""


@dataclass(frozen=True, slots=True)
class ConvertedOperator:
    """A stateful operator to convert.

    Attributes:
        info: The operator and its stores, as Spark's metadata has them.
        num_partitions: State partitions that have state: all, or 1 where the operator keeps its
            state in partition 0, as a global aggregation does. What is missing is missed when it is
            read.
    """

    info: OperatorInfo
    num_partitions: int


@dataclass(frozen=True, repr=False)
class Convert(NewDirectoryResult[Made]):
    """What a conversion did, or would do.

    Attributes:
        source, target: URIs of the checkpoint and of the new one.
        backend: State backend of the checkpoint.
        provider: Name of Spark's own provider that the new one is for.
        batch: Newest committed batch.
        num_partitions: State partitions of the query.
        checkpoint_format: 1 or 2, of the new one: 1 for Spark's HDFS-backed provider, which has no
            checkpoint IDs, else that of the checkpoint.
        operators: Operators with state.
        is_begun: There is an unfinished conversion at `target`, which is done anew.
        state_bytes: Bytes of the state files that are read; None where this cannot read them.
        unseen: The newest batches, ascending, where an operation made them and no sink was given
            them: Spark's providers write no entry of them into the log of Spark's file sink.
        rows: Rows by operator ID and store name, of all state partitions; None of a dry run.
    """

    source: str
    target: str
    backend: str
    provider: str
    batch: int
    num_partitions: int
    checkpoint_format: int
    operators: tuple[ConvertedOperator, ...]
    is_begun: bool
    state_bytes: int | None
    unseen: tuple[int, ...] = ()
    rows: Mapping[tuple[int, str], int] | None = None

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the state files that are read: those that are written hold the same rows."""
        return self.state_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """The new checkpoint."""
        return (Change("write", self.target),)

    def __str__(self) -> str:
        lines = [
            f"from  {self.source}: {self.backend}, version {self.version}",
            f"to    {self.target}: {self.provider}, checkpoint format v{self.checkpoint_format}",
        ]
        if self.is_begun:
            lines.append("      deletes the unfinished conversion that is there")
        if self.unseen:
            lines.append(
                f"sink  no sink was given batch {', '.join(map(str, self.unseen))}: where it is "
                "Spark's file sink, run a batch of the query first (docs/convert.md)"
            )
        rows = [
            [operator.info.id, operator.info.name, store.name, operator.num_partitions]
            for operator in self.operators
            for store in operator.info.stores
        ]
        table = format_table(["operator", "name", "store", "state partitions"], rows)
        return "\n".join([*lines, table])

    def fields(self) -> dict[str, Any]:
        """Return the attributes that tell of the state, and every store."""
        return {
            "done": self.done,
            "source": self.source,
            "target": self.target,
            "backend": self.backend,
            "provider": self.provider,
            "version": self.version,
            "checkpoint_format": self.checkpoint_format,
            "is_begun": self.is_begun,
            "state_bytes": self.state_bytes,
            "unseen": list(self.unseen),
            "stores": [
                {
                    "operator": operator.info.id,
                    "name": operator.info.name,
                    "store": store.name,
                    "num_partitions": operator.num_partitions,
                    "rows": self.rows and self.rows.get((operator.info.id, store.name), 0),
                }
                for operator in self.operators
                for store in operator.info.stores
            ],
        }

    @property
    def version(self) -> int:
        """State version that is converted."""
        return self.batch + 1

    @property
    def num_stores(self) -> int:
        """Number of state stores, each a state partition of one store."""
        return sum(len(of.info.stores) * of.num_partitions for of in self.operators)


def decide_convert(checkpoint: OpenCheckpoint, new: Place, provider: str) -> Convert[Any]:
    """Return what a conversion would do; errors as `Checkpoint.convert`.

    Args:
        checkpoint: The checkpoint that is converted.
        new: The checkpoint to make.
        provider: A name of SPARK_PROVIDERS.
    """
    if provider not in SPARK_PROVIDERS:
        restored = provider in PROVIDERS and provider not in IN_DRIVER_MEMORY
        raise InvalidArgumentError(
            "a checkpoint is converted to Spark's own providers only",
            provider=provider,
            to_fix="make the new checkpoint with `statestore restore "
            f"{shlex.quote(checkpoint.uri)} {shlex.quote(new.uri)} --backend {provider}`"
            if restored
            else f"use one of {', '.join(SPARK_PROVIDERS)}",
        )
    read_metadata(checkpoint.io, checkpoint.path)
    batch = checkpoint.newest_committed
    if batch is None:
        raise NotFoundError(
            "the query has not committed a batch yet",
            kind="version-not-found",
            checkpoint=checkpoint.uri,
            to_fix="start it with a new checkpoint directory on provider "
            f"{SPARK_PROVIDERS[provider]}",
        )
    read = {batch, checkpoint.newest_planned or batch}
    offsets = {number: checkpoint.offsets_entry(number) for number in sorted(read)}
    check_sources(checkpoint.uri, offsets, spark_files_of(checkpoint))
    operators = _operators(checkpoint)
    if provider == "spark-hdfs" and any(operator.info.has_families for operator in operators):
        raise IncompatibleError(
            "Spark's HDFS-backed provider has no column families",
            checkpoint=checkpoint.uri,
            to_fix="convert to spark-rocksdb, with Spark 4.2 or later",
        )
    return Convert(
        checkpoint.uri,
        new.uri,
        checkpoint.backend,
        provider,
        batch,
        checkpoint.num_partitions,
        1 if provider == "spark-hdfs" else checkpoint.commit_entry(batch).checkpoint_format,
        operators,
        check_target(new, CONVERT, checkpoint.uri),
        _state_bytes(checkpoint, batch + 1),
        _unseen(checkpoint, batch),
        done=False,
    )


def _unseen(checkpoint: OpenCheckpoint, batch: int) -> tuple[int, ...]:
    """Return the newest batches that an operation made, whose entries the shim has not written.

    It writes them with the next batch that the query runs.
    """
    found: list[int] = []
    while is_of_operation(checkpoint, batch):
        found.insert(0, batch)
        batch -= 1
    return tuple(found)


def _state_bytes(checkpoint: OpenCheckpoint, version: int) -> int | None:
    with suppress(StateStoreError):
        states = find_states(checkpoint, version)
        return sum(state.full_bytes for state in states.values())
    return None


def _operators(checkpoint: OpenCheckpoint) -> tuple[ConvertedOperator, ...]:
    """Return every operator with state.

    Raises:
        NotFoundError, CorruptionError, IncompatibleError, StorageError: As
            `OpenCheckpoint.require_metadata` and `OpenCheckpoint.schemas`.
        InvalidArgumentError: There is none.
    """
    infos = checkpoint.operators
    checkpoint.require_metadata(checkpoint.newest_version)
    if not infos:
        raise InvalidArgumentError(
            "the query has no stateful operator",
            checkpoint=checkpoint.uri,
            to_fix="go on with the checkpoint as it is",
        )
    return tuple(_operator(checkpoint, info) for info in infos)


def _operator(checkpoint: OpenCheckpoint, info: OperatorInfo) -> ConvertedOperator:
    """Return an operator with the state partitions that have state to convert."""
    if info.has_families:  # the schemas were looked for with the metadata
        return ConvertedOperator(info, checkpoint.num_partitions)
    schemas = [checkpoint.schemas(info.id, store.schema_paths[-1]) for store in info.stores]
    ids = checkpoint.commit_entry(checkpoint.newest_version - 1).checkpoint_ids.get(str(info.id))
    if ids is not None:
        return ConvertedOperator(info, len(ids))
    if is_single(info.stores[0].name, schemas[0], _used_partitions(checkpoint, info.id)):
        return ConvertedOperator(info, 1)
    return ConvertedOperator(info, checkpoint.num_partitions)


def _used_partitions(checkpoint: OpenCheckpoint, operator: int) -> set[int]:
    """Return state partition 0 and those others that have a file of an operator with one store.

    Also where the state is elsewhere: an empty file of each state partition is here.
    """

    def is_used(partition: int) -> bool:
        return bool(checkpoint.io.list(f"{checkpoint.state_directory}/{operator}/{partition}"))

    partitions = range(1, checkpoint.num_partitions)
    with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
        used = pool.map(is_used, partitions)
        return {0, *compress(partitions, used)}
