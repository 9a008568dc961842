"""State variables of `transformWithState` whose schema changes between restarts."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException

from statestore import Checkpoint

from .conftest import EXTENDED, PROVIDER, MakeLane
from .harness import (
    FILESYSTEM,
    HEAP,
    ROCKSDB,
    ROCKSDB_BACKEND,
    STATE_STORE,
    Lane,
    Query,
    assert_same,
    tree,
)
from .queries import one_input
from .state_evolution import (
    BEGUN,
    CHANGES,
    HOUR_MS,
    PYTHON,
    ROUND,
    evolve,
    evolving,
    evolving_in_python,
    expiring,
)

BACKENDS = {"filesystem": FILESYSTEM, "rocksdb": ROCKSDB_BACKEND, "heap": HEAP}
BESIDE: dict[str, dict[str, Any]] = {
    "alone": {},
    "with-ttl": {"ttl_ms": HOUR_MS},
    "with-timers": {"timers": True},
}
OF_CI = {("rocksdb", "nested", "with-ttl")}
WIDER = f"{BEGUN}, d STRING"
OTHER = "d STRING, a INT, c DOUBLE"
pytestmark = pytest.mark.ours


def _of(*cases: tuple[str, ...], extended: bool = True) -> list[Any]:
    """Return cases, the first element a backend; where another is under test, its own only."""
    return [
        pytest.param(
            *case,
            id="-".join(case),
            marks=[EXTENDED] * extended
            + [pytest.mark.needs("widened-arrays")] * ("nested" in case),
        )
        for case in cases
        if PROVIDER in (FILESYSTEM, BACKENDS[case[0]])
    ]


def _run(
    make_lane: MakeLane, backend: str, schemas: tuple[str, ...], **arguments: Any
) -> tuple[Lane, Lane]:
    """Run a query on Spark's provider and on a backend, with a restart to each schema."""
    made: Callable[..., Query] = arguments.get("made", evolving)
    of_spark, ours = (make_lane(made(schemas[0]), one) for one in (ROCKSDB, BACKENDS[backend]))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda lane: evolve(lane, schemas, **arguments), (of_spark, ours)))
    assert_same(of_spark, ours)
    assert sum(row.count("[") for rows in ours.batches.values() for row in rows) > 5, "little held"
    return of_spark, ours


@pytest.mark.parametrize(
    "backend", [*_of(("filesystem",), extended=False), *_of(("rocksdb",), ("heap",))]
)
def test_rows_equal_built_in_when_schemas_change_at_every_restart(
    make_lane: MakeLane, backend: str
) -> None:
    """Catches a row that is read by another schema than its own, or changed one schema at a time:
    of a field that was removed and is back, rows of before the removal still have their value.
    """
    lanes = _run(make_lane, backend, ROUND)

    if backend == "heap":
        return
    for name, batch in (("value", 1), ("list", len(ROUND) - 1), ("map", len(ROUND) - 1)):
        expected, found = (_state(lane, name, batch) for lane in lanes)
        assert found == expected, (name, batch)
        rows = Checkpoint(lanes[1].checkpoint).rows(name, version=batch + 1).read()
        assert rows.num_rows == len(found)
        assert _names(rows, "value") == [field.split()[0] for field in ROUND[batch].split(", ")]
    path = str(lanes[1].checkpoint)
    changed = Checkpoint(path).rows("value", version=1).diff(Checkpoint(path).rows("value"))
    assert _names(changed, "old_value") == ["a", "b", "c"]
    assert _names(changed, "new_value") == ["d", "c", "a", "b"]
    assert changed.num_rows


def _names(rows: pa.Table, column: str) -> list[str]:
    return [field.name for field in rows.schema.field(column).type]


def _state(lane: Lane, name: str, batch: int) -> list[str]:
    reader = lane.spark.read.format("statestore").option("stateVarName", name)
    return sorted(map(repr, reader.option("batchId", batch).load(str(lane.checkpoint)).collect()))


@pytest.mark.parametrize(
    ("backend", "change", "beside"),
    [
        *_of(*OF_CI, extended=False),
        *_of(*(case for case in product(BACKENDS, CHANGES, BESIDE) if case not in OF_CI)),
    ],
)
def test_rows_equal_built_in_when_a_schema_has_changed(
    make_lane: MakeLane, backend: str, change: str, beside: str
) -> None:
    """Catches a kind of change that is made otherwise than Spark makes it, in some kind of state;
    and expiry or timers that go astray beside it.
    """
    _run(make_lane, backend, CHANGES[change], batches=2, **BESIDE[beside])


def _fail_once(lane: Lane, batch: int) -> None:
    def on_batch(batch_id: int) -> None:
        if batch_id == batch and lane.attempts[batch_id] == 1:
            message = "the sink fails once"
            raise RuntimeError(message)

    lane.on_batch = on_batch


FAILS_ONCE = {
    "again": (BEGUN, WIDER, WIDER, WIDER),
    "back": (BEGUN, WIDER, BEGUN, BEGUN),
    "back-and-forward": (BEGUN, WIDER, BEGUN, WIDER),
    "back-and-to-another": (BEGUN, WIDER, BEGUN, OTHER),
}
"""Schemas of a first batch, of one that fails once, of its repetition, and of the one after."""


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        *_of(("filesystem", "again"), ("filesystem", "back-and-to-another"), extended=False),
        *_of(
            ("filesystem", "back"),
            ("filesystem", "back-and-forward"),
            *product(("rocksdb", "heap"), FAILS_ONCE),
        ),
    ],
)
def test_batch_that_changes_a_schema_is_repeated(
    make_lane: MakeLane, backend: str, case: str
) -> None:
    """Catches rows that are read by another schema than their own, since Spark takes the schema of
    the first attempt for that of the state: its own stores do so, and are no reference here.
    """
    first, fails, again, after = FAILS_ONCE[case]
    whole, failing = (make_lane(evolving(first), BACKENDS[backend]) for _ in range(2))
    runs = one_input(1, 1, 1, num_rows=25)
    for schema, files in zip((first, again, after), runs, strict=True):
        whole.query = evolving(schema)
        whole.run(*files)

    failing.run(*runs[0])
    _fail_once(failing, 1)
    failing.query = evolving(fails)
    with pytest.raises(StreamingQueryException, match="the sink fails once"):
        failing.run(*runs[1])
    for schema, files in zip((again, after), ([], runs[2]), strict=True):
        failing.query = evolving(schema)
        failing.run(*files)

    assert failing.batches == whole.batches
    assert Checkpoint(failing.checkpoint).verify(deep=True).ok


@EXTENDED
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_of_their_own_schema_whatever_fails(make_lane: MakeLane, seed: int) -> None:
    """Catches an order of programs, and of first batches that fail, in which schemas are mixed up.

    The model is a query of the same programs whose batches never fail.
    """
    rng = random.Random(seed)
    schemas = (BEGUN, WIDER, OTHER)
    whole, failing = (make_lane(evolving(BEGUN)) for _ in range(2))
    ran: list[str] = []
    for batch, files in enumerate(one_input(*[1] * 5, num_rows=25)):
        schema = rng.choice(schemas)
        whole.query = evolving(schema)
        whole.run(*files)
        failing.feed(*files)
        _fail_once(failing, batch)
        if rng.random() < 0.6:
            failing.query = evolving(rng.choice(schemas))
            ran.append(f"{batch} fails with {failing.query.name}")
            with pytest.raises(StreamingQueryException, match="the sink fails once"):
                failing.run()
        failing.on_batch = lambda _: None
        failing.query = evolving(schema)
        ran.append(f"{batch} with {failing.query.name}")
        failing.run()
        assert failing.batches[batch] == whole.batches[batch], ran

    assert Checkpoint(failing.checkpoint).verify(deep=True).ok


def test_batch_that_changes_a_schema_runs_again_after_a_repair(make_lane: MakeLane) -> None:
    """Catches a repair that leaves the schemas of a batch: to Spark, nothing has changed then."""
    whole, repaired = (make_lane(evolving(BEGUN)) for _ in range(2))
    runs = one_input(1, 1, 1, num_rows=25)
    for schema, files in zip((BEGUN, WIDER, WIDER), runs, strict=True):
        whole.query = evolving(schema)
        whole.run(*files)
    for schema, files in zip((BEGUN, WIDER), runs[:2], strict=True):
        repaired.query = evolving(schema)
        repaired.run(*files)
    schemas = repaired.checkpoint / "state" / "0" / "_metadata" / "v2" / "1"
    assert schemas.exists()
    for damaged in repaired.checkpoint.glob("state/0/*/2[._]*"):
        damaged.write_bytes(damaged.read_bytes()[:-7])

    assert Checkpoint(repaired.checkpoint).repair().replayed_batch == 1
    assert not schemas.exists()
    repaired.run()
    assert schemas.exists()
    repaired.run(*runs[2])

    assert repaired.batches == whole.batches


@pytest.mark.needs("row-api")
@pytest.mark.parametrize("ttls", [(None, HOUR_MS), pytest.param((HOUR_MS, None), marks=EXTENDED)])
def test_value_that_gets_an_end_is_refused(
    make_lane: MakeLane, ttls: tuple[int | None, int | None]
) -> None:
    """Catches state whose rows are all null, as Avro's rules allow them to become."""
    lane = make_lane(expiring(ttls[0]))
    runs = one_input(1, 1, num_rows=25)
    lane.run(*runs[0])
    lane.query = expiring(ttls[1])

    with pytest.raises(StreamingQueryException, match=r"\[schema-changed\]"):
        lane.run(*runs[1])


@pytest.mark.needs("row-api")
@pytest.mark.parametrize("backend", _of(("filesystem",), ("rocksdb",)))
def test_rows_equal_built_in_when_a_schema_changes_in_python(
    make_lane: MakeLane, backend: str
) -> None:
    """Catches a variable that Spark's Python workers give another schema than Scala does."""
    _run(make_lane, backend, PYTHON, made=evolving_in_python)


def test_types_that_avro_has_not_are_refused_as_by_built_in(make_lane: MakeLane) -> None:
    """Catches state that is written for weeks and cannot be read when its schema changes."""
    for provider in (ROCKSDB, PROVIDER):
        lane = make_lane(evolving("a TINYINT"), provider)
        with pytest.raises(StreamingQueryException, match="sqlType = TINYINT"):
            evolve(lane, ("a TINYINT",))


@pytest.mark.ours
@pytest.mark.skipif(PROVIDER not in (FILESYSTEM, ROCKSDB_BACKEND), reason="state is in files")
@pytest.mark.parametrize("encoding", ["unsaferow", pytest.param("avro", marks=EXTENDED)])
def test_query_whose_schemas_are_under_another_path_is_refused(
    make_lane: MakeLane, tmp_path: Path, encoding: str
) -> None:
    """Catches a schema that Spark takes for the first, and an error that names no way out."""
    lane = make_lane(evolving("a INT, b INT"), conf={f"{STATE_STORE}.encodingFormat": encoding})
    runs = one_input(1, 1, num_rows=25)
    lane.run(*runs[0])
    begun, moved, again = (tmp_path / name for name in ("begun", "moved", "again"))
    Checkpoint(lane.checkpoint).restore(begun)
    begun.rename(moved)
    lane.checkpoint = moved
    lane.feed(*runs[1])
    lane.query = evolving("a STRING, b STRING")
    before = tree(moved)

    with pytest.raises(IllegalArgumentException, match=r"\[file-not-found\] a schema") as refused:
        lane.run()
    assert f"file=file:{begun}/state/0/_stateSchema/" in str(refused.value)
    assert f"`statestore restore {moved} NEW`" in str(refused.value)
    assert tree(moved) == before
    assert not begun.exists()

    Checkpoint(moved).restore(again)
    lane.checkpoint = again
    with pytest.raises(StreamingQueryException, match="STATE_STORE"):
        lane.run()
    lane.query = evolving("a INT, b INT")
    lane.run()
    assert len(lane.batches) == 2
