"""Batch: writes on top of one version of a store, applied all or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import google_crc32c

from statestore.codec.column_family import ColumnFamily
from statestore.codec.rows import DELETE, MERGE, PUT, Row, batches_from_rows
from statestore.core.errors import InvalidArgumentError, StoreClosedError
from statestore.store.table import ArrowRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore.store.table import Table


class BatchOwner(Protocol):
    """The store that a batch writes to, as the batch sees it; see `Store`."""

    @property
    def table(self) -> Table:
        """Rows of the version the store is at."""
        ...

    @property
    def version(self) -> int:
        """Version the store is at."""
        ...

    @property
    def checkpoint_id(self) -> str | None:
        """ID of the attempt that made the version."""
        ...

    @property
    def column_families(self) -> tuple[ColumnFamily, ...]:
        """Every column family of the version."""
        ...

    @property
    def partition(self) -> int:
        """State partition of the store."""
        ...

    @property
    def num_partitions(self) -> int:
        """Number of state partitions of the checkpoint."""
        ...

    def check_open(self) -> None:
        """Raise a StoreClosedError when the store was closed."""
        ...

    def commit(self, batch: Batch) -> int:
        """Make a batch durable and return its version."""
        ...


class Batch:
    """Writes on top of one version, all or nothing. Not thread-safe."""

    def __init__(self, store: BatchOwner, checkpoint_id: str) -> None:
        """Use `Store.begin` instead."""
        self._store = store
        self._base = store.table
        self._version = store.version
        self._attempt = store.checkpoint_id
        self._rows: dict[tuple[int, bytes], Row] = {}
        self._pieces: dict[tuple[int, bytes], list[bytes]] = {}
        """Values of rows that were appended to, which are joined when they are read."""
        self._is_done = False
        self._is_fixed = False
        """Whether a commit was begun: what storage may have by its ID is the rows of then."""
        self.column_families = store.column_families
        self.checkpoint_id = checkpoint_id
        self.is_rescalable = True
        """Whether every key group was given and belongs to the store's state partition."""

    @property
    def rows(self) -> dict[tuple[int, bytes], Row]:
        """The staged rows by (column family, key)."""
        for place in [*self._pieces]:
            self._row(place)
        return self._rows

    def get(self, key: bytes, column_family: str = "default") -> bytes | None:
        """Return the value of a key as this batch would leave it; errors as `Store.get`."""
        self._check_open()
        family = family_id(self.column_families, column_family)
        row = self._row((family, key))
        if row is None:
            return self._base.get(family, key)
        if row.op == MERGE:
            return (self._base.get(family, key) or b"") + (row.value or b"")
        return row.value

    def scan(
        self, prefix: bytes = b"", *, key_group: int | None = None, column_family: str = "default"
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) in key order as the batch would leave it; errors as `Store.scan`."""
        self._check_open()
        run = ArrowRun(batches_from_rows(self.rows.values(), self._base.max_parallelism))
        table = self._base.apply(run, 0)
        return table.scan(family_id(self.column_families, column_family), prefix, key_group)

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        key_group: int | None = None,
        column_family: str = "default",
    ) -> None:
        """Set the value of a key.

        Args:
            key: Bytes of the key.
            value: Bytes of the value.
            key_group: In [0, max_parallelism); None takes the one the key has, or for a new key
                CRC32C(key) mod max_parallelism, which makes the store not rescalable by key groups.
            column_family: Name of the column family.

        Raises:
            InvalidArgumentError: Key or value is not bytes; no such column family; or the key group
                is out of range or not the one under which the key was written before. The batch is
                as it was.
            StoreClosedError: The batch was committed or aborted, or a commit has failed.
        """
        self._stage(PUT, key, value, key_group, column_family)

    def delete(
        self, key: bytes, *, key_group: int | None = None, column_family: str = "default"
    ) -> None:
        """Delete a key; one that was never there is not written. Arguments and errors as `put`."""
        self._stage(DELETE, key, None, key_group, column_family)

    def merge(
        self,
        key: bytes,
        value: bytes,
        *,
        key_group: int | None = None,
        column_family: str = "default",
    ) -> None:
        """Append bytes to the value of a key, or set it when there is none; errors as `put`."""
        self._stage(MERGE, key, value, key_group, column_family)

    def create_column_family(self, name: str, *, multi_values: bool = False) -> None:
        """Add a column family unless it exists; it exists for good once the batch is committed.

        Raises:
            StoreClosedError: The batch was committed or aborted, or a commit has failed.
        """
        self._check_writable()
        if any(family.name == name for family in self.column_families):
            return
        number = max(family.id for family in self.column_families) + 1
        added = ColumnFamily(number, name, multi_values=multi_values)
        self.column_families = (*self.column_families, added)

    def commit(self) -> int:
        """Make every write of the batch durable as the next version and return its number.

        Guarantee: on return a crash at any later point can open the version, and the store is
        at it. After a raise the store is where it was. The batch takes no more writes then, and
        can be committed again: it is the same attempt, and finds its file when the first try
        did reach the storage.

        Raises:
            FencedError: The store's version was replaced by another attempt, or the next one is
                there and its batch committed. Open the store anew.
            InUseError: A running query writes the checkpoint. Stop it.
            StorageError: The storage or the local disk failed.
            StoreClosedError: The batch was committed or aborted, or the store has moved on.
        """
        self._check_open()
        if (self._store.version, self._store.checkpoint_id) != (self._version, self._attempt):
            raise StoreClosedError(
                "the store has moved on since the batch began",
                batch_version=self._version,
                batch_attempt=self._attempt,
                store_version=self._store.version,
                store_attempt=self._store.checkpoint_id,
                to_fix="begin a new batch",
            )
        self._is_fixed = True
        version = self._store.commit(self)
        self._is_done = True
        return version

    def abort(self) -> None:
        """Drop every write of the batch. Aborting a finished batch is harmless.

        Of a commit that failed the version may be in the storage all the same, and stays there.
        """
        self._is_done = True
        self._rows.clear()
        self._pieces.clear()

    def _row(self, place: tuple[int, bytes]) -> Row | None:
        if (pieces := self._pieces.pop(place, None)) is not None:
            self._rows[place] = replace(self._rows[place], value=b"".join(pieces))
        return self._rows.get(place)

    def _stage(
        self, op: int, key: bytes, value: bytes | None, key_group: int | None, column_family: str
    ) -> None:
        self._check_writable()
        if not isinstance(key, bytes) or not (op == DELETE or isinstance(value, bytes)):
            raise InvalidArgumentError(
                "a key or a value is not bytes",
                key=type(key).__name__,
                value=type(value).__name__,
                to_fix="give bytes; delete a key that is to have no value",
            )
        family = family_id(self.column_families, column_family)
        staged = self._rows.get((family, key))
        known = staged.key_group if staged else self._base.key_group_of(family, key)
        self._require_key_group(key, key_group, known)
        if op == DELETE and known is None:
            return
        group = self._resolve_key_group(key, key_group if known is None else known)
        if op == MERGE and staged is not None:
            if staged.op != DELETE:
                self._pieces.setdefault((family, key), [staged.value or b""]).append(value or b"")
                return
            op = PUT
        self._pieces.pop((family, key), None)
        self._rows[family, key] = Row(group, family, op, key, value)

    def _require_key_group(self, key: bytes, asked: int | None, known: int | None) -> None:
        if asked is not None and not (
            0 <= asked < self._base.max_parallelism and known in (None, asked)
        ):
            raise InvalidArgumentError(
                "key group of a key is out of range or not the one it was written under",
                key=key[:16].hex(),
                key_group=asked,
                known=known,
                max_parallelism=self._base.max_parallelism,
                to_fix="compute it the same way every time, or leave it out for keys that are "
                "there",
            )

    def _resolve_key_group(self, key: bytes, group: int | None) -> int:
        if group is None:
            self.is_rescalable = False
            return int(google_crc32c.value(key) % self._base.max_parallelism)
        if group % self._store.num_partitions != self._store.partition:
            self.is_rescalable = False
        return group

    def _check_open(self) -> None:
        self._store.check_open()
        if self._is_done:
            raise StoreClosedError(
                "the batch was committed or aborted",
                batch_version=self._version,
                to_fix="begin a new batch",
            )

    def _check_writable(self) -> None:
        self._check_open()
        if self._is_fixed:
            raise StoreClosedError(
                "a commit of the batch failed, and may have reached the storage: no more can be "
                "written",
                batch_version=self._version,
                to_fix="commit the batch again, and write the rest to the next one; or abort it",
            )


def family_id(families: tuple[ColumnFamily, ...], name: str) -> int:
    """Return the ID of a column family by its name.

    Raises:
        InvalidArgumentError: No such column family; names those there are.
    """
    for family in families:
        if family.name == name:
            return family.id
    raise InvalidArgumentError(
        "no such column family",
        column_family=name,
        known=", ".join(family.name for family in families),
        to_fix="create it in the batch first",
    )
