"""Files of every file system that Hadoop can open, from a PySpark program on the driver."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from statestore.core.errors import NotFoundError, StorageError
from statestore.io.hadoop import HadoopRefusalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DriverFiles:
    """HadoopFiles of a session's JVM, and what is done with whole directories. Thread-safe.

    Args:
        spark: A session with the jar of this package.

    Raises:
        NotFoundError: It has not got the jar.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001
        self._jvm = jvm
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._conf = session.sessionState().newHadoopConf()
        try:
            self._files = jvm.io.statestore.engine.HadoopFiles()
        except TypeError as error:  # py4j takes an unknown class for a package
            raise NotFoundError(
                "the session has not got the shim jar",
                kind="file-not-found",
                spark_jars=spark.conf.get("spark.jars", ""),
                to_fix="start it with what `statestore jar` prints in spark.jars",
            ) from error
        self._files.register("", self._conf)

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """See HadoopFiles."""
        request = json.dumps({"op": op, **arguments})
        answer = self._files.answer(self._jvm.io.statestore.Json.readObject(request))
        reply = json.loads(answer.toString())
        if "error" in reply:
            raise HadoopRefusalError(reply["error"]["kind"], reply["error"]["reason"])
        return dict(reply["ok"])

    def copy_directory(self, uri: str, new_uri: str) -> None:
        """Copy a directory with all that is in it to where nothing is; none is no error.

        Raises:
            StorageError: It cannot be read or written; a part may be there.
        """
        fs = self._jvm.org.apache.hadoop.fs
        path, new_path = fs.Path(uri), fs.Path(new_uri)
        try:
            source, target = path.getFileSystem(self._conf), new_path.getFileSystem(self._conf)
            if source.exists(path):
                fs.FileUtil.copy(source, path, target, new_path, False, True, self._conf)
        except Exception as error:
            raise self._failed("copy a directory", uri, error) from error

    def clear_directory(self, uri: str, keep: str) -> None:
        """Delete everything in a directory but one file, with all that is in it.

        Raises:
            StorageError: A part may be left.
        """
        path = self._jvm.org.apache.hadoop.fs.Path(uri)
        try:
            file_system = path.getFileSystem(self._conf)
            for status in file_system.listStatus(path):
                if status.getPath().getName() != keep:
                    file_system.delete(status.getPath(), True)
        except Exception as error:
            raise self._failed("clear a directory", uri, error) from error

    def _failed(self, action: str, uri: str, error: Exception) -> StorageError:
        reason = str(getattr(error, "java_exception", error)).splitlines()[0]
        return StorageError(
            f"cannot {action}",
            directory=uri,
            reason=reason,
            to_fix="mend what the reason names, and run the command again",
        )
