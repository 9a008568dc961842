"""Trial: new code on a branch of a checkpoint, as `try_job` made it; it is promoted or dropped."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from statestore.api.checkpoint import Checkpoint
from statestore.api.reaching import Reach
from statestore.checkpoint.layout import is_temporary
from statestore.checkpoint.text_files import read_bytes
from statestore.core.errors import (
    InvalidArgumentError,
    NotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.core.text import Shown
from statestore.io.local import temporary_directory
from statestore.io.storage import is_same_directory
from statestore.operations.in_use import require_directory_not_in_use
from statestore.operations.new_directory import check_apart
from statestore.operations.result import no_progress
from statestore.operations.trial.alone import alone_with
from statestore.operations.trial.record import (
    AGAINST,
    CHECKPOINT,
    HISTORY,
    NEW,
    OLD,
    RECORD_NAME,
    TRANSFORMED,
    Record,
    State,
    read_record,
    write_record,
)
from statestore.operations.trial.replacing import (
    check_replaceable,
    is_between,
    put_back,
    replace_by_branch,
)
from statestore.operations.trial.results import Drop, Promote, TrialReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from statestore.api.checkpoint import DirectoryLike
    from statestore.io.file_io import TreeFileIO
    from statestore.operations.result import Progress

_DROP = "drop"
_DIRECTORIES = {CHECKPOINT, AGAINST, NEW, OLD, TRANSFORMED}


def uri_beside(checkpoint: str, end: str) -> str:
    """Return the URI of a directory beside a checkpoint.

    Raises:
        InvalidArgumentError: It is a whole bucket, and another name is somebody else's.
    """
    if not urlsplit(checkpoint).path.strip("/"):
        raise InvalidArgumentError(
            "there is no place beside the checkpoint, which is all of its storage",
            checkpoint=checkpoint,
            to_fix="name a directory for the trial, and one for the savepoint of the old",
        )
    return f"{checkpoint.rstrip('/')}{end}"


class Trial(Shown):
    """New code on a branch of a checkpoint, in a directory of its own.

    Nothing is open between two calls.

    Args:
        directory: Where it is: a path, or a URI.
        storage_options: As of `Checkpoint`.

    Errors of every method:

        NotFoundError: There is no trial.
        CorruptionError, StorageError: Its record cannot be read, or a storage failed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        self._reach = Reach(directory, storage_options, None)

    @classmethod
    def _at(cls, reach: Reach) -> Trial:
        made = cls.__new__(cls)
        made._reach = reach
        return made

    @property
    def uri(self) -> str:
        """Where it is: an absolute path, or a URI."""
        return self._reach.place.uri.rstrip("/")

    def __repr__(self) -> str:
        return f"Trial({self.uri!r})"

    def __str__(self) -> str:
        try:
            return str(self.result)
        except StateStoreError as error:
            return f"{self!r}: {error}"

    @property
    def result(self) -> TrialReport:
        """How far it is, and what differs."""
        with self._open() as (io, path):
            return TrialReport.of(self.uri, self._record(io, path))

    @property
    def is_same(self) -> bool:
        """Whether everything that was compared counts as equal."""
        return self.result.is_same

    @property
    def branch(self) -> Checkpoint:
        """The branch: the state that the new code has made."""
        return Checkpoint._at(self._below(CHECKPOINT))

    def report(self, to: str | os.PathLike[str]) -> None:
        """Write what was found to a page: one HTML file that needs no network.

        Raises:
            InvalidArgumentError: The page cannot be written.
            IncompatibleError: The package that fills pages in is not installed.
        """
        from statestore.report.trial import write_trial

        write_trial(self.result, to)

    def promote(
        self,
        savepoint: DirectoryLike | None = None,
        *,
        accept: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Promote:
        """Put the branch in the place of its checkpoint; the old stays as a savepoint.

        The query must be stopped, and the trial must have reached its newest version: else it is
        tried once more first. The query goes on with the next batch, under its ID, from where the
        old had read to: its sink gets no row twice, and misses none.

        Args:
            savepoint: Where the old goes; beside the checkpoint, with its version in the name, when
                None.
            accept: Whether differences are approved.
            dry_run: Whether to return what it would do, and change nothing.
            progress: Called with bytes of state done and the total.

        Guarantee: on return the checkpoint is the branch, and the savepoint whole; both are
        durable. After a raise or a kill it is the old or the new, or no query starts until the call
        is repeated, or `drop` puts the old back: both are whole all the time.

        Raises:
            InUseError: A query or another operation is at the checkpoint, or a copy of it is made.
            InvalidArgumentError: It was not compared, or differs and that is not accepted (kind
                trial-failed); the query has run since, or an operation has changed the branch; or
                its newest batch is planned and not committed (kind unfinished-batch); or a rescale
                was begun and not finished (kind unfinished-operation); or the directory is a copy
                of a trial's, whose record names the checkpoint of the original.
        """
        reach, _ = self._reach.with_new(self.uri if savepoint is None else savepoint)
        with self._open(reach) as (io, path):
            record = self._record(io, path)
            self._require_own(record)
            is_begun = record.state in (State.PROMOTING, State.PROMOTED)
            if is_begun:
                to = self._reach.beside(record.savepoint)
            else:
                self._check_approved(record, accept=accept)
                if savepoint is None:
                    savepoint = uri_beside(record.checkpoint, f"-before-{record.version}")
                to = self._reach.beside(savepoint)
                check_apart(to.place.uri, self.uri)
            place = self._reach.beside(record.checkpoint).place
            branch = self._below(CHECKPOINT).place
            decided = Promote(
                trial=self.uri,
                checkpoint=record.checkpoint,
                version=record.version,
                savepoint=to.place.uri,
                is_same=record.is_same,
                done=False,
            )
            if dry_run:
                if not is_begun:
                    check_replaceable(record, place, branch, to.place)
                return decided
            if record.state is not State.PROMOTED:
                replace_by_branch(
                    record, place, branch, (io, path), to.place, progress or no_progress
                )
            self._clear(io, path)
        return replace(decided, done=True)

    def drop(self, *, dry_run: bool = False) -> Drop:
        """Delete the trial. Where a promote was begun and not finished, put the old back first.

        A promote that was finished is not taken back: the savepoint of the old is the user's.

        Guarantee: on return the trial is gone, and the checkpoint as it was, or as it was promoted.
        Where the old was put back, it has the old's newest version, and none before. After a raise
        or a kill the same call goes on.

        Raises:
            InUseError: A query or another operation is at a checkpoint whose old is put back; or
                the trial runs, or is being promoted.
            InvalidArgumentError: A promote was begun and not finished, and the record does not say
                where the old is (kind unfinished-operation); or the directory is a copy of a
                trial's.
        """
        with self._open() as (io, path):
            record = self._record(io, path)
            self._require_own(record)
            puts_back = self._puts_back(record)
            decided = Drop(
                trial=self.uri, checkpoint=record.checkpoint, puts_back=puts_back, done=False
            )
            if dry_run:
                return decided
            if puts_back:
                decided = replace(decided, puts_back=self._put_back(io, path, record))
            self._require_not_in_use(io, path)
            with alone_with(io, path, record, _DROP, self._reach.place.clock):
                write_record(io, path, record, state=State.DROPPING)
            self._clear(io, path)
            io.delete(f"{path}/{RECORD_NAME}")
            if not (io.list(path) or io.list_directories(path)):
                with suppress(StorageError):  # behind a link the empty directory stays
                    io.delete_tree(path)
        return replace(decided, done=True)

    def _puts_back(self, record: Record) -> bool:
        """Return whether the old is put back, by the record and by what the checkpoint says."""
        if record.state > State.PROMOTING:  # what is under way there is another's
            return False
        is_begun = is_between(record, self._reach.beside(record.checkpoint).place)
        if is_begun and not record.savepoint:
            raise InvalidArgumentError(
                "a promote of the trial was begun and not finished, and its record does not say "
                "where the old is",
                kind="unfinished-operation",
                trial=self.uri,
                checkpoint=record.checkpoint,
                to_fix="find the savepoint of the old, whose default name is that of the "
                "checkpoint with -before-VERSION behind it, and write its URI into the field "
                f"savepoint of {self.uri}/{RECORD_NAME}; then drop the trial",
            )
        return is_begun

    def _put_back(self, io: TreeFileIO, path: str, record: Record) -> bool:
        history = b""  # a promote that has ended meanwhile has deleted it
        with suppress(NotFoundError):
            history = read_bytes(io, f"{path}/{HISTORY}")
        place, old = (
            self._reach.beside(uri).place for uri in (record.checkpoint, record.savepoint)
        )
        return put_back(record, self.uri, place, old, history)

    def _check_approved(self, record: Record, *, accept: bool) -> None:
        fields = {"trial": self.uri, "state": record.state.name.lower()}
        if record.state is not State.COMPARED:
            raise InvalidArgumentError(
                "the trial cannot be promoted before its rows and state are compared",
                **fields,
                to_fix="try the code again, which compares them",
            )
        if not record.is_same and not accept:
            raise InvalidArgumentError(
                "the new code differs from the old",
                kind="trial-failed",
                **fields,
                differs=", ".join(one.of for one in record.compared if not one.is_same),
                to_fix="look at the rows that differ, in `statestore try` or its page; mend the "
                "job, ignore columns, or accept the differences: accept=True, --accept",
            )

    def _below(self, name: str) -> Reach:
        return self._reach.beside(f"{self.uri}/{name}")

    @contextmanager
    def _open(self, reach: Reach | None = None) -> Iterator[tuple[TreeFileIO, str]]:
        reach = reach or self._reach
        with reach.using(), reach.opened() as place, temporary_directory() as fetched:
            yield place.open(fetched)

    def _record(self, io: TreeFileIO, path: str) -> Record:
        found = read_record(io, path)
        if found is None:
            raise NotFoundError(
                "there is no trial",
                directory=self.uri,
                to_fix="name the directory of a trial, as `statestore try` makes it",
            )
        return found

    def _require_own(self, record: Record) -> None:
        """Check that a record is of this directory, and no copy: the original's checkpoint is left.

        Raises:
            InvalidArgumentError: It is a copy, or was moved.
        """
        if record.trial and not is_same_directory(record.trial, self.uri):
            raise InvalidArgumentError(
                "the trial is a copy of another, and names the checkpoint of that one",
                trial=self.uri,
                copy_of=record.trial,
                checkpoint=record.checkpoint,
                to_fix="delete this directory, and try the code again; if trial and checkpoint "
                "were moved, and the others are no more, write their new URIs into the fields "
                f"trial and checkpoint of {self.uri}/{RECORD_NAME}",
            )

    def _require_not_in_use(self, io: TreeFileIO, path: str) -> None:
        """Check that no query of the trial runs, and no promote of it is under way.

        Raises:
            InUseError: One is.
        """
        for branch in {CHECKPOINT, AGAINST} & set(io.list_directories(path)):
            require_directory_not_in_use(io, f"{path}/{branch}", self._reach.place.clock)

    def _clear(self, io: TreeFileIO, path: str) -> None:
        """Delete what the trial made but its record, and nothing else that is there.

        The branch goes last: until then another call sees that this one is at it.
        """
        self._clear_history(io, path)
        for info in io.list(path):
            if is_temporary(info.name):
                io.delete(f"{path}/{info.name}")
        made = set(io.list_directories(path)) & _DIRECTORIES
        for name in sorted(made, key=lambda name: (name == CHECKPOINT, name)):
            io.delete_tree(f"{path}/{name}")

    def _clear_history(self, io: TreeFileIO, path: str) -> None:
        if any(info.name == HISTORY for info in io.list(path)):
            io.delete(f"{path}/{HISTORY}")
