"""Nexmark: its events."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from benchmarks.nexmark.generator import EPOCH, FIRST_ID, event_time_ms, events


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
