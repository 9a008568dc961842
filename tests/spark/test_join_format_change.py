"""Joins of state format 2 and 3 that go on in format 4 have the rows of either format."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from statestore import Checkpoint
from statestore.core.errors import IncompatibleError

from .conftest import EXTENDED, PROVIDER, MakeLane
from .harness import FILESYSTEM, HEAP, ROCKSDB, ROCKSDB_BACKEND, Lane, run_plan
from .join_formats import V1, V2, join_in, pinned, rows_in_order
from .queries import in_runs, two_inputs

pytestmark = [
    pytest.mark.ours,
    pytest.mark.needs("join-format-4"),
    pytest.mark.skipif(PROVIDER != FILESYSTEM, reason="each backend is one of the tests' own"),
]
HOWS = ("inner", "left_outer", "right_outer", "full_outer", "left_semi")
FAMILIES = [
    f"{side}-{name}" for side in ("left", "right") for name in ("keyWithTsToValues", "tsWithKey")
]


def _cases() -> list[Any]:
    short = [
        (FILESYSTEM, V2, "left_outer", "interval", "2"),
        (ROCKSDB_BACKEND, V1, "left_semi", "window", "2"),
        (FILESYSTEM, V1, "inner", "always", "2"),
    ]
    every = [
        *product((FILESYSTEM, ROCKSDB_BACKEND), (V1, V2), HOWS, ("interval", "window"), "23"),
        *product((FILESYSTEM, ROCKSDB_BACKEND), (V1, V2), ("inner",), ("always",), "23"),
        (HEAP, V2, "full_outer", "interval", "2"),
    ]
    found = []
    for case in every:
        provider, conf, how, kind, version = case
        backend = provider.rpartition(".")[2].removesuffix("StateStoreProvider")
        name = f"{backend}-{'v2' if conf else 'v1'}-{how}-{kind}-format-{version}"
        found.append(pytest.param(*case, marks=[] if case in short else EXTENDED, id=name))
    return found


def to_format_4(lane: Lane, **how: Any) -> None:
    """Let a lane go on in format 4, in another checkpoint."""
    savepoint, new = lane.root / "in-format-4", lane.root / "new"
    old = Checkpoint(lane.checkpoint, spark=lane.spark)
    old.transform(savepoint, join_format=4).made.restore(new, **how)
    assert Checkpoint(new, spark=lane.spark).verify(deep=True).findings == ()
    lane.checkpoint = new


@pytest.mark.parametrize(("provider", "conf", "how", "kind", "version"), _cases())
@pytest.mark.few(2)
def test_rows_equal_those_of_either_format(
    make_lane: MakeLane, provider: str, conf: dict[str, str], how: str, kind: str, version: str
) -> None:
    """Catches a row that joins once too often or never again, and one that does not expire."""
    before, in_4 = (in_runs(join_in(how, kind, of), 1, 1, 1) for of in (version, "4"))
    references = [make_lane(before, ROCKSDB, conf), make_lane(in_4, ROCKSDB, conf)]
    for reference in references:
        run_plan(reference)
    lane = make_lane(before, provider, conf)

    for number, batches in enumerate(before.plan):
        lane.run(*batches)
        if number == 0:
            to_format_4(lane, num_partitions=3 if conf else None)
            assert pinned(lane)[0] == "4"

    rows = rows_in_order(lane) if version == "3" else _all_rows(lane)
    assert any(rows)
    assert [rows_in_order(reference) for reference in references] == [rows, rows]
    assert pinned(lane, max(lane.batches))[0] == "4"


def _all_rows(lane: Lane) -> list[list[str]]:
    return [rows for _, rows in sorted(lane.batches.items())]


@pytest.mark.needs("join-guardrail")  # Spark 4.2 has another flag in its file, and takes ours
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("left_outer", "interval"),
        pytest.param("full_outer", "window", marks=EXTENDED),
        pytest.param("inner", "interval", marks=EXTENDED),
    ],
)
def test_state_equals_that_of_a_query_begun_in_format_4(
    make_lane: MakeLane, how: str, kind: str
) -> None:
    """Catches another time, key, order of bytes or file than Spark's."""
    lanes = [make_lane(join_in(how, kind, version), FILESYSTEM, V2) for version in "24"]
    for lane in lanes:
        lane.run(*lane.query.plan[0])
    to_format_4(lanes[0])

    # Of an inner join no flag is ever read, and format 4 sets fewer than format 2 does.
    rows = [_rows(lane, without_flags=how == "inner") for lane in lanes]
    assert rows[0] == rows[1]
    assert all(rows[0].values())
    schemas = [
        next(lane.checkpoint.glob("state/0/_stateSchema/default/[0-9]*")).read_bytes()
        for lane in lanes
    ]
    assert schemas[0] == schemas[1]
    texts = [
        next(lane.checkpoint.glob("state/0/_metadata/v2/[0-9]*")).read_text() for lane in lanes
    ]
    names = [
        text.replace(str(lane.checkpoint), "").partition("_stateSchema")[0]
        for text, lane in zip(texts, lanes, strict=True)
    ]
    assert names[0] == names[1]


def _rows(lane: Lane, without_flags: bool) -> dict[str, list[str]]:
    found = {}
    for name in FAMILIES:
        rows = Checkpoint(lane.checkpoint).rows(name).read().to_pylist()
        if without_flags:
            for row in rows:
                row["value"].pop("matched", None)
        found[name] = sorted(map(repr, rows))
    return found


@pytest.mark.few(2)
def test_rows_from_before_there_was_a_watermark_have_their_times(make_lane: MakeLane) -> None:
    """Catches rows under drawn times, which no watermark takes and no interval finds."""
    first, *rest = two_inputs(1, 1, 1)
    without = replace(join_in("inner", "always", "3"), plan=[first])
    with_watermark = replace(join_in("inner", "interval", "3"), plan=rest)
    lane, reference = make_lane(without), make_lane(without)
    for one in (lane, reference):
        one.run(*first)
        one.query = with_watermark
        one.run(*rest[0])
    assert lane.batches == reference.batches

    to_format_4(lane)
    found = Checkpoint(lane.checkpoint).rows("left-keyWithTsToValues").read().to_pylist()
    times = {row["key"]["__event_time"] for row in found}
    for one in (lane, reference):
        one.run(*rest[1])

    assert min(times) > 10**15, "drawn"  # microseconds
    assert rows_in_order(lane) == rows_in_order(reference)


@pytest.mark.needs("to-spark-rocksdb")
def test_rows_equal_when_converted_to_sparks_provider_afterwards(make_lane: MakeLane) -> None:
    """Catches a checkpoint that only providers of this package go on with."""
    in_2, in_4 = (in_runs(join_in("full_outer", "interval", v), 1, 1, 1) for v in "24")
    reference, lane = make_lane(in_4, ROCKSDB, V2), make_lane(in_2, FILESYSTEM, V2)
    run_plan(reference)

    lane.run(*in_2.plan[0])
    to_format_4(lane)
    converted = lane.root / "converted"
    Checkpoint(lane.checkpoint, spark=lane.spark).convert(converted, "spark-rocksdb")
    lane.checkpoint = converted
    for batches in in_2.plan[1:]:
        lane.run(*batches)

    assert _all_rows(lane) == rows_in_order(reference)


@pytest.mark.parametrize("run", [0, pytest.param(1, marks=EXTENDED)])
def test_row_without_a_time_is_refused_which_spark_treats_otherwise(
    make_lane: MakeLane, run: int
) -> None:
    """Catches a row that a query returns in format 4 and never would have in format 2.

    Spark's own provider returns it in format 4, too, but only while there is no watermark before.
    """
    lonely = {"key": "lonely", "value": 1, "ts": None}
    is_returned = {}
    for version, provider in product("24", (ROCKSDB, FILESYSTEM)):
        query = in_runs(join_in("left_outer", "interval", version), *(1,) * (run + 2))
        lane = make_lane(query, provider, V2)
        for number, (files,) in enumerate(query.plan):
            more = [lonely] if number == run else []
            lane.run({**files, "left": [*more, *files["left"]]})
        is_returned[version, provider] = "lonely" in str(_all_rows(lane))
        if (version, provider) == ("2", FILESYSTEM):
            with pytest.raises(IncompatibleError, match="a row of a join has no time"):
                Checkpoint(lane.checkpoint).transform(lane.root / "new", join_format=4)
    assert is_returned == {
        (version, provider): version == "4" and run == 0
        for version, provider in product("24", (ROCKSDB, FILESYSTEM))
    }
