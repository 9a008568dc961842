"""The batch by which Spark's logs change the number of state partitions of a query.

A rescale is a batch that reads nothing: its entry of the offset log is that of the batch before
with another `spark.sql.shuffle.partitions`, as in Spark's own repartition. Planned but not
committed it is unfinished, and Spark refuses to start the query, or before Spark 4.2 the provider
does; committed it is what the next batch goes on from. Only the offset log's conf decides;
`numPartitions` of the operator metadata is for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from statestore.checkpoint.operator_metadata import write_num_partitions
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY
from statestore.codec.references import StoreName
from statestore.core.errors import IncompatibleError, InvalidArgumentError
from statestore.operations.in_use import require_not_in_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.checkpoint.operator_metadata import OperatorInfo
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.operations.checkpoint import OpenCheckpoint

MARK = "statestore.rescale"
"""Key in the conf of an entry of the offset log, by which the shim knows that no sink was given the
batch. Spark takes those it knows, and no others."""
STRICT_DISTRIBUTION_KEY = "spark.sql.streaming.statefulOperator.useStrictDistribution"

CheckpointIds = dict[str, list[list[str]]]
"""By operator ID: for each state partition one for each store, in the operator metadata's order."""


@dataclass(frozen=True, slots=True)
class RescaleBatch:
    """A batch that is a rescale's.

    Attributes:
        batch: Its number.
        num_partitions_before: Number of state partitions of the batch before.
        num_partitions: Number of state partitions from it on.
        is_committed: Whether the rescale is finished.
    """

    batch: int
    num_partitions_before: int
    num_partitions: int
    is_committed: bool

    @property
    def version(self) -> int:
        """The state version it makes."""
        return self.batch + 1


def find_rescale_batch(checkpoint: OpenCheckpoint) -> RescaleBatch | None:
    """Return the newest batch where it is a rescale's, else None.

    Raises:
        InvalidArgumentError: The newest batch is neither committed nor a rescale's (kind
            unfinished-batch); or it is a savepoint.
        InUseError: The query runs, and is about to end its batch.
        NotFoundError: A log lacks an entry.
        CorruptionError, StorageError: The logs cannot be read.
    """
    checkpoint.check_of_query()
    for batch in checkpoint.done_batches[-1:]:
        checkpoint.offsets_entry(batch)
        checkpoint.commit_entry(batch)
    newest, committed = checkpoint.newest_planned, checkpoint.newest_committed
    assert newest is not None, "a checkpoint has a planned batch"  # noqa: S101
    if committed is None:
        raise_unfinished(checkpoint)
    found = read_rescale_batch(checkpoint, newest)
    if found is not None:
        return found
    if newest != committed:
        raise_unfinished(checkpoint)
    return None


def read_rescale_batch(checkpoint: OpenCheckpoint, batch: int) -> RescaleBatch | None:
    """Return a planned batch where it is a rescale's, else None.

    Raises:
        IncompatibleError, CorruptionError: As `num_own_partitions`.
        StorageError: The offset log cannot be read.
    """
    before, after = (_num_partitions(checkpoint, number) for number in (batch - 1, batch))
    if before is None or after is None or before == after:
        return None
    return RescaleBatch(batch, before, after, is_committed=batch in checkpoint.committed_batches)


def _num_partitions(checkpoint: OpenCheckpoint, batch: int) -> int | None:
    """Return the number of state partitions of a batch, None where its entry is gone."""
    if batch not in checkpoint.planned_batches:
        return None
    return checkpoint.num_own_partitions(batch + 1)


def raise_unfinished(checkpoint: OpenCheckpoint) -> NoReturn:
    """Raise since the newest batch is planned and not committed.

    Raises:
        InvalidArgumentError: Always (kind unfinished-batch), unless a query runs.
        InUseError: The query runs, and is about to end its batch.
    """
    # Of a query that runs, the batch is not to be ended by starting it.
    require_not_in_use(checkpoint)
    raise InvalidArgumentError(
        "the newest batch of the query is planned but not committed",
        kind="unfinished-batch",
        checkpoint=checkpoint.uri,
        planned_batch=checkpoint.newest_planned,
        committed_batch=checkpoint.newest_committed,
        to_fix="start the query as it was and let it end the batch, for example with "
        "trigger(availableNow=True), then repeat this; its rows may have reached the sink already, "
        "so it cannot be left out",
    )


def checkpoint_ids_of(
    operators: Iterable[OperatorInfo], made: Mapping[StoreName, PublishedFile]
) -> CheckpointIds:
    """Return the checkpoint IDs that an entry of the commit log has in format v2.

    Args:
        operators: The stateful operators.
        made: The version of every store in each of its state partitions.
    """
    return {
        str(operator.id): [
            [
                made[StoreName(operator.id, partition, info.name)].trailer.checkpoint_id
                for info in operator.stores
            ]
            for partition in sorted({one.partition for one in made if one.operator == operator.id})
        ]
        for operator in operators
    }


def check_rescalable(checkpoint: OpenCheckpoint) -> None:
    """Check that the rows of every operator are where Spark's partition function puts them.

    Raises:
        IncompatibleError: The query does not pin the strict distribution (kind not-rescalable).
        NotFoundError: An operator has state and no metadata.
        InvalidArgumentError: The query has no stateful operator.
    """
    if checkpoint.conf.get(STRICT_DISTRIBUTION_KEY, "false").lower() != "true":
        raise IncompatibleError(
            "state partitions of this query do not follow the key alone",
            kind="not-rescalable",
            checkpoint=checkpoint.uri,
            conf=STRICT_DISTRIBUTION_KEY,
            found=checkpoint.conf.get(STRICT_DISTRIBUTION_KEY),
            to_fix="start the query with a new checkpoint directory and another "
            f"{NUM_PARTITIONS_KEY}: a checkpoint of a Spark before 3.3 cannot be rescaled",
        )
    checkpoint.require_metadata(checkpoint.newest_version)
    if not checkpoint.operators:
        raise InvalidArgumentError(
            "the query has no state to rescale",
            checkpoint=checkpoint.uri,
            to_fix=f"start the query with another {NUM_PARTITIONS_KEY}; without state nothing "
            "keeps the old one",
        )


def add_offsets(checkpoint: OpenCheckpoint, batch: int, num_partitions: int) -> None:
    """Plan the rescale: from now on Spark refuses to start the query until `add_commit`.

    Raises:
        FencedError: The batch was planned meanwhile, by a query or another rescale.
        StorageError: The storage failed.
    """
    entry = checkpoint.offsets_entry(batch - 1)
    changed = entry.with_conf({NUM_PARTITIONS_KEY: str(num_partitions), MARK: "true"})
    checkpoint.offsets.add(batch, changed.encode())


def write_operators(checkpoint: OpenCheckpoint, num_partitions: int, batch: int) -> None:
    """Write the number of state partitions from a batch on into every operator's metadata.

    What it says of later batches goes.

    Raises:
        CorruptionError, StorageError: Metadata cannot be read or written.
    """
    operators = (operator.id for operator in checkpoint.operators)
    write_num_partitions(
        checkpoint.io, checkpoint.state_directory, operators, num_partitions, batch
    )


def add_commit(checkpoint: OpenCheckpoint, batch: int, ids: Mapping[str, list[list[str]]]) -> None:
    """Finish the rescale; from now on the query goes on with the new state partitions.

    Args:
        checkpoint: The checkpoint.
        batch: The rescale's batch.
        ids: Checkpoint IDs of the new state partitions, empty in checkpoint format v1.

    Raises:
        FencedError: The batch was committed meanwhile.
        StorageError: The storage failed.
    """
    entry = checkpoint.commit_entry(batch - 1)
    if ids:
        entry = entry.with_checkpoint_ids(ids)
    checkpoint.commits.add(batch, entry.encode())
