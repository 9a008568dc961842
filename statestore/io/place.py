"""Place: a directory that a caller named, and all that it takes to reach it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from statestore.core.clock import Clock, SystemClock
from statestore.core.errors import InvalidArgumentError
from statestore.core.ids import IdSource, RandomIds
from statestore.core.options import StateStoreOptions
from statestore.io.s3_settings import S3Settings
from statestore.io.storage import absolute_uri, memory_root, open_storage, place_uri

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore.io.file_io import FileIO, TreeFileIO


@dataclass(frozen=True)
class Place:
    """A directory of a checkpoint or savepoint, present or to be made, and the way to reach it.

    Attributes:
        uri: A path or a URI, as the caller named it.
        options: Options of the query, for its storage (`s3.*`) and the form of files.
        memory: Returns checkpoint memory, which has the checkpoints of the heap backend; None
            where it cannot be reached.
        io: Storage of `uri`, which is then a path of it; None for the storage that the URI names.
        ids: Source of IDs.
        clock: Source of time.
    """

    uri: str
    options: StateStoreOptions = field(default_factory=StateStoreOptions)
    memory: Callable[[], FileIO] | None = None
    io: TreeFileIO | None = None
    ids: IdSource = field(default_factory=RandomIds)
    clock: Clock = field(default_factory=SystemClock)

    def open(self, cache_directory: str) -> tuple[TreeFileIO, str]:
        """Return the storage and the directory's path there, without a slash at its end.

        Args:
            cache_directory: Local directory for files fetched from remote storage.

        Raises:
            InvalidArgumentError: As `open_other`.
        """
        io, path = self.io, self.uri
        if io is None:
            io, path = self.open_other(absolute_uri(path), cache_directory)
        return io, path.rstrip("/")

    @property
    def state_uri(self) -> str:
        """The `state` directory of the checkpoint, as `place_uri` does; a path of `io`, if given.

        Raises:
            InvalidArgumentError: As `open`.
        """
        uri = self.uri if self.io is not None else place_uri(absolute_uri(self.uri))
        return f"{uri.rstrip('/')}/state"

    @property
    def memory_root(self) -> str:
        """The `state` directory of the checkpoint in checkpoint memory, where it is there."""
        return memory_root(self.state_uri)

    def open_other(self, uri: str, cache_directory: str) -> tuple[TreeFileIO, str]:
        """Return the storage of another URI and its path there, reached in the same way.

        Arguments and errors as `open_storage`; InvalidArgumentError also where a name is not UTF-8.
        """
        try:
            uri.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                "a name in a path is not UTF-8",
                uri=uri,
                to_fix="give it another name: Arrow, which reads and writes rows, opens none such",
            ) from error
        settings = S3Settings.from_options(self.options)
        return open_storage(uri, cache_directory, settings, self.clock)

    def beside(self, uri: str) -> Place:
        """Return the place of another URI, reached in the same way."""
        return replace(self, uri=uri, io=None)
