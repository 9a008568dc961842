"""The example of the assignment on a real Kafka broker that is killed, where there are its jars."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.wikipedia_edits.jars import JarsUnreachableError, broker_jars, connector_jars

from .conftest import EXTENDED
from .test_examples import ROOT, read_edits, sums

NUM_EDITS = 20_000


@pytest.fixture
def kafka_jars() -> None:
    """Skips the test where the jars cannot be had."""
    try:
        broker_jars()
        connector_jars()
    except JarsUnreachableError as error:
        pytest.skip(f"the jars of Kafka cannot be fetched: {error}")


@EXTENDED
@pytest.mark.timeout(900)
def test_totals_in_kafka_are_exact_when_broker_and_driver_are_killed(
    kafka_jars: None, tmp_path: Path
) -> None:
    """Catches an edit that counts twice or not at all, and a batch that is repeated otherwise.

    The example reads the totals back from Kafka and compares them with a plain sum; it fails when
    one differs.
    """
    lines = read_edits()[:NUM_EDITS]
    assert len(lines) == NUM_EDITS
    edits = tmp_path / "edits.jsonl"
    edits.write_text("".join(lines))
    arguments = [f"--edits={edits}", f"--directory={tmp_path / 'run'}"]

    arguments += ["--only-restarts", "--master=local[2]"]
    command = [sys.executable, "-m", "examples.wikipedia_edits.answers", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    users = len(sums(lines[: NUM_EDITS // 2]))
    assert f"diffs: {users:,} users equal" in done.stdout
    events = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    attempts = {event.removeprefix("| "): attempt for event, attempt, _ in events[1:]}
    assert attempts["2 batches after kill -9 of the broker"] == "1"
    assert attempts["end, after kill -9 of the driver"] == "2"
    assert attempts["end, after the newest batch was repeated"] == "3"
