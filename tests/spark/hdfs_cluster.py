"""A real HDFS for tests: Hadoop's own name node and data node, in a JVM of their own."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from tools.scala import SPARK_JARS

from .helper_jar import CACHE

_MAIN_CLASS = "org.apache.hadoop.test.MiniDFSClusterManager"
_READY_TIMEOUT_S = 120.0
CLIENT_CONF = {"spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10"}
"""A client waits this long, instead of 400 ms, when it ends a file before the name node has heard
of its last block, as it does where all are one machine."""
_JUNITS = (
    ("org.junit.jupiter", "junit-jupiter-api", "5.13.3"),
    ("junit", "junit", "4.13.2"),
)
"""The cluster needs one class: of the first since Hadoop 3.5, of the second before."""


class JarsUnreachableError(Exception):
    """The jars of the cluster are not on this machine, and could not be fetched."""


class HdfsCluster:
    """Serves on a port of its own until `stop`; files are below `directory`.

    Raises:
        JarsUnreachableError: As `fetch_jar`.
        RuntimeError: It does not start; says what its log ends with.
    """

    def __init__(self, directory: Path) -> None:
        details, log = directory / "details.json", directory / "hdfs.log"
        jars = [
            fetch_jar("org.apache.hadoop", "hadoop-client-minicluster", hadoop_release()),
            *(fetch_jar(*junit) for junit in _JUNITS),
        ]
        command = [
            *("java", "-Xmx512m", "-cp", ":".join([f"{SPARK_JARS}/*", *map(str, jars)])),
            *(_MAIN_CLASS, "-format", "-datanodes", "1", "-nnport", "0", "-cmdport", "0"),
            *("-writeDetails", str(details)),
        ]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=directory
            )
        try:
            self.uri = f"hdfs://127.0.0.1:{self._await_port(details, log)}"
        except BaseException:
            self.stop()
            raise

    def _await_port(self, details: Path, log: Path) -> int:
        end_s = time.monotonic() + _READY_TIMEOUT_S
        while not (details.exists() and details.read_text().endswith("}")):
            if self._process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"HDFS does not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        return int(json.loads(details.read_text())["namenode_port"])

    def stop(self) -> None:
        """End it; its files are worth nothing afterwards."""
        self._process.kill()
        self._process.wait()


def hadoop_release() -> str:
    """Return the release of Hadoop whose client is among Spark's jars."""
    return next(SPARK_JARS.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]


def fetch_jar(organisation: str, name: str, version: str) -> Path:
    """Return a jar of the registry that Spark takes `spark.jars.packages` from.

    Raises:
        JarsUnreachableError: The registry cannot be reached.
    """
    jar = CACHE / f"{name}-{version}.jar"
    if not jar.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Of two processes that come here at a time, each fetches it.
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            command = [
                *("java", "-cp", str(next(SPARK_JARS.glob("ivy-*.jar"))), "org.apache.ivy.Main"),
                *("-cache", f"{work}/cache", "-notransitive", "-types", "jar"),
                *("-dependency", organisation, name, version),
                *("-retrieve", f"{work}/[artifact]-[revision].[ext]"),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            fetched = Path(work, jar.name)
            if not fetched.exists():
                raise JarsUnreachableError(done.stdout[-1000:] + done.stderr[-1000:])
            fetched.replace(jar)
    return jar
