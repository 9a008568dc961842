"""ShuffleBench: its records, the rules that take them, and what consumers return of them."""

from __future__ import annotations

import struct
from collections import defaultdict

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.datasets import split_mix
from benchmarks.shufflebench.expected import run_consumers
from benchmarks.shufflebench.query import find_query
from benchmarks.shufflebench.records import LAST_PLACE, SEED, arc, records, route

NUM_RECORDS = 3_000


def consumers_of(place, begins):
    """The rules whose arc has a place, asked one by one."""
    width = arc(len(begins))
    return [rule for rule, begin in enumerate(begins) if (place - begin) % (1 << 63) < width]


def begins_of(num_rules):
    """Where each rule's arc begins."""
    bits = split_mix(np.arange(num_rules) + 1, SEED).tolist()
    return [one & LAST_PLACE for one in bits]


@pytest.mark.parametrize("first", [0, 1, 700])
def test_a_record_is_the_same_in_every_file(first):
    """Catches a record that depends on those made with it: sizes of files would change it."""
    made = records(0, 1_000).slice(first, 200)

    assert records(first, 200).to_pylist() == made.to_pylist()
    assert {len(one) for one in made["data"].to_pylist()} == {1_024}


@pytest.mark.parametrize("num_rules", [1, 7, 1_000])
def test_rules_take_a_fifth_of_the_records(num_rules):
    """Catches an arc that is lost where the ring closes, or a pair that comes twice."""
    random = split_mix(np.arange(NUM_RECORDS)).astype(np.int64) & LAST_PLACE
    places = np.append(random, [0, 1, LAST_PLACE])
    begins = begins_of(num_rules)

    found = []
    for index, rules in route(places, num_rules):
        found += zip(index.tolist(), rules.tolist(), strict=True)

    wanted = []
    for at, place in enumerate(places.tolist()):
        wanted += [(at, rule) for rule in consumers_of(place, begins)]
    assert sorted(found) == wanted
    assert 0.15 < len(found) / len(places) < 0.25


@pytest.mark.parametrize("num_rules", [1, 20, 2_000])
def test_a_consumer_returns_what_it_added_up(num_rules, tmp_path):
    """Catches a sum, a time or a consumer of another row; compared with records one by one."""
    for number in range(3):
        pq.write_table(records(number * 1_000, 1_000), tmp_path / f"{number}.parquet")
    begins, kept, wanted = begins_of(num_rules), defaultdict(list), []
    counts = {}
    for record in records(0, NUM_RECORDS).to_pylist():
        summed, place, begin = struct.unpack_from(">3q", record["data"])
        for rule in consumers_of(place & LAST_PLACE, begins):
            counts.setdefault(rule, (begin & LAST_PLACE) % 10)
            counts[rule] += 1
            kept[rule].append((summed, record["time"]))
            if counts[rule] == 10:
                total = sum(one for one, _ in kept[rule]) & ((1 << 64) - 1)
                total -= (total >> 63) << 64
                wanted.append((f"consumer-{rule}", 10, total, kept[rule][0][1], record["time"]))
                counts[rule] = 0
                kept[rule].clear()

    table, num_consumers = run_consumers(sorted(tmp_path.iterdir()), num_rules)

    assert sorted(tuple(row.values()) for row in table.to_pylist()) == sorted(wanted)
    assert wanted
    assert num_consumers == len(counts)


def test_a_number_of_rules_that_is_none_is_refused():
    """Catches a wrong argument that fails in Spark only, half a minute later."""
    with pytest.raises(LookupError, match=r"rules='many'\. To fix: "):
        find_query("many")
