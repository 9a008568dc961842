"""Restore: a new checkpoint made of a savepoint, from which a query goes on.

State files are copied as they are where the new checkpoint keeps its state the same way, and else
written anew. `decide_restore` reads and decides, `Restore.run` writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from statestore.checkpoint.commit import NewVersion
from statestore.checkpoint.layout import StoreLocation
from statestore.checkpoint.placement import make_placement, mark_home
from statestore.checkpoint.query_log import (
    NUM_PARTITIONS_KEY,
    PROVIDER_KEY,
)
from statestore.codec.references import StoreName
from statestore.codec.trailer import RowCounts
from statestore.core.key_groups import default_max_parallelism
from statestore.core.providers import PROVIDERS
from statestore.operations.committed_version import (
    CommittedVersion,
    copy_file,
    copy_spark_files,
    copy_state,
    link_file,
    write_logs,
)
from statestore.operations.full_state import (
    MAX_STATES_AT_ONCE,
    StateWriter,
    Work,
    deal_out,
    open_memory,
    write_states,
)
from statestore.operations.new_directory import (
    METADATA_NAME,
    begin_directory,
    new_query_id,
    query_metadata,
)
from statestore.operations.operator_map import (
    ResolvedOperators,
    store_names_of,
)
from statestore.operations.plan import no_report
from statestore.operations.rehashing import rehash_effort, rehashed_version, write_rehashed
from statestore.operations.savepoint.plans import RestorePlan

if TYPE_CHECKING:
    from statestore.checkpoint.layout import FileBody
    from statestore.core.options import StateStoreOptions
    from statestore.io.file_io import FileIO, TreeFileIO
    from statestore.io.place import Place
    from statestore.operations.new_directory import NewDirectory
    from statestore.operations.plan import Report
    from statestore.operations.savepoint.plans import StateFiles
    from statestore.operations.savepoint.savepoint import SavepointInfo

_OF_OPERATOR = re.compile(r"state/([0-9]+)/(.*)")


@dataclass(frozen=True)
class Restore:
    """A restore that was decided and is not yet done.

    Attributes:
        savepoint: What is restored.
        version: Its files.
        target: The new checkpoint.
        backend: State backend of the new checkpoint.
        num_partitions: Number of its state partitions.
        operators: Which operators become which.
        claims: Whether the savepoint is deleted when the checkpoint is whole.
        keeps_query_id: Whether sinks take it for the same query.
    """

    savepoint: SavepointInfo
    version: CommittedVersion
    target: Place
    backend: str
    num_partitions: int
    operators: ResolvedOperators
    claims: bool
    keeps_query_id: bool

    @property
    def plan(self) -> RestorePlan:
        """What it does."""
        source = self.version.checkpoint
        kept = self.operators.kept
        return RestorePlan(
            savepoint=source.uri,
            checkpoint=self.target.uri,
            version=self.version.version,
            query_id=(self.keeps_query_id and self.savepoint.query_id) or None,
            backend=self.backend,
            num_partitions=self.num_partitions,
            operators=dict(kept),
            dropped_operators=tuple(info.id for info in source.operators if info.id not in kept),
            added_operators=dict(self.operators.added),
            state_files=self._state_files(),
            state_bytes=self.state_bytes,
            claim=self.claims,
        )

    def _state_files(self) -> StateFiles:
        if any(self.is_rehashed(*store) for store in self.store_names):
            return "hashed anew"
        if not self.is_copied:
            return "written anew"
        return "moved" if self.claims else "copied"

    @property
    def options(self) -> StateStoreOptions:
        """Options of the new checkpoint."""
        return self.target.options

    @cached_property
    def memory(self) -> FileIO | None:
        """The driver's memory, for the heap backend."""
        return None if self.target.memory is None else self.target.memory()

    @property
    def is_copied(self) -> bool:
        """Whether the state files are copied as they are, and not written anew."""
        return (
            self.backend == self.version.checkpoint.backend
            and self.num_partitions == self.version.num_partitions
            and all(old == new for old, new in self.operators.kept.items())
        )

    @cached_property
    def stores(self) -> tuple[StoreName, ...]:
        """The savepoint's stores that are restored."""
        return tuple(store for store in self.version.heads if store.operator in self.operators.kept)

    @cached_property
    def store_names(self) -> tuple[tuple[int, str], ...]:
        """Old operator ID and name of every store that is restored."""
        return tuple(dict.fromkeys((store.operator, store.name) for store in self.stores))

    def is_rehashed(self, operator: int, name: str) -> bool:
        """Whether every row of a store is hashed anew: its key groups cannot be dealt out."""
        if self.version.is_single(operator, name):
            return False
        trailer = self.version.heads[StoreName(operator, 0, name)].trailer
        return trailer.max_parallelism % self.num_partitions > 0

    @property
    def state_bytes(self) -> int:
        """Bytes of the state files that are read."""
        return self.version.state_bytes(self.stores)

    def run(self, report: Report = no_report) -> None:
        """Make the checkpoint.

        Args:
            report: Called with bytes of state done and the total.

        Guarantee: on return the checkpoint is whole and durable, and the savepoint as it was, or
        gone where it was claimed. After a raise, or when the process is killed, no query starts
        from the checkpoint until the restore is repeated, and the savepoint is whole; or the
        checkpoint is whole, and what may be left of a claimed savepoint no longer is one.

        Raises:
            InvalidArgumentError: The checkpoint has files meanwhile (kind checkpoint-exists).
            CorruptionError, NotFoundError, StorageError: A file of the savepoint cannot be read, or
                a storage failed.
        """
        source = self.version.checkpoint.uri
        with begin_directory(self.target, "restore", source) as target:
            state_io, state_root = self._place_state(target)
            to = replace(target, io=state_io)
            ids = self._new_ids(target)
            if self.is_copied:
                # What is claimed is moved: no byte is copied on one storage.
                copy = link_file if self.claims else copy_file
                copy_state(self.version, self.stores, to, state_root, report, copy=copy)
            else:
                self._write_states(to, state_root, ids, report)
            self._write_added(to, state_root, ids)
            copy_spark_files(self.version, target, self._rename)
            # With an operator that is new, Spark writes the metadata of all in its first batch.
            if not self.operators.added:
                self.version.copy_operators(target, self.operators.kept, self.num_partitions)
            self._write_logs(target, ids)
            query_id = self.savepoint.query_id if self.keeps_query_id else ""
            target.finish(query_metadata(query_id or new_query_id(target.ids)))
        if self.claims:
            io, directory = self.version.checkpoint.io, self.version.checkpoint.path
            io.delete(f"{directory}/{METADATA_NAME}")
            io.delete_tree(directory)

    def _place_state(self, target: NewDirectory) -> tuple[TreeFileIO, str]:
        """Return storage and directory of the state, outside of the checkpoint where asked for."""
        root = f"{target.path}/state"
        uri = self.options.checkpoint_storage
        if not uri:
            return target.io, root
        fetched = f"{target.scratch_directory}/fetched"
        Path(fetched).mkdir()
        io, path = self.target.open_other(uri, fetched)
        home = StoreLocation(target.io, root, StoreName(0, 0))
        placement = make_placement(home, io, path, uri, sync=self.options.fsync_enabled)
        elsewhere = f"{path}/{placement.id}"
        for store in self._new_ids(target):
            home = StoreLocation(target.io, root, store)
            mark_home(StoreLocation(io, elsewhere, store), home, self.backend)
        return io, elsewhere

    def _new_ids(self, target: NewDirectory) -> dict[StoreName, str]:
        """Return the checkpoint ID of every store of the new checkpoint; those copied keep it."""
        if self.is_copied:
            ids = {store: self.version.heads[store].trailer.checkpoint_id for store in self.stores}
        else:
            ids = {
                StoreName(self.operators.new_id(operator), partition, name): target.ids.new_id()
                for operator, name in self.store_names
                for partition in range(
                    1 if self.version.is_single(operator, name) else self.num_partitions
                )
            }
        for operator, short_name in self.operators.added.items():
            for name in store_names_of(short_name):
                for partition in range(self.num_partitions):
                    ids[StoreName(operator, partition, name)] = target.ids.new_id()
        return ids

    def _write_states(
        self, target: NewDirectory, root: str, ids: Mapping[StoreName, str], report: Report
    ) -> None:
        """Write the state of every store of the savepoint anew."""
        checkpoint = self.version.checkpoint
        work = self._work(target)
        progress = _Progress(report, self.state_bytes)

        def write(stores: tuple[list[StoreName], list[StoreName]]) -> None:
            givers, takers = stores
            heads = [self.version.heads[store] for store in givers]
            num_bytes = self.version.state_bytes(givers)
            new = {self._location(target, root, store): ids[store] for store in takers}
            if self.is_rehashed(givers[0].operator, givers[0].name):
                version = rehashed_version([head.trailer for head in heads], self.num_partitions)
                version = replace(version, backend=self.backend)
                effort = rehash_effort(heads)

                def report_rows(num_rows: int) -> None:
                    progress.set_done(givers[0], num_bytes * num_rows // effort)

                write_rehashed(checkpoint, heads, version, new.items(), work, report_rows)
            else:
                rows = list(zip(map(checkpoint.location, givers), heads, strict=True))
                write_states(rows, new, self.num_partitions, self.backend, work)
            progress.set_done(givers[0], num_bytes)

        with ThreadPoolExecutor(MAX_STATES_AT_ONCE) as pool:
            for _ in pool.map(write, self._givers_and_takers()):
                pass

    def _givers_and_takers(self) -> Iterator[tuple[list[StoreName], list[StoreName]]]:
        """Yield stores of the savepoint, and those of the checkpoint that take their rows."""
        for operator, name in self.store_names:
            pairs = [(range(1), range(1))]
            if not self.version.is_single(operator, name):
                before, after = self.version.num_partitions, self.num_partitions
                pairs = [(range(before), range(after))]
                if not self.is_rehashed(operator, name):
                    pairs = deal_out(before, after)
            new_id = self.operators.new_id(operator)
            for givers, takers in pairs:
                yield (
                    [StoreName(operator, partition, name) for partition in givers],
                    [StoreName(new_id, partition, name) for partition in takers],
                )

    def _write_added(self, target: NewDirectory, root: str, ids: Mapping[StoreName, str]) -> None:
        """Write the empty state of operators that the savepoint does not have."""
        work = self._work(target)
        parallelisms = [head.trailer.max_parallelism for head in self.version.heads.values()]
        known = [number for number in parallelisms if number % self.num_partitions == 0]
        for store, checkpoint_id in ids.items():
            if store.operator not in self.operators.added:
                continue
            new = NewVersion(
                version=self.version.version,
                parent=None,
                checkpoint_id=checkpoint_id,
                checkpoint_format=2 if self.version.has_checkpoint_ids else 1,
                rows=RowCounts(),
                num_keys=0,
                max_parallelism=max(known, default=default_max_parallelism(self.num_partitions)),
                num_partitions=self.num_partitions,
                rescalable=True,
                column_families=(),
                backend=self.backend,
            )
            StateWriter(self._location(target, root, store), new, work).finish()

    def _work(self, target: NewDirectory) -> Work:
        backends = self.backend, self.version.checkpoint.backend
        memory = open_memory(self.options) if "rocksdb" in backends else None
        return Work(target.scratch_directory, self.options, target.clock, memory)

    def _location(self, target: NewDirectory, root: str, store: StoreName) -> StoreLocation:
        if self.backend != "heap" or self.memory is None:
            body: FileBody = "sst" if self.backend == "rocksdb" else "arrows"
            return StoreLocation(target.io, root, store, body)
        location = StoreLocation(self.memory, root, store)
        mark_home(location, StoreLocation(target.io, root, store), self.backend)
        return location

    def _rename(self, path: str) -> str | None:
        """Return the new path of one of Spark's files; None for one that is written, or left."""
        found = _OF_OPERATOR.fullmatch(path)
        if found is None:
            return path
        operator, rest = int(found[1]), found[2]
        if operator not in self.operators.kept:
            return None
        return f"state/{self.operators.new_id(operator)}/{rest}"

    def _write_logs(self, target: NewDirectory, ids: Mapping[StoreName, str]) -> None:
        conf = {
            PROVIDER_KEY: PROVIDERS[self.backend],
            NUM_PARTITIONS_KEY: str(self.num_partitions),
        }
        offsets = {batch: entry.with_conf(conf) for batch, entry in self.version.offsets.items()}
        commits = dict(self.version.commits)
        if self.version.has_checkpoint_ids:
            batch = self.version.batch
            commits[batch] = commits[batch].with_checkpoint_ids(self._by_operator(ids))
        write_logs(target, offsets, commits)

    def _by_operator(self, ids: Mapping[StoreName, str]) -> dict[str, list[list[str]]]:
        """Return checkpoint IDs as the commit log has them: by operator, partition and store."""
        names: dict[int, list[str]] = {}
        for operator in self.version.checkpoint.operators:
            if operator.id in self.operators.kept:
                new_id = self.operators.new_id(operator.id)
                names[new_id] = [store.name for store in operator.stores]
        for store in ids:
            if store.operator in self.operators.added:
                known = names.setdefault(store.operator, [])
                known += [] if store.name in known else [store.name]
        return {
            str(operator): [
                [ids[StoreName(operator, partition, name)] for name in stores]
                for partition in range(self.num_partitions)
                if StoreName(operator, partition, stores[0]) in ids
            ]
            for operator, stores in sorted(names.items())
        }


class _Progress:
    """What several threads have done of one total.

    Args:
        report: Called with bytes done and the total, by one thread at a time.
        total: Bytes; a file that several stores name is counted for each, and once in the total.
    """

    def __init__(self, report: Report, total: int) -> None:
        self._report = report
        self._total = total
        self._lock = Lock()
        self._done: dict[StoreName, int] = {}

    def set_done(self, store: StoreName, num_bytes: int) -> None:
        """Say how many bytes are done of a store and those that go with it."""
        with self._lock:
            self._done[store] = num_bytes
            self._report(min(sum(self._done.values()), self._total), self._total)
