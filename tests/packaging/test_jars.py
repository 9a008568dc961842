"""There is a jar for each Spark, and none of them serves another one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from statestore.core.version import SPARK_MINORS
from tools.shim_jar import build_jar
from tools.spark_jars import INSTALLED, RELEASES

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("wrong_jar_job.py")


def test_every_spark_is_listed_everywhere() -> None:
    """Catches a Spark that is built and not installed, installed and not built, or not found."""
    pinned = re.search(r"^pyspark==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    above = f"4.{int(SPARK_MINORS[-1].split('.')[1]) + 1}"
    extra = f'spark = ["pyspark>={SPARK_MINORS[0]},<{above}"]'

    assert tuple(RELEASES) == SPARK_MINORS
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
        [sys.executable, JOB, build_jar(spark)], capture_output=True, text=True, check=False
    )

    raised = [line for line in done.stdout.splitlines() if line.startswith("raised:")]
    assert len(raised) == 2, done.stdout + done.stderr[-4000:]
    for line in raised:
        assert (
            f"[wrong-spark] the jar of the state store is for another Spark: jar='{spark}'" in line
        )
        assert f"spark='{pyspark.__version__}'" in line
        assert f"`statestore jar --spark {INSTALLED}`" in line
