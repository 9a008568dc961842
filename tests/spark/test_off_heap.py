"""Rows outside of the JVM's heap: the same as on it, in memory of Spark's that is given back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException

from .conftest import EXTENDED, MakeLane
from .harness import FILESYSTEM
from .off_heap_job import OFF_HEAP
from .queries import AGGREGATION

MIB = 1 << 20
pytestmark = [pytest.mark.ours, pytest.mark.timeout(400)]


def _run(root: Path, mib: int, num_rows: int) -> tuple[list[int], int, list[str]]:
    """Run the job; return the bytes outside of the heap, those left by the queries, and errors."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.off_heap_job", str(root), str(mib), str(num_rows)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    used, left, errors = map(json.loads, done.stdout.splitlines()[-3:])
    return used, left, errors


def test_rows_outside_of_the_heap_equal_built_in_and_their_memory_is_given_back(
    tmp_path: Path,
) -> None:
    """Catches wrong rows after a roll-back, removals and a restart, and memory that stays taken.

    That of a query that has ended stays until Spark's next maintenance, unless it is let go of:
    each restart takes the memory of all rows once more.
    """
    (*during, after), left, errors = _run(tmp_path, 64, 5_000)

    assert errors == []
    assert min(during) > MIB // 2, "few rows were outside of the heap"
    assert left == 0
    assert after == 0


@EXTENDED
def test_query_that_finds_no_memory_fails_with_the_fix_and_goes_on_on_the_heap(
    tmp_path: Path,
) -> None:
    """Catches rows that are lost where memory ends in the middle of a commit or a load."""
    (*_, after), _, errors = _run(tmp_path, 14, 12_000)

    assert errors
    for error in errors:
        assert "[state-too-large] the rows of all state partitions" in error
        assert f"offHeap.size={14 * MIB} spark.memory.storageFraction=0.5. To fix: raise" in error
    assert after == 0


def test_application_without_such_memory_is_refused(make_lane: MakeLane) -> None:
    """Catches a query that starts, and fails in its first task with a reason deep in a trace."""
    lane = make_lane(AGGREGATION, FILESYSTEM, conf={OFF_HEAP: "true"})

    with pytest.raises(IllegalArgumentException, match="To fix") as raised:
        lane.run(*AGGREGATION.plan[0])

    assert "[invalid-option] the application has no memory outside of the heap" in str(raised.value)
    assert "spark.memory.offHeap.enabled=false" in str(raised.value)
    assert not lane.progress
