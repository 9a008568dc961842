"""The jars of the lane's own Scala helpers, compiled on demand."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from pathlib import Path

import pyspark

from tools.scala import compile_scala

SOURCES = Path(__file__).resolve().parent / "scala"
CACHE = Path(__file__).resolve().parents[2] / ".pytest_cache" / "d" / "statestore-jars"


def compile_test_jar(name: str) -> Path:
    """Return a jar of test helpers, compiled unless the cache has it.

    Args:
        name: Directory of its sources: `queries` and `stores`, for `spark.jars`; or `files`,
            which must be on the class path of a JVM.
    """
    sources = sorted((SOURCES / name).glob("*.scala"))
    source = b"".join(path.read_bytes() for path in sources)
    digest = hashlib.sha256(source + pyspark.__version__.encode()).hexdigest()[:16]
    jar = CACHE / f"test-{name}-{digest}.jar"
    if not jar.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Of two processes that come here at a time, each makes it.
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            classes, made = Path(work) / "classes", Path(work) / jar.name
            classes.mkdir()
            compile_scala(sources, classes)
            with zipfile.ZipFile(made, "w") as archive:
                for path in sorted(classes.rglob("*.class")):
                    archive.write(path, path.relative_to(classes))
            made.replace(jar)
    return jar
