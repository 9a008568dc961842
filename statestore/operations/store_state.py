"""A version of a store in one state partition: what it is and its rows, whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.commit_times import CommitTimes
    from statestore.codec.references import FileRef, StoreName

VersionKind = Literal["incremental", "full", "rescaled"]
"""How a version is kept: as changes to the one before, whole, as references into another number of
state partitions."""


class ReadRows(Protocol):
    """Reads the rows of a version of a store in one state partition."""

    def __call__(
        self, column_family: str | None, key_group: int | None = None, /
    ) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the state file schema.

        Puts only, each key once and only keys of the state partition; all, or those of the column
        family of a name. Rows of other key groups than the given one may be among them: Spark's own
        providers have none to go by.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoreState:
    """A version of a store in one state partition.

    Attributes:
        store: The store.
        num_partitions: State partitions of the version.
        max_parallelism: Key groups; where another provider wrote the version, those that it would
            get in this package's.
        rescalable: Whether every row's key group belongs to its state partition.
        is_checked: Whether a look-up may go by that: not in column families of Spark's own
            providers, whose keys a program made and nobody compared with where their rows are.
        num_keys: Rows, None where only reading them tells.
        most_rows: At least the rows, for a report; not 0, and 0 where nothing is known.
        column_families: With their schemas.
        kind: How it is kept.
        own_bytes: Bytes of the files that it added.
        full_bytes: Bytes that a restore reads: all of each file, whoever's rows it has.
        num_files: Files that a restore reads, references to parts of one counted each.
        num_taken_over: Those of them that a rescale took over, perhaps with rows of other state
            partitions.
        files: Bytes of each file by path, where a version shares files with the one before it and
            nothing but comparing the two tells which it added; own_bytes are then all of them.
        deltas: References to the deltas among them, of this package's; nothing stands for one.
        contents: Equal for versions that have the same rows because of what they are made of.
        is_by_key: Whether rows come in order of column family and key; else in file order.
        key_group_rows: Rows by key-group class, as `key_group_rows.grown` has them; None where
            only reading them tells.
        parent_commit: What the commit of the version before took, None where nobody knows.
        rows: Reads them.
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
    num_files: int
    contents: tuple[object, ...]
    is_by_key: bool
    rows: ReadRows
    key_group_rows: tuple[int, ...] | None = None
    parent_commit: CommitTimes | None = None
    deltas: tuple[FileRef, ...] = ()
    files: Mapping[str, int] | None = None
    num_taken_over: int = 0
    is_checked: bool = True


States = dict["StoreName", StoreState]
"""A version of a store, or of several, by state partition."""
