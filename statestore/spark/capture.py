"""A query captured before it has run: what Spark plans of it, in a directory.

Spark writes operators, state schemas, configuration and offsets while it plans the first batch, and
then hands the batch to the sink. A sink that takes none leaves all of that, and no state.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.query_log import NO_OFFSET
from statestore.core.errors import InvalidArgumentError
from statestore.core.ids import RandomIds
from statestore.io.storage import absolute_uri, hadoop_uri
from statestore.spark.connect import require_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

_LOGGERS = [
    f"org.apache.spark.sql.execution.streaming.{package}MicroBatchExecution"
    for package in ("", "runtime.")  # of Spark 4.0, and of those after it
] + ["org.apache.spark.sql.execution.streaming.state.FirstOffsets"]
_ONE_AT_A_TIME = threading.Lock()
"""Held while Spark's log is quiet, so that what is put back is what was there before all."""
_FORMAT_KEY = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@dataclass(frozen=True, slots=True)
class CapturedQuery:
    """A query that was captured.

    Attributes:
        directory: Where its plan is; no query starts from it, and it may be deleted.
        checkpoint_format: 1 or 2.
    """

    directory: str
    checkpoint_format: int


def capture_query(
    frame: DataFrame, directory: str | os.PathLike[str], *, output_mode: str = "update"
) -> CapturedQuery:
    """Plan the first batch of a streaming query, and run none of it.

    The batch reaches to what its sources have now, whatever limit they have for one; nothing is
    read of it but what a source lists to know where that is.

    Args:
        frame: The streaming query, in the session that it is to run in: its configuration is kept.
        directory: A new directory, of a storage that Spark's Hadoop can open.
        output_mode: Spark's output mode of the query.

    Returns:
        What `write_savepoint(like=…)` takes.

    Guarantee: no row has reached a sink, and no state is kept. Of joins of state format 3 and 4
    Spark 4.3 runs a batch that reads nothing.

    Raises:
        InvalidArgumentError: A query was captured there (kind checkpoint-exists); the
            sources have nothing yet, so that no batch is planned; or the session is one of Spark
            Connect (kind spark-connect).
        StreamingQueryException: Spark cannot plan the query.
    """
    from pyspark.errors import StreamingQueryException

    require_driver(frame.sparkSession, "capture_query", "capture the query in its driver")
    uri = absolute_uri(os.fspath(directory))
    path = hadoop_uri(uri)  # Spark has a default file system
    _require_new(frame.sparkSession, path)
    mark = f"captured {RandomIds().new_id()}"
    let_pass: set[int] = set()

    def take_none(batch: DataFrame, batch_id: int) -> None:
        if batch_id not in let_pass:
            raise _Captured(mark)
        batch.write.format("noop").mode("append").save()

    writer = frame.writeStream.outputMode(output_mode).foreachBatch(take_none)
    # Once, and not availableNow: a limit of files or rows a batch does not hold for it.
    writer = writer.option("checkpointLocation", path).trigger(once=True)

    def is_planned() -> bool:
        query = writer.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if mark not in str(error):
                raise
            return True
        finally:
            query.stop()
        return False

    with _ONE_AT_A_TIME, _quiet(frame.sparkSession):
        is_captured = is_planned()
        if is_captured and _reads_nothing(frame.sparkSession, path):
            # Batch 0 only pins the state format of joins: the one after it is planned.
            let_pass.add(0)
            is_captured = is_planned() or is_planned()
    if is_captured:
        version = frame.sparkSession.conf.get(_FORMAT_KEY, "1")
        return CapturedQuery(uri, int(version or "1"))
    raise InvalidArgumentError(
        "no batch of the query was planned: its sources have nothing yet",
        directory=uri,
        to_fix="capture the query when its sources have what the history ends with",
    )


def _require_new(spark: SparkSession, directory: str) -> None:
    """Check that a directory has no batch: Spark would go on with its offsets."""
    files, path = _open(spark, f"{directory}/offsets")
    if files.exists(path) and len(files.listStatus(path)):
        raise InvalidArgumentError(
            "the directory has the offsets of a query",
            kind="checkpoint-exists",
            directory=directory,
            to_fix="name a new directory, or delete this one where it is of an earlier capture",
        )


def _reads_nothing(spark: SparkSession, path: str) -> bool:
    """Return whether the first entry of the offset log says of no source how far it is read."""
    files, entry = _open(spark, f"{path}/offsets/0")  # a driver's local disk is no executor's
    stream = files.open(entry)
    try:
        jvm: Any = spark._jvm  # noqa: SLF001
        _, _, *sources = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8").splitlines()
    finally:
        stream.close()
    return all(source == NO_OFFSET for source in sources)


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Hadoop's file system of a path, and the path in it."""
    jvm: Any = spark._jvm  # noqa: SLF001
    found = jvm.org.apache.hadoop.fs.Path(path)
    conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    return found.getFileSystem(conf), found


@contextmanager
def _quiet(spark: SparkSession) -> Iterator[None]:
    """Keep how a query ends out of Spark's log: the end of this one is no error, and is raised.

    Of a query that fails meanwhile in the same driver the log says nothing either; who waits for it
    gets its error as always.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    configuration = context.getConfiguration()
    before = {name: configuration.getLoggers().get(name) for name in _LOGGERS}
    levels = {name: own.getLevel() for name, own in before.items() if own is not None}
    for name in _LOGGERS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    try:
        yield
    finally:
        for name in _LOGGERS:
            # A level of its own has Spark's shell show what it hides else.
            if name in levels:
                log4j.core.config.Configurator.setLevel(name, levels[name])
            else:
                configuration.removeLogger(name)
        context.updateLoggers()


class _Captured(Exception):  # noqa: N818 (no error: it ends what was to be ended)
    """The first batch was planned."""
