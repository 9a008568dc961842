"""Rows laid by on the local disk by their new state partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from statestore.codec.rows import SCHEMA, from_numpy, to_numpy
from statestore.io.local import named_errors

if TYPE_CHECKING:
    from collections.abc import Iterator


class RowsByPartition:
    """Rows by their new state partition, on the local disk.

    Each file has a record batch for every state partition.

    Args:
        directory: Local directory, deleted by the caller.
        num_partitions: State partitions, a divisor of the number of key groups.
    """

    def __init__(self, directory: str, num_partitions: int) -> None:
        self._directory = directory
        self._num_partitions = num_partitions
        self._paths: list[str] = []

    def lay_by(self, rows: pa.RecordBatch) -> None:
        """Write rows with their new key groups."""
        path = f"{self._directory}/{len(self._paths)}.arrow"
        owners = to_numpy(rows.column(0), np.uint16) % self._num_partitions
        rows = rows.take(from_numpy(np.argsort(owners, kind="stable"), pa.int64()))
        counts = np.bincount(owners, minlength=self._num_partitions).tolist()
        with (
            named_errors("lay rows by in the scratch directory", path),
            ipc.new_file(path, SCHEMA) as file,
        ):
            start = 0
            for count in counts:
                file.write_batch(rows.slice(start, count))
                start += count
        self._paths.append(path)

    def batches(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a state partition, in the order in which they were laid by."""
        for path in self._paths:
            with pa.memory_map(path) as source, ipc.open_file(source) as file:
                yield file.get_batch(partition)
