"""Retained savepoints: taken one after the other into a directory, of which the newest stay.

Only a claim, and the schedule that took it, delete a savepoint. The schedule knows those that it
took by their names and their query, and deletes them when a newer one is whole and was checked.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from statestore.checkpoint.layout import is_temporary
from statestore.checkpoint.query_log import QueryLog
from statestore.checkpoint.text_files import read_text, write_text
from statestore.core.defaults import SAVEPOINTS_KEPT
from statestore.core.durations import duration_ms, require_duration
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    require_whole,
)
from statestore.core.json_fields import MalformedError, parse_fields
from statestore.core.text import format_bytes, format_fields
from statestore.io.local import temporary_directory
from statestore.io.storage import is_same_directory
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.metadata_file import DELETE, unfinished_operation
from statestore.operations.new_directory import check_beside, delete_directory
from statestore.operations.result import Change, Result
from statestore.operations.savepoint.find import FoundSavepoint
from statestore.operations.savepoint.savepoint import (
    check_form,
    read_savepoint,
    take_savepoint,
)
from statestore.operations.upkeep.verify import verify

if TYPE_CHECKING:
    from statestore.core.durations import Duration
    from statestore.io.file_io import TreeFileIO
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.result import Progress
    from statestore.operations.savepoint.savepoint import SavepointForm

NAME = re.compile(r"savepoint-\d{8}T\d{6}Z-[0-9a-f]{8}")
STATUS_NAME = "status.json"
_IDLE_MS = 3_600_000
"""An unfinished savepoint that nothing was written to for so long was killed, as a pin's is."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Which savepoints are taken, and which of them stay; the newest always does.

    Attributes:
        keep: The newest so many, at least 1.
        max_age: Of these only those that are not older, at least a second; None for any age.
        form: As `take_savepoint`.

    Raises:
        InvalidArgumentError: None would stay, or there is no such form.
    """

    keep: int = SAVEPOINTS_KEPT
    max_age: Duration | None = None
    form: SavepointForm = "canonical"

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", require_whole("keep", self.keep))
        if self.keep < 1:
            raise InvalidArgumentError(
                "`keep` is less than 1",
                keep=self.keep,
                to_fix="give a whole number from 1",
            )
        if self.max_age is not None:
            require_duration("max_age", self.max_age)
        check_form(self.form)

    @property
    def max_age_ms(self) -> int | None:
        """The age in milliseconds."""
        return None if self.max_age is None else duration_ms(self.max_age)


@dataclass(frozen=True, repr=False)
class RetainedSavepoints(Result):
    """The savepoint that was taken, and those that were deleted, or would be.

    Attributes:
        source: URI of the checkpoint.
        directory: Where the savepoints are.
        taken: The savepoint that was made; None where the newest one has the newest version.
        version: State version of the newest savepoint afterwards.
        state_bytes: Bytes of the savepoint's state; of a dry run those that would be read for it.
        deleted: Savepoints that are deleted, oldest first.
        left_over: Directories that killed attempts left, which are deleted too.
        kept: Savepoints that are there afterwards, oldest first.
    """

    makes_new: ClassVar[bool] = True
    source: str
    directory: str
    taken: str | None
    version: int
    state_bytes: int
    deleted: tuple[str, ...]
    left_over: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the savepoint's state; of a dry run those that would be read for it."""
        return self.state_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """The new savepoint, what is deleted, and the status."""
        return (
            *([Change("write", self.taken)] if self.taken else []),
            *(Change("delete", uri) for uri in (*self.deleted, *self.left_over)),
            Change("write", f"{self.directory}/{STATUS_NAME}"),
        )

    def __str__(self) -> str:
        size = f"{format_bytes(self.state_bytes)} of state files"
        if self.taken is None:
            new = f"nothing new since {self.kept[-1]}"
        elif self.done:
            new = f"{self.taken}, {size}"
        else:  # of a canonical one, which is smaller, the size is only known when it is written
            new = f"{self.taken}, made of {size}"
        return format_fields(
            [
                ("from", f"{self.source}, version {self.version}"),
                ("savepoint", new),
                *(("delete", uri) for uri in self.deleted),
                *(("delete, never finished", uri) for uri in self.left_over),
                ("kept", len(self.kept)),
            ]
        )


def retain_savepoint(
    place: Place,
    directory: Place,
    retention: Retention,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RetainedSavepoints:
    """Take a savepoint into a directory of the query, and delete those that are not to stay.

    Guarantee and errors as `Checkpoint.retain_savepoint`.

    Args:
        place: The checkpoint.
        directory: Where the query's savepoints are, and nothing but them is looked at: directories
            `savepoint-<time>-<id>` directly in it.
        retention: Which are taken, and stay.
        dry_run: Whether to change nothing.
        progress: As `take_savepoint`.
    """
    attempt = _Attempt(place, directory, retention)
    try:
        there = attempt.check()
    except StateStoreError as error:
        if not dry_run:
            attempt.renew(str(error))
        raise
    if dry_run:
        return attempt.plan(there)
    try:
        result = attempt.run(there, progress)
    except Exception as error:
        attempt.tell(error=str(error))
        raise
    attempt.tell(result)
    return result


class _Attempt:
    """One run."""

    def __init__(self, place: Place, directory: Place, retention: Retention) -> None:
        self._place = place
        self._directory = directory
        self._uri = directory.uri.rstrip("/")
        self._retention = retention
        self._now_ms = directory.clock.now_ms()

    def check(self) -> list[FoundSavepoint]:
        """Check that the directory may have savepoints, and return those there, oldest first."""
        with open_checkpoint(self._place) as checkpoint:
            io, path = self._open(checkpoint, self._uri)
            check_beside(io, path, self._uri, self._place.uri)
            there = self._there(checkpoint)
            self._check_status(checkpoint, io, path)
            return there

    def _check_status(self, checkpoint: OpenCheckpoint, io: TreeFileIO, path: str) -> None:
        """Check that the status replaces no file of somebody else's, and none of another schedule.

        A query that was restored elsewhere has its ID there, too: of two schedules in a directory
        each would delete what the other has taken. A checkpoint that is no more has none.
        """
        try:
            status = parse_fields(read_text(io, f"{path}/{STATUS_NAME}"))
            status.integer("attempted_ms")
            its_checkpoint = status.text("checkpoint")
        except NotFoundError:
            return
        except MalformedError as error:
            raise InvalidArgumentError(
                "somebody else's file is where the status of the savepoints is to be",
                directory=self._uri,
                file=STATUS_NAME,
                to_fix="name a directory of this query's own",
            ) from error
        is_own = is_same_directory(its_checkpoint, self._place.uri)
        if not is_own and _may_be_there(checkpoint, its_checkpoint):
            raise InvalidArgumentError(
                "the directory has savepoints of another checkpoint of the query",
                directory=self._uri,
                its_checkpoint=its_checkpoint,
                checkpoint=self._place.uri,
                to_fix="name a directory of this checkpoint's own; or, if the query has moved to "
                f"this checkpoint, end the schedule of the other and delete {STATUS_NAME} there",
            )

    def plan(self, there: list[FoundSavepoint]) -> RetainedSavepoints:
        """Return what it would do, with what `check` has found."""
        with open_checkpoint(self._place) as checkpoint:
            taken, state_bytes, version = None, 0, there[-1].savepoint.version if there else 0
            if self._is_new(checkpoint, there):
                target, form = self._target(), self._retention.form
                would = take_savepoint(self._place, target, target, form=form, dry_run=True)
                taken, state_bytes, version = would.target, would.size_bytes, would.version
            doomed = self._doomed([*there, *([None] if taken else [])])
            left_over = self._left_over(checkpoint, there)
        kept = [one.uri for one in there if one not in doomed]
        return RetainedSavepoints(
            source=self._place.uri,
            directory=self._uri,
            taken=taken,
            version=version,
            state_bytes=state_bytes,
            deleted=tuple(one.uri for one in doomed),
            left_over=tuple(left_over),
            kept=(*kept, *([taken] if taken else [])),
            done=False,
        )

    def run(self, before: list[FoundSavepoint], progress: Progress | None) -> RetainedSavepoints:
        """Do it, with what `check` has found."""
        taken = None
        with open_checkpoint(self._place) as checkpoint:
            is_new = self._is_new(checkpoint, before)
            # First: what a killed attempt left may be what the next one has no space for.
            left_over = self._left_over(checkpoint, before)
            with suppress(StateStoreError):  # it is tried again when the new one is there
                self._delete(checkpoint, left_over)
            if is_new:
                taken = self._take(checkpoint, progress)
        with open_checkpoint(self._place) as checkpoint:
            # The new one is the newest, also by a clock that goes behind another one's.
            there = sorted(self._there(checkpoint), key=lambda one: one.uri == taken)
            # Of two runs at once, either would delete what the other has just taken.
            doomed = [one for one in self._doomed([*there]) if one in before]
            self._check_whole(there[-1].uri)
            left_over_now = self._left_over(checkpoint, there)
            self._delete(checkpoint, [one.uri for one in doomed] + left_over_now)
        return RetainedSavepoints(
            source=self._place.uri,
            directory=self._uri,
            taken=taken,
            version=there[-1].savepoint.version,
            state_bytes=there[-1].savepoint.state_bytes if taken else 0,
            deleted=tuple(one.uri for one in doomed),
            left_over=tuple(left_over),
            kept=tuple(one.uri for one in there if one not in doomed),
            done=True,
        )

    def _take(self, checkpoint: OpenCheckpoint, progress: Progress | None) -> str:
        """Take a savepoint and return its URI; after a raise nothing of it is left, if possible."""
        target = self._target()
        form = self._retention.form
        try:
            take_savepoint(self._place, target, target, form=form, progress=progress)
        except Exception:
            # The disk that it filled may be the one that the query writes to.
            with suppress(StateStoreError):
                self._delete(checkpoint, [target.uri])
            raise
        return target.uri

    def tell(self, result: RetainedSavepoints | None = None, *, error: str | None = None) -> None:
        """Write the status: what was done, or failed, and the newest savepoint that there is.

        A status that cannot be written fails the attempt, unless that has failed itself.
        """
        try:
            with open_checkpoint(self._place) as checkpoint:
                io, path = self._open(checkpoint, self._uri)
                there = self._there(checkpoint)
                newest = there[-1] if there else None
                said = {
                    "checkpoint": self._place.uri,
                    "attempted_ms": self._now_ms,
                    "error": error,
                    "taken": result and result.taken,
                    "deleted": list(result.deleted) if result else [],
                    "num_kept": len(there),
                    "newest": newest and newest.uri,
                    "newest_version": newest and newest.savepoint.version,
                    "newest_ms": newest and newest.savepoint.created_ms,
                    "newest_bytes": newest and newest.savepoint.state_bytes,
                }
                write_text(io, f"{path}/{STATUS_NAME}", json.dumps(said, indent=2), overwrite=True)
        except StateStoreError:
            if error is None:
                raise

    def renew(self, error: str) -> None:
        """Say in the checkpoint's own status, where there is one, why nothing could be looked at.

        What it says of the savepoints stays. A status that cannot be written is left.
        """
        with suppress(StateStoreError, MalformedError), temporary_directory() as fetched:
            io, path = self._directory.open(fetched)
            text = read_text(io, f"{path}/{STATUS_NAME}")
            if parse_fields(text).text("checkpoint") == self._place.uri:
                attempt = {"attempted_ms": self._now_ms, "error": error}
                said = {**json.loads(text), **attempt, "taken": None, "deleted": []}
                write_text(io, f"{path}/{STATUS_NAME}", json.dumps(said, indent=2), overwrite=True)

    def _target(self) -> Place:
        """Return the place of a new savepoint, which no other run has."""
        name = f"{_name_at(self._now_ms)}-{self._directory.ids.new_id()[-8:]}"
        return self._at(f"{self._uri}/{name}")

    def _open(self, checkpoint: OpenCheckpoint, uri: str) -> tuple[TreeFileIO, str]:
        return self._at(uri).open(checkpoint.scratch_directory)

    def _at(self, uri: str) -> Place:
        return replace(self._directory, uri=uri)

    def _names(self, checkpoint: OpenCheckpoint) -> list[str]:
        io, path = self._open(checkpoint, self._uri)
        return sorted(name for name in io.list_directories(path or "/") if NAME.fullmatch(name))

    def _there(self, checkpoint: OpenCheckpoint) -> list[FoundSavepoint]:
        """Return the savepoints in the directory that are whole, oldest first.

        One whose time is still to come, by a clock that was wrong, is older than all others.

        Raises:
            InvalidArgumentError: One is of another query.
        """
        found = []
        for name in self._names(checkpoint):
            uri = f"{self._uri}/{name}"
            try:
                info = read_savepoint(*self._open(checkpoint, uri), uri)
            except (NotFoundError, CorruptionError, IncompatibleError):
                continue  # never finished, or nobody can tell what it is
            if info.query_id != (checkpoint.query_id or ""):
                raise InvalidArgumentError(
                    "the directory has savepoints of another query",
                    directory=self._uri,
                    savepoint=name,
                    its_query=info.query_id,
                    query=checkpoint.query_id,
                    to_fix="name a directory of this query's own",
                )
            found.append(FoundSavepoint(uri, info))
        now_ms = self._directory.clock.now_ms()
        return sorted(
            found,
            key=lambda one: (
                one.savepoint.created_ms <= now_ms,
                one.savepoint.created_ms,
                one.savepoint.version,
                one.uri,
            ),
        )

    def _is_new(self, checkpoint: OpenCheckpoint, there: list[FoundSavepoint]) -> bool:
        """Whether a batch was committed since the newest savepoint was taken."""
        if not there:
            return True
        newest = there[-1].savepoint
        if newest.version != checkpoint.newest_version:
            return True
        # After a restore the same number may be another version.
        commits = checkpoint.io.list(f"{checkpoint.path}/commits")
        return any(
            each.name == str(newest.version - 1) and each.modified_ms > newest.created_ms
            for each in commits
        )

    def _doomed(self, there: list[FoundSavepoint | None]) -> list[FoundSavepoint]:
        """Return the savepoints to delete, oldest first; None stands for the one to be taken."""
        oldest_ms = self._now_ms - (self._retention.max_age_ms or self._now_ms)
        stays = there[-self._retention.keep :]
        return [
            one
            for one in there[:-1]
            if one is not None and (one not in stays or one.savepoint.created_ms < oldest_ms)
        ]

    def _left_over(self, checkpoint: OpenCheckpoint, whole: list[FoundSavepoint]) -> list[str]:
        """Return the directories that killed attempts have begun, or begun to delete.

        Savepoints that were found whole are none, and large: their files are not listed.
        """
        idle_ms = self._now_ms - _IDLE_MS
        found = []
        uris = (f"{self._uri}/{name}" for name in self._names(checkpoint))
        for uri in sorted({*uris}.difference(one.uri for one in whole)):
            io, path = self._open(checkpoint, uri)
            operation = unfinished_operation(io, path)
            files = [] if operation == DELETE else io.list_tree(path)
            if operation == DELETE:
                is_left = True
            elif any(not is_temporary(file.name) for file in files):
                is_idle = max(file.modified_ms for file in files) < idle_ms
                is_left = operation == "savepoint" and is_idle
            else:  # killed before its first file, or after the last one was deleted
                is_left = uri < f"{self._uri}/{_name_at(idle_ms)}"
            if is_left:
                found.append(uri)
        return found

    def _delete(self, checkpoint: OpenCheckpoint, uris: list[str]) -> None:
        for uri in uris:
            try:
                delete_directory(*self._open(checkpoint, uri))
            except StateStoreError as error:
                # Another run may delete it, too.
                if error.kind not in ("file-not-found", "directory-gone"):
                    raise

    def _check_whole(self, uri: str) -> None:
        """Check the savepoint for which others go.

        Raises:
            CorruptionError: It is damaged.
        """
        with open_checkpoint(self._at(uri)) as savepoint:
            findings = verify(savepoint).findings
        if findings:
            raise CorruptionError(
                "the newest savepoint is damaged, so no other one is deleted",
                directory=uri,
                file=findings[0].file,
                expected="a file as the savepoint names it",
                found=findings[0].problem,
                to_fix="delete this directory, or wait for a newer savepoint",
            )


def _may_be_there(checkpoint: OpenCheckpoint, uri: str) -> bool:
    """Return whether a checkpoint is at a URI, also where that cannot be found out."""
    try:
        io, path = checkpoint.place.beside(uri).open(checkpoint.scratch_directory)
        return bool(QueryLog(io, path, "offsets").batches())
    except NotFoundError:
        return False
    except StateStoreError:
        return True


def _name_at(time_ms: float) -> str:
    """Return how the names of savepoints of a time begin; later ones sort behind it."""
    return f"savepoint-{datetime.fromtimestamp(time_ms // 1000, UTC):%Y%m%dT%H%M%SZ}"
