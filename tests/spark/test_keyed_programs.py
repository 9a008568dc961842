"""A few random programs of keyed state; `python -m tests.attack.keyed` runs many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.attack.keyed import run
from tests.attack.keyed_bugs import BUGS

pytestmark = [pytest.mark.timeout(300), pytest.mark.needs("row-api")]


def test_programs_return_what_plain_dicts_do(spark: SparkSession, tmp_path: Path) -> None:
    """Catches state, a timer or a time to live that is not what the program was promised."""
    tried = run(spark, seed=1, minutes=1, directory=tmp_path, programs=1)

    assert tried["program"] >= 1


@pytest.mark.extended
@pytest.mark.parametrize("bug", list(BUGS))
def test_planted_bugs_are_found(bug: str) -> None:
    """Catches a lane that would miss state of another key, state that expires though it was read,
    or a timer that fires though it was deleted. Workers keep a bug: it has a Spark of its own.
    """
    command = ["-m", "tests.attack.keyed", "--seed", "5", "--minutes", "3", "--bug", bug]

    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=280)
