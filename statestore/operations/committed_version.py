"""A committed version of a query: everything that a restart from it needs, as files.

metadata                       the query's ID; made anew, not copied
offsets/<b>                    of the version's batch, the one before or all of operations in a
                                row, and a batch under way
commits/<b>                    of the version's batch
sources/…, and any other directory beside these
state/<operator>/_metadata      Spark's: operators; the schemas in column families by URIs
state/<operator>/_stateSchema, state/<operator>/0/…/_metadata      Spark's: schemas
state/<operator>/<partition>/…  state files: the version's delta and what it names
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.checkpoint.operator_metadata import OF_OPERATOR
from statestore.checkpoint.pins import pinned
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY, CommitEntry, OffsetsEntry
from statestore.codec.partition_key import is_single
from statestore.core.errors import CorruptionError, NotFoundError, require_whole
from statestore.io.storage import scheme_of
from statestore.operations.batches import is_of_operation
from statestore.operations.metadata_file import METADATA_NAME, read_metadata
from statestore.operations.source_logs import check_sources
from statestore.operations.states import check_committed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import FileRef, StoreName
    from statestore.operations.checkpoint import OpenCheckpoint

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
        offsets: Entries of the offset log by batch: the version's own, the one before, of
            operations in a row all, and where the version is the newest, the one of a batch that
            was planned and not committed. All have the version's number of state partitions: a copy
            has no rescale to undo.
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
        """1 or 2, as the commit log says."""
        return self.commits[self.batch].checkpoint_format

    @cached_property
    def stores(self) -> tuple[tuple[int, str], ...]:
        """Operator ID and name of every store."""
        return tuple(dict.fromkeys((store.operator, store.name) for store in self.heads))

    def check_sources(self) -> None:
        """Check that a copy reads on where the version ends, and has its own files alone.

        Errors as `check_sources`, and as `require_own`.
        """
        require_own(self.checkpoint)
        check_sources(self.checkpoint.uri, self.offsets, self.spark_files)

    def is_single(self, operator: int, name: str) -> bool:
        """Return whether a store has one state partition whatever the query's number is."""
        of = {
            store.partition: head.trailer
            for store, head in self.heads.items()
            if (store.operator, store.name) == (operator, name)
        }
        return is_single(name, of[min(of)].column_families, of)

    def state_files(self, store: StoreName) -> tuple[tuple[str, FileRef], ...]:
        """Return the files that make a store's version: path on the state's storage, reference."""
        head = self.heads[store]
        location = self.checkpoint.location(store)
        return tuple((location.path(ref.path), ref) for ref in head.chain)

    def pinned(self, pin_id: str) -> AbstractContextManager[None]:
        """Hold the version's state files back from retention within a block, as `pins.pinned`.

        A savepoint's are as they are: no retention deletes them.
        """
        if self.is_savepoint:
            return nullcontext()
        locations = [self.checkpoint.location(store) for store in self.heads]
        return pinned(locations, self.version, pin_id)

    def state_bytes(self, stores: Iterable[StoreName] | None = None) -> int:
        """Return the bytes of the files that make some stores, or all; shared ones once."""
        wanted = self.heads if stores is None else stores
        files = dict(file for store in wanted for file in self.state_files(store))
        return sum(ref.size for ref in files.values())


def find_version(
    checkpoint: OpenCheckpoint, version: int | None = None, *, has_heads: bool = True
) -> CommittedVersion:
    """Find what makes a committed version; nothing is copied yet.

    Args:
        checkpoint: The checkpoint.
        version: State version, None for the newest committed one.
        has_heads: Whether its state is of this package's; else there are none.

    Raises:
        InvalidArgumentError: The version is no whole number.
        NotFoundError: The version was not committed, or files that a copy needs were expired.
        CorruptionError, IncompatibleError, FencedError, StorageError: Its files cannot be read.
    """
    if version is None:
        version = checkpoint.newest_version
        check_committed(checkpoint, version)
    version = require_whole("version", version)
    batch = version - 1
    # What the newest one lacks is lost, and is named where it is read.
    newest = checkpoint.done_batches[-1:]
    oldest = min((*checkpoint.copyable_batches, *newest), default=-1)
    if batch not in checkpoint.done_batches or batch < oldest:
        raise NotFoundError(
            "the version was not committed, or files that a copy needs were expired",
            kind="version-not-found",
            checkpoint=checkpoint.uri,
            version=version,
            oldest_version=oldest + 1,
            newest_version=checkpoint.newest_version,
            to_fix="name a version between these two, or let the query commit its first batch",
        )
    # The logs first: a source notes what a batch reads before the batch is planned.
    needed = _needed(checkpoint, batch, may_be_of_operations=has_heads)
    offsets = {wanted: checkpoint.offsets_entry(wanted) for wanted in needed}
    num_partitions = offsets[batch].conf[NUM_PARTITIONS_KEY]
    for before in {*offsets} - {batch}:
        offsets[before] = offsets[before].with_conf({NUM_PARTITIONS_KEY: num_partitions})
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


def _needed(checkpoint: OpenCheckpoint, batch: int, *, may_be_of_operations: bool) -> list[int]:
    """Return the batches whose entries of the offset log go with a version, ascending.

    Spark wants the batch before. Of operations in a row all are kept, up to the query's own batch:
    by their marks a sink's log is known to lack nothing.
    """
    needed = [batch - 1, batch] if batch > 0 else [batch]
    oldest = batch if may_be_of_operations else 0
    while oldest - 1 in checkpoint.planned_batches and is_of_operation(checkpoint, oldest):
        oldest -= 1
        if oldest < needed[0]:
            needed.insert(0, oldest)
    return needed


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


def require_own(checkpoint: OpenCheckpoint) -> None:
    """Check that the files of a checkpoint are its own.

    Who copies it may read what its writer may not. The directory and its `state` may be links, as
    where they were moved to another disk.

    Raises:
        CorruptionError: A link leads to a file from elsewhere.
    """
    if scheme_of(checkpoint.uri) != "file":
        return
    roots = [os.path.realpath(path) for path in (checkpoint.path, checkpoint.state_directory)]
    resolved: dict[str, str] = {}
    for info in checkpoint.io.list_tree(checkpoint.path):
        if "/../" in f"/{info.name}":  # of an object store: no file system has such a name
            continue
        directory, _, of_file = f"{checkpoint.path}/{info.name}".rpartition("/")
        if directory not in resolved:
            resolved[directory] = os.path.realpath(directory)
        path = f"{resolved[directory]}/{of_file}"
        # As many as a file source has read: each is looked at once, and its directory is known.
        leads_to = os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 (no error)
        if not any(Path(leads_to).is_relative_to(root) for root in roots):
            raise CorruptionError(
                "a link leads out of the checkpoint, and nobody knows whose the file is",
                file=f"{checkpoint.path}/{info.name}",
                leads_to=leads_to,
                to_fix="put what it leads to in place of the link if it belongs to the checkpoint, "
                "else delete the link",
            )
