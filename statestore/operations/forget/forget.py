"""Forget keys: the newest version written anew without them, and every file of before deleted.

An older version is made of files that hold the keys, and so is whatever is built on it. So the
version that is written whole is the only one that the operator has afterwards. As in an edit the
entry of the commit log decides; files are deleted after it: those that were there before it.
"""

from __future__ import annotations

import hashlib
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from statestore.checkpoint.layout import (
    is_temporary,
    parse_pin_name,
    parse_rescale_ref_name,
    parse_state_file_name,
    store_directory,
)
from statestore.codec.rows import pick
from statestore.codec.sealed_file import read_file
from statestore.core.errors import (
    CorruptionError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from statestore.core.ids import RandomIds
from statestore.core.text import format_time
from statestore.io.file_io import delete_batches
from statestore.operations.batches import find_edit, read_own_batch
from statestore.operations.committed_version import find_version
from statestore.operations.forget.certificate import (
    Begun,
    Certificate,
    CertificateFile,
    FileRecord,
    Fingerprints,
    spelled,
    who_and_when,
)
from statestore.operations.forget.files import StoreFile, files_of_operator, require_files
from statestore.operations.forget.result import Forget
from statestore.operations.forget.search import find_rows, search
from statestore.operations.full_state import (
    dealt_anew,
    states_at_once,
    write_full_state,
)
from statestore.operations.in_use import require_no_pins
from statestore.operations.result import no_progress
from statestore.operations.states import read_rows
from statestore.operations.step import step
from statestore.operations.writing.changes import NO_CHANGES, write_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from statestore.backends.form import Work
    from statestore.checkpoint.trailers import PublishedFile
    from statestore.codec.references import StoreName
    from statestore.operations.batches import EditBatch
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.forget.wanted import Wanted
    from statestore.operations.result import Progress
    from statestore.operations.step import Step

_MOST_KEYS_SHOWN = 10


def decide_forget(
    checkpoint: OpenCheckpoint,
    operator: int,
    wanted: Wanted,
    *,
    all_rows: bool = False,
    certificate: CertificateFile | None = None,
    progress: Progress = no_progress,
) -> Forgetting:
    """Find keys of an operator that are to be forgotten; every state file of it is read.

    Args:
        checkpoint: The checkpoint.
        operator: Operator ID.
        wanted: The keys.
        all_rows: Whether every row of the operator may go.
        certificate: Where the certificate goes; None for nowhere.
        progress: Called with the files read and their number.

    Errors as `Checkpoint.forget`.
    """
    require_files(checkpoint)
    batch = find_edit(checkpoint)
    version = find_version(checkpoint)
    heads = {store: head for store, head in version.heads.items() if store.operator == operator}
    for store, head in heads.items():
        wanted.prepare(store.name, head.trailer)
    keys: set[bytes] = set()
    damaged: dict[str, CorruptionError] = {}
    found = dict(find_rows(checkpoint, operator, wanted, keys, damaged, progress))
    num_rows = num_rows_before = 0
    for store, head in heads.items():
        for rows in read_rows(checkpoint, head):
            num_rows += len(wanted.find(rows, store.name, head.trailer, keys))
            num_rows_before += rows.num_rows
    wanted = wanted.as_found(keys)
    begun = None
    if certificate is not None:
        begun = certificate.begun(checkpoint.uri, operator, wanted)
    if not found and not _is_to_be_completed(checkpoint, begun):
        for error in damaged.values():
            uri = shlex.quote(checkpoint.uri)
            raise CorruptionError(
                "no file that can be read has a row of the keys, and others cannot be read",
                kind=error.kind,
                **error.fields,
                num_damaged=len(damaged),
                to_fix="put the file back from a copy; or let it expire, as the newest version can "
                f"do without: `statestore compact {uri} --yes`, a few batches of the query, "
                f"`statestore expire {uri} --keep 2 --yes`; then do this again",
            ) from error
        raise NotFoundError(
            "no state file of the operator has a row of the keys",
            kind="keys-not-found",
            checkpoint=checkpoint.uri,
            operator=operator,
            **wanted.words,
            to_fix="see how `statestore read` shows the keys; where they were forgotten "
            "before, `statestore forget --verify --keys FILE` searches every file",
        )
    if num_rows and num_rows == num_rows_before and not all_rows:
        raise InvalidArgumentError(
            "every row of the operator is of the keys",
            operator=operator,
            **wanted.words,
            num_rows=f"{num_rows:,} of {num_rows_before:,}",
            to_fix="say so, where that is meant: --all, all_rows=True",
        )
    return Forgetting(
        checkpoint,
        operator,
        wanted,
        all_rows,
        certificate,
        begun,
        batch,
        version,
        frozenset(keys),
        found,
        damaged,
        num_rows,
        num_rows_before,
    )


@dataclass(frozen=True)
class Forgetting:
    """What is to be forgotten, as `decide_forget` found it; its arguments are not said again.

    Attributes:
        wanted: The keys as they were found.
        begun: What an earlier call with this certificate has begun.
        batch: The batch that it is to be.
        version: The newest version.
        keys_found: Keys that have a row in any file.
        found: Rows of the keys by path of the state file that has them.
        damaged: State files that cannot be read, none of the newest version: they go with the
            rest.
        num_rows, num_rows_before: Rows of the newest version: of the keys, and all.
    """

    checkpoint: OpenCheckpoint
    operator: int
    wanted: Wanted
    all_rows: bool
    certificate: CertificateFile | None
    begun: Begun | None
    batch: EditBatch
    version: CommittedVersion
    keys_found: frozenset[bytes]
    found: dict[str, int]
    damaged: dict[str, CorruptionError]
    num_rows: int
    num_rows_before: int

    @property
    def result(self) -> Forget:
        """What it would do."""
        files, version = self._files(), self.batch.batch + 1
        written = tuple(store_directory("state", store) for store in self.version.heads)
        if not self.found and self.begun is not None:
            # An earlier call has made the version: what it has left is deleted.
            version, written = self.begun.version, ()
            files, _ = self._left_of(version)
        removed = [file for file in files if file.is_state]
        found = sorted(self.keys_found)[:_MOST_KEYS_SHOWN]
        return Forget(
            checkpoint=self.checkpoint.uri,
            operator=self.operator,
            num_keys=len(self.wanted.encoded),
            num_keys_found=len(self.keys_found),
            keys=tuple(map(_shown, spelled(self.wanted, found))),
            batch=version - 1,
            version=version,
            num_rows=self.num_rows,
            num_rows_before=self.num_rows_before,
            num_rows_of_files=sum(self.found.values()),
            files=tuple(self.found),
            damaged=tuple(self.damaged),
            written=written,
            removed=tuple(file.path for file in files),
            removed_bytes=sum(file.info.size for file in files),
            num_shared=sum(file.info.num_names > 1 for file in removed),
            done=False,
        )

    def run(self, progress: Progress = no_progress) -> Forget:
        """Do it, search every file that is left, and return what was done, with the certificate.

        Args:
            progress: Called with the state partitions written and their number.

        Guarantee and errors as `Checkpoint.forget`.
        """
        result, certificate = self.result, self._described()
        self._require_unread(None if self.found else certificate.version)
        options = {
            "operator": self.operator,
            "num_keys": certificate.num_keys,
            "all_rows": self.all_rows,
        }
        with step(self.checkpoint, "forget", **options) as one:
            if self.found:
                one.to_version = certificate.version
                certificate = self._committed(one, certificate, progress)
            else:
                certificate = self._finished(certificate)
            now_ms = int(self.checkpoint.clock.now_ms())
            certificate = replace(
                certificate,
                status="complete",
                search=search(self.checkpoint, self.operator, self.wanted),
                completed_at=format_time(now_ms),
                completed_ms=now_ms,
            )
            self._put(certificate)
            # Every operation reads and writes the whole history, and there may be many files.
            one.result["certificate"] = certificate.brief()
        return replace(result, done=True, _certificate=certificate)

    def _committed(self, step: Step, certificate: Certificate, progress: Progress) -> Certificate:
        """Write the version without the keys, let it count, and delete what was before it."""
        certificate = self._recorded(certificate, self._files())
        self._put(certificate)
        made = self._write(progress)
        own = {
            self.checkpoint.location(store).path(head.ref.path)
            for store, head in made.items()
            if self._is_own(store)
        }
        # Listed before the commit: what a query writes that starts later is not among them.
        listed = self._files()
        certificate = _with_written(certificate, [file for file in listed if file.path in own])
        batch = self.batch
        version = batch.batch + 1
        # First: a call that goes on cannot tell them from those of a query that has run since.
        self._delete([file for file in listed if not _is_up_to(file.info.name, version)])
        step.commit(batch.batch, "forget", made, is_begun=batch.is_begun)
        before = [file for file in listed if _is_up_to(file.info.name, version)]
        self._delete_rest([file for file in before if file.path not in own], version)
        return certificate

    def _finished(self, certificate: Certificate) -> Certificate:
        """Delete what an earlier call has left of the files before its version."""
        files, made = self._left_of(certificate.version)
        self._delete_rest(files, certificate.version)
        return _with_written(certificate, made)

    def _left_of(self, version: int) -> tuple[list[StoreFile], list[StoreFile]]:
        """Return what an earlier call that made a version is yet to delete, and the version."""
        there = [file for file in self._files() if _is_up_to(file.info.name, version)]
        made = [file for file in there if _version_of(file) == version]
        return [file for file in there if _version_of(file) != version], made

    def _put(self, certificate: Certificate) -> None:
        if self.certificate is not None:
            self.certificate.write(certificate)

    def _described(self) -> Certificate:
        """Return the certificate but for the files; of an earlier call that began with it.

        Where that call let no version count, its rows are those of another version.
        """
        begun = self.begun
        counts: dict[str, Any] = {
            "num_rows": self.num_rows,
            "num_rows_before": self.num_rows_before,
            "num_rows_of_files": sum(self.found.values()),
        }
        now: dict[str, Any] = who_and_when(self.checkpoint.clock.now_ms())
        if begun is None:
            begun = Begun(
                removed=(),
                version=self.batch.batch + 1,
                fingerprints=Fingerprints.make(spelled(self.wanted)),
                who=now,
                **counts,
            )
        elif self.num_rows:
            begun = replace(begun, **counts)
        version = self.batch.batch + 1 if self.found else begun.version
        return Certificate(
            status="begun",
            checkpoint=self.checkpoint.uri,
            operator=self.operator,
            operator_name=self.checkpoint.operator(self.operator).name,
            num_keys=len(self.wanted.encoded),
            num_rows=begun.num_rows,
            num_rows_before=begun.num_rows_before,
            num_rows_of_files=begun.num_rows_of_files,
            fingerprints=begun.fingerprints,
            version=version,
            versions_removed=_versions(begun.removed, version),
            written=(),
            removed=begun.removed,
            search=None,
            **begun.who,
        )

    def _recorded(self, certificate: Certificate, files: list[StoreFile]) -> Certificate:
        """Return it with the state files that are going to be deleted, beside those it has."""
        records = {record.path: record for record in certificate.removed}
        records |= {file.path: _record_of_removed(file) for file in files if file.is_state}
        removed = tuple(records.values())
        versions = _versions(removed, certificate.version)
        return replace(certificate, removed=removed, versions_removed=versions)

    def _is_own(self, store: StoreName) -> bool:
        return store.operator == self.operator

    def _files(self) -> list[StoreFile]:
        """Return the operator's files, oldest version first, references last.

        Those of later versions than the one that is made are of versions that were taken back.
        """
        files = files_of_operator(self.checkpoint, self.operator)
        return sorted((file for file in files if _is_up_to(file.info.name, None)), key=_order)

    def _delete(self, files: list[StoreFile]) -> None:
        """Delete files, of each store the oldest version first: what is left are its newest ones.

        The lease is asked before each batch.
        """
        by_store: dict[StoreName, list[str]] = {}
        for file in files:
            by_store.setdefault(file.location.store, []).append(file.info.name)
        for store, names in by_store.items():
            location = self.checkpoint.location(store)
            for batch in delete_batches(names):
                location.io.delete_files(location.directory, batch)

    def _delete_rest(self, files: list[StoreFile], version: int) -> None:
        """Delete files of before a version that counts; where that fails, the error says so."""
        try:
            self._delete(files)
        except StorageError as error:
            raise StorageError(
                "the query goes on without the keys, and older files that may have them are left",
                kind=error.kind,
                checkpoint=self.checkpoint.uri,
                version=version,
                reason=str(error),
                to_fix="let them be deleted, and do the same again: it deletes what is left",
            ) from error

    def _require_unread(self, most: int | None) -> None:
        """Check that nobody reads files that are to be deleted: up to a version, or all."""
        for store in filter(self._is_own, self.version.heads):
            location = self.checkpoint.location(store)
            listed = location.io.list(location.directory)
            files = [info for info in listed if _is_up_to(info.name, most)]
            require_no_pins(self.checkpoint, files)

    def _write(self, progress: Progress) -> dict[StoreName, PublishedFile]:
        heads = self.version.heads
        work = self.checkpoint.synced_work()
        made: dict[StoreName, PublishedFile] = {}
        with ThreadPoolExecutor(states_at_once()) as pool:
            for store, head in zip(
                heads, pool.map(lambda one: self._write_one(one, work), heads), strict=True
            ):
                made[store] = head
                progress(len(made), len(heads))
        return made

    def _write_one(self, store: StoreName, work: Work) -> PublishedFile:
        head = self.version.heads[store]
        location = self.checkpoint.location(store)
        new_id = RandomIds().new_id()
        if not self._is_own(store):
            return write_changes(location, head, NO_CHANGES, new_id, work)
        trailer = head.trailer
        new = dealt_anew([trailer], trailer.num_partitions, trailer.max_parallelism)
        new = replace(new, version=trailer.version + 1, checkpoint_id=new_id)
        return write_full_state(location, new, self._staying(head), work)

    def _staying(self, head: PublishedFile) -> Iterator[pa.RecordBatch]:
        for batch in read_rows(self.checkpoint, head):
            stays = np.ones(batch.num_rows, bool)
            stays[self.wanted.find(batch, head.trailer.store.name, head.trailer)] = False
            yield pick(batch, stays)


def _is_to_be_completed(checkpoint: OpenCheckpoint, begun: Begun | None) -> bool:
    """Return whether an earlier call has committed, and was killed while it deleted files."""
    if begun is None:
        return False
    # None also where Spark has let go of the entry since.
    found = read_own_batch(checkpoint, begun.version - 1)
    return found is not None and found.kind == "forgotten"


def _is_up_to(name: str, version: int | None) -> bool:
    """Tell whether a file is of a version up to this one, None for any; or is temporary."""
    state = parse_state_file_name(name)
    ref = parse_rescale_ref_name(name)
    pinned = parse_pin_name(name)
    of = state.version if state else ref.version if ref else pinned
    return is_temporary(name) if of is None else version is None or of <= version


def _version_of(file: StoreFile) -> int:
    name = parse_state_file_name(file.info.name)
    return 0 if name is None else name.version


def _order(file: StoreFile) -> tuple[bool, int, str]:
    return parse_rescale_ref_name(file.info.name) is not None, _version_of(file), file.path


def _with_written(certificate: Certificate, files: list[StoreFile]) -> Certificate:
    """Return it with the files that were made; one that stood in their place is not removed."""
    written = tuple(map(_record, files))
    paths = {record.path for record in written}
    removed = tuple(record for record in certificate.removed if record.path not in paths)
    return replace(certificate, written=written, removed=removed)


def _versions(removed: tuple[FileRecord, ...], made: int) -> tuple[int, ...]:
    """Return the versions of removed files, without one that is made anew."""
    names = (parse_state_file_name(one.path.rpartition("/")[2]) for one in removed)
    return tuple(sorted({name.version for name in names if name is not None} - {made}))


def _shown(key: bytes) -> str:
    """Return a key for a terminal: what is not printed there is escaped."""
    text = key.decode()
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _record(file: StoreFile) -> FileRecord:
    data = read_file(file.location.io.fetch(file.path))
    return FileRecord(file.path, file.info.size, hashlib.sha256(data).hexdigest())


def _record_of_removed(file: StoreFile) -> FileRecord:
    try:
        return _record(file)
    except CorruptionError:  # it goes, whether or not it can be read
        return FileRecord(file.path, file.info.size, "")
