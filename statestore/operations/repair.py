"""Repair: take a checkpoint back to its newest version that can be read, and say what that means.

Spark's logs decide from which version a query starts. A repair takes the entries after that version
out of them and keeps them aside; state files stay where they are, and a batch that runs again
replaces its own. The first batch to run again is planned as it was, so it reads the same input;
later ones are planned anew from there.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.query_log import QueryLog, write_text
from statestore.core.errors import NotFoundError
from statestore.operations.in_use import exclusive_use
from statestore.operations.rows import opened
from statestore.operations.verify import Finding, verify

if TYPE_CHECKING:
    from statestore.core.options import StateStoreOptions
    from statestore.operations.checkpoint import Checkpoint
    from statestore.operations.verify import Report

ASIDE = "statestore-repair"
"""Directory of the checkpoint where entries that a repair takes out are kept."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair does, or did.

    Attributes:
        checkpoint: URI of the checkpoint.
        newest_version: Newest committed version, which the query would start from.
        version: Newest version that can be read; the query starts from it afterwards.
        findings: What is wrong with the newer ones.
        replayed_batch: The batch that runs again exactly as it was planned, None where nothing is
            taken back and no batch was under way.
        replanned_batches: Committed batches after it; their input is planned anew, so their
            results come again in batches that may be cut otherwise.
        uncommits, unplans: Entries that the commit and the offset log lose.
        aside: Directory that keeps them.
    """

    checkpoint: str
    newest_version: int
    version: int
    findings: tuple[Finding, ...]
    replayed_batch: int | None
    replanned_batches: tuple[int, ...]
    uncommits: tuple[int, ...]
    unplans: tuple[int, ...]
    aside: str

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to repair."""
        return bool(self.uncommits or self.unplans)


def plan_repair(
    checkpoint: str | Checkpoint,
    *,
    deep: bool = True,
    options: StateStoreOptions | None = None,
    report: Report | None = None,
) -> RepairPlan:
    """Find the newest version that can be read; nothing is changed.

    Args:
        checkpoint: Checkpoint directory of the query, a path or a `file:`, `s3:` or `s3a:` URI; or
            one that is open.
        deep: Whether a version counts as readable only after every byte of it was read.
        options: How to reach the storage (`s3.*`); defaults when None.
        report: As `verify`, once for each version that is tried.

    Raises:
        NotFoundError: No checkpoint, or no version that can be read (kind version-not-found).
        InvalidArgumentError: A savepoint, which is never changed.
        IncompatibleError: Another provider's.
        StorageError: The storage failed.
    """
    with opened(checkpoint, options) as source:
        source.check_of_query()
        findings: list[Finding] = []
        for batch in reversed(source.committed_batches):
            found = verify(source, versions=[batch + 1], deep=deep, report=report)
            if not found.findings:
                return _plan(source, batch + 1, findings)
            findings += found.findings
        raise NotFoundError(
            "no version of the checkpoint can be read",
            kind="version-not-found",
            checkpoint=source.uri,
            tried=", ".join(str(batch + 1) for batch in source.committed_batches) or None,
            newest_problem=findings[0].problem if findings else None,
            to_fix="restore a savepoint, or start the query with a new checkpoint directory",
        )


def _plan(checkpoint: Checkpoint, version: int, findings: list[Finding]) -> RepairPlan:
    unplans: tuple[int, ...] = ()
    replayed = None if checkpoint.is_between_batches else checkpoint.newest_planned
    if version < checkpoint.newest_version:
        # Batch `version` is the one that made the version after it.
        replayed = version if version in checkpoint.planned_batches else None
        unplans = tuple(batch for batch in checkpoint.planned_batches if batch > version)
    uncommits = tuple(batch for batch in checkpoint.committed_batches if batch >= version)
    return RepairPlan(
        checkpoint=checkpoint.uri,
        newest_version=checkpoint.newest_version,
        version=version,
        findings=tuple(findings),
        replayed_batch=replayed,
        replanned_batches=tuple(batch for batch in uncommits if batch != replayed),
        uncommits=uncommits,
        unplans=unplans,
        aside=f"{checkpoint.path}/{ASIDE}/{checkpoint.newest_version}",
    )


def repair(
    checkpoint: str | Checkpoint,
    *,
    deep: bool = True,
    options: StateStoreOptions | None = None,
    report: Report | None = None,
) -> RepairPlan:
    """Take a checkpoint back to its newest version that can be read.

    Arguments and errors as `plan_repair`.

    Guarantee: on return the query starts from `RepairPlan.version`, and every entry that was taken
    out of Spark's logs is in `RepairPlan.aside`. After a raise or a kill a query starts from that
    version, from the one it would have started from before, or Spark refuses; doing it again
    finishes it.

    Raises:
        InUseError: A query is writing the checkpoint.
    """
    with opened(checkpoint, options) as source, exclusive_use(source, "repair"):
        plan = plan_repair(source, deep=deep, report=report)
        # Newest first, commits before offsets: whatever is left at a kill are logs without a gap.
        for log, batches in ((source.commits, plan.uncommits), (source.offsets, plan.unplans)):
            for batch in reversed(batches):
                _set_aside(log, batch, plan.aside)
        return plan


def _set_aside(log: QueryLog, batch: int, directory: str) -> None:
    path = posixpath.join(directory, log.name, str(batch))
    write_text(log.io, path, log.read(batch), overwrite=True)
    log.delete(batch)
