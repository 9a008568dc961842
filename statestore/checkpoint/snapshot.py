"""Snapshots: when one is due, and how it is written from the files of a version.

A snapshot only makes restores shorter. It is made of published files and has a name of its own, so
it can be written beside commits and be lost at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow.ipc as ipc

from statestore.checkpoint.lineage import chain_length, make_ref
from statestore.checkpoint.load import open_ref
from statestore.checkpoint.trailers import PublishedFile, read_trailer
from statestore.codec.merge import merge_runs
from statestore.codec.rows import SCHEMA, split_for_blocks, to_numpy, write_options
from statestore.codec.sealed_file import append_trailer
from statestore.codec.state_file import describe_own_stream
from statestore.codec.trailer import Block, RowCounts, Trailer, compute_lineage
from statestore.core.errors import CorruptionError, FencedError, InternalError, NotFoundError
from statestore.core.version import WRITER
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore.checkpoint.layout import StoreLocation
    from statestore.checkpoint.load import LoadedVersion
    from statestore.codec.references import FileRef
    from statestore.core.options import StateStoreOptions


REPLAY_ROWS_PER_MS = 2000.0
"""Rows a shim reads from state files into its working view in a millisecond."""
REPLAY_MS_PER_FILE = 2.0
MIN_CHAIN_LENGTH = 8
"""Fewest files for which a snapshot of a small state is worth its file."""
MIN_SAVING_MS = 50.0
"""A snapshot that would save less replay time than this is not worth its bytes."""


def is_snapshot_due(
    refs: tuple[FileRef, ...], num_keys: int | None, options: StateStoreOptions, times: int = 1
) -> bool:
    """Return whether a restore from some files costs so much that a snapshot is due.

    It is due where there are many files, where some files have as many rows as the whole state, and
    where reading them takes much longer than reading a snapshot would.

    Args:
        refs: The files a restore would apply.
        num_keys: Rows of the state, and so of a fresh snapshot; None where they are not counted
            yet.
        options: snapshot_max_chain_length and snapshot_replay_ratio decide.
        times: Factor on the number of files: 2 asks whether it is twice overdue.
    """
    num_deltas = chain_length(refs)
    if num_deltas >= times * options.snapshot_max_chain_length:
        return True
    if num_keys is None:
        return False
    rows = sum(ref.rows for ref in refs)
    enough_rows = (1.0 + options.snapshot_replay_ratio) * num_keys
    if num_deltas >= times * MIN_CHAIN_LENGTH and rows >= enough_rows:
        return True
    if times > 1:
        return False
    now_ms = replay_ms(rows, len(refs))
    fresh_ms = replay_ms(num_keys, 1)
    is_costly = now_ms >= (1.0 + options.snapshot_replay_ratio) * fresh_ms
    return is_costly and now_ms - fresh_ms >= MIN_SAVING_MS


def replay_ms(num_rows: int, num_files: int) -> float:
    """Return the estimated milliseconds to read that many rows from that many files."""
    return num_rows / REPLAY_ROWS_PER_MS + num_files * REPLAY_MS_PER_FILE


def summary_trailer(
    head: Trailer,
    kind: Literal["snapshot", "merged"],
    files: tuple[FileRef, ...],
    blocks: tuple[Block, ...],
    rows: RowCounts,
    counts: tuple[int | None, int | None],
) -> Trailer:
    """Return the trailer of a file that stands for files of a version, by that of its delta.

    `files` are those that a merged file stands for; a snapshot stands for all. `counts` are the
    rows of the version, and of its internal column families.
    """
    num_keys, num_internal_keys = counts
    return replace(
        head,
        kind=kind,
        writer=WRITER,
        parent=head.version_ref,
        lineage=compute_lineage(head.version_ref, blocks),
        files=files,
        blocks=blocks,
        rows=rows,
        num_keys=num_keys,
        num_internal_keys=num_internal_keys,
        key_group_rows=None,
        parent_commit=None,
    )


def publish_summary(
    location: StoreLocation,
    name: str,
    trailer: Trailer,
    local_path: str,
    verify: Callable[[StoreLocation, FileRef], object],
    *,
    sync: bool,
) -> PublishedFile:
    """Publish a summary, unless another engine was first, or one that died.

    Trailers may name the file that is there already, so it stays, unless it is damaged.

    Args:
        location: The store.
        name: Name of the file.
        trailer: As `summary_trailer` returns it.
        local_path: The body.
        verify: Raises CorruptionError where a file that is there is damaged.
        sync: Whether to wait for the disk.

    Returns:
        What is there now: this one, or another engine's, which may be made of other files.

    Raises:
        FencedError, IncompatibleError: Another engine's file is there, and cannot be read, or came
            while it was looked at.
        CorruptionError: The disk does not give what is there (kind storage).
        StorageError: The storage failed.
    """
    size = trailer.body_length + len(append_trailer(local_path, trailer))
    path = location.path(name)
    try:
        location.io.publish(local_path, path, sync=sync, overwrite=False)
    except FencedError:
        try:
            existing = read_trailer(location, name)
            verify(location, existing.ref)
        except CorruptionError as error:
            if error.kind == "storage":  # it may be whole, and named by versions
                raise
            location.io.publish(local_path, path, sync=sync, overwrite=True)
        except NotFoundError:  # it is gone meanwhile: what comes now may be another one's
            location.io.publish(local_path, path, sync=sync, overwrite=False)
        else:
            return existing
    return PublishedFile(make_ref(name, trailer, size), trailer)


def check_num_rows(head: Trailer, num_rows: int) -> None:
    """Check that a snapshot has as many rows as its version, where that counts them.

    Raises:
        InternalError: It has not.
    """
    if head.num_keys not in (num_rows, None):
        raise InternalError(
            "the rows of a version are not as many as its trailer says",
            store=str(head.store),
            version=head.version,
            expected=head.num_keys,
            found=num_rows,
            to_fix="report it with the query's stateful operators; no snapshot was published",
        )


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """The newest published snapshot known.

    Attributes:
        version: Version it summarises, -1 when none is known.
        num_bytes: Size of its file.
        duration_ms: How long writing it took, 0 when another process wrote it.
        num_taken: Snapshots written through this object.
    """

    version: int = -1
    num_bytes: int = 0
    duration_ms: float = 0.0
    num_taken: int = 0


def write_snapshot(
    location: StoreLocation,
    restored: LoadedVersion,
    scratch_directory: str,
    options: StateStoreOptions,
) -> PublishedFile:
    """Merge the files of a version into its snapshot and publish it.

    Needs the memory of a few slices and a record batch of each file, whatever the state.

    Args:
        location: The store.
        restored: The version.
        scratch_directory: Local directory for the file while it is written.
        options: file_compression and fsync_enabled are used.

    Guarantee and errors as `VersionsBase.take_snapshot`.
    """
    head = restored.head.trailer
    name = location.summary_name("snapshot", head.version, head.checkpoint_id)
    local_path = f"{scratch_directory}/{head.store.operator}-{head.store.partition}-{name}"
    try:
        with named_errors("write a snapshot to the scratch directory", local_path):
            num_rows, num_internal_rows = _write_stream(restored, local_path, options)
            check_num_rows(head, num_rows)
            blocks = describe_own_stream(local_path, head.max_parallelism)
        rows, counts = RowCounts(put=num_rows), (num_rows, num_internal_rows)
        trailer = summary_trailer(head, "snapshot", (), blocks, rows, counts)
        sync = options.fsync_enabled
        return publish_summary(location, name, trailer, local_path, open_ref, sync=sync)
    finally:
        Path(local_path).unlink(missing_ok=True)


def _write_stream(
    restored: LoadedVersion, local_path: str, options: StateStoreOptions
) -> tuple[int, int]:
    """Write the rows of a version; return how many, and how many in internal families."""
    head = restored.head.trailer
    internal = [family.id for family in head.column_families if family.internal]
    num_rows = num_internal_rows = 0
    compression = write_options(options.file_compression)
    with ipc.new_stream(local_path, SCHEMA, options=compression) as stream:
        for batch in merge_runs(restored.files, head.max_parallelism):
            for block in split_for_blocks(batch):
                stream.write_batch(block)
            num_rows += batch.num_rows
            if internal:
                families = to_numpy(batch.column(1), np.uint16)
                num_internal_rows += int(np.isin(families, internal).sum())
    return num_rows, num_internal_rows
