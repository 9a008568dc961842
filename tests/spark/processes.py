"""Finds the processes and the directories of a Spark application."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

MARK_NAME = "STATESTORE_TEST_MARK"
"""Variable of the environment that tells whose a process is; its value is the mark."""

ENGINE = "statestore.engine"
CHECKPOINT_MEMORY = "statestore.engine.checkpoint_memory"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process; empty when it is gone or a zombie."""
    return _read(pid, "cmdline").decode(errors="replace").split("\0")[:-1]


def command_and_environment(pid: int) -> bytes:
    """Return what others on the machine may see of a process: arguments and environment."""
    return _read(pid, "cmdline") + _read(pid, "environ")


def all_pids() -> list[int]:
    """Return the IDs of all processes."""
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def descendants(*roots: int) -> list[int]:
    """Return all living processes below processes, without themselves."""
    parents = {pid: _parent(pid) for pid in all_pids()}
    found, level = [], set(roots)
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return [pid for pid in found if command_line(pid)]


def _parent(pid: int) -> int:
    # The second field, the command in parentheses, may hold blanks.
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0


def marked(mark: str) -> list[int]:
    """Return the living processes whose environment holds `mark`, whoever their parent is."""
    return [
        pid
        for pid in all_pids()
        if pid != os.getpid() and mark.encode() in _read(pid, "environ") and command_line(pid)
    ]


def engines(pids: list[int]) -> list[int]:
    """Return the processes that are engines."""
    return [pid for pid in pids if ENGINE in command_line(pid)]


def checkpoint_memories(pids: list[int]) -> list[int]:
    """Return the processes that hold the heap backend's checkpoints."""
    return [pid for pid in pids if CHECKPOINT_MEMORY in command_line(pid)]


def executors(pids: list[int]) -> list[int]:
    """Return the processes that are Spark executors."""
    return [pid for pid in pids if EXECUTOR in command_line(pid)]


def num_open_files(pid: int) -> int:
    """Return how many file descriptors a process holds."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def executor_directories(mark: str) -> list[Path]:
    """Return where local clusters of a mark keep what their executors fetch and print."""
    return sorted((Path(pyspark.__file__).parent / "work").glob(f"app-*-{mark}"))


def scratch_directories(root: Path) -> list[Path]:
    """Return the engines' scratch directories below a folder."""
    return sorted(root.rglob("statestore-scratch-*"))
