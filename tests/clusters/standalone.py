"""Spark's own cluster manager: a master, and a worker daemon on each of two hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .cluster import DRIVER, MASTER, WORKERS, Application, Cluster, conf_of, runs
from .hosts import MOUNTS, wait_for

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
URL = f"spark://{MASTER}:7077"
_ENVIRONMENT = {"SPARK_HOME": f"{MOUNTS}/spark", "SPARK_DAEMON_MEMORY": "300m"}


class Standalone(Cluster):
    """A master and two workers; executors have 2 cores."""

    def start(self) -> None:
        """Start the daemons."""
        self._num_starts: Counter[str] = Counter()
        log = self._start(MASTER, _MASTER, "--host", MASTER, "--port", "7077")
        wait_for(lambda: "I have been elected leader" in log.read_text(), "a master")
        for await_it in [self.start_worker(host) for host in WORKERS]:
            await_it()

    def start_worker(self, host: str) -> Callable[[], object]:
        """Start the worker daemon of a host; return what waits until it is there."""
        sizes = ("--cores", "2", "--memory", "1g", "--work-dir", "/tmp/work")
        self._num_starts[host] += 1
        log = self._start(host, _WORKER, "--host", host, *sizes, URL)

        def is_there() -> bool:
            return log.read_text().count("Successfully registered") == self._num_starts[host]

        return lambda: wait_for(is_there, f"a worker on {host}")

    def _start(self, host: str, class_name: str, *arguments: str) -> Path:
        command = [f"{MOUNTS}/spark/bin/spark-class", class_name, *arguments]
        return self.start_daemon(host, class_name.rpartition(".")[2], command, _ENVIRONMENT)

    def run(
        self, name: str, backend: str, arguments: Sequence[str], conf: Mapping[str, str]
    ) -> Application:
        """Submit job.py, its driver in client mode, with a state backend."""
        mine = {
            "spark.master": URL,
            "spark.driver.host": DRIVER,
            "spark.executor.cores": "2",
            "spark.pyspark.python": f"{MOUNTS}/python/bin/python",
        }
        words = [*conf_of(backend, {**mine, **conf}), f"{MOUNTS}/files/job.py", *arguments]
        submitted, output = self.submit(name, words, _ENVIRONMENT)
        return Application(submitted, output, lambda: [output])

    def kill_executor(self, host: str) -> None:
        """Kill the executor of a host."""
        self.kill([host], runs(EXECUTOR))

    def kill_worker(self, host: str) -> None:
        """Kill the worker daemon of a host."""
        self.kill([host], runs(_WORKER))
