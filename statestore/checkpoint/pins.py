"""Pins: a reader from outside the query keeps a version from expiring.

`<version>.<id>.pin` lies in the directory of a store. Whoever cleans a store up lists that
directory anyway, so pins cost a query no request. A pin lasts an hour, and whoever reads for longer
writes it again, under two names in turn: some storages replace a file by deleting it first. The pin
of a process that died goes with the first cleanup after its hour, and so do the files that it held.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from statestore.checkpoint.layout import parse_pin_name, pin_name
from statestore.core.digest import digest_of
from statestore.core.errors import StateStoreError
from statestore.io.storage import place_uri

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from statestore.checkpoint.layout import StoreLocation
    from statestore.core.ids import IdSource
    from statestore.io.file_io import FileInfo

logger = logging.getLogger(__name__)

MIN_RETAINED = 2
"""Versions of a store that are retained at least: a failed batch starts from the one before."""
LASTS_MS = 3600 * 1000
_RENEWALS = 3  # in the time a pin lasts
_FOR = 16  # hex digits of an ID that say what for, of 32
_RETRIES = 3  # of single stores
_RETRY_S = 60.0
_MAX_REQUESTS_AT_ONCE = 8


def oldest_to_retain(
    newest: int, num_retained: int, files: Iterable[FileInfo], now_ms: int
) -> tuple[int, list[FileInfo]]:
    """Return the oldest version of a store that must stay loadable, and pins that have expired.

    Args:
        newest: Its newest committed version.
        num_retained: Number of the newest versions that the query keeps; MIN_RETAINED at least.
        files: Listing of its directory.
        now_ms: Now, milliseconds since the Unix epoch.
    """
    oldest = max(1, newest - max(num_retained, MIN_RETAINED) + 1)
    expired = []
    for info in files:
        version = parse_pin_name(info.name)
        if version is None:
            continue
        if is_held(info, now_ms):
            oldest = min(oldest, version)
        else:
            expired.append(info)
    return oldest, expired


def is_held(pin: FileInfo, now_ms: int) -> bool:
    """Return whether a pin counts: it was written within the time that one lasts."""
    return now_ms - pin.modified_ms <= LASTS_MS


def pins_for(directory: str) -> str:
    """Return what the IDs of all pins begin with that calls hold which make a directory.

    Args:
        directory: Its URI, or its path, however it is spelled.
    """
    return digest_of(place_uri(directory).encode(), _FOR // 2)


def pin_id_for(directory: str, ids: IdSource) -> str:
    """Return an ID for the pin of a call that makes a directory, see `pins_for`."""
    return pins_for(directory) + ids.new_id()[_FOR:]


def _ids_of_pin(pin_id: str) -> tuple[str, str]:
    """Return the two IDs that are in the names of a pin."""
    return pin_id, f"{int(pin_id, 16) ^ 1:032x}"


@contextmanager
def pinned(locations: Sequence[StoreLocation], version: int, pin_id: str) -> Iterator[None]:
    """Keep a version of some stores from expiring while a block reads it.

    Where the storage of the checkpoint cannot be written, the block runs without: a version that
    is retained for long enough needs no pin.

    Args:
        locations: The stores.
        version: A version of each that can be loaded, at least 1.
        pin_id: 32 hex digits that no other pin has.

    Guarantee: unless a warning in the log says otherwise, no cleanup that begins within the block
    deletes a file that the version needs. A cleanup that was running may, if the version was the
    oldest to retain or older. No error of the storage is raised; a pin that stays expires.
    """
    names = [pin_name(version, one) for one in _ids_of_pin(pin_id)]
    num_renewed = 0
    is_over = threading.Event()

    def write(location: StoreLocation) -> None:
        # Not synced: after a power failure the reader is gone.
        name = names[num_renewed % 2]
        location.io.write(location.path(name), b"", sync=False, overwrite=True)

    def delete(location: StoreLocation) -> None:
        for name in names if num_renewed else names[:1]:
            with suppress(StateStoreError):
                location.io.delete(location.path(name))

    def write_all(of: Sequence[StoreLocation]) -> list[StoreLocation]:
        """Write the pins of some stores; return those that have none."""
        with ThreadPoolExecutor(_MAX_REQUESTS_AT_ONCE) as pool:
            writing = [pool.submit(write, location) for location in of]
        errors = [one.exception() for one in writing]
        for error in errors:
            if error is not None and not isinstance(error, StateStoreError):
                raise error
        left = [location for location, error in zip(of, errors, strict=True) if error]
        if left:
            logger.warning(
                "a version may be expired while it is read: version=%d stores=%d without_pin=%d "
                "error=%s", version, len(locations), len(left), next(filter(None, errors)),
            )  # fmt: skip
        return left

    def renew(left: list[StoreLocation]) -> None:
        nonlocal num_renewed
        while True:
            # Where every call is refused, the storage cannot be written.
            for _ in range(_RETRIES if len(left) < len(locations) else 0):
                if left and is_over.wait(_RETRY_S):
                    return
                left = write_all(left) if left else []
            if is_over.wait(LASTS_MS / _RENEWALS / 1000):
                return
            num_renewed += 1
            left = write_all(locations)

    first = write_all(locations)
    renewing = threading.Thread(target=renew, args=(first,), name="pins", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        is_over.set()
        renewing.join()
        with ThreadPoolExecutor(_MAX_REQUESTS_AT_ONCE) as pool:
            list(pool.map(delete, locations))
