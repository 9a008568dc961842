"""Whether the key of a row tells its state partition, by what Spark wrote of the query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY, STRICT_DISTRIBUTION_KEY, is_on
from statestore.codec.column_family import DEFAULT_FAMILY
from statestore.codec.partition_key import grouped_otherwise
from statestore.core.errors import IncompatibleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.spark_types import SparkType
    from statestore.operations.checkpoint import OpenCheckpoint


def check_strict(checkpoint: OpenCheckpoint, conf: Mapping[str, str]) -> None:
    """Check that Spark partitions the input of every operator by its key.

    Args:
        checkpoint: The checkpoint.
        conf: What the batch pins.

    Raises:
        IncompatibleError: The query does not pin the strict distribution (kind not-rescalable).
    """
    if not is_on(conf, STRICT_DISTRIBUTION_KEY):
        raise IncompatibleError(
            "state partitions of this query do not follow the key alone",
            kind="not-rescalable",
            checkpoint=checkpoint.uri,
            conf=STRICT_DISTRIBUTION_KEY,
            found=conf.get(STRICT_DISTRIBUTION_KEY),
            to_fix="keep the number of state partitions, or start the query with a new checkpoint "
            f"directory and another {NUM_PARTITIONS_KEY}: a checkpoint of a Spark before 3.3 keeps "
            "its number",
        )


def check_keys(
    checkpoint: OpenCheckpoint, operator: int, store: str, families: Iterable[ColumnFamily]
) -> None:
    """Check that a store has its rows by the columns that Spark partitions the input by.

    Arguments as `keyed_otherwise`.

    Raises:
        IncompatibleError: It does not (kind not-rescalable), or as `keyed_otherwise`.
        InvalidArgumentError, NotFoundError, CorruptionError, StorageError: As `keyed_otherwise`.
    """
    otherwise = keyed_otherwise(checkpoint, operator, store, families)
    if otherwise is not None:
        key, grouped_by = otherwise
        raise IncompatibleError(
            "Spark partitions the input of an operator by other columns than its state has as the "
            "key",
            kind="not-rescalable",
            checkpoint=checkpoint.uri,
            operator=operator,
            grouped_by=str(grouped_by.arrow),
            key=str(key.arrow),
            to_fix="keep the number of state partitions; a query with a new checkpoint can have "
            "another one later when it groups by groupByKey, or casts the columns of groupBy to "
            "the types of the key, in its order",
        )


def keyed_otherwise(
    checkpoint: OpenCheckpoint, operator: int, store: str, families: Iterable[ColumnFamily]
) -> tuple[SparkType, SparkType] | None:
    """Return what `grouped_otherwise` does of a store, by Spark's newest schemas.

    Args:
        checkpoint: The checkpoint.
        operator: Operator ID.
        store: Name of the store.
        families: Its column families as the tasks wrote them: Spark 4.3 writes the columns that it
            partitions by into its own schemas, in place of the key that state has.

    Raises:
        InvalidArgumentError, NotFoundError, CorruptionError, IncompatibleError, StorageError: The
            schemas cannot be read.
    """
    of_operator = checkpoint.operator(operator)
    if not of_operator.has_families:
        return None
    (named,) = (one for one in of_operator.stores if one.name == store)
    described = checkpoint.schemas(operator, named.schema_paths[-1])
    of_input = [family for family in described if family.name == DEFAULT_FAMILY]
    of_state = [family for family in families if family.name != DEFAULT_FAMILY]
    return grouped_otherwise(store, of_input + of_state)
