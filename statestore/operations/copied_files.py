"""Copying the files of a version to a new directory, durably, several at a time."""

from __future__ import annotations

import posixpath
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from statestore.checkpoint import operator_metadata
from statestore.checkpoint.layout import parse_rescale_ref_name
from statestore.checkpoint.lineage import check_ref
from statestore.checkpoint.text_files import write_text
from statestore.checkpoint.trailers import trailer_of
from statestore.codec.sealed_file import SealedFile
from statestore.core.errors import NotFoundError
from statestore.io.local import named_errors
from statestore.io.storage import hadoop_uri

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from statestore.checkpoint.query_log import CommitEntry, OffsetsEntry
    from statestore.codec.references import FileRef, StoreName
    from statestore.io.file_io import FileIO
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.committed_version import CommittedVersion
    from statestore.operations.new_directory import NewDirectory

_MAX_COPIES_AT_ONCE = 8


def copy_file(
    source: FileIO, path: str, target: NewDirectory, new_path: str, ref: FileRef | None = None
) -> None:
    """Copy a file to any storage, durably; a state file is checked first.

    Args:
        source: Storage of the file.
        path: The file there.
        target: The directory that is to have it.
        new_path: Where it shall appear there.
        ref: The reference that names a state file; None of any other.

    Raises:
        CorruptionError: It is a damaged state file.
        FencedError: It is another state file by now, as after a promote (kind lineage-broken).
        NotFoundError: It is not there.
        StorageError: A storage failed.
    """
    target.io.make_directory(posixpath.dirname(new_path))
    local = source.fetch(path)
    copy = f"{target.scratch_directory}/{target.ids.new_id()}"
    try:
        shutil.copyfile(local, copy)
    except FileNotFoundError as error:
        raise NotFoundError(
            "a file was deleted while it was copied",
            kind="file-not-found",
            file=path,
            to_fix="copy a newer version",
        ) from error
    except PermissionError:
        with named_errors("copy a file", path):
            raise
    if ref is not None:
        with named_errors("check a copy", copy):
            sealed = SealedFile(copy, path)
            check_ref(sealed.trailer, ref, path)
            sealed.verify()
    target.io.publish(copy, new_path, sync=True, overwrite=True)


def link_file(
    source: FileIO, path: str, target: NewDirectory, new_path: str, ref: FileRef | None = None
) -> None:
    """Let a file appear in a directory, by a link where the storages share; as `copy_file`.

    Of a state file that is shared the trailer alone is checked: one request more, at the new path.
    """
    if not target.io.shares(source, path, new_path):
        copy_file(source, path, target, new_path, ref)
        return
    target.io.make_directory(posixpath.dirname(new_path))
    target.io.link(path, new_path, sync=True)
    if ref is not None:
        check_ref(trailer_of(target.io, new_path)[0], ref, path)


def copy_state(
    version: CommittedVersion,
    stores: Iterable[StoreName],
    target: NewDirectory,
    state_io_root: str,
    add_done: Callable[[int], None],
    *,
    copy: Callable[[FileIO, str, NewDirectory, str, FileRef | None], None],
) -> None:
    """Copy the state files of some stores as they are, to the same place below another root.

    Args:
        version: What to copy.
        stores: The stores.
        target: Where to.
        state_io_root: Directory of the operators' state there.
        add_done: Called with the bytes of each file that was copied.
        copy: How to copy a file.

    Raises:
        NotFoundError: A file was deleted meanwhile.
        FencedError: A file was replaced meanwhile, so that the version is not whole any more.
        CorruptionError, StorageError: A file is damaged, or a storage failed.
    """
    checkpoint = version.checkpoint
    stores = list(stores)
    files: dict[str, tuple[FileIO, str, int, FileRef | None]] = {}
    for store in stores:
        location = checkpoint.location(store)
        for path, ref in version.state_files(store):
            files[posixpath.relpath(path, location.root)] = location.io, path, ref.size, ref
        for path, size in _references(version, store):
            files[posixpath.relpath(path, location.root)] = location.io, path, size, None
    with ThreadPoolExecutor(_MAX_COPIES_AT_ONCE) as pool:

        def copy_one(below: str) -> int:
            io, path, size, ref = files[below]
            copy(io, path, target, f"{state_io_root}/{below}", ref)
            return size

        for size in pool.map(copy_one, files):
            add_done(size)


def _references(version: CommittedVersion, store: StoreName) -> Iterable[tuple[str, int]]:
    """Yield the store's files that keep what it takes from others from being deleted there."""
    location = version.checkpoint.location(store)
    taken = [ref.path for ref in version.heads[store].trailer.files if ref.is_foreign]
    directories = {posixpath.dirname(location.path(path)) for path in taken}
    for directory in directories | ({location.directory} if taken else set()):
        for info in location.io.list(directory):
            ref = parse_rescale_ref_name(info.name)
            # One of another store leads to nothing without the one in that store's directory.
            if ref is not None and ref.partition == store.partition:
                yield f"{directory}/{info.name}", info.size


def write_logs(
    target: NewDirectory, offsets: Mapping[int, OffsetsEntry], commits: Mapping[int, CommitEntry]
) -> None:
    """Write the entries of both logs; errors as `NewDirectory.check_mine` and `write_text`."""
    target.check_mine()
    for batch, offset in offsets.items():
        write_text(target.io, f"{target.path}/offsets/{batch}", offset.encode(), overwrite=True)
    for batch, commit in commits.items():
        write_text(target.io, f"{target.path}/commits/{batch}", commit.encode(), overwrite=True)


def copy_operators(
    source: OpenCheckpoint,
    target: NewDirectory,
    new_ids: Mapping[int, int],
    num_partitions: int,
    newest_batch: int,
) -> None:
    """Write Spark's metadata of operators to a new directory; all as `operator_metadata` does."""
    operator_metadata.copy_operators(
        source.io,
        source.state_directory,
        target.io,
        f"{target.path}/state",
        f"{hadoop_uri(target.uri)}/state",
        new_ids,
        num_partitions,
        newest_batch,
    )


def copy_spark_files(
    version: CommittedVersion,
    target: NewDirectory,
    rename: Callable[[str], str | None] = lambda path: path,
) -> None:
    """Copy Spark's files that are neither log nor state, several at a time.

    Args:
        version: What to copy from.
        target: Where to.
        rename: Returns the new path of a file below the directory, None to leave it out.

    Raises:
        NotFoundError: A source deleted one meanwhile, as it does after it put it into a later one;
            or as `CommittedVersion.check_sources`.
        FencedError: The target was begun anew by another process.
        StorageError: A storage failed.
    """
    version.check_sources()
    source = version.checkpoint
    names = {path: new for path in version.spark_files if (new := rename(path)) is not None}
    # Their names are the same for whoever else might write the directory.
    target.check_mine()

    def copy_one(names: tuple[str, str]) -> None:
        old, new = names
        copy_file(source.io, f"{source.path}/{old}", target, f"{target.path}/{new}")

    with ThreadPoolExecutor(_MAX_COPIES_AT_ONCE) as pool:
        for _ in pool.map(copy_one, names.items()):
            pass
