"""Expire: delete old versions of a checkpoint from outside, as maintenance does inside a query."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from statestore.backends.filesystem.versions import StoreVersions
from statestore.core.errors import InvalidArgumentError
from statestore.core.text import format_bytes, format_table
from statestore.io.deferred import DeferredDeletes
from statestore.operations.full_state import open_memory
from statestore.operations.in_use import exclusive_use
from statestore.operations.plan import Change, Plan, no_report

if TYPE_CHECKING:
    from statestore.backends.rocksdb.versions import RocksDBVersions
    from statestore.checkpoint.layout import StoreLocation
    from statestore.codec.trailer import StoreName
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.in_use import ExclusiveUse
    from statestore.operations.plan import Report

MIN_VERSIONS = 2
"""A restart may need the version before the newest: its batch may have to run again."""


@dataclass(frozen=True, slots=True)
class StoreExpire:
    """What goes of one store.

    Attributes:
        store: The store.
        files: Paths of the files, ascending.
        num_bytes: Their bytes; those of another state partition's files are not known.
    """

    store: StoreName
    files: tuple[str, ...]
    num_bytes: int


@dataclass(frozen=True, repr=False)
class ExpirePlan(Plan["ExpirePlan"]):
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
    stores: tuple[StoreExpire, ...]

    @property
    def num_files(self) -> int:
        """Files of all stores."""
        return sum(len(store.files) for store in self.stores)

    @property
    def num_bytes(self) -> int:
        """Bytes of all stores."""
        return sum(store.num_bytes for store in self.stores)

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that are deleted."""
        return self.num_bytes

    @property
    def changes(self) -> tuple[Change, ...]:
        """The files that are deleted."""
        return tuple(Change("delete", file) for store in self.stores for file in store.files)

    def describe(self) -> str:
        """Return how much goes of each store."""
        stay = f"versions from {self.oldest_version} on stay."
        if not self.stores:
            return f"Nothing to delete: {stay}"
        rows = [
            [str(store.store), len(store.files), format_bytes(store.num_bytes)]
            for store in self.stores
        ]
        table = format_table(["store", "files", "bytes"], rows)
        return f"{table}\n{self.num_files} files, {format_bytes(self.num_bytes)}; {stay}"

    def fields(self) -> dict[str, Any]:
        """Return the attributes, and the sums of all stores."""
        return {"num_files": self.num_files, "num_bytes": self.num_bytes, **super().fields()}


def plan_expire(
    checkpoint: OpenCheckpoint,
    keep: int,
    *,
    report: Report = no_report,
) -> ExpirePlan:
    """Say what `expire` would delete; nothing is changed.

    Args:
        checkpoint: The checkpoint. Its option orphan_age_ms says how old a file that nobody needs
            must be, since another process may be writing it.
        keep: How many versions stay loadable, the newest; at least 2.
        report: Called with the stores done and their number.

    Raises:
        NotFoundError: No checkpoint.
        InvalidArgumentError: keep is less than 2; or a savepoint, which is never changed.
        CorruptionError, IncompatibleError, StorageError: A trailer cannot be read; nothing can be
            deleted safely then.
    """
    checkpoint.check_of_query()
    return _expire(checkpoint, keep, None, report)


def expire(
    checkpoint: OpenCheckpoint,
    keep: int,
    *,
    report: Report = no_report,
) -> ExpirePlan:
    """Delete the versions before the newest few, with the files that only they need.

    Arguments and errors as `plan_expire`. Savepoints are elsewhere and never touched.

    Guarantee: the newest `keep` versions stay loadable, also after a raise half way, and so do
    those that a savepoint or branch being made has pinned.

    Raises:
        InUseError: A query is writing the checkpoint, or may be, since this process stood still for
            longer than its lease lasts.
    """
    with exclusive_use(checkpoint, "expire") as use:
        return _expire(checkpoint, keep, use, report)


def _expire(
    checkpoint: OpenCheckpoint, keep: int, use: ExclusiveUse | None, report: Report
) -> ExpirePlan:
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
    stores: list[StoreExpire] = []
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
                stores.append(StoreExpire(store, tuple(sorted(io.deleted)), cleaned.num_bytes))
            report(number, len(heads))
    return ExpirePlan(checkpoint.uri, keep, max(newest - keep + 1, 1), tuple(stores))


def _open_versions(
    checkpoint: OpenCheckpoint, location: StoreLocation, scratch_directory: str
) -> StoreVersions | RocksDBVersions:
    if location.body == "arrows":
        return StoreVersions(location, checkpoint.clock, checkpoint.backend)
    memory = open_memory(checkpoint.options)
    # Known to be there: it made the memory.
    from statestore.backends.rocksdb.versions import RocksDBVersions

    directory = tempfile.mkdtemp(prefix="rocksdb-", dir=scratch_directory)
    return RocksDBVersions(location, checkpoint.clock, directory, memory)
