"""W6: state beyond memory, millions of keys in a JVM and an engine of bounded memory.

    $ python -m benchmarks.large_state [--keys 20000000] [--providers rocksdb-backend,rocksdb]
    $ python -m benchmarks.large_state --off-heap 6 --providers filesystem,rocksdb-changelog
    $ python -m benchmarks.large_state --keys 100000000 --work DIRECTORY

Every provider has an application of its own (local[2], 2 GiB of heap, 512 MiB for RocksDB; with
`--off-heap` so many GiB more, this package's for rows, Spark's for RocksDB) and reads the same
generated files: batches of new keys, then batches that update random ones. A value is a count and
eleven sums of random numbers, about 100 bytes that do not compress. A line is printed for every
2,000,000 keys: the median batch since the line before, the resident memory of JVM and engines, and
the time of the JVM's garbage collection so far. With `--work` the checkpoints stay, for
`benchmarks.large_restart`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.processes import engines_of, resident_bytes, run_for_each
from benchmarks.sessions import start_session
from benchmarks.workloads import STATE_STORE, Provider, find_provider

BATCH_KEYS = 1_000_000
UPDATE_BATCHES = 10
UPDATED_KEYS = 100_000
VALUE_COLUMNS = 11
VALUES = [f"v{number}" for number in range(VALUE_COLUMNS)]
REPORT_KEYS = 2_000_000
PARTITIONS = 4
GIB, MIB = 1 << 30, 1 << 20
HEAP_BYTES, ROCKSDB_BYTES = 2 * GIB, 512 * MIB
# Beside its heap a JVM has code, threads, network and file buffers, and RocksDB's readers.
JVM_BOUND_BYTES = HEAP_BYTES + GIB
# Beside RocksDB an engine has Python, Arrow and the rows of the batches it commits or merges.
ENGINE_BOUND_BYTES = ROCKSDB_BYTES + GIB
SETTINGS = {
    "spark.driver.memory": f"{HEAP_BYTES // GIB}g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    f"{STATE_STORE}.rocksdb.memoryBytes": str(ROCKSDB_BYTES),
}
BUILT_IN_SETTINGS = {
    "spark.driver.memory": f"{HEAP_BYTES // GIB}g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    f"{STATE_STORE}.rocksdb.boundedMemoryUsage": "true",
    f"{STATE_STORE}.rocksdb.maxMemoryUsageMB": str(ROCKSDB_BYTES // MIB),
}


def main() -> int:
    """Run the workload on every provider; exit status 1 when memory left its bounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=20_000_000, help="a multiple of 1,000,000")
    parser.add_argument("--providers", default="rocksdb-backend,rocksdb,rocksdb-changelog")
    parser.add_argument("--off-heap", type=int, default=0, help="GiB outside of the heap")
    parser.add_argument("--work", type=Path, help="directory where checkpoints are kept")
    parser.add_argument("--application", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.application:
        provider = bounded(find_provider(arguments.application), arguments.off_heap * GIB)
        with ExitStack() as stack:
            work = arguments.work or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="statestore-large-"))
            )
            run(provider, arguments.keys, arguments.off_heap * GIB, work / provider.id)
        return 0
    options = ["--keys", str(arguments.keys), "--off-heap", str(arguments.off_heap)]
    if arguments.work:
        options += ["--work", str(arguments.work.resolve())]
    return run_for_each("large_state", arguments.providers, options)


def bounded(provider: Provider, off_heap_bytes: int = 0) -> Provider:
    """Return the provider with the bounds of its memory as settings."""
    settings = dict(SETTINGS if provider.is_ours else BUILT_IN_SETTINGS)
    if off_heap_bytes and provider.is_ours:
        settings["spark.memory.offHeap.enabled"] = "true"
        settings["spark.memory.offHeap.size"] = str(off_heap_bytes)
        settings[f"{STATE_STORE}.offHeap.enabled"] = "true"
    elif off_heap_bytes:
        rocksdb_mib = (ROCKSDB_BYTES + off_heap_bytes) // MIB
        settings[f"{STATE_STORE}.rocksdb.maxMemoryUsageMB"] = str(rocksdb_mib)
    return replace(provider, conf=(*provider.conf, *settings.items()))


def run(provider: Provider, num_keys: int, off_heap_bytes: int, work: Path) -> None:
    """Run the workload in this process and print its lines.

    Args:
        provider: With its bounds.
        num_keys: Keys to load.
        off_heap_bytes: What the JVM may take beside its heap for rows.
        work: New directory; afterwards holds `checkpoint/`.

    Raises:
        SystemExit: Memory left its bounds.
    """
    folder = work / "input"
    folder.mkdir(parents=True)
    spark = start_session(provider)
    jvm: Any = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    query = start_query(spark, folder, str(work / "checkpoint"))
    peaks = [0, 0]
    times: list[int] = []
    generator = np.random.default_rng(6)
    say(f"{provider.title}: {num_keys:,} keys", "JVM MiB", "engine MiB", "GC ms")
    try:
        for number in range(num_keys // BATCH_KEYS + UPDATE_BATCHES):
            loaded = min((number + 1) * BATCH_KEYS, num_keys)
            is_load = number < num_keys // BATCH_KEYS
            if is_load:
                keys = np.arange(number * BATCH_KEYS, loaded, dtype=np.int64)
            else:
                keys = generator.choice(num_keys, UPDATED_KEYS, replace=False)
            write_batch(folder / f"{number:05d}.parquet", work, keys, generator)
            times.append(batch_ms(query, number))
            engines = engines_of(pid)
            now = [resident_bytes(pid), sum(map(resident_bytes, engines))]
            peaks = [max(pair) for pair in zip(peaks, now, strict=True)]
            (folder / f"{number:05d}.parquet").unlink()
            if is_load and loaded % REPORT_KEYS == 0:
                report(f"{loaded:,} keys loaded", times, now, gc_ms(jvm))
                times = []
        report(f"{UPDATED_KEYS:,} of them updated", times, now, gc_ms(jvm))
        say(json.dumps({"peak_jvm_mib": peaks[0] // MIB, "peak_engine_mib": peaks[1] // MIB}))
    finally:
        query.stop()
        spark.stop()
    jvm_bound = JVM_BOUND_BYTES + off_heap_bytes
    if provider.is_ours and (peaks[0] > jvm_bound or peaks[1] > ENGINE_BOUND_BYTES):
        raise SystemExit("memory left its bounds")


def start_query(spark: SparkSession, folder: Path, checkpoint: str) -> StreamingQuery:
    """Start the aggregation of the files of a folder, a batch for each."""
    return (
        spark.readStream.schema(", ".join(f"{name} long" for name in ("key", *VALUES)))
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
        .groupBy("key")
        .agg(count("*"), *map(sum_of, VALUES))
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .start()
    )


def write_batch(path: Path, work: Path, keys: Any, generator: np.random.Generator) -> None:
    """Write the rows of a batch; the file appears whole."""
    values = {name: generator.integers(-(1 << 62), 1 << 62, len(keys)) >> 8 for name in VALUES}
    pq.write_table(pa.table({"key": keys, **values}), work / "partial", compression="none")
    (work / "partial").rename(path)


def batch_ms(query: Any, number: int) -> int:
    """Wait for a batch and return its duration."""
    while True:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] >= number and progress["numInputRows"]:
            return int(progress["durationMs"]["triggerExecution"])
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.02)


def gc_ms(jvm: Any) -> int:
    """Return how long the JVM's collectors have run."""
    collectors = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
    return sum(int(collector.getCollectionTime()) for collector in collectors)


def report(what: str, times: list[int], resident: list[int], gc: int) -> None:
    """Print a line."""
    figures = (f"{value:,}" for value in (*(each // MIB for each in resident), gc))
    say(f"{what:>32}  median batch {median(times):8,.0f} ms", *figures)


def say(text: str, *figures: str) -> None:
    """Print at once."""
    sys.stdout.write("  ".join([text, *(figure.rjust(12) for figure in figures)]) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
