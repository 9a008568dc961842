"""FileForm: how a state backend keeps rows in files, for operations on checkpoints.

One object for each body, so that no other module asks which one it is. `forms.py` finds it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa

    from statestore.checkpoint.commit import Body, NewVersion
    from statestore.checkpoint.layout import FileBody, StoreLocation
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.checkpoint.versions import VersionsBase
    from statestore.codec.merge import SortedRun
    from statestore.codec.trailer import Trailer
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions


@dataclass(frozen=True)
class Work:
    """Means to read and write state; `forms.work_in` makes it.

    Attributes:
        scratch_directory: Local directory.
        options: Of the files that are written.
        clock: Source of time.
        form: Returns the form of a body: the same object each time, so that all of RocksDB's
            databases share its memory.
    """

    scratch_directory: str
    options: StateStoreOptions
    clock: Clock
    form: Callable[[FileBody], FileForm]


class FileForm(ABC):
    """How files of one body keep the rows of a version.

    Attributes:
        is_by_key: Whether rows come in order of column family and key, and not in file order.
    """

    is_by_key: ClassVar[bool]

    @abstractmethod
    def rows(
        self,
        location: StoreLocation,
        head: PublishedFile,
        work: Work,
        family: int | None = None,
        key_group: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a version.

        Args:
            location: The store.
            head: The delta of the version.
            work: Means; the scratch directory is as before after the last row.
            family: ID of the only wanted column family, None for all.
            key_group: The only wanted key group, None for all.

        Yields:
            Record batches of SCHEMA, puts only, each key once and only keys of the store's own
            state partition.

        Raises:
            NotFoundError, CorruptionError, FencedError, IncompatibleError, StorageError: As
                `VersionsBase.load`.
        """

    @abstractmethod
    def runs(self, location: StoreLocation, head: PublishedFile, work: Work) -> Sequence[SortedRun]:
        """Return the rows of a version as runs in file order, oldest first; errors as `rows`."""

    @abstractmethod
    def rows_of_file(
        self, path: str, local_path: str, work: Work
    ) -> Iterator[tuple[Trailer, pa.RecordBatch]]:
        """Yield every row of a state file, also deletes and rows outside of a clip.

        Args:
            path: The file, for errors.
            local_path: A local copy of it.
            work: Means to read and write state.

        Raises:
            CorruptionError, IncompatibleError: It is damaged, or of a newer format.
            StorageError: The local disk failed.
        """

    @abstractmethod
    def sorted_rows(
        self, rows: Iterator[pa.RecordBatch], max_parallelism: int, work: Work
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows, given in any order, in the order for `full_body`."""

    @abstractmethod
    def stream_compression(self, options: StateStoreOptions) -> str:
        """Return the compression of the stream for `full_body`."""

    @abstractmethod
    def full_body(self, new: NewVersion, path: str, work: Work) -> Body:
        """Return the body of a full state.

        Args:
            new: The version.
            path: A local Arrow stream of its rows, as `sorted_rows` yields them; it may become the
                body itself.
            work: Means to read and write state.

        Raises:
            StorageError: The local disk failed.
        """

    @abstractmethod
    def write_changes(
        self,
        puts: Sequence[pa.RecordBatch],
        deletes: Iterable[pa.RecordBatch],
        path: str,
        max_parallelism: int,
        work: Work,
    ) -> Callable[[NewVersion], Body]:
        """Write puts and deletes; return a call that makes the body of a version of them.

        Args:
            puts: In file order.
            deletes: In the order in which `rows` yields the rows that they delete.
            path: Local path of the body.
            max_parallelism: Number of key groups.
            work: Means to read and write state.

        Raises:
            StorageError: The local disk failed.
        """

    @abstractmethod
    def versions(
        self, location: StoreLocation, clock: Clock, backend: str, scratch_directory: str
    ) -> VersionsBase:
        """Return the versions of a store; `forget_heads` releases them.

        Args:
            location: The store.
            clock: Source of time.
            backend: State backend.
            scratch_directory: Local directory for a database, deleted by the caller.
        """
