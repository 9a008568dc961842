"""Forget keys: the newest version written anew without them, and every file of before deleted.

An older version is made of files that hold the keys, and so is whatever is built on it. So the
version that is written whole is the only one that the operator has afterwards. As in an edit the
entry of the commit log decides; files are deleted after it.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from statestore.checkpoint.layout import (
    is_temporary,
    parse_pin_name,
    parse_rescale_ref_name,
    parse_state_file_name,
    store_directory,
)
from statestore.checkpoint.pins import oldest_to_retain
from statestore.codec.sealed_file import map_file
from statestore.core.errors import InUseError
from statestore.core.ids import RandomIds
from statestore.io.file_io import delete_batches
from statestore.operations.committed_version import find_version
from statestore.operations.edit_log import commit_edit, find_edit_batch
from statestore.operations.forget.files import StoreFile, files_of_operator
from statestore.operations.forget.plans import Certificate, FileRecord, ForgetPlan
from statestore.operations.forget.search import find_rows, search
from statestore.operations.full_state import (
    MAX_STATES_AT_ONCE,
    Work,
    dealt_anew,
    write_full_state,
)
from statestore.operations.in_use import exclusive_use
from statestore.operations.key_set import KeySet
from statestore.operations.plan import no_report
from statestore.operations.rescale_log import checkpoint_ids_of
from statestore.operations.rows import read_rows
from statestore.operations.writing.changes import NO_CHANGES, _is_among, pick, write_changes
from statestore.operations.writing.in_place import work_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import StoreName
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.forget.wanted import Wanted
    from statestore.operations.plan import Report


@dataclass
class Forget:
    """Keys of an operator that are to be forgotten; making it reads every state file of it.

    Args:
        checkpoint: The checkpoint.
        operator: Operator ID.
        wanted: The keys.
        report: Called with the files read and their number.

    Raises:
        InvalidArgumentError: There is no such operator, what is given is no key of it; or as
            `find_edit_batch`.
        InUseError: As `find_edit_batch`.
        NotFoundError, CorruptionError, IncompatibleError, FencedError, StorageError: A file cannot
            be read.
    """

    checkpoint: OpenCheckpoint
    operator: int
    wanted: Wanted
    report: Report = no_report
    found: dict[str, int] = field(init=False)
    """Rows of the keys by path of the state file that has them."""

    def __post_init__(self) -> None:
        self._batch = find_edit_batch(self.checkpoint)
        self._version = find_version(self.checkpoint)
        self.found = dict(find_rows(self.checkpoint, self.operator, self.wanted, self.report))

    @property
    def plan(self) -> ForgetPlan:
        """What is done."""
        removed = self._files() if self.found else []
        return ForgetPlan(
            checkpoint=self.checkpoint.uri,
            operator=self.operator,
            num_keys=len(self.wanted.encoded),
            batch=self._batch.batch,
            version=self._batch.batch + 1,
            num_rows=sum(self.found.values()),
            files=tuple(self.found),
            written=tuple(store_directory("state", store) for store in self._version.heads),
            removed=tuple(file.path for file in removed),
            removed_bytes=sum(file.info.size for file in removed),
            num_shared=sum(map(_is_shared, removed)),
        )

    def run(self, report: Report = no_report) -> Certificate:
        """Do it, and search every file that is left.

        Args:
            report: Called with the state partitions written and their number.

        Returns:
            The certificate; `is_forgotten` says whether a file was found that has a key all the
            same, which is none of the operator's state files.

        Guarantee: on return the query goes on from all other rows, and no state file of the
        operator has a row of the keys. After a raise or a kill the query goes on from the rows of
        before or from those without the keys, whole; older files may be left, and the same call
        again deletes them.

        Raises:
            InUseError: A query or another operation is at the checkpoint, or reads a version for a
                savepoint.
            NotFoundError, CorruptionError, FencedError, StorageError: A file cannot be read, or a
                storage failed.
        """
        checkpoint = self.checkpoint
        removed: list[FileRecord] = []
        written: list[FileRecord] = []
        if self.found:
            self._require_no_pins()
            with exclusive_use(checkpoint, "forget") as use:
                made = self._write(report)
                use.require_held()
                has_ids = self._version.has_checkpoint_ids
                ids = checkpoint_ids_of(checkpoint.operators if has_ids else (), made)
                commit_edit(checkpoint, self._batch, ids, None)
                own = {store: head for store, head in made.items() if self._is_own(store)}
                kept = {
                    checkpoint.location(store).path(head.ref.path) for store, head in own.items()
                }
                files = self._files()
                written = [_record(file) for file in files if file.path in kept]
                gone = [file for file in files if file.path not in kept]
                removed = [_record(file) for file in gone if file.is_state]
                _delete(gone)
        versions = (parse_state_file_name(one.path.rpartition("/")[2]) for one in removed)
        return Certificate(
            checkpoint=checkpoint.uri,
            operator=self.operator,
            num_keys=len(self.wanted.encoded),
            keys_sha256=self.wanted.digest,
            version=self._batch.batch + 1 if self.found else None,
            versions_removed=tuple(sorted({name.version for name in versions if name is not None})),
            written=tuple(written),
            removed=tuple(removed),
            search=search(checkpoint, self.operator, self.wanted),
            at_ms=int(checkpoint.clock.now_ms()),
        )

    def _is_own(self, store: StoreName) -> bool:
        return store.operator == self.operator

    def _files(self) -> list[StoreFile]:
        """Return what is deleted of the operator's files, oldest version first, references last."""
        files = files_of_operator(self.checkpoint, self.operator)
        return sorted(
            (
                file
                for file in files
                if file.is_state
                or is_temporary(file.info.name)
                or parse_pin_name(file.info.name) is not None
                or parse_rescale_ref_name(file.info.name) is not None
            ),
            key=_order,
        )

    def _require_no_pins(self) -> None:
        checkpoint = self.checkpoint
        version = self._version.version
        for store in filter(self._is_own, self._version.heads):
            location = checkpoint.location(store)
            files = [
                info
                for info in location.io.list(location.directory)
                if parse_pin_name(info.name) is not None
            ]
            _, expired = oldest_to_retain(version, version, files, checkpoint.clock.now_ms())
            if len(expired) < len(files):
                raise InUseError(
                    "a savepoint or branch that is being made reads the files",
                    checkpoint=checkpoint.uri,
                    store=str(store),
                    to_fix="wait for it; where its process has died, an hour",
                )

    def _write(self, report: Report) -> dict[StoreName, PublishedFile]:
        heads = self._version.heads
        work = work_on(self.checkpoint)
        made: dict[StoreName, PublishedFile] = {}
        with ThreadPoolExecutor(MAX_STATES_AT_ONCE) as pool:
            for store, head in zip(
                heads, pool.map(lambda one: self._write_one(one, work), heads), strict=True
            ):
                made[store] = head
                report(len(made), len(heads))
        return made

    def _write_one(self, store: StoreName, work: Work) -> PublishedFile:
        head = self._version.heads[store]
        location = self.checkpoint.location(store)
        new_id = RandomIds().new_id()
        if not self._is_own(store):
            return write_changes(location, head, NO_CHANGES, new_id, work)
        trailer = head.trailer
        new = dealt_anew([trailer], trailer.num_partitions, trailer.max_parallelism)
        new = replace(new, version=trailer.version + 1, checkpoint_id=new_id)
        return write_full_state(location, new, self._staying(head), work)

    def _staying(self, head: PublishedFile) -> Iterator[pa.RecordBatch]:
        store = head.trailer.store.name
        gone = {
            family.id: KeySet([pa.array(sorted(self.wanted.stored[store, family.id]), pa.binary())])
            for family in head.trailer.column_families
            if (store, family.id) in self.wanted.stored
        }
        for batch in read_rows(self.checkpoint, head):
            yield pick(batch, ~_is_among(batch, gone))


def _order(file: StoreFile) -> tuple[bool, int, str]:
    name = parse_state_file_name(file.info.name)
    version = 0 if name is None else name.version
    return parse_rescale_ref_name(file.info.name) is not None, version, file.path


def _delete(files: list[StoreFile]) -> None:
    """Delete files, of each store the oldest version first: what is left are its newest ones."""
    by_store: dict[str, list[StoreFile]] = {}
    for file in files:
        by_store.setdefault(file.location.directory, []).append(file)
    for directory, of_store in by_store.items():
        for batch in delete_batches([file.info.name for file in of_store]):
            of_store[0].location.io.delete_files(directory, batch)


def _record(file: StoreFile) -> FileRecord:
    local_path = file.location.io.fetch(file.path)
    data = map_file(local_path) if file.info.size else b""
    return FileRecord(file.path, file.info.size, hashlib.sha256(data).hexdigest())


def _is_shared(file: StoreFile) -> bool:
    """Return whether a file has another name as well; known of the local disk only."""
    return file.is_state and Path(file.location.io.fetch(file.path)).stat().st_nlink > 1
