"""Every file of a checkpoint, and the rows of a state file whatever version names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import (
    StoreLocation,
    history_path,
    lease_directory,
    parse_state_file_name,
)
from statestore.codec.references import StoreName
from statestore.core.errors import IncompatibleError
from statestore.core.providers import IN_DRIVER_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from statestore.codec.trailer import Trailer
    from statestore.io.file_io import FileInfo, TreeFileIO
    from statestore.operations.checkpoint import OpenCheckpoint


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file in the directory of a store.

    Attributes:
        location: The store, of a state partition of this layout or of one before a rescale.
        info: Its name and size.
    """

    location: StoreLocation
    info: FileInfo

    @property
    def path(self) -> str:
        """Its path on the storage."""
        return self.location.path(self.info.name)

    @property
    def is_state(self) -> bool:
        """Whether it is a state file, by its name."""
        return parse_state_file_name(self.info.name) is not None


def require_files(checkpoint: OpenCheckpoint) -> None:
    """Check that the state is in files.

    Raises:
        IncompatibleError: It is in checkpoint memory.
    """
    if checkpoint.backend in IN_DRIVER_MEMORY:
        raise IncompatibleError(
            "the state is in the memory of the query's driver, and goes with it",
            checkpoint=checkpoint.uri,
            backend=checkpoint.backend,
            to_fix="stop the driver; files of the checkpoint hold no row",
        )


def files_of_operator(checkpoint: OpenCheckpoint, operator: int) -> list[StoreFile]:
    """Return the files of an operator's stores, of all state partitions that it ever had.

    Raises:
        InvalidArgumentError: There is no such operator.
        IncompatibleError: The state is in checkpoint memory, or of another provider.
        StorageError: The storage failed.
    """
    require_files(checkpoint)
    info = checkpoint.operator(operator)
    names = checkpoint.state_io.list_directories(f"{checkpoint.state_root}/{operator}")
    partitions = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    return [
        StoreFile(location, file)
        for store in info.stores
        for partition in partitions
        for location in [checkpoint.location(StoreName(operator, partition, store.name))]
        for file in location.io.list(location.directory)
    ]


def below_root(checkpoint: OpenCheckpoint, path: str) -> str:
    """Return a path of `files_of` from the directory that it lies in: those above are not ours."""
    roots = (checkpoint.state_root, checkpoint.path)
    return next(path[len(root) :] for root in roots if path.startswith(f"{root}/"))


def files_of(checkpoint: OpenCheckpoint) -> list[tuple[TreeFileIO, str]]:
    """Return storage and path of every file of a checkpoint, wherever its state is.

    Left out are leases, which come and go, and the history, which never holds a key or a value:
    both say who is at it.
    """
    leases = f"{lease_directory(checkpoint.state_directory)}/"
    of_people = (leases, history_path(checkpoint.path))
    roots = [(checkpoint.io, checkpoint.path)]
    if checkpoint.state_root != checkpoint.state_directory:
        roots.append((checkpoint.state_io, checkpoint.state_root))
    found = [(io, f"{root}/{info.name}") for io, root in roots for info in io.list_tree(root)]
    return [(io, path) for io, path in found if not path.startswith(of_people)]


def rows_of_file(
    checkpoint: OpenCheckpoint, path: str, local_path: str
) -> Iterator[tuple[Trailer, pa.RecordBatch]]:
    """Yield every row that a state file has, also deletes and those that a clip leaves out.

    Args:
        checkpoint: The checkpoint.
        path: The file.
        local_path: A local copy of it.

    Raises:
        CorruptionError, IncompatibleError: It is damaged, or of a newer format.
        StorageError: The local disk failed.
    """
    name = parse_state_file_name(path.rpartition("/")[2])
    body = checkpoint.body if name is None else name.body
    yield from checkpoint.work.form(body).rows_of_file(path, local_path, checkpoint.work)
