"""Savepoints from the program that runs the query: stop it with one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from statestore.core.clock import SystemClock
from statestore.core.errors import InvalidArgumentError
from statestore.core.options import StateStoreOptions
from statestore.io.hadoop_process import use
from statestore.io.local import resolve_local_path
from statestore.io.storage import scheme_of
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.committed_version import find_version
from statestore.operations.new_directory import check_target
from statestore.operations.savepoint.savepoint import take_savepoint
from statestore.spark.driver_files import DriverFiles
from statestore.spark.driver_memory import driver_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from statestore.operations.savepoint.savepoint import Savepoint, SavepointForm

POLL_S = 0.05


def stop_with_savepoint(
    query: StreamingQuery,
    destination: str,
    *,
    form: SavepointForm = "canonical",
    wait_s: float = 60.0,
    options: StateStoreOptions | None = None,
) -> Savepoint:
    """Stop a query between two batches and take a savepoint of its last committed one.

    A batch that is still running after `wait_s` is interrupted: it is not in the savepoint's state,
    but planned in it, and repeated with the same input by the query that is restored.

    Args:
        query: A running query of this driver, or one that has stopped.
        destination: Directory of the savepoint, which must not be there: a path, or a URI
            of any scheme.
        form: canonical or native; see `take_savepoint`.
        wait_s: Longest wait for the end of the batch that runs, in seconds.
        options: Of the query, for its storage (`s3.*`); defaults when None.

    Returns:
        What was taken.

    Guarantee: on return the query has stopped and the savepoint is whole and durable. After a raise
    that comes before the stop the query goes on; after a later one it has stopped, and
    `take_savepoint` on its checkpoint does the rest.

    Raises:
        InvalidArgumentError: The destination has files (kind checkpoint-exists); the query is one
            of Spark Connect.
        NotFoundError, IncompatibleError, CorruptionError, FencedError, StorageError: As
            `take_savepoint`.
    """
    options = options or StateStoreOptions()
    checkpoint = checkpoint_of(query)
    with ExitStack() as stack:
        stack.enter_context(use(DriverFiles(_session)))
        with open_checkpoint(checkpoint, options=options) as found:
            check_target(destination, "savepoint", checkpoint, options, found.clock)
            memory = None
            if found.backend == "heap":
                memory = stack.enter_context(driver_memory(_session()))
            elif found.newest_version:
                find_version(found)  # what cannot be read is told while the query runs
        _wait_for_batch_end(query, wait_s)
        query.stop()
        return take_savepoint(checkpoint, destination, form=form, options=options, memory=memory)


def checkpoint_of(query: StreamingQuery) -> str:
    """Return the checkpoint directory of a query, a path where it is local.

    Raises:
        InvalidArgumentError: The query is one of Spark Connect, whose driver is elsewhere.
    """
    if not hasattr(query, "_jsq"):
        raise InvalidArgumentError(
            "the query runs in another process than this",
            query=str(query.id),
            to_fix="stop it, and take the savepoint of its checkpoint: statestore savepoint",
        )
    # There is no public way to be told.
    root = str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001
    return resolve_local_path(root, is_encoded=False) if scheme_of(root) == "file" else root


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return session if session is not None else SparkSession.builder.getOrCreate()


def _wait_for_batch_end(query: StreamingQuery, wait_s: float) -> None:
    """Wait until a batch ends or none is running."""
    clock = SystemClock()
    end_ms = clock.elapsed_ms() + wait_s * 1000
    seen = query.lastProgress
    while (
        query.isActive
        and query.status["isTriggerActive"]
        and query.lastProgress == seen
        and clock.elapsed_ms() < end_ms
    ):
        time.sleep(POLL_S)
