"""Fills a disk of the lane's own, so that little is left."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Filler:
    """What fills a disk.

    Args:
        disk: A directory of it.
    """

    def __init__(self, disk: Path) -> None:
        self._disk = disk

    @contextmanager
    def filled(self, num_bytes: int) -> Iterator[None]:
        """Leave so many bytes while a block runs."""
        file = self._disk / "filler"
        disk = os.statvfs(self._disk)
        free = disk.f_bavail * disk.f_frsize
        with file.open("wb") as handle:
            os.posix_fallocate(handle.fileno(), 0, max(1, free - num_bytes))
        try:
            yield
        finally:
            file.unlink()
