"""The scratch directory an engine shares with its JVM, and the engine's own directory in it.

    <scratch>/lock                            held by all that use the directory
    <scratch>/engine-<name>/unfinished/       what the engine is writing: snapshots, merged files
    <scratch>/engine-<name>/fetched/shared/   local copies of files of remote storage
    <scratch>/engine-<name>/starts            a byte for each engine that had the name
    <scratch>/rocksdb/                        local databases
    <scratch>/*                               what the shim makes: deltas to commit

JVM and engines hold a shared lock on its `lock` file. If no process holds it, all are gone, and the
next engine started beside it on the same machine removes the directory. The engine writes into the
file which machine that is: the parent may be on a file system that several share, where a lock of
one is not always seen by another. If only an engine died, the engine that
replaces it under the same name removes its unfinished files, and keeps the fetched ones, which the
JVM may be reading.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.core.process import find_process
from statestore.io.local import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from statestore.core.clock import Clock

logger = logging.getLogger(__name__)

NAME_PATTERN = "statestore-scratch-*"
LOCK_NAME = "lock"
_MAX_LOCK_BYTES = 1024
MIN_STALE_MS = 60_000
"""A directory younger than this may belong to a JVM that has not locked it yet."""


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
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(f"{path}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(self._descriptor, fcntl.LOCK_SH)
        os.pwrite(self._descriptor, "\n".join(_machine()).encode(), 0)

    def sweep_beside(self, clock: Clock) -> int:
        """Remove stale scratch directories in the same parent; return how many.

        Never raises: a directory that cannot be removed stays for the next engine.
        """
        own = Path(self.path).resolve()
        candidates = [path for path in own.parent.glob(NAME_PATTERN) if path.resolve() != own]
        return sum(_remove_if_stale(path, clock.now_ms()) for path in candidates)

    def remove(self) -> None:
        """Remove the directory with everything in it. Never raises."""
        shutil.rmtree(self.path, ignore_errors=True)


class EngineDirectory:
    """The directory that one engine alone writes to.

    Args:
        scratch_directory: The scratch directory.
        name: The engine's; no other engine of the JVM has it at the same time.
    """

    def __init__(self, scratch_directory: str, name: str) -> None:
        self.unfinished = f"{scratch_directory}/engine-{name}/unfinished"
        """For files that are not finished."""
        self.fetched = f"{scratch_directory}/engine-{name}/fetched"
        """For local copies of the files of remote storages."""

    def begin(self) -> int:
        """Make the directory, and remove unfinished files of an engine with the name.

        Returns:
            How many engines had the name before.

        Raises:
            OSError: It cannot be made or emptied.
        """
        shutil.rmtree(self.unfinished, ignore_errors=True)
        for path in (self.unfinished, self.fetched):
            Path(path).mkdir(parents=True, exist_ok=True)
        for copy in Path(self.fetched).glob(f"*/{TEMPORARY_PREFIX}*"):
            copy.unlink(missing_ok=True)
        with Path(self.unfinished).with_name("starts").open("ab+") as starts:
            starts.write(b".")
            return starts.tell() - 1


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
    try:
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        if now_ms - os.fstat(descriptor).st_mtime_ns // 1_000_000 < MIN_STALE_MS:
            return False
        if not _is_of_this_machine(os.read(descriptor, _MAX_LOCK_BYTES).decode(errors="replace")):
            return False
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        logger.info("removed a stale scratch directory: path=%s", path)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
