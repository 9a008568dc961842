"""There is a jar for each Spark, and none of them serves another one."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from statestore.core.errors import CorruptionError
from statestore.core.version import SPARK_MINORS
from statestore.io.link_check import find_missing
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
    assert done.stdout.splitlines()[2:] == ["served"], "a query that is not ours does not run"
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
    assert done.stdout.splitlines()[2:] == ["served"], "a query that is not ours does not run"
    for line in raised:
        assert "[wrong-spark] this patch release of Spark lacks what the state store needs" in line
        assert f"spark='{before}', oldest='{oldest}'. To fix: use Spark {oldest}" in line


FOLDER = "org/apache/spark/sql/execution/streaming/state"


def spark_that_lacks_a_method(target: Path) -> None:
    """Write a jar with a class of Spark in which a method has another name than the shim's."""
    (sql,) = jars_of(INSTALLED).glob("spark-sql_2.13-*.jar")
    name = f"{FOLDER}/ReadStateStore.class"
    with zipfile.ZipFile(sql) as whole, zipfile.ZipFile(target, "w") as lacking:
        lacking.writestr(name, whole.read(name).replace(b"prefixScan", b"suffixScan"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_fit", [pytest.param(True, marks=pytest.mark.extended), False])
def test_spark_without_a_jar_is_served_where_the_nearest_fits(is_fit: bool, tmp_path: Path) -> None:
    """Catches a refusal by the name of a version alone, and a query that dies of a missing method.

    The Spark is the installed one that says of itself to be the one after it.
    """
    (tmp_path / "spark-version-info.properties").write_text("version=4.99.0-vendor\n")
    class_path = str(tmp_path)
    if not is_fit:
        spark_that_lacks_a_method(tmp_path / "lacking.jar")
        class_path += f":{tmp_path / 'lacking.jar'}"

    done = subprocess.run(
        [sys.executable, JOB, build_jar(), class_path], capture_output=True, text=True, check=False
    )

    said = done.stdout.splitlines()
    warned = [line for line in done.stderr.splitlines() if "no jar of the state store is" in line]
    if is_fit:
        assert said == ["served"] * 3, done.stdout + done.stderr[-4000:]
        assert len(warned) == 1
        assert "spark=4.99.0-vendor" in warned[0]
    else:
        *refused, own = said
        assert own == "served", done.stdout + done.stderr[-4000:]
        assert len(refused) == 2
        for line in refused:
            assert "[wrong-spark] the jar of the state store does not fit this Spark" in line
            assert f"spark='4.99.0-vendor', jar='{INSTALLED}', missing=" in line
            assert f"body of {FOLDER}/ReadStateStore.suffixScan" in line
        assert warned == []


def test_class_that_is_damaged_is_told_with_its_jar(tmp_path: Path) -> None:
    """Catches a broken download that is taken for a Spark that lacks something."""
    jars = sorted(jars_of(INSTALLED).glob("*.jar"))
    (sql,) = (jar for jar in jars if jar.name.startswith("spark-sql_2.13-"))
    with zipfile.ZipFile(sql) as whole:
        begin = whole.getinfo(f"{FOLDER}/StateStore.class").header_offset
    damaged = bytearray(sql.read_bytes())
    damaged[begin + 200] ^= 255
    (tmp_path / "sql.jar").write_bytes(damaged)

    with pytest.raises(CorruptionError, match=r"a jar cannot be read: path='\S+/sql.jar'"):
        find_missing(build_jar(), [tmp_path / "sql.jar", *(jar for jar in jars if jar != sql)])


def test_jar_links_with_its_spark_and_not_with_one_that_lacks_something(tmp_path: Path) -> None:
    """Catches a check that sees no difference between releases of Spark."""
    jars = sorted(jars_of(INSTALLED).glob("*.jar"))
    assert find_missing(build_jar(), jars) == {}

    spark_that_lacks_a_method(tmp_path / "lacking.jar")
    (sql,) = (jar for jar in jars if jar.name.startswith("spark-sql_2.13-"))
    lost = f"{FOLDER}/StateStoreIterator"
    with zipfile.ZipFile(sql) as whole, zipfile.ZipFile(tmp_path / "sql.jar", "w") as lacking:
        for name in whole.namelist():
            if name != f"{lost}.class":
                lacking.writestr(name, whole.read(name))
    others = [jar for jar in jars if jar != sql]

    missing = find_missing(build_jar(), [tmp_path / "lacking.jar", tmp_path / "sql.jar", *others])

    assert f"class {lost}" in missing
    found = [name for name in missing if name.startswith(f"body of {FOLDER}/ReadStateStore.suffix")]
    assert found
    assert missing[found[0]] == ["io/statestore/provider/StoreHandle"]
