"""Jars of Spark's tests: fetched, unpacked, and compiled against."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from examples.wikipedia_edits.jars import CACHE, SPARK_JARS, TIMEOUT_S, JarsUnreachableError
from tools.scala import compile_scala, find_java
from tools.spark_jars import jars_of_release

_HERE = Path(__file__).parent
_LISTED = _HERE / "ivy.xml"


def fetch_tests(release: str) -> Path:
    """Return a directory with the tests of a release of Spark, and what they need beside Spark.

    Below it, `lib` has jars. `tests` has a directory for each jar of tests: they open files of
    theirs as files.

    Raises:
        JarsUnreachableError: The registry does not give them.
    """
    kept = CACHE / f"spark-tests-{release}"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            made = Path(work, "made")
            command = [str(find_java()), f"-Dspark={release}"]
            command += ["-cp", str(next(SPARK_JARS.glob("ivy-*.jar"))), "org.apache.ivy.Main"]
            command += [
                "-cache",
                str(CACHE / "ivy"),
                "-ivy",
                str(_LISTED),
                "-types",
                "jar",
                "bundle",
            ]
            command += ["-retrieve", f"{made}/lib/[artifact]-[revision](-[classifier]).[ext]"]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, cwd=work
            )
            if done.returncode != 0:
                raise JarsUnreachableError(done.stdout[-2000:] + done.stderr[-1000:])
            for jar in list(made.glob(f"lib/*-{release}-tests.jar")):
                with zipfile.ZipFile(jar) as archive:
                    archive.extractall(made / "tests" / jar.name.partition("_")[0])
                jar.unlink()
            made.replace(kept)
    return kept


def suites_of(release: str) -> dict[str, str]:
    """Return the suites among the tests of a release: full name by class name."""
    folder = fetch_tests(release) / "tests" / "spark-sql"
    return {
        path.stem: ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*Suite.class")
    }


def compile_suites(spark: str, tests: str, suites: Iterable[str]) -> list[str]:
    """Return the class path of Spark, its tests, and a redirected class of each suite.

    Args:
        spark: Release that runs.
        tests: Release that the tests are of.
        suites: Full names; the class of `a.B` is `a.BRedirected`.
    """
    fetched, spark_jars = fetch_tests(tests), jars_of_release(spark)
    library = [*map(str, sorted(fetched.glob("tests/*"))), f"{spark_jars}/*", f"{fetched}/lib/*"]
    redirected = "".join(
        "package {} {{ class {}Redirected extends {} with conformance.Redirected }}\n".format(
            *suite.rpartition(".")[::2], suite.rpartition(".")[2]
        )
        for suite in sorted(suites)
    )
    sources = sorted(_HERE.glob("scala/*.scala"))
    if tuple(map(int, tests.split("."))) >= (4, 2):
        sources += sorted(_HERE.glob("scala/since-4.2/*.scala"))
    digested = hashlib.sha256(f"{spark} {tests} {redirected}".encode())
    for path in sources:
        digested.update(path.read_bytes())
    classes = CACHE / f"suites-{digested.hexdigest()[:16]}"
    if not classes.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            made, written = Path(work, "classes"), Path(work, "Redirected.scala")
            made.mkdir()
            written.write_text(redirected)
            compile_scala(
                [*sources, written],
                made,
                class_path=library,
                flags=("-deprecation", "-feature", "-nowarn"),
                spark_jars=spark_jars,
            )
            made.replace(classes)
    return [str(classes), *library]
