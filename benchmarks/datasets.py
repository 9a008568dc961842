"""Input files of the query workloads: Parquet, one file a batch, the same bytes on every run.

Files are made once per size, in `~/.cache/statestore`, and hard-linked or copied into each run's
source directory. Spark's file source reads files in the order of their modification times, so these
are set one second apart.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workloads import QueryWorkload
from tools.spark_jars import CACHES

FIRST_FILE_TIME_S = 1_700_000_000
CACHE = CACHES / "benchmarks"


def key_name(number: int) -> str:
    """Return the 18-character string key of that number."""
    return f"key-{number:014d}"


def split_mix(steps: npt.NDArray[np.int64], seed: int = 0) -> npt.NDArray[np.uint64]:
    """Return the 64 random bits of these steps of SplitMix64, counted from 1.

    Step n is the n-th `nextLong` of Java's `SplittableRandom` of that seed.
    """
    state = np.uint64(seed) + steps.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def input_files(workload: QueryWorkload) -> list[Path]:
    """Return the workload's files in batch order: the load, the updates, those after the restart.

    Guarantee: as `made_once`.
    """
    return made_once("-".join(str(part) for part in astuple(workload)), _batches(workload))


def made_once(
    name: str, tables: Iterable[pa.Table], compression: Literal["none", "snappy", "zstd"] = "snappy"
) -> list[Path]:
    """Return the files of that name in order; where they are not there, each table makes one.

    Guarantee: the files are complete; a run that dies while making them leaves no half-made set.
    """
    directory = CACHE / name
    if not directory.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            for number, table in enumerate(tables):
                path = staged / f"{number:06d}.parquet"
                # Four row groups: Spark splits a file between row groups, so all cores read.
                size = max(1, -(-table.num_rows // 4))
                pq.write_table(table, path, row_group_size=size, compression=compression)
                os.utime(path, (FIRST_FILE_TIME_S + number, FIRST_FILE_TIME_S + number))
            try:
                staged.rename(directory)
            except OSError:
                if not directory.exists():  # no other run was faster
                    raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    return sorted(directory.glob("*.parquet"))


def link_files(files: list[Path], directory: Path) -> None:
    """Put the files into a source directory, by hard link where the file system allows it."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        try:
            os.link(file, directory / file.name)
        except OSError:
            shutil.copy2(file, directory / file.name)


def _batches(workload: QueryWorkload) -> Iterator[pa.Table]:
    rng = np.random.default_rng(workload.seed)
    batches = np.array_split(rng.permutation(workload.keys), workload.load_batches)
    batches += [
        rng.choice(workload.keys, workload.updates_per_batch, replace=False)
        for _ in range(workload.update_batches + workload.restart_batches)
    ]
    for keys in batches:
        yield pa.table(
            {
                "k": pa.array([key_name(key) for key in keys.tolist()], pa.string()),
                "v": pa.array(rng.integers(0, 1_000, len(keys)), pa.int64()),
            }
        )
