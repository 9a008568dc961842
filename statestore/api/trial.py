"""Try new code on real state: a branch, the same input, a comparison; then promote or drop it."""

from __future__ import annotations

import hashlib
import html
import json
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from statestore.api.checkpoint import Checkpoint, Directory, Savepoint
from statestore.api.reaching import Reach
from statestore.checkpoint.layout import is_temporary
from statestore.core.errors import InvalidArgumentError, NotFoundError, StorageError
from statestore.io.storage import is_same_directory
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.in_use import require_directory_not_in_use
from statestore.operations.new_directory import check_apart, check_beside
from statestore.operations.result import no_progress
from statestore.operations.trial.branching import check_triable, first_version_of
from statestore.operations.trial.record import (
    AGAINST,
    CHECKPOINT,
    HISTORY,
    RECORD_NAME,
    Compared,
    Record,
    State,
    read_record,
    write_record,
)
from statestore.operations.trial.replacing import (
    check_replaceable,
    put_back,
    replace_by_branch,
)
from statestore.operations.trial.results import Drop, Promote, TrialReport
from statestore.operations.trial.rule import Judge, Rule, compare_rows, compare_state
from statestore.spark import trying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from statestore.api.checkpoint import DirectoryLike
    from statestore.io.file_io import TreeFileIO
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.result import Progress

    Job: TypeAlias = "str | os.PathLike[str] | Callable[[], object]"

BATCHES = 5
_NEW, _OLD, _TRANSFORMED = "new", "old", "transformed"
_DIRECTORIES = {CHECKPOINT, AGAINST, _NEW, _OLD, _TRANSFORMED}


def upgrade(
    checkpoint: DirectoryLike,
    job: Job,
    *,
    arguments: Sequence[str] = (),
    trial: DirectoryLike | None = None,
    batches: int = BATCHES,
    against: Job | None = None,
    rows: Mapping[Any, Any] = MappingProxyType({}),
    ignore: Sequence[str] = (),
    same: Judge | None = None,
    submit: Sequence[str] = (),
    storage_options: Mapping[str, object] | None = None,
) -> Trial:
    """Try new code on a branch of a checkpoint: it repeats batches of the old, and is compared.

    The old query may run meanwhile. The new code reads what the old one read in the same batches,
    by the same offsets; its sink is not written, and its rows are kept in the trial instead. The
    call may be repeated: it goes on with the batches that there are since, and compares anew; with
    a job that has changed it begins anew.

    Args:
        checkpoint: Checkpoint of the old query.
        job: The new code: a script of Python, which is run in a process of its own, or a function
            that starts the query in this program. It starts a query whose `checkpointLocation` is
            the checkpoint, as it does in production; that query, and nothing after its start, is
            run on the branch.
        arguments: What the script is given.
        trial: Directory of the trial; beside the checkpoint, with `-trial` at the end of its name,
            when None.
        batches: At most so many batches are repeated, the newest; fewer where older versions or
            entries of the logs are gone, or an operation made a batch between.
        against: The old code, as `job`: it repeats the batches too, on a branch of its own, and its
            rows are compared. Without it those are that the file sink of the job has, and where it
            has another sink state alone is compared.
        rows: What makes rows of state for the new code, as `Directory.transform` takes it, where
            the schema of the state changes.
        ignore: Columns that do not count: of the sink, or fields of values of state.
        same: Has the last word on rows that differ: a function of what was compared, in words, and
            two tables, the rows that only the old has and that only the new has.
        submit: What runs a script, in place of this Python: `["spark-submit", "--master", …]`.
        storage_options: As of `Checkpoint`.

    Returns:
        The trial, compared: `is_same`, `report()`, `promote()`, `drop()`.

    Guarantee: the checkpoint and the sink of the old are as they were. After a raise or a kill the
    same call goes on.

    Raises:
        InvalidArgumentError: The job failed, or starts no query of the checkpoint (kind
            trial-failed); no batch can be repeated; a promote was begun (kind
            unfinished-operation); something else is in the directory of the trial, or a trial of
            another checkpoint (kind checkpoint-exists); or a column to be ignored is nowhere.
        IncompatibleError: The state is in a driver's memory, elsewhere than in the checkpoint, or
            of another provider.
        NotFoundError, CorruptionError, FencedError, StorageError: As `Directory`.
    """
    if batches < 1:
        raise InvalidArgumentError(
            "at least one batch is repeated", batches=batches, to_fix="give a number from 1"
        )
    reach = (
        checkpoint._reach
        if isinstance(checkpoint, Directory)
        else Reach(checkpoint, storage_options, None)
    )
    ck = Checkpoint._at(reach)
    it = Trial._at(ck._beside(_named(ck.uri, "-trial") if trial is None else trial))
    sides = {_NEW: _Side(CHECKPOINT, job, tuple(arguments))}
    if against is not None:
        sides[_OLD] = _Side(AGAINST, against, tuple(arguments))
    asked = {
        "job": _name(job),
        "of": [side.mark() for side in sides.values()],
        "rows": {str(name): repr(how) for name, how in rows.items()},
        "batches": batches,
    }
    record = it._begin(ck, asked, sides, rows, batches)
    options = {str(key): str(value) for key, value in (storage_options or {}).items()}
    record = it._run(ck, record, sides, tuple(submit), options)
    it._compare(ck, record, Rule(frozenset(ignore), same))
    return it


@dataclass(frozen=True)
class _Side:
    """A code that is run: the new, or the old once more.

    Attributes:
        branch: Name of the directory of its branch in the trial.
        job: The code.
        arguments: What a script is given.
    """

    branch: str
    job: Job
    arguments: tuple[str, ...]

    def mark(self) -> list[str]:
        """Return what a call that asks for the same has, too; of a function that is nothing."""
        if callable(self.job):
            return ["", os.urandom(8).hex()]
        path = Path(self.job)
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise InvalidArgumentError(
                "the job cannot be read",
                job=str(path),
                reason=error.strerror or str(error),
                to_fix="name a script of Python",
            ) from error
        return [str(path.resolve()), digest, *self.arguments]


def _named(checkpoint: str, end: str) -> str:
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


def _name(job: Job) -> str:
    return getattr(job, "__qualname__", repr(job)) if callable(job) else os.fspath(job)


class Trial:
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
        return str(self.result)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

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
    def checkpoint(self) -> Checkpoint:
        """The branch."""
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
        """Have the branch take the place of its checkpoint; the old stays as a savepoint.

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
            InUseError: A query or another operation is at the checkpoint.
            InvalidArgumentError: It was not compared, or differs and that is not accepted (kind
                trial-failed); the query has run since; or its newest batch is planned and not
                committed (kind unfinished-batch).
        """
        with self._open() as (io, path):
            record = self._record(io, path)
            is_begun = record.state in (State.PROMOTING, State.PROMOTED)
            if is_begun:
                to = self._reach.beside(record.savepoint)
            else:
                self._check_approved(record, accept=accept)
                to = self._beside(
                    savepoint or _named(record.checkpoint, f"-before-{record.version}")
                )
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
        return Promote(**{**decided.fields(), "done": True})

    def drop(self, *, dry_run: bool = False) -> Drop:
        """Delete the trial. Where a promote was begun and not finished, put the old back first.

        A promote that was finished is not taken back: the savepoint of the old is the user's.

        Guarantee: on return the trial is gone, and the checkpoint as it was, or as it was promoted.
        After a raise or a kill the same call goes on.

        Raises:
            InUseError: A query or another operation is at a checkpoint whose old is put back; or
                the trial runs, or is being promoted.
        """
        with self._open() as (io, path):
            record = self._record(io, path)
            puts_back = record.state is State.PROMOTING
            decided = Drop(
                trial=self.uri, checkpoint=record.checkpoint, puts_back=puts_back, done=False
            )
            if dry_run:
                return decided
            if puts_back:
                self._put_back(io, path, record)
            self._require_not_in_use(io, path)
            write_record(io, path, record, state=State.DROPPING)
            self._clear(io, path)
            io.delete(f"{path}/{RECORD_NAME}")
            if not (io.list(path) or io.list_directories(path)):
                with suppress(StorageError):  # behind a link the empty directory stays
                    io.delete_tree(path)
        return Drop(**{**decided.fields(), "done": True})

    def _put_back(self, io: TreeFileIO, path: str, record: Record) -> None:
        from statestore.checkpoint.query_log import read_bytes

        try:
            history = read_bytes(io, f"{path}/{HISTORY}")
        except NotFoundError:
            return  # it was killed before it changed anything
        place = self._reach.beside(record.checkpoint).place
        put_back(record, place, self._reach.beside(record.savepoint).place, history)

    def _check_approved(self, record: Record, *, accept: bool) -> None:
        fields = {"trial": self.uri, "state": record.state.name.lower()}
        if record.state is not State.COMPARED:
            raise InvalidArgumentError(
                "the trial is not at the point to be promoted",
                **fields,
                to_fix="try the code again: nothing was compared yet",
            )
        if not record.is_same and not accept:
            raise InvalidArgumentError(
                "the new code differs from the old",
                kind="trial-failed",
                **fields,
                differs=", ".join(one.of for one in record.compared if not one.is_same),
                to_fix="look at the rows that differ, in `statestore try` or its page; mend the "
                "job, ignore columns, or accept what differs: accept=True, --accept",
            )

    def _beside(self, directory: DirectoryLike) -> Reach:
        return (
            directory._reach if isinstance(directory, Directory) else self._reach.beside(directory)
        )

    def _below(self, name: str) -> Reach:
        return self._reach.beside(f"{self.uri}/{name}")

    @contextmanager
    def _open(self) -> Iterator[tuple[TreeFileIO, str]]:
        with self._reach.using(), self._reach.opened() as place, TemporaryDirectory() as fetched:
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

    def _require_not_in_use(self, io: TreeFileIO, path: str) -> None:
        """Check that no query of the trial runs, and no promote of it is under way.

        Raises:
            InUseError: One is.
        """
        for branch in {CHECKPOINT, AGAINST} & set(io.list_directories(path)):
            require_directory_not_in_use(io, f"{path}/{branch}", self._reach.place.clock)

    def _clear(self, io: TreeFileIO, path: str) -> None:
        """Delete what the trial made but its record, and nothing else that is there."""
        for name in set(io.list_directories(path)) & _DIRECTORIES:
            io.delete_tree(f"{path}/{name}")
        for info in io.list(path):
            if info.name == HISTORY or is_temporary(info.name):
                io.delete(f"{path}/{info.name}")

    def _begin(
        self,
        ck: Checkpoint,
        asked: dict[str, Any],
        sides: Mapping[str, _Side],
        rows: Mapping[Any, Any],
        batches: int,
    ) -> Record:
        """Go on with the trial where it is of the same code, or begin it, up to BRANCHED."""
        with self._open() as (io, path), ck._reach.checkpoint() as old:
            check_triable(old)
            found = read_record(io, path)
            if found is not None and not is_same_directory(found.checkpoint, old.uri):
                raise InvalidArgumentError(
                    "the trial is one of another checkpoint",
                    kind="checkpoint-exists",
                    directory=self.uri,
                    checkpoint=old.uri,
                    trial_of=found.checkpoint,
                    to_fix="name another directory for it, or drop that trial first",
                )
            if found is not None and self._goes_on(found, old, asked):
                return found
            if found is None:
                check_beside(io, path, self.uri, ck.uri)
                self._require_empty(io, path)
            first = first_version_of(old, batches)
            record = Record(ck.uri, old.query_id or "", asked)
            io.make_directory(path)
            self._require_not_in_use(io, path)
            write_record(io, path, record)
            self._clear(io, path)
            for side in sides.values():
                to = self._below(side.branch)
                if rows and side.branch == CHECKPOINT:
                    made = ck.transform(
                        Savepoint._at(self._below(_TRANSFORMED)),
                        rows,
                        version=first,
                        change_schema=True,
                    ).made
                    made.restore(Checkpoint._at(to), claim=True)
                else:
                    ck.branch(Checkpoint._at(to), version=first)
            return write_record(
                io, path, record, state=State.BRANCHED, first_version=first, version=first
            )

    def _goes_on(self, found: Record, old: OpenCheckpoint, asked: dict[str, Any]) -> bool:
        """Return whether a trial of the same code can go on with the batches there are since."""
        if not State.BRANCHED <= found.state <= State.PROMOTING or asked != found.asked:
            return False
        needed = range(found.version, old.newest_version)
        own = first_version_of(old, len(needed)) if needed else found.version
        return own <= found.version <= old.newest_version

    def _require_empty(self, io: TreeFileIO, path: str) -> None:
        if io.list(path) or io.list_directories(path):
            raise InvalidArgumentError(
                "there is something else where the trial is to be",
                kind="checkpoint-exists",
                directory=self.uri,
                to_fix="name another directory for it",
            )

    def _run(
        self,
        ck: Checkpoint,
        record: Record,
        sides: Mapping[str, _Side],
        submit: tuple[str, ...],
        options: dict[str, str],
    ) -> Record:
        """Have each code repeat the batches, up to RUN."""
        with ck._reach.checkpoint() as old:
            version = old.newest_version
        for name, side in sides.items():
            looks_for_old = name == _NEW and _OLD not in sides
            repeat = trying.Repeat(
                checkpoint=ck.uri,
                branch=f"{self.uri}/{side.branch}",
                version=version,
                rows=f"{self.uri}/{name}",
                old_rows=f"{self.uri}/{_OLD}" if looks_for_old else None,
                first_version=record.first_version,
                options=options,
            )
            try:
                _run_side(repeat, side, submit)
            except InvalidArgumentError as error:
                with self._open() as (io, path):
                    write_record(io, path, record, error=f"{error.problem}: {error.fields}")
                raise
        with self._open() as (io, path):
            return write_record(io, path, record, state=State.RUN, version=version, error="")

    def _compare(self, ck: Checkpoint, record: Record, rule: Rule) -> Record:
        """Compare rows and state, up to COMPARED."""
        found: list[Compared] = []
        with self._open() as (io, path), ck._reach.checkpoint() as old:
            for batch in range(record.first_version, record.version):
                old_rows, new_rows = (
                    [
                        io.fetch(f"{path}/{side}/{batch}/{info.name}")
                        for info in io.list(f"{path}/{side}/{batch}")
                        if info.name.endswith(".parquet")
                    ]
                    for side in (_OLD, _NEW)
                )
                of = f"batch {batch}"
                if not old_rows:
                    why = "the old rows are not known"
                    found.append(Compared(of, is_same=True, why=why))
                else:
                    found.append(compare_rows(of, old_rows, new_rows, rule))
            with open_checkpoint(self._below(CHECKPOINT).place) as branch:
                found += compare_state(old, record.version, branch, rule)
            rule.check_ignored()
            return write_record(
                io,
                path,
                record,
                state=State.COMPARED,
                compared=tuple(found),
                ignored=tuple(sorted(rule.ignored)),
            )


def _run_side(repeat: trying.Repeat, side: _Side, submit: tuple[str, ...]) -> None:
    if callable(side.job):
        trying.run_job(repeat, side.job)
        return
    with TemporaryDirectory() as work:
        request, reply = Path(work, "request.json"), Path(work, "reply.json")
        request.write_text(trying.request_of(repeat))
        command = [*(submit or (sys.executable,)), trying.__file__, str(request), str(reply)]
        done = subprocess.run([*command, os.fspath(side.job), *side.arguments], check=False)
        answer = json.loads(reply.read_text()) if reply.exists() else None
    if answer is None or (done.returncode and not answer):
        raise InvalidArgumentError(
            "the process of the job ended before its time",
            kind="trial-failed",
            job=os.fspath(side.job),
            exit_status=done.returncode,
            to_fix="see what it printed; the checkpoint is as it was, and the same call goes on",
        )
    if answer:
        raise InvalidArgumentError(answer.pop("problem"), job=os.fspath(side.job), **answer)
