"""A few small attacks, each with an application of its own; `./build.sh attack` goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.features import missing

from .planted_bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 1_200

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]


def attack(*arguments: str, module: str = "tests.attack") -> str:
    """Run a lane in a process of its own, and return what it printed.

    Raises:
        AssertionError: It found something.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


def test_rows_are_those_of_a_model_after_any_operation() -> None:
    """Catches an operation that loses, doubles or changes a row, or leaves a forgotten key.

    The program is always the same here; `./build.sh test-all` runs others each time.
    """
    found = attack("--seed", "2", "--lives", "1", "--steps", "7")

    assert "Seeds 2; 1 lives" in found


@pytest.mark.extended
def test_planted_bugs_are_found() -> None:
    """Catches a lane that would miss a condition that falls through to a function of SQL, a
    certificate of keys that are nowhere, keys cast by a guess, a delete of versions that were
    committed meanwhile, an index that `forget` does not follow, a promote of what the checkpoint
    is no more, a schedule that keeps the oldest savepoints, an operation on a copy that changes the
    original's state, or an audit that does not look at the rows of SQL, in Python and in Spark.
    """
    found = attack(*[word for bug in BUGS for word in ("--bug", bug)])

    assert found.count(": found in") == len(BUGS)


@pytest.mark.extended
@pytest.mark.skipif(missing("real-time") is not None, reason=str(missing("real-time")))
def test_state_of_killed_real_time_queries_is_that_of_their_offsets() -> None:
    """Catches a batch of seconds whose state is kept without its offsets, or the other way round,
    and an operation between two runs, killed at times, after which a row is missing or doubled.
    """
    found = attack("--seed", "1", "--lives", "1", "--minutes", "2", module="tests.attack.real_time")

    assert "Seeds 1; 1 lives" in found
