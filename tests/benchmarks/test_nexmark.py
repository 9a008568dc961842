"""Nexmark: its events, its page, and its queries on each store beside the batch computation."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pyarrow.compute as pc
import pytest

from benchmarks.nexmark.expected import Check
from benchmarks.nexmark.generator import EPOCH, FIRST_ID, event_time_ms, events
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.report import Run, plot_runs, read_runs, render
from benchmarks.nexmark.run import Measured
from benchmarks.nexmark.stores import STORES
from benchmarks.processes import run_module

NUM_EVENTS, NUM_FILES = 160_000, 4
MEASURED = Measured(1_000_000, 50.0, 60.0, 0.0, 400.0, 900.0, 1_000, 2_000_000, Check(7, 8))


def run(query, store, cpu_s, call_s=0.0, failure=None):
    """A run, which took so much CPU."""
    title = next(one.title for one in STORES if one.id == store)
    measured = None if failure else replace(MEASURED, cpu_s=cpu_s, call_s=call_s)
    return Run(0, query, store, title, 5_000_000, 50, 2, "4.3.0", measured, failure)


RUNS = [
    run("q5", "hdfs", 30.0),
    run("q5", "rocksdb-changelog", 40.0),
    run("q5", "filesystem", 22.0),
    run("q5", "floor", 21.0, call_s=1.0),
    run("q20", "hdfs", 0.0, failure="exit status 1: java.lang.OutOfMemoryError: Java heap space"),
    run("q20", "filesystem", 50.0),
    run("q20", "floor", 20.0),
]


@pytest.mark.parametrize("seed", range(3))
def test_an_event_is_the_same_in_every_file(seed):
    """Catches an event that depends on those made with it: sizes of files would change it."""
    first, count = (int(one) for one in np.random.default_rng(seed).integers(1, 5_000, 2))

    made = events(0, 10_000).slice(first, count)

    assert events(first, count).to_pylist() == made.to_pylist()


def test_people_auctions_and_bids_are_numbered_and_refer_to_each_other():
    """Catches a wrong proportion, a gap in the numbers, or a bid on an auction far away."""
    made = events(0, 50_000)

    kinds = [made.filter(pc.equal(made["event_type"], kind)) for kind in range(3)]
    people, auctions, bids = (
        kind[name].combine_chunks()
        for kind, name in zip(kinds, ("person", "auction", "bid"), strict=True)
    )
    assert [len(people), len(auctions), len(bids)] == [1_000, 3_000, 46_000]
    assert people.field("id").to_pylist() == list(range(FIRST_ID, FIRST_ID + 1_000))
    assert auctions.field("id").to_pylist() == list(range(FIRST_ID, FIRST_ID + 3_000))
    assert pc.max(auctions.field("seller")).as_py() < FIRST_ID + 1_000 + 10
    assert pc.max(bids.field("auction")).as_py() < FIRST_ID + 3_000 + 10
    times = made["date_time"].to_pylist()
    assert times == sorted(times)
    assert int(times[-1].timestamp() * 1000) == event_time_ms(49_999)
    assert EPOCH == 50


def test_half_of_the_bids_are_on_a_hot_auction():
    """Catches ratios that the reference does not have."""
    made = events(0, 50_000)
    bids = made.filter(pc.equal(made["event_type"], 2))["bid"].combine_chunks()

    auction = np.asarray(bids.field("auction")) - FIRST_ID
    bidder = np.asarray(bids.field("bidder")) - FIRST_ID

    assert 0.48 < np.mean(auction % 100 == 0) < 0.53
    assert 0.74 < np.mean(bidder % 100 == 1) < 0.78


def test_page_compares_own_cost_with_the_best_store_of_spark(tmp_path):
    """Catches a floor with the time of its own calls, or a failed run that is shown as a number."""
    file = tmp_path / "nexmark.jsonl"
    file.write_text("".join(json.dumps(asdict(one)) + "\n" for one in RUNS))

    page = render(read_runs(file))

    stores = "HDFS-backed | Spark RocksDB + changelog, format 2 | statestore filesystem | floor |"
    assert f"| query | Spark {stores}" in page
    assert "| q5 | 30.0 | 40.0 | **22.0** | 20.0 |" in page
    assert "| q20 |  |  | **50.0** | 20.0 |" in page
    assert "| q5 | 10.0 s | 0.73 | 0.20 |" in page
    assert "| q20 |  |  |  |" in page
    assert "- q20 on Spark HDFS-backed, round 1: exit status 1: java.lang.OutOfMemoryError" in page
    plot_runs(RUNS, tmp_path / "nexmark.png")
    assert (tmp_path / "nexmark.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES, ids=lambda store: store.id)
def test_rows_of_a_stream_are_those_of_the_batch_computation(store, tmp_path):
    """Catches a query, a store or a floor that returns other rows, also after a restart."""
    queries = ",".join(one.name for one in QUERIES if store.has_families or not one.processor)
    done = run_module(
        "nexmark",
        [
            "--application",
            f"--events={NUM_EVENTS}",
            f"--files={NUM_FILES}",
            f"--queries={queries}",
            f"--stores={store.id}",
            f"--work={tmp_path}",
        ],
    )

    assert done.failure is None, done.stderr[-2_000:]
    assert len(done.result) == queries.count(",") + 1
    assert all(one["check"]["rows"] > 0 for one in done.result)
