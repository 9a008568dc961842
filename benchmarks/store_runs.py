"""Runs on a store without a query: W4, W5 and the memory measurements. One call, one JVM."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from benchmarks.processes import engines_of
from benchmarks.sessions import benchmark_jar, start_session
from benchmarks.workloads import (
    FORMAT_2,
    CommitWorkload,
    MemoryWorkload,
    Provider,
    StoreWorkload,
)

ROW_OVERHEAD_BYTES = 40 + 16
"""UnsafeRow of an 18-character key, and what the UnsafeRow of one value adds to its bytes."""

SAMPLE_S = 0.003
SNAPSHOT_TIMEOUT_S = 120


class StoreDriver:
    """The JVM's `StoreOperations` with one provider. Not thread-safe; `close` ends its Spark."""

    def __init__(self, provider: Provider, work: Path) -> None:
        # It asks a store for versions by their numbers, as Spark does in format 1.
        one = replace(provider, conf=(*provider.conf, (FORMAT_2[0], "1")))
        self._spark = start_session(one, (benchmark_jar(),))
        self._jvm = cast("Any", self._spark._jvm)
        self._operations = self._jvm.io.statestore.bench.StoreOperations
        self._work = work
        self._opened = 0

    @property
    def jvm_pid(self) -> int:
        """Process ID of the JVM."""
        return int(self._jvm.java.lang.ProcessHandle.current().pid())

    def open(self, shape: str, partitions: int = 1) -> Path:
        """Open new, empty stores and return the directory of their files."""
        self._opened += 1
        root = self._work / f"checkpoint-{self._opened}" / "state"
        session = self._spark._jsparkSession
        self._operations.open(session, str(root), shape, partitions)
        return root

    def write(
        self, rows: int, *, stride: int = 1, update: int = 0, force_snapshot: bool = False
    ) -> dict[str, Any]:
        """Commit one version: every `stride`-th of the rows numbered 0 to `rows`, exclusive."""
        reply: dict[str, Any] = json.loads(
            self._operations.write(rows, stride, update, force_snapshot)
        )
        return reply

    def basic_operations(self, rows: int, overlap: int, iterations: int) -> dict[str, list[int]]:
        """Return the ns of each operation on `rows` rows, `iterations` values each."""
        reply: dict[str, list[int]] = json.loads(
            self._operations.basicOperations(rows, overlap, iterations)
        )
        return reply

    def commits_against_raw_writes(self, rows: int, iterations: int) -> dict[str, list[Any]]:
        """Return `commit_ns`, `raw_ns`, published `bytes`, `custom_metrics`: one each a commit."""
        reply: dict[str, list[Any]] = json.loads(
            self._operations.commitsAgainstRawWrites(rows, iterations)
        )
        return reply

    def long_batch(self, keys: int, updates: int, seed: int) -> dict[str, Any]:
        """Read and write random keys in one version; return ns of all calls, commit and next open.

        `longest_ns` is that of the slowest pair of calls, `cpu_ns` the thread's for all of them.
        """
        reply: dict[str, Any] = json.loads(self._operations.longBatch(keys, updates, seed))
        return reply

    def used_heap_bytes(self) -> int:
        """Return the live bytes of the JVM's heap after full collections."""
        return int(self._operations.usedHeapBytes())

    def close_stores(self) -> None:
        """Close the stores that are open."""
        self._operations.close()

    def close(self) -> None:
        """Stop Spark."""
        self._spark.stop()


def run_basic_operations(
    workload: StoreWorkload, provider: Provider, work: Path
) -> list[dict[str, Any]]:
    """Time W4.

    Returns:
        One entry per (rows, overlap): `rows`, `overlap`, `ns_per_row`: operation to a list.
        The first iteration of each is warm-up and left out.
    """
    driver = StoreDriver(provider, work)
    driver.open("windowed")
    driver.write(workload.rows[0])
    driver.basic_operations(workload.rows[0], 100, workload.iterations)
    driver.close_stores()
    results = []
    for rows in workload.rows:
        for overlap in workload.overlaps:
            driver.open("windowed")
            driver.write(rows)
            timed = driver.basic_operations(rows, overlap, workload.iterations)
            driver.close_stores()
            per_row = {name: [value / rows for value in ns[1:]] for name, ns in timed.items()}
            results.append({"rows": rows, "overlap": overlap, "ns_per_row": per_row})
    driver.close()
    return results


def run_commits(workload: CommitWorkload, provider: Provider, work: Path) -> list[dict[str, Any]]:
    """Time W5.

    Returns:
        One entry per (delta size, value size): `delta_bytes`, `value_bytes`, `rows`, and the lists
        `commit_ms`, `raw_ms` (write, fsync, rename, fsync of the directory), `published_bytes` and
        `custom_metrics`, one value a commit.
    """
    driver = StoreDriver(provider, work)
    results = []
    for value_bytes in workload.value_bytes:
        for delta_bytes in workload.delta_bytes:
            rows = delta_bytes // (ROW_OVERHEAD_BYTES + value_bytes)
            driver.open(f"payload:{value_bytes}")
            timed = driver.commits_against_raw_writes(
                rows, workload.iterations + workload.warm_up_iterations
            )
            driver.close_stores()
            kept = slice(workload.warm_up_iterations, None)
            results.append(
                {
                    "delta_bytes": delta_bytes,
                    "value_bytes": value_bytes,
                    "rows": rows,
                    "commit_ms": [ns / 1e6 for ns in timed["commit_ns"][kept]],
                    "raw_ms": [ns / 1e6 for ns in timed["raw_ns"][kept]],
                    "published_bytes": timed["bytes"][kept],
                    "custom_metrics": timed["custom_metrics"][kept],
                }
            )
    driver.close()
    return results


def run_heap(workload: MemoryWorkload, provider: Provider, work: Path) -> dict[str, Any]:
    """Measure the JVM's heap per entry.

    Returns:
        `entries`, `payload_bytes` (UnsafeRow bytes of keys and values), `loaded_heap_bytes` and
        `updated_heap_bytes` (live heap with the state minus without, after the load and after the
        updates), `memory_used_bytes` as the provider reports it.
    """
    driver = _start_warm_driver(provider, work)
    driver.open("aggregation", workload.partitions)
    empty_heap = driver.used_heap_bytes()
    loaded = driver.write(workload.keys)
    loaded_heap = driver.used_heap_bytes()
    stride = workload.keys // workload.updates
    for update in range(1, workload.update_commits + 1):
        updated = driver.write(workload.keys, stride=stride, update=update)
    updated_heap = driver.used_heap_bytes()
    driver.close_stores()
    driver.close()
    return {
        "entries": updated["num_keys"],
        "payload_bytes": loaded["payload_bytes"],
        "loaded_heap_bytes": loaded_heap - empty_heap,
        "updated_heap_bytes": updated_heap - empty_heap,
        "memory_used_bytes": updated["memory_used_bytes"],
    }


def run_snapshot(workload: MemoryWorkload, provider: Provider, work: Path) -> list[dict[str, int]]:
    """Measure the engines' anonymous memory while a snapshot of one state partition is taken.

    Returns:
        One entry an engine process: `version_bytes` (UnsafeRow bytes of the version),
        `snapshot_file_bytes`, and memory `before_bytes` the store is loaded, `idle_bytes` with it,
        `peak_bytes` while the snapshot is in flight; `peak_resident_bytes` counts mapped files too.
    """
    driver = _start_warm_driver(provider, work)
    engines = engines_of(driver.jvm_pid)
    before = {pid: process_memory(pid) for pid in engines}
    root = driver.open("aggregation")
    version_bytes = driver.write(workload.keys)["payload_bytes"]
    idle = {pid: process_memory(pid) for pid in engines}
    sampler = PeakSampler(engines)
    sampler.start()
    stride = workload.keys // workload.updates
    driver.write(workload.keys, stride=stride, update=1, force_snapshot=True)
    snapshot = _await_snapshot(root)
    peaks = sampler.stop()
    driver.close_stores()
    driver.close()
    return [
        {
            "version_bytes": version_bytes,
            "snapshot_file_bytes": snapshot.stat().st_size,
            "before_bytes": before[pid]["Pss_Anon"],
            "idle_bytes": idle[pid]["Pss_Anon"],
            "peak_bytes": peaks[pid]["Pss_Anon"],
            "peak_resident_bytes": peaks[pid]["Rss"],
        }
        for pid in engines
    ]


def _start_warm_driver(provider: Provider, work: Path) -> StoreDriver:
    """Start a driver that has used every code path once, engine included."""
    driver = StoreDriver(provider, work)
    driver.open("aggregation")
    driver.write(1_000)
    driver.used_heap_bytes()
    driver.close_stores()
    return driver


def _await_snapshot(root: Path) -> Path:
    """Wait for a published snapshot below the directory and return its path.

    Raises:
        TimeoutError: There is none after SNAPSHOT_TIMEOUT_S.
    """
    deadline = time.monotonic() + SNAPSHOT_TIMEOUT_S
    while time.monotonic() < deadline:
        for path in root.rglob("*.snapshot.arrows"):
            return path
        time.sleep(SAMPLE_S)
    raise TimeoutError(f"no snapshot was published: waited_s={SNAPSHOT_TIMEOUT_S}")


class PeakSampler:
    """Keeps the largest value of every memory counter of some processes until stopped."""

    def __init__(self, pids: list[int]) -> None:
        self._peaks: dict[int, dict[str, int]] = {pid: process_memory(pid) for pid in pids}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> dict[int, dict[str, int]]:
        """End sampling and return the peaks in bytes by process ID."""
        self._stopped.set()
        self._thread.join()
        return self._peaks

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            for pid, peak in self._peaks.items():
                for counter, value in process_memory(pid).items():
                    peak[counter] = max(peak[counter], value)


def process_memory(pid: int) -> dict[str, int]:
    """Return the counters of a process's smaps_rollup in bytes (Rss, Pss_Anon, Pss_Shmem, ...)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    pairs = (line.split() for line in lines)
    return {fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in pairs}
