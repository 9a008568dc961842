"""Rows that go by a condition, beside a deep verification of the same checkpoint.

    $ python -m benchmarks.expiry [--keys 10000000] [--rounds 3]

An aggregation by a number, with a time in each row, is made without Spark in 4 state partitions on
the filesystem and the rocksdb backend. Half of the rows are expired by `edit(expire=…)`;
then half of the rows of a fresh copy are deleted as a list of keys. Each is timed with a deep
verification before it, and medians are printed: of the time, and of what processors worked, which
other load on the machine changes less. A verification takes several processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from statestore import Checkpoint, write_savepoint
from statestore.codec.column_family import ColumnFamily
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import MadeStore

PARTITIONS = 4
FIELD = '{{"name":"{}","type":"{}","nullable":true,"metadata":{{}}}}'
KEYS = f'{{"type":"struct","fields":[{FIELD.format("k", "long")}]}}'
VALUES = (
    f'{{"type":"struct","fields":[{FIELD.format("count", "long")},'
    f"{FIELD.format('seen', 'timestamp')}]}}"
)
HALF = datetime(2024, 1, 1, tzinfo=UTC)
BATCH = 1_000_000


class TimedStore(MadeStore):
    """A store whose rows have a count and a time."""

    @property
    def family(self) -> ColumnFamily:
        """Its only column family."""
        return ColumnFamily(0, "default", KEYS, VALUES)


def main() -> None:
    """Measure both backends and print a line for each operation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="*", default=["filesystem", "rocksdb"])
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="statestore-expiry-"))
    try:
        for backend in arguments.backends:
            measure(work / backend, backend, arguments.keys, arguments.rounds)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def measure(work: Path, backend: str, keys: int, rounds: int) -> None:
    """Time expiry and deletion of half of the rows, beside a deep verification."""
    path = make(work, backend, keys)
    gone = pa.table({"key.k": pa.array(np.arange(0, keys, 2))})
    operations: dict[str, Callable[[Checkpoint], object]] = {
        "expire half": lambda it: it.edit(expire="value.seen", older_than=HALF),
        "delete half by keys": lambda it: it.edit(delete=gone),
    }
    for title, operation in operations.items():
        seconds, verified = [], []
        for _ in range(rounds):
            copy = work / "copy"
            shutil.copytree(path, copy)
            verified.append(timed(lambda it: it.verify(deep=True), copy))
            seconds.append(timed(operation, copy))
            left = sum(batch.num_rows for batch in Checkpoint(copy).rows().read_batches())
            if left != keys // 2:
                raise SystemExit(f"{left} rows are left of {keys}")
            shutil.rmtree(copy)
        took, of_verify = (
            [median(one[place] for one in measured) for place in (0, 1)]
            for measured in (seconds, verified)
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        sys.stdout.write(
            f"{backend:<11} {title:<20} {took[0]:>6.1f} s, processors {took[1]:>6.1f} s; verify "
            f"deep {of_verify[0]:>6.1f} s, {of_verify[1]:>6.1f} s: {took[0] / of_verify[0]:.2f}, "
            f"{took[1] / of_verify[1]:.2f} times; peak so far {peak:.1f} GB\n"
        )
        sys.stdout.flush()


def timed(operation: Callable[[Checkpoint], object], path: Path) -> tuple[float, float]:
    """Return the seconds that an operation on a checkpoint takes, and those of processors."""
    started, worked = time.perf_counter(), processors()
    operation(Checkpoint(path))
    return time.perf_counter() - started, processors() - worked


def processors() -> float:
    """Return the seconds that processors have worked for this process and its children."""
    return sum(os.times()[:4])


def make(work: Path, backend: str, keys: int) -> Path:
    """Make a checkpoint of the state backend, of which half of the rows are of before `HALF`."""
    (work / "scratch").mkdir(parents=True)
    store = TimedStore("default", ("k",))
    like = MadeCheckpoint(
        str(work / "like"),
        work / "scratch",
        num_partitions=PARTITIONS,
        operators=[("stateStoreSave", (store,))],
    )
    like.run_batch({})

    def rows() -> Iterator[pa.RecordBatch]:
        for start in range(0, keys, BATCH):
            numbers = np.arange(start, min(start + BATCH, keys))
            days = np.where(numbers % 2 == 0, -1, 1) * 86_400_000_000 * (1 + numbers % 100)
            seen = pa.array(days + int(HALF.timestamp() * 1e6)).cast(pa.timestamp("us", "UTC"))
            columns: list[Any] = [pa.array(numbers), pa.array(numbers), seen]
            names = ["key.k", "value.count", "value.seen"]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    batches = rows()
    first = next(batches)
    stream = pa.RecordBatchReader.from_batches(first.schema, _all(first, batches))
    savepoint = write_savepoint(
        work / "savepoint", like=Checkpoint(like.path), rows={0: stream}
    ).made
    savepoint.restore(work / "query", backend=backend)
    shutil.rmtree(work / "savepoint")
    return work / "query"


def _all(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


if __name__ == "__main__":
    main()
