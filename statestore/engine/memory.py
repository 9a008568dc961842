"""The engine's memory, and the taken memory and limit of its container.

A container is a control group of Linux with a limit. A process is killed when the group is over it,
whichever process took the memory: Spark's own count as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.codec.commit_times import MemoryUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RENEWED_MS = 1000
"""How long what was read counts."""


class EngineMemory:
    """Looks at this process and its container.

    Args:
        elapsed_ms: A clock that only goes forward, milliseconds.
        root: Root of the system's own files.
    """

    def __init__(self, elapsed_ms: Callable[[], float], root: Path = Path("/")) -> None:
        self._elapsed_ms = elapsed_ms
        self._root = root
        self._use = MemoryUse()
        self._read_at_ms = -float(_RENEWED_MS)

    def use(self) -> MemoryUse:
        """Return the memory in use, at most a second old."""
        now_ms = self._elapsed_ms()
        if now_ms - self._read_at_ms >= _RENEWED_MS:
            self._use = MemoryUse(resident_bytes(), *self._read_container())
            self._read_at_ms = now_ms
        return self._use

    def _read_container(self) -> tuple[int, int]:
        """Return bytes taken and the limit of the tightest group; 0 and 0 where unknown."""
        groups = [found for found in map(_read_group, self._groups()) if found is not None]
        total, available = self._read_machine()
        bounded = [(taken, limit) for taken, limit in groups if not total or limit < total]
        if bounded:
            return min(bounded, key=lambda group: group[1])
        return max(0, total - available), total

    def _groups(self) -> Iterator[Path]:
        """Yield the folders of this process's groups for memory, from its own to the root."""
        mounts = self._root / "sys/fs/cgroup"
        try:
            lines = (self._root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            mount = mounts / "memory" if controllers else mounts
            group = mount / path.lstrip("/")
            while group != mount:
                yield group
                group = group.parent
            yield mount

    def _read_machine(self) -> tuple[int, int]:
        found = _read_numbers(self._root / "proc/meminfo")
        return found.get("MemTotal:", 0) * 1024, found.get("MemAvailable:", 0) * 1024


def resident_bytes() -> int:
    """Return this process's resident memory, bytes."""
    try:
        with _STATM.open("rb", buffering=0) as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _read_group(group: Path) -> tuple[int, int] | None:
    """Return bytes taken and the limit of a group, None where it has none.

    Inactive file pages do not count: the system takes them back before it kills. So does Kubernetes
    count a container's working set.
    """
    for limit, usage, reclaimed in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, taken = (int((group / name).read_text()) for name in (limit, usage))
        except (OSError, ValueError):  # "max", where there is no limit
            continue
        return max(0, taken - _read_numbers(group / "memory.stat").get(reclaimed, 0)), most
    return None


def _read_numbers(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
