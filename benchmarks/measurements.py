"""Runs every provider's measurements in turn, each in a process of its own, and keeps the results.

Providers alternate within a round and the order is reversed in every other round, so that a machine
that gets slower or faster meanwhile treats them alike.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import run_module
from benchmarks.sessions import benchmark_jar
from benchmarks.workloads import OURS, Provider, Suite

STDERR_TAIL = 4_000


@dataclass(slots=True)
class Runs:
    """One provider's results of one measurement: one a round, or why there is none."""

    results: list[Any] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    failure: str | None = None

    def checked(self) -> list[Any]:
        """Return the results.

        Raises:
            RuntimeError: A run failed; the message holds the end of its stderr.
        """
        if self.failure is not None:
            raise RuntimeError(self.failure)
        return self.results


class Measurements:
    """Results by measurement and provider, measured for all providers when first asked for."""

    def __init__(self, suite: Suite, providers: tuple[Provider, ...], *, is_quick: bool) -> None:
        self.suite = suite
        self.providers = providers
        self._is_quick = is_quick
        self._runs: dict[tuple[str, str], dict[str, Runs]] = {}

    def from_start(self, workload: str, provider: str) -> Runs:
        """Return the runs of a query workload from an empty checkpoint."""
        return self._of("from-start", workload, provider)

    def restart(self, workload: str, provider: str) -> Runs:
        """Return the restarts that followed the runs of `from_start`."""
        return self._of("restart", workload, provider)

    def store(self, measurement: str, provider: str) -> Runs:
        """Return the runs of `operations`, `commits`, `heap` or `snapshot`."""
        return self._of(measurement, "store", provider)

    def _of(self, measurement: str, workload: str, provider: str) -> Runs:
        if (measurement, workload) not in self._runs:
            self._measure(measurement, workload)
        return self._runs[measurement, workload][provider]

    def _measure(self, measurement: str, workload: str) -> None:
        restarts = {query.name for query in self.suite.queries if query.restart_batches}
        steps = [measurement]
        if measurement in ("from-start", "restart") and workload in restarts:
            steps = ["from-start", "restart"]
        if workload == "store" or not all(provider.keeps_state for provider in self.providers):
            benchmark_jar()
        runs = {step: defaultdict[str, Runs](Runs) for step in steps}
        for number in range(self.suite.rounds):
            for provider in self.providers[:: -1 if number % 2 else 1]:
                if measurement == "snapshot" and provider.id != OURS:
                    continue
                if workload == "store" and not provider.keeps_state:
                    continue
                if workload != "store" and not provider.can_run(self.suite.query(workload)):
                    continue
                work = Path(tempfile.mkdtemp(prefix="statestore-benchmark-"))
                try:
                    for step in steps:
                        if step == "restart" and not provider.is_durable:
                            continue
                        self._run(step, workload, provider.id, work, runs[step][provider.id])
                finally:
                    shutil.rmtree(work, ignore_errors=True)
        for step in steps:
            self._runs[step, workload] = runs[step]

    def _run(self, step: str, workload: str, provider: str, work: Path, runs: Runs) -> None:
        if runs.failure is not None:
            return
        quick = ["--quick"] if self._is_quick else []
        started = time.perf_counter()
        done = run_module("runner", [step, workload, provider, "--work", str(work), *quick])
        runs.wall_s.append(time.perf_counter() - started)
        if done.failure is None:
            runs.results.append(done.result)
        else:
            runs.failure = (
                f"benchmark run failed: measurement={step} workload={workload} "
                f"provider={provider}: {done.failure}\n{done.stderr[-STDERR_TAIL:]}"
            )
