"""The records of ShuffleBench, as Parquet files that are made once, and the rules that take them.

Sizes are those of github.com/dynatrace-research/ShuffleBench: its load generator makes records of
1,024 random bytes, 1,000 a second of each source; its manifests for Kubernetes have a million rules
that together take a fifth of the records, all alike, and consumers that return something every 10
records and begin to count at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.datasets import made_once, split_mix

Numbers: TypeAlias = npt.NDArray[np.int64]

RECORD_BYTES = 1_024
WORDS = RECORD_BYTES // 8
"""A record as 64-bit numbers, big-endian."""
SUMMED, PLACE, BEGIN = 0, 1, 2
"""Word that consumers add up, that rules look at, that says where a consumer begins to count."""
FIRST_TIME_MS = 1_700_000_000_000
"""Of record 0; one is made each ms."""
SELECTIVITY = 0.2
"""Rules that take a record, on average."""
LAST_PLACE = (1 << 63) - 1
"""Places of records and of rules are on a ring, from 0 to this one."""
SEED = 63
OUTPUT_RATE = 10


def record_files(num_records: int, num_files: int) -> list[Path]:
    """Return the files of the first records, in order; equally many records are in each.

    They are made when they are not there yet. Guarantee: as `made_once`.
    """
    size = num_records // num_files
    tables = (records(number * size, size) for number in range(num_files))
    # Random bytes do not get smaller.
    return made_once(f"shufflebench-{num_records}-{num_files}", tables, "none")


def records(first: int, count: int) -> pa.Table:
    """Return `count` records from the number `first` on, each a function of its number."""
    steps = np.arange(first * WORDS, (first + count) * WORDS, dtype=np.int64) + 1
    data = pa.py_buffer(split_mix(steps).astype(">u8").tobytes())
    offsets = pa.py_buffer((np.arange(count + 1, dtype=np.int32) * RECORD_BYTES).tobytes())
    times = FIRST_TIME_MS + np.arange(first, first + count, dtype=np.int64)
    return pa.table(
        {
            "time": pa.array(times),
            "data": pa.Array.from_buffers(pa.binary(), count, [None, offsets, data]),
        }
    )


def words(table: pa.Table) -> Numbers:
    """Return the words of records, a row of `WORDS` for each."""
    data = cast("list[bytes]", table["data"].to_pylist())
    return np.frombuffer(b"".join(data), ">i8").reshape(-1, WORDS).astype(np.int64)


def arc(num_rules: int) -> int:
    """Return how many places of the ring a rule takes."""
    return int(LAST_PLACE * SELECTIVITY / num_rules)


def route(places: Numbers, num_rules: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield indexes of places and the rules that take these; each pair of them once."""
    begins = split_mix(np.arange(num_rules) + 1, SEED).astype(np.int64) & LAST_PLACE
    order = np.argsort(begins, kind="stable")
    begins = begins[order]
    index = np.arange(len(places))
    nearest = np.searchsorted(begins, places, side="right") - 1
    for step in range(num_rules):
        rule = (nearest[index] - step) % num_rules
        taken = ((places[index] - begins[rule]) & LAST_PLACE) < arc(num_rules)
        index = index[taken]
        if not len(index):
            return
        yield index, order[rule[taken]]
