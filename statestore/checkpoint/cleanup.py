"""Deletes files of a store directory, many a request, within the time that a call may take."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import parse_state_file_name
from statestore.core.liveness import step
from statestore.io.file_io import delete_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from statestore.checkpoint.layout import StoreLocation
    from statestore.core.clock import Clock
    from statestore.io.file_io import FileInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What a cleanup did.

    Attributes:
        num_files: Files deleted.
        num_bytes: Their bytes.
        num_left: Files that are still to be deleted, since the time was up: for the next cleanup.
    """

    num_files: int = 0
    num_bytes: int = 0
    num_left: int = 0

    def __add__(self, other: Cleanup) -> Cleanup:
        return Cleanup(
            self.num_files + other.num_files,
            self.num_bytes + other.num_bytes,
            self.num_left + other.num_left,
        )


class Deadline:
    """When a cleanup shall stop.

    Args:
        clock: Measures the time from now on.
        limit_s: Seconds until then, None for never.
    """

    def __init__(self, clock: Clock, limit_s: float | None) -> None:
        self._clock = clock
        self._end_ms = None if limit_s is None else clock.elapsed_ms() + limit_s * 1000.0

    def has_passed(self) -> bool:
        """Return whether the time is up."""
        return self._end_ms is not None and self._clock.elapsed_ms() >= self._end_ms


def delete_files(
    location: StoreLocation,
    files: Iterable[FileInfo],
    deadline: Deadline | None = None,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Cleanup:
    """Delete files of a store directory, those of the oldest versions first.

    Args:
        location: The store.
        files: Of the listing of its directory; a file that is gone is no error.
        deadline: After it no request but the first is made, so that every call makes progress.
        may_go_on: Asked before each request but the first: whether the checkpoint is still the one
            that the files were listed for.

    Raises:
        StorageError: The storage failed; some files may be deleted.
    """
    oldest_first = sorted(files, key=_version_of)
    cleaned = Cleanup()
    for batch in delete_batches(oldest_first):
        if cleaned.num_files and deadline is not None and deadline.has_passed():
            cleaned += Cleanup(num_left=len(oldest_first) - cleaned.num_files)
            logger.warning(
                "a cleanup stops, since its time is up; the next maintenance goes on: store=%s, "
                "files_deleted=%s, files_left=%s",
                location.store,
                cleaned.num_files,
                cleaned.num_left,
            )
            break
        if cleaned.num_files and not may_go_on():
            logger.info("a cleanup stops, the version is gone: store=%s", location.store)
            break
        location.io.delete_files(location.directory, [info.name for info in batch])
        step()
        cleaned += Cleanup(len(batch), sum(info.size for info in batch))
    return cleaned


def _version_of(info: FileInfo) -> int:
    name = parse_state_file_name(info.name)
    return 0 if name is None else name.version
