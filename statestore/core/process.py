"""Processes of the machine, told apart for ever: a process ID alone is used again."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class Process:
    """A process.

    Attributes:
        host: Name of its machine.
        machine: Since when the machine runs and where its process IDs count (the machine's boot
            and the namespace); empty where the system does not tell.
        pid: Its ID.
        started: When it started, in clock ticks since the machine did; 0 where nobody tells.
    """

    host: str
    machine: str
    pid: int
    started: int

    def state(self) -> Literal["alive", "gone", "unknown"]:
        """Return whether the process is there; unknown to all but its own machine."""
        if not self.machine or (self.host, self.machine) != _here():
            return "unknown"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "gone"
        except PermissionError:
            pass
        started, is_zombie = _read_status(self.pid)
        is_another = bool(started and self.started and started != self.started)
        return "gone" if is_another or is_zombie else "alive"


def find_process(pid: int | None = None) -> Process:
    """Return a process of this machine, by default this one."""
    pid = os.getpid() if pid is None else pid
    return Process(*_here(), pid, _read_status(pid)[0])


def _here() -> tuple[str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        machine = ""
    return socket.gethostname(), machine


def _read_status(pid: int) -> tuple[int, bool]:
    """Return when a process started, 0 if nobody tells, and whether it ended unreaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0, False
    # The second field, the command in parentheses, may hold blanks.
    fields = text.rpartition(")")[2].split()
    return int(fields[19]), fields[0] in ("Z", "X")
