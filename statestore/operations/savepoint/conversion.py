"""What a conversion of a checkpoint from one provider to another would do; nothing is written."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from statestore.checkpoint.operator_metadata import OperatorInfo, StoreInfo
from statestore.codec.partition_key import is_single
from statestore.codec.trailer import ColumnFamily, StoreName
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.core.providers import PROVIDERS, SPARK_PROVIDERS
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE
from statestore.operations.new_directory import check_target, read_metadata

if TYPE_CHECKING:
    from statestore.checkpoint.layout import StoreLocation
    from statestore.io.file_io import TreeFileIO
    from statestore.operations.checkpoint import Checkpoint

TARGETS = {
    **{name: provider for name, provider in PROVIDERS.items() if name != "heap"},
    **SPARK_PROVIDERS,
}
"""Provider class by the name that a checkpoint is converted to."""

CONVERT = "convert"
"""What NEW says is under way."""

_NAMES = {provider: name for name, provider in {**PROVIDERS, **SPARK_PROVIDERS}.items()}
_SCHEMA_START = '{"type":"struct"'
_MAX_SCHEMA_BYTES = 64 * 1024 * 1024
_ENCODING_KEY = "spark.sql.streaming.stateStore.encodingFormat"


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """A stateful operator to convert.

    Attributes:
        info: The operator and its stores, as Spark's metadata has them.
        num_partitions: State partitions that have state: all, or 1 where the operator keeps its
            state in partition 0, as a global aggregation does. What is missing is missed when it is
            read.
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
    checkpoint: Checkpoint, new: str, to: str, new_io: TreeFileIO | None = None
) -> ConversionPlan:
    """Return what a conversion would do.

    Args:
        checkpoint: What is converted.
        new: URI of the checkpoint to make.
        to: A name of TARGETS.
        new_io: Storage of `new`, which is then a path of it; what the URI names when None.

    Raises:
        InvalidArgumentError: `to` is unknown or the checkpoint's own, nothing is to convert, or
            there is something at `new` (as `check_target`).
        IncompatibleError: Some of the state cannot be converted, or not to this provider.
        NotFoundError: No batch is committed, or Spark's metadata is missing.
        CorruptionError, StorageError: The checkpoint cannot be read.
    """
    if to not in TARGETS:
        raise InvalidArgumentError(
            "unknown provider", to=to, to_fix=f"use one of {', '.join(TARGETS)}"
        )
    read_metadata(checkpoint.io, checkpoint.path)
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
        check_target(new, CONVERT, checkpoint.uri, checkpoint.options, checkpoint.clock, new_io),
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
    infos = checkpoint.operators
    for info in infos:
        if info.has_families and not info.variables:
            raise IncompatibleError(
                "an operator keeps no state variables in its column families",
                checkpoint=checkpoint.uri,
                operator=info.id,
                name=info.name,
                to_fix="stay with the provider that it has: joins of state format 3 and 4 are not "
                "converted",
            )
    checkpoint.require_metadata(checkpoint.newest_version)
    if not infos:
        raise InvalidArgumentError(
            "the query has no stateful operator",
            checkpoint=checkpoint.uri,
            to_fix="go on with the checkpoint as it is",
        )
    return tuple(_operator(checkpoint, info) for info in infos)


def schema_of(store: StoreInfo) -> str:
    """Return the path of a store's newest state schema below its operator's directory."""
    if store.schema_files:
        return store.schema_files[-1]
    return f"0/{store.name}/_metadata/schema".replace("/default/", "/")


def _operator(checkpoint: Checkpoint, info: OperatorInfo) -> OperatorPlan:
    """Return what is to convert of an operator, whichever provider wrote it, wherever it is."""
    if info.has_families:  # the schemas were looked for with the metadata
        return OperatorPlan(info, checkpoint.num_partitions)
    for store in info.stores:
        schema = f"{checkpoint.state_directory}/{info.id}/{schema_of(store)}"
        directory, _, name = schema.rpartition("/")
        if all(file.name != name for file in checkpoint.io.list(directory)):
            raise NotFoundError(
                "a store has no state schema",
                kind="file-not-found",
                file=schema,
                to_fix="run a batch of the query with spark.sql.streaming.stateStore."
                "stateSchemaCheck=true, which writes it",
            )
    ids = checkpoint.commit_entry(checkpoint.newest_version - 1).checkpoint_ids.get(str(info.id))
    if ids is not None:
        return OperatorPlan(info, len(ids))
    first = StoreName(info.id, 0, info.stores[0].name)
    family = ColumnFamily(0, "default", _read_key_schema(checkpoint.home(first)))
    if is_single(first.name, (family,), _used_partitions(checkpoint, info.id)):
        return OperatorPlan(info, 1)
    return OperatorPlan(info, checkpoint.num_partitions)


def _used_partitions(checkpoint: Checkpoint, operator: int) -> set[int]:
    """Return state partition 0 and those others that have a file of an operator with one store.

    Also where the state is elsewhere: an empty file of each state partition is here.
    """

    def is_used(partition: int) -> bool:
        return bool(checkpoint.io.list(f"{checkpoint.state_directory}/{operator}/{partition}"))

    partitions = range(1, checkpoint.num_partitions)
    with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
        used = pool.map(is_used, partitions)
        return {0, *compress(partitions, used)}


def _read_key_schema(home: StoreLocation) -> str | None:
    """Return the JSON of a store's key schema, which is the first in Spark's file of schemas.

    None where it is not found: Spark cuts one of more than 20,000 characters to pieces.
    """
    data, _ = home.io.read_tail(f"{home.directory}/_metadata/schema", _MAX_SCHEMA_BYTES)
    # Lengths of Java's are in between, so it is no text.
    text = data.decode("latin-1")
    with suppress(ValueError):
        schema, _ = json.JSONDecoder().raw_decode(text, text.index(_SCHEMA_START))
        return json.dumps(schema)
    return None
