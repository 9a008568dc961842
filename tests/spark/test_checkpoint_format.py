"""A checkpoint keeps the format it began with: what `configure` sets is for new ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import StreamingQueryException

from statestore import find_obstacle

from .conftest import PROVIDER, MakeLane
from .features import missing
from .harness import HDFS, STATE_STORE, Lane, Query, assert_same
from .queries import AGGREGATION, JOIN

FORMAT = f"{STATE_STORE}.checkpointFormatVersion"


ANOTHER = [
    pytest.param(AGGREGATION, PROVIDER, "1", "2", marks=pytest.mark.ours, id="v1"),
    pytest.param(JOIN, PROVIDER, "1", "2", marks=pytest.mark.ours, id="v1-join"),
    pytest.param(
        AGGREGATION,
        PROVIDER,
        *("2", "1"),
        marks=[pytest.mark.ours, pytest.mark.needs("pinned-format")],
        id="v2",
    ),
    # Which refuses format v2 where a checkpoint begins with it.
    pytest.param(
        AGGREGATION,
        HDFS,
        *("1", "2"),
        marks=pytest.mark.needs("pinned-format"),
        id="v1-of-hdfs-provider",
    ),
]


@pytest.mark.needs("later-format")
@pytest.mark.parametrize(("query", "provider", "first", "then"), ANOTHER)
@pytest.mark.few(2)
def test_checkpoint_goes_on_when_another_format_is_asked_for(
    make_lane: MakeLane,
    run_reference: Callable[[Query], Lane],
    query: Query,
    provider: str,
    first: str,
    then: str,
) -> None:
    """Catches a checkpoint that cannot go on, or loses rows, in a session for new ones.

    Spark 4.3 stays in the format it was begun in, Spark 4.2 takes the one that is asked for.
    """
    lane = make_lane(query, provider, conf={FORMAT: first})
    lane.run(*query.plan[0])
    lane.conf[FORMAT] = then
    for batches in query.plan[1:]:
        lane.run(*batches)

    assert_same(run_reference(query), lane)
    used = {first, then} if missing("pinned-format") else {first}
    commits = lane.checkpoint.glob("commits/[0-9]*")
    assert {path.read_text().split("\n")[0] for path in commits} == {f"v{form}" for form in used}


@pytest.mark.ours
@pytest.mark.lacks("pinned-format")
@pytest.mark.parametrize(
    ("first", "then", "is_within_batch"),
    [
        pytest.param("1", "2", False, marks=pytest.mark.lacks("later-format"), id="v1"),
        pytest.param("2", "1", False, id="v2"),
        pytest.param("2", "1", True, id="v2-within-batch"),
    ],
)
def test_checkpoint_waits_for_its_format_where_spark_goes_by_the_session(
    make_lane: MakeLane,
    run_reference: Callable[[Query], Lane],
    first: str,
    then: str,
    is_within_batch: bool,
) -> None:
    """Catches a batch in two formats, whose checkpoint goes on in neither, and vain restarts."""
    query = AGGREGATION
    lane = make_lane(query, conf={FORMAT: first})
    first_run, second_run, *others = query.plan
    lane.run(*first_run)
    lane.conf[FORMAT] = then
    if is_within_batch:
        newest = max(lane.batches)
        for name in (str(newest), f".{newest}.crc"):
            (lane.checkpoint / "commits" / name).unlink()
    else:
        lane.feed(*second_run)
    refused, obstacle = (
        ("only supported log version", "INVALID_LOG_VERSION")
        if missing("later-format")
        else ("checkpointFormatVersion.*value=1", "invalid-option")
    )
    with pytest.raises(StreamingQueryException, match=refused) as caught:
        lane.run()
    assert find_obstacle(caught.value) == obstacle

    lane.conf[FORMAT] = first
    lane.run(*(second_run if is_within_batch else ()))
    for batches in others:
        lane.run(*batches)

    assert_same(run_reference(query), lane)
