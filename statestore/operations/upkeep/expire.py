"""Expire: delete old versions of a checkpoint from outside, as maintenance does inside a query."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from statestore.backends.filesystem.versions import StoreVersions
from statestore.core.errors import InvalidArgumentError
from statestore.io.deferred import DeferredDeletes
from statestore.operations.committed_version import no_report
from statestore.operations.full_state import open_memory
from statestore.operations.in_use import exclusive_use
from statestore.operations.rows import opened

if TYPE_CHECKING:
    from statestore.backends.rocksdb.versions import RocksDBVersions
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.trailer import StoreName
    from statestore.core.options import StateStoreOptions
    from statestore.operations.checkpoint import Checkpoint
    from statestore.operations.committed_version import Report
    from statestore.operations.in_use import ExclusiveUse

MIN_VERSIONS = 2
"""A restart may need the version before the newest: its batch may have to run again."""


@dataclass(frozen=True, slots=True)
class StoreExpiry:
    """What goes of one store.

    Attributes:
        store: The store.
        files: Paths of the files, ascending.
        num_bytes: Their bytes; those of another state partition's files are not known.
    """

    store: StoreName
    files: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    """What an expiry does, or did.

    Attributes:
        checkpoint: URI of the checkpoint.
        keep: Versions that stay loadable, the newest.
        oldest_version: Oldest of them.
        stores: What goes of each store that has something to go.
    """

    checkpoint: str
    keep: int
    oldest_version: int
    stores: tuple[StoreExpiry, ...]

    @property
    def num_files(self) -> int:
        """Files of all stores."""
        return sum(len(store.files) for store in self.stores)

    @property
    def num_bytes(self) -> int:
        """Bytes of all stores."""
        return sum(store.num_bytes for store in self.stores)


def plan_expiry(
    checkpoint: str | Checkpoint,
    keep: int,
    *,
    options: StateStoreOptions | None = None,
    report: Report = no_report,
) -> ExpiryPlan:
    """Say what `expire` would delete; nothing is changed.

    Args:
        checkpoint: Checkpoint directory of the query, a path or a URI of any scheme; or
            one that is open.
        keep: How many versions stay loadable, the newest; at least 2.
        options: How to reach the storage (`s3.*`), and orphan_age_ms: how old a file that nobody
            needs must be, since another process may be writing it.
        report: Called with the stores done and their number.

    Raises:
        NotFoundError: No checkpoint.
        InvalidArgumentError: keep is less than 2; or a savepoint, which is never changed.
        CorruptionError, IncompatibleError, StorageError: A trailer cannot be read; nothing can be
            deleted safely then.
    """
    with opened(checkpoint, options) as source:
        source.check_of_query()
        return _expire(source, keep, None, report)


def expire(
    checkpoint: str | Checkpoint,
    keep: int,
    *,
    options: StateStoreOptions | None = None,
    report: Report = no_report,
) -> ExpiryPlan:
    """Delete the versions before the newest few, with the files that only they need.

    Arguments and errors as `plan_expiry`. Savepoints are elsewhere and never touched.

    Guarantee: the newest `keep` versions stay loadable, also after a raise half way, and so do
    those that a savepoint or branch being made has pinned.

    Raises:
        InUseError: A query is writing the checkpoint, or may be, since this process stood still for
            longer than its lease lasts.
    """
    with opened(checkpoint, options) as source, exclusive_use(source, "expire") as use:
        return _expire(source, keep, use, report)


def _expire(
    checkpoint: Checkpoint, keep: int, use: ExclusiveUse | None, report: Report
) -> ExpiryPlan:
    """Expire, or only say what would go where the checkpoint is not held."""
    if keep < MIN_VERSIONS:
        raise InvalidArgumentError(
            "too few versions would stay",
            keep=keep,
            minimum=MIN_VERSIONS,
            to_fix=f"keep {MIN_VERSIONS} or more: a batch that failed starts from the last but one",
        )
    options = replace(checkpoint.options, min_versions_to_retain=keep)
    newest = checkpoint.newest_version
    stores: list[StoreExpiry] = []
    with tempfile.TemporaryDirectory(dir=checkpoint.scratch_directory) as directory:
        heads = checkpoint.heads(newest) if newest else {}
        for number, (store, head) in enumerate(heads.items(), 1):
            location = checkpoint.location(store)
            io = DeferredDeletes(location.io, is_deferred=use is None)
            versions = _open_versions(checkpoint, replace(location, io=io), directory)
            try:
                if use is not None:
                    use.require_held()
                cleaned = versions.clean_up(head, options)
            finally:
                versions.forget_heads()
            if io.deleted:
                stores.append(StoreExpiry(store, tuple(sorted(io.deleted)), cleaned.num_bytes))
            report(number, len(heads))
    return ExpiryPlan(checkpoint.uri, keep, max(newest - keep + 1, 1), tuple(stores))


def _open_versions(
    checkpoint: Checkpoint, location: StoreLocation, scratch_directory: str
) -> StoreVersions | RocksDBVersions:
    if location.body == "arrows":
        return StoreVersions(location, checkpoint.clock, checkpoint.backend)
    memory = open_memory(checkpoint.options)
    # Known to be there: it made the memory.
    from statestore.backends.rocksdb.versions import RocksDBVersions

    directory = tempfile.mkdtemp(prefix="rocksdb-", dir=scratch_directory)
    return RocksDBVersions(location, checkpoint.clock, directory, memory)
