"""Run pytest; a test that fails is run once more, alone.

usage: python -m tools.second_try LIST [PYTEST-ARGUMENT...]

A test that passes the second time does not fail the run. It is added to LIST, a line each, with
the seed of the order that it failed in. More than three lines in LIST fail the run: so many are no
accident. The exit status is 0, or that of pytest.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

MOST_SECOND_TRIES = 3


def main(arguments: list[str]) -> int:
    """Run the tests, and what failed of them once more; return the exit status."""
    listed, *of_pytest = arguments
    seed = int(np.random.default_rng().integers(1 << 31))
    with tempfile.TemporaryDirectory(prefix="tests-") as cache:
        command = [sys.executable, "-m", "pytest", *of_pytest]
        command += [f"--randomly-seed={seed}", "-o", f"cache_dir={cache}"]
        status = subprocess.run(command, check=False).returncode
        last_failed = Path(cache) / "v/cache/lastfailed"
        if status != 1 or not last_failed.exists():
            return status
        # pytest-xdist adds the group of a test to its name, behind an @.
        failed = [re.sub(r"@[^\]@]*$", "", test) for test in json.loads(last_failed.read_text())]
        if len(_lines(Path(listed))) + len(failed) > MOST_SECOND_TRIES:
            print(f"{len(failed)} tests failed: too many for a second try")
            return status
        for test in failed:
            print(f"second try, alone: {test}", flush=True)
            last_failed.write_text(json.dumps({test: True}))
            alone = [*command, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"]
            if subprocess.run(alone, check=False).returncode:
                return status
            with Path(listed).open("a") as file:
                file.write(f"{test} --randomly-seed={seed}\n")
    return 0


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
