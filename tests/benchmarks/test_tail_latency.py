"""What `benchmarks/tail_latency.py` says of batches."""

from __future__ import annotations

import pytest

from benchmarks.tail_latency import percentile, report


@pytest.mark.parametrize(("percent", "expected"), [(1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)])
def test_percentile_is_a_value_that_was_there(percent, expected):
    """Catches a rank that is off by one, and a value between two that no batch took."""
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_report_finds_the_batches_beside_a_snapshot(capsys):
    """Catches a snapshot counted beside a batch that had ended before it began."""
    batches = [batch(number, 100 + number, snapshots=int(number >= 3)) for number in range(6)]
    report("a store", batches)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["a", "store", "102", "ms", "105", "ms", "105", "ms", "1.02"]
    # The snapshot that the commit of batch 3 knew of ran beside batch 2 or 3.
    assert lines[1].strip() == "with a snapshot: 2 batches, median 1.00 of all"
    assert lines[2].strip() == "batch 5: 105 ms (addBatch 50; commits 7)"


def batch(number, batch_ms, snapshots):
    return {
        "batch": number,
        "batch_ms": batch_ms,
        "commit_ms": 7,
        "durations_ms": {"addBatch": 50, "walCommit": 0},
        "custom_metrics": {"statestoreSnapshots": snapshots},
    }
