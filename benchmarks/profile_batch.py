"""Print where the time of every micro-batch goes, for one query workload and one provider.

    $ python -m benchmarks.profile_batch W1 filesystem
    $ python -m benchmarks.profile_batch W2-1M hdfs --quick

Times are in ms. update and commit are Spark's sums over the state partitions, so they exceed the
wall time of the batch where partitions run side by side.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.query_runs import run_after_restart, run_from_start
from benchmarks.workloads import find_provider, full, quick

DURATIONS = (
    "triggerExecution",
    "addBatch",
    "latestOffset",
    "getBatch",
    "queryPlanning",
    "walCommit",
    "commitOffsets",
)


def main() -> None:
    """Run the workload, print a line a batch and the medians of the warm ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", help="W1, W2-1M, W2-10k, W9-value …")
    parser.add_argument("provider", help="ID of a provider: hdfs, rocksdb-changelog, filesystem …")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--restart", action="store_true", help="restart afterwards, in this JVM")
    arguments = parser.parse_args()
    suite = quick() if arguments.quick else full()
    workload = suite.query(arguments.workload)
    provider = find_provider(arguments.provider)
    work = Path(tempfile.mkdtemp(prefix="statestore-profile-"))
    try:
        result = run_from_start(workload, provider, work)
        show(result["batches"], 1 + workload.warm_up_batches)
        _print(f"files below state: {result['state_files']}, bytes: {result['state_bytes']:,}")
        if arguments.restart and workload.restart_batches:
            restarted = run_after_restart(workload, provider, work)
            show(restarted["batches"], 1)
            _print(f"start to first result: {restarted['first_result_ms']:.0f} ms")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def show(batches: list[dict[str, Any]], first_warm: int) -> None:
    """Print the table, then the medians of the batches from `first_warm` on."""
    _print(_line(["batch", *DURATIONS, "update", "commit"]))
    for batch in batches:
        _print(_line([str(batch["batch"]), *(f"{value:.0f}" for value in _times(batch))]))
    warm = batches[first_warm:] or batches[-1:]
    medians = [median(values) for values in zip(*map(_times, warm), strict=True)]
    _print(_line(["median", *(f"{value:.0f}" for value in medians)]))
    _print("medians of the provider's metrics:")
    for name in sorted(warm[-1]["custom_metrics"]):
        value = median(batch["custom_metrics"].get(name, 0) for batch in warm)
        if value > 0:
            _print(f"  {name} = {value:,.0f}")


def _times(batch: dict[str, Any]) -> list[float]:
    durations = [batch["durations_ms"].get(name, 0) for name in DURATIONS]
    return [*durations, batch["update_ms"], batch["commit_ms"]]


def _line(cells: list[str]) -> str:
    return "  ".join(cell.rjust(16 if cell == DURATIONS[0] else 13) for cell in cells)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
