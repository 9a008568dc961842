"""The order and the page of `benchmarks/real_time.py`, from runs that were kept."""

from __future__ import annotations

from dataclasses import asdict

from benchmarks.real_time import memory, render, schedule
from benchmarks.real_time_run import Load

LOAD = Load("variable", 5_000, 100_000, 60, 300, 60)


def kept(provider, p99, overlay_bytes):
    """A line of the file."""
    batches = [{"overlay_bytes": overlay_bytes}, {"overlay_bytes": overlay_bytes}]
    return {
        "provider": provider,
        "load_of": asdict(LOAD),
        "p50": 4,
        "p99": p99,
        "max": 1_234,
        "silence": 321,
        "cpu_us": 87.6,
        "others": 0.07,
        "load": [0.5, 2.25],
        "jvm_mib": [100, 200, 300],
        "engine_mib": [0, 0, 0],
        "batches": batches,
        "cores": 2,
        "spark": "4.3.0",
    }


def test_order_of_the_stores_is_reversed_in_every_other_round():
    """Catches a store that always runs first."""
    runs = [(number, provider) for number, _, provider in schedule(2, [LOAD], ["a", "b", "c"])]

    assert runs == [(0, "a"), (0, "b"), (0, "c"), (1, "c"), (1, "b"), (1, "a")]


def test_page_has_the_runs_of_a_store_beside_each_other():
    """Catches a run that is left out, or shown as another store's."""
    runs = [
        kept("rocksdb-changelog", 40, None),
        kept("filesystem", 20, 3 << 20),
        kept("filesystem", 30, 3 << 20),
    ]

    lines = render(runs).splitlines()

    assert "## `transformWithState`, 5,000 rows a second of 100,000 keys" in lines
    assert "300 s after 60 s of warm-up, batches of 60 s. Spark 4.3.0, 2 cores." in lines
    of_spark = "4 | 40 | 1,234 | 321 | 88 | 200 to 300 |  |  | 7% | 0.5 to 2.2"
    assert f"| Spark RocksDB + changelog | {of_spark} |" in lines
    ours = next(line for line in lines if line.startswith("| statestore filesystem"))
    assert "| 20 / 30 | 1,234 / 1,234 |" in ours
    assert "| 3.0 / 3.0 |" in ours


def test_memory_is_that_of_the_second_and_the_last_third():
    """Catches growth that is hidden by what a start takes."""
    assert memory([1, 1, 50, 50, 60, 60]) == "50 to 60"
    assert memory([0, 0, 0]) == ""
