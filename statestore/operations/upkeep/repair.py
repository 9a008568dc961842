"""Repair: take a checkpoint back to its newest version that can be read, and say what that means.

Spark's logs decide from which version a query starts. A repair takes the entries after that version
out of them and keeps them aside; state files stay where they are, and a batch that runs again
writes its own. But a damaged snapshot or merged file is deleted: maintenance would find it by the
version that it stands for, and later versions would be made of it again. The first batch to run
again is planned as it was where it can be, so it reads the same input; later ones are planned anew
from there. A rescale or edit after that version is taken back, finished or not. Nothing goes back
behind a `forget`: files of before may be left, and have the keys.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.layout import parse_state_file_name
from statestore.checkpoint.query_log import QueryLog
from statestore.checkpoint.text_files import read_bytes, try_read_bytes, write_bytes
from statestore.core.errors import CorruptionError, IncompatibleError, NotFoundError
from statestore.operations.batches import read_own_batch
from statestore.operations.result import Change, Result, no_progress
from statestore.operations.source_logs import check_sources, names_of_sources
from statestore.operations.states import check_committed
from statestore.operations.step import step
from statestore.operations.upkeep.verification import Finding, to_fix_metadata
from statestore.operations.upkeep.verify import check_entry_before, verify_back

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.operations.batches import BatchKind
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.result import Progress
    from statestore.operations.step import Step

_OF_DAMAGE = ("checksum-mismatch", "truncated", "corruption", "storage")
"""Kinds of findings that are about the bytes of a file, which the disk may not give."""
ASIDE = "statestore-repair"
"""Directory of the checkpoint where entries that a repair takes out are kept."""


@dataclass(frozen=True, repr=False)
class Repair(Result):
    """What a repair did, or would do.

    Attributes:
        checkpoint: URI of the checkpoint.
        newest_version: Newest committed version, which the query would start from.
        version: Newest version that can be read; the query starts from it afterwards.
        findings: What is wrong with the newer ones, and what is wrong with it and recoverable.
        replayed_batch: The batch that runs again exactly as it was planned, None where nothing is
            taken back and no batch was under way, or it cannot be repeated.
        replanned_batches: Committed batches after it, and one that cannot be repeated: its entry is
            damaged, or a file source does not know its files any more. Their input is planned anew,
            so their results come again in batches that may be cut otherwise.
        undone_rescales: Batches of rescales after the version, which have to be done again.
        undone_edits: Batches of edits after the version: rows that they deleted are there again,
            those that they put are not, and the watermark is that of before.
        uncommits, unplans: Entries that the commit and the offset log lose.
        aside: Directory that keeps them, also those that a repair took out before it was killed.
        damaged_files: Snapshots and merged files that are damaged and deleted; only versions that
            are taken back are made of them.
    """

    checkpoint: str
    newest_version: int
    version: int
    findings: tuple[Finding, ...]
    replayed_batch: int | None
    replanned_batches: tuple[int, ...]
    undone_rescales: tuple[int, ...]
    undone_edits: tuple[int, ...]
    uncommits: tuple[int, ...]
    unplans: tuple[int, ...]
    aside: str
    damaged_files: tuple[str, ...]

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to repair."""
        return bool(self.uncommits or self.unplans)

    @property
    def size_bytes(self) -> int:
        """0: state files stay as they are."""
        return 0

    @property
    def changes(self) -> tuple[Change, ...]:
        """The files that are deleted, and the entries that Spark's logs lose, newest first."""
        return (
            *(Change("delete", path) for path in self.damaged_files),
            *(Change("move", f"commits/{batch}") for batch in reversed(self.uncommits)),
            *(Change("move", f"offsets/{batch}") for batch in reversed(self.unplans)),
        )

    def __str__(self) -> str:
        lines = [finding.describe() for finding in self.findings]
        if not self.is_needed:
            lines.append(f"Version {self.version}, the newest, can be read: nothing to repair.")
            return "\n".join(lines)
        lines.append(
            f"The newest version that can be read is {self.version}; {self.newest_version} was the "
            "newest committed one."
        )
        lines += [
            f"The rescale of batch {batch} is taken back; it can be done again."
            for batch in self.undone_rescales
        ]
        lines += [
            f"The edit of batch {batch} is taken back: rows that it deleted are there again, rows "
            "that it put are not, and the watermark is that of before. It can be done again."
            for batch in self.undone_edits
        ]
        if self.replayed_batch is not None:
            lines.append(f"Batch {self.replayed_batch} runs again as it was planned.")
        if self.replanned_batches:
            first, last = self.replanned_batches[0], self.replanned_batches[-1]
            lines.append(f"Batches {first} to {last} are planned anew from their input.")
        lines.append(f"Their entries are kept in {self.aside}.")
        lines += [
            f"{path} is deleted: later versions would be made of it again."
            for path in self.damaged_files
        ]
        return "\n".join(lines)

    def fields(self) -> dict[str, Any]:
        """Return the attributes, and whether there is anything to repair."""
        return {"is_needed": self.is_needed, **super().fields()}


def repair(
    checkpoint: OpenCheckpoint,
    *,
    deep: bool = True,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Repair:
    """Take a checkpoint back to its newest version that can be read.

    Arguments, guarantee and errors as `Checkpoint.repair`.
    """
    if dry_run:
        checkpoint.check_of_query()
        checkpoint.require_own()  # what another provider wrote is read, not changed
        return _find(checkpoint, progress, deep=deep)
    with step(checkpoint, "repair", deep=deep) as one:
        found = _find(checkpoint, progress, deep=deep)
        one.to_version = found.version
        state = checkpoint.guard.over(checkpoint.state_io)
        for path in found.damaged_files:
            state.delete(path)
        # Newest first, commits before offsets: whatever is left at a kill are logs without a gap.
        for batch in reversed(found.uncommits):
            _set_aside(one, checkpoint.commits, batch, found.aside)
        num_partitions = checkpoint.num_partitions_at(found.version)
        if found.is_needed:
            # Also what says of the batch that runs again with which schemas it did: by that, Spark
            # would take them for those of before.
            one.write_num_partitions(num_partitions, found.version)
        for batch in reversed(found.unplans):
            _set_aside(one, checkpoint.offsets, batch, found.aside)
        one.result |= {
            "uncommits": list(found.uncommits),
            "unplans": list(found.unplans),
            "aside": found.aside,
            "damaged_files": list(found.damaged_files),
        }
        return replace(found, done=True)


def _find(checkpoint: OpenCheckpoint, progress: Progress, *, deep: bool) -> Repair:
    """Find the newest version that can be read."""
    findings: list[Finding] = []
    verified = verify_back(checkpoint, deep=deep, progress=progress)
    for batch, found in zip(reversed(checkpoint.done_batches), verified, strict=True):
        findings += found.findings
        if found.is_readable(batch + 1):
            back = _back_to(checkpoint, batch + 1, findings)
            try:
                if back.replayed_batch is None:
                    check_entry_before(checkpoint, batch + 1)
            except (CorruptionError, NotFoundError) as error:
                findings.append(Finding.of(batch + 1, None, error))
            else:
                return back
        if _kind_of(checkpoint, batch) == "forgotten":
            raise NotFoundError(
                "no version can be read since keys were forgotten, and those before have the keys",
                kind="version-not-found",
                checkpoint=checkpoint.uri,
                forgotten_by_batch=batch,
                newest_problem=findings[0].problem if findings else None,
                to_fix=to_fix_metadata(findings)
                or "restore a savepoint that was taken after that batch, or one without the "
                "keys; or start the query with a new checkpoint directory",
            )
    if checkpoint.newest_planned == 0:
        check_committed(checkpoint, 1)
    raise NotFoundError(
        "no version of the checkpoint can be read",
        kind="version-not-found",
        checkpoint=checkpoint.uri,
        tried=", ".join(str(batch + 1) for batch in checkpoint.done_batches) or None,
        newest_problem=findings[0].problem if findings else None,
        to_fix=to_fix_metadata(findings)
        or "restore a savepoint, or start the query with a new checkpoint directory",
    )


def _back_to(checkpoint: OpenCheckpoint, version: int, findings: list[Finding]) -> Repair:
    """Return what going back to a version would do."""
    # Batch `version` makes the version after it. Later ones are planned where a repair was killed
    # after it took out their commits, too.
    planned = [batch for batch in checkpoint.planned_batches if batch >= version]
    rescales: list[int] = []
    edits: list[int] = []
    damaged: list[int] = []
    num_partitions = checkpoint.num_partitions_at(version)
    for batch in planned:
        try:
            before, num_partitions = num_partitions, checkpoint.num_partitions_at(batch + 1)
        except CorruptionError:
            damaged.append(batch)
            continue
        if num_partitions != before:
            rescales.append(batch)
        elif _kind_of(checkpoint, batch) not in (None, "rescale"):
            edits.append(batch)
        elif batch == version and not _has_sources(checkpoint, batch):
            damaged.append(batch)
    # These read no input, so nothing is planned by them that could run again.
    replayed = version if version in {*planned} - {*rescales, *edits, *damaged} else None
    unplans = tuple(batch for batch in planned if batch != replayed)
    uncommits = tuple(batch for batch in checkpoint.committed_batches if batch >= version)
    return Repair(
        checkpoint=checkpoint.uri,
        newest_version=checkpoint.newest_version,
        version=version,
        findings=tuple(findings),
        replayed_batch=replayed,
        replanned_batches=tuple(
            batch
            for batch in sorted({*uncommits, *damaged})
            if batch not in (replayed, *rescales, *edits)
        ),
        undone_rescales=tuple(rescales),
        undone_edits=tuple(edits),
        uncommits=uncommits,
        unplans=unplans,
        aside=_find_aside(
            checkpoint, version, ((checkpoint.commits, uncommits), (checkpoint.offsets, unplans))
        ),
        damaged_files=tuple(_damaged_files(version, findings)),
        done=False,
    )


def _has_sources(checkpoint: OpenCheckpoint, batch: int) -> bool:
    """Return whether file sources know what a planned batch reads."""
    names = names_of_sources(checkpoint.io, checkpoint.path)
    try:
        check_sources(checkpoint.uri, {batch: checkpoint.offsets_entry(batch)}, names)
    except NotFoundError:
        return False
    return True


def _damaged_files(version: int, findings: Iterable[Finding]) -> dict[str, None]:
    """Return the snapshots and merged files by whose damage versions after one cannot be read."""
    found: dict[str, None] = {}
    for finding in findings:
        name = parse_state_file_name(posixpath.basename(finding.file or ""))
        is_summary = name is not None and name.kind != "delta"
        is_damaged = finding.kind in _OF_DAMAGE and not finding.is_recoverable
        if finding.version > version and is_summary and is_damaged:
            found[str(finding.file)] = None
    return found


def _kind_of(checkpoint: OpenCheckpoint, batch: int) -> BatchKind | None:
    """Return the kind of an operation's batch; None for another, or where it cannot be read."""
    try:
        found = read_own_batch(checkpoint, batch)
    except (CorruptionError, IncompatibleError):
        return None
    return None if found is None else found.kind


def _find_aside(
    checkpoint: OpenCheckpoint, version: int, entries: Iterable[tuple[QueryLog, tuple[int, ...]]]
) -> str:
    """Return the directory for entries: the same one as before the repair was killed."""
    wanted = [
        (log, batch, read_bytes(log.io, log.path(batch)))
        for log, batches in entries
        for batch in batches
    ]
    root = f"{checkpoint.path}/{ASIDE}/{version}"
    for number in count(1):
        directory = root if number == 1 else f"{root}-{number}"
        # Entries of an earlier repair, which went back to the same version, stay as they are.
        if all(
            try_read_bytes(log.io, _aside_path(log, batch, directory)) in (None, data)
            for log, batch, data in wanted
        ):
            return directory
    raise AssertionError("unreachable")


def _aside_path(log: QueryLog, batch: int, directory: str) -> str:
    return posixpath.join(directory, log.name, str(batch))


def _set_aside(one: Step, log: QueryLog, batch: int, directory: str) -> None:
    path = _aside_path(log, batch, directory)
    write_bytes(log.io, path, read_bytes(log.io, log.path(batch)), overwrite=True)
    one.take_back(log.name, batch)
