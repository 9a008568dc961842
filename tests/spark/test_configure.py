"""A session made by `statestore.configure` has its state where the arguments say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import statestore
from statestore.core.errors import InvalidArgumentError
from statestore.io.shim_jar import find_jar
from tests.otlp_collector import attributes_of, named_by_docs, running

from .harness import FILESYSTEM, PROVIDER_CLASS

JOB = Path(__file__).with_name("configured_job.py")
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "metrics.md"
MONITORING = DOCS / "monitoring"

pytestmark = pytest.mark.ours


@pytest.mark.timeout(240)
def test_query_of_a_configured_session_uses_backend_options_and_all_jars(tmp_path: Path) -> None:
    """Catches configuration that the builder holds and the application does not see."""
    jar, storage = tmp_path / "mine.jar", tmp_path / "elsewhere"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("mine.txt", "")
    storage.mkdir()

    with running() as collector:
        done = subprocess.run(
            [sys.executable, JOB, "rocksdb", str(storage), str(jar), collector.endpoint],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )

    assert done.returncode == 0, done.stderr[-4000:]
    expected = f"{ {'a': 1, 'b': 2} } {['mine.jar', find_jar().name]}"
    assert done.stdout.splitlines()[-1] == expected
    # Spark logs what a listener's call met when nobody was there any more.
    assert "Py4JException" not in done.stderr
    assert (tmp_path / "rates" / "commits" / "2").exists()
    _check_pages(tmp_path)
    assert list(storage.rglob("1*.delta.sst"))
    assert not list((tmp_path / "checkpoint").rglob("*.sst"))
    loads = {"statestore.load_ms", "statestore.loaded_bytes"}  # nothing was loaded from files
    assert collector.metrics.keys() == named_by_docs() - loads
    (commit,) = (span for span in collector.spans if span.name == "commit")
    assert attributes_of(commit)["statestore.version"] == "1"
    assert {of["spark.executor.id"] for of in collector.resources} == {"driver"}


@pytest.mark.timeout(120)
def test_jvm_that_spark_submit_started_without_the_jar_is_refused_with_the_fix(
    tmp_path: Path,
) -> None:
    """Catches a query that fails with ClassNotFoundException, though it is configured."""
    job = tmp_path / "job.py"
    job.write_text(
        "import statestore\nfrom pyspark.sql import SparkSession\n"
        "print(type(statestore.configure(SparkSession.builder)).__name__)\n"
    )
    submit = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master=local[1]"]
    here = {**os.environ, "PYSPARK_PYTHON": sys.executable}

    without, with_jar = (
        subprocess.run([*submit, *jars, job], env=here, capture_output=True, text=True, timeout=100)
        for jars in ([], [f"--jars={find_jar()}"])
    )

    # spark-submit prints both streams of the program to stdout.
    assert without.returncode == 1
    assert "[file-not-found] the JVM of this program runs already" in without.stdout
    assert "To fix: name the jar where the JVM is started: spark-submit --jars" in without.stdout
    assert with_jar.returncode == 0, with_jar.stdout
    assert with_jar.stdout.splitlines()[-1] == "Builder"


@pytest.mark.timeout(240)
def test_executors_have_all_jars_of_spark_submit_and_one_shim(tmp_path: Path) -> None:
    """Catches a connector that only the driver has, and another shim on the executors."""
    folder = tmp_path / "with a blank"
    folder.mkdir()
    other, older = folder / "other.jar", folder / "shim.jar"
    with zipfile.ZipFile(other, "w") as made:
        made.writestr("io/example/resource.txt", "")
    shutil.copy(find_jar(), older)
    job = tmp_path / "job.py"
    job.write_text(
        "import statestore\nfrom pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.config('spark.ui.enabled', False)\n"
        "spark = statestore.configure(builder).getOrCreate()\n"
        "jars = spark.sparkContext._jsc.sc().listJars().mkString(',')\n"
        "spark.range(2).count()\n"
        "print(*sorted(jar.rpartition('/')[2] for jar in jars.split(',')), builder._options)\n"
    )
    submit = [Path(pyspark.__file__).parent / "bin" / "spark-submit", f"--jars={older},{other}"]

    done = subprocess.run(
        [*submit, "--master=local-cluster[1,1,1024]", job],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:]
    jars = f"{older.as_uri()},{other.as_uri()}"
    assert done.stdout.splitlines()[-1].startswith(f"{other.name} {older.name} {{")
    assert f"'spark.jars': '{jars}'" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("said_by", ["session", "jvm"])
def test_provider_of_what_runs_already_is_told_where_real_time_is_asked_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, said_by: str
) -> None:
    """Catches a backend that is named and not used: Spark's key stands before it."""
    properties = spark._jvm.java.lang.System
    builder = SparkSession.Builder()
    if said_by == "session":
        spark.conf.set(PROVIDER_CLASS, FILESYSTEM)
    else:
        monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
        properties.setProperty(PROVIDER_CLASS, FILESYSTEM)
    try:
        with pytest.raises(InvalidArgumentError, match=r"To fix: spark\.conf\.unset") as refused:
            statestore.configure(builder, "rocksdb", real_time=True)
    finally:
        spark.conf.unset(PROVIDER_CLASS)
        properties.clearProperty(PROVIDER_CLASS)

    assert refused.value.fields == {"key": PROVIDER_CLASS, "value": FILESYSTEM}
    assert builder._options == {}
    assert statestore.configure(builder, "rocksdb", real_time=True) is builder


@pytest.mark.timeout(120)
def test_driver_in_a_container_without_a_spark_has_the_jar_of_its_jvm(tmp_path: Path) -> None:
    """Catches a driver of YARN's cluster mode that is refused, since its pyspark is a zip."""
    package = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    job = tmp_path / "job.py"
    job.write_text(
        "import os, sys\nos.environ.pop('SPARK_HOME', None)\n"
        f"sys.path.insert(0, {str(package)!r})\n"
        "import pyspark, statestore\nfrom pyspark.sql import SparkSession\n"
        "builder = statestore.configure(SparkSession.builder)\n"
        "print(pyspark.__file__, builder._options['spark.jars'])\n"
    )
    submit = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master=local[1]"]
    jar = tmp_path / "shim.jar"
    shutil.copy(find_jar(), jar)

    for given, found in (
        (f"--jars={jar}", jar.as_uri()),
        (f"--driver-class-path={jar}", str(jar)),
    ):
        done = subprocess.run(
            [*submit, given, job],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

        assert done.returncode == 0, done.stdout[-4000:]
        assert done.stdout.splitlines()[-1] == f"{package}/pyspark/__init__.py {found}"


def _check_pages(shown: Path) -> None:
    """Catches a dashboard of metrics that nobody exports, and a page of Spark's without ours."""
    exported = dict(
        re.findall(r"^metrics_\w+?_statestore_(\w+)\{[^}]*\} (\S+)$", _text(shown), re.MULTILINE)
    )
    asked = set()
    for name in ("grafana.json", "alerts.yaml"):
        asked |= set(re.findall(r"_statestore_(\w+)", (MONITORING / name).read_text()))
    assert len(asked) > 15
    assert asked <= exported.keys()
    documented = set(
        re.findall(r"^\| `(\w+)` \| (?:histogram|counter|gauge) \|", PAGE.read_text(), re.MULTILINE)
    )
    assert documented == {name.rpartition("_")[0] for name in exported}
    assert exported["commitMs_Count"] == "1"
    assert float(exported["engineRssBytes_Value"]) > 10_000_000
    assert float(exported["storagePuts_Count"]) > 0
    page = (shown / "query.html").read_text()
    for metric in ("statestoreDeltaBytes", "statestoreCommitPublishMs", "rocksdbLoadLatencyMs"):
        assert f"aggregated-{metric}-timeline" in page


def _text(shown: Path) -> str:
    return (shown / "prometheus.txt").read_text()
