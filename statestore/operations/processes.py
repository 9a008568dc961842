"""Work on several stores at once in processes: Python's lock lets one thread go on at a time."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from threading import Lock, Thread
from typing import TYPE_CHECKING, TypeVar

from statestore.core.errors import StorageError
from statestore.core.providers import IN_DRIVER_MEMORY
from statestore.core.version import __version__, require_release
from statestore.io.hadoop import HadoopFileIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint

Share = TypeVar("Share")
Result = TypeVar("Result")

Item = TypeVar("Item")

_MOST_PROCESSES = 16
_SHARES_OF_A_PROCESS = 4
_WATCH_S = 0.2
_environment = Lock()
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Keeps a new Python from importing what lies in the current directory."""
_MIN_ROWS = 4_000_000
"""Below, two processes save less than the second that they take to start."""


def place_for_processes(checkpoint: OpenCheckpoint, num_rows: int, num_stores: int) -> Place | None:
    """Return where a process of its own can open a checkpoint; None where that cannot be, or pay.

    The memory of a driver and Hadoop's file systems are reached from this process alone.

    Args:
        checkpoint: Of one of this package's backends.
        num_rows: Rows that are to be read.
        num_stores: Stores that have them, each of which one process reads.
    """
    place = checkpoint.place
    ours = (checkpoint.io, checkpoint.state_io)
    if checkpoint.backend in IN_DRIVER_MEMORY or any(isinstance(io, HadoopFileIO) for io in ours):
        return None
    if place.io is not None:  # of this process, whatever it is
        return None
    if num_rows < _MIN_ROWS or min(num_processes(), num_stores) < 2:
        return None
    return replace(place, memory=None)


def num_processes() -> int:
    """Return how many processes work at once: one for each core this one may use.

    One where the package is not installed that starts them, or this one may not start any.
    """
    if multiprocessing.current_process().daemon or find_spec("loky") is None:
        return 1
    return min(num_cores(), _MOST_PROCESSES)


def num_cores() -> int:
    """Return how many cores this process may use; without loky those of the machine."""
    try:
        from loky import cpu_count  # knows what a container may use
    except ModuleNotFoundError:
        return os.cpu_count() or 1
    return int(cpu_count())


def into_shares(work: Sequence[Item]) -> list[list[Item]]:
    """Deal out work, some for each process to take when it is done with what it had."""
    num_shares = min(len(work), _SHARES_OF_A_PROCESS * num_processes())
    return [list(work[at::num_shares]) for at in range(num_shares)]


def map_in_processes(
    function: Callable[[Share], Result], shares: Sequence[Share]
) -> Iterator[tuple[Share, Result]]:
    """Call a function with each share of some work in processes; yield in order of the shares.

    They end with the last result, when this generator is closed, and soon after this process is
    killed: none goes on writing then.

    Args:
        function: Of a module, as are the classes of what it takes, returns and raises.
        shares: Arguments of its calls.

    Raises:
        StorageError: A process was killed, as when there is too little memory.
        ProtocolError: The package was upgraded under this process (kind version-apart).
        Exception: Whatever the function raises.
    """
    from loky import ProcessPoolExecutor
    from loky.process_executor import TerminatedWorkerError

    with _in_environment(_SAFE_PATH):  # of the processes that loky has beside its workers
        # Unlike Python's own, these never import the script that was started.
        pool = ProcessPoolExecutor(
            min(num_processes(), len(shares)),
            initializer=_end_with,
            initargs=(os.getpid(),),
            env=_SAFE_PATH,
        )
    try:
        with _in_environment(_SAFE_PATH):
            # The processes import what is installed now. Arguments come in its forms or in none.
            pool.submit(require_release, __version__).result()
            futures = [pool.submit(function, share) for share in shares]
        for share, future in zip(shares, futures, strict=True):
            yield share, future.result()
    except TerminatedWorkerError as error:
        raise StorageError(
            "a process of the operation was killed",
            found=str(error).split("\n")[0],
            to_fix="run it again where more memory is free, or with fewer cores (`taskset`)",
        ) from error
    finally:
        pool.shutdown(kill_workers=True)


@contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables within a block, one block at a time."""
    with _environment:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _end_with(parent: int) -> None:
    """Let this process end when the one that started it is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_S)
        os._exit(1)

    Thread(target=watch, daemon=True, name="statestore-parent").start()
