"""Dealing out: the rows of state partitions become full states of those that take them.

A pair of givers and takers has no key group in common with any other, so pairs pass side by side:
in threads, or in processes where there are many rows.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from statestore.backends.forms import work_in
from statestore.checkpoint.layout import BODIES, StoreLocation
from statestore.core.providers import IN_DRIVER_MEMORY
from statestore.io.hadoop import HadoopFileIO
from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.full_state import states_at_once, write_states
from statestore.operations.processes import into_shares, map_in_processes, place_for_processes
from statestore.operations.states import most_rows

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from statestore.backends.form import Work
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import StoreName
    from statestore.io.file_io import FileIO
    from statestore.io.place import Place
    from statestore.operations.checkpoint import OpenCheckpoint


@dataclass(frozen=True)
class Pair:
    """State partitions of a store that give rows, and those that take them.

    Attributes:
        givers: The delta of the version of each.
        takers: The checkpoint ID that each gets.
    """

    givers: Sequence[PublishedFile]
    takers: Mapping[StoreName, str]


@dataclass(frozen=True)
class Taking:
    """What the new state has in common, and how another process reaches it.

    Attributes:
        place: The new directory.
        state_uri: URI of the storage of its state files, where that is another one; else empty.
        root: Their directory there.
        backend: Its state backend.
        num_partitions: Number of its state partitions.
        scratch_directory: Local directory.
    """

    place: Place
    state_uri: str
    root: str
    backend: str
    num_partitions: int
    scratch_directory: str


@dataclass(frozen=True)
class _Share:
    """Pairs for one process; what it fetches of the source is below `directory`."""

    source: Place
    directory: str
    taking: Taking
    pairs: Sequence[Pair]


def write_pairs(
    source: OpenCheckpoint, pairs: Sequence[Pair], taking: Taking, io: FileIO, work: Work
) -> Iterator[tuple[Pair, dict[StoreName, PublishedFile]]]:
    """Write the rows of every pair; yield it with what its takers got, in their order.

    Args:
        source: What the rows are read from.
        pairs: Of any stores.
        taking: Where they go.
        io: Storage of the new state files, as this process has it.
        work: Means to write them.

    Raises:
        As `write_states` and `map_in_processes`.
    """
    shares = _shares(source, pairs, taking, io)
    if shares:
        for share, made in map_in_processes(_write_share, shares):
            yield from zip(share.pairs, made, strict=True)
        return
    write = partial(_write, source, taking=taking, io=io, work=work)
    with ThreadPoolExecutor(states_at_once()) as pool:
        made_of = cast("Generator[dict[StoreName, PublishedFile]]", pool.map(write, pairs))
        with closing(made_of):  # the pool waits for all that is not cancelled
            yield from zip(pairs, made_of, strict=True)


def _shares(
    source: OpenCheckpoint, pairs: Sequence[Pair], taking: Taking, io: FileIO
) -> list[_Share]:
    """Return a share for each process to take when it is done with one; none if none pays."""
    if taking.backend in IN_DRIVER_MEMORY or isinstance(io, HadoopFileIO) or taking.place.io:
        return []
    num_rows = sum(most_rows(giver) for pair in pairs for giver in pair.givers)
    place = place_for_processes(source, num_rows, len(pairs))
    if place is None:
        return []
    taking = replace(taking, place=replace(taking.place, memory=None))
    directory = source.scratch_directory
    return [_Share(place, directory, taking, share) for share in into_shares(pairs)]


def _write_share(share: _Share) -> list[dict[StoreName, PublishedFile]]:
    taking = share.taking
    place = taking.place
    with (
        open_checkpoint(share.source, share.directory) as source,
        tempfile.TemporaryDirectory(prefix="fetched-", dir=taking.scratch_directory) as fetched,
    ):
        if taking.state_uri:
            io, _ = place.open_other(taking.state_uri, fetched)
        else:
            io, _ = place.open(fetched)
        work = work_in(taking.scratch_directory, place.options, place.clock)
        return [_write(source, pair, taking, io, work) for pair in share.pairs]


def _write(
    source: OpenCheckpoint, pair: Pair, taking: Taking, io: FileIO, work: Work
) -> dict[StoreName, PublishedFile]:
    givers = [(source.location(giver.trailer.store), giver) for giver in pair.givers]
    takers = {
        StoreLocation(io, taking.root, store, BODIES[taking.backend]): checkpoint_id
        for store, checkpoint_id in pair.takers.items()
    }
    made = write_states(givers, takers, taking.num_partitions, taking.backend, work)
    return {location.store: file for location, file in made.items()}
