"""The jar of the lane's own Scala helper, compiled on demand."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from pathlib import Path

import pyspark

from tools.scala import compile_scala

SCALA_SOURCES = sorted((Path(__file__).resolve().parent / "scala").glob("*.scala"))


def compile_test_jar(cache: Path) -> Path:
    """Return a jar of the Scala test helper, compiled unless the cache has it.

    Args:
        cache: Directory the jar is kept in, named by its source and the pyspark version.
    """
    source = b"".join(path.read_bytes() for path in SCALA_SOURCES)
    digest = hashlib.sha256(source + pyspark.__version__.encode()).hexdigest()[:16]
    jar = cache / f"test-queries-{digest}.jar"
    if not jar.exists():
        # Of two processes that come here at a time, each makes it.
        with tempfile.TemporaryDirectory(dir=cache) as work:
            classes, made = Path(work) / "classes", Path(work) / jar.name
            classes.mkdir()
            compile_scala(SCALA_SOURCES, classes)
            with zipfile.ZipFile(made, "w") as archive:
                for path in sorted(classes.rglob("*.class")):
                    archive.write(path, path.relative_to(classes))
            made.replace(jar)
    return jar
