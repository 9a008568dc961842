"""A version of a store in one state partition: what it is and its rows, whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from statestore.codec.trailer import ColumnFamily, StoreName

VersionKind = Literal["incremental", "full", "rescaled"]
"""How a version is kept: as changes to the one before, whole, as references into another number of
state partitions."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """A version of a store in one state partition.

    Attributes:
        store: The store.
        num_partitions: State partitions of the version.
        max_parallelism: Key groups; where another provider wrote the version, those that it would
            get in this package's.
        rescalable: Whether every row's key group belongs to its state partition.
        num_keys: Rows, None where only reading them tells.
        most_rows: At least the rows, for a report; not 0, and 0 where nothing is known.
        column_families: With their schemas.
        kind: How it is kept.
        own_bytes: Bytes of the files that it added.
        full_bytes: Bytes that a restore reads.
        contents: Equal for versions that have the same rows because of what they are made of.
        is_by_key: Whether rows come in order of column family and key; else in file order.
        rows: Returns record batches of the state file schema, puts only, each key once and only
            keys of the state partition; all, or those of the column family of a name.
    """

    store: StoreName
    num_partitions: int
    max_parallelism: int
    rescalable: bool
    num_keys: int | None
    most_rows: int
    column_families: tuple[ColumnFamily, ...]
    kind: VersionKind
    own_bytes: int
    full_bytes: int
    contents: tuple[object, ...]
    is_by_key: bool
    rows: Callable[[str | None], Iterator[pa.RecordBatch]]


States = dict["StoreName", StoreState]
"""A version of a store, or of several, by state partition."""
