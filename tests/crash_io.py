"""Storage that loses power: `crash` keeps only what was synced."""

from __future__ import annotations

from statestore.io.memory import MemoryFileIO


class CrashFileIO(MemoryFileIO):
    """MemoryFileIO that knows which files have reached the disk.

    A file published without sync is there until the crash; what it replaced comes back.
    """

    def __init__(self, cache_directory: str, *, keeps_deletes: bool = False) -> None:
        """Keep fetched files in a local directory, owned by the caller.

        Args:
            cache_directory: The directory.
            keeps_deletes: Whether a delete reaches the disk at once; else it never does.
        """
        super().__init__(cache_directory)
        self._durable: dict[str, bytes] = {}
        self._keeps_deletes = keeps_deletes

    def delete(self, path: str) -> None:
        """See FileIO."""
        super().delete(path)
        if self._keeps_deletes:
            self._durable.pop(path, None)

    def write(self, path: str, data: bytes, *, sync: bool, overwrite: bool) -> None:
        """See FileIO."""
        super().write(path, data, sync=sync, overwrite=overwrite)
        if sync:
            self._durable[path] = data

    def sync(self, path: str) -> None:
        """See FileIO."""
        self._durable[path] = self.read(path)

    def crash(self) -> None:
        """Lose power: every file that was not synced is gone, deleted ones are back."""
        for path in self.paths():
            super().delete(path)
        for path, data in self._durable.items():
            super().write(path, data, sync=False, overwrite=True)
