"""A driver of its own, whose query scales by itself, and which is killed at some moment."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import statestore
from statestore import Between, NoRestart
from statestore.api import scaling
from statestore.io.shim_jar import find_jar
from tests.spark.application import start_application
from tests.spark.helper_jar import compile_test_jar

from .all_operators import make_operator
from .child import Counter
from .world import World

if TYPE_CHECKING:
    from .families import Key
    from .plan import LifePlan
    from .world import Directory

EVERY = "100 milliseconds"
LONGEST_S = 60.0
_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Driven:
    """What a driver runs.

    Attributes:
        plan: The life.
        root: Folder of all its directories.
        directory: The checkpoint.
        files: Rows of each file of the input.
        least, most: Between which numbers of state partitions it scales.
        at: When it is killed: a number of `Counter`, whose calls are the starts of the query, its
            stop for a change, and what a change does to the storage.
    """

    plan: LifePlan
    root: Path
    directory: Directory
    files: list[list[Key]]
    least: int
    most: int
    at: int


def drive(driven: Driven) -> None:
    """Run a driver until it has read all and scaled, or is killed.

    Raises:
        RuntimeError: It ended otherwise.
        subprocess.TimeoutExpired: It does not end.
    """
    asked, log = driven.root / "driven", driven.root / "driver.log"
    asked.write_bytes(pickle.dumps(driven))
    command = [sys.executable, "-m", "tests.attack.driver", str(asked)]
    with log.open("w") as printed:
        process = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):  # what is left of it: its JVM, and engines
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a driver ended: {process.returncode}: {log.read_text()[-4000:]}")


def main(asked: str) -> None:
    """Be that driver."""
    driven: Driven = pickle.loads(Path(asked).read_bytes())  # noqa: S301 (the lane's own)
    directory = driven.directory
    jars = [compile_test_jar("queries"), find_jar()]
    session = start_application(driven.root / "driver", jars)
    operator = make_operator(driven.plan.operator, (*driven.plan.seed, 2))
    world = World(driven.plan, operator, session, driven.root)
    world.files = driven.files
    handles: list[Any] = []
    counter = Counter("kill", driven.at)
    counter.watch_storage()
    counter.watch(scaling, "stop_after_batch", lambda _: "stop")
    counter.watch(world, "start", lambda _: "start")

    def start() -> Any:
        handles.append(world.start(directory, every=EVERY))
        return handles[-1]

    def stop() -> None:
        until = time.monotonic() + LONGEST_S
        while time.monotonic() < until and not (
            world.has_read_all(directory)
            and driven.least <= world.partitions_of(directory) <= driven.most
        ):
            time.sleep(0.2)
        while True:  # a change may be under way, which starts it again
            for handle in handles[-1:]:  # none before its first start
                handle.stop()
            time.sleep(0.2)

    threading.Thread(target=stop, daemon=True).start()
    statestore.run(start, NoRestart(), scale=Between(driven.least, driven.most, cool_down=1))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
