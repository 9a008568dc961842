"""Passes: how the rows of a store come from a version into a new directory."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

from statestore.checkpoint.commit import NewVersion
from statestore.checkpoint.layout import BODIES, StoreLocation
from statestore.checkpoint.placement import mark_home
from statestore.codec.references import StoreName
from statestore.codec.trailer import RowCounts
from statestore.core.key_groups import default_max_parallelism
from statestore.operations.copied_files import copy_file, copy_state, link_file
from statestore.operations.dealing import Pair, Taking, write_pairs
from statestore.operations.full_state import StateWriter, deal_out
from statestore.operations.rehashing import rehash_effort, rehashed_version, write_rehashed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from statestore.backends.form import Work
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.io.file_io import FileIO, TreeFileIO
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.copy_result import FamilyChange
    from statestore.operations.new_directory import NewDirectory
    from statestore.operations.operator_map import ResolvedOperators
    from statestore.operations.result import Progress

StoreId = tuple[int, str]
"""A store in all its state partitions: its operator's ID and its name."""


class BytesDone:
    """Bytes that several threads have done, of one total.

    Args:
        progress: Called with bytes done and the total, by one thread at a time.
        total: Bytes of state files; a file that several stores name counts once.
    """

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._lock = Lock()
        self._done = 0

    def add(self, num_bytes: int) -> None:
        """Say that more bytes are done."""
        with self._lock:
            self._done += num_bytes
            self._progress(min(self._done, self._total), self._total)


@dataclass(frozen=True)
class NewState:
    """The state of a new directory while it is written.

    Attributes:
        version: The version that it is made of.
        operators: Which operators of that become which.
        target: The directory.
        io: Storage of its state files.
        root: Their directory there.
        backend: Its state backend.
        num_partitions: Number of its state partitions.
        checkpoint_format: 1 or 2.
        memory: Checkpoint memory where its state files are there, of the heap backend.
        place: The directory as it is reached from any process.
        state_uri: URI of the state files' storage, where that is another one; else empty.
        work: Means to write state.
        progress: Told what is done.
    """

    version: CommittedVersion
    operators: ResolvedOperators
    target: NewDirectory
    io: TreeFileIO
    root: str
    backend: str
    num_partitions: int
    checkpoint_format: int
    memory: FileIO | None
    place: Place
    state_uri: str
    work: Work
    progress: BytesDone

    @property
    def source(self) -> OpenCheckpoint:
        """The checkpoint or savepoint that the version is of."""
        return self.version.checkpoint

    def location(self, store: StoreName) -> StoreLocation:
        """Return where a store is to be; where that is elsewhere, the directory says so."""
        location = StoreLocation(self.memory or self.io, self.root, store, BODIES[self.backend])
        home = StoreLocation(self.target.io, f"{self.target.path}/state", store)
        mark_home(location, home, self.backend)
        return location


class Pass(ABC):
    """How the rows of some stores come into a new directory."""

    @property
    def words(self) -> str:
        """What becomes of their files, in a word or two."""
        return "written anew"

    @property
    def is_free(self) -> bool:
        """Whether no byte of them is copied or written."""
        return False

    @property
    def own_bytes(self) -> int:
        """Bytes of files that are read beside the state files of the version."""
        return 0

    @property
    def families(self) -> tuple[FamilyChange, ...]:
        """Column families whose rows are given, in words."""
        return ()

    @abstractmethod
    def write(self, stores: Sequence[StoreId], state: NewState) -> dict[StoreName, PublishedFile]:
        """Write the state of some stores.

        Args:
            stores: Those of the version that pass in this way.
            state: Where to.

        Returns:
            The delta of every new state partition.

        Guarantee: what is returned is durable; after a raise some of it may be published.

        Raises:
            As `Copy.run`.
        """


@dataclass(frozen=True)
class Copied(Pass):
    """Files as they are: for the same state backend, state partitions and operators."""

    _copy = staticmethod(copy_file)

    @property
    def words(self) -> str:
        """What becomes of the files."""
        return "copied"

    def write(self, stores: Sequence[StoreId], state: NewState) -> dict[StoreName, PublishedFile]:
        """Copy them."""
        own = [store for store in state.version.heads if (store.operator, store.name) in stores]
        for store in own:
            state.location(store)
        target = replace(state.target, io=state.io)
        copy_state(state.version, own, target, state.root, state.progress.add, copy=self._copy)
        return {store: state.version.heads[store] for store in own}


@dataclass(frozen=True)
class Linked(Copied):
    """Files that both directories share where their storage can; else as `Copied`.

    Attributes:
        is_shared: Whether it can share all of them.
        is_moved: Whether the directory they come from is deleted afterwards.
    """

    is_shared: bool
    is_moved: bool = False

    _copy = staticmethod(link_file)

    @classmethod
    def between(
        cls,
        version: CommittedVersion,
        target: Place,
        *,
        state_uri: str = "",
        is_moved: bool = False,
    ) -> Linked:
        """Return the pass from a version's state to a new directory; nothing is written.

        Args:
            version: The version.
            target: The new directory.
            state_uri: As of `Copy`.
            is_moved: Whether the directory that the version is in is deleted afterwards.

        Raises:
            InvalidArgumentError, StorageError: As `Place.open`.
        """
        source = version.checkpoint
        with tempfile.TemporaryDirectory(dir=source.scratch_directory) as work:
            io, new_path = target.open_other(state_uri, work) if state_uri else target.open(work)
            is_shared = all(
                io.shares(source.state_io, path, new_path)
                for store in version.heads
                for path, _ in version.state_files(store)
            )
            return cls(is_shared, is_moved)

    @property
    def words(self) -> str:
        """What becomes of the files."""
        return "moved" if self.is_moved else "shared" if self.is_shared else "copied"

    @property
    def is_free(self) -> bool:
        """Whether the storage has no byte more."""
        return self.is_shared


@dataclass(frozen=True)
class Dealt(Pass):
    """Rows written anew as full states, each into the state partition of its key group."""

    def write(self, stores: Sequence[StoreId], state: NewState) -> dict[StoreName, PublishedFile]:
        """Write them: of each pair of givers and takers by itself."""
        pairs = [
            Pair(
                [state.version.heads[giver] for giver in givers],
                {
                    state.location(taker).store: self._new_id(state, givers, takers)
                    for taker in takers
                },
            )
            for store in stores
            for givers, takers in _pairs(state, store)
        ]
        taking = Taking(
            state.place,
            state.state_uri,
            state.root,
            state.backend,
            state.num_partitions,
            state.work.scratch_directory,
        )
        io = state.memory or state.io
        made: dict[StoreName, PublishedFile] = {}
        for pair, files in write_pairs(state.source, pairs, taking, io, state.work):
            made |= files
            givers = [giver.trailer.store for giver in pair.givers]
            state.progress.add(state.version.state_bytes(givers))
        return made

    @staticmethod
    def _new_id(state: NewState, givers: list[StoreName], takers: list[StoreName]) -> str:
        if len(givers) == len(takers) == 1 and givers[0].partition == takers[0].partition:
            # It is the same version, whatever its form.
            return state.version.heads[givers[0]].trailer.checkpoint_id
        return state.target.ids.new_id()


def _pairs(state: NewState, store: StoreId) -> Iterator[tuple[list[StoreName], list[StoreName]]]:
    """Yield state partitions of a store that give rows, and the new ones that take them."""
    operator, name = store
    pairs = [(range(1), range(1))]
    if not state.version.is_single(operator, name):
        pairs = deal_out(state.version.num_partitions, state.num_partitions)
    new = state.operators.new_id(operator)
    for givers, takers in pairs:
        yield (
            [StoreName(operator, partition, name) for partition in givers],
            [StoreName(new, partition, name) for partition in takers],
        )


@dataclass(frozen=True)
class Rehashed(Pass):
    """Rows written anew, each hashed again: the number of key groups changes."""

    @property
    def words(self) -> str:
        """What becomes of the files."""
        return "hashed anew"

    def write(self, stores: Sequence[StoreId], state: NewState) -> dict[StoreName, PublishedFile]:
        """Write them, a store at a time."""
        made: dict[StoreName, PublishedFile] = {}
        for operator, name in stores:
            before = range(state.version.num_partitions)
            givers = [StoreName(operator, partition, name) for partition in before]
            heads = [state.version.heads[store] for store in givers]
            new_id = state.operators.new_id(operator)
            takers = (
                StoreName(new_id, partition, name) for partition in range(state.num_partitions)
            )
            version = rehashed_version([head.trailer for head in heads], state.num_partitions)
            version = replace(version, backend=state.backend)
            places = ((state.location(store), state.target.ids.new_id()) for store in takers)
            total, effort, done = state.version.state_bytes(givers), rehash_effort(heads), 0

            def progress_of_rows(num_rows: int, total: int = total, effort: int = effort) -> None:
                nonlocal done
                now = total * num_rows // effort
                state.progress.add(now - done)
                done = now

            files = write_rehashed(
                state.version.checkpoint, heads, version, places, state.work, progress_of_rows
            )
            made |= {file.trailer.store: file for file in files}
        return made


def write_added(
    state: NewState, added: Mapping[int, Sequence[str]], made: Iterable[PublishedFile]
) -> dict[StoreName, PublishedFile]:
    """Write state without a row for every operator that is added; errors as `StateWriter`.

    Args:
        state: Where to.
        added: Names of the stores of each such operator, by its ID.
        made: The other state of the directory, whose number of key groups it gets.

    Returns:
        The delta of every state partition.
    """
    num_partitions = state.num_partitions
    parallelisms = [file.trailer.max_parallelism for file in made]
    known = [number for number in parallelisms if number % num_partitions == 0]
    new = NewVersion(
        version=state.version.version,
        parent=None,
        checkpoint_id="",
        checkpoint_format=state.checkpoint_format,
        rows=RowCounts(),
        num_keys=0,
        max_parallelism=max(known, default=default_max_parallelism(num_partitions)),
        num_partitions=num_partitions,
        rescalable=True,
        column_families=(),
        backend=state.backend,
    )
    written: dict[StoreName, PublishedFile] = {}
    for operator, names in added.items():
        for name in names:
            for partition in range(num_partitions):
                store = StoreName(operator, partition, name)
                of = replace(new, checkpoint_id=state.target.ids.new_id())
                written[store] = StateWriter(state.location(store), of, state.work).finish()
    return written
