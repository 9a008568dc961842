"""The page and the picture of `benchmarks/growth.py`, from results that were kept."""

from __future__ import annotations

import json
from dataclasses import asdict

from benchmarks.growth import Cell, find_cause, growing, panels, read_cells, render
from benchmarks.plot import plot_growth

OUT_OF_MEMORY = "java.lang.OutOfMemoryError: Java heap space"


def cell(provider, keys, *batches_ms, failure=None):
    """A result of W1."""
    return Cell("W1", provider, keys, 1_000, 4, batches_ms, failure, 2, "4.3.0")


CELLS = [
    cell("none", 10, 90.0, 100.0, 900.0),
    cell("none", 1_000, 110.0),
    cell("filesystem", 10, 200.0),
    cell("filesystem", 1_000, 210.0),
    cell("hdfs", 10, 150.0),
    cell("hdfs", 1_000, failure=f"exit status 1: {OUT_OF_MEMORY}"),
    cell("rocksdb-backend", 1_000, 300.0),
]


def test_page_has_ratios_and_what_failed(tmp_path):
    """Catches a failed or missing run that is shown as a number, or not at all."""
    file = tmp_path / "growth.jsonl"
    file.write_text("".join(json.dumps(asdict(one)) + "\n" for one in CELLS))

    page = render(read_cells(file))

    header = (
        "| keys | Spark HDFS-backed | statestore filesystem | statestore rocksdb | empty store |"
    )
    assert header in page
    assert "| 10 | **150** | 200 |  | 100 |" in page
    assert "| 1,000 | failed | **210** | 300 | 110 |" in page
    assert "| largest / smallest | - | 1.05 | - | 1.10 |" in page
    assert f"- Spark HDFS-backed, 1,000 keys failed: exit status 1: {OUT_OF_MEMORY}" in page
    assert "on 2 cores" in page


def test_picture_is_drawn_of_runs_that_failed(tmp_path):
    """Catches a drawing that needs every run."""
    plot_growth(panels(CELLS), tmp_path / "growth.png")

    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_cause_is_the_lack_of_memory_when_that_comes_first():
    """Catches a cause that only says that Spark went away."""
    stderr = f"Caused by: {OUT_OF_MEMORY}\n\tat x\npy4j.protocol.Py4JError: no answer\nbye\n"

    assert find_cause(stderr) == f"Caused by: {OUT_OF_MEMORY}"
    assert find_cause("a\nValueError: wrong\nbye") == "ValueError: wrong"
    assert find_cause("") == "it says nothing"


def test_keys_are_loaded_in_batches_that_a_heap_carries():
    """Catches a size that is loaded at once."""
    for one in growing(is_quick=False).values():
        for keys in one.sizes:
            query = one.at(keys)
            assert keys <= query.load_batches * 1_000_000 < keys + 1_000_000
