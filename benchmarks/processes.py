"""Measurements in processes of their own: a JVM serves one provider, and is warm after one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workloads import find_provider

REPOSITORY = Path(__file__).parents[1]
RUN_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a process measured, or why it did not.

    Attributes:
        result: What the last line of its output is as JSON.
        failure: Whether it hung, or its exit status; None when it measured.
        stderr: What it said of that.
    """

    result: Any = None
    failure: str | None = None
    stderr: str = ""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def own_results(benchmark: str, size: str) -> Path:
    """Return the folder of what was measured here: the project's figures are of another machine.

    To make those, give `--results benchmarks/results/VERSION`.
    """
    return REPOSITORY / "build" / benchmark / size


def run_module(module: str, arguments: Iterable[str], *, timeout_s: int = RUN_TIMEOUT_S) -> Outcome:
    """Run a module of this package, whose last line of output is its result."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=REPOSITORY,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return Outcome(failure=f"not done after {timeout_s} s")
    if done.returncode:
        return Outcome(failure=f"exit status {done.returncode}", stderr=done.stderr)
    return Outcome(json.loads(done.stdout.splitlines()[-1]))


def run_for_each(module: str, providers: str, arguments: Iterable[str]) -> int:
    """Run a module of this package for each provider, which prints what it measures.

    Args:
        module: It takes `--application ID`.
        providers: Their IDs, separated by commas.
        arguments: Of every run.

    Returns:
        Exit status: 1 when a run failed.
    """
    failed = False
    for name in providers.split(","):
        find_provider(name)
        command = [sys.executable, "-m", f"benchmarks.{module}", "--application", name]
        failed |= subprocess.run([*command, *arguments], check=False).returncode != 0
    return int(failed)


def cpu_ms() -> float:
    """Return the CPU that this process and all below it have used so far, on Linux."""
    fields = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # The second field, the command in parentheses, may hold blanks.
            fields[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    ticks, level = 0, {os.getpid()}
    while level:
        # Its own, and that of its children that ended and were waited for.
        ticks += sum(int(field) for pid in level for field in fields[pid][11:15])
        level = {pid for pid, of in fields.items() if int(of[1]) in level}
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def engines_of(jvm_pid: int) -> list[int]:
    """Return the process IDs of what the shim started: engines, and the checkpoint memory."""
    found = []
    for listing in Path(f"/proc/{jvm_pid}/task").glob("*/children"):
        with suppress(OSError):  # threads and processes may be gone
            for child in listing.read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                if any(word.startswith(b"statestore.engine") for word in command):
                    found.append(int(child))
    return found


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes.

    Without pages of files that it maps: the system takes those back when it needs memory.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return sum(int(sizes[kind].split()[0]) * 1024 for kind in ("RssAnon", "RssShmem"))
