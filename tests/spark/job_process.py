"""A job of job.py as a process: started in a session of its own, and found again by a mark."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .processes import MARK_NAME, command_line, descendants, executor_directories, marked

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER_CLASS = "org.apache.spark.deploy.SparkSubmit"


class Job:
    """A started job; everything it writes is below its root."""

    def __init__(
        self,
        name: str,
        root: Path,
        jars: Sequence[Path],
        environment: Mapping[str, str] | None = None,
        module: str = "tests.spark.job",
        **arguments: Any,
    ) -> None:
        self.root = root
        self.output = root / f"{name}.output"
        self._mark = uuid.uuid4().hex
        root.mkdir(parents=True, exist_ok=True)
        given = {"root": str(root), "jars": list(map(str, jars)), **arguments}
        inherited = {**os.environ, MARK_NAME: self._mark, "TMPDIR": str(root)}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, name, json.dumps(given)],
                cwd=REPOSITORY,
                env={**inherited, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def report(self, timeout_s: float = 150.0) -> dict[str, Any]:
        """Wait for the end of the job and return its report."""
        code = self.process.wait(timeout_s)
        assert code == 0, self.output.read_text()
        report: dict[str, Any] = json.loads((self.root / "report.json").read_text())
        return report

    def pids(self) -> list[int]:
        """Return the living processes that the job started, itself included."""
        return marked(self._mark)

    def driver(self) -> int:
        """Return the driver's JVM, which for a moment after a fork has children of its name."""
        found = descendants(self.process.pid)
        return next(pid for pid in found if DRIVER_CLASS in command_line(pid))

    def num_batches(self) -> int:
        """Return how many batches the endless job has processed."""
        assert self.process.poll() is None, self.output.read_text()
        path = self.root / "progress"
        text = path.read_text() if path.exists() else ""
        return int(text) + 1 if text else 0

    def end(self) -> None:
        """Kill whatever is left of the job and delete its executors' directories."""
        for pid in self.pids():
            with suppress(ProcessLookupError):  # it may just have ended
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for directory in executor_directories(self._mark):
            shutil.rmtree(directory, ignore_errors=True)
