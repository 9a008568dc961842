"""Processes that die: executors, engines, drivers; and what stays of them: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statestore.checkpoint.lease import Leases
from statestore.io.local import LocalFileIO
from statestore.operations.in_use import exclusive_directory

from .conftest import EXTENDED, OURS, PROVIDER, MakeLane, state_in_files
from .harness import FORMAT_2, HDFS, ROCKSDB_BACKEND, assert_same, files_read, run_plan, wait_for
from .job import BY_NAME, ENDLESS, KILL_DELAY_S
from .job_process import Job
from .processes import descendants, engines, scratch_directories
from .queries import AGGREGATION, JOIN, WATERMARK_DEDUP
from .state_variables import EVENT_TIME

KILLED_ENGINES = {
    "query": AGGREGATION.name,
    "conf": {},
    "kills": [(1, "engine", False), (2, "engine", True), (4, "engine", True)],
}
"""A lane of the job `cluster`, as the next two."""
KILLED_EXECUTOR = {
    "query": WATERMARK_DEDUP.name,
    "conf": FORMAT_2,
    "kills": [(1, "executor", False), (3, "engine", True)],
}
WITH_VARIABLES = {
    "query": EVENT_TIME.name,
    "conf": {},
    "kills": [(1, "executor", False), (2, "executor", True), (3, "engine", True)],
}
"""One that Spark's HDFS-backed provider does not run."""
OTHERS = (
    JOIN.name,
    "aggregation-update-format-1",
    "aggregation-complete",
    "session-append",
    "global-limit",
    "join-full-outer-format-2",
    "flat-map-groups-event-time",
    "pandas-groups-event-time-append",
)


def _rows(batches: dict[str, list[str]]) -> dict[int, list[str]]:
    return {int(batch_id): rows for batch_id, rows in batches.items()}


def _assert_nothing_left(job: Job, report: dict[str, Any]) -> None:
    assert all(report["killed"]), report["killed"]
    assert report["engines_left"] == []
    assert report["scratch_left"] == []
    wait_for(lambda: not job.pids(), "the end of the job's processes")


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    ("provider", "lanes"),
    [
        (PROVIDER, [KILLED_ENGINES, WITH_VARIABLES if OURS else KILLED_EXECUTOR]),
        pytest.param(
            ROCKSDB_BACKEND,
            [KILLED_ENGINES, KILLED_EXECUTOR, WITH_VARIABLES],
            marks=[EXTENDED, pytest.mark.ours],
        ),
    ],
    ids=["under-test", "rocksdb"],
)
def test_rows_equal_built_in_when_executors_and_engines_are_killed(
    start_job: Callable[..., Job],
    make_lane: MakeLane,
    provider: str,
    lanes: Sequence[dict[str, Any]],
) -> None:
    """Catches state that lives in an executor only, and work a lost engine took with it.

    A killed engine must not even fail a task; nothing of the application may outlive it.
    """
    job = start_job("cluster", provider=provider, lanes=lanes)
    queries = [BY_NAME[lane["query"]] for lane in lanes]
    references = {query.name: make_lane(query, query.built_in) for query in queries}
    for reference in references.values():
        run_plan(reference)

    report = job.report(timeout_s=420)

    for name, reference in references.items():
        assert _rows(report["batches"][name]) == reference.batches, name
    if not OURS:
        return
    assert report["failed_tasks"][AGGREGATION.name] == 0
    assert max(report["num_leases"]) >= 2
    _assert_nothing_left(job, report)


@EXTENDED
@pytest.mark.ours
@pytest.mark.timeout(480)
def test_rows_equal_built_in_when_executors_are_killed_under_other_operators(
    start_job: Callable[..., Job], make_lane: MakeLane
) -> None:
    """Catches an operator whose state, or whose place in its input, only an executor knows.

    The one executor is killed before a batch, and the other while the next batch runs.
    """
    kills = [(1, "executor", False), (2, "executor", True)]
    lanes = [{"query": name, "conf": {}, "kills": kills} for name in OTHERS]
    job = start_job("cluster", provider=PROVIDER, lanes=lanes)
    references = {name: make_lane(BY_NAME[name], HDFS) for name in OTHERS}
    for reference in references.values():
        run_plan(reference)

    report = job.report(timeout_s=420)

    for name, reference in references.items():
        assert _rows(report["batches"][name]) == reference.batches, name
    _assert_nothing_left(job, report)


@state_in_files
@pytest.mark.parametrize(
    ("master", "victim"),
    [
        pytest.param("local[2]", "python", marks=EXTENDED),
        ("local[2]", "session"),
        pytest.param("local-cluster[2,1,1024]", "jvm", marks=EXTENDED),
    ],
    ids=["local-python", "local-session", "cluster-jvm"],
)
def test_nothing_outlives_a_killed_driver(
    start_job: Callable[..., Job], make_lane: MakeLane, master: str, victim: str
) -> None:
    """Catches orphaned engines and scratch directories, and a checkpoint that cannot go on."""
    job = start_job("endless", provider=PROVIDER, master=master)
    wait_for(lambda: job.num_batches() > 3, "the third batch", timeout_s=120)
    assert not OURS or engines(job.pids())
    checkpoint = str(job.root / ENDLESS.name / "checkpoint")
    leases = Leases(LocalFileIO(), f"{checkpoint}/state")
    if OURS:
        assert len(leases.list()) == (3 if "cluster" in master else 1)

    if victim == "session":
        os.killpg(job.process.pid, signal.SIGKILL)
    else:
        os.kill(job.process.pid if victim == "python" else job.driver(), signal.SIGKILL)

    wait_for(lambda: not engines(job.pids()), "the end of the engines", timeout_s=30)
    with exclusive_directory(LocalFileIO(), checkpoint, "rescale"):
        # Nobody waits for the leases of the killed to expire.
        assert [name.split("-")[0] for name in leases.list()] == ["operation"]
    if victim == "session":
        # The engine was killed with its JVM: the next engine sweeps what is a minute old.
        left = {str(path) for path in scratch_directories(job.root)}
        for path in left:
            os.utime(f"{path}/lock", (0, 0))
        report = start_job("resume", provider=PROVIDER).report()
        assert not left & set(report["scratch"])
        batches = _rows(report["batches"])
        before, files = files_read(checkpoint, batches, ENDLESS.plan[0])
        reference = make_lane(replace(ENDLESS, plan=[[*before, *files]]), HDFS)
        run_plan(reference)
        expected = list(reference.batches.values())[len(before) :]
        assert [batches[batch] for batch in sorted(batches)] == expected
    wait_for(lambda: not scratch_directories(job.root), "the removal of scratch directories")
    wait_for(lambda: not job.pids(), "the end of the job's processes")


@pytest.mark.ours
@pytest.mark.parametrize(
    ("query", "conf"),
    [
        pytest.param(AGGREGATION, {}, marks=EXTENDED),
        (JOIN, {}),
        pytest.param(WATERMARK_DEDUP, FORMAT_2, marks=EXTENDED),
    ],
    ids=["aggregation", "join", "dedup-format-2"],
)
def test_no_task_fails_when_engines_are_killed(
    make_lane: MakeLane, query: Any, conf: dict[str, str]
) -> None:
    """Catches calls that are not repeated, or that are not the same when repeated."""
    lanes = [make_lane(query, HDFS), make_lane(query, conf=conf)]
    killed: set[int] = set()
    done = threading.Event()

    def kill() -> bool:
        found = engines(descendants(os.getpid()))
        for pid in found:
            killed.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def kill_as_soon_as_there_is_one(delay_s: float) -> None:
        done.wait(delay_s)
        while not done.is_set() and not kill():
            done.wait(0.01)

    def kill_between_or_during(batch_id: int) -> None:
        if batch_id % 2:
            kill()
        else:
            delay_s = KILL_DELAY_S * (batch_id + 1) / 4
            threading.Thread(target=kill_as_soon_as_there_is_one, args=(delay_s,)).start()

    lanes[1].before_batch = kill_between_or_during
    try:
        run_plan(*lanes)
    finally:
        done.set()

    assert len(killed) >= 3
    assert lanes[1].failed_tasks == 0
    assert_same(*lanes)


@EXTENDED
@pytest.mark.ours
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (4, 2)])
def test_engines_go_by_the_cores_of_the_executor(tmp_path: Path, cores: int, expected: int) -> None:
    """Catches four engines in the container of two cores, on a machine of many: it is killed.

    The driver has one, however many its queries are.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.engines_job", str(tmp_path), str(cores)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == f"{expected} 1"


@pytest.mark.ours
def test_engines_are_few_and_shared(make_lane: MakeLane) -> None:
    """Catches an engine per store or per query."""
    # Other options, of tests before, have engines of their own.
    before = set(engines(descendants(os.getpid())))
    run_plan(*(make_lane(query) for query in (AGGREGATION, JOIN)))

    after = set(engines(descendants(os.getpid())))
    assert after
    assert len(after - before) <= 4
