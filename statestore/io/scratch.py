"""Directories of the local disk that processes use while they run.

Those who use one hold a shared lock on its file `lock`. If no process holds it, all are gone, and
whoever makes a directory of the same kind beside it on the same machine removes it. The file says
which machine that is: the parent may be on a file system that several share, where a lock of one is
not always seen by another.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.core.process import find_process

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.core.clock import Clock

logger = logging.getLogger(__name__)

LOCK_NAME = "lock"
_MAX_LOCK_BYTES = 1024
MIN_STALE_MS = 60_000
"""A directory younger than this may belong to a process that has not locked it yet."""
_used_here: set[str] = set()
"""Those that this process uses, which it does not see by their locks."""


class ScratchDirectory:
    """A scratch directory in use by this process.

    Locks are POSIX record locks, the kind a JVM's FileChannel takes; closing any descriptor of a
    lock file would drop the process's lock on it, so it is opened exactly once.
    """

    def __init__(self, path: str) -> None:
        """Make the directory unless it exists, and lock it.

        Raises:
            OSError: It cannot be made or locked.
        """
        self.path = path
        self._real_path = os.path.realpath(path)
        # Before there is a lock file: another thread that sees the file sees this as well.
        _used_here.add(self._real_path)
        try:
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(f"{path}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_SH)
                os.pwrite(self._descriptor, "\n".join(_machine()).encode(), 0)
                self._kept = _keep_from_cleaners(path)
            except OSError:
                os.close(self._descriptor)
                raise
        except OSError:
            _used_here.discard(self._real_path)
            raise

    def sweep_beside(self, pattern: str, clock: Clock, parents: Iterable[str] = ()) -> int:
        """Remove stale directories of this user in the same parent, and in others; return how many.

        Never raises: a directory that cannot be removed stays for the next one who sweeps.

        Args:
            pattern: What their names are like.
            clock: The current time.
            parents: The others.
        """
        all_parents = {os.path.realpath(path) for path in (f"{self._real_path}/..", *parents)}
        found: list[Path] = []
        for parent in all_parents:
            with suppress(OSError):  # a broken disk, of which the others know nothing
                found += Path(parent).glob(pattern)
        return sum(_remove_if_stale(path, clock.now_ms()) for path in found)

    def release(self) -> None:
        """Use it no more. What is left of it may be removed by anybody."""
        os.close(self._descriptor)
        os.close(self._kept)
        _used_here.discard(self._real_path)

    def remove(self) -> None:
        """Remove the directory with everything in it, and use it no more. Never raises."""
        _remove(Path(self.path))
        self.release()


def _keep_from_cleaners(path: str) -> int:
    """Open a directory and lock it; return the descriptor, which holds the lock.

    systemd-tmpfiles, which deletes in /tmp what was not used for days, leaves alone a directory
    with such a lock, and all that is in it. Source: tmpfiles.d(5), "Age".
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):  # a file system without locks of this kind
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _machine() -> tuple[str, str]:
    """Return the names by which this machine is known: its host name, and its boot."""
    process = find_process()
    return process.host, process.machine.partition(" ")[0]


def _is_of_this_machine(lock: str) -> bool:
    """Return whether a lock file is of this machine, which may have booted since.

    One that no engine wrote into is of a JVM that put nothing beside it yet.
    """
    host, _, boot = lock.partition("\n")
    own_host, own_boot = _machine()
    return lock == "" or host == own_host or (boot == own_boot != "")


def _remove_if_stale(path: Path, now_ms: int) -> bool:
    lock = path / LOCK_NAME
    try:
        if path.is_symlink() or path.stat().st_uid != os.geteuid():
            return False
        if now_ms - lock.stat().st_mtime_ns // 1_000_000 < MIN_STALE_MS:
            return False
        # Behind the look at the file: opening it, and closing it, would drop this process's lock.
        if os.path.realpath(path) in _used_here:
            return False
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        if not _is_of_this_machine(os.read(descriptor, _MAX_LOCK_BYTES).decode(errors="replace")):
            return False
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
        logger.info("removed a stale scratch directory: path=%s", path)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a directory, its lock last: without one, nobody would remove what a kill leaves."""
    try:
        for entry in path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK_NAME:
                entry.unlink(missing_ok=True)
        if {entry.name for entry in path.iterdir()} <= {LOCK_NAME}:
            shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        logger.info("a scratch directory is not removed: path=%s error=%s", path, error)
