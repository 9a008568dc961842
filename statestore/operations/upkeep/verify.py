"""Verify: prove that versions of a checkpoint are whole, by their trailers or by every row.

Fast reads the trailer of every file that a version is made of: each is there, of the right size,
and the one its reference names. Deep reads every byte as well: the checksum of every block, every
row in the key group and the state partition that its key belongs to, and as many rows as the
version says. Of Spark's own providers fast means that every file is there, and deep that every row
can be read, matches the checksums that there are, and lies in its state partition. Either way
the state schemas are read, without which no query starts, and file sources must have the log of
what a version had read.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import pyarrow as pa

from statestore.checkpoint.key_group_rows import NUM_CLASSES, count_classes, folded
from statestore.checkpoint.layout import store_of_path
from statestore.checkpoint.lineage import check_ref
from statestore.checkpoint.trailers import read_trailer
from statestore.codec.partition_key import compute_key_groups
from statestore.codec.rows import from_numpy, rows_by_family, to_numpy
from statestore.codec.sealed_file import SealedFile
from statestore.codec.spark_types import parse_schema
from statestore.core.errors import (
    CorruptionError,
    IncompatibleError,
    NotFoundError,
    StateStoreError,
    require_several,
    require_whole,
)
from statestore.io.fetch_cache import open_fetched
from statestore.io.local import named_errors
from statestore.io.storage import is_within, place_uri
from statestore.operations import spark_states
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE, OpenCheckpoint, open_checkpoint
from statestore.operations.metadata_file import read_metadata
from statestore.operations.processes import (
    into_shares,
    map_in_processes,
    place_for_processes,
)
from statestore.operations.result import no_progress
from statestore.operations.savepoint.savepoint import savepoint_in
from statestore.operations.source_logs import check_sources, names_of_sources
from statestore.operations.states import check_committed, most_rows, state_of
from statestore.operations.upkeep.verification import Finding, Verification
from statestore.operations.upkeep.what_expired import (
    ABOUT_THE_READER,
    DAMAGE,
    is_expiry,
    is_let_go,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt

    from statestore.checkpoint.query_log import OffsetsEntry
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.references import FileRef, StoreName
    from statestore.io.place import Place
    from statestore.operations.result import Progress
    from statestore.operations.store_state import StoreState
    from statestore.spark_files.rows import SparkVersion

NUM_READERS = 2

Of = TypeVar("Of")


def verify(
    checkpoint: OpenCheckpoint,
    *,
    versions: Iterable[int] | Literal["all"] | None = None,
    deep: bool = False,
    progress: Progress = no_progress,
) -> Verification:
    """Verify versions of a checkpoint or savepoint.

    Arguments, result and errors as `Directory.verify`.
    """
    verifier = _Verifier(checkpoint, deep=deep, skips_expired=versions == "all")
    if versions == "all":
        versions = (batch + 1 for batch in checkpoint.done_batches)
    elif versions is not None:
        require_several("versions", versions)
    if versions is None:
        wanted = {checkpoint.newest_version} - {0}
    else:
        wanted = {require_whole("versions", version) for version in versions}
    for version in wanted:
        check_committed(checkpoint, version)
    if checkpoint.newest_version in {*wanted} | {0}:
        verifier.verify_start()
    return verifier.run(sorted(wanted, reverse=True), progress)


def verify_back(
    checkpoint: OpenCheckpoint, *, deep: bool, progress: Progress = no_progress
) -> Iterator[Verification]:
    """Verify the committed versions of a checkpoint one by one, newest first.

    The checksums of a file are verified once, whichever versions it is of. A version older than the
    newest that they make unreadable is given up without the rows of its other stores: however many
    versions a damaged file makes unreadable, deep reads the rows of about two.

    Args:
        checkpoint: Of a query, on a provider of this package.
        deep: As in `Directory.verify`.
        progress: Begins anew with each version, and with its rows.

    Yields:
        What is wrong with each, of all its files; of rows as above.

    Raises:
        As `Directory.verify`.
    """
    verifier = _Verifier(checkpoint, deep=deep, skips_expired=False)
    verifier.verify_start()
    for batch in reversed(checkpoint.done_batches):
        is_newest = batch + 1 == checkpoint.newest_version
        found = verifier.run([batch + 1], progress, gives_up=not is_newest)
        own = tuple(finding for finding in found.findings if finding.version == batch + 1)
        yield replace(found, findings=own)


def check_entry_before(checkpoint: OpenCheckpoint, version: int) -> None:
    """Check that Spark starts from a version after whose batch none is planned.

    It reads the entry of the batch before as well: from where to where the last batch has read.

    Raises:
        NotFoundError, CorruptionError, StorageError: As `offsets_entry`.
    """
    if version > 1:
        checkpoint.offsets_entry(version - 2)


@dataclass
class _Found:
    """Files, rows and findings so far.

    Attributes:
        sizes: Bytes of every file, by path.
        errors: What is wrong with every file, by path.
        num_rows: Rows read.
        findings: What is wrong.
        expired: Versions that were expired.
        unchecked: As `Verification.unchecked`.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, StateStoreError | None] = field(default_factory=dict)
    num_rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    expired: set[int] = field(default_factory=set)
    unchecked: set[str] = field(default_factory=set)

    def add(self, other: _Found) -> None:
        """Add what was found in other stores."""
        self.sizes |= other.sizes
        self.errors |= other.errors
        self.num_rows += other.num_rows
        self.findings += other.findings
        self.expired |= other.expired
        self.unchecked |= other.unchecked


def _order(finding: Finding) -> tuple[int, str]:
    """Newest first, and what concerns all stores before what one does."""
    return -finding.version, "" if finding.store is None else str(finding.store)


@dataclass(frozen=True)
class _Share:
    """Versions of stores that a process of its own verifies deep; arguments as `_Verifier`.

    What the process fetches is below `directory`, which outlives it, whatever ends it. What is
    known of their files is in `errors`.
    """

    place: Place
    directory: str
    heads: list[tuple[int, PublishedFile]]
    skips_expired: bool
    errors: dict[str, StateStoreError | None]


def _verify_share(share: _Share) -> _Found:
    with open_checkpoint(share.place, share.directory) as checkpoint:
        verifier = _Verifier(checkpoint, deep=True, skips_expired=share.skips_expired)
        verifier.found.errors |= share.errors
        for version, head in share.heads:
            verifier.verify_store(version, head, reads_rows=True)
        return verifier.found


class _Verifier:
    """One verification; remembers the files it has seen."""

    def __init__(self, checkpoint: OpenCheckpoint, *, deep: bool, skips_expired: bool) -> None:
        self._checkpoint = checkpoint
        self._deep = deep
        self._skips_expired = skips_expired
        self._lock = Lock()
        self.found = _Found()
        self._is_savepoint = False
        self._schemas_elsewhere: tuple[str, ...] = ()

    def verify_start(self) -> None:
        """Read what Spark starts from beside the newest version: no version is made of it.

        That is the entry of the batch under way, which runs again, or the one before the newest.
        """
        newest = self._checkpoint.newest_version
        is_under_way = newest in self._checkpoint.planned_batches
        try:
            if is_under_way:
                self._check_sources(newest, self._checkpoint.offsets_entry(newest))
            else:
                check_entry_before(self._checkpoint, newest)
        except DAMAGE as error:
            self._find(newest, None, error, is_recoverable=is_under_way)

    def _verify_schemas(self, version: int) -> None:
        """Read the state schemas of every operator; one that Spark never wrote is no finding."""
        checkpoint = self._checkpoint
        try:
            operators = checkpoint.operators
        except DAMAGE:
            return  # found where stores are looked for
        for operator in operators:
            files = {file for store in operator.stores for file in store.schema_paths}
            for file in sorted(files):
                path = f"{checkpoint.state_directory}/{operator.id}/{file}"
                try:
                    for family in checkpoint.schemas(operator.id, file):
                        _check_schema(family, path)
                except NotFoundError:
                    continue
                except DAMAGE as error:
                    self._find(version, None, error, is_recoverable=True)
        if not self._is_savepoint:  # a restore names them anew
            self._schemas_elsewhere = tuple(filter(self._lacks, checkpoint.schema_uris))

    def _lacks(self, uri: str) -> bool:
        """Return whether a file of another directory than the checkpoint's is not there.

        It may be the same file under another mount, so that Spark finds it: that is no finding.
        """
        place = self._checkpoint.place
        try:
            directory, _, name = place_uri(uri, is_encoded=False).rpartition("/")
            if is_within(directory, place.state_uri):
                return False  # found where stores are looked for
            io, path = place.open_other(directory, self._checkpoint.scratch_directory)
            return all(info.name != name for info in io.list(path))
        except StateStoreError as error:
            return error.kind == "directory-gone"  # else nobody can tell from here

    def _check_sources(self, batch: int, entry: OffsetsEntry) -> None:
        """Check that file sources know what they have read by a batch; errors as there."""
        check_sources(self._checkpoint.uri, {batch: entry}, self._source_names)

    @cached_property
    def _source_names(self) -> list[str]:
        return names_of_sources(self._checkpoint.io, self._checkpoint.path)

    def run(
        self, versions: list[int], progress: Progress, *, gives_up: bool = False
    ) -> Verification:
        """Verify versions, newest first.

        Args:
            versions: The versions.
            progress: Of their stores.
            gives_up: Whether no rows are wanted, but of stores with damaged files, once one of
                them is lost.
        """
        try:
            _, savepoint = read_metadata(self._checkpoint.io, self._checkpoint.path)
            self._is_savepoint = savepoint is not None
            if self._is_savepoint:
                savepoint_in(self._checkpoint)
        except (CorruptionError, NotFoundError) as error:
            if versions:
                self._find(versions[0], None, error, is_recoverable=True)
        # Of Spark's own state they are read with the rows.
        if versions and not self._checkpoint.is_of_spark:
            self._verify_schemas(versions[0])
        for version in versions:
            try:
                entry = self._checkpoint.offsets_entry(version - 1)
            except DAMAGE:
                continue  # found where stores are looked for
            try:
                self._check_sources(version - 1, entry)
            except NotFoundError as error:
                self._find(version, None, error)
        if self._checkpoint.is_of_spark:
            find = partial(spark_states.find_versions, self._checkpoint)
            self._run_in_threads(self._verify_of_spark, self._each(versions, find), progress)
        else:
            heads = self._each(versions, self._checkpoint.heads)
            if gives_up and self._deep:
                self._verify_stores(heads, progress, reads_rows=False)
                found = [one for one in self.found.findings if one.version in versions]
                seen = {(one.version, one.store) for one in found}
                heads = [of for of in heads if (of[0], of[1].trailer.store) not in seen]
                if not all(one.is_recoverable for one in found):
                    heads = []
            self._verify_stores(heads, progress, reads_rows=self._deep)
        return Verification(
            checkpoint=self._checkpoint.uri,
            is_savepoint=self._is_savepoint,
            is_repairable=not (self._is_savepoint or self._checkpoint.is_of_spark),
            versions=tuple(version for version in versions if version not in self.found.expired),
            expired=tuple(version for version in versions if version in self.found.expired),
            is_deep=self._deep,
            num_files=len(self.found.sizes),
            num_bytes=sum(self.found.sizes.values()),
            num_rows=self.found.num_rows,
            findings=tuple(
                finding
                for finding in sorted(self.found.findings, key=_order)
                if not self._skips_expired or finding.version not in self.found.expired
            ),
            unchecked=tuple(sorted(self.found.unchecked)),
            schemas_elsewhere=self._schemas_elsewhere,
        )

    def _each(
        self, versions: list[int], find: Callable[[int], Mapping[StoreName, Of]]
    ) -> list[tuple[int, Of]]:
        """Return each store of the versions in each state partition."""
        work: list[tuple[int, Of]] = []
        for version in versions:
            try:
                work += [(version, found) for found in find(version).values()]
            except DAMAGE as error:
                self._find(version, None, error, expired=is_expiry(error, version))
        return work

    def _verify_stores(
        self, heads: list[tuple[int, PublishedFile]], progress: Progress, *, reads_rows: bool
    ) -> None:
        shares = self._shares(heads) if reads_rows else []
        if shares:
            self._run_in_processes(shares, progress)
        else:
            verify_one = partial(self.verify_store, reads_rows=reads_rows)
            self._run_in_threads(verify_one, heads, progress)

    def _run_in_threads(
        self, verify_one: Callable[[int, Of], None], work: list[tuple[int, Of]], progress: Progress
    ) -> None:
        most = NUM_READERS if self._deep else MAX_REQUESTS_AT_ONCE
        with ThreadPoolExecutor(most) as pool:
            for done, _ in enumerate(pool.map(lambda of: verify_one(*of), work), 1):
                progress(done, len(work))

    def _run_in_processes(self, shares: list[_Share], progress: Progress) -> None:
        total = sum(len(share.heads) for share in shares)
        done = 0
        for share, found in map_in_processes(_verify_share, shares):
            self.found.add(found)
            done += len(share.heads)
            progress(done, total)

    def _shares(self, heads: list[tuple[int, PublishedFile]]) -> list[_Share]:
        """Return a share for each process to take when it is done with one; none if none pays.

        All versions of a store are in one: they have files in common, which are read once.
        """
        stores: dict[StoreName, list[tuple[int, PublishedFile]]] = {}
        for version, head in heads:
            stores.setdefault(head.trailer.store, []).append((version, head))
        num_rows = sum(most_rows(head) for _, head in heads)
        place = place_for_processes(self._checkpoint, num_rows, len(stores))
        if place is None:
            return []
        directory = self._checkpoint.scratch_directory
        return [
            _Share(
                place,
                directory,
                list(chain.from_iterable(share)),
                self._skips_expired,
                self.found.errors,
            )
            for share in into_shares(list(stores.values()))
        ]

    def _verify_of_spark(
        self, version: int, found: SparkVersion, asked: SparkVersion | None = None
    ) -> None:
        """Verify a store that Spark's own provider wrote: its files, then every row.

        `asked` is what was first found, from which readers begin.
        """
        asked = asked or found
        with self._lock:
            self.found.sizes |= found.sizes
        try:
            found.check_files()
            if self._deep:
                alone = replace(found, older=None)
                self._count_rows(spark_states.state_of(self._checkpoint, version, alone))
        except DAMAGE as error:
            try:
                older = found.without(error)
            except DAMAGE:
                for of_snapshot in found.passed_over:
                    self._find(version, found.files.store, of_snapshot)
                self._find(version, found.files.store, error)
            else:
                self._verify_of_spark(version, older, asked)
        else:
            is_read = bool(found.passed_over) and self._is_read(version, asked)
            for of_snapshot in found.passed_over:
                self._find(version, found.files.store, of_snapshot, is_recoverable=is_read)

    def _is_read(self, version: int, found: SparkVersion) -> bool:
        """Tell whether a reader gets every row: damage that shows later than at once stops it."""
        try:
            for _ in spark_states.state_of(self._checkpoint, version, found).rows(None):
                pass
        except DAMAGE:
            return False
        return True

    def _may_expire(self, version: int) -> bool:
        return version < self._checkpoint.newest_version

    def _is_let_go(self, store: StoreName, ref: FileRef) -> bool:
        location = self._checkpoint.location(store_of_path(store, ref.path))
        return is_let_go(ref, (info.name for info in location.io.list(location.directory)))

    def verify_store(self, version: int, head: PublishedFile, *, reads_rows: bool) -> None:
        """Verify a version of a store in one state partition.

        Args:
            version: The version.
            head: Its newest file.
            reads_rows: Whether to read every row also where all files are whole.
        """
        store = head.trailer.store
        errors = {
            ref: error for ref in head.chain if (error := self._verify_file(store, ref)) is not None
        }
        if self._may_expire(version) and any(
            error.kind == "file-not-found" and self._is_let_go(store, ref)
            for ref, error in errors.items()
        ):
            with self._lock:
                self.found.expired.add(version)
            if self._skips_expired:
                return
        # Nothing stands for a delta: its rows would only raise the same again.
        has_deltas = all(ref.kind != "delta" for ref in errors)
        damage = None
        if has_deltas and (reads_rows or errors):
            try:
                self._verify_rows(head)
            except DAMAGE as error:
                damage = error
        for found in errors.values():
            self._find(version, store, found, is_recoverable=has_deltas and damage is None)
        if damage is not None and not errors:
            self._find(version, store, damage)

    def _verify_file(self, store: StoreName, ref: FileRef) -> StateStoreError | None:
        location = self._checkpoint.location(store)
        path = location.path(ref.path)
        with self._lock:
            if path in self.found.errors:
                return self.found.errors[path]

        def verified(local_path: str) -> None:
            with named_errors("open a file", local_path):
                SealedFile(local_path, path).verify()

        found: StateStoreError | None = None
        try:
            published = read_trailer(location, ref.path)
            check_ref(published.trailer, ref, path)
            if self._deep:
                open_fetched(lambda: location.io.fetch(path), verified)
        except DAMAGE as error:
            found = error
        with self._lock:
            self.found.errors[path] = found
            self.found.sizes[path] = ref.size
        return found

    def _count_rows(self, state: StoreState) -> tuple[int, npt.NDArray[np.int64]]:
        """Read every row; return how many there are, and of each class of key groups.

        Raises:
            CorruptionError: One is where its key does not belong; or as `StoreState.rows`.
        """
        num_rows = 0
        by_class = np.zeros(NUM_CLASSES, np.int64)
        unchecked: set[str] = set()
        for batch in state.rows(None):
            num_rows += batch.num_rows
            if state.rescalable:
                unchecked.update(_check_key_groups(batch, state))
            groups = to_numpy(batch.column(0), np.uint16)
            by_class += count_classes(groups, state.num_partitions)
        with self._lock:
            self.found.num_rows += num_rows
            self.found.unchecked |= unchecked
        return num_rows, by_class

    def _verify_rows(self, head: PublishedFile) -> None:
        trailer = head.trailer
        num_rows, by_class = self._count_rows(state_of(self._checkpoint, head))
        told = trailer.key_group_rows
        by_class_told = () if told is None else folded(by_class.tolist(), len(told))
        for name, expected, found in (
            ("num_keys", trailer.num_keys, num_rows),
            ("key_group_rows", told, by_class_told),
        ):
            if expected not in (None, found):
                raise CorruptionError(
                    "the rows of a version are not as many as its trailer says",
                    file=head.ref.path,
                    offset=0,
                    field=name,
                    expected=expected,
                    found=found,
                    to_fix="go back to an older version with `statestore repair`",
                )

    def _find(
        self,
        version: int,
        store: StoreName | None,
        error: StateStoreError,
        *,
        is_recoverable: bool = False,
        expired: bool = False,
    ) -> None:
        if error.kind in ABOUT_THE_READER:
            raise error
        with self._lock:
            if expired and self._may_expire(version):
                self.found.expired.add(version)
            self.found.findings.append(
                Finding.of(version, store, error, is_recoverable=is_recoverable)
            )


def _check_schema(family: ColumnFamily, path: str) -> None:
    """Check that the schemas of a column family are schemas.

    Raises:
        CorruptionError: One is not.
    """
    for schema in filter(None, (family.key_schema, family.value_schema)):
        try:
            parse_schema(schema)
        except IncompatibleError:
            continue  # a type that this release does not know is no damage
        except CorruptionError as error:
            raise CorruptionError(
                "a state schema is damaged",
                file=path,
                offset=0,
                family=family.name,
                expected=error.fields["expected"],
                found=error.fields["found"],
                to_fix="put the file back from a copy",
            ) from error


def _check_key_groups(batch: pa.RecordBatch, state: StoreState) -> list[str]:
    """Check that the rows of a store are where their keys belong.

    Returns:
        Of each column family whose keys this release cannot read, which is no damage, why.

    Raises:
        CorruptionError: One is not.
    """
    groups = to_numpy(batch.column(0), np.uint16)
    is_wrong = groups % np.uint32(state.num_partitions) != state.store.partition
    unchecked = []
    for family, rows in rows_by_family(batch, state.column_families):
        if family.key_schema is None:
            continue
        keys = batch.column(3)
        if len(rows) < batch.num_rows:
            keys = keys.take(from_numpy(rows, pa.int64()))
        try:
            computed = compute_key_groups(keys, state.store.name, family, state.max_parallelism)
        except IncompatibleError as error:
            of = f"operator {state.store.operator}, store {state.store.name}, {family.name}"
            unchecked.append(f"{of}: {error}")
            continue
        is_wrong[rows] |= computed != groups[rows]
    if is_wrong.any():
        raise CorruptionError(
            "a row is not in the key group or the state partition that its key belongs to",
            file=str(state.store),
            offset=int(np.flatnonzero(is_wrong)[0]),
            expected=f"key groups of state partition {state.store.partition} of "
            f"{state.num_partitions}",
            found=f"{int(is_wrong.sum())} other rows of {batch.num_rows}",
            to_fix="go back to an older version with `statestore repair`",
        )
    return unchecked
