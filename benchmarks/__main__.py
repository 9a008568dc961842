"""Run the benchmarks, then write the report beside their JSON.

    $ python -m benchmarks [--results DIRECTORY] [options of pytest]

Without --results into the folder of this version, `benchmarks/results/<version>`. What other
benchmarks wrote there stays.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.report import write_report
from statestore.core.version import __version__

HERE = Path(__file__).parent


def main() -> int:
    """Run; return pytest's exit code.

    Guarantee: results are replaced only after a run that recorded something.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results" / __version__)
    arguments, pytest_options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as scratch:
        recorded = Path(scratch) / "benchmark.json"
        options = [str(HERE), f"--benchmark-json={recorded}", *pytest_options]
        exit_code = int(pytest.main(options))
        if recorded.exists() and recorded.stat().st_size > 0:
            arguments.results.mkdir(parents=True, exist_ok=True)
            write_report(Path(shutil.move(recorded, arguments.results / recorded.name)))
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
