"""Run one measurement of one provider in this process and print its result as JSON.

    $ python -m benchmarks.runner from-start W1 hdfs --work DIRECTORY [--quick]

Every measurement has a process, and so a JVM, of its own. The result is the last line of stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.query_runs import run_after_restart, run_from_start
from benchmarks.store_runs import run_basic_operations, run_commits, run_heap, run_snapshot
from benchmarks.workloads import Suite, find_provider, full, quick


def run(measurement: str, workload: str, provider_id: str, work: Path, suite: Suite) -> Any:
    """Run one measurement.

    Args:
        measurement: `from-start`, `restart`, `operations`, `commits`, `heap` or `snapshot`.
        workload: Name of a query workload; ignored by the last four.
        provider_id: ID of a provider.
        work: Directory of the run; `restart` goes on with the one that `from-start` left.
        suite: Sizes.

    Returns:
        The measurement's result, made of JSON values.
    """
    provider = find_provider(provider_id)
    if measurement == "from-start":
        return run_from_start(suite.query(workload), provider, work)
    if measurement == "restart":
        return run_after_restart(suite.query(workload), provider, work)
    if measurement == "operations":
        return run_basic_operations(suite.w4, provider, work)
    if measurement == "commits":
        return run_commits(suite.w5, provider, work)
    if measurement == "heap":
        return run_heap(suite.memory, provider, work)
    if measurement == "snapshot":
        return run_snapshot(suite.memory, provider, work)
    raise ValueError(f"no such measurement: measurement={measurement!r}")


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurement")
    parser.add_argument("workload")
    parser.add_argument("provider")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    result = run(
        arguments.measurement,
        arguments.workload,
        arguments.provider,
        arguments.work,
        quick() if arguments.quick else full(),
    )
    sys.stdout.write(f"\n{json.dumps(result)}\n")


if __name__ == "__main__":
    main()
