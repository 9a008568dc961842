"""Sessions and queries of this driver: where a query has its checkpoint, and what reaches it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from statestore.core.errors import NotFoundError
from statestore.core.options import BY_KEY, PREFIX
from statestore.io.local import resolve_local_path
from statestore.io.storage import scheme_of
from statestore.spark.connect import require_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def session_of(query: StreamingQuery) -> SparkSession:
    """Return the session that started a query of this driver: its settings reach the checkpoint."""
    from pyspark.sql import SparkSession

    session = query._jsq.sparkSession()  # noqa: SLF001
    return SparkSession(SparkSession.active().sparkContext, session)


def options_of(spark: SparkSession) -> dict[str, str]:
    """Return the options of this package that a session sets, by full key."""
    return {
        key: value
        for key, value in spark.conf.getAll.items()
        if key.startswith(PREFIX) and key.removeprefix(PREFIX) in BY_KEY
    }


@contextmanager
def jar_needed(spark: SparkSession) -> Iterator[None]:
    """Say so where a block finds none of the shim's classes in the JVM of a session.

    Raises:
        NotFoundError: The session has not got the jar.
    """
    try:
        yield
    except TypeError as error:  # py4j takes an unknown class for a package
        raise NotFoundError(
            "the session has not got the shim jar",
            kind="file-not-found",
            spark_jars=spark.conf.get("spark.jars", ""),
            to_fix="start it with what `statestore jar` prints in spark.jars",
        ) from error
