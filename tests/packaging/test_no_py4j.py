"""A job in Scala, on a Spark that comes without Python: what an engine imports is in the jar."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import py4j.version
import pyspark
import pytest

from tests.spark.helper_jar import compile_test_jar
from tools.shim_jar import PY4J, build_jar
from tools.spark_jars import INSTALLED, RELEASES, jars_of

SPARK = Path(pyspark.__file__).parent


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python with what engines need, and neither pyspark nor py4j nor this package."""
    home = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python3.*/site-packages")
    for path in Path(numpy.__file__).parents[1].iterdir():
        if re.fullmatch(r"(numpy|pyarrow|google_crc32c)(\.libs)?", path.name):
            (packages / path.name).symlink_to(path)
    return home / "bin" / "python"


@pytest.mark.timeout(600)
def test_a_scala_job_runs_where_spark_has_no_python(python: Path, tmp_path: Path) -> None:
    """Catches an engine that finds py4j only in Spark's own directory, as YARN and images lack."""
    libraries = tmp_path / "__spark_libs__"
    libraries.symlink_to(SPARK / "jars")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
    }
    options = {
        "spark.pyspark.python": python,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.providerClass": (
            "io.statestore.FileSystemStateStoreProvider"
        ),
    }
    opens = [
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.nio", "java.lang", "java.util", "sun.nio.ch", "java.lang.invoke")
    ]
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    class_path = os.pathsep.join(
        map(str, (compile_test_jar("jobs"), build_jar(), f"{libraries}/*"))
    )

    done = subprocess.run(
        [str(java), *opens, *(f"-D{key}={value}" for key, value in options.items()),
         "-cp", class_path, "io.statestore.testing.CountingJob"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    assert "counted a=1 b=2" in done.stdout


@pytest.mark.parametrize(
    "minor",
    [
        pytest.param(minor, marks=() if minor == INSTALLED else pytest.mark.extended)
        for minor in RELEASES
    ],
)
def test_the_py4j_of_a_jar_is_the_one_of_its_spark(minor: str) -> None:
    """Catches a protocol of another release than the JVM speaks."""
    (of_spark,) = jars_of(minor).glob("py4j-*.jar")
    with zipfile.ZipFile(build_jar()) as jar:
        version = jar.read(f"{PY4J}/py4j/version.py").decode()

    assert of_spark.name == f"py4j-{py4j.version.__version__}.jar"
    assert f'"{py4j.version.__version__}"' in version.replace("'", '"')
