"""Files of every file system that Hadoop can open, from a PySpark program on the driver."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from statestore.io.hadoop import HadoopRefusalError
from statestore.spark.driver_session import jar_needed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


class DriverFiles:
    """HadoopFiles of a session's JVM, with the session's Hadoop configuration. Thread-safe.

    Args:
        session: Returns the session when the first request is made.
    """

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._jvm: Any = None
        self._files: Any = None

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """See HadoopFiles.

        Raises:
            NotFoundError: The session has not got the jar.
        """
        with self._lock:
            if self._files is None:
                self._jvm, self._files = self._open()
        request = json.dumps({"op": op, **arguments})
        answer = self._files.answer(self._jvm.io.statestore.Json.readObject(request))
        reply = json.loads(answer.toString())
        if "error" in reply:
            raise HadoopRefusalError(reply["error"]["kind"], reply["error"]["reason"])
        return dict(reply["ok"])

    def _open(self) -> tuple[Any, Any]:
        spark = self._session()
        jvm: Any = spark._jvm  # noqa: SLF001
        session: Any = spark._jsparkSession  # noqa: SLF001
        with jar_needed(spark):
            files = jvm.io.statestore.engine.HadoopFiles()
        files.register("", session.sessionState().newHadoopConf(), False)
        return jvm, files
