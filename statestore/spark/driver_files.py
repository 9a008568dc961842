"""Files of every file system that Hadoop can open, from a PySpark program on the driver."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from statestore.core.errors import NotFoundError
from statestore.io.hadoop import HadoopRefusalError
from statestore.io.hadoop_process import use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@contextmanager
def driver_files(spark: SparkSession) -> Iterator[None]:
    """Let operations within the block open Hadoop's file systems as the session does.

    Without it they start a JVM of their own, which knows what spark-defaults.conf says, and nothing
    that a program set on its session.

    Args:
        spark: A session with the jar of this package.

    Raises:
        NotFoundError: It has not got the jar.
    """
    with use(DriverFiles(spark)):
        yield


class DriverFiles:
    """HadoopFiles of a session's JVM, with the session's Hadoop configuration. Thread-safe.

    Args:
        spark: A session with the jar of this package.

    Raises:
        NotFoundError: It has not got the jar.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001
        self._jvm = jvm
        session: Any = spark._jsparkSession  # noqa: SLF001
        try:
            self._files = jvm.io.statestore.engine.HadoopFiles()
        except TypeError as error:  # py4j takes an unknown class for a package
            raise NotFoundError(
                "the session has not got the shim jar",
                kind="file-not-found",
                spark_jars=spark.conf.get("spark.jars", ""),
                to_fix="start it with what `statestore jar` prints in spark.jars",
            ) from error
        self._files.register("", session.sessionState().newHadoopConf())

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """See HadoopFiles."""
        request = json.dumps({"op": op, **arguments})
        answer = self._files.answer(self._jvm.io.statestore.Json.readObject(request))
        reply = json.loads(answer.toString())
        if "error" in reply:
            raise HadoopRefusalError(reply["error"]["kind"], reply["error"]["reason"])
        return dict(reply["ok"])
