"""The notebook runs from its first cell to its last, and shows what it is there to show."""

from __future__ import annotations

import json
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from .conftest import EXTENDED, PROVIDER
from .harness import FILESYSTEM

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "checkpoint.ipynb"
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@EXTENDED
@pytest.mark.timeout(720)  # before that of the lane
@pytest.mark.skipif(PROVIDER != FILESYSTEM, reason="the notebook chooses its provider itself")
def test_notebook_lists_reads_reports_and_rescales(tmp_path: Path) -> None:
    """Catches a notebook whose interface has moved on; its outputs are not committed."""
    executed = tmp_path / "executed.ipynb"

    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, NOTEBOOK, executed],
        capture_output=True,
        text=True,
        check=False,
        timeout=700,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    cells = [cell for cell in json.loads(executed.read_text())["cells"] if "outputs" in cell]
    shown = [
        output["data"]
        for cell in cells
        for output in cell["outputs"]
        if output["output_type"] == "execute_result"
    ]
    versions, frame, page_bytes, plan, last = shown
    assert "<table" in "".join(versions["text/html"])
    assert "N24211" in "".join(frame["text/html"])
    assert int("".join(page_bytes["text/plain"])) > 100_000
    assert "From 4 to 8 state partitions" in "".join(plan["text/plain"])
    sums = {"N14228": 2162, "N24211": 2135, "N619AA": 1100}
    assert literal_eval("".join(last["text/plain"])) == (8, sums)
