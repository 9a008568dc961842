"""Spark's own benchmark of a store's operations, with the stores of this package in it.

    ./build.sh bench-spark-operations [--iterations 100]

prints the tables of `StateStoreBasicOperationsBenchmark` as that class makes its rows, runs its
loops and takes its times; `StoresBenchmark` adds a line for each state backend.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .jvm import SparkTests
from .results import Known

_MINOR = "4.2"
"""The newest Spark that has tests of its own release in the registry."""
_STORES = ("FileSystem", "RocksDB", "Heap")
_BLIND = """
What this cannot show: commits, loads and restarts, which are most of a batch; reads; Spark's own
RocksDB and the rocksdb backend below their memory, since 10,000 rows of 40 bytes fit in it; what is
outside of this process. Each store runs alone, in a fixed order: on a machine that does anything
else, differences of a third mean nothing. For batches see benchmarks/results.
"""


def _main() -> int:
    parser = argparse.ArgumentParser(prog="build.sh bench-spark-operations", description=_BLIND)
    parser.add_argument("--iterations", type=int, default=100, help="of each case; Spark's is 1000")
    arguments = parser.parse_args()
    classes = [f"io.statestore.{store}StateStoreProvider" for store in _STORES]
    with tempfile.TemporaryDirectory(prefix="conformance-") as work:
        status = SparkTests(Known.read(), _MINOR).run(
            "org.apache.spark.sql.execution.benchmark.StoresBenchmark",
            [str(arguments.iterations), *classes],
            Path(work),
            flags=(),
        )
    print(_BLIND)
    return status


if __name__ == "__main__":
    sys.exit(_main())
