"""Lineage: which files a version is made of, and the proof that they are still the same files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import path_from_sibling
from statestore.codec.references import FileRef, StoreName, VersionRef
from statestore.codec.trailer import Trailer, compute_lineage
from statestore.core.digest import digest_of
from statestore.core.errors import CorruptionError, FencedError, IncompatibleError

if TYPE_CHECKING:
    from statestore.core.key_groups import KeyGroupSet


def make_ref(name: str, trailer: Trailer, size: int) -> FileRef:
    """Return the reference by which later trailers name a file.

    Args:
        name: Path of the file relative to the store directory.
        trailer: The file's own trailer.
        size: Bytes of the whole file.
    """
    return FileRef(
        path=name,
        kind=trailer.kind,
        version=trailer.version,
        checkpoint_id=trailer.checkpoint_id,
        lineage=trailer.lineage,
        size=size,
        rows=trailer.rows.total,
    )


def taken_over(
    source: StoreName, ref: FileRef, written_by: KeyGroupSet, wanted: KeyGroupSet | None
) -> FileRef | None:
    """Return the reference by which another state partition names a file of a chain.

    Args:
        source: The store whose chain names the file.
        ref: How it names it.
        written_by: The key groups of that store.
        wanted: The key groups to take over, None for all rows whatever their key groups.

    Returns:
        The reference, None where the file has no row to take over. Its clip is the wanted key
        groups that were the chain's, so that only rows of the source count.
    """
    path = ref.path if ref.is_foreign else path_from_sibling(source, ref.path)
    if wanted is None:
        return replace(ref, path=path)
    clip = (ref.clip or written_by) & wanted
    return None if clip is None or ref.rows == 0 else replace(ref, path=path, clip=clip)


def rescaled_id(
    store: StoreName, version: int, num_partitions: int, files: tuple[FileRef, ...]
) -> str:
    """Return the checkpoint ID of a version that a rescale makes of references to other files.

    A rescale that is done again makes the same one.
    """
    identity = f"{store} {version} {num_partitions} {compute_lineage(None, (), files)}"
    return digest_of(identity.encode())


def chain_length(files: tuple[FileRef, ...]) -> int:
    """Return the number of deltas among files."""
    return sum(ref.kind == "delta" for ref in files)


def check_store(trailer: Trailer, store: StoreName, path: str) -> None:
    """Check that a file lies where it belongs.

    Raises:
        IncompatibleError: It belongs to another store (kind other-store).
    """
    if trailer.store != store:
        raise IncompatibleError(
            "a state file belongs to another store",
            kind="other-store",
            file=path,
            expected=str(store),
            found=str(trailer.store),
            to_fix="put the file back into its own directory; checkpoints are copied whole",
        )


def check_version(trailer: Trailer, version: int, checkpoint_id: str | None, path: str) -> None:
    """Check that a file makes the wanted version and attempt.

    Raises:
        CorruptionError: The version differs.
        FencedError: The checkpoint ID differs.
    """
    if trailer.version != version:
        raise CorruptionError(
            "a state file makes another version than its name says",
            file=path,
            offset=trailer.body_length,
            expected=version,
            found=trailer.version,
            to_fix="restore the file from a copy",
        )
    if checkpoint_id is not None and trailer.checkpoint_id != checkpoint_id:
        raise FencedError(
            "a version was written by another attempt",
            file=path,
            version=version,
            expected=checkpoint_id,
            found=trailer.checkpoint_id,
            to_fix="restart the query from its checkpoint",
        )


def check_ref(trailer: Trailer, ref: FileRef, path: str) -> None:
    """Check that a file is the one a reference names, or has its rows.

    An attempt may write it twice, where its engine dies, and the second time in other bytes.

    Raises:
        FencedError: Another attempt replaced it with other rows (kind lineage-broken).
        CorruptionError: Its lineage is right but its rows or kind are not.
    """
    if trailer.lineage != ref.lineage or trailer.version != ref.version:
        raise FencedError(
            "a file was replaced by another attempt with other rows",
            kind="lineage-broken",
            file=path,
            version=ref.version,
            expected=ref.lineage,
            found=trailer.lineage,
            to_fix="repeat a copy that was being made; else go back to an older version, or use "
            "checkpoint format v2 (spark.sql.streaming.stateStore.checkpointFormatVersion=2): it "
            "keeps attempts apart",
        )
    if trailer.kind != ref.kind or trailer.rows.total != ref.rows:
        raise CorruptionError(
            "a file is not the one its reference names",
            file=path,
            offset=0,
            expected=f"{ref.kind} of {ref.rows} rows",
            found=f"{trailer.kind} of {trailer.rows.total} rows",
            to_fix="restore the file from a copy",
        )


def check_parent(parent: Trailer, expected: VersionRef, path: str) -> None:
    """Check that the parent of a new version is still the rows it was built on.

    Raises:
        FencedError: Another attempt replaced the parent (kind lineage-broken).
    """
    if parent.version_ref.lineage != expected.lineage:
        raise FencedError(
            "the version this commit is built on was replaced by another attempt",
            kind="lineage-broken",
            file=path,
            version=expected.version,
            expected=expected.lineage,
            found=parent.version_ref.lineage,
            to_fix="let the batch run again; this attempt must not commit",
        )
