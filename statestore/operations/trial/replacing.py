"""Promote: the branch of a trial takes the place of its checkpoint; or the old is put back.

A checkpoint is replaced in place, since the job names it. `metadata` says what is under way from
the first change to the last: no query starts between, nor does any other operation.

1. a savepoint of the old
2. the record says PROMOTING, and where the savepoint is
3. `metadata` of the checkpoint, under its lease: before that it is the old, untouched
4. its files, and directories of Spark's, are deleted, and a copy of the branch made, its state
   files shared where they can; other directories stay
5. `metadata` again, with the ID of the old query: it is the new
6. the record says PROMOTED

Killed at any moment, the same call goes on: before 3 the query runs as it was, after 5 as it was
tried. Between, the old is whole in the savepoint and the new in the branch.
"""

from __future__ import annotations

import posixpath
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from statestore.checkpoint.history import entries_of, read_history
from statestore.checkpoint.layout import history_path, is_temporary
from statestore.checkpoint.query_log import QueryLog
from statestore.checkpoint.text_files import read_bytes, try_read_bytes, write_bytes
from statestore.core.errors import InUseError, InvalidArgumentError, NotFoundError
from statestore.io.guarded import GuardedFileIO
from statestore.io.local import temporary_directory
from statestore.io.storage import is_same_directory
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.committed_version import find_version
from statestore.operations.copying import same_shape
from statestore.operations.in_use import (
    exclusive_directory,
    exclusive_use,
    require_no_pins,
    require_not_in_use,
)
from statestore.operations.metadata_file import (
    TRIAL,
    mark_unfinished,
    new_query_id,
    query_metadata,
    try_read_metadata,
)
from statestore.operations.passes import Linked
from statestore.operations.result import no_progress
from statestore.operations.savepoint.savepoint import open_savepoint, take_savepoint
from statestore.operations.trial.alone import require_unchanged
from statestore.operations.trial.branching import require_same_input
from statestore.operations.trial.record import HISTORY, State, pins_of_trial, write_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.codec.references import StoreName
    from statestore.io.file_io import TreeFileIO
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.copying import MadeFiles
    from statestore.operations.in_use import ExclusiveUse
    from statestore.operations.result import Progress
    from statestore.operations.trial.record import Record

PROMOTE = "promote"
_PUT_BACK = "drop"
_OF_SPARK = ("commits", "offsets", "sources", "state")
_ATTEMPT = "trial_attempt"
"""Field of `metadata` with the attempt of the trial whose promote was begun."""


def replace_by_branch(
    record: Record,
    place: Place,
    branch: Place,
    trial: tuple[TreeFileIO, str],
    savepoint: Place,
    progress: Progress = no_progress,
) -> None:
    """Have a branch take the place of its checkpoint.

    Args:
        record: The trial's.
        place: The checkpoint.
        branch: The branch.
        trial: Storage of the trial, and its directory there.
        savepoint: Where the old goes.
        progress: Called with bytes of state done and the total.

    Guarantee: on return the checkpoint is the branch under the old query's ID, with its history,
    the savepoint is whole, and the record says PROMOTED. After a raise or a kill it is the old, or
    the new, or no query starts until the call is repeated; the old and the new are whole all the
    time.

    Raises:
        InUseError: A query or another operation is at the checkpoint, or somebody reads it; or
            another call has changed the record.
        InvalidArgumentError: The query has run since, or an operation has changed the branch; or
            something else is where the savepoint goes; or as `require_same_input`.
        NotFoundError: The promote of another trial was begun and not finished (kind
            unfinished-operation); or what is there cannot be read.
        CorruptionError, StorageError: What is there cannot be read, or a storage failed.
    """
    io, directory = trial
    history = f"{directory}/{HISTORY}"
    with ExitStack() as stack:
        there, path = place.open(stack.enter_context(temporary_directory()))
        source = stack.enter_context(open_checkpoint(branch))
        of_branch = stack.enter_context(exclusive_use(source, PROMOTE))
        require_unchanged(io, directory, record)
        says = {TRIAL: posixpath.dirname(branch.uri), _ATTEMPT: record.attempt}
        if record.state is State.PROMOTING and _is_begun(record, there, path):
            lease = exclusive_directory(there, path, PROMOTE, clock=place.clock)
            use = stack.enter_context(lease)
            if not _is_begun(record, there, path):  # somebody was quicker
                raise InUseError(
                    "a drop of the trial has put the old back meanwhile",
                    checkpoint=place.uri,
                    to_fix="drop the trial again, to end that; or try the code again",
                )
            mark_unfinished(GuardedFileIO(there, use.require_held), path, PROMOTE, **says)
        elif _is_replaced(
            branch, try_read_bytes(io, history), try_read_bytes(there, history_path(path))
        ):
            write_record(io, directory, record, state=State.PROMOTED)
            return
        else:
            check_replaceable(record, place, branch, savepoint)
            _keep(place, savepoint, record, progress=progress)
            old = stack.enter_context(open_checkpoint(place))
            old.decide_from_here()
            use = stack.enter_context(exclusive_use(old, PROMOTE))
            _require_unread(old, branch)
            with open_checkpoint(branch) as now:  # somebody may have begun the trial anew
                require_same_input(old, now, record.version)
            of_branch.require_held()
            require_unchanged(io, directory, record)
            record = write_record(
                io, directory, record, state=State.PROMOTING, savepoint=savepoint.uri
            )
            before = try_read_bytes(there, history_path(path)) or b""
            write_bytes(io, history, before, overwrite=True)
            mark_unfinished(GuardedFileIO(there, use.require_held), path, PROMOTE, **says)
        _fill(record, place, branch, read_bytes(io, history), PROMOTE, use, says, progress)
        write_record(io, directory, record, state=State.PROMOTED)


def check_replaceable(record: Record, place: Place, branch: Place, savepoint: Place) -> None:
    """Check that a branch may take the place of its checkpoint; nothing is written.

    Raises:
        As `replace_by_branch`.
    """
    with open_checkpoint(branch) as source, open_checkpoint(place) as old:
        require_same_input(old, source, record.version)
        _require_as_compared(record, source)
        require_not_in_use(old)
        _require_unread(old, branch)
    _keep(place, savepoint, record, dry_run=True)


def _require_as_compared(record: Record, branch: OpenCheckpoint) -> None:
    """Check that no operation has changed a branch since it was compared, such as a promote.

    Raises:
        InvalidArgumentError: One has.
        StorageError: The storage failed.
    """
    num_operations = len(read_history(branch.io, branch.path))
    if record.num_operations not in (-1, num_operations):
        raise InvalidArgumentError(
            "an operation has changed the branch of the trial since it was compared",
            branch=branch.uri,
            num_operations=num_operations,
            compared=record.num_operations,
            to_fix="try the code again, which compares the branch as it is; then promote",
        )


def is_between(record: Record, place: Place) -> bool:
    """Return whether the promote of a trial was begun and not finished, nor taken back.

    Raises:
        StorageError: The storage failed.
    """
    with temporary_directory() as fetched:
        return _is_begun(record, *place.open(fetched))


def _is_begun(record: Record, io: TreeFileIO, path: str) -> bool:
    """Return whether a checkpoint is neither the old nor the new of this trial, nor another's."""
    _, fields = try_read_metadata(io, path)
    return fields is not None and fields.get(_ATTEMPT) == record.attempt


def put_back(record: Record, trial: str, place: Place, savepoint: Place, history: bytes) -> bool:
    """Put the old back where the promote of a trial was begun and not finished.

    Args:
        record: The trial's.
        trial: Its URI.
        place: The checkpoint.
        savepoint: The old.
        history: History of the old.

    Returns:
        Whether it was begun and not finished; else nothing is done.

    Guarantee and errors as `replace_by_branch`, the other way round.
    """
    with ExitStack() as stack:
        there, path = place.open(stack.enter_context(temporary_directory()))
        if not _is_begun(record, there, path):
            return False
        find_version(stack.enter_context(open_checkpoint(savepoint)))
        lease = exclusive_directory(there, path, _PUT_BACK, clock=place.clock)
        use = stack.enter_context(lease)
        if not _is_begun(record, there, path):  # a promote has ended meanwhile
            return False
        says = {TRIAL: trial, _ATTEMPT: record.attempt}
        mark_unfinished(GuardedFileIO(there, use.require_held), path, _PUT_BACK, **says)
        _fill(record, place, savepoint, history, _PUT_BACK, use, says, no_progress)
    return True


def _keep(
    place: Place,
    savepoint: Place,
    record: Record,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> None:
    """Take the savepoint of the old, unless a call that was killed has."""
    with (
        suppress(NotFoundError),
        open_savepoint(savepoint) as (info, kept),
        open_checkpoint(place) as old,
    ):
        is_of_query = (info.query_id, info.version) == (record.query_id, record.version)
        if is_of_query and _lineages(kept, info.version) == _lineages(old, info.version):
            return
        raise InvalidArgumentError(
            "another savepoint is where that of the old is to go",
            kind="checkpoint-exists",
            directory=savepoint.uri,
            to_fix="name another directory for it",
        )
    take_savepoint(
        place,
        savepoint,
        savepoint,
        version=record.version,
        form="native",
        # The query is stopped; and pins of a call that was killed would keep the next one away.
        pins=False,
        dry_run=dry_run,
        progress=progress,
    )


def _require_unread(old: OpenCheckpoint, branch: Place) -> None:
    """Check that nobody reads what is to be replaced; errors as `require_no_pins`.

    A try of this trial does not: the pins of one that was killed are passed over.
    """
    files = old.state_io.list_tree(old.state_root)
    require_no_pins(old, files, but=pins_of_trial(posixpath.dirname(branch.uri)))


def _lineages(checkpoint: OpenCheckpoint, version: int) -> dict[StoreName, str]:
    heads = checkpoint.heads(version)
    return {store: file.trailer.lineage for store, file in heads.items()}


def _fill(
    record: Record,
    place: Place,
    of: Place,
    history: bytes,
    operation: str,
    use: ExclusiveUse,
    says: Mapping[str, str],
    progress: Progress,
) -> None:
    """Make a checkpoint anew that says it is begun, of a branch or a savepoint."""
    with open_checkpoint(of) as source, ExitStack() as stack:
        version = find_version(source)
        own = tuple(
            path
            for path in version.spark_files
            if "/" not in path or path.partition("/")[0] in _OF_SPARK
        )
        version = replace(version, spark_files=own)
        metadata = query_metadata(record.query_id or new_query_id(place.ids))
        there, path = place.open(stack.enter_context(temporary_directory()))

        def becomes(_: MadeFiles) -> str:
            newest = QueryLog(there, path, "offsets").newest()
            if newest != version.batch:
                raise InUseError(
                    "a query has planned a batch in the checkpoint while it was replaced",
                    checkpoint=place.uri,
                    batch=newest,
                    to_fix="stop the query, and repeat the call",
                )
            return metadata

        passing = Linked.between(version, place)
        copy = same_shape(operation, version, place, passing, becomes, query_id=record.query_id)
        files = {history_path("")[1:]: history}
        # Such as what repairs have taken out of the logs, or the checkpoint of another query.
        keeps = tuple(
            name
            for name in there.list_directories(path)
            if name not in _OF_SPARK and not is_temporary(name)
        )
        replace(copy, files=files, ask=use.require_held, says=says, keeps=keeps).run(progress)


def _is_replaced(branch: Place, before: bytes | None, now: bytes | None) -> bool:
    """Return whether a promote was done, of whose end its caller did not know.

    Args:
        branch: The branch that it was of.
        before: History of the checkpoint when it was begun; None where it was not.
        now: History of the checkpoint.
    """
    if before is None or now is None or not now.startswith(before):
        return False
    return any(
        entry.operation == PROMOTE and is_same_directory(str(entry.options.get("of")), branch.uri)
        for entry in entries_of(now[len(before) :])[:1]
    )
