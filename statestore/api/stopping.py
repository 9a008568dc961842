"""Savepoints from the program that runs the query: stop it with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.api.checkpoint import Checkpoint
from statestore.core.durations import Duration, require_duration
from statestore.operations.new_directory import check_target
from statestore.operations.savepoint.savepoint import check_form, decide_savepoint
from statestore.spark.batch_end import check_stoppable, stop_after_batch
from statestore.spark.driver_session import checkpoint_of, session_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from statestore.api.checkpoint import DirectoryLike, Savepoint
    from statestore.operations.savepoint.savepoint import SavepointForm

BY_HAND = (
    "stop the query, and take the savepoint of its checkpoint: Checkpoint.savepoint, or "
    "`statestore savepoint`"
)
"""The fix where a query's program cannot take a savepoint."""


def stop_with_savepoint(
    query: StreamingQuery,
    destination: DirectoryLike,
    *,
    form: SavepointForm = "canonical",
    wait: Duration = 60.0,
) -> Savepoint:
    """Stop a query between two batches and take a savepoint of its last committed one.

    A batch that is still running after `wait` is interrupted: it is not in the savepoint's state,
    but planned in it, and repeated with the same input by the query that is restored.

    Args:
        query: A running query of this driver, or one that has stopped.
        destination: Directory of the savepoint, which must not be there; as `Checkpoint.savepoint`,
            and a path is reached by the options of the query's session.
        form: canonical or native; see `Checkpoint.savepoint`.
        wait: Longest wait for the end of the batch that runs, a timedelta or seconds.

    Returns:
        What was taken.

    Guarantee: on return the query has stopped and the savepoint is whole and durable. Where the
    last batch fails it is not in the state, and planned in the savepoint; `run` does not start the
    query again, and raises QueryFailedError. After a raise that comes before the stop the query
    goes on; after a later one it has stopped, and `Checkpoint.savepoint` does the rest. One that
    `run(…, scale=…)` had stopped for a change before the call starts again.

    Raises:
        InvalidArgumentError: The destination has files (kind checkpoint-exists); the query is one
            of Spark Connect (kind spark-connect); `wait` is no duration; another run of the query
            is active; or the call is made within a batch of it, by `foreachBatch`, which is told
            where PySpark pins threads, as it does by default.
        NotFoundError, IncompatibleError, CorruptionError, FencedError, StorageError: As
            `Checkpoint.savepoint`.
    """
    wait_ms = require_duration("wait", wait, 0)
    directory = checkpoint_of(query, "stop_with_savepoint", BY_HAND)
    spark = session_of(query)
    check_stoppable(query, spark._jvm)
    checkpoint = Checkpoint(directory, spark=spark)
    reach, to = checkpoint._reach.with_new(destination)
    with reach.checkpoint() as found:
        # What is refused, or cannot be read, is told while the query runs.
        if found.newest_version:
            decide_savepoint(found, to.place, form=form)
        else:
            check_form(form)
            check_target(to.place, "savepoint", found.uri)
    stop_after_batch(query, wait_ms / 1000)
    return checkpoint.savepoint(destination, form=form).made
