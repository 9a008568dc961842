"""The tutorial's code does what the page says, in the order in which a reader meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import EXTENDED, PROVIDER
from .harness import FILESYSTEM

ROOT = Path(__file__).resolve().parents[2]


@EXTENDED
@pytest.mark.timeout(920)  # before that of the lane
@pytest.mark.skipif(PROVIDER != FILESYSTEM, reason="the tutorial chooses providers itself")
def test_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    """Catches a first query, a rescale or a restore that a newcomer cannot repeat."""
    commands = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "spark" / "page_blocks.py", ROOT / "docs/tutorial.md"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )

    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.count("text: ") == 7
