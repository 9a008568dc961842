"""The Scala compiler among Spark's jars: no other build tool is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.spark_jars import INSTALLED, jars_of

SPARK_JARS = jars_of(INSTALLED)
SCALAC_FLAGS = ("-deprecation", "-feature", "-unchecked", "-Xlint", "-Wunused", "-Werror")
JAVA_RELEASE = "17"
"""Oldest Java that runs the class files."""


def compile_scala(
    sources: Sequence[Path],
    output: Path,
    *,
    class_path: Sequence[str] = (),
    flags: Sequence[str] = SCALAC_FLAGS,
    spark_jars: Path = SPARK_JARS,
) -> None:
    """Compile against Spark's jars.

    Args:
        sources: Scala files, all of one compilation.
        output: Existing directory that the class files go to.
        class_path: What they need besides Spark's jars.
        flags: Options of the compiler.
        spark_jars: Directory with them; the compiler is theirs.

    Raises:
        subprocess.CalledProcessError: They do not compile; the compiler has said why on stderr.
    """
    compiler = [
        str(next(spark_jars.glob(f"scala-{part}-2.13*.jar")))
        for part in ("compiler", "reflect", "library")
    ]
    command = [str(find_java()), "-Xss8m", "-cp", os.pathsep.join(compiler), "scala.tools.nsc.Main"]
    full_path = os.pathsep.join([*class_path, f"{spark_jars}/*"])
    command += [*flags, *_release(), "-classpath", full_path, "-d", str(output)]
    subprocess.run([*command, *map(str, sources)], check=True, timeout=1800)


def find_java() -> Path:
    """Return the java that Spark itself would start."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    return found.resolve()


def _release() -> list[str]:
    # A Java runtime without compiler has no table of older releases; its own class files serve.
    symbols = find_java().parents[1] / "lib" / "ct.sym"
    return ["-release", JAVA_RELEASE] if symbols.exists() else [f"-target:{JAVA_RELEASE}"]
