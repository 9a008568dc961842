"""Summaries of a store, its snapshots and merged files: found on storage, and put into chains.

A snapshot replaces all files of a version's chain, a merged file a run of them. It is published
beside the commits, under a name that is written once; the next commit that knows it names it in
place of those files. The listing tells which summaries there are, the trailer of each tells which
files it replaces: so whoever has the store next finds them as well. This is a cache of both, which
may be lost at any moment.

A summary stays as long as a version could name it (`nameable`), so one that fits the chain of a
commit or load is there.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import parse_state_file_name
from statestore.checkpoint.load import files_before_summary, reach_back
from statestore.checkpoint.trailers import PublishedFile, read_trailer
from statestore.core.errors import CorruptionError, IncompatibleError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.checkpoint.layout import StateFileName, StoreLocation
    from statestore.codec.references import FileRef, VersionRef

logger = logging.getLogger(__name__)

Chain = tuple["FileRef", ...]


class Summaries:
    """The known summaries of one store. Thread-safe: only memory is locked."""

    def __init__(self, location: StoreLocation) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._known: dict[str, PublishedFile | None] = {}
        """By name; None for one that cannot be read."""
        self._chains: dict[str, Chain] = {}
        """The files that replace a summary, by its name."""

    @property
    def newest(self) -> FileRef | None:
        """The summary of the newest version that is known, None without one."""
        with self._lock:
            known = [file.ref for file in self._known.values() if file is not None]
        return max(known, key=lambda ref: ref.version, default=None)

    def reject(self, refs: Iterable[FileRef]) -> None:
        """Use some summaries no more: their files cannot be read."""
        with self._lock:
            self._known.update((ref.path, None) for ref in refs)

    def add(self, summary: PublishedFile) -> None:
        """Take in a summary that was published."""
        with self._lock:
            self._known[summary.ref.path] = summary.lean

    def leave_out(self, names: Iterable[str]) -> None:
        """Name some summaries no more: their files are about to be deleted."""
        with self._lock:
            for name in names:
                self._known.pop(name, None)

    def forget(self) -> None:
        """Forget all."""
        with self._lock:
            self._known.clear()
            self._chains.clear()

    def learn(self, names: Iterable[str], chain: Chain) -> None:
        """Take in the summaries of a listing that may replace files of a chain.

        Args:
            names: Names of the files in the store directory; summaries that are not among them are
                forgotten.
            chain: The files of a version.

        Raises:
            StorageError: The storage failed.
        """
        listed = self._parse(names)
        with self._lock:
            self._known = {name: file for name, file in self._known.items() if name in listed}
            self._chains = {name: before for name, before in self._chains.items() if name in listed}
        own = {ref.version for ref in chain if not ref.is_foreign}
        named = {ref.path for ref in chain}
        for name, parsed in listed.items():
            if parsed.version in own and name not in named:
                self._find(name)

    def shorten(self, chain: Chain) -> Chain:
        """Return a chain with known summaries in place of the files that they replace."""
        with self._lock:
            found = [file for file in self._known.values() if file is not None]
        # The newest replaces most. One that is made of others fits only where those are named.
        found.sort(key=lambda file: (file.ref.version, file.ref.kind == "snapshot"), reverse=True)
        while True:
            at = {ref.path: index for index, ref in enumerate(chain)}
            shorter = next((s for s in (_put(file, chain, at) for file in found) if s), None)
            if shorter is None:
                return chain
            chain = shorter

    def reach_back(self, chain: Chain, oldest: int) -> Chain:
        """Return a chain without the store's own summaries of version `oldest` and later ones.

        Raises:
            NotFoundError, CorruptionError, StorageError: As `deltas_since`.
        """
        return reach_back(self._location, chain, oldest, self.files_before)

    def files_before(self, chain: Chain, index: int) -> Chain:
        """Return the files that replace the summary at an index of a chain, and all before it.

        Raises:
            NotFoundError, CorruptionError, StorageError: As `files_before_summary`.
        """
        name = chain[index].path
        with self._lock:
            known = self._chains.get(name)
        if known is None:
            known = files_before_summary(self._location, chain, index, None)
            with self._lock:
                self._chains[name] = known
        return known

    def nameable(self, names: Iterable[str], paths: Iterable[str]) -> set[str]:
        """Return the summaries that a version made of some files, or built on it, could name.

        Args:
            names: Names of the files in the store directory.
            paths: Paths of the files, deltas and summaries.

        Raises:
            StorageError: The storage failed.
        """
        given = set(paths)
        parsed_given = [parsed for parsed in map(parse_state_file_name, given) if parsed]
        oldest = min((parsed.version for parsed in parsed_given), default=0)
        deltas = {
            (parsed.version, parsed.checkpoint_id)
            for parsed in parsed_given
            if parsed.kind == "delta"
        }
        reached = set(given)
        for name, parsed in sorted(self._parse(names).items(), key=lambda item: item[1].version):
            if name in given or parsed.version < oldest:
                continue
            if parsed.kind == "snapshot":
                of = {(parsed.version, parsed.checkpoint_id), (parsed.version, None)}
                if not deltas.isdisjoint(of):
                    reached.add(name)
                continue
            file = self._find(name)
            # An unreadable one may replace any files.
            if file is None or reached.issuperset(ref.path for ref in file.trailer.files):
                reached.add(name)
        return reached - given

    def _parse(self, names: Iterable[str]) -> dict[str, StateFileName]:
        parsed = ((name, parse_state_file_name(name)) for name in names)
        return {
            name: state_file
            for name, state_file in parsed
            if state_file and state_file.kind != "delta" and state_file.body == self._location.body
        }

    def _find(self, name: str) -> PublishedFile | None:
        with self._lock:
            if name in self._known:
                return self._known[name]
        try:
            found = read_trailer(self._location, name).lean
        except NotFoundError:
            return None
        except (CorruptionError, IncompatibleError) as error:
            logger.warning(
                "a summary cannot be read: store=%s, error=%s", self._location.store, error
            )
            found = None
        with self._lock:
            self._known[name] = found
        return found


def _put(summary: PublishedFile, chain: Chain, at: Mapping[str, int]) -> Chain | None:
    """Return a chain with a summary in it, None where it does not fit or is in it already.

    `at` tells where each file is in the chain, by its path.
    """
    if summary.trailer.kind == "snapshot":
        of = summary.trailer.parent
        for index, ref in enumerate(chain):
            if of is None or ref.version != of.version or ref.lineage != of.lineage:
                continue
            # A file that a rescale took over makes another version, even if its number is the same.
            if ref.kind == "delta" and not ref.is_foreign and _is_attempt(ref, of):
                return (summary.ref, *chain[index + 1 :])
        return None
    sources = summary.trailer.files
    start = at.get(sources[0].path) if sources else None
    if start is None or chain[start : start + len(sources)] != sources:
        return None
    return (*chain[:start], summary.ref, *chain[start + len(sources) :])


def _is_attempt(delta: FileRef, of: VersionRef) -> bool:
    """Return whether a delta is of the very attempt that a snapshot is of, as `nameable` asks.

    Another attempt of equal rows has a delta of its own, and the snapshot leads back to the wrong
    one. In checkpoint format v1 they share the name of one delta.
    """
    name = parse_state_file_name(delta.path)
    return name is not None and name.checkpoint_id in (of.checkpoint_id, None)
