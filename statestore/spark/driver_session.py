"""The session of this driver, and where its queries have their checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    return _local_path(str(query._jsq.streamingQuery().resolvedCheckpointRoot()))  # noqa: SLF001


def qualified(path: str, spark: SparkSession) -> str:
    """Return the directory that Spark takes a path for, on the session's default file system.

    Args:
        path: As a program gives it to Spark: a path, or a URI.
        spark: The session.

    Returns:
        A path where it is local, else a URI.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    session: Any = spark._jsparkSession  # noqa: SLF001
    given = jvm.org.apache.hadoop.fs.Path(path)
    found = given.getFileSystem(session.sessionState().newHadoopConf()).makeQualified(given)
    return _local_path(str(found.toString()))


def _local_path(uri: str) -> str:
    return resolve_local_path(uri, is_encoded=False) if scheme_of(uri) == "file" else uri


def session_of_driver() -> SparkSession:
    """Return the session of this driver, which is started where there is none."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return session if session is not None else SparkSession.builder.getOrCreate()
