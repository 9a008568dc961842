"""The shim's working view and row cache: random operations against a model, in a JVM."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from statestore.spark.jar import find_jar
from tools.scala import SPARK_JARS, compile_scala

CHECKS = Path(__file__).resolve().parents[2] / "jvm-shim/src/test/scala/io/statestore"
JVM_FLAGS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.nio", "java.lang", "sun.nio.ch")
)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checks compiled against the shim jar."""
    output = tmp_path_factory.mktemp("view-check")
    jar = str(find_jar())
    compile_scala(sorted(CHECKS.glob("*/*.scala")), output, class_path=(jar,), flags=())
    return output


@pytest.mark.timeout(240)
def test_view_equals_model_when_operations_are_random(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Puts, removes, merges, open scans, commits, roll-backs, spills and compaction lose no row."""
    counts = run(classes, "view.ViewModelCheck", pytestconfig, 300)

    assert int(counts["rollBacks"]) > 10, "the run proved nothing about roll-backs"
    assert int(counts["spilledRuns"]) > 0, "the run proved nothing about spilling"


@pytest.mark.timeout(240)
def test_row_cache_equals_model_when_operations_are_random(
    classes: Path, pytestconfig: pytest.Config
) -> None:
    """Catches a stale row, a row that is said to be absent, and a shown row that is overwritten."""
    counts = run(classes, "rocksdb.RowCacheCheck", pytestconfig, 60)

    for name in ("misses", "absents", "hits"):
        assert int(counts[name]) > 100, f"the run proved nothing about {name}"


def run(classes: Path, check: str, pytestconfig: pytest.Config, batches: int) -> dict[str, str]:
    """Run a check with the seed of the test run; return what it counted."""
    seed = int(pytestconfig.getoption("randomly_seed", default=1)) % 1_000_000
    class_path = f"{classes}:{find_jar()}:{SPARK_JARS}/*"
    main = f"io.statestore.{check}"

    done = subprocess.run(
        ["java", "-Xmx512m", *JVM_FLAGS, "-cp", class_path, main, str(seed), str(batches)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    return dict(pair.split("=") for pair in done.stdout.split() if "=" in pair)
