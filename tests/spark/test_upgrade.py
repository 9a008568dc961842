"""A checkpoint goes on under a later Spark than the one that wrote it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from statestore.operations.checkpoint import open_checkpoint
from statestore.operations.upkeep.verify import verify
from tests.seams import place_of

from .conftest import EXTENDED, PROVIDER, MakeLane, RunReference
from .harness import FILESYSTEM, assert_counts
from .upgrades import UPGRADED, archives, unpack

pytestmark = [
    pytest.mark.ours,
    pytest.mark.each_spark,
    pytest.mark.skipif(PROVIDER != FILESYSTEM, reason="each checkpoint has its backend"),
]


SHORT = ("aggregation-update", "session-append", "join-", "flat-map-groups", "everything-scala")
"""Queries that keep state each in a way of its own, by the beginning of their names."""


def _is_short(name: str) -> bool:
    return UPGRADED[name][0].name.startswith(SHORT)


def _cases() -> list[Any]:
    """Every query after every Spark; a short run has the oldest, and what keeps state its own way.

    Deduplication, limits and windows keep it as an aggregation does.
    """
    return [
        pytest.param(
            archive,
            name,
            id=f"{archive.name.removesuffix('.tar.xz')}-{name}",
            marks=[] if archive == archives()[0] and _is_short(name) else [EXTENDED],
        )
        for archive in archives()
        for name in UPGRADED
    ]


@pytest.mark.parametrize(("archive", "name"), _cases())
@pytest.mark.few(2)
def test_rows_equal_built_in_when_a_spark_before_it_wrote_the_state(
    make_lane: MakeLane, run_reference: RunReference, archive: Path, name: str
) -> None:
    """Catches state or offsets of an older Spark that are lost, doubled or read as something else.

    The provider of Spark processes the same files, all of them under the installed Spark.
    """
    query, provider, conf = UPGRADED[name]
    first, *rest = query.plan
    lane = make_lane(query, provider, conf)
    unpack(archive, name, lane.root)
    with open_checkpoint(place_of(lane.checkpoint)) as checkpoint:
        assert not verify(checkpoint, deep=True).findings
    lane.begin_after(first)

    for batches in rest:
        lane.run(*batches)

    expected = run_reference(query)
    ran = {batch: expected.batches[batch] for batch in lane.batches}
    assert lane.batches == ran
    assert max(lane.batches) == max(expected.batches)
    assert len(lane.batches) >= len(list(chain(*rest)))
    assert lane.counts("numRowsTotal").keys() == ran.keys()
    assert_counts(expected, lane)
    with open_checkpoint(place_of(lane.checkpoint)) as checkpoint:
        assert not verify(checkpoint, deep=True).findings
