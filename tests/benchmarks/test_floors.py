"""What own cost is counted from: the empty stores, and which workloads they are measured with."""

from __future__ import annotations

import json

import pytest

from benchmarks.figures import FIGURES, Results
from benchmarks.workloads import FINDING, NO_STORE, find_provider, full

TITLE = "W1 batch, own cost / Spark HDFS-backed"
MS = {"hdfs": 1_000, "filesystem": 550, FINDING: 500, NO_STORE: 400}


@pytest.mark.parametrize(
    ("measured", "own"),
    [
        pytest.param(MS, 50 / 500, id="finding"),
        pytest.param(
            {name: ms for name, ms in MS.items() if name != FINDING}, 150 / 600, id="empty"
        ),
    ],
)
def test_own_cost_begins_at_the_store_that_finds_rows_where_it_ran(measured, own, tmp_path):
    """Catches an own cost that has in it what Spark does with the rows that are found."""
    file = tmp_path / "benchmark.json"
    entries = [
        {"extra_info": {"metric": "W1 batch", "provider": name, "value": ms}}
        for name, ms in measured.items()
    ]
    file.write_text(json.dumps({"benchmarks": entries}))
    figure = next(one for one in FIGURES if one.title == TITLE)

    assert figure.value(Results(file)) == pytest.approx(own)


def test_only_aggregations_find_a_row_that_is_always_the_same():
    """Catches a join that acts on the row of another key."""
    suite = full()
    measured = {
        query.name
        for query in (*suite.queries, *suite.w8, *suite.w9)
        if find_provider(FINDING).can_run(query)
    }

    assert measured == {"W1", "W2-1M", "W2-10k", "W7"}
