"""Run the benchmarks, then write the report beside their JSON.

    $ python -m benchmarks [--results DIRECTORY] [options of pytest]

Without --results into a folder of this machine, as `own_results` has it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.processes import own_results
from benchmarks.report import write_report

HERE = Path(__file__).parent


def main() -> int:
    """Run; return pytest's exit code.

    Guarantee: results are replaced only after a run that recorded something.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="folder of the results")
    arguments, pytest_options = parser.parse_known_args()
    size = "quick" if "--quick" in pytest_options else "full"
    folder: Path = arguments.results or own_results("bench", size)
    with tempfile.TemporaryDirectory() as scratch:
        recorded = Path(scratch) / "benchmark.json"
        options = [str(HERE), f"--benchmark-json={recorded}", *pytest_options]
        exit_code = int(pytest.main(options))
        if recorded.exists() and recorded.stat().st_size > 0:
            folder.mkdir(parents=True, exist_ok=True)
            write_report(Path(shutil.move(recorded, folder / recorded.name)))
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
