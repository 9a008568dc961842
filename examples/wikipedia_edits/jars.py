"""The jars of Kafka's broker and of Spark's Kafka connector, from Maven Central, fetched once.

    python -m examples.wikipedia_edits.jars

fetches both. They are kept below `~/.cache/statestore`, or where XDG_CACHE_HOME says; the resolver
is Ivy, which is among Spark's own jars.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pyspark

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statestore"
BROKER = ("org.apache.kafka", "kafka_2.13", "4.4.0")
CONNECTOR_NAME = "spark-sql-kafka-0-10_2.13"
CONNECTORS = (pyspark.__version__, "4.2.0")
"""Versions of the connector, best first: that of Spark, then one that also runs on Spark 4.3."""
SPARK_JARS = Path(pyspark.__file__).parent / "jars"
TIMEOUT_S = 900


class JarsUnreachableError(Exception):
    """Jars are not on this machine, and could not be fetched."""


def broker_jars() -> list[Path]:
    """Return the jars of Kafka's server, and what it logs with from Spark's; raises as `fetch`."""
    logging = [*SPARK_JARS.glob("slf4j-api-*.jar"), *SPARK_JARS.glob("log4j-slf4j2-impl-*.jar")]
    return [jar for jar in fetch(*BROKER) if _artifact(jar) != "slf4j-api"] + logging


def connector_jars() -> list[Path]:
    """Return the jars that Spark has not got, to read and write Kafka.

    Raises:
        JarsUnreachableError: None of the versions can be fetched.
    """
    kept = [version for version in CONNECTORS if _directory(CONNECTOR_NAME, version).exists()]
    for version in kept or CONNECTORS:
        try:
            jars = fetch("org.apache.spark", CONNECTOR_NAME, version)
        except JarsUnreachableError as error:
            failed = error
        else:
            sparks = {_artifact(jar) for jar in SPARK_JARS.glob("*.jar")}
            return [jar for jar in jars if _artifact(jar) not in sparks]
    raise failed


def fetch(organisation: str, name: str, version: str) -> list[Path]:
    """Return a jar of the registry with all that it needs at run time.

    Guarantee: on return all of them are there; a fetch that fails leaves none.

    Raises:
        JarsUnreachableError: They are not kept here, and the registry does not give them.
    """
    kept = _directory(name, version)
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        ivy = next(SPARK_JARS.glob("ivy-*.jar"))
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            command = [
                *("java", "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(CACHE / "ivy")),
                *("-confs", "default", "-types", "jar", "bundle"),
                *("-dependency", organisation, name, version),
                *("-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"),
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
            if done.returncode != 0 or not Path(work, "jars", f"{name}-{version}.jar").exists():
                raise JarsUnreachableError(done.stdout[-1000:] + done.stderr[-1000:])
            Path(work, "jars").replace(kept)
    return sorted(kept.glob("*.jar"))


def _artifact(jar: Path) -> str:
    return jar.stem.rpartition("-")[0]


def _directory(name: str, version: str) -> Path:
    return CACHE / f"jars-{name}-{version}"


if __name__ == "__main__":
    for jar in [*broker_jars(), *connector_jars()]:
        print(jar)
