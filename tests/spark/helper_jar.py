"""The jars of the lane's own Scala helpers, compiled on demand."""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyspark

from tools.scala import SCALAC_FLAGS, compile_scala

SOURCES = Path(__file__).resolve().parent / "scala"
CACHE = Path(__file__).resolve().parents[2] / ".pytest_cache" / "d" / "statestore-jars"


def compile_test_jar(name: str) -> Path:
    """Return a jar of test helpers, compiled unless the cache has it.

    Args:
        name: Directory of its sources: `queries` and `stores`, for `spark.jars`; or `files`,
            which must be on the class path of a JVM.
    """
    return cached_jar(name, sorted((SOURCES / name).glob("*.scala")))


def cached_jar(
    name: str,
    sources: Sequence[Path],
    class_path: Sequence[Path] = (),
    flags: Sequence[str] = SCALAC_FLAGS,
) -> Path:
    """Return a jar of Scala sources, compiled against Spark unless the cache has it.

    Args:
        name: Tells it from other jars of the cache.
        sources: What is compiled.
        class_path: Jars that it needs beside Spark's.
        flags: Options of the compiler.
    """
    digested = hashlib.sha256(pyspark.__version__.encode())
    for path in (*sources, *class_path):
        digested.update(path.read_bytes())
    digest = digested.hexdigest()[:16]
    jar = CACHE / f"test-{name}-{digest}.jar"
    CACHE.mkdir(parents=True, exist_ok=True)
    # The processes of a run come here together; one of them makes it.
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jar.exists():
            _make(jar, sources, class_path, flags)
    return jar


def _make(
    jar: Path, sources: Sequence[Path], class_path: Sequence[Path], flags: Sequence[str]
) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        classes, made = Path(work) / "classes", Path(work) / jar.name
        classes.mkdir()
        compile_scala(sources, classes, class_path=list(map(str, class_path)), flags=flags)
        with zipfile.ZipFile(made, "w") as archive:
            for path in sorted(classes.rglob("*.class")):
                archive.write(path, path.relative_to(classes))
        made.replace(jar)
