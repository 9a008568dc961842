"""Spark's tests stay together by the groups of tests/spark/conftest.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    """Catches a pytest under which pytest-xdist forgets the groups, and Spark starts anew."""
    (tmp_path / "test_two.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.xdist_group('together')\n"
        "@pytest.mark.parametrize('n', range(2))\n"
        "def test_one(n): pass\n"
    )
    plugins = ["-p", "no:benchmark", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", *plugins, "-v", "-n", "2", "--dist", "loadgroup"]

    done = subprocess.run(
        [*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    passed = [line for line in done.stdout.splitlines() if "PASSED" in line]
    assert len(passed) == 2
    assert all("@together" in line for line in passed), done.stdout
    assert len({line.split()[0] for line in passed}) == 1
