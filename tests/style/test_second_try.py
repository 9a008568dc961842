"""A test that fails by chance does not fail the run, and is told; one that fails does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ["-p", "xdist", "-p", "randomly"]
"""All that a try needs: each starts pytest anew."""

ONCE = """
import pathlib, pytest
@pytest.mark.xdist_group("of-its-own")
@pytest.mark.parametrize("name", {names})
def test_fails_once(name, request):
    seen = pathlib.Path(__file__).with_name(f"seen-{{name}}")
    if not seen.exists():
        seen.touch()
        pytest.fail("by chance")
"""
ALWAYS = """
import os
def test_passes(): assert os.environ
def test_fails(): assert not os.environ
"""


@pytest.mark.parametrize(
    ("source", "options", "status", "listed"),
    [
        pytest.param(
            ONCE.format(names=["a@b.c"]), ["-n", "1", "--dist", "loadgroup"], 0, 1, id="once"
        ),
        pytest.param(
            ONCE.format(names=list("abc")), [], 0, 3, id="three", marks=pytest.mark.extended
        ),
        pytest.param(ONCE.format(names=list("abcd")), [], 1, 0, id="four"),
        pytest.param(ALWAYS, [], 1, 0, id="always"),
        pytest.param("import nothing_of_this_name", [], 2, 0, id="not-collected"),
    ],
)
def test_only_what_fails_twice_fails_the_run(tmp_path, source, options, status, listed):
    """Catches a failure hidden behind the second try, and a run failed by one test's bad luck."""
    configured = tmp_path / "pytest.ini"
    configured.write_text("[pytest]\nmarkers =\n  xdist_group(name): of xdist\n")
    (tmp_path / "test_it.py").write_text(source)
    again = tmp_path / "again"
    of_pytest = [*PLUGINS, *options, "-c", configured, tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "tools.second_try", again, *of_pytest],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    lines = again.read_text().splitlines() if again.exists() else []
    assert len(lines) == listed
    assert all("::test_fails_once[" in line and "--randomly-seed=" in line for line in lines)
