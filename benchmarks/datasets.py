"""Input files of the query workloads: Parquet, one file a batch, the same bytes on every run.

Files are made once per size under the system's temporary directory and hard-linked into each run's
source directory. Spark's file source reads files in the order of their modification times, so these
are set one second apart.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.workloads import QueryWorkload

FIRST_FILE_TIME_S = 1_700_000_000
CACHE = Path(tempfile.gettempdir()) / "statestore-benchmarks"


def key_name(number: int) -> str:
    """Return the 18-character string key of that number."""
    return f"key-{number:014d}"


def input_files(workload: QueryWorkload) -> list[Path]:
    """Return the workload's files in batch order: the load, the updates, those after the restart.

    Guarantee: the files are complete; a run that dies while making them leaves no half-made set.
    """
    name = "-".join(str(part) for part in astuple(workload))
    directory = CACHE / name
    if not directory.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=CACHE))
        _write_files(workload, staged)
        staged.replace(directory)
    return sorted(directory.glob("*.parquet"))


def link_files(files: list[Path], directory: Path) -> None:
    """Put the files into a source directory, by hard link where the file system allows it."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in files:
        try:
            os.link(file, directory / file.name)
        except OSError:
            shutil.copy2(file, directory / file.name)


def _write_files(workload: QueryWorkload, directory: Path) -> None:
    rng = np.random.default_rng(workload.seed)
    batches = np.array_split(rng.permutation(workload.keys), workload.load_batches)
    batches += [
        rng.choice(workload.keys, workload.updates_per_batch, replace=False)
        for _ in range(workload.update_batches + workload.restart_batches)
    ]
    for number, keys in enumerate(batches):
        table = pa.table(
            {
                "k": pa.array([key_name(key) for key in keys.tolist()], pa.string()),
                "v": pa.array(rng.integers(0, 1_000, len(keys)), pa.int64()),
            }
        )
        path = directory / f"{number:06d}.parquet"
        # Four row groups: Spark splits a file between row groups, so both cores read.
        pq.write_table(table, path, row_group_size=max(1, len(keys) // 4))
        os.utime(path, (FIRST_FILE_TIME_S + number, FIRST_FILE_TIME_S + number))
