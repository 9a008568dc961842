"""Copy: a new directory made of a version; savepoint, branch, restore, transform and write are one.

What is true of each of them is written here, once: the version is held back from retention, the
directory is nobody's before it is whole, Spark's files come before the state and the logs after it,
and `metadata`, which makes it count, is last. How the rows of a store pass is a `Pass`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statestore.backends.forms import work_in
from statestore.checkpoint.history import Event, append
from statestore.checkpoint.layout import BODIES, StoreLocation
from statestore.checkpoint.pins import pin_id_for
from statestore.checkpoint.placement import make_placement
from statestore.checkpoint.query_log import NUM_PARTITIONS_KEY
from statestore.checkpoint.text_files import write_bytes
from statestore.codec.references import StoreName
from statestore.core.errors import StateStoreError
from statestore.core.providers import IN_DRIVER_MEMORY, PROVIDER_KEY, PROVIDERS
from statestore.io.file_io import unasked
from statestore.operations.batches import checkpoint_ids_of
from statestore.operations.committed_version import find_version
from statestore.operations.copied_files import copy_operators, copy_spark_files, write_logs
from statestore.operations.copy_result import CopyResult
from statestore.operations.new_directory import begin_directory, check_target, delete_directory
from statestore.operations.operator_map import OperatorMap, ResolvedOperators, store_names_of
from statestore.operations.passes import BytesDone, NewState, write_added
from statestore.operations.result import Made, no_progress

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.io.place import Place
    from statestore.operations.batches import CheckpointIds
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.new_directory import NewDirectory
    from statestore.operations.passes import Pass, StoreId
    from statestore.operations.result import Progress

logger = logging.getLogger(__name__)

MadeFiles = Mapping["StoreName", "PublishedFile"]
"""The delta of every store of the new directory."""

_OF_OPERATOR = re.compile(r"state/([0-9]+)/(.*)")


@dataclass(frozen=True)
class Copy:
    """A new directory that was decided and is not yet made.

    Attributes:
        operation: The command that makes it: what the directory says is under way.
        version: The version that it is made of.
        target: The directory, which must not be there.
        passes: How the rows of each store pass, by operator ID and name; the others stay behind.
        becomes: Returns, of all that was made, the text of `metadata`.
        backend: State backend of its state files.
        num_partitions: Number of its state partitions.
        checkpoint_format: 1 or 2.
        operators: Which operators become which.
        query_id: ID that the query goes on under; empty for one that is new.
        state_uri: Where its state is kept, where that is not the directory itself; else empty.
        claims: Whether what it is made of is deleted when it is whole.
        files: Spark's files that are other than those of the version, by path below the directory.
        remade: Stores that operators have in place of those of the version, in Spark's order, by
            operator ID; all that Spark has of such an operator is in `files`.
        conf: Settings that entries of the offset log pin otherwise than the version's.
        ask: Called before what cannot be undone; a raise prevents it.
        pins: Whether the version is held back from retention meanwhile.
        says: What `metadata` says beside, until the directory is whole.
        keeps: Directories of a target that was begun before which stay there.
    """

    operation: str
    version: CommittedVersion
    target: Place
    passes: Mapping[StoreId, Pass]
    becomes: Callable[[MadeFiles], str]
    backend: str
    num_partitions: int
    checkpoint_format: int
    operators: ResolvedOperators
    query_id: str = ""
    state_uri: str = ""
    claims: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    remade: Mapping[int, Sequence[str]] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    ask: Callable[[], None] = unasked
    pins: bool = True
    says: Mapping[str, str] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()

    @property
    def source(self) -> OpenCheckpoint:
        """The checkpoint or savepoint that the version is of."""
        return self.version.checkpoint

    @cached_property
    def stores(self) -> tuple[StoreName, ...]:
        """The version's stores that pass."""
        heads = self.version.heads
        return tuple(store for store in heads if (store.operator, store.name) in self.passes)

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of the state files that are read."""
        own_bytes = sum(passing.own_bytes for passing in self.passes.values())
        return self.version.state_bytes(self.stores) + own_bytes

    @property
    def state_files(self) -> str:
        """What becomes of the state files, in words."""
        return ", ".join(dict.fromkeys(passing.words for passing in self.passes.values()))

    def make(
        self,
        made: Made,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CopyResult[Made]:
        """Make it, unless `dry_run`, and return what was made and how.

        Args:
            made: Stands for the new directory.
            dry_run: Whether to change nothing.
            progress: As `run`, and errors.
        """
        result: CopyResult[Made] = self.result
        if dry_run:
            return result
        self.run(progress or no_progress)
        return result.done_with(made)

    @property
    def result(self) -> CopyResult[Any]:
        """What it would do."""
        by_pass = self._by_pass()
        read = [
            store for store in self.stores if not self.passes[store.operator, store.name].is_free
        ]
        return CopyResult(
            operation=self.operation,
            source=self.source.uri,
            target=self.target.uri,
            version=self.version.version,
            query_id=self.query_id or None,
            backend=self.backend,
            num_partitions=self.num_partitions,
            checkpoint_format=self.checkpoint_format,
            operators=dict(self.operators.kept),
            dropped_operators=tuple(
                operator.id
                for operator in self.source.operators
                if operator.id not in self.operators.kept
            ),
            added_operators=dict(self.operators.added),
            families=tuple(family for passing in by_pass for family in passing.families),
            state_files=self.state_files,
            state_bytes=self.state_bytes,
            copied_bytes=self.version.state_bytes(read)
            + sum(passing.own_bytes for passing in by_pass),
            claim=self.claims,
            done=False,
        )

    def run(self, progress: Progress = no_progress) -> None:
        """Make it.

        Args:
            progress: Called with bytes of state done and the total.

        Guarantee: on return the directory is whole and durable. After a raise, or when the process
        is killed, no query starts from it and nothing takes it for a savepoint; the same operation
        may be repeated. What it is made of is as it was, but for pins that expire; what is claimed
        is whole until the directory is, and is then no longer one, whatever is left of it: what
        cannot be deleted stays, with a warning.

        Raises:
            InvalidArgumentError: The target has files meanwhile (kind checkpoint-exists); or as the
                passes.
            NotFoundError: The query expired a file meanwhile.
            CorruptionError, IncompatibleError, FencedError, StorageError: What is there cannot be
                read, a storage failed, or another process began the directory anew.
        """
        with (
            self._pinned(),
            begin_directory(
                self.target, self.operation, self.source.uri, self.ask, self.says, self.keeps
            ) as target,
        ):
            # First, since nothing pins them.
            copy_spark_files(self.version, target, self._rename)
            for path, data in self.files.items():
                write_bytes(target.io, f"{target.path}/{path}", data, overwrite=True)
            state = self._begin_state(target, progress)
            made: dict[StoreName, PublishedFile] = {}
            for passing, stores in self._by_pass().items():
                made |= passing.write(stores, state)
            made |= write_added(state, self._added_stores, made.values())
            # The names of what follows are the same for whoever else might write the directory.
            target.check_mine()
            # With an operator that is new, Spark writes the metadata of all in its first batch. By
            # that of version 2 it finds the schemas of what there is.
            kept = self.operators.kept.items()
            copied = {
                old: new
                for old, new in kept
                if old not in self.remade
                and (not self.operators.added or self.source.operator(old).has_families)
            }
            batch = self.version.batch  # the next one's comes with schemas that are not here
            copy_operators(self.source, target, copied, self.num_partitions, batch)
            self._write_logs(target, made)
            version = self.version.version
            result = {"state_files": self.state_files}
            begin_history(target, self.operation, self.source.uri, version, result)
            metadata = self.becomes(made)
            files = target.files() if self.claims else set()
            target.finish(metadata)
        if self.claims:
            target.check_whole(metadata, files)
            try:
                delete_directory(self.source.io, self.source.path)
            except StateStoreError as error:  # what was made is whole, and not to be made again
                logger.warning(
                    "the savepoint that was claimed is not deleted, and may be by hand: "
                    "savepoint=%s, error=%s",
                    self.source.uri,
                    error,
                )

    def _pinned(self) -> AbstractContextManager[None]:
        if not self.pins:
            return nullcontext()
        return self.version.pinned(pin_id_for(self.target.uri, self.target.ids))

    def _begin_state(self, target: NewDirectory, progress: Progress) -> NewState:
        """Return the state of a directory that was begun, on the storage that is to have it."""
        place = self.target
        io = target.io
        root = f"{target.path}/state"
        in_memory = place.memory() if self.backend in IN_DRIVER_MEMORY and place.memory else None
        if in_memory is not None:
            root = place.memory_root
        elif self.state_uri:
            fetched = f"{target.scratch_directory}/fetched"
            Path(fetched).mkdir()
            tree, path = place.open_other(self.state_uri, fetched)
            home = StoreLocation(target.io, root, StoreName(0, 0))
            sync = place.options.fsync_enabled
            made = make_placement(home, place.state_uri, tree, path, self.state_uri, sync=sync)
            io, root = tree, made.directory(path)
        work = work_in(target.scratch_directory, place.options, target.clock)
        work.form(BODIES[self.backend])  # raises here where a package is missing
        return NewState(
            version=self.version,
            operators=self.operators,
            target=target,
            io=io,
            root=root,
            backend=self.backend,
            num_partitions=self.num_partitions,
            checkpoint_format=self.checkpoint_format,
            memory=in_memory,
            place=place,
            state_uri=self.state_uri,
            work=work,
            progress=BytesDone(progress, self.state_bytes),
        )

    def _by_pass(self) -> dict[Pass, list[StoreId]]:
        """Return the stores that pass in the same way: files that several name are copied once."""
        found: dict[Pass, list[StoreId]] = {}
        for store, passing in self.passes.items():
            found.setdefault(passing, []).append(store)
        return found

    def _rename(self, path: str) -> str | None:
        """Return the new path of one of Spark's files; None for one that is written, or left."""
        found = _OF_OPERATOR.fullmatch(path)
        if path in self.files:
            return None
        if found is None:
            return path
        operator, rest = int(found[1]), found[2]
        if operator not in self.operators.kept or operator in self.remade:
            return None
        return f"state/{self.operators.new_id(operator)}/{rest}"

    def _write_logs(self, target: NewDirectory, made: MadeFiles) -> None:
        conf = {
            PROVIDER_KEY: PROVIDERS[self.backend],
            NUM_PARTITIONS_KEY: str(self.num_partitions),
            **self.conf,
        }
        offsets = {batch: entry.with_conf(conf) for batch, entry in self.version.offsets.items()}
        commits = dict(self.version.commits)
        if self.checkpoint_format >= 2:
            batch = self.version.batch
            commits[batch] = commits[batch].with_checkpoint_ids(self._checkpoint_ids(made))
        write_logs(target, offsets, commits)

    @cached_property
    def _added_stores(self) -> dict[int, Sequence[str]]:
        """Names of the stores of each operator that is added, by its ID."""
        conf = {**self.version.offsets[self.version.batch].conf, **self.conf}
        return {new: store_names_of(name, conf) for new, name in self.operators.added.items()}

    def _checkpoint_ids(self, made: MadeFiles) -> CheckpointIds:
        """Return checkpoint IDs as the commit log has them: by operator, partition and store."""
        names: dict[int, Sequence[str]] = {
            self.operators.new_id(operator.id): self.remade.get(
                operator.id, [store.name for store in operator.stores]
            )
            for operator in self.source.operators
            if operator.id in self.operators.kept
        }
        names |= self._added_stores
        return checkpoint_ids_of(dict(sorted(names.items())), made)


def begin_history(
    target: NewDirectory, operation: str, of: str, version: int, result: Mapping[str, Any]
) -> None:
    """Begin the history of a new directory with the operation that makes it.

    Args:
        target: The directory.
        operation: The command.
        of: URI of the checkpoint or savepoint that it is made of.
        version: Version of that.
        result: What the history says of it.

    Raises:
        StorageError: The storage failed.
    """
    made = Event(
        target.ids.new_id(),
        operation,
        int(target.clock.now_ms()),
        version,
        version,
        event="done",
        options={"of": of},
        result=result,
    )
    append(target.io, target.path, made)


def source_of(
    operation: str,
    checkpoint: OpenCheckpoint,
    target: Place,
    version: int | None = None,
    *,
    has_heads: bool = True,
) -> CommittedVersion:
    """Return the version that a new directory is to be made of; nothing is written.

    Args:
        operation: The command that is to make it.
        checkpoint: The checkpoint or savepoint.
        target: The new directory.
        version: State version, None for the newest committed one.
        has_heads: As `find_version`.

    Raises:
        InvalidArgumentError: There are files at the target (kind checkpoint-exists); or as
            `check_target`.
        NotFoundError: The version was not committed, or was expired; or as `check_sources`.
        CorruptionError, IncompatibleError, FencedError, StorageError: As `find_version`.
    """
    check_target(target, operation, checkpoint.uri)
    found = find_version(checkpoint, version, has_heads=has_heads)
    found.check_sources()
    return found


def same_shape(
    operation: str,
    version: CommittedVersion,
    target: Place,
    passing: Pass,
    becomes: Callable[[MadeFiles], str],
    *,
    backend: str | None = None,
    query_id: str = "",
) -> Copy:
    """Return the copy of a version whose stores all pass in one way, into as many state partitions.

    Args:
        operation: As of `Copy`, and likewise what is not named here.
        version: As of `Copy`.
        target: As of `Copy`.
        passing: How the rows of every store pass.
        becomes: As of `Copy`.
        backend: State backend of the files; the version's when None.
        query_id: As of `Copy`.
    """
    operators = [operator.id for operator in version.checkpoint.operators]
    return Copy(
        operation=operation,
        version=version,
        target=target,
        passes=dict.fromkeys(version.stores, passing),
        becomes=becomes,
        backend=backend or version.checkpoint.backend,
        num_partitions=version.num_partitions,
        checkpoint_format=version.checkpoint_format,
        operators=OperatorMap().resolve(operators),
        query_id=query_id,
    )
