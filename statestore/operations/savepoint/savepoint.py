"""Savepoints: a committed version of a query, copied whole to a directory that is the user's.

A savepoint is laid out as a checkpoint of one version is. Its `metadata` is the descriptor, written
last: no query starts from a savepoint, and half a savepoint is never taken for one. Nothing in it
leads out of it, so it can be moved and copied. Only a claim, and the schedule that took it, delete
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from statestore.codec.joined_trailers import add_counts
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
)
from statestore.core.json_fields import Fields, MalformedError, to_text
from statestore.core.key_groups import MAX_PARALLELISM_LIMIT
from statestore.core.providers import IN_DRIVER_MEMORY, PROVIDERS
from statestore.core.text import Told, format_bytes, format_time
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.copying import Copy, MadeFiles, same_shape, source_of
from statestore.operations.metadata_file import (
    QUERY_ID,
    check_finished,
    metadata_fields,
    read_metadata,
)
from statestore.operations.passes import Copied, Dealt

if TYPE_CHECKING:
    from statestore.io.file_io import FileIO
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.copy_result import CopyResult
    from statestore.operations.result import Made, Progress

FORMAT_VERSION = 1
CANONICAL_BACKEND = "filesystem"
"""State backend whose full-state deltas a canonical savepoint is made of: Arrow streams."""
SavepointForm = Literal["canonical", "native"]
_FIELD = "savepoint"
_FORM = re.compile("canonical|native")
_BACKEND = re.compile("|".join(PROVIDERS))
_QUERY_ID = re.compile(f"({QUERY_ID.pattern})?")
_ATTEMPTS = 5
_OF_GONE = ("file-not-found", "version-not-found", "lineage-broken")
"""Kinds of errors of a version that was expired meanwhile, or replaced by a promote."""


@dataclass(frozen=True, slots=True, repr=False)
class SavepointInfo(Told):
    """What a savepoint says about itself.

    Attributes:
        form: canonical, full states in the one form that every state backend can be restored from;
            or native, the files of the version as the state backend wrote them.
        backend: State backend of the query.
        query_id: ID of the query; empty where the checkpoint had lost it, and a restore gives it
            a new one.
        version: State version, at least 1.
        num_partitions: Number of state partitions.
        checkpoint_format: 1 or 2.
        created_ms: When it was finished, milliseconds since the Unix epoch.
        num_stores: Number of state stores, each of one state partition.
        num_rows: Rows in all of them; None where only reading them tells.
        state_bytes: Bytes of all state files.
        operators: Short name of every stateful operator, in the order of their IDs.
    """

    form: SavepointForm
    backend: str
    query_id: str
    version: int
    num_partitions: int
    checkpoint_format: int
    created_ms: int
    num_stores: int
    num_rows: int | None
    state_bytes: int
    operators: tuple[str, ...]

    def fields_for_people(self) -> list[tuple[str, object]]:
        """Return its attributes in words."""
        return [
            ("form", self.form),
            ("backend", self.backend),
            ("query ID", self.query_id or None),
            ("version", self.version),
            ("state partitions", self.num_partitions),
            ("checkpoint format", self.checkpoint_format),
            ("stores", self.num_stores),
            ("rows", self.num_rows),
            ("state", format_bytes(self.state_bytes)),
            ("operators", ", ".join(self.operators)),
            ("taken", format_time(self.created_ms)),
        ]


def check_form(form: str) -> None:
    """Check that a savepoint has a form.

    Raises:
        InvalidArgumentError: There is none of that name.
    """
    if form not in get_args(SavepointForm):
        raise InvalidArgumentError(
            "a savepoint has no such form",
            form=form,
            to_fix=f"use {' or '.join(get_args(SavepointForm))}",
        )


def decide_savepoint(
    checkpoint: OpenCheckpoint,
    destination: Place,
    *,
    version: int | None = None,
    form: SavepointForm = "canonical",
) -> Copy:
    """Decide how a committed version becomes a savepoint; nothing is written.

    Args:
        checkpoint: The checkpoint; its query may run.
        destination: The savepoint. Its options say the form of the files.
        version: State version, None for the newest committed one.
        form: canonical or native.

    Errors as `Checkpoint.savepoint`.
    """
    check_form(form)
    if checkpoint.backend in IN_DRIVER_MEMORY and form == "native":
        raise InvalidArgumentError(
            "a checkpoint of the heap backend has no files of its own to copy",
            checkpoint=checkpoint.uri,
            to_fix="take a canonical savepoint",
        )
    found = source_of("savepoint", checkpoint, destination, version)
    return savepoint_of("savepoint", found, destination, form)


def take_savepoint(
    place: Place,
    destination: Place,
    made: Made,
    *,
    version: int | None = None,
    form: SavepointForm = "canonical",
    pins: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> CopyResult[Made]:
    """Take a savepoint, as `decide_savepoint` decides and `Copy.make` makes it.

    Arguments as of these, and of `Copy`; guarantee and errors as `Checkpoint.savepoint`.
    """
    for attempt in range(_ATTEMPTS):
        try:
            with open_checkpoint(place) as source:
                copy = decide_savepoint(source, destination, version=version, form=form)
                return replace(copy, pins=pins).make(made, dry_run=dry_run, progress=progress)
        except (NotFoundError, FencedError) as error:
            if version is not None or error.kind not in _OF_GONE or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def savepoint_of(
    operation: str, version: CommittedVersion, destination: Place, form: SavepointForm
) -> Copy:
    """Return the copy of a version that becomes a savepoint.

    Its query and state backend are those of the version; of a savepoint, those that it was taken
    of.

    Args:
        operation: The command.
        version: The version.
        destination: The savepoint.
        form: Its form.

    Raises:
        CorruptionError, IncompatibleError, StorageError: As `savepoint_in`; or as
            `OpenCheckpoint.backend`.
    """
    kept_by, query_id = version.checkpoint.backend, version.query_id or ""
    taken = savepoint_in(version.checkpoint) if version.is_savepoint else None
    if taken is not None:
        kept_by, query_id = taken.backend, taken.query_id

    def becomes(made: MadeFiles) -> str:
        sizes = [file.ref.size for file in made.values()]
        savepoint = SavepointInfo(
            form=form,
            backend=kept_by,
            query_id=query_id,
            version=version.version,
            num_partitions=version.num_partitions,
            checkpoint_format=version.checkpoint_format,
            created_ms=destination.clock.now_ms(),
            num_stores=len(made),
            num_rows=add_counts(file.trailer.num_keys for file in made.values()),
            state_bytes=version.state_bytes() if form == "native" else sum(sizes),
            operators=tuple(operator.name for operator in version.checkpoint.operators),
        )
        return metadata_fields(**{_FIELD: {"format_version": FORMAT_VERSION, **asdict(savepoint)}})

    return same_shape(
        operation,
        version,
        destination,
        Copied() if form == "native" else Dealt(),
        becomes,
        backend=None if form == "native" else CANONICAL_BACKEND,
        query_id=query_id,
    )


def read_savepoint(io: FileIO, directory: str, uri: str) -> SavepointInfo:
    """Read what a savepoint says about itself; errors as `Savepoint.info`.

    Args:
        io: Storage of the savepoint.
        directory: The savepoint there.
        uri: As the caller named it, for errors.
    """
    try:
        query_id, fields = read_metadata(io, directory)
    except NotFoundError as error:
        raise _no_savepoint(uri, is_checkpoint=False) from error
    check_finished(fields, uri)
    if fields is None:
        raise _no_savepoint(uri, is_checkpoint=query_id is not None)
    return _parse(fields, uri)


def savepoint_in(checkpoint: OpenCheckpoint) -> SavepointInfo | None:
    """Return what an opened savepoint says about itself; None of the checkpoint of a query.

    Raises:
        CorruptionError, IncompatibleError, StorageError: As `read_savepoint`.
    """
    with suppress(NotFoundError):
        _, fields = read_metadata(checkpoint.io, checkpoint.path)
        if fields is not None:
            check_finished(fields, checkpoint.uri)
            return _parse(fields, checkpoint.uri)
    return None


def _no_savepoint(uri: str, *, is_checkpoint: bool) -> NotFoundError:
    return NotFoundError(
        "there is no savepoint",
        kind="savepoint-not-found",
        directory=uri,
        is_checkpoint=is_checkpoint,
        to_fix="name the directory of a savepoint, as `statestore savepoint` takes them",
    )


def _parse(fields: dict[str, Any], uri: str) -> SavepointInfo:
    try:
        found = Fields(fields).object(_FIELD)
        found.require_format(FORMAT_VERSION, f"{uri}/metadata")
        return SavepointInfo(
            form=cast("SavepointForm", found.text("form", _FORM)),
            backend=found.text("backend", _BACKEND),
            query_id=found.text("query_id", _QUERY_ID),
            version=found.integer("version", 1),
            num_partitions=found.integer("num_partitions", 1, MAX_PARALLELISM_LIMIT),
            checkpoint_format=found.integer("checkpoint_format", 1),
            created_ms=found.integer("created_ms"),
            num_stores=found.integer("num_stores"),
            num_rows=found.integer("num_rows") if found.has("num_rows") else None,
            state_bytes=found.integer("state_bytes"),
            operators=tuple(map(to_text, found.items("operators"))),
        )
    except MalformedError as error:
        raise CorruptionError(
            "the descriptor of a savepoint is damaged",
            file=f"{uri}/metadata",
            offset=0,
            expected=f"the fields {', '.join(SavepointInfo.__slots__)}",
            found=str(error),
            to_fix="restore the file from a copy of the savepoint",
        ) from error


@contextmanager
def open_savepoint(place: Place) -> Iterator[tuple[SavepointInfo, OpenCheckpoint]]:
    """Open a savepoint: what it says about itself, and its files, laid out as a checkpoint's.

    Errors as `Savepoint.info`.
    """
    with ExitStack() as stack:
        try:
            checkpoint = stack.enter_context(open_checkpoint(place))
        except NotFoundError as error:
            if error.kind != "checkpoint-not-found":
                raise
            raise _no_savepoint(place.uri, is_checkpoint=False) from error
        yield read_savepoint(checkpoint.io, checkpoint.path, checkpoint.uri), checkpoint
