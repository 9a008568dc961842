"""Deltas written from Python, where a shim would write them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.ipc as ipc

from statestore.checkpoint.commit import NewVersion
from statestore.codec.column_family import ColumnFamily
from statestore.codec.references import VersionRef
from statestore.codec.rows import DELETE, MERGE, PUT, SCHEMA, Row, batch_from_rows, write_options
from statestore.codec.trailer import RowCounts

if TYPE_CHECKING:
    from collections.abc import Sequence


def write_stream(
    path: str,
    rows: Sequence[Row],
    max_parallelism: int,
    *,
    compression: str = "none",
    block_rows: int = 65_536,
) -> int:
    """Write rows as a complete Arrow stream of a state file and return its bytes.

    Args:
        path: Local file to write.
        rows: Each (column family, key) at most once, in any order.
        max_parallelism: Number of key groups.
        compression: As the option file.compression.
        block_rows: Most rows of a record batch.
    """
    batch = batch_from_rows(rows, max_parallelism)
    with ipc.new_stream(path, SCHEMA, options=write_options(compression)) as stream:
        for start in range(0, batch.num_rows, block_rows):
            stream.write_batch(batch.slice(start, block_rows))
    return Path(path).stat().st_size


def new_version(
    version: int,
    parent: VersionRef | None,
    checkpoint_id: str,
    rows: Sequence[Row],
    num_keys: int,
    *,
    checkpoint_format: int = 1,
    max_parallelism: int = 8,
    num_partitions: int = 1,
) -> NewVersion:
    """Return what a commit of rows is told, for a store of one column family."""
    ops = [row.op for row in rows]
    return NewVersion(
        version=version,
        parent=parent,
        checkpoint_id=checkpoint_id,
        checkpoint_format=checkpoint_format,
        rows=RowCounts(ops.count(PUT), ops.count(DELETE), ops.count(MERGE)),
        num_keys=num_keys,
        max_parallelism=max_parallelism,
        num_partitions=num_partitions,
        rescalable=True,
        column_families=(ColumnFamily(0, "default"),),
        backend="filesystem",
    )
