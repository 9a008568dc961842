"""What every cluster has: hosts with Spark, Java and a Python, applications, and kills."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pyspark

from statestore.core.options import PREFIX
from statestore.core.providers import PROVIDERS
from statestore.io.shim_jar import find_jar
from tests.spark.processes import ENGINE, command_line, engines, scratch_directories

from .hosts import MOUNTS, ROOT, USER_ID, Hosts, wait_for
from .query import Input

PACKAGES = ("pyarrow", "numpy", "google-crc32c", "rocksdict", "boto3")
"""What docs/deploy.md has an executor's Python need."""
SYSTEM_PYTHON = "/usr/bin/python3"
"""A Python that hosts have, too: it lies in nobody's home."""
DRIVER, MASTER = "driver", "master"
WORKERS = ("worker-1", "worker-2")
STATE_PARTITIONS = 8
LIGHT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
JOB_CONF = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "700m",
    "spark.driver.extraJavaOptions": LIGHT_JVM,
    "spark.executor.extraJavaOptions": LIGHT_JVM,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(STATE_PARTITIONS),
    # Tasks go to whoever is free, and not back to where their store is: job.py has Spark forget
    # that, and with it what a check of Spark's would look for.
    "spark.locality.wait": "0",
    f"{PREFIX}commitValidation.enabled": "false",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}
"""Spark's configuration of job.py on every cluster."""
_STARTED = re.compile(
    r"Starting task (\d+)\.\d+ in stage (\d+)\.\d+ \(TID \d+\) \(([\w.-]+), ?executor (\w+),"
)
_JOB = Path(__file__).with_name("job.py")
_STATESTORE = Path(sys.executable).with_name("statestore")


def why_no_python() -> str:
    """Return why the executors would have no Python; "" where they would."""
    probe = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
    done = subprocess.run([SYSTEM_PYTHON, "-c", probe], capture_output=True, check=False)
    return f"{SYSTEM_PYTHON} is no Python >= 3.11 with its venv module" if done.returncode else ""


class Application:
    """An application that was submitted from the driver's host.

    Args:
        process: What submitted it, which ends with it.
        output: What that one prints.
        logs: Returns the files with what the driver prints, as far as they are there.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], output: Path, logs: Callable[[], Iterable[Path]]
    ) -> None:
        self._process = process
        self._output = output
        self._logs = logs

    def text(self) -> str:
        """Return what the driver printed so far."""
        return "".join(log.read_text(errors="replace") for log in self._logs())

    def await_batch(self, batch: int, seconds: float = 400) -> None:
        """Wait until a batch is in the sink.

        Raises:
            AssertionError: It is not in that time, or the application ended before.
        """
        self.await_text(rf"BATCH {batch}\n", seconds=seconds)

    def await_tasks(self, batch: int, task: int = 3, seconds: float = 400) -> None:
        """Wait until a task of the state of a batch has begun: of 4, every core is at work.

        Raises:
            AssertionError: As `await_batch`.
        """
        self.await_text(rf"\[batchId = {batch}\] Starting task {task}\.", seconds=seconds)

    def await_text(self, pattern: str, times: int = 1, seconds: float = 400) -> None:
        """Wait until the driver printed what matches a pattern, in so many forms.

        Raises:
            AssertionError: As `await_batch`.
        """

        def is_there() -> bool:
            has_ended = self._process.poll() is not None
            found = len(set(re.findall(pattern, self.text()))) >= times
            assert found or not has_ended, self._ended()
            return found

        wait_for(is_there, pattern, seconds)

    def await_end(self, seconds: float = 600) -> None:
        """Wait until it has ended.

        Raises:
            AssertionError: It failed, or did not end.
        """
        assert self._process.wait(seconds) == 0, self._ended()

    def _ended(self) -> str:
        ends = (self.text()[-3000:], self._output.read_text(errors="replace")[-3000:])
        return f"the application failed: {ends}"

    def num_lost_tasks(self) -> int:
        """Return how many attempts of tasks were lost."""
        return self.text().count("Lost task ")

    def share_of_moves(self) -> float:
        """Return the share of state partitions that were elsewhere than in the batch before."""
        stages: dict[str, dict[str, str]] = {}
        for partition, stage, _, executor in _STARTED.findall(self.text()):
            stages.setdefault(stage, {})[partition] = executor
        batches = [where for where in stages.values() if len(where) == STATE_PARTITIONS]
        pairs = [
            before[partition] != after[partition]
            for before, after in pairwise(batches)
            for partition in before
        ]
        return sum(pairs) / max(len(pairs), 1)


class Cluster:
    """Hosts for a manager of clusters, which starts its daemons on them.

    Args:
        directory: For everything that it writes.
        others: Names of hosts beside driver and workers.
        folders: What else hosts see below `/mnt`, by its name there.
    """

    def __init__(
        self,
        directory: Path,
        others: Sequence[str] = (),
        folders: Mapping[str, Path] | None = None,
    ) -> None:
        self.directory = directory
        self.shared = directory / "shared"
        self._number = 0
        self._started: list[subprocess.Popen[bytes]] = []
        given = directory / "files"
        for folder in (self.shared, given, directory / "logs"):
            folder.mkdir()
        self.shared.chmod(0o777)
        self.python = make_python(directory / "python")
        for name, path in {"shim.jar": find_jar(), "job.py": _JOB}.items():
            shutil.copy(path, given / name)
        java = Path(shutil.which("java") or "").resolve().parents[1]
        mine = {
            "spark": Path(pyspark.__file__).parent,
            "java": Path(os.environ.get("JAVA_HOME", java)),
            "python": self.python,
            "files": given,
            "shared": self.shared,
        }
        self.hosts = Hosts(
            directory, (DRIVER, MASTER, *WORKERS, *others), {**mine, **(folders or {})}
        )

    def make_folder(self, name: str) -> tuple[Path, Path]:
        """Make a folder of the shared directory; return how it is named here, and on hosts."""
        folder = self.shared / name
        folder.mkdir()
        folder.chmod(0o777)
        return folder, MOUNTS / "shared" / name

    def start_daemon(
        self,
        host: str,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        user_id: int = USER_ID,
    ) -> Path:
        """Start a daemon on a host, also once more; return its log."""
        log = self._log(name, host)
        with log.open("ab") as output:
            self._started.append(self.hosts.start(host, command, output, environment, user_id))
        return log

    def _log(self, daemon: str, host: str) -> Path:
        return self.directory / "logs" / f"{daemon}-{host}.log"

    def log(self, daemon: str, host: str) -> str:
        """Return what a daemon printed so far."""
        return self._log(daemon, host).read_text(errors="replace")

    def submit(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """Run spark-submit on the driver's host; return it, and the file with what it prints."""
        output = self.directory / "logs" / f"{name}.log"
        command = [f"{MOUNTS}/spark/bin/spark-submit", *arguments]
        with output.open("wb") as file:
            submitted = self.hosts.start(DRIVER, command, file, environment)
        self._started.append(submitted)
        return submitted, output

    def kill(self, hosts: Sequence[str], is_meant: Callable[[list[str]], bool]) -> None:
        """Kill, with SIGKILL, a process of any of the hosts whose command line is meant.

        Raises:
            AssertionError: There is none.
        """

        def find() -> list[int]:
            pids = (pid for host in hosts for pid in self.hosts.pids(host))
            return [pid for pid in pids if is_meant(command_line(pid))]

        pids = wait_for(find, "what is to be killed")
        os.kill(pids[0], signal.SIGKILL)

    def statestore(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Run the command line on the network of the hosts; return what it prints.

        Raises:
            AssertionError: It fails.
        """
        return self.hosts.run_beside([_STATESTORE, *arguments], environment)

    def doctor(
        self, conf: Mapping[str, str], *arguments: str, environment: Mapping[str, str] | None = None
    ) -> set[str]:
        """Run `statestore doctor` for a configuration; return the hosts whose executors are well.

        Raises:
            AssertionError: A check failed.
        """
        mine = {
            "spark.ui.enabled": "false",
            "spark.jars": str(find_jar()),
            "spark.driver.host": DRIVER,
            "spark.executor.memory": "700m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            **conf,
        }
        submit = shlex.join(f"--conf={key}={value}" for key, value in mine.items())
        words = ("doctor", "--output=json", "--backend=rocksdb", f"--spark-submit={submit}")
        report = json.loads(self.statestore(*words, *arguments, environment=environment))
        return {of["host"] for of in report["executors"]}

    def check(self, events: Input, sink: Path, checkpoint: str, *options: str) -> int:
        """Compare sink and state with the input, and verify every byte of the checkpoint.

        Args:
            events: The input.
            sink: Where its sink can be read here.
            checkpoint: The checkpoint, as it is named on the network of the hosts.
            options: More of the command line, such as how the storage is reached.

        Returns:
            Number of keys.
        """
        self._number += 1
        rows = self.directory / f"state-{self._number}.parquet"
        self.statestore("verify", checkpoint, "--version", "all", "--deep", *options)
        self.statestore("read", checkpoint, "--to", str(rows), *options)
        return events.compare(sink, rows)

    def await_nothing_left(self) -> None:
        """Wait until no host has anything of an application that ended.

        Raises:
            AssertionError: An engine or a scratch directory stays.
        """
        wait_for(lambda: not self._left(), f"nothing to be left: {self._left()}")

    def _left(self) -> list[str]:
        names = self.hosts.names
        found = [
            f"{name}: engine {pid}" for name in names for pid in engines(self.hosts.pids(name))
        ]
        for name in names:
            found += map(str, scratch_directories(self.hosts.disk(name)))
        return found

    def stop(self) -> None:
        """End everything."""
        self.hosts.stop()
        for process in self._started:
            process.wait()


def make_python(path: Path) -> Path:
    """Make a virtual environment with what an executor needs, and nothing else."""
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", path], check=True)
    pip = (
        path / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    )
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", *PACKAGES], check=True)
    return path


def conf_of(backend: str, others: Mapping[str, str]) -> list[str]:
    """Return the arguments of spark-submit that configure an application of job.py."""
    conf = {
        **JOB_CONF,
        "spark.jars": f"{MOUNTS}/files/shim.jar",
        f"{PREFIX}providerClass": PROVIDERS[backend],
        **others,
    }
    return [word for pair in conf.items() for word in ("--conf", "=".join(pair))]


def is_engine(command: list[str]) -> bool:
    """Whether a command line is that of an engine."""
    return ENGINE in command


def runs(class_name: str) -> Callable[[list[str]], bool]:
    """Return whether a command line is that of a JVM with a main class."""
    return lambda command: class_name in command and command[0].endswith("java")
