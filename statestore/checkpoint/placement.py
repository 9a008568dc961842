"""Placement: the file in a checkpoint that names another place of its state.

A checkpoint without one keeps its state in its own `state` directory. It is written once, before
the first version, and never changed; a second writer takes the first one's.
"""

from __future__ import annotations

import json
import os
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import (
    HEAP_MARKER,
    HEAP_MARKER_TEXT,
    OWNER_NAME,
    parse_state_file_name,
    placeholder_path,
    placement_path,
)
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.ids import RandomIds, is_checkpoint_id
from statestore.core.json_fields import MalformedError, parse_fields
from statestore.core.providers import IN_DRIVER_MEMORY
from statestore.core.version import WRITER
from statestore.io.storage import absolute_uri, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore.checkpoint.layout import StoreLocation
    from statestore.io.file_io import FileIO

FORMAT_VERSION = 1
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of a checkpoint's state.

    Attributes:
        storage: URI of the directory that checkpoints share.
        id: The checkpoint's own directory below it, 32 hex digits.
    """

    storage: str
    id: str

    def directory(self, path: str) -> str:
        """Return that directory; `path` is the one that checkpoints share, as its storage says."""
        return f"{path.rstrip('/')}/{self.id}"


def read_placement(io: FileIO, root: str) -> Placement | None:
    """Return the placement of a checkpoint, None if its state is in its own directory.

    Args:
        io: Storage of the checkpoint.
        root: The checkpoint's `state` directory.

    Raises:
        CorruptionError: The file is damaged.
        IncompatibleError: It is of a newer format.
        StorageError: The storage failed.
    """
    path = placement_path(root)
    try:
        data, _ = io.read_tail(path, _MAX_BYTES)
    except NotFoundError:
        return None
    try:
        fields = parse_fields(data)
        fields.require_format(FORMAT_VERSION, path)
        placement = Placement(fields.text("storage"), fields.text("id"))
    except MalformedError as error:
        raise _damaged(path, data) from error
    if not placement.storage or not is_checkpoint_id(placement.id):
        raise _damaged(path, data)
    return placement


def read_owner(io: FileIO, state_root: str) -> str | None:
    """Return the `state` directory of the checkpoint that state elsewhere was made for.

    Args:
        io: The other storage.
        state_root: The state's directory there.

    Returns:
        Its URI as `place_uri` returns it, by whoever began it; None where it is not told.

    Raises:
        CorruptionError: The file that tells it is damaged.
        IncompatibleError: It is of a newer format.
        StorageError: The storage failed.
    """
    path = f"{state_root}/{OWNER_NAME}"
    try:
        data, _ = io.read_tail(path, _MAX_BYTES)
    except NotFoundError:
        return None
    try:
        fields = parse_fields(data)
        if fields.has("format_version"):  # a file typed by people may leave it out
            fields.require_format(FORMAT_VERSION, path)
        return fields.text("checkpoint")
    except MalformedError as error:
        raise CorruptionError(
            "the file that names the checkpoint of a state is damaged",
            file=path,
            offset=0,
            expected="a JSON object with format_version and checkpoint",
            found=data[:100].decode(errors="replace"),
            to_fix="delete it if the state is this checkpoint's: it is for people and for "
            "operations, and no row is in it",
        ) from error


def require_own_state(
    uri: str,
    placement: Placement,
    state_io: FileIO,
    state_root: str,
    is_here: Callable[[str], bool],
) -> None:
    """Raise unless state that lies elsewhere is that of the checkpoint which names it.

    A copy of a checkpoint directory names the state of the original, and so may a checkpoint of a
    stranger. The directory may have several names.

    Args:
        uri: The checkpoint's `state` directory, as `place_uri` returns it. The path alone would be
            the same for a copy on another storage.
        placement: The checkpoint's placement.
        state_io: The other storage.
        state_root: The state's directory there.
        is_here: Whether another `state` directory, by its URI, is the checkpoint's by another name.
            Only who holds a lease, and looks for it there, can tell where it is another mount.

    Raises:
        IncompatibleError: The state was made for another checkpoint (kind other-checkpoint).
        CorruptionError, StorageError: As `read_owner`; or `is_here` could not tell.
    """
    moved = (
        f"if the state was moved too, to NEW/{placement.id}, first write NEW as `storage` into "
        f"{placement_path(uri)}"
    )
    try:
        owner = read_owner(state_io, state_root)
    except StorageError as error:
        if error.kind == "directory-gone":
            error.to_fix += f"; {moved}"
        raise
    if owner is None or owner == uri:
        return
    home, state = posixpath.dirname(uri), placement.directory(placement.storage)
    owned = (
        f"write {uri} as `checkpoint` into {state}/{OWNER_NAME}; {moved}, and write the other file "
        "there"
    )
    try:
        if is_here(owner):
            return
    except (IncompatibleError, InvalidArgumentError, NotFoundError):
        pass  # a place that cannot be asked at all is no other name of this one
    except StorageError as error:
        if error.kind != "directory-gone":
            raise StorageError(
                "the state names another checkpoint, and whether that is this one by another name "
                "cannot be found out",
                kind=error.kind,
                checkpoint=home,
                state=state,
                belongs_to=owner,
                reason=str(error),
                to_fix="let that be reached, and try again; or, if this one was moved and the "
                f"other is no more, {owned}",
            ) from error
    to_fix = (
        "copy checkpoints by `statestore branch` or `statestore savepoint`. If this one was "
        f"moved, and the other is no more or has state of its own, {owned}"
    )
    if scheme_of(owner) == "file" and not os.path.isdir(owner):  # noqa: PTH112 (no error)
        to_fix = (
            "if this is the same directory under another mount, do it where the directory is "
            f"{posixpath.dirname(owner)}, or mount it there, and write no file: the query would be "
            f"refused. Else {to_fix}"
        )
    raise IncompatibleError(
        "the state is that of another checkpoint, which would lose it",
        kind="other-checkpoint",
        checkpoint=home,
        state=state,
        belongs_to=owner,
        to_fix=to_fix,
    )


def lost_placement(home: StoreLocation) -> IncompatibleError | None:
    """Return the error for a store without a version whose checkpoint lost its placement, or None.

    Args:
        home: The store in the checkpoint's own directory.

    Raises:
        StorageError: The storage failed.
    """
    placeholder = placeholder_path(home.root, home.store)
    partition, name = posixpath.split(placeholder)
    is_marked = any(info.name == name for info in home.io.list(partition))
    names = [info.name for info in home.io.list(home.directory)]
    if not is_marked or any(map(parse_state_file_name, names)):
        return None
    return IncompatibleError(
        "the file that names the place of the checkpoint's state is lost; the state is not",
        kind="storage-changed",
        file=placement_path(home.root),
        found=placeholder,
        to_fix="put the file back from a copy, or write "
        '{"format_version": 1, "storage": "URI", "id": "ID"}: URI is that of '
        "spark.sql.streaming.stateStore.checkpointStorage, and ID the directory below it whose "
        f"{OWNER_NAME} names this checkpoint",
    )


def make_placement(
    home: StoreLocation, home_uri: str, io: FileIO, path: str, uri: str, *, sync: bool
) -> Placement:
    """Give a checkpoint a directory on another storage, and return its placement.

    Args:
        home: A store of the checkpoint, in the checkpoint's own directory.
        home_uri: The checkpoint's `state` directory, as `place_uri` returns it.
        io: The other storage.
        path: Directory there that checkpoints share.
        uri: The URI that named them.
        sync: Whether to wait for the disk.

    Guarantee: the placement is durable, the storage was writable, and every other writer and reader
    gets the same. After a raise the checkpoint is not bound to the storage, unless another writer
    bound it.

    Raises:
        CorruptionError, IncompatibleError, StorageError: As `read_placement`.
    """
    made = Placement(absolute_uri(uri), RandomIds().new_id())
    owner = f"{made.directory(path)}/{OWNER_NAME}"
    # First, since a checkpoint bound to a storage that refuses its writes could not be started.
    io.make_directory(posixpath.dirname(owner))
    io.write(owner, _owner(home_uri), sync=sync, overwrite=False)
    fields = {"storage": made.storage, "id": made.id}
    binding = placement_path(home.root)
    home.io.make_directory(posixpath.dirname(binding))
    try:
        home.io.write(binding, _encode(fields), sync=sync, overwrite=False)
    except FencedError:
        # It may be this one: some file systems send a request again that has counted.
        bound = read_placement(home.io, home.root) or made
        if bound != made:
            io.delete(owner)
        return bound
    return made


def mark_home(location: StoreLocation, home: StoreLocation | None, backend: str) -> None:
    """Show a state partition with its state elsewhere to Spark's state reader and other providers.

    Args:
        location: The store.
        home: The store in the checkpoint directory; None where unknown.
        backend: Name of the state backend.

    Raises:
        StorageError: The storage failed.
    """
    if home is None:
        return
    path, text = placeholder_path(home.root, home.store), b""
    if backend in IN_DRIVER_MEMORY:
        path, text = home.path(HEAP_MARKER), HEAP_MARKER_TEXT
    if backend in IN_DRIVER_MEMORY or home.root != location.root:
        home.io.make_directory(posixpath.dirname(path))
        home.io.write(path, text, sync=False, overwrite=True)


def _owner(uri: str) -> bytes:
    return _encode({"checkpoint": uri})


def _encode(fields: dict[str, str]) -> bytes:
    head = {"format_version": FORMAT_VERSION, "writer": WRITER}
    return json.dumps(head | fields, indent=2).encode()


def _damaged(path: str, data: bytes) -> CorruptionError:
    return CorruptionError(
        "the checkpoint's placement is damaged",
        file=path,
        offset=0,
        expected="a JSON object with format_version, storage and id",
        found=data[:100].decode(errors="replace"),
        to_fix="put the file back: no other file names the place of the state",
    )
