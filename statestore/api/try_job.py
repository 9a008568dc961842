"""try_job: tries new code on real state: a branch, the same input, a comparison."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from statestore.api.checkpoint import Checkpoint, Directory, Savepoint
from statestore.api.reaching import Reach
from statestore.api.trial import Trial, uri_beside
from statestore.checkpoint.history import read_history
from statestore.checkpoint.layout import is_temporary
from statestore.checkpoint.pins import pin_id_for
from statestore.core.defaults import BATCHES_REPEATED
from statestore.core.errors import InUseError, InvalidArgumentError, require_several
from statestore.io.local import temporary_directory
from statestore.io.storage import is_same_directory, place_uri
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.committed_version import find_version
from statestore.operations.new_directory import check_beside
from statestore.operations.trial.alone import alone_with
from statestore.operations.trial.branching import check_triable, first_version_of, input_of
from statestore.operations.trial.record import (
    AGAINST,
    CHECKPOINT,
    NEW,
    OLD,
    TRANSFORMED,
    Compared,
    Record,
    State,
    read_record,
    write_record,
)
from statestore.operations.trial.rule import Judge, Rule, compare_rows, compare_state
from statestore.spark import job_on_branch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from statestore.api.checkpoint import DirectoryLike
    from statestore.io.file_io import TreeFileIO
    from statestore.operations.checkpoint import OpenCheckpoint

    Job: TypeAlias = "str | os.PathLike[str] | Callable[[], object]"

_log = logging.getLogger(__name__)
_TRY = "try"
_STDERR = 2


def try_job(
    checkpoint: DirectoryLike,
    job: Job,
    *,
    arguments: Sequence[str | os.PathLike[str]] = (),
    trial: DirectoryLike | None = None,
    batches: int = BATCHES_REPEATED,
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
    call may be repeated: it goes on with the batches that there are since, and compares anew. Where
    the job, its arguments, `against` or `rows` have changed, or may have, as a function's
    code, it begins anew, and logs that.

    Args:
        checkpoint: Checkpoint of the old query.
        job: The new code: a script of Python, which is run in a process of its own, or a function
            that starts the query in this program. It starts a query whose `checkpointLocation` is
            the checkpoint, as it does in production; that query, and nothing after its start, is
            run on the branch.
        arguments: What the script is given.
        trial: Directory of the trial; beside the checkpoint, with `-trial` at the end of its name,
            when None.
        batches: At most so many batches are repeated by a trial that begins, the newest; fewer
            where older versions or entries of the logs are gone, or an operation made a batch
            between.
        against: The old code, as `job`: it repeats the batches too, on a branch of its own, and its
            rows are compared. Without it those are that the file sink of the job has, and where it
            has another sink state alone is compared.
        rows: What makes rows of state for the new code, as `Checkpoint.transform` takes it, where
            the schema of the state changes.
        ignore: Columns that do not count: of the sink, or fields of values of state.
        same: Has the last word on rows that differ: a function of what was compared, in words, and
            two tables, the rows that only the old has and that only the new has.
        submit: What runs a script, in place of this Python: `["spark-submit", "--master", …]`.
        storage_options: As of `Checkpoint`.

    Returns:
        The trial, compared: `is_same`, `result`, `report(to)`, `promote()`, `drop()`.

    Guarantee: the checkpoint and the sink of the old are as they were. After a raise or a kill the
    same call goes on.

    Raises:
        InvalidArgumentError: The job failed, or starts no query of the checkpoint (kind
            trial-failed); no batch can be repeated; something else is in the directory of the
            trial, or a trial of another checkpoint (kind checkpoint-exists), or the copy of a
            trial; or a column to be ignored is nowhere.
        IncompatibleError: The state is in checkpoint memory, elsewhere than in the checkpoint, or
            of another provider.
        InUseError: The trial is being promoted, dropped, or tried by another call.
        NotFoundError: There is no checkpoint; or a promote of it was begun and not finished (kind
            unfinished-operation).
        CorruptionError, FencedError, StorageError: As `Directory`.
    """
    for name, several in {"arguments": arguments, "ignore": ignore, "submit": submit}.items():
        require_several(name, several)
    if batches < 1:
        raise InvalidArgumentError(
            "at least one batch is repeated", batches=batches, to_fix="give a number from 1"
        )
    reach = (
        checkpoint._reach
        if isinstance(checkpoint, Directory)
        else Reach(checkpoint, storage_options, None)
    )
    beside = uri_beside(place_uri(reach.place.uri), "-trial") if trial is None else trial
    reach, there = reach.with_new_checkpoint(beside)
    ck, it = Checkpoint._at(reach), Trial._at(there)
    given = tuple(os.fspath(argument) for argument in arguments)
    sides = {NEW: _Side(CHECKPOINT, job, given)}
    if against is not None:
        sides[OLD] = _Side(AGAINST, against, given)
    asked = {
        "job": _name(job),
        "of": [side.mark() for side in sides.values()],
        # What is no text may have changed, however alike it looks: then the trial begins anew.
        "rows": {
            str(name): how if isinstance(how, str) else os.urandom(8).hex()
            for name, how in rows.items()
        },
    }
    attempt = _Attempt(it, ck, sides, asked)
    record = attempt.begin(rows, batches)
    with ck._reach.checkpoint() as old:
        version = find_version(old)
        # Its state is compared when the code has run, which takes as long as it takes.
        with version.pinned(pin_id_for(it.uri, reach.place.ids)):
            record = attempt.run(record, version.version, tuple(submit), reach.given)
            attempt.compare(record, Rule(frozenset(ignore), same))
    return it


@dataclass(frozen=True)
class _Side:
    """A code that is run: the new, or the old once more.

    Attributes:
        branch: Name of the directory of its branch in the trial.
        job: The code.
        arguments: Arguments of a script.
    """

    branch: str
    job: Job
    arguments: tuple[str, ...]

    def mark(self) -> list[str]:
        """Return a mark of the code: the same for the same script, a new one for a function."""
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
        # Arguments may be secrets, and the mark is kept.
        given = hashlib.sha256(json.dumps(self.arguments).encode()).hexdigest()
        return [str(path.resolve()), digest, given]


def _name(job: Job) -> str:
    return getattr(job, "__qualname__", repr(job)) if callable(job) else os.fspath(job)


@dataclass(frozen=True)
class _Attempt:
    """One call of `try_job`, and its trial.

    Attributes:
        trial: The trial.
        checkpoint: The checkpoint of the old query.
        sides: The codes that are run, by the directory of the trial that gets their rows.
        asked: Arguments of the call: a trial of the same goes on.
    """

    trial: Trial
    checkpoint: Checkpoint
    sides: Mapping[str, _Side]
    asked: dict[str, Any]

    def begin(self, rows: Mapping[Any, Any], batches: int) -> Record:
        """Go on with the trial where it is of the same code, or begin it, up to BRANCHED."""
        with self.trial._open() as (io, path), self.checkpoint._reach.checkpoint() as old:
            check_triable(old)
            found = read_record(io, path)
            if found is not None:
                self.trial._require_own(found)
            if found is not None and not is_same_directory(found.checkpoint, old.uri):
                raise InvalidArgumentError(
                    "the trial is one of another checkpoint",
                    kind="checkpoint-exists",
                    directory=self.trial.uri,
                    checkpoint=old.uri,
                    trial_of=found.checkpoint,
                    to_fix="name another directory for it, or drop that trial first",
                )
            self.trial._require_not_in_use(io, path)
            if found is not None and found.state > State.PROMOTING:
                self._require_cleared(io, path, found)
            elif found is not None and self._goes_on(found, old):
                if found.state is State.PROMOTING:
                    # That promote has changed nothing, or ended: nobody goes on with it, or back.
                    with self._alone(io, path, found):
                        self.trial._clear_history(io, path)
                return found
            if found is None:
                check_beside(io, path, self.trial.uri, self.checkpoint.uri)
                self._require_empty(io, path)
            first = first_version_of(old, batches)
            attempt = old.place.ids.new_id()
            record = Record(
                self.checkpoint.uri,
                old.query_id or "",
                self.asked,
                attempt=attempt,
                trial=self.trial.uri,
            )
            io.make_directory(path)
            with self._alone(io, path, found):
                write_record(io, path, record)
            self.trial._clear(io, path)
            for side in self.sides.values():
                to = self.trial._below(side.branch)
                if rows and side.branch == CHECKPOINT:
                    made = self.checkpoint.transform(
                        Savepoint._at(self.trial._below(TRANSFORMED)),
                        rows,
                        version=first,
                        change_schema=True,
                    ).made
                    # Spark stops a query in the same application that has the same ID.
                    made.restore(Checkpoint._at(to), claim=True, new_query_id=True)
                else:
                    self.checkpoint.branch(Checkpoint._at(to), version=first)
            return self._write(
                io, path, record, state=State.BRANCHED, first_version=first, version=first
            )

    def _require_cleared(self, io: TreeFileIO, path: str, found: Record) -> None:
        """Check that the promote or drop of the trial there has deleted its branches."""
        if any(io.list_tree(f"{path}/{branch}") for branch in (CHECKPOINT, AGAINST)):
            ends = "promote" if found.state is State.PROMOTED else "drop"
            raise InUseError(
                f"a {ends} of the trial that is there is deleting its branches, or was killed",
                trial=self.trial.uri,
                to_fix=f"{ends} that trial once more; then try the code",
            )

    def _goes_on(self, found: Record, old: OpenCheckpoint) -> bool:
        """Return whether a trial of the same code can go on with the batches there are since."""
        if not State.BRANCHED <= found.state <= State.PROMOTING:
            return False
        if any(found.asked.get(name) != of for name, of in self.asked.items()):
            _log.warning(
                "the trial in %s begins anew: its job, arguments or rows are others, or may be",
                self.trial.uri,
            )
            return False
        needed = range(found.version, old.newest_version)
        own = first_version_of(old, len(needed)) if needed else found.version
        if not own <= found.version <= old.newest_version:
            return False
        with open_checkpoint(self.trial._below(CHECKPOINT).place) as branch:
            mine, theirs = (input_of(each, found.version) for each in (branch, old))
        # `rows` may have given the version that the branch begins with another time.
        part = 1 if found.version == found.first_version else None
        if mine[:part] == theirs[:part]:
            return True
        _log.warning(
            "the trial in %s begins anew: the checkpoint has planned other batches since, as after "
            "a repair",
            self.trial.uri,
        )
        return False

    @contextmanager
    def _alone(self, io: TreeFileIO, path: str, known: Record | None) -> Iterator[None]:
        with alone_with(io, path, known, _TRY, self.trial._reach.place.clock):
            yield

    def _write(self, io: TreeFileIO, path: str, known: Record, **changes: Any) -> Record:
        """Change the record that this call wrote last, unless another call has changed it.

        Raises:
            InUseError: One has, or is at the branch.
        """
        with self._alone(io, path, known):
            return write_record(io, path, known, **changes)

    def _require_empty(self, io: TreeFileIO, path: str) -> None:
        files = (info.name for info in io.list(path))
        if io.list_directories(path) or not all(map(is_temporary, files)):
            raise InvalidArgumentError(
                "the directory of the trial has other files",
                kind="checkpoint-exists",
                directory=self.trial.uri,
                to_fix="name another directory for it",
            )

    def run(
        self, record: Record, version: int, submit: tuple[str, ...], options: dict[str, str]
    ) -> Record:
        """Have each code repeat the batches before a version, up to RUN."""
        with self.trial._open() as (io, path):
            # What was compared before approves no batch that is repeated now.
            record = self._write(io, path, record, state=State.BRANCHED, compared=(), error="")
        for name, side in self.sides.items():
            looks_for_old = name == NEW and OLD not in self.sides
            repeat = job_on_branch.Repeat(
                checkpoint=self.checkpoint.uri,
                branch=f"{self.trial.uri}/{side.branch}",
                version=version,
                rows=f"{self.trial.uri}/{name}",
                old_rows=f"{self.trial.uri}/{OLD}" if looks_for_old else None,
                first_version=record.first_version,
                options=options,
            )
            try:
                _run_side(repeat, side, submit)
            except InvalidArgumentError as error:
                with suppress(InUseError), self.trial._open() as (io, path):
                    self._write(io, path, record, error=f"{error.problem}: {error.fields}")
                raise
        with self.trial._open() as (io, path):
            return self._write(io, path, record, state=State.RUN, version=version, error="")

    def compare(self, record: Record, rule: Rule) -> Record:
        """Compare rows and state, up to COMPARED."""
        found: list[Compared] = []
        with self.trial._open() as (io, path), self.checkpoint._reach.checkpoint() as old:
            for batch in range(record.first_version, record.version):
                old_rows, new_rows = (
                    [
                        io.fetch(f"{path}/{side}/{batch}/{info.name}")
                        for info in io.list(f"{path}/{side}/{batch}")
                        if info.name.endswith(".parquet")
                    ]
                    for side in (OLD, NEW)
                )
                of = f"batch {batch}"
                if not old_rows:
                    why = "the old rows are not known"
                    found.append(Compared(of, is_same=True, why=why))
                else:
                    found.append(compare_rows(of, old_rows, new_rows, rule))
            with open_checkpoint(self.trial._below(CHECKPOINT).place) as branch:
                num_operations = len(read_history(branch.io, branch.path))
                found += compare_state(old, record.version, branch, rule)
            rule.check_ignored()
            return self._write(
                io,
                path,
                record,
                state=State.COMPARED,
                compared=tuple(found),
                ignored=tuple(sorted(rule.ignored)),
                num_operations=num_operations,
            )


def _run_side(repeat: job_on_branch.Repeat, side: _Side, submit: tuple[str, ...]) -> None:
    if callable(side.job):
        job_on_branch.run_job(repeat, side.job)
        return
    with temporary_directory() as work:
        request, reply = Path(work, "request.json"), Path(work, "reply.json")
        request.write_text(json.dumps(asdict(repeat)))
        command = [*(submit or (sys.executable,)), job_on_branch.__file__, str(request), str(reply)]
        done = subprocess.run(
            [*command, os.fspath(side.job), *side.arguments],
            stdout=_STDERR,  # what the job prints is no result of this process
            check=False,
        )
        answer = None
        with suppress(OSError, ValueError):  # none, or of a process that had no space for it
            answer = json.loads(reply.read_text())
    if answer is None or (done.returncode and not answer):
        raise InvalidArgumentError(
            "the process of the job ended before its time",
            kind="trial-failed",
            job=os.fspath(side.job),
            exit_status=done.returncode,
            to_fix="see what it printed; the checkpoint is as it was, and the same call goes on",
        )
    if answer:
        raise InvalidArgumentError(answer.pop("problem"), **{"job": os.fspath(side.job), **answer})
