"""Branch: a second checkpoint that shares the state files of a first, to try new code on its state.

State files are never written in place, so sharing them is enough: on one local file system by hard
links, on one S3 storage by copies that the server makes. What either query then writes or expires
is its own. A branch is dropped by deleting its directory.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError
from statestore.operations.committed_version import (
    CommittedVersion,
    copy_spark_files,
    copy_state,
    find_version,
    link_file,
    write_logs,
)
from statestore.operations.new_directory import (
    BranchOrigin,
    begin_directory,
    check_target,
    new_query_id,
    query_metadata,
)
from statestore.operations.plan import no_report
from statestore.operations.savepoint.plans import BranchPlan

if TYPE_CHECKING:
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.plan import Report


@dataclass(frozen=True)
class Branch:
    """A branch that was decided and is not yet made.

    Attributes:
        version: What is branched off.
        target: The new checkpoint.
    """

    version: CommittedVersion
    target: Place

    @property
    def plan(self) -> BranchPlan:
        """What it does."""
        checkpoint = self.version.checkpoint
        with tempfile.TemporaryDirectory(dir=checkpoint.scratch_directory) as work:
            is_shared = self.target.open(work)[0].shares(checkpoint.state_io)
        version, state_bytes = self.version.version, self.version.state_bytes()
        return BranchPlan(checkpoint.uri, self.target.uri, version, state_bytes, is_shared)

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
        source = self.version.checkpoint.uri
        with (
            self.version.pinned(self.target.ids),
            begin_directory(self.target, "branch", source) as target,
        ):
            root = f"{target.path}/state"
            copy_state(self.version, self.version.heads, target, root, report, copy=link_file)
            copy_spark_files(self.version, target)
            self.version.copy_operators(target)
            write_logs(target, self.version.offsets, self.version.commits)
            version = self.version
            origin = BranchOrigin(source, version.query_id or "", version.version)
            target.finish(query_metadata(new_query_id(target.ids), origin))


def decide_branch(checkpoint: OpenCheckpoint, target: Place, version: int | None = None) -> Branch:
    """Decide how a checkpoint is branched; nothing is written. The query may run meanwhile.

    Args:
        checkpoint: The checkpoint.
        target: The new checkpoint, which must not be there; state files are shared where it is on
            the storage that has the state, and else copied.
        version: State version, None for the newest committed one.

    Raises:
        InvalidArgumentError: The new checkpoint has files (kind checkpoint-exists), or the state is
            in a driver's memory.
        NotFoundError: The version was not committed, or was expired; or as `check_sources`.
        CorruptionError, IncompatibleError, FencedError, StorageError: As `find_version`.
    """
    if checkpoint.backend == "heap":
        raise InvalidArgumentError(
            "a checkpoint of the heap backend has no files to share",
            checkpoint=checkpoint.uri,
            to_fix="take a savepoint in the driver's own Python program, and restore that",
        )
    check_target(target, "branch", checkpoint.uri)
    found = find_version(checkpoint, version)
    found.check_sources()
    return Branch(found, target)
