"""A query of job.py: its input, and what its sink and its state have to be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEYS = 30_000
ROWS = 20_000
"""Of a file."""
_COLUMNS = "key, number, total, largest"


@dataclass(frozen=True, slots=True)
class Input:
    """Files of events, each a batch; what is in them depends on their number alone."""

    folder: Path

    def add(self, number: int) -> None:
        """Add files behind those that are there."""
        self.folder.mkdir(exist_ok=True)
        first = len(list(self.folder.glob("*.parquet")))
        for file in range(first, first + number):
            random = np.random.default_rng(file)
            keys, values = random.integers(0, KEYS, ROWS), random.integers(0, 10**6, ROWS)
            path = self.folder / f"{file:04d}.parquet"
            pq.write_table(pa.table({"key": keys, "value": values}), path)
            # Spark takes them in the order of their times.
            os.utime(path, (1_700_000_000 + file,) * 2)

    def compare(self, sink: Path, state: Path) -> int:
        """Compare sink and state with a batch computation over the input.

        Args:
            sink: A folder for each batch.
            state: The rows of the state as `statestore read --to` writes them.

        Returns:
            Number of keys.

        Raises:
            AssertionError: A row is missing, or there is one too many.
        """
        batch = (
            "SELECT key, count(*) AS number, sum(value)::BIGINT AS total, max(value) AS largest "
            f"FROM '{self.folder}/*.parquet' GROUP BY key"
        )
        newest = (
            f"SELECT {_COLUMNS} FROM read_parquet('{sink}/*/*.parquet', filename = true) "
            "QUALIFY row_number() OVER (PARTITION BY key ORDER BY filename DESC) = 1"
        )
        kept = f"SELECT key.key, value.count, value.sum, value.max FROM '{state}'"
        for what, rows in (("sink", newest), ("state", kept)):
            assert not _differences(batch, rows), f"rows are missing in the {what}"
            assert not _differences(rows, batch), f"rows are too many in the {what}"
        return len(duckdb.execute(batch).fetchall())


def _differences(one: str, other: str) -> Sequence[tuple[int, ...]]:
    return duckdb.execute(f"({one}) EXCEPT ALL ({other})").fetchall()
