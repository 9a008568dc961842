"""ShuffleBench on every store, or on yours.

    $ ./build.sh shufflebench
    $ python -m benchmarks.shufflebench --records 1000000 --rules 1000,1000000

How it runs and what it leaves: `benchmarks/comparison/command.py`. A batch is a file of 100,000
records; what must come out NumPy computes over the same files.
"""

from __future__ import annotations

import sys

from benchmarks.comparison.command import run_command
from benchmarks.shufflebench.benchmark import SHUFFLEBENCH

if __name__ == "__main__":
    sys.exit(run_command(SHUFFLEBENCH))
