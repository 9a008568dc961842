"""The session of this driver, and where its queries have their checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.io.local import resolve_local_path
from statestore.io.storage import scheme_of
from statestore.spark.connect import require_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def checkpoint_of(query: StreamingQuery, asked: str, to_fix: str) -> str:
    """Return the checkpoint directory of a query, a path where it is local.

    Args:
        query: A query of this driver.
        asked: What the program called, for errors.
        to_fix: What to do where that cannot be.

    Raises:
        InvalidArgumentError: The query is one of Spark Connect (kind spark-connect).
    """
    require_driver(query, asked, to_fix)
    # There is no public way to be told.
    root = str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001
    return resolve_local_path(root, is_encoded=False) if scheme_of(root) == "file" else root


def session_of_driver() -> SparkSession:
    """Return the session of this driver, which is started where there is none."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return session if session is not None else SparkSession.builder.getOrCreate()
