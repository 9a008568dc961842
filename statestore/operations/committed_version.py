"""A committed version of a query: everything that a restart from it needs, as files.

metadata                       the query's ID; made anew, not copied
offsets/<b>                    of the version's batch, the one before, and a batch under way
commits/<b>                    of the version's batch
sources/…, and any other directory beside these
state/<operator>/_metadata      Spark's: operators; the schemas in column families by URIs
state/<operator>/_stateSchema, state/<operator>/0/…/_metadata      Spark's: schemas
state/<operator>/<partition>/…  state files: the version's delta and what it names
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from statestore.checkpoint import operator_metadata
from statestore.checkpoint.layout import parse_rescale_ref_name, parse_state_file_name
from statestore.checkpoint.operator_metadata import OF_OPERATOR
from statestore.checkpoint.pins import pinned
from statestore.checkpoint.query_log import (
    NUM_PARTITIONS_KEY,
    CommitEntry,
    OffsetsEntry,
    write_text,
)
from statestore.codec.partition_key import is_single
from statestore.codec.sealed_file import SealedFile
from statestore.core.errors import NotFoundError
from statestore.io.local import named_errors
from statestore.io.storage import hadoop_uri
from statestore.operations.metadata_file import METADATA_NAME, read_metadata
from statestore.operations.source_logs import check_sources
from statestore.operations.states import check_committed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import StoreName
    from statestore.core.ids import IdSource
    from statestore.io.file_io import FileIO
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.new_directory import NewDirectory

MAX_COPIES_AT_ONCE = 8
_LOGS = ("offsets", "commits")
_OF_STATE = re.compile(r"state/[0-9]+/[0-9]+/(?:.*/)?(?P<name>[^/]+)")


@dataclass(frozen=True)
class CommittedVersion:
    """A version that was committed in all operators, stores and state partitions.

    Attributes:
        checkpoint: Where it is.
        version: Its number, at least 1.
        query_id: ID of the query; None where its file is missing, and in a savepoint, whose
            descriptor has it.
        offsets: Entries of the offset log by batch: the version's own, the one before, and where
            the version is the newest, the one of a batch that was planned and not committed. All
            have the version's number of state partitions: a copy has no rescale to undo.
        commits: Entries of the commit log by batch: the version's own, since of the version before
            there are just the files that both are made of.
        heads: The delta of every store that has state.
        spark_files: Paths below the checkpoint directory of Spark's other files, but for the
            metadata of operators.
        is_savepoint: Whether it is a savepoint's, which nothing expires and nothing is written to.
    """

    checkpoint: OpenCheckpoint
    version: int
    query_id: str | None
    offsets: Mapping[int, OffsetsEntry]
    commits: Mapping[int, CommitEntry]
    heads: Mapping[StoreName, PublishedFile]
    spark_files: tuple[str, ...]
    is_savepoint: bool = False

    @property
    def batch(self) -> int:
        """The batch that made the version."""
        return self.version - 1

    @cached_property
    def num_partitions(self) -> int:
        """Number of state partitions."""
        return self.checkpoint.num_partitions_at(self.version)

    @property
    def checkpoint_format(self) -> int:
        """1 or 2: the commit log says v2, or names checkpoint IDs."""
        commit = self.commits[self.batch]
        return 2 if commit.checkpoint_ids or commit.version == "v2" else 1

    @cached_property
    def stores(self) -> tuple[tuple[int, str], ...]:
        """Operator ID and name of every store."""
        return tuple(dict.fromkeys((store.operator, store.name) for store in self.heads))

    def check_sources(self) -> None:
        """Check that a copy reads on where the version ends; errors as `check_sources`."""
        check_sources(self.checkpoint.uri, self.offsets.values(), self.spark_files)

    def is_single(self, operator: int, name: str) -> bool:
        """Return whether a store has one state partition whatever the query's number is."""
        of = {
            store.partition: head.trailer
            for store, head in self.heads.items()
            if (store.operator, store.name) == (operator, name)
        }
        return is_single(name, of[min(of)].column_families, of)

    def state_files(self, store: StoreName) -> tuple[tuple[str, int], ...]:
        """Return path on the state's storage and size of the files that make a store's version."""
        head = self.heads[store]
        location = self.checkpoint.location(store)
        refs = (*head.trailer.files, head.ref)
        return tuple((location.path(ref.path), ref.size) for ref in refs)

    def pinned(self, ids: IdSource) -> AbstractContextManager[None]:
        """Hold the version's state files back from retention within a block, as `pins.pinned`.

        A savepoint's are as they are: nothing of this package deletes them.

        Args:
            ids: Source of IDs.
        """
        if self.is_savepoint:
            return nullcontext()
        locations = [self.checkpoint.location(store) for store in self.heads]
        return pinned(locations, self.version, ids.new_id())

    def state_bytes(self, stores: Iterable[StoreName] | None = None) -> int:
        """Return the bytes of the files that make some stores, or all; shared ones once."""
        wanted = self.heads if stores is None else stores
        return sum(dict(file for store in wanted for file in self.state_files(store)).values())


def find_version(
    checkpoint: OpenCheckpoint, version: int | None = None, *, has_heads: bool = True
) -> CommittedVersion:
    """Find what makes a committed version; nothing is copied yet.

    Args:
        checkpoint: The checkpoint.
        version: State version, None for the newest committed one.
        has_heads: Whether its state is of this package's; else there are none.

    Raises:
        NotFoundError: The version was not committed, or was expired.
        CorruptionError, IncompatibleError, FencedError, StorageError: Its files cannot be read.
    """
    if version is None:
        version = checkpoint.newest_version
        check_committed(checkpoint, version)
    batch = version - 1
    if batch not in checkpoint.done_batches:
        raise NotFoundError(
            "the version was not committed, or was expired",
            kind="version-not-found",
            checkpoint=checkpoint.uri,
            version=version,
            oldest_version=min(checkpoint.done_batches, default=-1) + 1,
            newest_version=checkpoint.newest_version,
            to_fix="name a version between these two, or let the query commit its first batch",
        )
    # The logs first: a source notes what a batch reads before the batch is planned.
    needed = (batch - 1, batch) if batch > 0 else (batch,)
    offsets = {wanted: checkpoint.offsets_entry(wanted) for wanted in needed}
    num_partitions = offsets[batch].conf[NUM_PARTITIONS_KEY]
    if batch > 0:
        layout = {NUM_PARTITIONS_KEY: num_partitions}
        offsets[batch - 1] = offsets[batch - 1].with_conf(layout)
    commits = {batch: checkpoint.commit_entry(batch)}
    if version == checkpoint.newest_version:
        # A batch whose output may be in the sink already must be repeated with the same input.
        with suppress(NotFoundError):
            planned = checkpoint.offsets_entry(version)
            # One of another number of state partitions is what a rescale left that was not ended.
            if planned.conf.get(NUM_PARTITIONS_KEY) == num_partitions:
                offsets[version] = planned
    query_id, descriptor = None, None
    with suppress(NotFoundError):
        query_id, descriptor = read_metadata(checkpoint.io, checkpoint.path)
    return CommittedVersion(
        checkpoint,
        version,
        query_id,
        offsets,
        commits,
        checkpoint.heads(version) if has_heads else {},
        tuple(spark_files_of(checkpoint)),
        is_savepoint=descriptor is not None,
    )


def spark_files_of(checkpoint: OpenCheckpoint) -> Iterable[str]:
    """Yield the paths of what is neither log, state nor ours; hidden files are temporary.

    The metadata of operators is left out: it is written for the version, not copied.
    """
    for info in checkpoint.io.list_tree(checkpoint.path):
        top = info.name.partition("/")[0]
        is_ours = top.startswith("statestore")
        if is_ours or top in (METADATA_NAME, *_LOGS) or "/." in f"/{info.name}":
            continue
        of_state = _OF_STATE.fullmatch(info.name)
        if OF_OPERATOR.fullmatch(info.name) is None and (
            of_state is None or "/_metadata/" in info.name
        ):
            yield info.name


def copy_file(source: FileIO, path: str, target: NewDirectory, new_path: str) -> None:
    """Copy a file to any storage, durably; a state file is checked first.

    Raises:
        CorruptionError: It is a damaged state file.
        NotFoundError: It is not there.
        StorageError: A storage failed.
    """
    target.io.make_directory(posixpath.dirname(new_path))
    local = source.fetch(path)
    copy = f"{target.scratch_directory}/{target.ids.new_id()}"
    try:
        shutil.copyfile(local, copy)
    except FileNotFoundError as error:
        raise NotFoundError(
            "a file was deleted while it was copied",
            kind="file-not-found",
            file=path,
            to_fix="copy a newer version",
        ) from error
    if parse_state_file_name(posixpath.basename(path)) is not None:
        with named_errors("check a copy", copy):
            SealedFile(copy, path).verify()
    target.io.publish(copy, new_path, sync=True, overwrite=True)


def link_file(source: FileIO, path: str, target: NewDirectory, new_path: str) -> None:
    """Let a file appear in a directory of the same storage; errors as `copy_file`."""
    if not target.io.shares(source):
        copy_file(source, path, target, new_path)
        return
    target.io.make_directory(posixpath.dirname(new_path))
    target.io.link(path, new_path, sync=True)


def copy_state(
    version: CommittedVersion,
    stores: Iterable[StoreName],
    target: NewDirectory,
    state_io_root: str,
    add_done: Callable[[int], None],
    *,
    copy: Callable[[FileIO, str, NewDirectory, str], None] = copy_file,
) -> None:
    """Copy the state files of some stores as they are, to the same place below another root.

    Args:
        version: What to copy.
        stores: The stores.
        target: Where to.
        state_io_root: Directory of the operators' state there.
        add_done: Called with the bytes of each file that was copied.
        copy: How to copy a file.

    Raises:
        NotFoundError: A file was deleted meanwhile.
        CorruptionError, StorageError: A storage failed.
    """
    checkpoint = version.checkpoint
    stores = list(stores)
    files: dict[str, tuple[FileIO, str, int]] = {}
    for store in stores:
        location = checkpoint.location(store)
        found = [*version.state_files(store), *_references(version, store)]
        for path, size in found:
            files[posixpath.relpath(path, location.root)] = location.io, path, size
    with ThreadPoolExecutor(MAX_COPIES_AT_ONCE) as pool:

        def copy_one(below: str) -> int:
            io, path, size = files[below]
            copy(io, path, target, f"{state_io_root}/{below}")
            return size

        for size in pool.map(copy_one, files):
            add_done(size)


def _references(version: CommittedVersion, store: StoreName) -> Iterable[tuple[str, int]]:
    """Yield the store's files that keep what it takes from others from being deleted there."""
    location = version.checkpoint.location(store)
    taken = [ref.path for ref in version.heads[store].trailer.files if ref.is_foreign]
    directories = {posixpath.dirname(location.path(path)) for path in taken}
    for directory in directories | ({location.directory} if taken else set()):
        for info in location.io.list(directory):
            ref = parse_rescale_ref_name(info.name)
            # One of another store leads to nothing without the one in that store's directory.
            if ref is not None and ref.partition == store.partition:
                yield f"{directory}/{info.name}", info.size


def write_logs(
    target: NewDirectory, offsets: Mapping[int, OffsetsEntry], commits: Mapping[int, CommitEntry]
) -> None:
    """Write the entries of both logs; errors as `NewDirectory.check_mine` and `write_text`."""
    target.check_mine()
    for batch, offset in offsets.items():
        write_text(target.io, f"{target.path}/offsets/{batch}", offset.encode(), overwrite=True)
    for batch, commit in commits.items():
        write_text(target.io, f"{target.path}/commits/{batch}", commit.encode(), overwrite=True)


def copy_operators(
    source: OpenCheckpoint,
    target: NewDirectory,
    new_ids: Mapping[int, int],
    num_partitions: int,
    newest_batch: int,
) -> None:
    """Write Spark's metadata of operators to a new directory; all as `operator_metadata` does."""
    operator_metadata.copy_operators(
        source.io,
        source.state_directory,
        target.io,
        f"{target.path}/state",
        f"{hadoop_uri(target.uri)}/state",
        new_ids,
        num_partitions,
        newest_batch,
    )


def copy_spark_files(
    version: CommittedVersion,
    target: NewDirectory,
    rename: Callable[[str], str | None] = lambda path: path,
) -> None:
    """Copy Spark's files that are neither log nor state.

    Args:
        version: What to copy from.
        target: Where to.
        rename: Returns the new path of a file below the directory, None to leave it out.

    Raises:
        NotFoundError: A source deleted one meanwhile, as it does after it put it into a later one;
            or as `CommittedVersion.check_sources`.
        FencedError: The target was begun anew by another process.
        StorageError: A storage failed.
    """
    version.check_sources()
    renamed = {path: new for path in version.spark_files if (new := rename(path)) is not None}
    copy_files(version.checkpoint, target, renamed)


def copy_files(source: OpenCheckpoint, target: NewDirectory, names: Mapping[str, str]) -> None:
    """Copy files of a checkpoint, several at a time.

    Args:
        source: Copied from.
        target: Copied to.
        names: New paths below the directory, by the old ones.

    Raises:
        NotFoundError, FencedError, StorageError: As `copy_spark_files`.
    """
    # Their names are the same for whoever else might write the directory.
    target.check_mine()

    def copy_one(names: tuple[str, str]) -> None:
        old, new = names
        copy_file(source.io, f"{source.path}/{old}", target, f"{target.path}/{new}")

    with ThreadPoolExecutor(MAX_COPIES_AT_ONCE) as pool:
        for _ in pool.map(copy_one, names.items()):
            pass
