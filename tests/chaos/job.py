"""The job: one Spark application with its lanes, in a process of its own, told what to do.

`python -m tests.chaos.job NAME ARGUMENTS`, started by the driver and connected to it: each command
is a tuple of a name and its arguments, answered by what it returns or by the text of an error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np

from tests.seams import at
from tests.spark.application import start_application

from .inspection import inspect
from .lane import Lane, LaneSpec
from .operations import Operator

APPLICATION_LOST = 3
"""Exit status when the JVM is gone."""
CLUSTER_CONF = {
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "40s",
    "spark.network.timeoutInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "12000",
    "spark.shuffle.io.retryWait": "500ms",
    "spark.speculation.interval": "200ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.quantile": "0.3",
}


class Job:
    """Carries out the commands."""

    def __init__(
        self, root: Path, jars: list[Path], master: str, conf: dict[str, str], seed: list[int]
    ) -> None:
        conf = {
            "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
            "spark.sql.streaming.numRecentProgressUpdates": "2",
            "spark.locality.wait": "0s",
            "spark.ui.showConsoleProgress": "false",
            **(CLUSTER_CONF if "cluster" in master else {}),
            **conf,
        }
        self._spark = start_application(root, jars, master, conf)
        gateway: Any = self._spark.sparkContext._gateway
        threading.Thread(target=_end_with, args=(gateway.proc,), daemon=True).start()
        # What is the application's own is in a folder beside those of the lanes.
        self._root = root.parent
        self._lanes: dict[str, Lane] = {}
        self._operator = Operator(self._spark, self._root, np.random.default_rng(seed))

    def begin(self, spec: dict[str, Any]) -> None:
        """Run a lane."""
        lane = Lane(self._spark, self._root, LaneSpec(**spec))
        self._lanes[lane.spec.name] = lane
        lane.begin()

    def finish(self, name: str) -> str:
        """Let a lane process all that it was fed, and stop it; return its obstacle."""
        lane = self._lanes[name]
        lane.finish()
        return lane.obstacle

    def status(self) -> dict[str, dict[str, Any]]:
        """Return how every lane does."""
        return {
            name: {
                "failures": list(lane.failures),
                "attempts": lane.attempts,
                "obstacle": lane.obstacle,
            }
            for name, lane in self._lanes.items()
        }

    def operate(self, name: str, operation: str) -> dict[str, Any]:
        """Operate on a lane that stands still; return it as it goes on."""
        spec = self._operator.run(operation, self._lanes[name].spec)
        self._lanes[name].spec = spec
        return spec.to_json()

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what a lane that stands still has in its checkpoint."""
        lane = self._lanes[name]
        return inspect(self._spark, lane.checkpoint, lane.spec)

    def verify(self, spec: dict[str, Any]) -> list[str]:
        """Return what is wrong with a checkpoint that a lane has left."""
        left = LaneSpec(**spec)
        directory = self._root / left.name / left.checkpoint
        found = at(directory, options=left.options()).verify(versions="all", deep=True)
        return [f"{left.checkpoint}: {finding}" for finding in found.findings]

    def end(self) -> None:
        """Stop the application."""
        for lane in self._lanes.values():
            lane.stop()
        self._spark.stop()


def _end_with(process: Any) -> None:
    process.wait()
    os._exit(APPLICATION_LOST)


def main(text: str) -> None:
    """Serve commands until the driver ends the job, or is gone."""
    arguments = json.loads(text)
    root = Path(arguments.pop("root"))
    jars = [Path(jar) for jar in arguments.pop("jars")]
    with Client(arguments.pop("address"), "AF_UNIX") as driver:
        job = Job(root, jars, **arguments)
        driver.send((True, None))
        while True:
            try:
                name, *given = driver.recv()
            except EOFError:
                os._exit(0)
            command: Callable[..., Any] = getattr(job, name)
            try:
                answer = True, command(*given)
            except Exception:  # noqa: BLE001 - the driver says what it is about
                answer = False, traceback.format_exc()
            driver.send(answer)
            if name == "end":
                return


if __name__ == "__main__":
    main(sys.argv[2])
