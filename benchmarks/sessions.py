"""Spark sessions of the benchmarks, and the jar with their part that runs in the JVM."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from benchmarks.datasets import CACHE
from benchmarks.workloads import FORMAT_2, STATE_STORE, Provider
from examples.wikipedia_edits.jars import connector_jars
from statestore.core.errors import NotFoundError
from statestore.core.providers import REAL_TIME_KEY
from statestore.io.shim_jar import find_jar
from tools.scala import SPARK_JARS, compile_scala

JVM_SOURCES = Path(__file__).parent / "jvm"


def start_session(
    provider: Provider, jars: tuple[Path, ...] = (), *, slots: int = 2, real_time: bool = False
) -> SparkSession:
    """Start Spark in this machine with the provider selected and everything else at its default.

    Args:
        provider: Whose state stores to use.
        jars: Further jars on the class path.
        slots: Tasks at a time.
        real_time: For queries in real-time mode.

    Raises:
        NotFoundError: The provider is ours and its jar is not built.
    """
    all_jars = list(jars)
    if _needs_jar(provider):
        all_jars.append(find_jar())
    if not provider.keeps_state:
        all_jars.append(benchmark_jar())
    conf = {
        "spark.master": f"local[{slots}]",
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
        **_selection(provider, real_time=real_time),
        "spark.jars": ",".join(dict.fromkeys(map(str, all_jars))),
        **dict(provider.conf),
    }
    builder = SparkSession.builder.appName("benchmark")
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _selection(provider: Provider, *, real_time: bool) -> dict[str, str]:
    """Return the settings that have a session's queries use a provider."""
    key = f"{STATE_STORE}.providerClass"
    if not real_time:
        return {key: provider.provider_class}
    selected = dict([FORMAT_2])
    if provider.is_ours:
        selected["spark.sql.streaming.realTimeMode.allowlistCheck"] = "false"
        key = REAL_TIME_KEY
    return {key: provider.provider_class, **selected}


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
    """Return the jar of what runs in Spark, compiled once per source and Spark version.

    Raises:
        subprocess.CalledProcessError: It does not compile; the compiler has said why on stderr.
    """
    return _compiled("benchmarks", JVM_SOURCES)


def load_jars() -> list[Path]:
    """Return the jar of the load on Kafka, compiled likewise, and all that it needs.

    Raises:
        JarsUnreachableError: Those of Kafka cannot be had.
        subprocess.CalledProcessError: It does not compile.
    """
    needed = connector_jars()
    for name in ("scala-library", "slf4j-api"):
        needed += SPARK_JARS.glob(f"{name}-2*.jar")
    return [_compiled("kafka-load", JVM_SOURCES / "kafka", needed), *needed]


def _compiled(name: str, folder: Path, class_path: Sequence[Path] = ()) -> Path:
    sources = sorted(folder.glob("*.scala"))
    source = b"".join(file.read_bytes() for file in sources)
    digest = hashlib.sha256(source + pyspark.__version__.encode()).hexdigest()[:16]
    jar = CACHE / f"{name}-{digest}.jar"
    if jar.exists():
        return jar
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        classes = Path(scratch) / "classes"
        classes.mkdir()
        compile_scala(sources, classes, class_path=list(map(str, class_path)))
        staged = Path(scratch) / jar.name
        with zipfile.ZipFile(staged, "w") as archive:
            for file in sorted(classes.rglob("*.class")):
                archive.write(file, file.relative_to(classes))
        staged.replace(jar)
    return jar
