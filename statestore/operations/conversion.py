"""What a conversion of a checkpoint from one provider to another would do; nothing is written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.query_log import OperatorInfo, operator_metadata_path
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.core.providers import PROVIDERS, SPARK_PROVIDERS
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE
from statestore.operations.new_directory import check_new

if TYPE_CHECKING:
    from statestore.io.file_io import FileIO
    from statestore.operations.checkpoint import Checkpoint

TARGETS = {
    **{name: provider for name, provider in PROVIDERS.items() if name != "heap"},
    **SPARK_PROVIDERS,
}
"""Provider class by the name that a checkpoint is converted to."""

CONVERT = "convert"
"""What NEW says is under way."""

_NAMES = {provider: name for name, provider in {**PROVIDERS, **SPARK_PROVIDERS}.items()}
_ENCODING_KEY = "spark.sql.streaming.stateStore.encodingFormat"


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """A stateful operator to convert.

    Attributes:
        info: The operator and its stores, as Spark's metadata has them.
        num_partitions: State partitions that have state: all, or 1 where the operator keeps its
            state in partition 0, as a global aggregation does.
    """

    info: OperatorInfo
    num_partitions: int


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """A conversion that can be done.

    Attributes:
        checkpoint, new: URIs of the checkpoint and of what is made from it.
        source, target: Names of the providers.
        batch: Newest committed batch.
        num_partitions: State partitions of the query.
        checkpoint_format: 1 or 2.
        operators: What has state.
        is_begun: There is an unfinished conversion at `new`, which is done anew.
    """

    checkpoint: str
    new: str
    source: str
    target: str
    batch: int
    num_partitions: int
    checkpoint_format: int
    operators: tuple[OperatorPlan, ...]
    is_begun: bool

    @property
    def version(self) -> int:
        """State version that is converted."""
        return self.batch + 1

    @property
    def num_stores(self) -> int:
        """Number of state stores, each a state partition of one store."""
        return sum(len(plan.info.stores) * plan.num_partitions for plan in self.operators)


def plan_conversion(
    checkpoint: Checkpoint, new: str, new_io: FileIO, new_path: str, to: str
) -> ConversionPlan:
    """Return what a conversion would do.

    Args:
        checkpoint: What is converted.
        new: URI of the checkpoint to make.
        new_io: Its storage.
        new_path: Its path there.
        to: A name of TARGETS.

    Raises:
        InvalidArgumentError: `to` is unknown or the checkpoint's own, nothing is to convert, or
            there is something at `new` (as `check_new`).
        IncompatibleError: Some of the state cannot be converted, or not to this provider.
        NotFoundError: No batch is committed, or Spark's metadata is missing.
        CorruptionError, StorageError: The checkpoint cannot be read.
    """
    if to not in TARGETS:
        raise InvalidArgumentError(
            "unknown provider", to=to, to_fix=f"use one of {', '.join(TARGETS)}"
        )
    batch = checkpoint.newest_committed
    if batch is None:
        raise NotFoundError(
            "the query has not committed a batch yet",
            kind="version-not-found",
            checkpoint=checkpoint.uri,
            to_fix=f"start it with a new checkpoint directory on provider {TARGETS[to]}",
        )
    source = _NAMES.get(checkpoint.provider, checkpoint.provider)
    _check_pair(checkpoint, source, to)
    operators = _operators(checkpoint)
    checkpoint_format = 2 if checkpoint.commit_entry(batch).checkpoint_ids else 1
    if checkpoint_format == 2 and to == "spark-hdfs":
        raise IncompatibleError(
            "Spark's HDFS-backed provider has no checkpoint format v2",
            checkpoint=checkpoint.uri,
            to_fix="convert to spark-rocksdb",
        )
    return ConversionPlan(
        checkpoint.uri,
        new,
        source,
        to,
        batch,
        checkpoint.num_partitions,
        checkpoint_format,
        operators,
        check_new(new_io, new_path, new, CONVERT, checkpoint.uri),
    )


def _check_pair(checkpoint: Checkpoint, source: str, to: str) -> None:
    if source == to:
        raise InvalidArgumentError(
            "the checkpoint is of this provider already",
            checkpoint=checkpoint.uri,
            to=to,
            to_fix="leave it as it is",
        )
    if source in PROVIDERS and to in PROVIDERS:
        raise InvalidArgumentError(
            "both state backends are of this package",
            checkpoint=checkpoint.uri,
            backend=source,
            to=to,
            to_fix=f"take a savepoint and restore it with --backend {to}",
        )
    encoding = checkpoint.conf.get(_ENCODING_KEY, "unsaferow")
    if encoding != "unsaferow":
        raise IncompatibleError(
            "state of this encoding cannot be converted",
            checkpoint=checkpoint.uri,
            key=_ENCODING_KEY,
            value=encoding,
            to_fix="stay with Spark's RocksDB provider",
        )


def _operators(checkpoint: Checkpoint) -> tuple[OperatorPlan, ...]:
    """Return every operator with state, after a check that no other state is there."""
    io, state = checkpoint.io, checkpoint.state_directory
    infos = checkpoint.operators
    after = len(infos)
    if io.list(f"{state}/{after}/_metadata/v2"):
        raise IncompatibleError(
            "an operator keeps its state in column families",
            checkpoint=checkpoint.uri,
            operator=after,
            to_fix="stay with Spark's RocksDB provider: transformWithState and the newer join "
            "formats are not converted",
        )
    if io.list(f"{state}/{after}/0"):
        raise NotFoundError(
            "an operator has state and no metadata",
            kind="file-not-found",
            file=operator_metadata_path(state, after),
            to_fix="run a batch of the query with Spark 3.5 or later, which writes it",
        )
    if not infos:
        raise InvalidArgumentError(
            "the query has no stateful operator",
            checkpoint=checkpoint.uri,
            to_fix="go on with the checkpoint as it is",
        )
    return tuple(_operator(checkpoint, info) for info in infos)


def _operator(checkpoint: Checkpoint, info: OperatorInfo) -> OperatorPlan:
    def is_used(partition: int) -> bool:
        path = f"{checkpoint.state_directory}/{info.id}/{partition}"
        name = info.stores[0].name
        return bool(checkpoint.io.list(path if name == "default" else f"{path}/{name}"))

    for store in info.stores:
        directory = f"{checkpoint.state_directory}/{info.id}/0"
        name = "" if store.name == "default" else f"/{store.name}"
        schema = f"{directory}{name}/_metadata"
        if all(file.name != "schema" for file in checkpoint.io.list(schema)):
            raise NotFoundError(
                "a store has no state schema",
                kind="file-not-found",
                file=f"{schema}/schema",
                to_fix="run a batch of the query with spark.sql.streaming.stateStore."
                "stateSchemaCheck=true, which writes it",
            )
    with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
        others = pool.map(is_used, range(1, checkpoint.num_partitions))
    return OperatorPlan(info, checkpoint.num_partitions if any(others) else 1)
