"""Spark sessions of the benchmarks, and the jar with their part that runs in the JVM."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from benchmarks.datasets import CACHE
from benchmarks.workloads import STATE_STORE, Provider
from statestore.core.errors import NotFoundError
from statestore.io.shim_jar import find_jar
from tools.scala import compile_scala

JVM_SOURCES = sorted((Path(__file__).parent / "jvm").glob("*.scala"))


def start_session(provider: Provider, jars: tuple[Path, ...] = ()) -> SparkSession:
    """Start Spark in `local[2]` with the provider selected and everything else at its default.

    Args:
        provider: Whose state stores to use.
        jars: Further jars on the class path.

    Raises:
        NotFoundError: The provider is ours and its jar is not built.
    """
    all_jars = list(jars)
    if _needs_jar(provider):
        all_jars.append(find_jar())
    if not provider.keeps_state:
        all_jars.append(benchmark_jar())
    conf = {
        "spark.master": "local[2]",
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
        f"{STATE_STORE}.providerClass": provider.provider_class,
        "spark.jars": ",".join(str(jar) for jar in all_jars),
        **dict(provider.conf),
    }
    builder = SparkSession.builder.appName("benchmark")
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def is_available(provider: Provider) -> bool:
    """Return whether the provider can run here: Spark's always, ours when its jar is built."""
    try:
        return not _needs_jar(provider) or find_jar().exists()
    except NotFoundError:
        return False


def _needs_jar(provider: Provider) -> bool:
    """Whether Spark refuses a `transformWithState` on the provider without the jar, or it is in it.

    The empty store is let in as the package's own stores are.
    """
    return provider.is_ours or not provider.keeps_state


def benchmark_jar() -> Path:
    """Return the jar of the sources in `jvm/`, compiled once per source and Spark version.

    Raises:
        subprocess.CalledProcessError: It does not compile; the compiler has said why on stderr.
    """
    source = b"".join(file.read_bytes() for file in JVM_SOURCES)
    digest = hashlib.sha256(source + pyspark.__version__.encode()).hexdigest()[:16]
    jar = CACHE / f"benchmarks-{digest}.jar"
    if jar.exists():
        return jar
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        classes = Path(scratch) / "classes"
        classes.mkdir()
        compile_scala(JVM_SOURCES, classes)
        staged = Path(scratch) / "benchmarks.jar"
        with zipfile.ZipFile(staged, "w") as archive:
            for file in sorted(classes.rglob("*.class")):
                archive.write(file, file.relative_to(classes))
        staged.replace(jar)
    return jar
