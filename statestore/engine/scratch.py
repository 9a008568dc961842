"""The scratch directory an engine shares with its JVM, and the engine's own directory in it.

    <scratch>/lock                            held by all that use the directory
    <scratch>/engine-<name>/unfinished/       what the engine is writing: snapshots, merged files
    <scratch>/engine-<name>/fetched/shared/   local copies of files of remote storage
    <scratch>/engine-<name>/rocksdb/          local databases
    <scratch>/engine-<name>/starts            a byte for each engine that had the name
    <scratch>/*                               what the shim makes: deltas to commit

JVM and engines hold the lock of `statestore.io.scratch`; an engine that starts removes directories
of others that are all gone. If only an engine died, the engine that replaces it under the same name
removes its unfinished files. It keeps the fetched ones, which the JVM may be reading, and the
databases, which are taken again by the stores that come back; the others go after an hour.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from statestore.io.local import TEMPORARY_PREFIX

NAME_PATTERN = "statestore-scratch-*"


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
        self.databases = f"{scratch_directory}/engine-{name}/rocksdb"
        """For local databases."""

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
