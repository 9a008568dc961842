"""Nexmark on every store, or on yours.

    $ ./build.sh nexmark
    $ python -m benchmarks.nexmark --provider org.example.MyStateStoreProvider --jars my.jar

How it runs and what it leaves: `benchmarks/comparison/command.py`. A batch is a file of 100,000
events; what must come out DuckDB computes over the same files.
"""

from __future__ import annotations

import sys

from benchmarks.comparison.command import run_command
from benchmarks.nexmark.benchmark import NEXMARK

if __name__ == "__main__":
    sys.exit(run_command(NEXMARK))
