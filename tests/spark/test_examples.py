"""The examples do what they say, on the real data where it is there."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from examples.store_comparison import TITLES
from statestore.io.shim_jar import find_jar

ROOT = Path(__file__).resolve().parents[2]
REAL_EDITS = ROOT.parent / "shared" / "data" / "edits.jsonl.gz"
NUM_FILES = 8
NUM_RESULTS = {6: "8,805", 20: "16,119"}
"""Result rows of the demo by how many of its files it reads."""
FIRST_FILE_TIME_S = 1_700_000_000


def read_edits() -> list[str]:
    """Return the lines of the real edits, or of generated ones where those are not there."""
    if REAL_EDITS.exists():
        with gzip.open(REAL_EDITS, "rt") as lines:
            return list(lines)
    rng = np.random.default_rng(7)
    users = np.minimum(rng.zipf(1.3, 20_000), 2_000).tolist()
    deltas = rng.integers(-500, 1_000, len(users)).tolist()
    return [
        json.dumps({"user": f"user-{user}", "delta": delta, "page": "generated"}) + "\n"
        for user, delta in zip(users, deltas, strict=True)
    ]


def sums(lines: Iterable[str]) -> dict[str, int]:
    """Return the sum of the edits of every user."""
    totals: dict[str, int] = {}
    for line in lines:
        edit = json.loads(line)
        totals[edit["user"]] = totals.get(edit["user"], 0) + edit["delta"]
    return totals


def written(attempt: Path) -> list[dict[str, int]]:
    """Return what every batch of an attempt wrote, in order: diff by user."""
    return [
        {row["user"]: row["diff"] for row in map(json.loads, path.read_text().splitlines())}
        for path in sorted(attempt.glob("batch-*.jsonl"))
    ]


def run_example(name: str, *arguments: str, timeout_s: int) -> str:
    """Run an example in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.extended
def test_edit_diffs_go_on_when_restarted(tmp_path: Path) -> None:
    """Catches a restart that forgets, repeats or changes the sum of any user."""
    lines = read_edits()
    per_file = -(-len(lines) // NUM_FILES)
    chunks = [lines[start : start + per_file] for start in range(0, len(lines), per_file)]
    source = tmp_path / "edits"
    source.mkdir()
    directories = [f"--{name}={tmp_path / name}" for name in ("output", "checkpoint")]
    half = NUM_FILES // 2

    for attempt in (chunks[:half], chunks[half:]):
        for chunk in attempt:
            number = len(list(source.iterdir()))
            path = source / f"edits-{number:02d}.jsonl"
            path.write_text("".join(chunk))
            os.utime(path, (FIRST_FILE_TIME_S + number,) * 2)
        arguments = [f"--input={source}", *directories, f"--jar={find_jar()}"]
        run_example("edit_diffs.py", *arguments, timeout_s=120)

    attempts = sorted((tmp_path / "output").iterdir())
    assert [attempt.name for attempt in attempts] == ["attempt-001", "attempt-002"]
    batches = written(attempts[0]) + written(attempts[1])
    assert [len(written(attempt)) for attempt in attempts] == [half, NUM_FILES - half]
    for number, batch in enumerate(batches):
        so_far = sums(line for chunk in chunks[: number + 1] for line in chunk)
        assert batch == {user: so_far[user] for user in sums(chunks[number])}


@pytest.mark.extended
@pytest.mark.needs("row-api")
@pytest.mark.parametrize("arguments", [[], ["--fields"]], ids=["state", "fields"])
def test_count_window_average_prints_two_averages(arguments: list[str]) -> None:
    """Catches an example that does not run by itself, as it is printed in Flink's documentation."""
    output = run_example("count_window_average.py", *arguments, timeout_s=170)

    assert [line for line in output.splitlines() if line.startswith("(")] == ["(1,4)", "(1,5)"]


@pytest.mark.slow
@pytest.mark.timeout(620)
@pytest.mark.parametrize(
    ("backend", "shown", "stores", "num_files"),
    [
        ("filesystem", "snapshot files", ["statestore rocksdb"], 6),
        pytest.param("filesystem", "snapshot files", TITLES, 20, marks=pytest.mark.extended),
        pytest.param(
            "heap", "it refuses, since", ["statestore heap"], 20, marks=pytest.mark.extended
        ),
        pytest.param(
            "rocksdb", "merged files", ["statestore filesystem"], 20, marks=pytest.mark.extended
        ),
    ],
    ids=["filesystem", "every-store", "heap", "rocksdb"],
)
def test_demo_compares_equal_when_killed_twice(
    backend: str, shown: str, stores: list[str], num_files: int
) -> None:
    """Catches whatever the demo would: a query that dies with its engine, a wrong row."""
    arguments = ["--backend", backend, "--files", str(num_files), "--compare", *stores]
    output = run_example("demo.py", *arguments, timeout_s=600)

    assert "killed the query with -9" in output
    assert shown in output
    for store in stores:
        (row,) = [line for line in output.splitlines() if line.startswith(f"  {store}  ")]
        assert row.split()[-2:] == [NUM_RESULTS[num_files], "0"]
    assert output.splitlines()[-1].startswith("every result row equals the batch computation's")
