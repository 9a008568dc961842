"""Rescaled versions: the first ones in another number of state partitions, made of present files.

State partition q of N' is made of the chains of those partitions of N that shared key groups with
it. Each file is named with a clip, the key groups that count: those that are q's now and were the
chain's until now. So a file's rows of key groups that had moved away before stay out. Planning is
pure and reads no row; writing publishes a file without rows for each partition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.commit import Body, NewVersion, find_committed, publish_delta
from statestore.checkpoint.key_group_rows import rescaled
from statestore.checkpoint.layout import (
    REPLAYED,
    FileBody,
    RescaleRefName,
    StoreLocation,
    parse_state_file_name,
    store_of_path,
)
from statestore.checkpoint.lineage import rescaled_id, taken_over
from statestore.checkpoint.load import files_before_summary
from statestore.checkpoint.placement import mark_home
from statestore.checkpoint.rescale_refs import release, write_refs
from statestore.checkpoint.trailers import PublishedFile
from statestore.codec.joined_trailers import add_counts, join_families
from statestore.codec.references import FileRef
from statestore.codec.sealed_file import SealedFile
from statestore.codec.state_file import empty_stream
from statestore.codec.trailer import Block, RowCounts, compute_lineage
from statestore.core.errors import (
    CorruptionError,
    FencedError,
    IncompatibleError,
    InvalidArgumentError,
    NotFoundError,
)
from statestore.core.key_groups import (
    MAX_PARALLELISM_LIMIT,
    KeyGroupSet,
    join_sets,
)
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.trailer import Trailer
    from statestore.core.clock import Clock

Heads = Mapping[int, PublishedFile]
"""The delta of one version of a store, by state partition."""

_EMPTY: dict[FileBody, Callable[[], tuple[bytes, tuple[Block, ...]]]] = {
    "arrows": empty_stream,
    "sst": lambda: (b"", (Block(0, 0, 0, 0, -1, -1),)),
}
"""Bytes and blocks of a file without rows, by body."""


@dataclass(frozen=True, slots=True)
class RescaledStore:
    """A store of one state partition of the new layout, and its files.

    Attributes:
        partition: The state partition.
        new: The version, without a parent; its checkpoint ID follows from what it is made of.
        files: References to be read from the store's directory, in order.
        sources: State partitions, of the old layout and ones before it, in whose directories the
            files lie, and those that had this state, ascending.
    """

    partition: int
    new: NewVersion
    files: tuple[FileRef, ...]
    sources: tuple[int, ...]


def contributors(partition: int, num_partitions_now: int, num_partitions: int) -> tuple[int, ...]:
    """Return the state partitions that share key groups with a partition of another layout.

    Args:
        partition: State partition of the other layout.
        num_partitions_now: State partitions now, a divisor of the number of key groups.
        num_partitions: State partitions of the other layout, a divisor as well.
    """
    # Both numbers divide that of the key groups: by the Chinese remainder theorem one is in both
    # where the state partitions are equal modulo what the numbers have in common.
    common = math.gcd(num_partitions_now, num_partitions)
    return tuple(range(partition % common, num_partitions_now, common))


def plan_rescale(heads: Heads, num_partitions: int, *, is_single: bool = False) -> RescaledStores:
    """Plan the next version of a store in another number of state partitions.

    Args:
        heads: The newest version of the store in every state partition, all of one number.
        num_partitions: State partitions of the new layout, a divisor of the number of key groups.
        is_single: All state is in state partition 0 and stays there, as in an aggregation or limit
            without keys; `heads` and the result have that partition only.

    Returns:
        The store of each new state partition, planned when it is asked for.

    Raises:
        InvalidArgumentError: The number of key groups is not a multiple.
        NotFoundError: A state partition is missing.
        IncompatibleError: The store is not rescalable by key groups (kind not-rescalable), or its
            state partitions differ in version, settings or IDs of column families.
    """
    of = _check_heads(heads, num_partitions, is_single=is_single)
    return RescaledStores(heads, of.version + 1, num_partitions, is_single=is_single)


class RescaledStores(Mapping[int, RescaledStore]):
    """The stores of a new layout, by state partition; each is planned when it is asked for.

    Args:
        heads, num_partitions, is_single: As `plan_rescale` takes them, checked.
        version: The rescaled version.
    """

    def __init__(
        self, heads: Heads, version: int, num_partitions: int, *, is_single: bool = False
    ) -> None:
        self._heads = heads
        self._version = version
        self._num_partitions = num_partitions
        self._is_single = is_single
        self._of = heads[min(heads)].trailer
        self._sources: dict[int, _Sources] = {}

    def __len__(self) -> int:
        return 1 if self._is_single else self._num_partitions

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __getitem__(self, partition: int) -> RescaledStore:
        if partition not in range(len(self)):
            raise KeyError(partition)
        return self._rescaled(partition)

    def num_keys(self, partition: int) -> int | None:
        """Return the rows of a state partition, None where they must be read to be counted."""
        return self._counts(partition, self._sources_of(partition))[0]

    def _sources_of(self, partition: int) -> _Sources:
        """Return the sources that state partitions of one remainder share."""
        remainder = partition % math.gcd(self._of.num_partitions, self._num_partitions)
        found = self._sources.get(remainder)
        if found is None:
            partitions: tuple[int, ...] = (0,)
            if not self._is_single:
                partitions = contributors(partition, self._of.num_partitions, self._num_partitions)
            trailers = [self._heads[now].trailer for now in partitions]
            found = _Sources(
                partitions,
                trailers,
                join_families(trailers),
                rescalable=all(trailer.rescalable for trailer in trailers),
                is_exact=self._is_single or self._of.num_partitions % self._num_partitions == 0,
            )
            self._sources[remainder] = found
        return found

    def _counts(
        self, partition: int, sources: _Sources
    ) -> tuple[int | None, int | None, tuple[int, ...] | None]:
        """Return rows, those in internal column families, and rows by key-group class."""
        rows = None
        if not self._is_single:
            rows = rescaled(sources.trailers, self._num_partitions, partition)
        if sources.is_exact:
            num_keys = add_counts(trailer.num_keys for trailer in sources.trailers)
            num_internal = add_counts(trailer.num_internal_keys for trailer in sources.trailers)
        else:
            num_keys = num_internal = None
        if num_keys is None and rows is not None:
            num_keys = sum(rows)
            num_internal = None if any(family.internal for family in sources.families) else 0
        return num_keys, num_internal, rows

    def _files(self, partition: int, sources: _Sources) -> tuple[FileRef, ...]:
        wanted = None if self._is_single else KeyGroupSet(self._num_partitions, partition)
        taken: list[FileRef] = []
        for now in sources.partitions:
            head = self._heads[now]
            owned = KeyGroupSet(self._of.num_partitions, now)
            for ref in head.chain:
                found = taken_over(head.trailer.store, ref, owned, wanted)
                if found is not None and ref.rows:
                    taken.append(found)
        return _joined(taken)

    def _rescaled(self, partition: int) -> RescaledStore:
        of, sources = self._of, self._sources_of(partition)
        files = self._files(partition, sources)
        store = replace(of.store, partition=partition)
        num_keys, num_internal, rows = self._counts(partition, sources)
        new = NewVersion(
            version=self._version,
            parent=None,
            checkpoint_id=rescaled_id(store, self._version, self._num_partitions, files),
            checkpoint_format=of.checkpoint_format,
            rows=RowCounts(),
            num_keys=num_keys,
            num_internal_keys=num_internal,
            key_group_growth=rows,
            max_parallelism=of.max_parallelism,
            num_partitions=self._num_partitions,
            rescalable=sources.rescalable,
            column_families=sources.families,
            backend=of.backend,
        )
        lie_in = {store_of_path(store, ref.path).partition for ref in files}
        return RescaledStore(partition, new, files, tuple(sorted(lie_in.union(sources.partitions))))


@dataclass(frozen=True, slots=True)
class _Sources:
    """The sources of a state partition of the new layout.

    Attributes:
        partitions, trailers: State partitions of the old layout, and their versions.
        families: Column families of all of them.
        rescalable: Whether all of them are.
        is_exact: Whether it takes them whole.
    """

    partitions: tuple[int, ...]
    trailers: list[Trailer]
    families: tuple[ColumnFamily, ...]
    rescalable: bool
    is_exact: bool


def _check_heads(heads: Heads, num_partitions: int, *, is_single: bool) -> Trailer:
    """Return the first trailer, after a check that the others fit."""
    of = heads[min(heads)].trailer
    store = f"{of.store.operator}/*/{of.store.name}"
    if num_partitions < 1 or (not is_single and of.max_parallelism % num_partitions):
        raise InvalidArgumentError(
            "the number of key groups is not a multiple of the number of state partitions",
            store=store,
            max_parallelism=of.max_parallelism,
            num_partitions=num_partitions,
            to_fix=f"choose a divisor of {of.max_parallelism}, or have every row hashed anew",
        )
    expected = {0} if is_single else set(range(of.num_partitions))
    if set(heads) != expected:
        raise NotFoundError(
            "a state partition of the store is missing",
            kind="version-not-found",
            store=store,
            version=of.version,
            missing=", ".join(map(str, sorted(expected - set(heads)))),
            to_fix="put the directories of all state partitions back; checkpoints are copied whole",
        )
    trailers = [head.trailer for head in heads.values()]
    for trailer in trailers:
        if not (trailer.rescalable or is_single):
            raise IncompatibleError(
                "a store is not rescalable by key groups: some rows are outside of the state "
                "partition of their key group",
                kind="not-rescalable",
                store=str(trailer.store),
                version=trailer.version,
                to_fix="leave the number of state partitions as it is, or start the query with a "
                "new checkpoint",
            )
        for name in ("version", "backend", "max_parallelism", "num_partitions"):
            if getattr(trailer, name) != getattr(of, name):
                raise IncompatibleError(
                    "state partitions of a store differ",
                    store=str(trailer.store),
                    field=name,
                    expected=getattr(of, name),
                    found=getattr(trailer, name),
                    to_fix="go back to a version that all of them have; checkpoints are copied "
                    "whole",
                )
    join_families(trailers)
    return of


def _joined(taken: list[FileRef]) -> tuple[FileRef, ...]:
    """Return files in the order of their versions, files of several chains once if possible.

    Rows of one key group are in files of different versions, whoever wrote them, so this order is
    that of every chain. A file whose clips make one set is read once. Where one chain has
    summarised it and another has not, the clip says which of its rows are read.
    """
    files: list[FileRef] = []
    by_path = sorted(taken, key=lambda ref: ref.path)
    for _, same in groupby(by_path, key=lambda ref: ref.path):
        refs = list(same)
        clips = [ref.clip for ref in refs if ref.clip is not None]
        if len(clips) < 2:
            files += refs
        else:
            files += [replace(refs[0], clip=clip) for clip in join_sets(clips)]
    return tuple(sorted(files, key=lambda ref: (ref.version, ref.path)))


def write_rescaled_version(
    location: StoreLocation,
    store: RescaledStore,
    scratch_directory: str,
    *,
    clock: Clock,
    home: StoreLocation | None = None,
) -> PublishedFile:
    """Publish the rescaled version of one store; its rows stay in the files it is made of.

    The caller holds the checkpoint's lease. So another delta of the version is of no use: a repair
    left it, or a rescale that was given up. It is replaced, as a batch would.

    Args:
        location: The store of the new layout.
        store: The plan of it, from `plan_rescale`.
        scratch_directory: Local directory for the file while it is written.
        clock: For the times.
        home: The store in the checkpoint directory, where its state is kept elsewhere.

    Guarantee: on return the version is durable and no maintenance deletes a file it is made of.
    Repeating it, also after a kill at any point, gives the same version.

    Raises:
        IncompatibleError: Another store's file is in its place (kind other-store).
        StorageError: The storage or the local disk failed.
    """
    data, blocks = _EMPTY[location.body]()
    lineage = compute_lineage(None, blocks, store.files)
    existing = _find(location, store.new)
    version = store.new.version
    needed = (*store.files, *_in_place_of_summaries(location, store.files))
    lowest = min((ref.version for ref in needed), default=version)
    lie_in = {store_of_path(location.store, ref.path).partition for ref in needed}
    write_refs(location, version, lie_in.union(store.sources), lowest)
    mark_home(location, home, store.new.backend)
    if existing is not None:
        return existing
    name = f"{location.store.operator}-{location.store.partition}-{location.store.name}"
    local_path = f"{scratch_directory}/{name}-{store.new.version}.{location.body}"
    with named_errors("write to the scratch directory", local_path):
        Path(local_path).write_bytes(data)
    body = Body(local_path, blocks, store.new.rows, lineage)
    return publish_delta(location, store.new, None, store.files, body, sync=True, clock=clock)


def _in_place_of_summaries(
    location: StoreLocation, files: tuple[FileRef, ...]
) -> Iterator[FileRef]:
    """Yield the files by which a load goes on where a summary among some is damaged."""
    if location.body in REPLAYED:
        for index, ref in enumerate(files):
            if ref.kind == "snapshot":
                with suppress(NotFoundError, CorruptionError, FencedError):
                    yield from files_before_summary(location, files, index, None)


def _find(location: StoreLocation, new: NewVersion) -> PublishedFile | None:
    """Return the version if this rescale has published it, whole.

    The same rescale has the same ID, also after a repair has found its file to be damaged.
    """
    try:
        found = find_committed(location, new)
        if found is not None:
            path = location.path(found.ref.path)
            local_path = location.io.fetch(path)
            with named_errors("open a file", local_path):
                SealedFile(local_path, path).verify()
        return found
    except CorruptionError:
        return None


def undo_rescaled_version(location: StoreLocation, version: int) -> None:
    """Delete a rescaled version of one store, and release the files it was made of.

    Args:
        location: The store of the new layout.
        version: The rescaled version, on which no batch has run: Spark's logs know.

    Guarantee: on return the store is as it was before, also where the version was never complete;
    can be repeated after a raise.

    Raises:
        CorruptionError, IncompatibleError: A reference file cannot be read.
        StorageError: The storage failed.
    """
    for info in location.io.list(location.directory):
        name = parse_state_file_name(info.name)
        if name is not None and name.version == version:
            location.io.delete(location.path(info.name))
    # The sources are the state partitions again, so the release must delete none of them.
    ref = RescaleRefName(version, location.store.partition)
    release(location, (ref,), MAX_PARALLELISM_LIMIT, version)
