"""The file `metadata` of a directory: the ID of its query, a savepoint, or what is under way there.

Spark keeps the query's ID in it, and refuses to start where the file has none. So a directory that
is no checkpoint of a query, or not one yet, has a `metadata` without one: the descriptor of a
savepoint, or the operation that began the directory and did not finish it.
"""

from __future__ import annotations

import json
import re
import shlex
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.text_files import write_text
from statestore.core.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.core.json_fields import MalformedError, parse_fields
from statestore.core.version import WRITER

if TYPE_CHECKING:
    from statestore.core.ids import IdSource
    from statestore.io.file_io import FileIO

METADATA_NAME = "metadata"
QUERY_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A UUID, as Spark writes it."""
TRIAL = "trial"
"""Field with the URI of the trial whose branch takes the place of a checkpoint."""
DELETE = "delete"
"""The operation that is under way in a savepoint which is being deleted."""
_KEY = "statestore"
_UNFINISHED = "unfinished"
_BRANCH_OF = "branch_of"
_SHOWN_BYTES = 64
_MAX_BYTES = 64 * 1024


def metadata_fields(**fields: object) -> str:
    """Return the text of a `metadata` file that is ours; Spark finds no query ID in it."""
    head: dict[str, object] = {"writer": WRITER}
    return json.dumps({_KEY: head | fields}, indent=2)


def unfinished_metadata(operation: str, **fields: object) -> str:
    """Return the text of the `metadata` of a directory that an operation began."""
    return metadata_fields(**{_UNFINISHED: operation}, **fields)


@dataclass(frozen=True, slots=True)
class BranchOrigin:
    """The checkpoint that a branch was made of: in its `metadata`, beside the ID that Spark reads.

    Attributes:
        checkpoint: URI of that checkpoint.
        query_id: Its query's ID; empty where it had none.
        version: The version that the branch began with.
    """

    checkpoint: str
    query_id: str
    version: int


def query_metadata(query_id: str, branch_of: BranchOrigin | None = None) -> str:
    """Return the text of Spark's `metadata`, which reads nothing but the ID."""
    fields: dict[str, object] = {"id": query_id}
    if branch_of is not None:
        fields[_BRANCH_OF] = asdict(branch_of)
    return json.dumps(fields, separators=(",", ":"))


def read_branch_origin(io: FileIO, directory: str) -> BranchOrigin | None:
    """Return what a checkpoint is a branch of; None where it is none, or does not tell.

    Raises:
        StorageError: The storage failed.
    """
    try:
        data, _ = io.read_tail(f"{directory}/{METADATA_NAME}", _MAX_BYTES)
        found = parse_fields(data)
        if not found.has(_BRANCH_OF):
            return None
        fields = found.object(_BRANCH_OF)
        return BranchOrigin(
            fields.text("checkpoint"), fields.text("query_id"), fields.integer("version", 1)
        )
    except (NotFoundError, MalformedError):
        return None


def new_query_id(ids: IdSource) -> str:
    """Return an ID that no query has had."""
    return str(uuid.UUID(hex=ids.new_id()))


def read_metadata(io: FileIO, directory: str) -> tuple[str | None, dict[str, Any] | None]:
    """Return the query ID in a directory's `metadata`, or what is there of ours.

    Raises:
        NotFoundError: There is no `metadata`: Spark 4.2 and later do not start the query, earlier
            ones start it under a new ID.
        CorruptionError: It has neither, or no ID that Spark takes.
        StorageError: The storage failed.
    """
    path = f"{directory}/{METADATA_NAME}"
    data, _ = io.read_tail(path, _MAX_BYTES)
    try:
        fields = parse_fields(data)
        if fields.has(_KEY):
            return None, fields.object(_KEY).all
        return fields.text("id", QUERY_ID), None
    except MalformedError as error:
        raise CorruptionError(
            "the file with the ID of the query, or that describes a savepoint, is damaged",
            file=path,
            offset=0,
            expected='{"id":"<UUID>"}, or the descriptor of a savepoint',
            found=data[:_SHOWN_BYTES],
            to_fix="put the file back from a copy; of a query it can also be deleted, together "
            "with .metadata.crc beside it on a local disk: `statestore restore` then makes a "
            "checkpoint whose query has a new ID, and is another one to its sinks",
        ) from error


def try_read_metadata(io: FileIO, directory: str) -> tuple[str | None, dict[str, Any] | None]:
    """Return what `read_metadata` does; None for both where the file is missing or damaged.

    Raises:
        StorageError: The storage failed.
    """
    with suppress(NotFoundError, CorruptionError):
        return read_metadata(io, directory)
    return None, None


def check_finished(fields: dict[str, Any] | None, uri: str) -> None:
    """Check that a directory is not one that was begun and not finished.

    Raises:
        NotFoundError: It is (kind unfinished-operation).
    """
    if fields and _UNFINISHED in fields:
        operation, trial = fields[_UNFINISHED], fields.get(TRIAL)
        raise NotFoundError(
            "the directory was begun and not finished",
            kind="unfinished-operation",
            directory=uri,
            operation=operation,
            **({} if trial is None else {TRIAL: trial}),
            to_fix="delete the rest of it, unless somebody is deleting it now"
            if operation == DELETE
            else f"wait for that command; when it was killed, promote or drop the trial {trial} "
            "first: `statestore drop TRIAL --yes` puts the old checkpoint back"
            if trial is not None
            else "wait for that command, or repeat it when it was killed: it begins anew",
        )


def unfinished_operation(io: FileIO, directory: str) -> str | None:
    """Return the operation that began a directory and did not finish it, None for no such one.

    Raises:
        StorageError: The storage failed.
    """
    _, fields = try_read_metadata(io, directory)
    return None if fields is None else fields.get(_UNFINISHED)


def mark_unfinished(io: FileIO, directory: str, operation: str, **fields: object) -> None:
    """Have a whole directory say that an operation began it: it is that operation's to clear.

    Args:
        io: Its storage.
        directory: The directory there.
        operation: The operation.
        fields: What else it says.

    Guarantee: on return no query starts from it, and it is no savepoint, durably.

    Raises:
        StorageError: The storage failed.
    """
    mark = unfinished_metadata(operation, **fields)
    write_text(io, f"{directory}/{METADATA_NAME}", mark, overwrite=True)


def check_of_query(io: FileIO, directory: str, uri: str) -> None:
    """Check that a directory is a query's checkpoint: neither a savepoint nor unfinished.

    A savepoint is the user's, and as it was taken: operations on a checkpoint do not change it, nor
    does a query start from what they make of it.

    Raises:
        InvalidArgumentError: It is a savepoint.
        NotFoundError: As `check_finished`.
        CorruptionError: `metadata` is damaged, so nothing tells which it is.
        StorageError: The storage failed.
    """
    fields = None
    with suppress(NotFoundError):
        _, fields = read_metadata(io, directory)
    check_finished(fields, uri)
    if fields is not None:
        raise InvalidArgumentError(
            "the directory is a savepoint, not the checkpoint of a query",
            directory=uri,
            to_fix=f"restore it first, with `statestore restore {shlex.quote(uri)} CHECKPOINT`, "
            "and name that checkpoint",
        )
