"""Archives of Spark's classes, which a JVM maps and need not read and check one by one.

With one a Spark starts and ends its first query in about 0.6 of the time (Java's class data
sharing). A JVM takes only an archive of its own Java and class path, so there is one for what
`spark-submit` starts, and one for the application that the tests of Spark share.

usage: python -m tests.class_archive
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark

from tests.spark.helper_jar import compile_test_jar
from tools.scala import find_java

REPOSITORY = Path(__file__).resolve().parents[1]
ARCHIVES = REPOSITORY / "build" / "classes"
KINDS = ("submit", "application")
QUIET = "-Xlog:cds=off,cds+dynamic=off"
"""A JVM says on its standard output what it leaves out, and that an archive does not fit."""


def archive_options(kind: str) -> str:
    """Return the options of a JVM that uses an archive; none where nobody has made it."""
    path = _path(kind)
    return f"-XX:SharedArchiveFile={path} {QUIET}" if path.exists() else ""


def _path(kind: str) -> Path:
    told_by = [kind, str(find_java()), pyspark.__file__, pyspark.__version__]
    if kind == "application":
        told_by.append(str(compile_test_jar("files")))
    digest = hashlib.sha256("\n".join(told_by).encode()).hexdigest()[:16]
    return ARCHIVES / f"{kind}-{digest}.jsa"


def _make(kind: str) -> None:
    """Have a JVM write down the classes of a first query."""
    with tempfile.TemporaryDirectory(dir=ARCHIVES) as work:
        made = Path(work) / "made.jsa"
        subprocess.run(
            [sys.executable, "-m", "tests.spark.first_query", kind, work],
            env={**os.environ, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={made} {QUIET}"},
            cwd=REPOSITORY,
            check=True,
        )
        if made.exists():  # not every Java can write one
            made.replace(_path(kind))


if __name__ == "__main__":
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        list(pool.map(_make, [kind for kind in KINDS if not _path(kind).exists()]))
