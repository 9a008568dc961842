"""Starts Spark applications: the shared one, and those of jobs in their own processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.class_archive import archive_options

from .harness import NUM_PARTITIONS, STATE_STORE
from .helper_jar import compile_test_jar
from .processes import MARK_NAME

LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %t %c{{1}}: %m%n%ex
"""


def start_application(
    root: Path,
    jars: Sequence[Path],
    master: str = "local[2,2]",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start an application whose local files, temporary files and log are all below `root`.

    Args:
        root: Folder for them; the log is `spark.log` in it.
        jars: What goes on `spark.jars`; of no effect in a process that had an application before.
        master: By default two threads, and a failed task is tried once more.
        conf: More configuration of the application.
    """
    root.mkdir(parents=True, exist_ok=True)
    (root / "tmp").mkdir(exist_ok=True)
    log4j = root / "log4j2.properties"
    log4j.write_text(LOG4J.format(path=root / "spark.log"))
    # Queries are too short for the second compiler to pay off; with the first one alone a JVM would
    # keep 48 MiB of compiled code, which the queries of a whole run do not fit in.
    java_options = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    java_options += f" -Djava.io.tmpdir={root / 'tmp'} {archive_options('application')}"
    # A sink in Python that fails makes Spark look for a pattern in its whole stack trace, and that
    # takes stack by its length: a query whose thread overflowed there never ends.
    driver_options = f"{java_options} -Xss8m -Dlog4j2.configurationFile={log4j}"
    os.environ["PYSPARK_PYTHON"] = sys.executable  # what PySpark starts its own workers with
    files = str(compile_test_jar("files"))
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": driver_options,
        "spark.executor.extraJavaOptions": java_options,
        # Applications of one second would share the directories of a local cluster's executors.
        "spark.deploy.appIdPattern": f"app-%s-%04d-{os.environ.get(MARK_NAME, 'unmarked')}",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(root / "local"),
        "spark.pyspark.python": sys.executable,
        # A worker of a machine that is busy takes long to begin.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(NUM_PARTITIONS),
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.ui.enabled": "false",
        # Hadoop's own starts processes, which takes a third of a test's time.
        "spark.driver.extraClassPath": files,
        "spark.executor.extraClassPath": files,
        "spark.hadoop.fs.file.impl": "io.statestore.testing.ForklessFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "io.statestore.testing.ForklessFs",
        # For RocksDB only; no other provider may mistake it for an option of its own.
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        **(conf or {}),
    }
    builder = SparkSession.builder.master(master).appName("statestore-tests")
    return builder.config(map=settings).getOrCreate()


def abandon_calls() -> None:
    """Give this thread a new connection to the JVM, where there is one.

    Where a call was interrupted, as by a test's timeout, its answer still comes, and would be taken
    for that of the next call.
    """
    gateway = SparkContext._gateway
    connection = gateway and gateway._gateway_client.get_thread_connection()
    if connection:
        connection.close()
