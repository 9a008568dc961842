"""There is a jar for each Spark, and none of them serves another one."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from statestore.core.version import SPARK_MINORS
from tools.link_check import find_missing
from tools.shim_jar import build_jar
from tools.spark_jars import INSTALLED, OLDEST, RELEASES, jars_of

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("wrong_jar_job.py")


def test_every_spark_is_listed_everywhere() -> None:
    """Catches a Spark that is built and not installed, installed and not built, or not found."""
    pinned = re.search(r"^pyspark==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    above = f"4.{int(SPARK_MINORS[-1].split('.')[1]) + 1}"
    extra = f'spark = ["pyspark>={OLDEST[SPARK_MINORS[0]]},<{above}"]'

    assert tuple(RELEASES) == tuple(OLDEST) == SPARK_MINORS
    assert pinned is not None
    assert pinned[1] == RELEASES[SPARK_MINORS[-1]]
    assert extra in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("spark", [minor for minor in SPARK_MINORS if minor != INSTALLED])
def test_jar_of_another_spark_is_refused_with_the_right_one_named(spark: str) -> None:
    """Catches a class or method that is missing, in some batch or other, in place of a reason."""
    done = subprocess.run(
        [sys.executable, JOB, build_jar(spark), ""], capture_output=True, text=True, check=False
    )

    raised = [line for line in done.stdout.splitlines() if line.startswith("raised:")]
    assert len(raised) == 2, done.stdout + done.stderr[-4000:]
    for line in raised:
        assert (
            f"[wrong-spark] the jar of the state store is for another Spark: jar='{spark}'" in line
        )
        assert f"spark='{pyspark.__version__}'" in line
        assert f"`statestore jar --spark {INSTALLED}`" in line


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("oldest", [of for of in OLDEST.values() if not of.endswith(".0")])
def test_spark_older_than_the_oldest_patch_is_refused_by_name(oldest: str, tmp_path: Path) -> None:
    """Catches joins that die of a missing method in a Spark that only seems to be the right one.

    The Spark is the installed one that says of itself to be the release before the oldest.
    """
    minor, _, patch = oldest.rpartition(".")
    before = f"{minor}.{int(patch) - 1}"
    (tmp_path / "spark-version-info.properties").write_text(f"version={before}\n")

    done = subprocess.run(
        [sys.executable, JOB, build_jar(minor), tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )

    raised = [line for line in done.stdout.splitlines() if line.startswith("raised:")]
    assert len(raised) == 2, done.stdout + done.stderr[-4000:]
    for line in raised:
        assert "[wrong-spark] this patch release of Spark lacks what the state store needs" in line
        assert f"spark='{before}', oldest='{oldest}'. To fix: use Spark {oldest}" in line


def test_jar_links_with_its_spark_and_not_with_one_that_lacks_something(tmp_path: Path) -> None:
    """Catches a check that sees no difference between releases of Spark."""
    jars = jars_of(INSTALLED)
    assert find_missing(build_jar(), jars) == {}

    folder = "org/apache/spark/sql/execution/streaming/state"
    for jar in jars.glob("*.jar"):
        (tmp_path / jar.name).symlink_to(jar)
    (sql,) = tmp_path.glob("spark-sql_2.13-*.jar")
    original = sql.readlink()
    sql.unlink()
    with zipfile.ZipFile(original) as whole, zipfile.ZipFile(sql, "w") as lacking:
        for name in whole.namelist():
            content = whole.read(name)
            if name == f"{folder}/ReadStateStore.class":
                content = content.replace(b"prefixScan", b"suffixScan")
            if name != f"{folder}/StateStoreIterator.class":
                lacking.writestr(name, content)

    missing = find_missing(build_jar(), tmp_path)

    assert f"class {folder}/StateStoreIterator" in missing
    found = [name for name in missing if name.startswith(f"body of {folder}/ReadStateStore.suffix")]
    assert found
    assert missing[found[0]] == ["io/statestore/provider/StoreHandle"]
