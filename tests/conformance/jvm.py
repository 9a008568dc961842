"""A JVM with Spark's tests, and with a provider of this package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tools.scala import find_java
from tools.shim_jar import build_jar

from .jars import compile_suites, suites_of
from .results import Known

_OWN = {
    "StateStoreContractSuite": "org.apache.spark.sql.execution.streaming.state",
    "StateReaderSuite": "org.apache.spark.sql.execution.datasources.v2.state",
    "StateChangeFeedSuite": "org.apache.spark.sql.execution.datasources.v2.state",
}
"""Suites of tests/conformance/scala, by package: Spark's abstract ones with the provider."""


class SparkTests:
    """The tests of a Spark, compiled for redirection.

    Args:
        known: What is known of suites.
        minor: Of Spark.

    Attributes:
        suites: Full name of what runs, by the name of the suite.
        extensions: Of a session, as the jar names them; with commas between.
    """

    def __init__(self, known: Known, minor: str) -> None:
        spark, tests = known.releases(minor)
        found = suites_of(tests)
        wanted = {name: found[name] for name in known.suites if name in found}
        self._minor = minor
        self._class_path = [*compile_suites(spark, tests, wanted.values()), str(build_jar(minor))]
        self.suites = {name: f"{suite}Redirected" for name, suite in wanted.items()}
        if minor not in {"4.0", "4.1"}:
            self.suites |= {name: f"{package}.{name}" for name, package in _OWN.items()}
        with zipfile.ZipFile(self._class_path[-1]) as jar:
            service = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
            self.extensions = ",".join(jar.read(service).decode().split())

    def run(
        self,
        main: str,
        arguments: Sequence[str],
        work: Path,
        output: IO[bytes] | None = None,
        flags: Sequence[str] = ("-XX:TieredStopAtLevel=1",),
    ) -> int:
        """Run a class; return the status of its process.

        Args:
            main: The class.
            arguments: Of it.
            work: Directory of the process and of its temporary files.
            output: What it prints goes here.
            flags: Options of the JVM. As they are, it compiles fast: most code of tests runs once.
        """
        command = [
            *(str(find_java()), *_options(self._minor), *flags, f"-Djava.io.tmpdir={work}"),
            *(f"-Dspark.test.home={work}", f"-Dspark.pyspark.python={sys.executable}"),
            *("-cp", os.pathsep.join(self._class_path), main, *arguments),
        ]
        env = os.environ | {"SPARK_TESTING": "1", "TMPDIR": str(work)}
        ended = subprocess.run(
            command, stdout=output, stderr=output, cwd=work, env=env, check=False
        )
        return ended.returncode


def _options(minor: str) -> list[str]:
    """Return what Spark's own build gives a JVM of tests."""
    lang = ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util", "util.concurrent")
    packages = [f"java.{name}" for name in (*lang, "util.concurrent.atomic")]
    packages += ["jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action"]
    packages += ["sun.util.calendar"]
    managers = "org.apache.spark.sql.execution.streaming"
    managers += ".checkpointing" if minor != "4.0" else ""
    return [
        *("-Xmx3g", "-Xss4m", "-XX:+IgnoreUnrecognizedVMOptions"),
        *("-XX:+UseParallelGC", "-XX:ReservedCodeCacheSize=512m"),
        "--add-modules=jdk.incubator.vector",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages),
        *("-Dio.netty.tryReflectionSetAccessible=true", "-Dspark.testing=1"),
        *("-Dspark.ui.enabled=false", "-Dspark.ui.showConsoleProgress=false"),
        *("-Dspark.unsafe.exceptionOnMemoryLeak=true", "-Dspark.master.rest.enabled=false"),
        # Else each file of Spark's own logs starts processes.
        "-Dspark.sql.streaming.checkpointFileManagerClass="
        f"{managers}.FileSystemBasedCheckpointFileManager",
        f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}",
    ]
