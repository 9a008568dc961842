"""The faults. Each is a generator: it begins at the first step, lasts as long as it says, and ends.

One that finds nothing to hit yields nothing and does not count.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.spark.processes import descendants, engines, executors, scratch_directories

from .lane import CALL_TIMEOUT_MS

if TYPE_CHECKING:
    from .life import Life

Steps = Generator[float, None, None]
"""Yields seconds to last."""
ENGINE_FREEZE_S = CALL_TIMEOUT_MS / 1000 + 1.5
EXECUTOR_FREEZE_S = 15.0
"""Longer than the heartbeats, the leases and the calls to engines are waited for."""
HOUR_MS = 3_600_000


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _some(life: Life, pids: list[int]) -> list[int]:
    return [int(life.rng.choice(pids))] if pids else []


def _engines(life: Life) -> list[int]:
    return engines(life.application.pids())


def kill_engine(life: Life) -> Steps:
    """Kill one engine."""
    if victims := _some(life, _engines(life)):
        _signal(victims, signal.SIGKILL)
        yield 0.0


def kill_executor(life: Life) -> Steps:
    """Kill one executor, and by chance its engine at the same time."""
    if victims := _some(life, executors(life.application.pids())):
        if life.rng.random() < 0.3:
            victims += engines(descendants(victims[0]))
        _signal(victims, signal.SIGKILL)
        yield 0.0


def kill_driver(life: Life) -> Steps:
    """Kill the driver's JVM, its Python, or all that the job has started."""
    which = life.rng.choice(["jvm", "python", "session"])
    if which == "session":
        _signal(life.application.pids(), signal.SIGKILL)
    else:
        process = life.application.job.process.pid
        _signal([process if which == "python" else life.application.job.driver()], signal.SIGKILL)
    yield 0.0
    # What is left of it ends by itself.
    life.application.await_end()
    if which == "session" or life.plan.is_cluster:
        # Nobody was left to remove them. In local mode the next engine does, when they are older;
        # what an executor leaves, where its engine is killed or hangs, Spark's worker removes at
        # the end of the application. The driver's process has the worker in it.
        life.abandoned |= set(scratch_directories(life.root))


def freeze_engine(life: Life) -> Steps:
    """Stop an engine for longer than any call is waited for, then let it go on."""
    if victims := _some(life, _engines(life)):
        _signal(victims, signal.SIGSTOP)
        yield ENGINE_FREEZE_S
        _signal(victims, signal.SIGCONT)


def freeze_executor(life: Life) -> Steps:
    """Stop an executor, and by chance its engine, until it is taken for lost; let it go on."""
    if victims := _some(life, executors(life.application.pids())):
        if life.rng.random() < 0.5:
            victims += engines(descendants(victims[0]))
        _signal(victims, signal.SIGSTOP)
        yield EXECUTOR_FREEZE_S
        _signal(victims, signal.SIGCONT)


def _of_task(name: str) -> Callable[[Life], Steps]:
    def fault(life: Life) -> Steps:
        path = life.control / name
        path.touch()
        yield 1.0
        for _ in range(20):
            if not path.exists():
                return
            yield 1.0
        path.unlink(missing_ok=True)

    return fault


def fill_disk(life: Life) -> Steps:
    """Leave no space on the disk that checkpoint, sink and scratch are on."""
    filler = life.disk / "filler"
    with filler.open("wb") as file:
        free = os.statvfs(life.disk).f_bavail * os.statvfs(life.disk).f_frsize
        while free >= 4096:
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free)
            except OSError:
                free //= 2
    yield 1.5
    filler.unlink()


def _outage(kind: str) -> Callable[[Life], Steps]:
    def fault(life: Life) -> Steps:
        life.s3.outage = kind
        yield float(life.rng.uniform(1.0, 5.0))
        life.s3.outage = ""

    return fault


def move_clock(life: Life) -> Steps:
    """Move the clock of an engine by an hour, for as long as it lives or a while."""
    for pid in _some(life, _engines(life)):
        offset_ms = HOUR_MS if life.rng.random() < 0.7 else -HOUR_MS
        path = life.control / f"clock-{pid}"
        path.write_text(str(offset_ms))
        yield float(life.rng.uniform(2.0, 6.0))
        path.unlink()


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        run: Its steps.
        weight: How often it is chosen.
        fits: Says whether a life can have it.
        is_alone: Whether it comes last of those that happen at a time.
    """

    run: Callable[[Life], Steps]
    weight: float
    fits: Callable[[Life], bool] = lambda life: True
    is_alone: bool = False


def _is_cluster(life: Life) -> bool:
    return life.plan.is_cluster


def _has_s3(life: Life) -> bool:
    return any(lane.spec.checkpoint_storage for lane in life.lanes)


def _keeps_no_memory(life: Life) -> bool:
    return all(lane.spec.backend != "heap" for lane in life.lanes)


FAULTS = {
    "engine killed": Fault(kill_engine, 6),
    "executor killed": Fault(kill_executor, 3, _is_cluster),
    "driver killed": Fault(kill_driver, 0.8, _keeps_no_memory, is_alone=True),
    "engine frozen, then let go": Fault(freeze_engine, 1.5),
    "executor frozen, then let go": Fault(freeze_executor, 1.5, _is_cluster),
    "slow task, speculation": Fault(_of_task("slow-after"), 1, _is_cluster),
    "task failed before its store committed": Fault(_of_task("fail-before"), 1.5),
    "task failed after its store committed": Fault(_of_task("fail-after"), 2),
    "disk full for a while": Fault(fill_disk, 1, lambda life: life.plan.has_own_disk),
    "S3 refused with 503 for a while": Fault(_outage("throttled"), 2, _has_s3),
    "S3 did not answer for a while": Fault(_outage("silent"), 2, _has_s3),
    "clock of an engine an hour off": Fault(move_clock, 2),
}
