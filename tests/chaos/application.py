"""The job's process as the driver of the chaos sees it: started, told what to do, found dead."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.io.shim_jar import find_jar
from tests.spark.harness import wait_for
from tests.spark.helper_jar import compile_test_jar
from tests.spark.job_process import Job

if TYPE_CHECKING:
    from .plan import LifePlan

START_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 900.0
END_TIMEOUT_S = 120.0
HOOKS = Path(__file__).parent / "hooks"


class LostError(Exception):
    """The job is gone, or does not answer."""


class Application:
    """An application and those that came before it on the same folder.

    Attributes:
        job: Its process.
        num_starts: How many processes there were.
    """

    job: Job

    def __init__(self, plan: LifePlan, root: Path, control: Path, bug: str) -> None:
        self._plan = plan
        self._root = root
        self._control = control
        self._bug = bug
        self._connection: Connection | None = None
        self._jobs: list[Job] = []
        self.num_starts = 0

    def start(self) -> None:
        """Start the process and wait until it takes commands.

        Raises:
            LostError: It does not come up.
        """
        self.num_starts += 1
        with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
            address = f"{directory}/socket"
            with Listener(address, "AF_UNIX") as listener:
                self.job = Job(
                    "chaos",
                    self._root / "job",
                    [compile_test_jar("queries"), find_jar()],
                    environment={
                        "PYTHONPATH": str(HOOKS),
                        "STATESTORE_CHAOS": str(self._control),
                        "STATESTORE_CHAOS_BUG": self._bug,
                    },
                    module="tests.chaos.job",
                    address=address,
                    master=self._plan.master,
                    conf=self._plan.conf,
                    seed=[*self._plan.seed, self.num_starts],
                )
                self._jobs.append(self.job)
                listener._listener._socket.settimeout(START_TIMEOUT_S)  # type: ignore[attr-defined]
                try:
                    self._connection = listener.accept()
                except OSError as error:
                    raise LostError(f"the job did not connect: {error}") from error
        self._answer(START_TIMEOUT_S)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.job.process.poll() is None

    def pids(self) -> list[int]:
        """Return the processes of all jobs of the life."""
        return self.job.pids()

    def call(self, name: str, *arguments: Any) -> Any:
        """Have a command carried out and return its answer.

        Raises:
            LostError: The job is gone, or does not answer in time.
            RuntimeError: The command raised; the text is its traceback.
        """
        try:
            assert self._connection is not None
            self._connection.send((name, *arguments))
        except OSError as error:
            raise LostError(str(error)) from error
        return self._answer(ANSWER_TIMEOUT_S)

    def _answer(self, timeout_s: float) -> Any:
        connection = self._connection
        assert connection is not None
        deadline = time.monotonic() + timeout_s
        try:
            while not connection.poll(0.2):
                if time.monotonic() > deadline:
                    raise LostError(f"no answer within {timeout_s} s")
            is_well, answer = connection.recv()
        except (EOFError, OSError) as error:
            raise LostError(f"the job is gone: {error!r}") from error
        if not is_well:
            raise RuntimeError(answer)
        return answer

    def await_end(self) -> None:
        """Wait until nothing is left of a job whose driver was killed, or that was told to end.

        Raises:
            AssertionError: Something stays.
        """
        wait_for(lambda: not self.job.pids(), "the end of the job's processes", END_TIMEOUT_S)
        self.job.process.wait()

    def kill(self) -> None:
        """Kill what is left of all jobs and delete their executors' directories."""
        for job in self._jobs:
            for pid in job.pids():
                os.kill(pid, signal.SIGCONT)
            job.end()
