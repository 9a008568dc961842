"""Branch: a second checkpoint that shares the state files of a first, to try new code on its state.

State files are never written in place, so sharing them is enough: on one local file system by hard
links, on one S3 storage by copies that the server makes. What either query then writes or expires
is its own. A branch is dropped by deleting its directory.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError
from statestore.core.options import StateStoreOptions
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.committed_version import (
    CommittedVersion,
    copy_spark_files,
    copy_state,
    find_version,
    link_file,
    no_report,
    write_logs,
)
from statestore.operations.new_directory import begin_directory, check_target
from statestore.operations.savepoint.restore import new_query_id, query_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.core.clock import Clock
    from statestore.core.ids import IdSource
    from statestore.io.file_io import TreeFileIO
    from statestore.operations.committed_version import Report


@dataclass(frozen=True)
class Branch:
    """What a branch does, decided and not yet done.

    Attributes:
        version: What is branched off.
        target: The new checkpoint, as the caller named it.
    """

    version: CommittedVersion
    target: str
    options: StateStoreOptions
    target_io: TreeFileIO | None
    ids: IdSource | None
    clock: Clock | None

    def run(self, report: Report = no_report) -> None:
        """Make the checkpoint, of a new query that goes on where the version stands.

        Args:
            report: Called with bytes of state done and the total.

        Guarantee: on return the new checkpoint is whole and durable, and neither query can harm the
        other's. After a raise, or when the process is killed, no query starts from it until the
        call is repeated.

        Raises:
            InvalidArgumentError: The target has files meanwhile (kind checkpoint-exists).
            NotFoundError: The query expired a file meanwhile; branch off a newer version.
            StorageError: A storage failed.
        """
        with self.version.pinned(self.ids), begin_directory(
            self.target, "branch", self.version.checkpoint.uri, options=self.options,
            io=self.target_io, ids=self.ids, clock=self.clock,
        ) as target:  # fmt: skip
            root = f"{target.path}/state"
            copy_state(self.version, self.version.heads, target, root, report, copy=link_file)
            copy_spark_files(self.version, target)
            self.version.copy_operators(target)
            write_logs(target, self.version.offsets, self.version.commits)
            target.finish(query_metadata(new_query_id(target.ids)))


@contextmanager
def plan_branch(
    checkpoint: str,
    new: str,
    *,
    version: int | None = None,
    options: StateStoreOptions | None = None,
    io: TreeFileIO | None = None,
    target_io: TreeFileIO | None = None,
    ids: IdSource | None = None,
    clock: Clock | None = None,
) -> Iterator[Branch]:
    """Decide how a checkpoint is branched; nothing is written. The query may run meanwhile.

    Args:
        checkpoint: Checkpoint directory: a path, or a URI of any scheme.
        new: The new checkpoint, which must not be there; state files are shared where it is on the
            storage that has the state, and else copied.
        version: State version, None for the newest committed one.
        options: Of the query, for its storage (`s3.*`); defaults when None.
        io: Storage of `checkpoint`, which is then a path of it; what the URI names when None.
        target_io: The same of `new`.
        ids: Source of IDs, random when None.
        clock: Source of time, the machine's when None.

    Yields:
        The plan, to be run within the context.

    Raises:
        InvalidArgumentError: The new checkpoint has files (kind checkpoint-exists), or the state is
            in a driver's memory.
        NotFoundError: The version was not committed, or was expired.
        CorruptionError, IncompatibleError, FencedError, StorageError: As `find_version`.
    """
    options = options or StateStoreOptions()
    with open_checkpoint(checkpoint, options=options, io=io, clock=clock) as source:
        if source.backend == "heap":
            raise InvalidArgumentError(
                "a checkpoint of the heap backend has no files to share",
                checkpoint=checkpoint,
                to_fix="take a savepoint in the driver's own Python program, and restore that",
            )
        check_target(new, "branch", checkpoint, options, source.clock, target_io)
        yield Branch(find_version(source, version), new, options, target_io, ids, clock)
