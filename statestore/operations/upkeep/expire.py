"""Expire: delete old versions of a checkpoint from outside, as maintenance does inside a query."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from statestore.checkpoint.layout import parse_state_file_name
from statestore.checkpoint.pins import oldest_to_retain
from statestore.checkpoint.rescale_refs import find_refs
from statestore.core.errors import InvalidArgumentError, require_whole
from statestore.core.text import format_bytes, format_count, format_table
from statestore.io.deferred import DeferredDeletes
from statestore.operations.result import Change, Result, no_progress
from statestore.operations.step import step

if TYPE_CHECKING:
    from statestore.codec.references import StoreName
    from statestore.io.file_io import FileInfo
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.result import Progress

MIN_VERSIONS = 2
"""A restart may need the version before the newest: its batch may have to run again."""


@dataclass(frozen=True, slots=True)
class StoreExpire:
    """Files of one store that go.

    Attributes:
        store: The store.
        files: Paths of the files, ascending.
        num_bytes: Their bytes; those of another state partition's files are not known.
    """

    store: StoreName
    files: tuple[str, ...]
    num_bytes: int


StayReason = Literal["needed", "pinned", "rescaled"]
"""Why older versions stay: one that is kept, or its snapshot, is made of their files; somebody
reads the files, a copy that is being made, SQL, or a trial; or state partitions of another number,
before or after a rescale, are made of their files."""

_REASONS: dict[StayReason, str] = {
    "needed": "kept versions and their snapshots are made of these files",
    "pinned": "somebody reads the files: a copy that is being made, SQL, or a trial; expire again "
    "when it is done",
    "rescaled": "state partitions that a rescale made or left are made of their files",
}


@dataclass(frozen=True, slots=True)
class StoreStay:
    """Files of a store that stay though they are older than the versions that are kept.

    Attributes:
        store: The store.
        reason: Why.
        is_compact: Whether the newest version is one file: the query's next need no older ones.
        oldest_version: The oldest version there is a delta of.
        num_files, num_bytes: State files of such versions.
    """

    store: StoreName
    reason: StayReason
    is_compact: bool
    oldest_version: int
    num_files: int
    num_bytes: int


@dataclass(frozen=True, repr=False)
class Expire(Result):
    """What an expiry did, or would do.

    Attributes:
        checkpoint: URI of the checkpoint.
        keep: Versions that stay loadable, the newest.
        oldest_version: Oldest of them that there is.
        stores: Files that go, of each store that has such.
        stays: Files of older versions that stay, of each store that has such.
    """

    checkpoint: str
    keep: int
    oldest_version: int
    stores: tuple[StoreExpire, ...]
    stays: tuple[StoreStay, ...]

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

    def __str__(self) -> str:
        stay = f"versions from {self.oldest_version} on stay."
        if not self.stores:
            return "\n".join([f"Nothing to delete: {stay}", *self._reasons()])
        rows = [
            [str(store.store), len(store.files), format_bytes(store.num_bytes)]
            for store in self.stores
        ]
        table = format_table(["store", "files", "bytes"], rows)
        sums = f"{format_count(self.num_files, 'file')}, {format_bytes(self.num_bytes)}; {stay}"
        return "\n".join([table, sums, *self._reasons()])

    def _reasons(self) -> list[str]:
        lines = []
        for reason, text in _REASONS.items():
            found = [stay for stay in self.stays if stay.reason == reason]
            if found:
                oldest = min(stay.oldest_version for stay in found)
                num_files = format_count(sum(stay.num_files for stay in found), "file")
                size = format_bytes(sum(stay.num_bytes for stay in found))
                lines.append(
                    f"Versions from {oldest} on stay as well, {num_files}, {size}: {text}."
                )
        if any(stay.reason != "pinned" and not stay.is_compact for stay in self.stays):
            uri = shlex.quote(self.checkpoint)
            lines.append(
                f"To let go of them: statestore compact {uri} --yes. Versions that the query "
                "commits after that need no older ones: expire again when those are all that is "
                "kept."
            )
        elif any(stay.reason != "pinned" for stay in self.stays):
            lines.append("They go when later versions are all that is kept: the newest is compact.")
        return lines

    def fields(self) -> dict[str, Any]:
        """Return the attributes, and the sums of all stores."""
        return {"num_files": self.num_files, "num_bytes": self.num_bytes, **super().fields()}


def expire(
    checkpoint: OpenCheckpoint,
    keep: int,
    *,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Expire:
    """Delete the versions before the newest few, with the files that only they need.

    The checkpoint's option orphan_age_ms says how old a file that nobody needs must be, since
    another process may be writing it. Arguments, guarantee and errors as `Checkpoint.expire`.
    """
    keep = require_whole("keep", keep)
    if dry_run:
        checkpoint.check_of_query()
        return _expire(checkpoint, keep, progress, deletes=False)
    with step(checkpoint, "expire", keep=keep) as one:
        done = _expire(checkpoint, keep, progress, deletes=True)
        one.result |= {
            "oldest_version": done.oldest_version,
            "num_files": done.num_files,
            "num_bytes": done.num_bytes,
        }
        return done


def _expire(checkpoint: OpenCheckpoint, keep: int, progress: Progress, *, deletes: bool) -> Expire:
    """Expire, or only say what would go."""
    if keep < MIN_VERSIONS:
        raise InvalidArgumentError(
            "too few versions would stay",
            keep=keep,
            minimum=MIN_VERSIONS,
            to_fix=f"keep {MIN_VERSIONS} or more: a batch that failed starts from the last but one",
        )
    options = replace(checkpoint.options, min_versions_to_retain=keep)
    newest = checkpoint.newest_version
    oldest = max(newest - keep + 1, 1)
    stores: list[StoreExpire] = []
    stays: list[StoreStay] = []
    firsts: list[tuple[bool, int]] = []
    gone: set[str] = set()
    with tempfile.TemporaryDirectory(dir=checkpoint.scratch_directory) as directory:
        heads = checkpoint.heads(newest) if newest else {}
        for number, (store, head) in enumerate(heads.items(), 1):
            location = checkpoint.location(store)
            io = DeferredDeletes(location.io, location.directory, gone, is_deferred=not deletes)
            form = checkpoint.work.form(location.body)
            versions = form.versions(
                replace(location, io=io), checkpoint.clock, checkpoint.backend, directory
            )
            try:
                cleaned = versions.clean_up(head, options)
                is_compact = len(versions.files_of(head)) == 1
            finally:
                versions.forget_heads()
            if io.deleted:
                stores.append(StoreExpire(store, tuple(sorted(io.deleted)), cleaned.num_bytes))
            left = io.list(location.directory)
            pinned_from, _ = oldest_to_retain(newest, keep, left, checkpoint.clock.now_ms())
            stay = _stay(store, left, oldest, is_pinned=pinned_from < oldest, is_compact=is_compact)
            if stay is not None:
                stays.append(stay)
            firsts.append(_first(store, left))
            progress(number, len(heads))
    _, first = max(firsts, default=(False, 0))
    # Of a branch, files that are older than its first version came with it.
    oldest = max(oldest, first, min(checkpoint.done_batches, default=-1) + 1)
    return Expire(checkpoint.uri, keep, oldest, tuple(stores), tuple(stays), done=deletes)


def _first(store: StoreName, left: list[FileInfo]) -> tuple[bool, int]:
    """Return whether a store had versions before a rescale, and the oldest there is a delta of.

    One that began with a rescale says nothing of the versions before.
    """
    names = [parse_state_file_name(info.name) for info in left]
    first = min((name.version for name in names if name and name.kind == "delta"), default=0)
    rescaled = {ref.version for ref in find_refs(left) if ref.partition == store.partition}
    return first not in rescaled, first


def _stay(
    store: StoreName, left: list[FileInfo], oldest: int, *, is_pinned: bool, is_compact: bool
) -> StoreStay | None:
    """Return the files in a store's directory that are older than the oldest kept version."""
    older = [
        (name, info)
        for info in left
        if (name := parse_state_file_name(info.name)) is not None and name.version < oldest
    ]
    versions = [name.version for name, _ in older if name.kind == "delta"]
    if not versions:
        return None
    reason: StayReason = "pinned" if is_pinned else "rescaled" if find_refs(left) else "needed"
    num_bytes = sum(info.size for _, info in older)
    return StoreStay(store, reason, is_compact, min(versions), len(older), num_bytes)
